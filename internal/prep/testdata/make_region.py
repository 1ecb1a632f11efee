#!/usr/bin/env python3
"""Draws region/ afresh: JPEG images of every chroma sampling that libjpeg writes, of sizes that fill no MCU, for the
tests of decoding a part of an image. Run with NumPy and gcc + libjpeg; the files are committed."""
import os
import subprocess
import tempfile

import numpy as np

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "region")
os.makedirs(here, exist_ok=True)
os.chdir(here)
rng = np.random.default_rng(11)
W, H = 211, 149
y, x = np.mgrid[0:H, 0:W]
rgb = np.stack([128 + 90 * np.sin(x / 5 + y / 9), 255 * (((x // 9) + (y // 7)) % 2),
                0.9 * x + rng.integers(0, 40, (H, W))], -1)
rgb = np.clip(rgb, 0, 255).astype(np.uint8)
C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <jpeglib.h>
int main(int argc, char **argv) { /* file w h mode luma-h luma-v cb-h cb-v cr-h cr-v */
    int w = atoi(argv[2]), h = atoi(argv[3]), mode = argv[4][0];
    struct jpeg_compress_struct c; struct jpeg_error_mgr e;
    unsigned char *px = malloc(w * h * 3);
    if (fread(px, 3, w * h, stdin) != w * h) return 1;
    c.err = jpeg_std_error(&e);
    jpeg_create_compress(&c);
    FILE *f = fopen(argv[1], "wb");
    jpeg_stdio_dest(&c, f);
    c.image_width = w; c.image_height = h; c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 60, TRUE);
    if (mode == 'r') jpeg_set_colorspace(&c, JCS_RGB);
    if (mode == 'g') jpeg_set_colorspace(&c, JCS_GRAYSCALE);
    for (int i = 0; i < c.num_components; i++) {
        c.comp_info[i].h_samp_factor = atoi(argv[5 + 2 * i]);
        c.comp_info[i].v_samp_factor = atoi(argv[6 + 2 * i]);
    }
    if (mode == 'i') c.restart_interval = 3;
    if (mode == 'a') c.arith_code = TRUE;
    if (mode == 'p') jpeg_simple_progression(&c);
    static jpeg_scan_info one[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
    if (mode == 's') { c.scan_info = one; c.num_scans = 3; }
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < h; y++) { JSAMPROW r = px + y * w * 3; jpeg_write_scanlines(&c, &r, 1); }
    jpeg_finish_compress(&c);
    fclose(f);
    return 0;
}
"""
with tempfile.TemporaryDirectory() as d:
    with open(d + "/c.c", "w") as f:
        f.write(C)
    subprocess.check_call(["gcc", "-o", d + "/c", d + "/c.c", "-ljpeg"])
    for name, mode, factors in (
        ("444", "-", "111111"), ("422", "-", "211111"), ("420", "-", "221111"), ("440", "-", "121111"),
        ("411", "-", "411111"),
        ("410", "-", "421111"), ("441", "-", "141111"), ("422-tall", "-", "221212"), ("440-wide", "-", "222121"),
        ("uneven", "-", "222111"),
        ("grey", "g", "11"), ("rgb", "r", "111111"), ("420-restart", "i", "221111"), ("420-arithmetic", "a", "221111"),
        ("420-progressive", "p", "221111"), ("420-scans", "s", "221111"),
    ):
        subprocess.run([d + "/c", name + ".jpg", str(W), str(H), mode, *factors], input=rgb.tobytes(), check=True)
