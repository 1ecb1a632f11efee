package prep

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"larder/internal/errs"
	"larder/internal/raster"
)

// header holds what the first bytes of a file say.
type header struct {
	format   string
	w, h     int
	channels int    // JPEG: components
	waves    bool   // JPEG: progressive
	planes   Planes // JPEG: what it is when it is kept
	color    int    // PNG: colour type
	depth    int    // PNG: bits a channel
	adam7    bool   // PNG: interlaced
	tiff     *raster.TIFF
	netpbm   *raster.Netpbm
}

func bad(format string, args ...any) *errs.Error {
	return errs.New(errs.SampleBad, "", hintBad, format, args...)
}

// Header recognises the format by content and reads the size. It allocates nothing that depends on the image, and
// refuses images beyond the limits.
func (w *Worker) Header(enc []byte) (format string, width, height int, err error) {
	h, err := w.header(enc)
	return h.format, h.w, h.h, err
}

func (w *Worker) header(enc []byte) (header, error) {
	h, err := sniff(enc)
	if err != nil {
		return header{}, err
	}
	if err := w.checkSize(h.w, h.h, formatNames[h.format]); err != nil {
		return header{}, err
	}
	if err := w.checkMemory(h); err != nil {
		return header{}, err
	}
	return h, nil
}

func sniff(enc []byte) (header, error) {
	switch {
	case len(enc) == 0:
		return header{}, short(enc, "the file is empty (0 bytes)")
	case hasPrefix(enc, "\xff\xd8\xff"):
		return jpegHeader(enc)
	case hasPrefix(enc, "\x89PNG\r\n\x1a\n"):
		return pngHeader(enc)
	case hasPrefix(enc, "GIF87a"), hasPrefix(enc, "GIF89a"):
		if len(enc) < 13 {
			return header{}, short(enc, "the GIF image ends in its header, after %d bytes", len(enc))
		}
		return header{format: "gif", w: le16(enc[6:]), h: le16(enc[8:])}, nil
	case hasPrefix(enc, "RIFF") && len(enc) >= 12 && string(enc[8:12]) == "WEBP":
		return webpHeader(enc)
	case hasPrefix(enc, "BM"):
		return bmpHeader(enc)
	case hasPrefix(enc, "version https://git-lfs.github.com/spec/v"):
		return header{}, bad("the file is a pointer of Git LFS and not the image: run `git lfs pull` in its repository")
	}
	if raster.IsTIFF(enc) {
		t, err := raster.TIFFHeader(bytes.NewReader(enc))
		if err != nil {
			return header{}, headerError("TIFF", enc, err)
		}
		h := header{format: "tiff", tiff: t}
		h.w, h.h = t.Size()
		return h, nil
	}
	if raster.IsNetpbm(enc) {
		p, err := raster.NetpbmHeader(enc)
		if err != nil {
			return header{}, headerError("netpbm", enc, err)
		}
		return header{format: "netpbm", w: p.Width, h: p.Height, netpbm: p}, nil
	}
	return header{},
		locate(bad("the file is no JPEG, PNG, GIF, WebP, BMP, TIFF or netpbm (PPM, PGM, PBM) image: it begins with %s",
			first(enc)), 0)
}

func headerError(format string, enc []byte, err error) error {
	if truncated(err) {
		return short(enc, "the %s image ends in its header, after %d bytes", format, len(enc))
	}
	return bad("the %s image cannot be decoded: %v", format, err)
}

func hasPrefix(b []byte, p string) bool { return len(b) >= len(p) && string(b[:len(p)]) == p }

func le16(b []byte) int { return int(binary.LittleEndian.Uint16(b)) }
func be16(b []byte) int { return int(binary.BigEndian.Uint16(b)) }

func first(b []byte) string { return fmt.Sprintf("%q", b[:min(len(b), 8)]) }

func pngHeader(enc []byte) (header, error) {
	if len(enc) < 33 || string(enc[12:16]) != "IHDR" {
		return header{}, short(enc, "the PNG image has no complete header")
	}
	w, h := binary.BigEndian.Uint32(enc[16:]), binary.BigEndian.Uint32(enc[20:])
	if w > 1<<31-1 || h > 1<<31-1 {
		return header{}, bad("the PNG image has a side beyond 2^31-1")
	}
	return header{format: "png", w: int(w), h: int(h), depth: int(enc[24]), color: int(enc[25]), adam7: enc[28] != 0}, nil
}

func webpHeader(enc []byte) (header, error) {
	h := header{format: "webp"}
	if len(enc) < 30 {
		return header{}, short(enc, "the WebP image ends in its header, after %d bytes", len(enc))
	}
	var ok bool
	if h.w, h.h, ok = webpFrame(enc[12:]); ok {
		return h, nil
	}
	if string(enc[12:16]) != "VP8X" {
		return header{}, bad("the WebP image begins with an unknown part %s", first(enc[12:16]))
	}
	if enc[20]&2 != 0 {
		return header{}, bad("the WebP image is animated, which is not read")
	}
	h.w = 1 + int(enc[24]) + int(enc[25])<<8 + int(enc[26])<<16
	h.h = 1 + int(enc[27]) + int(enc[28])<<8 + int(enc[29])<<16
	// The frame that follows has a size of its own. It is checked here, because the decoder would first take its memory.
	for rest := enc[30:]; len(rest) >= 8; {
		if fw, fh, ok := webpFrame(rest); ok {
			if fw != h.w || fh != h.h {
				return header{}, bad("the WebP image holds %d x %d pixels, its header says %d x %d", fw, fh, h.w, h.h)
			}
			return h, nil
		}
		n := 8 + (int64(binary.LittleEndian.Uint32(rest[4:]))+1)&^1
		rest = rest[min(n, int64(len(rest))):]
	}
	return header{}, short(enc, "the WebP image ends before its frame, after %d bytes", len(enc))
}

// webpFrame reads the size of a VP8 or VP8L chunk.
func webpFrame(chunk []byte) (w, h int, ok bool) {
	switch {
	case len(chunk) >= 18 && string(chunk[:4]) == "VP8 ":
		return le16(chunk[14:]) & 0x3fff, le16(chunk[16:]) & 0x3fff, true
	case len(chunk) >= 13 && string(chunk[:4]) == "VP8L":
		v := binary.LittleEndian.Uint32(chunk[9:])
		return int(v&0x3fff) + 1, int(v>>14&0x3fff) + 1, true
	}
	return 0, 0, false
}

func bmpHeader(enc []byte) (header, error) {
	if len(enc) < 26 {
		return header{}, short(enc, "the BMP image ends in its header, after %d bytes", len(enc))
	}
	h := header{format: "bmp"}
	if size := binary.LittleEndian.Uint32(enc[14:]); size == 12 {
		h.w, h.h = le16(enc[18:]), le16(enc[20:])
	} else {
		h.w = int(int32(binary.LittleEndian.Uint32(enc[18:])))
		h.h = int(int32(binary.LittleEndian.Uint32(enc[22:])))
		h.h = max(h.h, -h.h) // negative: rows from top to bottom
	}
	return h, nil
}

// formatNames are whole strings so that checking a size allocates nothing.
var formatNames = map[string]string{
	"jpeg": "the jpeg image", "png": "the png image", "gif": "the gif image", "webp": "the webp image",
	"bmp":  "the bmp image",
	"tiff": "the tiff image", "netpbm": "the netpbm image",
}
