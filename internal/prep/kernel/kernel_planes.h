/* Included by kernel.c once for each instruction set, as kernel_body.h is: a part of a planar image as packed RGB, with
   the bits of libjpeg. Chroma is upsampled in its "fancy" way: 3/4 of the nearer sample and 1/4 of the farther one, at
   borders the border itself, rounded up and down in turn. Colours are its fixed-point sums of 16 bits. */

#ifndef LARDER_PLANES_SHARED
#define LARDER_PLANES_SHARED
/* Weights of colours, times 2^16: red of Cr, green of both, blue of Cb. */
enum { RED_CR = 91881, GREEN_CR = 46802, GREEN_CB = 22554, BLUE_CB = 116130 };
/* The same times 2^14, such that the rounded product of 16 bits is that of 32 for every value of Cr and Cb. That holds
   for 29033 and for none of its neighbours. */
enum { RED_14 = 22970, BLUE_14 = 29033 };

static inline uint8_t clamp8(int v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }
#endif

/* sums[i] = 3 near[i] + far[i] for n bytes. Nothing behind them is read; nothing behind the n sums is written. */
TARGET static void FN(chroma_sums)(const uint8_t *near, const uint8_t *far, int n, int16_t *sums) {
#if LEVEL_N == 4
	for (int i = 0; i < n; i += 32) {
		__mmask32 m = n - i >= 32 ? 0xffffffff : (1u << (n - i)) - 1;
		__m512i a = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(m, near + i));
		__m512i b = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(m, far + i));
		_mm512_mask_storeu_epi16(sums + i, m, _mm512_add_epi16(_mm512_add_epi16(a, b), _mm512_add_epi16(a, a)));
	}
#else
	int i = 0;
#if LEVEL_N == 3
	for (; i + 16 <= n; i += 16) {
		__m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(near + i)));
		__m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(far + i)));
		_mm256_storeu_si256((__m256i *)(sums + i), _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(a, a)));
	}
#elif LEVEL_N == 2
	for (; i + 8 <= n; i += 8) {
		__m128i a = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(near + i)));
		__m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(far + i)));
		_mm_storeu_si128((__m128i *)(sums + i), _mm_add_epi16(_mm_add_epi16(a, b), _mm_add_epi16(a, a)));
	}
#endif
	for (; i < n; i++)
		sums[i] = (int16_t)(3 * near[i] + far[i]);
#endif
}

/* n pixels of a row, the first of an even column. sums begins with the chroma before that of the first pixel and may be
   read up to 64 bytes behind what belongs to the last; of luma avail bytes may be read. even and odd round. Up to 64
   bytes behind the row are written. */
TARGET static void FN(colored_row)(const uint8_t *luma, int64_t avail, int n, const int16_t *sums, int even, int odd,
                                   uint8_t *out) {
#if LEVEL_N == 4
	const __m512i same = _mm512_setr_epi32(1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8);
	const __m512i other = _mm512_setr_epi32(0, 2, 1, 3, 2, 4, 3, 5, 4, 6, 5, 7, 6, 8, 7, 9);
	const __m512i round = _mm512_set1_epi64((int64_t)((uint64_t)(uint16_t)(odd - 2048) * 0x1000100000000 |
	                                                  (uint64_t)(uint16_t)(even - 2048) * 0x10001));
	const __m512i red_blue = _mm512_set1_epi32(BLUE_14 << 16 | RED_14);
	const __m512i green = _mm512_set1_epi32((int)((uint32_t)(-GREEN_CB / 2) << 16 | (uint16_t)(-GREEN_CR / 2)));
	const __m512i twice = _mm512_broadcast_i32x4(
	    _mm_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1));
	const __m512i sort = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 2, 10, 3, 4, 12, 5, 6, 14, 7, -1, -1, -1, -1));
	const __m512i squeeze = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
	const __m512i half = _mm512_set1_epi32(1 << 15), three = _mm512_set1_epi16(3), low = _mm512_set1_epi16(-2);
	for (int i = 0; i < n; i += 16) {
		__m512i s = _mm512_loadu_si512(sums + i);
		__m512i t = _mm512_mullo_epi16(_mm512_permutexvar_epi32(same, s), three);
		t = _mm512_add_epi16(t, _mm512_add_epi16(_mm512_permutexvar_epi32(other, s), round));
		t = _mm512_and_si512(_mm512_srai_epi16(t, 3), low); /* twice Cr - 128 and Cb - 128, in turn */
		__m512i rb = _mm512_mulhrs_epi16(t, red_blue), g = _mm512_srai_epi32(_mm512_dpwssd_epi32(half, t, green), 16);
		__mmask16 m = avail - i >= 16 ? 0xffff : (__mmask16)((1 << (avail - i)) - 1);
		__m512i y = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, luma + i));
		rb = _mm512_add_epi16(rb, _mm512_shuffle_epi8(y, twice));
		g = _mm512_add_epi32(g, y);
		__m512i v = _mm512_shuffle_epi8(_mm512_packus_epi16(rb, g), sort);
		_mm512_storeu_si512(out + 3 * i, _mm512_permutexvar_epi32(squeeze, v));
	}
