package raster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// TIFF is what the first directory of a TIFF file says: that of its first page, as for Pillow.
type TIFF struct {
	Width, Height int // as they are stored: an orientation of 5 to 8 swaps them
	Bits          int // of a value: 1, 8 or 16
	Channels      int // values of a pixel
	Photometric   int // 0 white is zero, 1 black is zero, 2 RGB, 3 palette
	Compression   int
	Orientation   int  // 1 to 8 (TIFF 6.0, page 36)
	Premultiplied bool // the fourth channel is alpha, and the others were multiplied by it
	BlockPixels   int64
}

// Size is the size of the image as it is looked at.
func (t *TIFF) Size() (w, h int) {
	if t.Orientation > 4 {
		return t.Height, t.Width
	}
	return t.Width, t.Height
}

// Fax reports whether it is compressed as a fax (G3 or G4).
func (t *TIFF) Fax() bool { return t.Compression == 3 || t.Compression == 4 }

// MaxEntries bounds the directory that is looked at; files have 10 to 60 entries.
const MaxEntries = 1000

const (
	tagWidth, tagHeight, tagBits, tagCompression, tagPhotometric = 256, 257, 258, 259, 262
	tagFillOrder, tagOrientation, tagSamples, tagRows, tagPlanar = 266, 274, 277, 278, 284
	tagPredictor, tagTileWidth, tagTileHeight                    = 317, 322, 323
	tagExtra, tagFormat                                          = 338, 339
)

// IsTIFF reports whether a file begins as TIFF, BigTIFF among them.
func IsTIFF(b []byte) bool {
	return len(b) >= 4 && (b[0] == 'I' && b[1] == 'I' && b[3] == 0 && (b[2] == 42 || b[2] == 43) ||
		b[0] == 'M' && b[1] == 'M' && b[2] == 0 && (b[3] == 42 || b[3] == 43))
}

// TIFFHeader reads the first directory of a TIFF file. Its error says in words what kind of TIFF is not read, or wraps
// io.ErrUnexpectedEOF.
func TIFFHeader(r io.ReaderAt) (*TIFF, error) {
	d := tiffDir{r: r, values: map[int][]int{}}
	if err := d.read(); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	t := &TIFF{Width: d.first(tagWidth, 0), Height: d.first(tagHeight, 0), Photometric: d.first(tagPhotometric, 0),
		Compression: d.first(tagCompression, 1), Orientation: d.first(tagOrientation, 1)}
	if err := checkSides(t.Width, t.Height); err != nil {
		return nil, err
	}
	if t.Orientation < 1 || t.Orientation > 8 { // Pillow looks away, too
		t.Orientation = 1
	}
	bits := d.list(tagBits, 1)
	t.Bits, t.Channels = bits[0], len(bits)
	if n := d.first(tagSamples, 1); n != len(bits) {
		return nil, fmt.Errorf("it has %d values a pixel and gives the bits of %d", n, len(bits))
	}
	for _, b := range bits {
		if b != t.Bits {
			return nil, fmt.Errorf("its values have %v bits, and only equal ones are read", bits)
		}
	}
	if t.Bits != 1 && t.Bits != 8 && t.Bits != 16 {
		return nil, fmt.Errorf("its values have %d bits, and only 1, 8 and 16 are read", t.Bits)
	}
	for _, f := range d.list(tagFormat, 1) {
		if f != 1 {
			return nil, fmt.Errorf("its values are %s, and only unsigned whole numbers are read", formatName(f))
		}
	}
	if err := t.checkColours(&d); err != nil {
		return nil, err
	}
	if err := t.checkStorage(&d); err != nil {
		return nil, err
	}
	return t, nil
}

func formatName(f int) string {
	switch f {
	case 2:
		return "signed"
	case 3:
		return "floating point"
	}
	return fmt.Sprintf("of format %d", f)
}

func (t *TIFF) checkColours(d *tiffDir) error {
	switch t.Photometric {
	case 0, 1, 3:
		if t.Channels != 1 {
			return fmt.Errorf("it has %d channels beside a grey or palette image, and only plain ones are read", t.Channels-1)
		}
		if t.Bits == 16 && t.Photometric != 1 {
			return errors.New("it has 16 bits, and grey with white as zero or a palette: not read")
		}
		return nil
	case 2:
		extra := d.first(tagExtra, 0)
		switch {
		case t.Bits == 1:
			return errors.New("it is RGB of 1 bit: not read")
		case t.Channels == 3:
			return nil
		case t.Channels == 4 && (extra == 1 || extra == 2):
			t.Premultiplied = extra == 1
			return nil
		}
		return fmt.Errorf("it has %d channels, and only RGB with or without alpha is read", t.Channels)
	}
	names := map[int]string{4: "a mask", 5: "CMYK", 6: "YCbCr", 8: "CIELab", 32803: "raw from a camera's sensor"}
	if n, ok := names[t.Photometric]; ok {
		return fmt.Errorf("its colours are %s, and only grey, palette and RGB are read", n)
	}
	return fmt.Errorf("its colours are of kind %d, and only grey, palette and RGB are read", t.Photometric)
}

