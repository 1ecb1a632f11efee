/* Included by kernel.c, once for each instruction set: steps that move pixels by a matrix, and steps that look at
   neighbours. */

#ifndef LARDER_KERNEL_MORE_SHARED
#define LARDER_KERNEL_MORE_SHARED
typedef double v4d __attribute__((vector_size(32)));

enum { LANES = 64 }; /* pixels of a row that a blur sums up at once */

/* A pixel as four bytes; the fourth is the byte behind it, or 0 behind the image. */
static inline int32_t at_pixel(const uint8_t *src, int64_t len, int64_t off) {
	int32_t b = 0;
	if (off + 4 <= len)
		memcpy(&b, src + off, 4);
	else
		memcpy(&b, src + off, 3);
	return b;
}

static inline int32_t into(int32_t i, int32_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }
#endif

/* The four bytes as numbers, and numbers of 0 to 255 cut off to bytes. */
#if LEVEL_N >= 3
#define WIDE(b) ((v4d)_mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(b))))

TARGET static inline int32_t FN(narrow)(const v4d *v) {
	__m256d low = _mm256_max_pd((__m256d)*v, _mm256_setzero_pd());
	__m128i i = _mm256_cvttpd_epi32(_mm256_min_pd(low, _mm256_set1_pd(255.0)));
	i = _mm_packus_epi32(i, i);
	return _mm_cvtsi128_si32(_mm_packus_epi16(i, i));
}
#else
#define WIDE(b)                                                     \
	({                                                              \
		int32_t p_ = (b);                                           \
		(v4d){p_ & 255, p_ >> 8 & 255, p_ >> 16 & 255, 0};          \
	})

TARGET static inline int32_t FN(narrow)(const v4d *v) {
	int32_t b = 0;
	for (int c = 0; c < 3; c++) {
		double x = (*v)[c] > 0.0 ? (*v)[c] : 0.0;
		b |= (int32_t)(x < 255.0 ? x : 255.0) << 8 * c;
	}
	return b;
}
#endif

/* --- matrices --- */

TARGET static void FN(affine_fixed)(const larder_affine *a, const uint8_t *src, uint8_t *dst) {
	uint32_t x0 = (uint32_t)a->fixed[2], y0 = (uint32_t)a->fixed[5];
	for (int32_t y = 0; y < a->rh; y++) {
		uint32_t xx = x0, yy = y0;
		for (int32_t x = 0; x < a->rw; x++, dst += 3) {
			uint32_t sx = (uint32_t)((int32_t)xx >> 16), sy = (uint32_t)((int32_t)yy >> 16);
			const uint8_t *p = a->fill;
			if (sx < (uint32_t)a->w && sy < (uint32_t)a->h)
				p = src + 3 * ((int64_t)sy * a->w + sx);
			dst[0] = p[0], dst[1] = p[1], dst[2] = p[2];
			xx += (uint32_t)a->fixed[0];
			yy += (uint32_t)a->fixed[3];
		}
		x0 += (uint32_t)a->fixed[1];
		y0 += (uint32_t)a->fixed[4];
	}
}

TARGET static inline int32_t FN(linear)(const larder_affine *a, const uint8_t *src, double xin, double yin) {
	int64_t len = 3 * (int64_t)a->w * a->h;
	int32_t x = xin >= 0 ? (int32_t)xin : -1, y = yin >= 0 ? (int32_t)yin : -1;
	double dx = xin - x, dy = yin - y;
	int64_t row = 3 * (int64_t)a->w, left = 3 * (int64_t)x, right = left + 3, up = row * y, down = up + row;
	/* Bytes behind a pixel are there, but for those of the last row. */
	if (x < 0 || x + 1 >= a->w || y < 0 || y + 2 >= a->h) {
		left = 3 * (int64_t)into(x, a->w), right = 3 * (int64_t)into(x + 1, a->w);
		up = row * into(y, a->h), down = row * into(y + 1, a->h);
	} else {
		len = INT64_MAX;
	}
#define AT(off) WIDE(at_pixel(src, len, off))
	v4d p = AT(up + left), q = AT(down + left);
	v4d v1 = p + (AT(up + right) - p) * dx, v2 = q + (AT(down + right) - q) * dx;
	v4d v = v1 + (v2 - v1) * dy;
	return FN(narrow)(&v);
}

