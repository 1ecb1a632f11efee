/* Included by kernel.c once for each instruction set: LEVEL, LEVEL_N and TARGET are set there. */

#ifndef LARDER_KERNEL_SHARED
#define LARDER_KERNEL_SHARED
enum { BITS = 22, HALF = 1 << 21, BLOCK = 512 }; /* Pillow's precision of weights; pixels of a block of colour steps */
enum { AHEAD = 1024 };                           /* bytes that are fetched before they are copied */

typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint8_t v4b __attribute__((vector_size(4)));

/* a where cond, else b, without a branch: compilers make vectors of it. */
static inline int32_t pick(int cond, int32_t a, int32_t b) { return b ^ ((a ^ b) & -cond); }

/* The weight of tap i in its group of four. */
static inline int32_t weight(const int32_t *group, int i) {
	int32_t lo = group[i >> 1], hi = group[2 + (i >> 1)];
	return i & 1 ? ((hi >> 16) * 32768) + (lo >> 16) : ((int32_t)(int16_t)hi * 32768) + (lo & 0xffff);
}
#endif

/* --- horizontal pass: rows of packed RGB to rows of RGBX --- */

#if LEVEL_N == 4
/* Four rows at a time, one in each 128-bit lane; two taps in each 32-bit lane. */
TARGET static inline __m512i FN(column)(const uint8_t *const r[4], int64_t off, const int32_t *k, int groups) {
	const __m512i m01 = _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
	const __m512i m23 = _mm512_broadcast_i32x4(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
	__m512i lo = _mm512_set1_epi32(HALF), hi = _mm512_setzero_si512();
	for (int i = 0; i < groups; i++, off += 12, k += 4) {
		__m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(r[0] + off)));
		v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(r[1] + off)), 1);
		v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(r[2] + off)), 2);
		v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(r[3] + off)), 3);
		__m512i a = _mm512_shuffle_epi8(v, m01), b = _mm512_shuffle_epi8(v, m23);
		lo = _mm512_dpwssd_epi32(lo, a, _mm512_set1_epi32(k[0]));
		lo = _mm512_dpwssd_epi32(lo, b, _mm512_set1_epi32(k[1]));
		hi = _mm512_dpwssd_epi32(hi, a, _mm512_set1_epi32(k[2]));
		hi = _mm512_dpwssd_epi32(hi, b, _mm512_set1_epi32(k[3]));
	}
	return _mm512_srai_epi32(_mm512_add_epi32(lo, _mm512_slli_epi32(hi, 15)), BITS);
}

enum { FN(rows_at_once) = 4 };

TARGET static void FN(horizontal)(const larder_geo *g, const uint8_t *const r[4], uint8_t *const out[4],
                                  const int32_t *bounds, const int32_t *k) {
	int groups = g->h_groups, last = g->win_w - 1;
	for (int j = 0; j <= last; j += 4) {
		__m512i t[4];
		for (int i = 0; i < 4; i++) {
			int at = j + i < last ? j + i : last;
			int x = g->hflip ? g->win_x + last - at : g->win_x + at;
			t[i] = FN(column)(r, 3 * (int64_t)(bounds[2 * x] - g->skip_x), k + (size_t)x * groups * 4, groups);
		}
		__m512i v = _mm512_packus_epi16(_mm512_packs_epi32(t[0], t[1]), _mm512_packs_epi32(t[2], t[3]));
		_mm_storeu_si128((__m128i *)(out[0] + 4 * j), _mm512_castsi512_si128(v));
		_mm_storeu_si128((__m128i *)(out[1] + 4 * j), _mm512_extracti32x4_epi32(v, 1));
		_mm_storeu_si128((__m128i *)(out[2] + 4 * j), _mm512_extracti32x4_epi32(v, 2));
		_mm_storeu_si128((__m128i *)(out[3] + 4 * j), _mm512_extracti32x4_epi32(v, 3));
	}
}
#elif LEVEL_N == 3
/* Two rows at a time, one in each 128-bit lane. */
TARGET static inline __m256i FN(column)(const uint8_t *const r[4], int64_t off, const int32_t *k, int groups) {
	const __m256i m01 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
	const __m256i m23 = _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
	__m256i lo = _mm256_set1_epi32(HALF), hi = _mm256_setzero_si256();
	for (int i = 0; i < groups; i++, off += 12, k += 4) {
		__m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(r[0] + off)));
		v = _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(r[1] + off)), 1);
		__m256i a = _mm256_shuffle_epi8(v, m01), b = _mm256_shuffle_epi8(v, m23);
		lo = _mm256_add_epi32(lo, _mm256_madd_epi16(a, _mm256_set1_epi32(k[0])));
		lo = _mm256_add_epi32(lo, _mm256_madd_epi16(b, _mm256_set1_epi32(k[1])));
		hi = _mm256_add_epi32(hi, _mm256_madd_epi16(a, _mm256_set1_epi32(k[2])));
		hi = _mm256_add_epi32(hi, _mm256_madd_epi16(b, _mm256_set1_epi32(k[3])));
	}
	return _mm256_srai_epi32(_mm256_add_epi32(lo, _mm256_slli_epi32(hi, 15)), BITS);
}

