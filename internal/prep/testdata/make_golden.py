#!/usr/bin/env python3
"""Draws golden/ afresh: small images in every format, what Pillow's convert("RGB") makes of them, and digests of what
Pillow's resize, enhance and HSV do. Run with Pillow 9.4 and gcc + libjpeg; the files are committed."""
import hashlib
import json
import os
import struct
import subprocess
import tempfile
import zlib

import numpy as np
from PIL import Image, ImageEnhance

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden"))
rng = np.random.default_rng(7)
W, H = 37, 29
y, x = np.mgrid[0:H, 0:W]
base = np.stack([128 + 90 * np.sin(x / 5 + y / 9), 255 * ((x - 18) ** 2 + (y - 14) ** 2 < 90), 6.5 * x + rng.integers(0, 12, (H, W))], -1)
rgb = np.clip(base, 0, 255).astype(np.uint8)
alpha = np.clip(8 * (x + y) - 60, 0, 255).astype(np.uint8)
im = Image.fromarray(rgb)
rgba = Image.fromarray(np.dstack([rgb, alpha]))
grey = im.convert("L")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, color, depth, rows_of, extra=b"", interlace=False):
    """rows_of(xs, ys) gives the packed rows of the pixels at those positions."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if interlace else [(0, 0, 1, 1)]
    raw = b""
    for x0, y0, dx, dy in passes:
        xs, ys = range(x0, W, dx), range(y0, H, dy)
        if xs and ys:
            raw += b"".join(b"\0" + r for r in rows_of(xs, ys))
    with open(name, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, depth, color, 0, 0, int(interlace)))
                + extra + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def whole(a):
    return lambda xs, ys: [a[yy][list(xs)].tobytes() for yy in ys]


def packed(a, bits):
    def rows(xs, ys):
        out = []
        for yy in ys:
            v = "".join(format(int(a[yy][xx]), f"0{bits}b") for xx in xs)
            v += "0" * (-len(v) % 8)
            out.append(int(v, 2).to_bytes(len(v) // 8, "big"))
        return out
    return rows


def write(name, img, **kw):
    img.save(name, **kw)


write("baseline444.jpg", im, quality=90, subsampling=0)
write("baseline422.jpg", im, quality=85, subsampling=1)
write("baseline420.jpg", im, quality=80, subsampling=2)
write("progressive.jpg", im, quality=80, progressive=True, subsampling=2)
write("grey.jpg", grey, quality=85)
write("cmyk.jpg", im.convert("CMYK"), quality=90)
write("exif-rotated.jpg", im, quality=80, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0")
C = r"""
#include <stdio.h>
#include <jpeglib.h>
int main(int argc, char **argv) {
    int w = 37, h = 29, mode = argv[2][0];
    struct jpeg_compress_struct c; struct jpeg_error_mgr e;
    unsigned char px[37 * 29 * 4];
    int n = mode == 'y' ? 4 : 3;
    if (fread(px, n, w * h, stdin) != w * h) return 1;
    c.err = jpeg_std_error(&e);
    jpeg_create_compress(&c);
    FILE *f = fopen(argv[1], "wb");
    jpeg_stdio_dest(&c, f);
    c.image_width = w; c.image_height = h; c.input_components = n;
    c.in_color_space = mode == 'y' ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 88, TRUE);
    if (mode == 'y') jpeg_set_colorspace(&c, JCS_YCCK);
    if (mode == 'r') jpeg_set_colorspace(&c, JCS_RGB);
    if (mode == 'i') c.restart_interval = 2;
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < h; y++) { JSAMPROW r = px + y * w * n; jpeg_write_scanlines(&c, &r, 1); }
    jpeg_finish_compress(&c);
    fclose(f);
    return 0;
}
"""
with tempfile.TemporaryDirectory() as d:
    with open(d + "/c.c", "w") as f:
        f.write(C)
    subprocess.check_call(["gcc", "-o", d + "/c", d + "/c.c", "-ljpeg"])
    for name, mode, data in (("ycck.jpg", "y", 255 - np.array(im.convert("CMYK"))), ("rgb.jpg", "r", rgb), ("restart.jpg", "i", rgb)):
        subprocess.run([d + "/c", name, mode], input=data.tobytes(), check=True)

png("rgb8.png", 2, 8, whole(rgb))
png("rgb8-interlaced.png", 2, 8, whole(rgb), interlace=True)
png("rgb8-key.png", 2, 8, whole(rgb), extra=chunk(b"tRNS", struct.pack(">HHH", *[int(v) for v in rgb[3, 3]])))
png("rgb16.png", 2, 16, whole((rgb.astype(">u2") * 257 - (rgb > 9) * 99).astype(">u2")))
png("rgba8.png", 6, 8, whole(np.dstack([rgb, alpha])))
png("rgba16.png", 6, 16, whole(np.dstack([rgb, alpha]).astype(">u2") * 257))
g = np.array(grey)
png("grey8.png", 0, 8, whole(g))
png("grey8-key.png", 0, 8, whole(g), extra=chunk(b"tRNS", struct.pack(">H", int(g[0, 0]))))
png("grey16.png", 0, 16, whole((g.astype(">u2") * 3).astype(">u2")))
png("grey16-key.png", 0, 16, whole((g.astype(">u2") * 3).astype(">u2")), extra=chunk(b"tRNS", struct.pack(">H", int(g[0, 0]) * 3)))
png("greyalpha8.png", 4, 8, whole(np.dstack([g, alpha])))
png("greyalpha16.png", 4, 16, whole(np.dstack([g, alpha]).astype(">u2") * 257))
for bits in (1, 2, 4):
    png(f"grey{bits}.png", 0, bits, packed(g >> (8 - bits), bits))
pal = im.quantize(16)
plte = chunk(b"PLTE", bytes(pal.getpalette()[:48]))
png("palette4.png", 3, 4, packed(np.array(pal), 4), extra=plte)
png("palette4-alpha.png", 3, 4, packed(np.array(pal), 4), extra=plte + chunk(b"tRNS", bytes([0, 128, 255, 7])), interlace=True)
write("palette8.png", im.quantize(200))
write("plain.gif", im.quantize(64))
write("transparent.gif", im.quantize(64), transparency=5)
write("local.gif", grey)
for src, dst in (("plain.gif", "offset.gif"), ("transparent.gif", "offset-transparent.gif")):
    b = bytearray(open(src, "rb").read())
    b[6:10] = struct.pack("<HH", W + 6, H + 5)
    at = b.index(b"\x2c\0\0\0\0" + struct.pack("<HH", W, H))
    b[at + 1:at + 5] = struct.pack("<HH", 4, 3)
    open(dst, "wb").write(b)
write("lossy.webp", im, quality=80)
write("lossy-even.webp", im.crop((0, 0, 36, 28)), quality=60)
write("lossy-alpha.webp", rgba, quality=70)
write("lossless.webp", im, lossless=True)
write("lossless-alpha.webp", rgba, lossless=True, exact=True)
write("rgb24.bmp", im)
write("palette8.bmp", im.quantize(30))
write("grey8.bmp", grey)
write("rgba32.bmp", rgba)


for name in sorted(os.listdir(".")):
    if name.endswith(".json") or name.endswith(".want.png"):
        continue
    out = Image.open(name).convert("RGB")
    out.info.clear()
    out.save(name + ".want.png", optimize=True)


def digest(img):
    return hashlib.sha256(np.asarray(img.convert("RGB")).tobytes()).hexdigest()


filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "nearest": Image.Resampling.NEAREST}
cases = []
for name, f in filters.items():
    for bx in ((0, 0, W, H), (3, 5, 30, 20), (36, 28, 1, 1), (0, 7, W, 1), (10, 0, 2, H)):
        for w, h in ((16, 16), (1, 1), (37, 10), (9, 29), (64, 50), (5, 200), (37, 29)):
            x0, y0, bw, bh = bx
            cases.append({"op": name, "box": bx, "w": w, "h": h, "sha256": digest(im.crop((x0, y0, x0 + bw, y0 + bh)).resize((w, h), f))})
for f in (0, 0.25, 0.7, 1, 1.3, 2.9):
    cases.append({"op": "brightness", "f": f, "sha256": digest(ImageEnhance.Brightness(im).enhance(f))})
    cases.append({"op": "contrast", "f": f, "sha256": digest(ImageEnhance.Contrast(im).enhance(f))})
    cases.append({"op": "saturation", "f": f, "sha256": digest(ImageEnhance.Color(im).enhance(f))})
for s in (0, 1, 77, 128, 200, 255):
    hh, ss, vv = im.convert("HSV").split()
    hh = Image.fromarray((np.array(hh).astype(int) + s).astype(np.uint8), "L")
    cases.append({"op": "hue", "f": s, "sha256": digest(Image.merge("HSV", (hh, ss, vv)).convert("RGB"))})
cases.append({"op": "gray", "sha256": digest(grey)})
with open("ops.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