TARGET static inline void FN(cubic)(const v4d v[4], double d, v4d *to) {
	const v4d v1 = v[0], v2 = v[1], v3 = v[2], v4 = v[3];
	v4d p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
	*to = v2 + d * (p2 + d * (p3 + d * p4));
}

TARGET static inline int32_t FN(bicubic)(const larder_affine *a, const uint8_t *src, double xin, double yin) {
	int64_t len = 3 * (int64_t)a->w * a->h, at[4];
	int32_t x = xin >= 0 ? (int32_t)xin : -1, y = yin >= 0 ? (int32_t)yin : -1;
	double dx = xin - x, dy = yin - y;
	v4d v[4], r;
	int inside = x >= 1 && x + 2 < a->w && y >= 1 && y + 3 < a->h;
	if (inside)
		len = INT64_MAX;
	for (int i = 0; i < 4; i++)
		at[i] = 3 * (int64_t)(inside ? x - 1 + i : into(x - 1 + i, a->w));
	for (int i = 0; i < 4; i++) {
		int64_t row = 3 * (int64_t)a->w * (inside ? y - 1 + i : into(y - 1 + i, a->h));
		v4d line[4] = {AT(row + at[0]), AT(row + at[1]), AT(row + at[2]), AT(row + at[3])};
		FN(cubic)(line, dx, &v[i]);
	}
#undef AT
	FN(cubic)(v, dy, &r);
	return FN(narrow)(&r);
}
#undef WIDE

TARGET static void FN(affine)(const larder_affine *a, const uint8_t *src, uint8_t *dst) {
	if (a->kind == LARDER_FIXED) {
		FN(affine_fixed)(a, src, dst);
		return;
	}
	const int32_t fill = a->fill[0] | a->fill[1] << 8 | a->fill[2] << 16;
	const double *m = a->m;
	for (int32_t y = 0; y < a->rh; y++)
		for (int32_t x = 0; x < a->rw; x++, dst += 3) {
			double xo = x + 0.5, yo = y + 0.5;
			double xin = m[0] * xo + m[1] * yo + m[2], yin = m[3] * xo + m[4] * yo + m[5];
			int32_t v = fill;
			if (xin >= 0.0 && xin < a->w && yin >= 0.0 && yin < a->h)
				v = a->kind == LARDER_LINEAR ? FN(linear)(a, src, xin - 0.5, yin - 0.5)
				                             : FN(bicubic)(a, src, xin - 0.5, yin - 0.5);
			/* The byte behind a pixel is written too, but for the last one. */
			memcpy(dst, &v, y + 1 == a->rh && x + 1 == a->rw ? 3 : 4);
		}
}

/* --- neighbours --- */

/* Sums of fused products of LANES pixels, in the order of the kernel, as bytes. rows are those of one channel. */
TARGET static inline void FN(blur_lanes)(const larder_blur *b, const float *const *rows, const float *k, int64_t x,
                                         uint8_t *out) {
#if LEVEL_N == 4
	__m512 s[LANES / 16];
	for (int q = 0; q < LANES / 16; q++)
		s[q] = _mm512_setzero_ps();
	for (int32_t i = 0; i < b->ky; i++) {
		const float *p = rows[i] + x;
		for (int32_t j = 0; j < b->kx; j++, p++) {
			__m512 w = _mm512_set1_ps(*k++);
			for (int q = 0; q < LANES / 16; q++)
				s[q] = _mm512_fmadd_ps(_mm512_loadu_ps(p + 16 * q), w, s[q]);
		}
	}
	for (int q = 0; q < LANES / 16; q++)
		_mm_storeu_si128((__m128i *)(void *)(out + 16 * q), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(s[q])));
#elif LEVEL_N == 3
	__m256 s[LANES / 8];
	for (int q = 0; q < LANES / 8; q++)
		s[q] = _mm256_setzero_ps();
	for (int32_t i = 0; i < b->ky; i++) {
		const float *p = rows[i] + x;
		for (int32_t j = 0; j < b->kx; j++, p++) {
			__m256 w = _mm256_set1_ps(*k++);
			for (int q = 0; q < LANES / 8; q++)
				s[q] = _mm256_fmadd_ps(_mm256_loadu_ps(p + 8 * q), w, s[q]);
		}
	}
	for (int q = 0; q < LANES / 8; q++) {
		__m256i v = _mm256_cvtps_epi32(s[q]);
		__m128i h = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
		_mm_storel_epi64((__m128i *)(void *)(out + 8 * q), _mm_packus_epi16(h, h));
	}