#elif LEVEL_N == 3
	const __m256i same = _mm256_setr_epi32(1, 1, 2, 2, 3, 3, 4, 4), other = _mm256_setr_epi32(0, 2, 1, 3, 2, 4, 3, 5);
	const __m256i round = _mm256_set1_epi64x((int64_t)((uint64_t)(uint16_t)(odd - 2048) * 0x1000100000000 |
	                                                   (uint64_t)(uint16_t)(even - 2048) * 0x10001));
	const __m256i red_blue = _mm256_set1_epi32(BLUE_14 << 16 | RED_14);
	const __m256i green = _mm256_set1_epi32((int)((uint32_t)(-GREEN_CB / 2) << 16 | (uint16_t)(-GREEN_CR / 2)));
	const __m256i twice = _mm256_broadcastsi128_si256(
	    _mm_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1));
	const __m256i sort = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 2, 10, 3, 4, 12, 5, 6, 14, 7, -1, -1, -1, -1));
	const __m256i half = _mm256_set1_epi32(1 << 15), three = _mm256_set1_epi16(3), low = _mm256_set1_epi16(-2);
	for (int i = 0; i < n; i += 8) {
		__m256i s = _mm256_loadu_si256((const __m256i *)(sums + i));
		__m256i t = _mm256_mullo_epi16(_mm256_permutevar8x32_epi32(s, same), three);
		t = _mm256_add_epi16(t, _mm256_add_epi16(_mm256_permutevar8x32_epi32(s, other), round));
		t = _mm256_and_si256(_mm256_srai_epi16(t, 3), low);
		__m256i rb = _mm256_mulhrs_epi16(t, red_blue);
		__m256i g = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(t, green), half), 16);
		uint8_t few[8] = {0};
		const uint8_t *from = luma + i;
		if (avail - i < 8)
			from = memcpy(few, from, (size_t)(avail - i));
		__m256i y = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
		rb = _mm256_add_epi16(rb, _mm256_shuffle_epi8(y, twice));
		g = _mm256_add_epi32(g, y);
		__m256i v = _mm256_shuffle_epi8(_mm256_packus_epi16(rb, g), sort);
		_mm_storeu_si128((__m128i *)(out + 3 * i), _mm256_castsi256_si128(v));
		_mm_storeu_si128((__m128i *)(out + 3 * i + 12), _mm256_extracti128_si256(v, 1));
	}
#elif LEVEL_N == 2
	const __m128i round = _mm_set1_epi64x((int64_t)((uint64_t)(uint16_t)(odd - 2048) * 0x1000100000000 |
	                                                (uint64_t)(uint16_t)(even - 2048) * 0x10001));
	const __m128i red_blue = _mm_set1_epi32(BLUE_14 << 16 | RED_14);
	const __m128i green = _mm_set1_epi32((int)((uint32_t)(-GREEN_CB / 2) << 16 | (uint16_t)(-GREEN_CR / 2)));
	const __m128i twice = _mm_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1);
	const __m128i sort = _mm_setr_epi8(0, 8, 1, 2, 10, 3, 4, 12, 5, 6, 14, 7, -1, -1, -1, -1);
	const __m128i half = _mm_set1_epi32(1 << 15), three = _mm_set1_epi16(3), low = _mm_set1_epi16(-2);
	for (int i = 0; i < n; i += 4) {
		__m128i s = _mm_loadu_si128((const __m128i *)(sums + i));
		__m128i t = _mm_mullo_epi16(_mm_shuffle_epi32(s, _MM_SHUFFLE(2, 2, 1, 1)), three);
		t = _mm_add_epi16(t, _mm_add_epi16(_mm_shuffle_epi32(s, _MM_SHUFFLE(3, 1, 2, 0)), round));
		t = _mm_and_si128(_mm_srai_epi16(t, 3), low);
		__m128i rb = _mm_mulhrs_epi16(t, red_blue);
		__m128i g = _mm_srai_epi32(_mm_add_epi32(_mm_madd_epi16(t, green), half), 16);
		uint8_t few[4] = {0};
		int32_t four;
		memcpy(&four, avail - i < 4 ? memcpy(few, luma + i, (size_t)(avail - i)) : luma + i, 4);
		__m128i y = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
		rb = _mm_add_epi16(rb, _mm_shuffle_epi8(y, twice));
		g = _mm_add_epi32(g, y);
		_mm_storeu_si128((__m128i *)(out + 3 * i), _mm_shuffle_epi8(_mm_packus_epi16(rb, g), sort));
	}
