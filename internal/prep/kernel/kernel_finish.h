/* Included by kernel_body.h, once for each instruction set: packed RGB to a uint8 output, with nothing else to be done to it.

   What is larger than the caches of a core is written past them ("stream"): a store that misses reads its line first, which is a third of
   what a copy moves, and throws out of the caches what is needed there. That works in whole lines of 64 bytes. */

#if LEVEL_N >= 2
/* 48 bytes to 16 of each channel. */
TARGET static inline void FN(part)(const uint8_t *in, __m128i *r, __m128i *g, __m128i *b) {
	const __m128i r0 = _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
	const __m128i r1 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1);
	const __m128i r2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13);
	const __m128i g0 = _mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
	const __m128i g1 = _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1);
	const __m128i g2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14);
	const __m128i b0 = _mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
	const __m128i b1 = _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1);
	const __m128i b2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15);
	__m128i x = _mm_loadu_si128((const __m128i *)in), y = _mm_loadu_si128((const __m128i *)(in + 16)), z = _mm_loadu_si128((const __m128i *)(in + 32));
	*r = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x, r0), _mm_shuffle_epi8(y, r1)), _mm_shuffle_epi8(z, r2));
	*g = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x, g0), _mm_shuffle_epi8(y, g1)), _mm_shuffle_epi8(z, g2));
	*b = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x, b0), _mm_shuffle_epi8(y, b1)), _mm_shuffle_epi8(z, b2));
}

/* A line of each plane at a time, so that the processor joins the stores to one. */
TARGET static inline void FN(line)(uint8_t *out, const __m128i v[4]) {
#if LEVEL_N == 4
	__m512i w = _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(v[0]), v[1], 1), v[2], 2), v[3], 3);
	_mm512_stream_si512((__m512i *)(void *)out, w);
#else
	for (int i = 0; i < 4; i++)
		_mm_stream_si128((__m128i *)(void *)(out + 16 * i), v[i]);
#endif
}
#endif

TARGET static void FN(split_planes)(const uint8_t *in, uint8_t *out, size_t n, int stream) {
	size_t i = 0;
#if LEVEL_N >= 2
	if (stream && (uintptr_t)out % 64 == 0 && n % 64 == 0) {
		for (; i < n; i += 64) {
			__m128i r[4], g[4], b[4];
			for (int k = 0; k < 4; k++) {
				_mm_prefetch((const char *)(in + 3 * i + 64 * k + AHEAD), _MM_HINT_T0);
				FN(part)(in + 3 * (i + 16 * (size_t)k), &r[k], &g[k], &b[k]);
			}
			FN(line)(out + i, r);
			FN(line)(out + n + i, g);
			FN(line)(out + 2 * n + i, b);
		}
		_mm_sfence(); /* before any other thread learns of it */
		return;
	}
	for (; i + 16 <= n; i += 16) {
		__m128i r, g, b;
		FN(part)(in + 3 * i, &r, &g, &b);
		_mm_storeu_si128((__m128i *)(out + i), r);
		_mm_storeu_si128((__m128i *)(out + n + i), g);
		_mm_storeu_si128((__m128i *)(out + 2 * n + i), b);
	}
#endif
	(void)stream;
	for (; i < n; i++)
		out[i] = in[3 * i], out[n + i] = in[3 * i + 1], out[2 * n + i] = in[3 * i + 2];
}

TARGET static void FN(copy)(const uint8_t *in, uint8_t *out, size_t n, int stream) {
#if LEVEL_N >= 2
	if (stream && (uintptr_t)out % 64 == 0) {
		size_t i = 0;
		for (; i + 64 <= n; i += 64) {
			_mm_prefetch((const char *)(in + i + AHEAD), _MM_HINT_T0);
#if LEVEL_N == 4
			_mm512_stream_si512((__m512i *)(void *)(out + i), _mm512_loadu_si512(in + i));
#else
			__m128i v[4];
			for (int k = 0; k < 4; k++)
				v[k] = _mm_loadu_si128((const __m128i *)(in + i + 16 * (size_t)k));
			FN(line)(out + i, v);
#endif
		}
		_mm_sfence();
		memcpy(out + i, in + i, n - i);
		return;
	}
#endif
	(void)stream;
	memcpy(out, in, n);
}
