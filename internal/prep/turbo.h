//go:build cgo && turbo

#ifndef LARDER_PREP_TURBO_H
#define LARDER_PREP_TURBO_H

#include <stddef.h>
#include <stdint.h>

/* What a decoder shares with Go. It lives in C memory, so that a call passes and returns nothing that escapes. */
typedef struct {
	void *impl;
	long warnings;     /* of the last image, without the premature end, which is an error */
	char message[256]; /* of the last error, or refused warning */
	int64_t at;        /* byte of src that the decoder had come to when it gave up; -1 = not known */
	int64_t clocks;    /* how often the clock was read for the last image: each is a system call */
} larder_jpeg;

/* What is decoded of an image, and how. */
typedef struct {
	uint32_t w, h;     /* of the image, as its header was read before */
	int64_t max_bytes; /* of coefficient memory, which progressive images need */
	int64_t max_cpu;   /* nanoseconds of this thread's processor time, from the first million pixels on; 0 = any */
	int32_t max_scans;
	int32_t strict;    /* refuse what libjpeg warns about */
	int32_t planes;    /* LARDER_GREY...: the image is of this kind and is wanted in planes; 0: as RGB */
	uint32_t x, y, cols, rows; /* region: what is needed; on return what lies in dst. cols = 0: the whole image */
} larder_picture;

enum { LARDER_DONE, LARDER_ERROR, LARDER_TRUNCATED, LARDER_CORRUPT, LARDER_NO_REGION, LARDER_TIMEOUT };

larder_jpeg *larder_jpeg_new(void);
void larder_jpeg_free(larder_jpeg *j);

/* Decodes n bytes into packed RGB, or planes, at dst, which has room for cap bytes. LARDER_ERROR and LARDER_CORRUPT leave a message;
   LARDER_NO_REGION: this image is to be decoded whole. Neither src nor dst is kept. */
int larder_jpeg_decode(larder_jpeg *j, const uint8_t *src, size_t n, larder_picture *p, uint8_t *dst, size_t cap);

#endif
