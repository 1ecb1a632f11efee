//go:build cgo && turbo

#include "turbo.h"
#include "kernel/kernel.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>
#include <jerror.h>

/* Errors of libjpeg leave by longjmp. Every setjmp below is in the C function that Go calls, so none crosses Go. */

enum { ROWS = 16, MCU_ROWS = 16 };

typedef struct {
	struct jpeg_decompress_struct d; /* first: libjpeg hands back pointers to it */
	struct jpeg_error_mgr err;
	struct jpeg_progress_mgr progress;
	jmp_buf leave;
	larder_jpeg *j;
	int max_scans, strict;
	int64_t max_cpu, cpu_end; /* of this thread's processor time, in nanoseconds; 0 = any; 0 = not known yet */
	int64_t passed;           /* pixels since the clock was read */
	JDIMENSION row;           /* how far the output was at the last look */
} impl;

/* The clock of a thread is a system call, 1 to 2 microseconds: it is read after so many pixels, some 20 ms of work. Photographs of the
   usual datasets are smaller. Their work is bounded by their pixels. */
enum { PIXELS_A_LOOK = 1 << 20 };

static int64_t thread_cpu(void) {
	struct timespec t;
	return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? t.tv_sec * 1000000000LL + t.tv_nsec : 0;
}

static void on_error(j_common_ptr c) {
	impl *m = c->client_data;
	char text[JMSG_LENGTH_MAX];
	c->err->format_message(c, text);
	if (c->err->msg_code == JERR_NO_BACKING_STORE) /* how libjpeg says that max_memory_to_use is too little */
		snprintf(text, sizeof text, "its coefficients need more than %ld bytes", m->d.mem->max_memory_to_use);
	snprintf(m->j->message, sizeof m->j->message, "%s", text);
	longjmp(m->leave, LARDER_ERROR);
}

/* Warnings are counted, and accepted unless the caller is strict, as Pillow does, but for the end of the data: there Pillow
   raises "image file is truncated", while libjpeg would continue with grey. */
static void on_message(j_common_ptr c, int level) {
	impl *m = c->client_data;
	if (level >= 0)
		return;
	m->j->warnings++;
	if (c->err->msg_code == JWRN_JPEG_EOF)
		longjmp(m->leave, LARDER_TRUNCATED);
	if (m->strict) {
		char text[JMSG_LENGTH_MAX];
		c->err->format_message(c, text);
		snprintf(m->j->message, sizeof m->j->message, "%s", text);
		longjmp(m->leave, LARDER_CORRUPT);
	}
}

static void no_output(j_common_ptr c) { (void)c; }

/* Whether the image has taken too long. Time counts from the first look on, so that a small image needs none. */
static int too_long(impl *m) {
	m->passed = 0;
	m->j->clocks++;
	int64_t now = thread_cpu();
	if (m->cpu_end == 0) {
		m->cpu_end = now + m->max_cpu;
		return 0;
	}
	return now > m->cpu_end;
}

/* Called for every row of MCUs of every scan, and before rows are given out. A progressive image may repeat scans that cost time and hold
   no data. */
static void on_progress(j_common_ptr c) {
	impl *m = c->client_data;
	JDIMENSION row = m->d.output_scanline, rows = row > m->row ? row - m->row : MCU_ROWS;
	m->row = row;
	m->passed += (int64_t)rows * m->d.image_width;
	if (m->max_cpu && m->passed >= PIXELS_A_LOOK && too_long(m))
		longjmp(m->leave, LARDER_TIMEOUT);
	if (m->d.input_scan_number > m->max_scans) {
		snprintf(m->j->message, sizeof m->j->message, "more than %d scans", m->max_scans);
		longjmp(m->leave, LARDER_ERROR);
	}
}

larder_jpeg *larder_jpeg_new(void) {
	larder_jpeg *j = calloc(1, sizeof *j);
	impl *m = calloc(1, sizeof *m);
	if (!j || !m) {
		free(j);
		free(m);
		return NULL;
	}
	j->impl = m;
	m->j = j;
	m->d.err = jpeg_std_error(&m->err);
	m->err.error_exit = on_error;
	m->err.emit_message = on_message;
	m->err.output_message = no_output;
	m->d.client_data = m;
	if (setjmp(m->leave)) {
		jpeg_destroy_decompress(&m->d);
		free(m);
		free(j);
		return NULL;
	}
	jpeg_create_decompress(&m->d);
	m->d.client_data = m;
	m->progress.progress_monitor = on_progress;
	m->d.progress = &m->progress;
	return j;
}

void larder_jpeg_free(larder_jpeg *j) {
	if (!j)
		return;
	impl *m = j->impl;
	jpeg_destroy_decompress(&m->d);
	free(m);
	free(j);
}

/* (a * b) / 255, rounded, as Pillow's MULDIV255. */
static inline int muldiv255(int a, int b) {
	int t = a * b + 128;
	return ((t >> 8) + t) >> 8;
}