enum { FN(rows_at_once) = 2 };

TARGET static void FN(horizontal)(const larder_geo *g, const uint8_t *const r[4], uint8_t *const out[4],
                                  const int32_t *bounds, const int32_t *k) {
	int groups = g->h_groups, last = g->win_w - 1;
	for (int j = 0; j <= last; j += 4) {
		__m256i t[4];
		for (int i = 0; i < 4; i++) {
			int at = j + i < last ? j + i : last;
			int x = g->hflip ? g->win_x + last - at : g->win_x + at;
			t[i] = FN(column)(r, 3 * (int64_t)(bounds[2 * x] - g->skip_x), k + (size_t)x * groups * 4, groups);
		}
		__m256i v = _mm256_packus_epi16(_mm256_packs_epi32(t[0], t[1]), _mm256_packs_epi32(t[2], t[3]));
		_mm_storeu_si128((__m128i *)(out[0] + 4 * j), _mm256_castsi256_si128(v));
		_mm_storeu_si128((__m128i *)(out[1] + 4 * j), _mm256_extracti128_si256(v, 1));
	}
}
#else
/* One row at a time, the channels of a pixel in a vector of four. */
enum { FN(rows_at_once) = 1 };

TARGET static void FN(horizontal)(const larder_geo *g, const uint8_t *const r[4], uint8_t *const out[4],
                                  const int32_t *bounds, const int32_t *k) {
	int groups = g->h_groups, last = g->win_w - 1;
	for (int j = 0; j <= last; j++) {
		int x = g->hflip ? g->win_x + last - j : g->win_x + j;
		const uint8_t *p = r[0] + 3 * (int64_t)(bounds[2 * x] - g->skip_x);
		const int32_t *kx = k + (size_t)x * groups * 4;
		v4i acc = {HALF, HALF, HALF, HALF};
		for (int i = 0; i < bounds[2 * x + 1]; i++, p += 3) {
			v4b b;
			memcpy(&b, p, 4);
			acc += __builtin_convertvector(b, v4i) * weight(kx + 4 * (i >> 2), i & 3);
		}
		acc >>= BITS;
		acc &= ~(acc < 0);
		acc |= (acc > 255);
		v4b to = __builtin_convertvector(acc, v4b);
		memcpy(out[0] + 4 * j, &to, 4);
	}
}
#endif

/* --- vertical pass: rows of RGBX to one row of RGBX; the rows lie in two runs, because the ring they lie in wraps --- */

