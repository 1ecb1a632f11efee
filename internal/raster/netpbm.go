package raster

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// Netpbm is the header of a PBM, PGM or PPM image, plain (P1 to P3) or raw (P4 to P6).
type Netpbm struct {
	Kind          byte // '1' to '6'
	Width, Height int
	Max           int // the value that stands for full brightness; 1 for PBM
	Data          int // where the pixels begin
}

// MaxSide is the longest side that a header may state. It is that of PNG, and the product of two fits 63 bits.
const MaxSide = 1<<31 - 1

func checkSides(w, h int) error {
	if w < 1 || h < 1 {
		return fmt.Errorf("it has %d x %d pixels", w, h)
	}
	if w > MaxSide || h > MaxSide {
		return fmt.Errorf("it has %d x %d pixels, and a side of more than 2^31-1 is not read", w, h)
	}
	return nil
}

// IsNetpbm reports whether a file begins as PBM, PGM or PPM.
func IsNetpbm(b []byte) bool {
	return len(b) >= 3 && b[0] == 'P' && b[1] >= '1' && b[1] <= '6' && (isSpace(b[2]))
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// NetpbmHeader reads a header; b is the beginning of the file, and the error is io.ErrUnexpectedEOF when it ends in the
// header.
func NetpbmHeader(b []byte) (*Netpbm, error) {
	if !IsNetpbm(b) {
		return nil, errors.New("it does not begin as PBM, PGM or PPM")
	}
	p := &Netpbm{Kind: b[1], Max: 1, Data: 3}
	fields := []*int{&p.Width, &p.Height, &p.Max}
	if p.Kind == '1' || p.Kind == '4' {
		fields = fields[:2]
	}
	for _, f := range fields {
		n, at, err := headerNumber(b, p.Data)
		if err != nil {
			return nil, err
		}
		*f, p.Data = n, at
	}
	if err := checkSides(p.Width, p.Height); err != nil {
		return nil, err
	}
	if p.Max < 1 || p.Max > 65535 {
		return nil, fmt.Errorf("its largest value is %d, and 1 to 65535 are allowed", p.Max)
	}
	return p, nil
}

// headerNumber reads a number and the one space behind it. A comment ends with its line, which ends no number (Pillow
// reads it so).
func headerNumber(b []byte, at int) (n, next int, err error) {
	digits := 0
	for ; at < len(b); at++ {
		switch c := b[at]; {
		case isSpace(c) && digits > 0:
			return n, at + 1, nil
		case isSpace(c):
		case c == '#':
			for at < len(b) && b[at] != '\n' && b[at] != '\r' {
				at++
			}
		case c >= '0' && c <= '9' && digits < 10:
			n, digits = n*10+int(c-'0'), digits+1
		default:
			return 0, 0, fmt.Errorf("byte %d of its header is %q, where a number is due", at, c)
		}
	}
	return 0, 0, io.ErrUnexpectedEOF
}

func (p *Netpbm) color() bool { return p.Kind == '3' || p.Kind == '6' }

// Decode writes the image to dst as Pillow's convert("RGB") gives it: values are scaled to 8 bits, but grey of more
// than 8 bits is scaled to 16 and clipped at 255. enc is the whole file, dst has 3 bytes a pixel. The error, which is
// about byte at of it, wraps io.ErrUnexpectedEOF when pixels are missing.
func (p *Netpbm) Decode(enc, dst []byte) (at int64, err error) {
	if err := checkSides(p.Width, p.Height); err != nil {
		return 0, err
	}
	if p.Height > len(dst)/3/p.Width { // then all that follows is bounded by dst
		return 0, fmt.Errorf("its %d x %d pixels are to be written to %d bytes", p.Width, p.Height, len(dst))
	}
	n := p.Width * p.Height
	data := enc[min(p.Data, len(enc)):]
	if p.Kind <= '3' {
		at, err := p.plain(data, dst, n)
		return int64(p.Data + at), err
	}
	if p.Kind == '4' {
		return int64(len(enc)), p.bitmap(data, dst)
	}
	values := n
	if p.color() {
		values = 3 * n
	}
	wide := p.Max > 255
	need := values
	if wide {
		need = 2 * values
	}
	if len(data) < need {
		return int64(len(enc)), io.ErrUnexpectedEOF
	}
	scale := p.scale()
	for i := range values {
		var v uint8
		if wide {
			v = scale(int(data[2*i])<<8 | int(data[2*i+1]))
		} else {
			v = scale(int(data[i]))
		}
		p.put(dst, i, v)
	}
	return 0, nil
}

func (p *Netpbm) put(dst []byte, i int, v uint8) {
	if p.color() {
		dst[i] = v
		return
	}
	d := dst[3*i:][:3]
	d[0], d[1], d[2] = v, v, v
}

// scale gives the function from stored values to 8 bits: Python's round(value / max * full), halves to even.
func (p *Netpbm) scale() func(v int) uint8 {
	if p.Max == 255 {
		return func(v int) uint8 { return uint8(v) }
	}
	full := 255.0
	if p.Max > 255 && !p.color() {
		full = 65535
	}
	if p.Max < 256 {
		var t [256]uint8
		for v := range t {
			t[v] = uint8(min(255, math.RoundToEven(float64(v)/float64(p.Max)*full)))
		}
		return func(v int) uint8 { return t[v] }
	}
	return func(v int) uint8 { return uint8(min(255, math.RoundToEven(float64(v)/float64(p.Max)*full))) }
}

func (p *Netpbm) bitmap(data, dst []byte) error {
	stride := (p.Width + 7) / 8
	if len(data) < stride*p.Height {
		return io.ErrUnexpectedEOF
	}
	for y := range p.Height {
		for x := range p.Width {
			v := uint8(255)
			if data[y*stride+x/8]>>(7-x%8)&1 == 1 {
				v = 0
			}
			p.put(dst, y*p.Width+x, v)
		}
	}
	return nil
}

// plain reads numbers in text; the bits of a PBM need no space between them.
func (p *Netpbm) plain(data, dst []byte, n int) (at int, err error) {
	values := n
	if p.color() {
		values = 3 * n
	}
	scale := p.scale()
	number, digits, done := 0, 0, 0
	for i := 0; i <= len(data) && done < values; i++ {
		end := i == len(data)
		if !end && data[i] == '#' {
			for i < len(data) && data[i] != '\n' && data[i] != '\r' {
				i++
			}
			if i < len(data) {
				continue
			}
			end = true
		}
		if end || isSpace(data[i]) {
			if digits > 0 {
				if number > p.Max {
					return i, fmt.Errorf("a value of %d is beyond its largest, %d", number, p.Max)
				}
				p.put(dst, done, scale(number))
				number, digits, done = 0, 0, done+1
			}
			continue
		}
		c := data[i]
		switch {
		case p.Kind == '1' && (c == '0' || c == '1'):
			p.put(dst, done, 255*('1'-c))
			done++
		case p.Kind != '1' && c >= '0' && c <= '9' && digits < 10:
			number, digits = number*10+int(c-'0'), digits+1
		default:
			return i, fmt.Errorf("byte %d is %q, where a number is due", p.Data+i, c)
		}
	}
	if done < values {
		return len(data), io.ErrUnexpectedEOF
	}
	return 0, nil
}
