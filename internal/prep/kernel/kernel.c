//go:build cgo && turbo

#include "kernel.h"

#include <math.h>
#include <string.h>

/* Float arithmetic must round after every operation, as in Go and in Pillow's builds: fused multiplications only where
   they are written out. In gcc -std=c11 sees to it. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* kernel_body.h is compiled once for each instruction set. Functions carry the target as an attribute, so that the
   package needs no flags of its own and one binary runs everywhere. */

#define GLUE2(a, b) a##_##b
#define GLUE(a, b) GLUE2(a, b)
#define FN(name) GLUE(name, LEVEL)

#define LEVEL base
#define LEVEL_N 1
#define TARGET
#include "kernel_body.h"
#include "kernel_planes.h"
#include "kernel_more.h"
#undef LEVEL
#undef LEVEL_N
#undef TARGET

#if defined(__x86_64__)
#include <immintrin.h>

#define LEVEL sse4
#define LEVEL_N 2
#define TARGET __attribute__((target("sse4.1,ssse3")))
#include "kernel_body.h"
#include "kernel_planes.h"
#include "kernel_more.h"
#undef LEVEL
#undef LEVEL_N
#undef TARGET

#define LEVEL avx2
#define LEVEL_N 3
#define TARGET __attribute__((target("avx2,fma")))
#include "kernel_body.h"
#include "kernel_planes.h"
#include "kernel_more.h"
#undef LEVEL
#undef LEVEL_N
#undef TARGET

#define LEVEL avx512
#define LEVEL_N 4
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")))
#include "kernel_body.h"
#include "kernel_planes.h"
#include "kernel_more.h"
#undef LEVEL
#undef LEVEL_N
#undef TARGET
#endif

int larder_cpu_level(void) {
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma"))
		return LARDER_AVX512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return LARDER_AVX2;
	if (__builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3"))
		return LARDER_SSE4;
#endif
	return LARDER_BASE;
}

void larder_geo_run(const larder_geo *g, const uint8_t *src, const int32_t *h_bounds, const int32_t *h_k,
                    const int32_t *v_bounds, const int32_t *v_k, const float *lut, uint8_t *scratch, uint8_t *dst) {
	switch (g->level) {
#if defined(__x86_64__)
	case LARDER_AVX512:
		geo_avx512(g, src, h_bounds, h_k, v_bounds, v_k, lut, scratch, dst);
		_mm_sfence(); /* before any other thread learns of what was streamed */
		return;
	case LARDER_AVX2:
		geo_avx2(g, src, h_bounds, h_k, v_bounds, v_k, lut, scratch, dst);
		_mm_sfence();
		return;
	case LARDER_SSE4:
		geo_sse4(g, src, h_bounds, h_k, v_bounds, v_k, lut, scratch, dst);
		return;
#endif
	default:
		geo_base(g, src, h_bounds, h_k, v_bounds, v_k, lut, scratch, dst);
	}
}

void larder_color_run(int level, uint8_t *pix, int64_t n, const larder_color *steps, int count) {
	switch (level) {
#if defined(__x86_64__)
	case LARDER_AVX512:
		color_avx512(pix, n, steps, count);
		return;
	case LARDER_AVX2:
		color_avx2(pix, n, steps, count);
		return;
	case LARDER_SSE4:
		color_sse4(pix, n, steps, count);
		return;
#endif
	default:
		color_base(pix, n, steps, count);
	}
}

void larder_finish_run(int level, int out, const uint8_t *src, int64_t n, uint8_t *dst, int stream) {
	size_t pixels = (size_t)n;
	switch (level) {
#if defined(__x86_64__)
	case LARDER_AVX512:
		out == LARDER_U8_CHW ? split_planes_avx512(src, dst, pixels, stream) : copy_avx512(src, dst, 3 * pixels, stream);
		return;
	case LARDER_AVX2:
		out == LARDER_U8_CHW ? split_planes_avx2(src, dst, pixels, stream) : copy_avx2(src, dst, 3 * pixels, stream);
		return;
	case LARDER_SSE4:
		out == LARDER_U8_CHW ? split_planes_sse4(src, dst, pixels, stream) : copy_sse4(src, dst, 3 * pixels, stream);
		return;
#endif
	default:
		out == LARDER_U8_CHW ? split_planes_base(src, dst, pixels, stream) : copy_base(src, dst, 3 * pixels, stream);
	}
}

void larder_planes_run(const larder_planes *p, const uint8_t *src, uint8_t *scratch, uint8_t *dst) {
	switch (p->level) {
#if defined(__x86_64__)
	case LARDER_AVX512:
		planes_avx512(p, src, scratch, dst);
		return;
	case LARDER_AVX2:
		planes_avx2(p, src, scratch, dst);
		return;
	case LARDER_SSE4:
		planes_sse4(p, src, scratch, dst);
		return;
#endif
	default:
		planes_base(p, src, scratch, dst);
	}
}

/* One call for each instruction set. */
#if defined(__x86_64__)
#define RUN(level, name, ...)             \
	switch (level) {                      \
	case LARDER_AVX512:                   \
		name##_avx512(__VA_ARGS__);       \
		return;                           \
	case LARDER_AVX2:                     \
		name##_avx2(__VA_ARGS__);         \
		return;                           \
	case LARDER_SSE4:                     \
		name##_sse4(__VA_ARGS__);         \
		return;                           \
	default:                              \
		name##_base(__VA_ARGS__);         \
	}
#else
#define RUN(level, name, ...) name##_base(__VA_ARGS__)
#endif

void larder_affine_run(const larder_affine *a, const uint8_t *src, uint8_t *dst) { RUN(a->level, affine, a, src, dst); }

void larder_blur_run(const larder_blur *b, const float *k, const int32_t *from, const uint8_t *src, float *scratch,
                     uint8_t *dst) {
	RUN(b->level, blur, b, k, from, src, scratch, dst);
}

void larder_sharpen_run(int level, const uint8_t *src, int64_t w, int64_t h, float f, uint8_t *dst) {
	RUN(level, sharpen, src, w, h, f, dst);
}
