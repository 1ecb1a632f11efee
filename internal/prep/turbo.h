//go:build cgo && turbo

#ifndef LARDER_PREP_TURBO_H
#define LARDER_PREP_TURBO_H

#include <stddef.h>
#include <stdint.h>

/* What a decoder shares with Go. It lives in C memory, so that a call passes and returns nothing that escapes. */
typedef struct {
	void *impl;
	long warnings;     /* of the last image, without the premature end, which is an error */
	char message[256]; /* of the last error */
} larder_jpeg;

larder_jpeg *larder_jpeg_new(void);
void larder_jpeg_free(larder_jpeg *j);

/* Decodes n bytes into w x h pixels of RGB at dst. 0 = done, 1 = error (message says which), 2 = the data ended too early.
   Neither src nor dst is kept. max_bytes bounds the coefficient memory of progressive images, max_scans their scans. */
int larder_jpeg_decode(larder_jpeg *j, const uint8_t *src, size_t n, uint8_t *dst, uint32_t w, uint32_t h,
                       int64_t max_bytes, int max_scans);

#endif
