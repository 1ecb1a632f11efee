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
base = np.stack([128 + 90 * np.sin(x / 5 + y / 9), 255 * ((x - 18) ** 2 + (y - 14) ** 2 < 90),
                 6.5 * x + rng.integers(0, 12, (H, W))], -1)
rgb = np.clip(base, 0, 255).astype(np.uint8)
alpha = np.clip(8 * (x + y) - 60, 0, 255).astype(np.uint8)
im = Image.fromarray(rgb)
rgba = Image.fromarray(np.dstack([rgb, alpha]))
grey = im.convert("L")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, color, depth, rows_of, extra=b"", interlace=False):
    """rows_of(xs, ys) gives the packed rows of the pixels at those positions."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
              (0, 1, 1, 2)] if interlace else [(0, 0, 1, 1)]
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
write("exif-rotated.jpg", im, quality=80,
      exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0")
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
    for name, mode, data in (("ycck.jpg", "y", 255 - np.array(im.convert("CMYK"))), ("rgb.jpg", "r", rgb),
                             ("restart.jpg", "i", rgb)):
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
png("grey16-key.png", 0, 16, whole((g.astype(">u2") * 3).astype(">u2")),
    extra=chunk(b"tRNS", struct.pack(">H", int(g[0, 0]) * 3)))
png("greyalpha8.png", 4, 8, whole(np.dstack([g, alpha])))
png("greyalpha16.png", 4, 16, whole(np.dstack([g, alpha]).astype(">u2") * 257))
for bits in (1, 2, 4):
    png(f"grey{bits}.png", 0, bits, packed(g >> (8 - bits), bits))
pal = im.quantize(16)
plte = chunk(b"PLTE", bytes(pal.getpalette()[:48]))
png("palette4.png", 3, 4, packed(np.array(pal), 4), extra=plte)
png("palette4-alpha.png", 3, 4, packed(np.array(pal), 4), extra=plte + chunk(b"tRNS", bytes([0, 128, 255, 7])),
    interlace=True)
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


def tiff(name, big, data, photometric, bits, extra=None, compression=1, orientation=None, rows=None, tile=None,
         palette=None, predictor=None,
         fill=None, planar=None, sample_format=None, size=(W, H)):
    """A TIFF of one page, its blocks given; what Pillow's writer cannot be asked for."""
    e = ">" if big else "<"
    entries = [(256, 3, [size[0]]), (257, 3, [size[1]]), (258, 3, bits), (259, 3, [compression]),
               (262, 3, [photometric]), (277, 3, [len(bits)])]
    blocks = data if isinstance(data, list) else [data]
    offsets, at, body = [], 8, b""
    for b in blocks:
        offsets.append(at + len(body))
        body += b + b"\0" * (len(b) % 2)
    names = (324, 325) if tile else (273, 279)
    entries += [(names[0], 4, offsets), (names[1], 4, [len(b) for b in blocks])]
    if tile:
        entries += [(322, 3, [tile[0]]), (323, 3, [tile[1]])]
    else:
        entries += [(278, 3, [rows or size[1]])]
    for tag, v in ((266, fill), (274, orientation), (284, planar), (317, predictor)):
        entries += [(tag, 3, [v])] if v else []
    entries += [(320, 3, palette)] if palette else []
    entries += [(338, 3, extra)] if extra is not None else []
    entries += [(339, 3, sample_format)] if sample_format else []
    entries.sort()
    ifd, more = 8 + len(body), b""
    end = ifd + 2 + 12 * len(entries) + 4
    out = struct.pack(e + "H", len(entries))
    for tag, typ, v in entries:
        raw = struct.pack(e + str(len(v)) + "HL"[typ == 4], *v)
        if len(raw) > 4:
            raw, more = struct.pack(e + "L", end + len(more)), more + raw
        out += struct.pack(e + "HHL", tag, typ, len(v)) + raw.ljust(4, b"\0")
    with open(name, "wb") as f:
        f.write((b"MM\0*" if big else b"II*\0") + struct.pack(e + "L", ifd) + body + out + b"\0\0\0\0" + more)


def bitrows(a):
    return b"".join(packed(a, 1)(range(a.shape[1]), range(a.shape[0])))


