package packed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"larder/internal/spool"
)

const (
	// maxLine bounds a line, bytes.
	maxLine = 64 << 20
	// maxUnpacked bounds what a compressed file unpacks to: it is unpacked whole before the first of its samples is read.
	maxUnpacked = 256 << 20
	// maxWindow bounds the memory of the decoder of zstd.
	maxWindow = 128 << 20
	// maxBuffer is the buffer of a file that is read from the front, bytes.
	maxBuffer = 1 << 18
)

// packings are the suffixes of compressed files.
var packings = []string{".gz", ".zst"}

// withPackings are suffixes, and the same compressed.
func withPackings(suffixes ...string) []string {
	out := suffixes
	for _, s := range suffixes {
		for _, p := range packings {
			out = append(out, s+p)
		}
	}
	return out
}

// isPacked reports whether a file is compressed, by its name.
func isPacked(path string) bool { return hasSuffix(path, packings) }

// unpacked is the name of a file without its compression.
func unpacked(path string) string {
	for _, p := range packings {
		path = strings.TrimSuffix(path, p)
	}
	return path
}

// content reads a file from the front, unpacked. It fails where a compressed one unpacks to more than maxUnpacked.
func content(path string, r io.ReaderAt, size int64) (io.ReadCloser, error) {
	return unpack(path, r, size, maxUnpacked)
}

// unpack reads a file from the front; a compressed one may unpack to so many bytes.
func unpack(path string, r io.ReaderAt, size, most int64) (io.ReadCloser, error) {
	raw := bufio.NewReaderSize(io.NewSectionReader(r, 0, size), bufferOf(size))
	switch {
	case strings.HasSuffix(path, ".gz"), strings.HasSuffix(path, ".tgz"):
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, fmt.Errorf("it is no gzip file: %w", err)
		}
		return &bounded{z, most, most}, nil
	case strings.HasSuffix(path, ".zst"):
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("it is no zstd file: %w", err)
		}
		return &bounded{z.IOReadCloser(), most, most}, nil
	}
	return io.NopCloser(raw), nil
}

// bufferOf is the buffer for a file of a size: there may be very many small ones.
func bufferOf(size int64) int { return int(min(max(size, 512), maxBuffer)) }

// bounded is a decoder that gives so many bytes at most.
type bounded struct {
	io.ReadCloser
	left, most int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("it unpacks to more than %d bytes: unpack it, or write several smaller files", b.most)
	}
	return n, err
}

// line is one line of a text, or one row of a CSV file, which may have several lines.
type line struct {
	text []byte // without what ends it
	n    int64  // from 0
	off  int64  // in the unpacked text, bytes
	size int64  // with what ends it, bytes
}

// forLines calls f for every line of a file, in order. quoted says that a line goes on inside of double quotes. A line
// that f gets is its own until f returns.
func forLines(ctx context.Context, path string, r io.ReaderAt, size int64, quoted bool, f func(line) error) error {
	text, err := content(path, r, size)
	if err != nil {
		return err
	}
	defer text.Close()
	buffer := maxBuffer
	if !isPacked(path) {
		buffer = bufferOf(size)
	}
	in := bufio.NewReaderSize(text, buffer)
	var l line
	if bom, err := in.Peek(3); err == nil && string(bom) == "\xef\xbb\xbf" {
		_, _ = in.Discard(3) // they were peeked
		l.off = 3
	}
	var buf []byte
	for ; ; l.n++ {
		if l.n&255 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		l.text, buf, err = nextLine(in, buf[:0], quoted)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("line %d, at byte %d: %w", l.n+1, l.off, err)
		}
		if l.size = int64(len(l.text)); l.size == 0 {
			return nil
		}
		l.text = trimEnd(l.text)
		if err := f(l); err != nil {
			return err
		}
		l.off += l.size
	}
}

// nextLine reads a line with what ends it; the second slice is the buffer to be used again.
func nextLine(in *bufio.Reader, buf []byte, quoted bool) (text, rest []byte, err error) {
	inside := false
	for {
		part, err := in.ReadSlice('\n')
		if quoted && bytes.Count(part, []byte{'"'})&1 == 1 {
			inside = !inside
		}
		whole := err == nil && !inside
		if whole && len(buf) == 0 {
			return part, buf, nil
		}
		if len(buf)+len(part) > maxLine {
			return nil, buf, fmt.Errorf("it has more than %d bytes", maxLine)
		}
		buf = append(buf, part...)
		switch {
		case whole:
			return buf, buf, nil
		case errors.Is(err, io.EOF) && inside:
			return nil, buf, errors.New("its double quotes are not closed")
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return buf, buf, err
		}
	}
}

// trimEnd removes what ends a line.
func trimEnd(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
		if n > 1 && b[n-2] == '\r' {
			b = b[:n-2]
		}
	}
	return b
}

// lines gives single lines of a file. Of a compressed one they come from a spool.
type lines struct {
	f      File
	quoted bool
}

// sample is where a line lies: of a compressed file, its number.
func (l *lines) sample(x line) Sample {
	off := x.off
	if isPacked(l.f.Path) {
		off = x.n
	}
	return Sample{Key: rowKey(x.n), Off: off, Size: max(x.size, 1), Label: -1}
}

// Blocks are the whole of a compressed file, and none of another one.
func (l *lines) Blocks() []Block {
	if isPacked(l.f.Path) {
		return wholeFile()
	}
	return nil
}

// read appends a line to dst, without what ends it.
func (l *lines) read(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if isPacked(l.f.Path) {
		what := "lines 1" // the number changes with what a line is taken to be
		if l.quoted {
			what = "rows 1"
		}
		return l.f.fromSpool(ctx, dst, what, s.Off, func(ctx context.Context, w spool.Writer) error {
			return forLines(ctx, l.f.Path, within(ctx, l.f), l.f.Size, l.quoted, func(x line) error { return w.Add(x.text) })
		})
	}
	from := len(dst)
	if s.Size > maxLine || s.Off+s.Size > l.f.Size {
		return dst, fmt.Errorf("a line of %d bytes at byte %d of %d", s.Size, s.Off, l.f.Size)
	}
	dst = append(dst, make([]byte, s.Size)...)
	if n, err := within(ctx, l.f).ReadAt(dst[from:], s.Off); n < int(s.Size) {
		return dst[:from], fmt.Errorf("the line at byte %d: %w", s.Off, err)
	}
	return dst[:from+len(trimEnd(dst[from:]))], nil
}

// fromSpool appends the i-th record of the only block of a file to dst. what names its content.
func (f *File) fromSpool(ctx context.Context, dst []byte, what string, i int64, make spool.Make) ([]byte, error) {
	return fromBlock(ctx, f.Spool, what+"\x00"+f.ID, dst, int(i), make)
}