TARGET static void FN(vertical)(const uint8_t *a, int na, const uint8_t *b, int nb, int64_t stride, const int32_t *k,
                                uint8_t *out, int n) {
#if LEVEL_N == 4
	for (int i = 0; i < n; i += 64) {
		__m512i s0 = _mm512_set1_epi32(HALF), s1 = s0, s2 = s0, s3 = s0;
		for (int t = 0; t < na + nb; t++) {
			const uint8_t *p = (t < na ? a + t * stride : b + (t - na) * stride) + i;
			__m512i w = _mm512_set1_epi32(k[t]);
			s0 = _mm512_add_epi32(s0, _mm512_mullo_epi32(w, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))));
			s1 = _mm512_add_epi32(s1, _mm512_mullo_epi32(w, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + 16)))));
			s2 = _mm512_add_epi32(s2, _mm512_mullo_epi32(w, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + 32)))));
			s3 = _mm512_add_epi32(s3, _mm512_mullo_epi32(w, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + 48)))));
		}
		const __m512i zero = _mm512_setzero_si512();
		_mm_storeu_si128((__m128i *)(out + i), _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_srai_epi32(s0, BITS), zero)));
		_mm_storeu_si128((__m128i *)(out + i + 16), _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_srai_epi32(s1, BITS), zero)));
		_mm_storeu_si128((__m128i *)(out + i + 32), _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_srai_epi32(s2, BITS), zero)));
		_mm_storeu_si128((__m128i *)(out + i + 48), _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_srai_epi32(s3, BITS), zero)));
	}
#elif LEVEL_N == 3
	for (int i = 0; i < n; i += 32) {
		__m256i s0 = _mm256_set1_epi32(HALF), s1 = s0, s2 = s0, s3 = s0;
		for (int t = 0; t < na + nb; t++) {
			const uint8_t *p = (t < na ? a + t * stride : b + (t - na) * stride) + i;
			__m256i w = _mm256_set1_epi32(k[t]);
			s0 = _mm256_add_epi32(s0, _mm256_mullo_epi32(w, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))));
			s1 = _mm256_add_epi32(s1, _mm256_mullo_epi32(w, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
			s2 = _mm256_add_epi32(s2, _mm256_mullo_epi32(w, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 16)))));
			s3 = _mm256_add_epi32(s3, _mm256_mullo_epi32(w, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 24)))));
		}
		__m256i u = _mm256_packus_epi16(_mm256_packs_epi32(_mm256_srai_epi32(s0, BITS), _mm256_srai_epi32(s1, BITS)),
		                                _mm256_packs_epi32(_mm256_srai_epi32(s2, BITS), _mm256_srai_epi32(s3, BITS)));
		_mm256_storeu_si256((__m256i *)(out + i), _mm256_permutevar8x32_epi32(u, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
	}
#else
	for (int i = 0; i < n; i += 16) {
		v4i s[4];
		for (int c = 0; c < 4; c++)
			s[c] = (v4i){HALF, HALF, HALF, HALF};
		for (int t = 0; t < na + nb; t++) {
			const uint8_t *p = (t < na ? a + t * stride : b + (t - na) * stride) + i;
			for (int c = 0; c < 4; c++) {
				v4b v;
				memcpy(&v, p + 4 * c, 4);
				s[c] += __builtin_convertvector(v, v4i) * k[t];
			}
		}
		for (int c = 0; c < 4; c++) {
			s[c] >>= BITS;
			s[c] &= ~(s[c] < 0);
			s[c] |= (s[c] > 255);
			v4b v = __builtin_convertvector(s[c], v4b);
			memcpy(out + i + 4 * c, &v, 4);
		}
	}
#endif
}

/* --- packed RGB to RGBX, mirrored or not. Up to 16 bytes behind the last pixel of in are read, and of out written. --- */

TARGET static void FN(expand)(const uint8_t *in, uint8_t *out, int w, int mirror) {
	int x = 0;
#if LEVEL_N >= 2
	const __m128i straight = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
	const __m128i turned = _mm_setr_epi8(9, 10, 11, -1, 6, 7, 8, -1, 3, 4, 5, -1, 0, 1, 2, -1);
	if (!mirror) {
		for (; x < w; x += 4)
			_mm_storeu_si128((__m128i *)(out + 4 * x), _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(in + 3 * x)), straight));
		return;
	}
	for (; x + 4 <= w; x += 4)
		_mm_storeu_si128((__m128i *)(out + 4 * x),
		                 _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(in + 3 * (w - 4 - x))), turned));
