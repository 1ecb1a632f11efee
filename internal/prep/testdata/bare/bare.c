/* The work of prep.DecodeInto as a bare C loop over libjpeg-turbo, with nothing around it: the reference of larder bench prep.

     cc -O3 -march=native -std=c11 -I internal/prep/kernel -o bare internal/prep/testdata/bare/bare.c \
       internal/prep/kernel/kernel.c -ljpeg -lm

   Reads from stdin: a line with the number of files, their paths, then for every pass a line "part", "whole" or "batch" and for each
   file a line "x y w h flip". Answers each pass with the CPU seconds it took. Each image is cropped, resized to 224 x 224 (bilinear,
   antialiased), flipped and normalised to float32 CHW. "part" decodes the crop only, "whole" everything, files being in memory and
   the result always in one place. "batch" is what a loader does: it reads each file, decodes the crop, and writes to four batches of 64
   in turn. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <jpeglib.h>

#include "kernel.h"

enum { SIZE = 224, MARGIN = 4, ROW = 4 * 3 * SIZE * SIZE, ROWS = 4 * 64 };

static double cpu(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Pillow's triangle filter in 22-bit fixed point; for columns in the order of kernel.h. */
static int weights(int in, int32_t *bounds, int32_t *k, int packed, int *reach) {
	double scale = (double)in / SIZE, fs = scale < 1 ? 1 : scale, w[4096];
	int most = 1, taps = (int)ceil(fs) * 2 + 1, groups;
	for (int x = 0; x < SIZE; x++) {
		double center = (x + 0.5) * scale;
		int lo = (int)(center - fs + 0.5), hi = (int)(center + fs + 0.5);
		lo = lo < 0 ? 0 : lo;
		hi = hi > in ? in : hi;
		bounds[2 * x] = lo;
		bounds[2 * x + 1] = hi - lo;
		if (hi - lo > most)
			most = hi - lo;
	}
	groups = (most + 3) / 4;
	*reach = 0;
	for (int x = 0; x < SIZE; x++) {
		double center = (x + 0.5) * scale, sum = 0;
		int n = bounds[2 * x + 1];
		for (int i = 0; i < n; i++) {
			double d = fabs((i + bounds[2 * x] - center + 0.5) / fs);
			sum += w[i] = d < 1 ? 1 - d : 0;
		}
		int32_t *to = k + (size_t)x * (packed ? 4 * groups : taps);
		if (packed)
			memset(to, 0, 16 * (size_t)groups);
		for (int i = 0; i < n; i++) {
			int32_t v = (int32_t)(w[i] / sum * (1 << 22) + 0.5);
			if (!packed) {
				to[i] = v;
				continue;
			}
			int at = i / 4 * 4 + i % 4 / 2, shift = 16 * (i % 2);
			to[at] |= (v & 0x7fff) << shift;
			to[at + 2] |= (v >> 15) << shift;
		}
		if (3 * bounds[2 * x] > *reach)
			*reach = 3 * bounds[2 * x];
	}
	*reach += 12 * (groups - 1) + 16;
	return packed ? groups : taps;
}