static inline uint8_t clip8(int v) { return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v; }

/* Pillow takes four components for Adobe's inverted CMYK always, and converts without a colour profile. */
static void cmyk_to_rgb(const uint8_t *in, uint8_t *out, uint32_t w) {
	for (uint32_t x = 0; x < w; x++, in += 4, out += 3) {
		int k = in[3];
		for (int c = 0; c < 3; c++)
			out[c] = clip8(k - muldiv255(255 - in[c], k));
	}
}

static void read_rgb(j_decompress_ptr d, uint8_t *dst, JDIMENSION end) {
	size_t stride = (size_t)d->output_width * 3;
	JSAMPROW rows[ROWS];
	while (d->output_scanline < end) {
		JDIMENSION left = end - d->output_scanline, n = left < ROWS ? left : ROWS;
		for (JDIMENSION i = 0; i < n; i++)
			rows[i] = dst + i * stride;
		dst += jpeg_read_scanlines(d, rows, n) * stride;
	}
}

/* Whether the image that is begun is of the kind that was found in its header. */
static int has_planes(j_decompress_ptr d, int kind) {
	const jpeg_component_info *c = d->comp_info;
	if (kind == LARDER_GREY)
		return d->num_components == 1 && d->jpeg_color_space == JCS_GRAYSCALE;
	return d->num_components == 3 && d->jpeg_color_space == JCS_YCbCr && c[0].h_samp_factor == 2 &&
	       c[0].v_samp_factor == (kind == LARDER_420 ? 2 : 1) && c[1].h_samp_factor == 1 && c[1].v_samp_factor == 1 &&
	       c[2].h_samp_factor == 1 && c[2].v_samp_factor == 1;
}

/* The planes as kernel/kernel.h lays them out. libjpeg writes whole blocks, so rows come by way of its memory. */
static void read_planes(j_decompress_ptr d, uint8_t *dst, int kind) {
	JSAMPARRAY rows[3];
	JDIMENSION w = d->output_width, h = d->output_height, across = (w + 1) / 2;
	int at_once = d->max_v_samp_factor * DCTSIZE;
	for (int c = 0; c < d->num_components; c++)
		rows[c] = d->mem->alloc_sarray((j_common_ptr)d, JPOOL_IMAGE, d->comp_info[c].width_in_blocks * DCTSIZE, (JDIMENSION)at_once);
	uint8_t *chroma = dst + (size_t)w * h;
	while (d->output_scanline < h) {
		JDIMENSION y = d->output_scanline, n = h - y < (JDIMENSION)at_once ? h - y : (JDIMENSION)at_once;
		jpeg_read_raw_data(d, rows, (JDIMENSION)at_once);
		for (JDIMENSION i = 0; i < n; i++)
			memcpy(dst + (size_t)(y + i) * w, rows[0][i], w);
		if (kind == LARDER_GREY)
			continue;
		if (kind == LARDER_420)
			y /= 2, n = (n + 1) / 2;
		for (JDIMENSION i = 0; i < n; i++) {
			const uint8_t *restrict cb = rows[1][i], *restrict cr = rows[2][i];
			uint8_t *restrict to = chroma + 2 * (size_t)(y + i) * across;
			for (JDIMENSION x = 0; x < across; x++)
				to[2 * x] = cr[x], to[2 * x + 1] = cb[x];
		}
	}
}

static void read_cmyk(j_decompress_ptr d, uint8_t *dst) {
	size_t stride = (size_t)d->output_width * 3;
	JSAMPARRAY row = d->mem->alloc_sarray((j_common_ptr)d, JPOOL_IMAGE, d->output_width * 4, 1);
	while (d->output_scanline < d->output_height) {
		uint8_t *to = dst + (size_t)d->output_scanline * stride;
		if (jpeg_read_scanlines(d, row, 1) == 1)
			cmyk_to_rgb(row[0], to, d->output_width);
	}
}

/* Columns and rows that are decoded around a region. At the border of what is decoded the upsampling of chroma has no
   neighbour and takes the border itself. It looks one chroma sample far, two pixels: with 0 here the tests fail, with 2 not. */
enum { MARGIN = 4 };

/* Whether the rest of the scan can hold no error that is fatal: nothing but data and restart markers up to the end marker. */
static int tail_is_plain(j_decompress_ptr d) {
	if (d->unread_marker != 0)
		return 0;
	const uint8_t *p = d->src->next_input_byte, *end = p + d->src->bytes_in_buffer;
	while (p < end && (p = memchr(p, 0xff, (size_t)(end - p))) != NULL && ++p < end) {
		if (*p == 0xd9)
			return 1;
		if (*p != 0 && *p != 0xff && !(*p >= 0xd0 && *p <= 0xd7))
			return 0;
	}
	return 0;
}