#endif
	for (; x < w; x++) {
		const uint8_t *p = in + 3 * (mirror ? w - 1 - x : x);
		out[4 * x] = p[0], out[4 * x + 1] = p[1], out[4 * x + 2] = p[2], out[4 * x + 3] = 0;
	}
}

/* --- the output --- */

#if LEVEL_N == 4
/* ((v / 255) - mean) / std in float32, each rounded: the quotients by a product with the inverse, and one correction by
   the exact remainder. A correction of 0 leaves the product v * (1/255) as it is. The caller has tried all 256 values
   against real divisions. */
TARGET static inline __m512 FN(normal)(__m512i v, const larder_geo *g, int c) {
	const __m512 by255 = _mm512_set1_ps(1.0f / 255.0f);
	__m512 x = _mm512_cvtepi32_ps(v), q = _mm512_mul_ps(x, by255);
	q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, _mm512_set1_ps(255.0f), x), _mm512_set1_ps(g->correction), q);
	__m512 d = _mm512_sub_ps(q, _mm512_set1_ps(g->mean[c])), inv = _mm512_set1_ps(g->inv[c]);
	q = _mm512_mul_ps(d, inv);
	return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, _mm512_set1_ps(g->std[c]), d), inv, q);
}
#elif LEVEL_N == 3
TARGET static inline __m256 FN(normal)(__m256i v, const larder_geo *g, int c) {
	const __m256 by255 = _mm256_set1_ps(1.0f / 255.0f);
	__m256 x = _mm256_cvtepi32_ps(v), q = _mm256_mul_ps(x, by255);
	q = _mm256_fmadd_ps(_mm256_fnmadd_ps(q, _mm256_set1_ps(255.0f), x), _mm256_set1_ps(g->correction), q);
	__m256 d = _mm256_sub_ps(q, _mm256_set1_ps(g->mean[c])), inv = _mm256_set1_ps(g->inv[c]);
	q = _mm256_mul_ps(d, inv);
	return _mm256_fmadd_ps(_mm256_fnmadd_ps(q, _mm256_set1_ps(g->std[c]), d), inv, q);
}
#endif

TARGET static void FN(planes_f32)(const larder_geo *g, const float *lut, const uint8_t *line, uint8_t *dst, size_t plane) {
	int x = 0, w = g->win_w;
#if LEVEL_N == 4
	if (g->affine) {
		const __m512i low = _mm512_set1_epi32(255);
		if (g->stream && (w | (int)(plane & 15)) % 16 == 0 && (uintptr_t)dst % 64 == 0) {
			for (; x < w; x += 16) {
				__m512i v = _mm512_loadu_si512(line + 4 * x);
				_mm512_stream_ps((float *)(void *)(dst + 4 * (size_t)x), FN(normal)(_mm512_and_si512(v, low), g, 0));
				_mm512_stream_ps((float *)(void *)(dst + 4 * (plane + x)), FN(normal)(_mm512_and_si512(_mm512_srli_epi32(v, 8), low), g, 1));
				_mm512_stream_ps((float *)(void *)(dst + 4 * (2 * plane + x)), FN(normal)(_mm512_and_si512(_mm512_srli_epi32(v, 16), low), g, 2));
			}
			return;
		}
		for (; x < w; x += 16) {
			__mmask16 m = w - x >= 16 ? 0xffff : (__mmask16)((1 << (w - x)) - 1);
			__m512i v = _mm512_loadu_si512(line + 4 * x);
			_mm512_mask_storeu_ps(dst + 4 * (size_t)x, m, FN(normal)(_mm512_and_si512(v, low), g, 0));
			_mm512_mask_storeu_ps(dst + 4 * (plane + x), m, FN(normal)(_mm512_and_si512(_mm512_srli_epi32(v, 8), low), g, 1));
			_mm512_mask_storeu_ps(dst + 4 * (2 * plane + x), m, FN(normal)(_mm512_and_si512(_mm512_srli_epi32(v, 16), low), g, 2));
		}
		return;
	}
#elif LEVEL_N == 3
	if (g->affine) {
		const __m256i low = _mm256_set1_epi32(255);
		if (g->stream && (w | (int)(plane & 15)) % 16 == 0 && (uintptr_t)dst % 64 == 0) {
			for (; x < w; x += 8) {
				__m256i v = _mm256_loadu_si256((const __m256i *)(line + 4 * x));
				_mm256_stream_ps((float *)(void *)(dst + 4 * (size_t)x), FN(normal)(_mm256_and_si256(v, low), g, 0));
				_mm256_stream_ps((float *)(void *)(dst + 4 * (plane + x)), FN(normal)(_mm256_and_si256(_mm256_srli_epi32(v, 8), low), g, 1));
				_mm256_stream_ps((float *)(void *)(dst + 4 * (2 * plane + x)), FN(normal)(_mm256_and_si256(_mm256_srli_epi32(v, 16), low), g, 2));
			}
			return;
		}
		for (; x + 8 <= w; x += 8) {
			__m256i v = _mm256_loadu_si256((const __m256i *)(line + 4 * x));
			_mm256_storeu_ps((float *)(void *)(dst + 4 * (size_t)x), FN(normal)(_mm256_and_si256(v, low), g, 0));
			_mm256_storeu_ps((float *)(void *)(dst + 4 * (plane + x)), FN(normal)(_mm256_and_si256(_mm256_srli_epi32(v, 8), low), g, 1));
			_mm256_storeu_ps((float *)(void *)(dst + 4 * (2 * plane + x)), FN(normal)(_mm256_and_si256(_mm256_srli_epi32(v, 16), low), g, 2));
		}
	}
#endif
	for (int c = 0; c < 3; c++)
		for (int i = x; i < w; i++)
			memcpy(dst + 4 * (c * plane + i), &lut[256 * c + line[4 * i + c]], 4);
}