#else
	float s[LANES] = {0};
	for (int32_t i = 0; i < b->ky; i++) {
		const float *p = rows[i] + x;
		for (int32_t j = 0; j < b->kx; j++, p++, k++)
			for (int q = 0; q < LANES; q++)
				s[q] = fmaf(p[q], *k, s[q]);
	}
	for (int q = 0; q < LANES; q++) {
		float v = rintf(s[q]);
		out[q] = (uint8_t)(v < 255.0f ? v : 255.0f);
	}
#endif
}

/* A row of an image as three rows of floats, padded left and right. */
TARGET static void FN(spread)(const larder_blur *b, const uint8_t *row, const int32_t *from, float *out) {
	int64_t n = b->cols + b->kx - 1;
	for (int64_t x = 0; x < n; x++) {
		const uint8_t *p = row + 3 * (int64_t)from[b->x + x];
		out[x] = p[0], out[b->stride + x] = p[1], out[2 * b->stride + x] = p[2];
	}
}

TARGET static void FN(blur)(const larder_blur *b, const float *k, const int32_t *from, const uint8_t *src,
                            float *scratch, uint8_t *dst) {
	const int32_t *lines = from + b->w + b->kx - 1;
	uint8_t *bytes = (uint8_t *)(scratch + 3 * b->stride * b->ky);
	for (int32_t i = 0; i < b->ky - 1; i++)
		FN(spread)(b, src + 3 * (int64_t)b->w * lines[i], from, scratch + 3 * b->stride * i);
	for (int32_t y = 0; y < b->h; y++) {
		int32_t next = y + b->ky - 1;
		FN(spread)(b, src + 3 * (int64_t)b->w * lines[next], from, scratch + 3 * b->stride * (next % b->ky));
		for (int c = 0; c < 3; c++) {
			const float *rows[LARDER_MOST_TAPS];
			for (int32_t i = 0; i < b->ky; i++)
				rows[i] = scratch + 3 * b->stride * ((y + i) % b->ky) + c * b->stride;
			for (int64_t x = 0; x < b->cols; x += LANES)
				FN(blur_lanes)(b, rows, k, x, bytes + c * b->stride + x);
		}
		uint8_t *out = dst + 3 * ((int64_t)b->w * y + b->x);
		for (int64_t x = 0; x < b->cols; x++, out += 3)
			out[0] = bytes[x], out[1] = bytes[b->stride + x], out[2] = bytes[2 * b->stride + x];
	}
}

/* A float from 0 up as a byte, cut off at 255; written without a branch, so that compilers make vectors of it. */
TARGET static inline int32_t FN(cut)(float v) {
	int32_t i = (int32_t)v;
	return pick(i > 255, 255, i);
}

/* What is inside of a border of one pixel; both sides are 3 at least. */
TARGET static void FN(sharpen)(const uint8_t *src, int64_t w, int64_t h, float f, uint8_t *dst) {
	const float side = 1.0f / 13.0f, middle = 5.0f / 13.0f;
	int64_t row = 3 * w;
	for (int64_t y = 1; y < h - 1; y++) {
		const uint8_t *restrict mid = src + y * row, *restrict up = mid - row, *restrict down = mid + row;
		uint8_t *restrict out = dst + y * row;
		for (int64_t i = 3; i < row - 3; i++) {
			float v = 0.5f;
			v += (float)down[i - 3] * side + (float)down[i] * side + (float)down[i + 3] * side;
			v += (float)mid[i - 3] * side + (float)mid[i] * middle + (float)mid[i + 3] * side;
			v += (float)up[i - 3] * side + (float)up[i] * side + (float)up[i + 3] * side;
			int32_t smooth = FN(cut)(v);
			float t = (float)smooth + f * (float)((int32_t)mid[i] - smooth);
			t = t > 0 ? t : 0;
			t = t < 255 ? t : 255;
			out[i] = (uint8_t)t;
		}
	}
}
