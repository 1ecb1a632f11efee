#ifndef LARDER_PREP_KERNEL_H
#define LARDER_PREP_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/* How rows are written. */
enum { LARDER_U8_HWC, LARDER_U8_CHW, LARDER_F32_CHW, LARDER_F32_HWC, LARDER_U8_ONE, LARDER_F32_ONE };

/* Instruction sets, each with the bits of the others and of the Go twin. */
enum { LARDER_BASE = 1, LARDER_SSE4, LARDER_AVX2, LARDER_AVX512 };

/* One pass over an image: resample a box, flip, cast, normalise, lay out. Pixels of src are packed RGB. */
typedef struct {
	int64_t src_len;         /* bytes that may be read from src */
	int64_t src_stride;      /* from row to row of src */
	int64_t mid_stride;      /* from row to row of scratch; at least 4 * (win_w + 16) */
	int32_t src_w;           /* of the box that src begins with */
	int32_t skip_x, skip_y;  /* columns and rows of the box that src does not hold, because nothing needs them */
	int32_t win_x, win_y;    /* what is written of the resized box */
	int32_t win_w, win_h;
	int32_t first, rows;     /* rows of src that are needed */
	int32_t hflip, vflip;
	int32_t h_groups;        /* groups of four weights a column; 0: no horizontal pass */
	int32_t h_reach;         /* bytes from the begin of a row that the horizontal pass may read */
	int32_t v_taps;          /* weights a row of v_k; 0: no vertical pass */
	int32_t ring;            /* rows of scratch for the passes; a line of output and a padded row of src follow */
	int32_t out;             /* LARDER_U8_HWC... */
	int32_t affine;          /* normalise by arithmetic (mean, std, inverse std a channel) instead of lut */
	int32_t level;           /* LARDER_BASE... */
	int32_t stream;          /* floats go past the caches, where the place allows it */
	float correction;        /* 1/255: values are divided by 255; 0: they are multiplied by 1/255 */
	float mean[3], std[3], inv[3];
} larder_geo;

/* h_k holds the weights of a column in groups of four: the low 15 bits of the first two as int16, those of the next two,
   then the high parts likewise. Bounds are pairs of the first pixel and the number of weights. lut is 3 x 256 floats. */
void larder_geo_run(const larder_geo *g, const uint8_t *src, const int32_t *h_bounds, const int32_t *h_k,
                    const int32_t *v_bounds, const int32_t *v_k, const float *lut, uint8_t *scratch, uint8_t *dst);

enum { LARDER_BRIGHTNESS, LARDER_CONTRAST, LARDER_SATURATION, LARDER_HUE, LARDER_GRAY };

typedef struct {
	int32_t kind;
	int32_t hue; /* what is added to a hue, 0..255 */
	float f;
} larder_color;

/* Colour steps in place on n packed RGB pixels. */
void larder_color_run(int level, uint8_t *pix, int64_t n, const larder_color *steps, int count);

/* n packed RGB pixels to LARDER_U8_HWC or LARDER_U8_CHW. stream: past the caches, where the place allows it. */
void larder_finish_run(int level, int out, const uint8_t *src, int64_t n, uint8_t *dst, int stream);

/* Planar images: luma of w x h, then, row after row, Cr and Cb in turn, of half the width and, in LARDER_420, of half the
   height, both rounded up. */
enum { LARDER_GREY = 1, LARDER_420, LARDER_422 };

typedef struct {
	int32_t kind;             /* LARDER_GREY... */
	int32_t w, h;             /* of the image */
	int32_t x, y, cols, rows; /* the part that is wanted; x is even */
	int32_t level;            /* LARDER_BASE... */
} larder_planes;

/* A part of a planar image as packed RGB. scratch holds 2 * (cols + 64) bytes. Up to 64 bytes behind the part are
   written. */
void larder_planes_run(const larder_planes *p, const uint8_t *src, uint8_t *scratch, uint8_t *dst);

/* How a matrix takes its pixels: the nearest by 16.16 bits, or interpolated in doubles. */
enum { LARDER_FIXED, LARDER_LINEAR, LARDER_CUBIC };

typedef struct {
	double m[6];      /* from the middle of a pixel of the result to the source */
	int32_t fixed[6]; /* the same for LARDER_FIXED */
	int32_t w, h;     /* of the source */
	int32_t rw, rh;   /* of the result */
	int32_t kind;     /* LARDER_FIXED... */
	int32_t level;    /* LARDER_BASE... */
	uint8_t fill[4];
} larder_affine;

void larder_affine_run(const larder_affine *a, const uint8_t *src, uint8_t *dst);

enum { LARDER_MOST_TAPS = 255 };

typedef struct {
	int64_t stride;  /* floats of a row of scratch: at least cols + kx + 64 */
	int32_t w, h;    /* of the image */
	int32_t x, cols; /* the columns that are made */
	int32_t kx, ky;  /* of the kernel k, row by row */
	int32_t level;   /* LARDER_BASE... */
} larder_blur;

/* from has the columns, w + kx - 1, then the rows, h + ky - 1, that padding takes. scratch holds 3 * stride * (ky + 1)
   floats. src and dst are the whole images. */
void larder_blur_run(const larder_blur *b, const float *k, const int32_t *from, const uint8_t *src, float *scratch,
                     uint8_t *dst);

/* Away from the smoothed image, or towards it; dst has the border already. Both sides are 3 at least. */
void larder_sharpen_run(int level, const uint8_t *src, int64_t w, int64_t h, float f, uint8_t *dst);

/* The best level of this processor. */
int larder_cpu_level(void);

#endif