TARGET static void FN(planes_u8)(const uint8_t *line, uint8_t *dst, size_t plane, int w) {
	int x = 0;
#if LEVEL_N == 4
	for (; x < w; x += 16) {
		__mmask16 m = w - x >= 16 ? 0xffff : (__mmask16)((1 << (w - x)) - 1);
		__m512i v = _mm512_loadu_si512(line + 4 * x);
		_mm512_mask_cvtepi32_storeu_epi8(dst + x, m, v);
		_mm512_mask_cvtepi32_storeu_epi8(dst + plane + x, m, _mm512_srli_epi32(v, 8));
		_mm512_mask_cvtepi32_storeu_epi8(dst + 2 * plane + x, m, _mm512_srli_epi32(v, 16));
	}
#elif LEVEL_N >= 2
	const __m128i sort = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	for (; x + 16 <= w; x += 16) {
		const __m128i *p = (const __m128i *)(line + 4 * x);
		__m128i a = _mm_shuffle_epi8(_mm_loadu_si128(p), sort), b = _mm_shuffle_epi8(_mm_loadu_si128(p + 1), sort);
		__m128i c = _mm_shuffle_epi8(_mm_loadu_si128(p + 2), sort), d = _mm_shuffle_epi8(_mm_loadu_si128(p + 3), sort);
		__m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
		_mm_storeu_si128((__m128i *)(dst + x), _mm_unpacklo_epi64(ab, cd));
		_mm_storeu_si128((__m128i *)(dst + plane + x), _mm_unpackhi_epi64(ab, cd));
		_mm_storeu_si128((__m128i *)(dst + 2 * plane + x), _mm_unpacklo_epi64(_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d)));
	}
#endif
	for (int i = x; i < w; i++) {
		dst[i] = line[4 * i];
		dst[plane + i] = line[4 * i + 1];
		dst[2 * plane + i] = line[4 * i + 2];
	}
}

TARGET static void FN(packed_u8)(const uint8_t *line, uint8_t *dst, int w) {
	int x = 0;
#if LEVEL_N >= 2
	const __m128i squeeze = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
	for (; x + 6 <= w; x += 4) /* 16 bytes are written */
		_mm_storeu_si128((__m128i *)(dst + 3 * x), _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(line + 4 * x)), squeeze));