#else
	(void)avail;
	for (int i = 0; i < n; i++) {
		const int16_t *s = sums + (i & ~1) + 2, *o = i & 1 ? s + 2 : s - 2;
		int r = i & 1 ? odd : even, y = luma[i];
		int cr = ((3 * s[0] + o[0] + r) >> 4) - 128, cb = ((3 * s[1] + o[1] + r) >> 4) - 128;
		out[3 * i] = clamp8(y + ((RED_CR * cr + 32768) >> 16));
		out[3 * i + 1] = clamp8(y + ((32768 - GREEN_CB * cb - GREEN_CR * cr) >> 16));
		out[3 * i + 2] = clamp8(y + ((BLUE_CB * cb + 32768) >> 16));
	}
#endif
}

TARGET static void FN(grey_row)(const uint8_t *luma, int n, uint8_t *out) {
	int i = 0;
#if LEVEL_N >= 2
	const __m128i a = _mm_setr_epi8(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5);
	const __m128i b = _mm_setr_epi8(5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10);
	const __m128i c = _mm_setr_epi8(10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15);
	for (; i + 16 <= n; i += 16) {
		__m128i v = _mm_loadu_si128((const __m128i *)(luma + i)), *to = (__m128i *)(out + 3 * i);
		_mm_storeu_si128(to, _mm_shuffle_epi8(v, a));
		_mm_storeu_si128(to + 1, _mm_shuffle_epi8(v, b));
		_mm_storeu_si128(to + 2, _mm_shuffle_epi8(v, c));
	}
#endif
	for (; i < n; i++)
		out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = luma[i];
}

/* Row y of the part as packed RGB. */
TARGET static void FN(planes_row)(const larder_planes *p, const uint8_t *src, int y, int16_t *sums, uint8_t *out) {
	int w = p->w, h = p->h, x = p->x, n = p->cols;
	const uint8_t *luma = src + (int64_t)y * w + x;
	if (p->kind == LARDER_GREY) {
		FN(grey_row)(luma, n, out);
		return;
	}
	int across = (w + 1) / 2, down = p->kind == LARDER_420 ? (h + 1) / 2 : h, near = y, far = y, even = 4, odd = 8;
	if (p->kind == LARDER_420) {
		near = y / 2, far = y & 1 ? near + 1 : near - 1, even = 8, odd = 7;
		far = far < 0 ? 0 : far == down ? down - 1 : far;
	}
	const uint8_t *chroma = src + (int64_t)w * h;
	int64_t avail = (int64_t)w * h + 2 * (int64_t)across * down - (luma - src);
	int first = x / 2, end = (x + n + 1) / 2; /* of the chroma that belongs to the pixels */
	int from = first > 0 ? first - 1 : 0, to = end < across ? end + 1 : across;
	int64_t stride = 2 * (int64_t)across;
	FN(chroma_sums)(chroma + near * stride + 2 * from, chroma + far * stride + 2 * from, 2 * (to - from),
	                sums + 2 * (from - first + 1));
	if (from == first)
		sums[0] = sums[2], sums[1] = sums[3];
	if (to == end) {
		int16_t *last = sums + 2 * (end - first);
		last[2] = last[0], last[3] = last[1];
	}
	FN(colored_row)(luma, avail, n, sums, even, odd, out);
}

TARGET static void FN(planes)(const larder_planes *p, const uint8_t *src, uint8_t *scratch, uint8_t *dst) {
	for (int y = 0; y < p->rows; y++)
		FN(planes_row)(p, src, p->y + y, (int16_t *)(void *)scratch, dst + 3 * (int64_t)y * p->cols);
}