func (t *TIFF) checkStorage(d *tiffDir) error {
	switch c := t.Compression; c {
	case 1, 5, 8, 32773, 32946:
	case 3, 4:
		if t.Bits != 1 || t.Channels != 1 || t.Photometric > 1 {
			return errors.New("it is a fax of more than 1 bit a pixel")
		}
	default:
		names := map[int]string{2: "CCITT RLE", 6: "JPEG (old style)", 7: "JPEG", 34712: "JPEG 2000", 34925: "LZMA",
			34926: "Zstandard", 50000: "Zstandard", 50001: "WebP"}
		name, ok := names[c]
		if !ok {
			name = fmt.Sprintf("method %d", c)
		}
		return fmt.Errorf("it is compressed by %s, and only none, LZW, Deflate, PackBits and fax (G3, G4) are read", name)
	}
	if n := d.first(tagFillOrder, 1); n != 1 {
		return errors.New("its bits are stored in reverse: not read")
	}
	if d.first(tagPlanar, 1) == 2 && t.Channels > 1 {
		return errors.New("its channels are stored apart, and only interleaved ones are read")
	}
	if p := d.first(tagPredictor, 1); p != 1 && (p != 2 || t.Bits == 1) {
		return fmt.Errorf("its predictor is %d: not read", p)
	}
	w, h := int64(t.Width), int64(t.Height)
	if tw := d.first(tagTileWidth, 0); tw > 0 {
		w, h = int64(tw), int64(max(d.first(tagTileHeight, 0), 1))
		if w > 1<<20 || h > 1<<20 {
			return fmt.Errorf("it has tiles of %d x %d pixels", w, h)
		}
	} else if n := d.first(tagRows, 0); n > 0 {
		h = min(h, int64(n))
	}
	t.BlockPixels = w * h
	return nil
}

// tiffDir reads a directory: the values of the tags that decide, at most 16 of each.
type tiffDir struct {
	r      io.ReaderAt
	order  binary.ByteOrder
	values map[int][]int
}

func (d *tiffDir) list(tag, def int) []int {
	if v := d.values[tag]; len(v) > 0 {
		return v
	}
	return []int{def}
}

func (d *tiffDir) first(tag, def int) int { return d.list(tag, def)[0] }

func (d *tiffDir) at(off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if got, err := d.r.ReadAt(b, off); got < n {
		return nil, err
	}
	return b, nil
}

func (d *tiffDir) read() error {
	b, err := d.at(0, 8)
	if err != nil {
		return err
	}
	switch {
	case !IsTIFF(b):
		return errors.New("it does not begin as TIFF")
	case b[0] == 'I':
		d.order = binary.LittleEndian
	default:
		d.order = binary.BigEndian
	}
	if d.order.Uint16(b[2:]) == 43 {
		return errors.New("it is a BigTIFF, which is not read")
	}
	at := int64(d.order.Uint32(b[4:]))
	if b, err = d.at(at, 2); err != nil {
		return err
	}
	n := int(d.order.Uint16(b))
	if n < 1 || n > MaxEntries {
		return fmt.Errorf("its directory has %d entries", n)
	}
	if b, err = d.at(at+2, 12*n); err != nil {
		return err
	}
	for i := range n {
		if err := d.entry(b[12*i:][:12]); err != nil {
			return err
		}
	}
	return nil
}

func (d *tiffDir) entry(e []byte) error {
	tag := int(d.order.Uint16(e))
	switch tag {
	case tagWidth, tagHeight, tagBits, tagCompression, tagPhotometric, tagFillOrder, tagOrientation, tagSamples, tagRows,
		tagPlanar,
		tagPredictor, tagTileWidth, tagTileHeight, tagExtra, tagFormat:
	default:
		return nil
	}
	size := map[uint16]int{1: 1, 3: 2, 4: 4}[d.order.Uint16(e[2:])]
	if size == 0 {
		return fmt.Errorf("tag %d of its directory has values of type %d", tag, d.order.Uint16(e[2:]))
	}
	count := int(d.order.Uint32(e[4:]))
	n := min(count, 16)
	raw := e[8:]
	if int64(count)*int64(size) > 4 {
		var err error
		if raw, err = d.at(int64(d.order.Uint32(e[8:])), n*size); err != nil {
			return err
		}
	}
	for i := range n {
		v := 0
		switch size {
		case 1:
			v = int(raw[i])
		case 2:
			v = int(d.order.Uint16(raw[2*i:]))
		case 4:
			v = int(d.order.Uint32(raw[4*i:]))
		}
		d.values[tag] = append(d.values[tag], v)
	}
	return nil
}

// Orient turns a stored image of RGB pixels as its orientation says; dst and src do not overlap. It is Pillow's
// transpose.
func (t *TIFF) Orient(dst, src []byte) {
	w, h := t.Size()
	for y := range h {
		for x := range w {
			sx, sy := x, y
			switch t.Orientation {
			case 2:
				sx = w - 1 - x
			case 3:
				sx, sy = w-1-x, h-1-y
			case 4:
				sy = h - 1 - y
			case 5:
				sx, sy = y, x
			case 6:
				sx, sy = y, w-1-x
			case 7:
				sx, sy = h-1-y, w-1-x
			case 8:
				sx, sy = h-1-y, x
			}
			copy(dst[(y*w+x)*3:][:3], src[(sy*t.Width+sx)*3:][:3])
		}
	}
}