#endif
	for (; x < w; x++)
		dst[3 * x] = line[4 * x], dst[3 * x + 1] = line[4 * x + 1], dst[3 * x + 2] = line[4 * x + 2];
}

TARGET static void FN(emit)(const larder_geo *g, const float *lut, const uint8_t *line, uint8_t *dst, int y) {
	int w = g->win_w;
	size_t plane = (size_t)w * g->win_h, at = (size_t)y * w;
	switch (g->out) {
	case LARDER_U8_HWC:
		FN(packed_u8)(line, dst + 3 * at, w);
		break;
	case LARDER_U8_CHW:
		FN(planes_u8)(line, dst + at, plane, w);
		break;
	case LARDER_F32_CHW:
		FN(planes_f32)(g, lut, line, dst + 4 * at, plane);
		break;
	case LARDER_F32_HWC:
		for (int x = 0; x < w; x++)
			for (int c = 0; c < 3; c++)
				memcpy(dst + 4 * (3 * (at + x) + c), &lut[256 * c + line[4 * x + c]], 4);
		break;
	case LARDER_U8_ONE:
		for (int x = 0; x < w; x++)
			dst[at + x] = line[4 * x];
		break;
	case LARDER_F32_ONE:
		for (int x = 0; x < w; x++)
			memcpy(dst + 4 * (at + x), &lut[line[4 * x]], 4);
		break;
	}
}

/* Row y of src, with reach bytes that may be read: the last rows of an image are copied to pad, and what is behind them
   there is weighted by 0. */
TARGET static const uint8_t *FN(source_row)(const larder_geo *g, const uint8_t *src, int y, int64_t reach, uint8_t *pad) {
	int64_t off = (y - g->skip_y) * g->src_stride;
	if (g->src_len - off >= reach)
		return src + off;
	int64_t n = g->src_len - off;
	memcpy(pad, src + off, (size_t)n);
	memset(pad + n, 0, (size_t)(reach - n));
	return pad;
}

TARGET static void FN(geo)(const larder_geo *g, const uint8_t *src, const int32_t *h_bounds, const int32_t *h_k,
                           const int32_t *v_bounds, const int32_t *v_k, const float *lut, uint8_t *scratch, uint8_t *dst) {
	const int64_t stride = g->mid_stride;
	const int ring = g->ring, end = g->first + g->rows, at_once = g->h_groups ? FN(rows_at_once) : 1;
	const int64_t reach = g->h_groups ? g->h_reach : 3 * ((int64_t)g->win_x + g->win_w - g->skip_x) + 16;
	uint8_t *line = scratch + ring * stride, *pad = line + stride;
	int next = g->first; /* row that the horizontal pass does next */
	for (int y = 0; y < g->win_h; y++) {
		int from = g->v_taps ? v_bounds[2 * (g->win_y + y)] : g->win_y + y;
		int n = g->v_taps ? v_bounds[2 * (g->win_y + y) + 1] : 1;
		while (next < from + n) {
			/* All but the last rows of the image can be read in place; what is to be copied goes one by one. */
			const uint8_t *r[4];
			uint8_t *out[4];
			for (int i = 0; i < at_once; i++) {
				int row = next + i < end ? next + i : end - 1; /* the last row may be done twice */
				r[i] = FN(source_row)(g, src, row, reach, pad + i * reach);
				out[i] = scratch + (row % ring) * stride;
			}
			if (g->h_groups)
				FN(horizontal)(g, r, out, h_bounds, h_k);
			else
				FN(expand)(r[0] + 3 * (int64_t)(g->win_x - g->skip_x), out[0], g->win_w, g->hflip);
			next += at_once;
		}
		const uint8_t *done = scratch + (from % ring) * stride;
		if (g->v_taps) {
			int na = ring - from % ring;
			if (na > n)
				na = n;
			FN(vertical)(done, na, scratch, n - na, stride, v_k + (size_t)(g->win_y + y) * g->v_taps, line, 4 * g->win_w);
			done = line;
		}
		FN(emit)(g, lut, done, dst, g->vflip ? g->win_h - 1 - y : y);
	}
}