def tiffs():
    bw = (g > 110).astype(np.uint8)
    for how in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "tiff_deflate"):
        write(f"rgb8-{how}.tif", im, compression=how)
    write("rgb8-predictor.tif", im, compression="tiff_lzw", tiffinfo={317: 2})
    write("rgba8.tif", rgba, compression="tiff_lzw")
    write("grey8.tif", grey)
    write("palette8.tif", im.quantize(200))
    for how in ("raw", "group3", "group4"):
        write(f"bits1-{how}.tif", grey.convert("1"), compression=how)
    for how in ("group3", "group4"):  # Pillow's own say that black is zero, scanners' that white is
        write(f"bits1-white-{how}.tif", grey.convert("1"), compression=how, tiffinfo={262: 0})
    for big in (False, True):
        end = "-big" if big else ""
        u2 = ">u2" if big else "<u2"
        tiff(f"grey16{end}.tif", big, (g.astype(u2) * 3).astype(u2).tobytes(), 1, [16])
        tiff(f"rgb16{end}.tif", big, (rgb.astype(u2) * 257 - (rgb > 9) * 99).astype(u2).tobytes(), 2, [16] * 3)
        tiff(f"rgba16{end}.tif", big, (np.dstack([rgb, alpha]).astype(u2) * 257).astype(u2).tobytes(), 2, [16] * 4,
             extra=[2])
        tiff(f"rgb8-strips{end}.tiff", big, [rgb[i:i + 8].tobytes() for i in range(0, H, 8)], 2, [8] * 3, rows=8)
    mult = np.dstack([rgb // 3 * 2, alpha])
    tiff("rgba8-premultiplied.tif", False, mult.tobytes(), 2, [8] * 4, extra=[1])
    tiff("rgba16-premultiplied.tif", False, (mult.astype("<u2") * 257).tobytes(), 2, [16] * 4, extra=[1])
    tiff("grey8-inverted.tif", False, g.tobytes(), 0, [8])
    tiff("bits1-inverted.tif", True, bitrows(bw), 0, [1])
    tiff("palette1.tif", False, bitrows(bw), 3, [1], palette=[3000, 65535, 513, 40000, 9, 20000])
    for k in range(2, 9):
        tiff(f"rotated{k}.tif", k % 2 == 0, rgb.tobytes(), 2, [8] * 3, orientation=k)
    tiff("rotated6-deflate.tif", False, zlib.compress(rgb.tobytes()), 2, [8] * 3, orientation=6, compression=8)
    pad = np.zeros((32, 48, 3), np.uint8)
    pad[:H, :W] = rgb
    tiff("tiles.tif", False, [zlib.compress(pad[i:i + 16, j:j + 16].tobytes()) for i in (0, 16) for j in (0, 16, 32)],
         2, [8] * 3, compression=8, tile=(16, 16))
    diff = rgb.copy()
    diff[:, 1:] -= rgb[:, :-1]
    tiff("predictor-deflate.tif", False, [zlib.compress(diff[i:i + 8].tobytes()) for i in range(0, H, 8)], 2, [8] * 3,
         compression=8, predictor=2, rows=8)


def netpbms():
    def put(name, head, data):
        with open(name, "wb") as f:
            f.write(head.encode() + data)
    wide = g.astype(">u2")
    write("rgb8.ppm", im)
    write("grey8.pgm", grey)
    put("bits1.ppm", f"P4 {W} {H}\n", bitrows((g > 110).astype(np.uint8)))
    put("comments.ppm", f"P6\n# drawn by hand\n{W} # wide\n{H}\r\n255\n"[:-1] + "\n", rgb.tobytes())
    put("rgb-max100.ppm", f"P6 {W} {H} 100\n", (rgb // 3).tobytes())
    put("rgb-max65535.ppm", f"P6 {W} {H} 65535\n", (rgb.astype(">u2") * 251).astype(">u2").tobytes())
    put("rgb-max999.ppm", f"P6 {W} {H} 999\n", (rgb.astype(">u2") * 3).astype(">u2").tobytes())
    put("grey-max7.pgm", f"P5 {W} {H} 7\n", (g // 37).tobytes())
    put("grey-max65535.pgm", f"P5 {W} {H} 65535\n", (wide * 2).astype(">u2").tobytes())
    put("grey-max300.pgm", f"P5 {W} {H} 300\n", (wide // 100).astype(">u2").tobytes())
    text = "\n".join(" ".join(str(v) for v in row) for row in rgb.reshape(H, -1))
    put("plain.ppm", f"P3\n{W} {H}\n# text\n255\n{text} # the end", b"")
    put("plain-max77.pgm", f"P2 {W} {H} 77 " + " ".join(str(v // 4) for v in g.reshape(-1)) + "\n", b"")
    put("plain-max900.pgm", f"P2 {W} {H} 900 " + " ".join(str(v % 5) for v in g.reshape(-1)) + "\n", b"")
    put("plain-bits.ppm", f"P1 {W} {H} " + "".join(str(v) for v in (g > 110).astype(int).reshape(-1)) + "\n", b"")


tiffs()
netpbms()


for name in sorted(os.listdir(".")):
    if name.endswith(".json") or name.endswith(".want.png"):
        continue
    out = Image.open(name).convert("RGB")
    out.info.clear()
    out.save(name + ".want.png", optimize=True)


def digest(img):
    return hashlib.sha256(np.asarray(img.convert("RGB")).tobytes()).hexdigest()


filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC,
           "nearest": Image.Resampling.NEAREST}
cases = []
for name, f in filters.items():
    for bx in ((0, 0, W, H), (3, 5, 30, 20), (36, 28, 1, 1), (0, 7, W, 1), (10, 0, 2, H)):
        for w, h in ((16, 16), (1, 1), (37, 10), (9, 29), (64, 50), (5, 200), (37, 29)):
            x0, y0, bw, bh = bx
            cases.append({"op": name, "box": bx, "w": w, "h": h,
                          "sha256": digest(im.crop((x0, y0, x0 + bw, y0 + bh)).resize((w, h), f))})
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