/* Decodes the region of an image of one scan. What lies outside is only read as far as its Huffman codes demand. */
static void read_region(j_decompress_ptr d, larder_picture *p, uint8_t *dst, size_t cap) {
	impl *m = d->client_data;
	JDIMENSION left = p->x > MARGIN ? p->x - MARGIN : 0, right = p->x + p->cols + MARGIN;
	JDIMENSION top = p->y > MARGIN ? p->y - MARGIN : 0, bottom = p->y + p->rows + MARGIN;
	if (right > d->output_width)
		right = d->output_width;
	if (bottom > d->output_height)
		bottom = d->output_height;
	JDIMENSION cols = right - left;
	jpeg_crop_scanline(d, &left, &cols);
	if ((size_t)(bottom - top) * d->output_width * 3 > cap) {
		snprintf(m->j->message, sizeof m->j->message, "a region of %u columns does not fit", (unsigned)d->output_width);
		longjmp(m->leave, LARDER_ERROR);
	}
	if (top > 0)
		top = jpeg_skip_scanlines(d, top);
	read_rgb(d, dst, bottom);
	p->x = left;
	p->y = top;
	p->cols = d->output_width;
	p->rows = bottom - top;
	/* An image that would fail as a whole must fail here too, or it would be good or bad depending on the crop. */
	if (d->output_scanline < d->output_height && (m->strict || !tail_is_plain(d))) {
		if (d->output_height - d->output_scanline > 1) /* to the very end it would skip without reading */
			jpeg_skip_scanlines(d, d->output_height - d->output_scanline - 1);
		JSAMPARRAY row = d->mem->alloc_sarray((j_common_ptr)d, JPOOL_IMAGE, d->output_width * 3, 1);
		while (d->output_scanline < d->output_height)
			jpeg_read_scanlines(d, row, 1);
	}
}

int larder_jpeg_decode(larder_jpeg *j, const uint8_t *src, size_t n, larder_picture *p, uint8_t *dst, size_t cap) {
	impl *m = j->impl;
	j_decompress_ptr d = &m->d;
	j->warnings = 0;
	j->message[0] = 0;
	m->max_scans = p->max_scans;
	m->strict = p->strict;
	m->max_cpu = p->max_cpu;
	m->cpu_end = m->passed = m->row = 0;
	j->clocks = 0;
	int left = setjmp(m->leave);
	if (left == 0) {
		jpeg_mem_src(d, src, (unsigned long)n);
		jpeg_read_header(d, TRUE);
		if (d->image_width != p->w || d->image_height != p->h) {
			snprintf(j->message, sizeof j->message, "two frame headers: %u x %u and %u x %u", p->w, p->h,
			         (unsigned)d->image_width, (unsigned)d->image_height);
			longjmp(m->leave, LARDER_ERROR);
		}
		d->mem->max_memory_to_use = (long)p->max_bytes;
		d->dct_method = JDCT_ISLOW;
		d->do_fancy_upsampling = TRUE;
		int region = p->cols > 0;
		if (region && (d->num_components == 4 || d->arith_code || jpeg_has_multiple_scans(d)))
			longjmp(m->leave, LARDER_NO_REGION);
		if (!region && !p->planes && (size_t)p->w * p->h * 3 > cap) {
			snprintf(j->message, sizeof j->message, "no room for %u x %u pixels", p->w, p->h);
			longjmp(m->leave, LARDER_ERROR);
		}
		if (p->planes) {
			if (!has_planes(d, p->planes)) {
				snprintf(j->message, sizeof j->message, "its header was taken for one of planes of kind %d", p->planes);
				longjmp(m->leave, LARDER_ERROR);
			}
			d->raw_data_out = TRUE;
			jpeg_start_decompress(d);
			read_planes(d, dst, p->planes);
		} else if (d->num_components == 4) {
			d->out_color_space = JCS_CMYK;
			jpeg_start_decompress(d);
			read_cmyk(d, dst);
		} else if (d->num_components == 1 || d->num_components == 3) {
			d->out_color_space = JCS_RGB;
			jpeg_start_decompress(d);
			if (region)
				read_region(d, p, dst, cap);
			else
				read_rgb(d, dst, d->output_height);
		} else {
			snprintf(j->message, sizeof j->message, "%d components", d->num_components);
			longjmp(m->leave, LARDER_ERROR);
		}
		if (d->output_scanline >= d->output_height) /* planes come by whole blocks */
			jpeg_finish_decompress(d);
		else
			jpeg_abort_decompress(d);
	} else {
		/* The entropy decoder tells the source where it is after every MCU, so this is a little before the damage. */
		const uint8_t *next = d->src ? d->src->next_input_byte : NULL;
		j->at = next && next >= src && next <= src + n ? next - src : -1;
		if (setjmp(m->leave) == 0)
			jpeg_abort_decompress(d);
	}
	if (d->src) {
		d->src->next_input_byte = NULL;
		d->src->bytes_in_buffer = 0;
	}
	return left;
}