/* --- colour --- */

/* Loops over planes of a block, which compilers turn into vectors. */

TARGET static void FN(split)(const uint8_t *pix, int n, uint8_t *r, uint8_t *gr, uint8_t *b) {
	uint8_t wide[4 * BLOCK + 64], pad[3 * 16 + 16];
	int whole = n > 8 ? (n - 6) & ~3 : 0; /* the vector code reads up to 16 bytes behind its last pixel */
	FN(expand)(pix, wide, whole, 0);
	memcpy(pad, pix + 3 * whole, (size_t)(3 * (n - whole)));
	memset(pad + 3 * (n - whole), 0, sizeof pad - (size_t)(3 * (n - whole)));
	FN(expand)(pad, wide + 4 * whole, n - whole, 0);
	for (int i = 0; i < n; i++)
		r[i] = wide[4 * i], gr[i] = wide[4 * i + 1], b[i] = wide[4 * i + 2];
}

TARGET static void FN(join)(const uint8_t *r, const uint8_t *gr, const uint8_t *b, int n, uint8_t *pix) {
	uint32_t wide[BLOCK + 16];
	for (int i = 0; i < n; i++)
		wide[i] = r[i] | (uint32_t)gr[i] << 8 | (uint32_t)b[i] << 16;
	FN(packed_u8)((const uint8_t *)wide, pix, n);
}