int main(void) {
	int n;
	if (scanf("%d\n", &n) != 1)
		return 1;
	uint8_t **file = calloc(n, sizeof *file), *room = NULL, *ring;
	char **name = calloc(n, sizeof *name);
	size_t largest = 1, row = 0;
	size_t *size = calloc(n, sizeof *size);
	for (int i = 0; i < n; i++) {
		char path[4096];
		if (!fgets(path, sizeof path, stdin))
			return 1;
		path[strcspn(path, "\n")] = 0;
		FILE *f = fopen(path, "rb");
		if (!f)
			return 1;
		fseek(f, 0, SEEK_END);
		size[i] = (size_t)ftell(f);
		rewind(f);
		file[i] = malloc(size[i]);
		if (fread(file[i], 1, size[i], f) != size[i])
			return 1;
		fclose(f);
		name[i] = strdup(path);
		largest = size[i] > largest ? size[i] : largest;
	}
	room = malloc(largest);
	ring = aligned_alloc(4096, (size_t)ROW * ROWS);
	if (!room || !ring)
		return 1;
	memset(ring, 1, (size_t)ROW * ROWS); /* no first touch within a pass */
	printf("ready\n");
	fflush(stdout);
	struct jpeg_decompress_struct d;
	struct jpeg_error_mgr err;
	d.err = jpeg_std_error(&err);
	jpeg_create_decompress(&d);
	int (*box)[5] = malloc(n * sizeof *box);
	size_t cap = 0;
	uint8_t *pix = NULL, *scratch = NULL, *dst = malloc(4 * 3 * SIZE * SIZE);
	size_t scratch_cap = 0;
	static int32_t hb[2 * SIZE], vb[2 * SIZE], hk[SIZE * 4096], vk[SIZE * 4096];
	static float lut[768];
	const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
	char mode[16];
	while (scanf("%15s", mode) == 1) {
		for (int i = 0; i < n; i++)
			if (scanf("%d %d %d %d %d", box[i], box[i] + 1, box[i] + 2, box[i] + 3, box[i] + 4) != 5)
				return 1;
		int batch = mode[0] == 'b', part = batch || mode[0] == 'p';
		double begin = cpu();
		for (int i = 0; i < n; i++) {
			int x = box[i][0], y = box[i][1], w = box[i][2], h = box[i][3];
			if (batch) {
				int fd = open(name[i], O_RDONLY | O_CLOEXEC);
				if (fd < 0 || read(fd, room, size[i]) != (ssize_t)size[i])
					return 1;
				close(fd);
			}
			jpeg_mem_src(&d, batch ? room : file[i], size[i]);
			jpeg_read_header(&d, TRUE);
			d.out_color_space = JCS_RGB;
			jpeg_start_decompress(&d);
			JDIMENSION left = 0, top = 0, end = d.output_height;
			if (part) {
				left = x > MARGIN ? x - MARGIN : 0;
				JDIMENSION right = x + w + MARGIN, cols;
				cols = (right < d.output_width ? right : d.output_width) - left;
				jpeg_crop_scanline(&d, &left, &cols);
				top = y > MARGIN ? y - MARGIN : 0;
				if ((JDIMENSION)(y + h + MARGIN) < end)
					end = y + h + MARGIN;
				if (top)
					jpeg_skip_scanlines(&d, top);
			}
			size_t stride = (size_t)d.output_width * 3, need = stride * (end - top);
			if (need > cap)
				pix = realloc(pix, cap = need);
			while (d.output_scanline < end) {
				JSAMPROW rows[16];
				int m = end - d.output_scanline < 16 ? (int)(end - d.output_scanline) : 16;
				for (int r = 0; r < m; r++)
					rows[r] = pix + (d.output_scanline - top + r) * stride;
				jpeg_read_scanlines(&d, rows, m);
			}
			if (d.output_scanline < d.output_height)
				jpeg_abort_decompress(&d);
			else
				jpeg_finish_decompress(&d);
			size_t off = (y - top) * stride + 3 * (x - left);
			larder_geo g = {.src_len = (int64_t)(need - off), .src_stride = (int64_t)stride, .src_w = w, .win_w = SIZE, .win_h = SIZE,
			                .rows = h, .hflip = box[i][4], .mid_stride = 4 * SIZE + 64, .out = LARDER_F32_CHW, .affine = 1,
			                .level = larder_cpu_level(), .stream = batch, .correction = 1.0f / 255.0f};
			int ignored, reach = 3 * SIZE + 16;
			for (int c = 0; c < 3; c++)
				g.mean[c] = mean[c], g.std[c] = std[c], g.inv[c] = 1 / std[c];
			if (w != SIZE) {
				g.h_groups = weights(w, hb, hk, 1, &reach);
				g.h_reach = reach;
			}
			g.ring = 4;
			if (h != SIZE) {
				g.v_taps = weights(h, vb, vk, 0, &ignored);
				g.ring = g.v_taps + 3 < h ? g.v_taps + 3 : h;
			}
			size_t s = (size_t)(g.ring + 1) * (size_t)g.mid_stride + 4 * (size_t)reach;
			if (s > scratch_cap)
				scratch = realloc(scratch, scratch_cap = s);
			larder_geo_run(&g, pix + off, hb, hk, vb, vk, lut, scratch, batch ? ring + row++ % ROWS * (size_t)ROW : dst);
		}
		printf("%.6f\n", cpu() - begin);
		fflush(stdout);
	}
	return 0;
}