TARGET static inline uint8_t FN(luma)(uint8_t r, uint8_t g, uint8_t b) {
	return (uint8_t)((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16);
}

TARGET static inline uint8_t FN(blend)(int32_t a, int32_t b, float f) {
	float v = (float)a + f * (float)(b - a);
	v = v > 0 ? v : 0;
	v = v < 255 ? v : 255;
	return (uint8_t)(int32_t)v;
}

TARGET static void FN(blend_plane)(uint8_t *p, int n, int32_t from, float f) {
	for (int i = 0; i < n; i++)
		p[i] = FN(blend)(from, p[i], f);
}

TARGET static void FN(saturate)(uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, int n, float f) {
	for (int i = 0; i < n; i++) {
		int32_t l = FN(luma)(r[i], g[i], b[i]);
		r[i] = FN(blend)(l, r[i], f);
		g[i] = FN(blend)(l, g[i], f);
		b[i] = FN(blend)(l, b[i], f);
	}
}

TARGET static void FN(gray)(uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, int n) {
	for (int i = 0; i < n; i++)
		r[i] = g[i] = b[i] = FN(luma)(r[i], g[i], b[i]);
}

TARGET static inline int32_t FN(round8)(double v) {
	return (int32_t)(v + 0.5); /* v is at most 255 here */
}

/* Pillow's way to HSV and back (libImaging/Convert.c), with its mixture of float and double. Conditions are selections, so
   that the loop has no branch. */
TARGET static void FN(hue)(uint8_t *restrict rp, uint8_t *restrict gp, uint8_t *restrict bp, int n, int32_t shift) {
	for (int i = 0; i < n; i++) {
		int32_t r = rp[i], g = gp[i], b = bp[i];
		int32_t mx = r > g ? r : g, mn = r < g ? r : g;
		mx = mx > b ? mx : b;
		mn = mn < b ? mn : b;
		int32_t range = mx - mn;
		float cr = (float)(range + (range == 0)), top = (float)(mx + (mx == 0));
		float sat = (float)range / top;
		/* bc - gc, 2 + rc - bc or 4 + gc - rc, by which channel is the largest. Pillow's first is a difference of floats;
		   in double it is exact, so that rounding it afterwards gives the same. */
		int32_t plus = pick(mx == r, b, pick(mx == g, r, g)), minus = pick(mx == r, g, pick(mx == g, b, r));
		int32_t base = pick(mx == r, 0, pick(mx == g, 2, 4));
		float pc = (float)(mx - plus) / cr, mc = (float)(mx - minus) / cr;
		float hue = (float)((double)base + (double)pc - (double)mc);
		double x = (double)hue / 6.0 + 1.0;
		x -= (double)(int32_t)x; /* from 0.8..1.9 to its fraction */
		/* Both products lie in 0..255. */
		int32_t h = (int32_t)((double)(float)x * 255.0), s = (int32_t)((double)sat * 255.0);
		h = (pick(range != 0, h, 0) + shift) & 255;
		double at = (double)h * 6.0 / 255.0;
		int32_t sector = (int32_t)at;
		float f = (float)(at - (double)sector), fs = (float)((double)s / 255.0);
		double val = (double)mx;
		int32_t p = FN(round8)(val * (1.0 - (double)fs));
		int32_t q = FN(round8)(val * (1.0 - (double)(float)(fs * f)));
		int32_t t = FN(round8)(val * (1.0 - (double)fs * (1.0 - (double)f)));
		sector = pick(sector == 6, 0, sector);
		int32_t red = pick((sector == 0) | (sector == 5), mx, pick(sector == 1, q, pick(sector == 4, t, p)));
		int32_t green = pick((sector == 1) | (sector == 2), mx, pick(sector == 0, t, pick(sector == 3, q, p)));
		int32_t blue = pick((sector == 3) | (sector == 4), mx, pick(sector == 2, t, pick(sector == 5, q, p)));
		rp[i] = (uint8_t)pick(s != 0, red, mx);
		gp[i] = (uint8_t)pick(s != 0, green, mx);
		bp[i] = (uint8_t)pick(s != 0, blue, mx);
	}
}

TARGET static uint64_t FN(luma_sum)(const uint8_t *r, const uint8_t *g, const uint8_t *b, int n) {
	uint32_t sum = 0;
	for (int i = 0; i < n; i++)
		sum += FN(luma)(r[i], g[i], b[i]);
	return sum;
}

/* Steps run block by block, all of them on one block before the next, but for contrast, which needs the mean of the whole. */
TARGET static void FN(color)(uint8_t *pix, int64_t n, const larder_color *steps, int count) {
	uint8_t r[BLOCK + 64], g[BLOCK + 64], b[BLOCK + 64];
	uint8_t mean = 0;
	for (int from = 0; from < count;) {
		int to = from + 1;
		while (to < count && steps[to].kind != LARDER_CONTRAST)
			to++;
		/* The first step of a run may be a contrast; if another follows the run, the run sums up what it needs. */
		if (from == 0 && steps[0].kind == LARDER_CONTRAST) {
			uint64_t sum = 0;
			for (int64_t i = 0; i < n; i += BLOCK) {
				int m = n - i < BLOCK ? (int)(n - i) : BLOCK;
				FN(split)(pix + 3 * i, m, r, g, b);
				sum += FN(luma_sum)(r, g, b, m);
			}
			mean = (uint8_t)((double)sum / (double)n + 0.5);
		}
		uint64_t sum = 0;
		for (int64_t i = 0; i < n; i += BLOCK) {
			int m = n - i < BLOCK ? (int)(n - i) : BLOCK;
			FN(split)(pix + 3 * i, m, r, g, b);
			for (int s = from; s < to; s++) {
				float f = steps[s].f;
				int32_t grey = steps[s].kind == LARDER_CONTRAST ? mean : 0;
				switch (steps[s].kind) {
				case LARDER_BRIGHTNESS:
				case LARDER_CONTRAST:
					FN(blend_plane)(r, m, grey, f);
					FN(blend_plane)(g, m, grey, f);
					FN(blend_plane)(b, m, grey, f);
					break;
				case LARDER_SATURATION:
					FN(saturate)(r, g, b, m, f);
					break;
				case LARDER_HUE:
					FN(hue)(r, g, b, m, steps[s].hue);
					break;
				case LARDER_GRAY:
					FN(gray)(r, g, b, m);
					break;
				}
			}
			if (to < count)
				sum += FN(luma_sum)(r, g, b, m);
			FN(join)(r, g, b, m, pix + 3 * i);
		}
		if (to < count)
			mean = (uint8_t)((double)sum / (double)n + 0.5);
		from = to;
	}
}

#include "kernel_finish.h"
