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
	// maxUnpacked bounds what is unpacked as a whole: arrays, and shards of snappy.
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

// unpack reads a file from the front; a compressed one may unpack to so many bytes.
func unpack(path string, r io.ReaderAt, size, most int64) (io.ReadCloser, error) {
	raw := bufio.NewReaderSize(newChunks(r, size), bufferOf(size))
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
func bufferOf(size int64) int { return int(min(max(size, standInHead), maxBuffer)) }

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
	n    int64  // from 0; of a run that is read alone, from its first line on
	off  int64  // in the unpacked text, bytes
	size int64  // with what ends it, bytes

	run   runStart // of a compressed file
	inRun int64    // its number in that
}

// lineFile is a file of lines.
type lineFile struct {
	path      string
	r         io.ReaderAt
	size      int64
	quoted    bool // a line goes on inside of double quotes
	unpacking unpacking
}

// file is a file that is unpacked so.
func (u unpacking) file(path string, r io.ReaderAt, size int64, quoted bool) lineFile {
	return lineFile{path, r, size, quoted, u}
}

// forLines calls take for every line of a file, in order. quoted says that a line goes on inside of double quotes. A
// line that take gets is its own until take returns.
func forLines(ctx context.Context, path string, r io.ReaderAt, size int64, quoted bool, take func(line) error) error {
	return lineFile{path: path, r: r, size: size, quoted: quoted}.each(ctx, take)
}

// each is forLines.
func (f lineFile) each(ctx context.Context, take func(line) error) error {
	if !isPacked(f.path) {
		in := bufio.NewReaderSize(io.NewSectionReader(f.r, 0, f.size), bufferOf(f.size))
		return eachLine(ctx, in, f.quoted, line{}, take)
	}
	z := openFrames(f.path, f.r, f.size, f.quoted, f.unpacking, runStart{})
	defer z.Close()
	var now line
	return eachLine(ctx, bufio.NewReaderSize(z, maxBuffer), f.quoted, line{}, func(x line) error {
		for len(z.ends) > 0 && x.off > z.ends[0].text {
			now.run, now.inRun, z.ends = z.ends[0].next, 0, z.ends[1:]
		}
		x.run, x.inRun = now.run, now.inRun
		now.inRun++
		return take(x)
	})
}

// eachOf calls take for every line of a run.
func (f lineFile) eachOf(ctx context.Context, run runStart, take func(line) error) error {
	z := openFrames(f.path, f.r, f.size, f.quoted, f.unpacking, run)
	defer z.Close()
	z.raw.wanted = z.wanted
	err := eachLine(ctx, bufio.NewReaderSize(z, maxBuffer), f.quoted, line{run: run}, func(x line) error {
		if len(z.ends) > 0 && x.off > z.ends[0].text {
			return errEnough
		}
		return take(x)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// eachLine calls take for every line of a text. first.run says where it begins, if that is not the begin of a file.
func eachLine(ctx context.Context, in *bufio.Reader, quoted bool, first line, take func(line) error) error {
	l := first
	var buf []byte
	var err error
	if l.run.at > 0 {
		// What is left of the line before, which is another run's.
		l.text, buf, err = nextLine(in, nil, quoted, l.run.inside)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("the line that goes on at the frame at byte %d: %w", l.run.at, err)
		}
		l.off = int64(len(l.text))
	} else {
		head, _ := in.Peek(standInHead) // what fails here fails again when it is read
		if err := StandsIn(head); err != nil {
			return err
		}
		if bytes.HasPrefix(head, []byte("\xef\xbb\xbf")) {
			_, _ = in.Discard(3) // they were peeked
			l.off = 3
		}
	}
	for ; ; l.n++ {
		if l.n&255 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		l.text, buf, err = nextLine(in, buf[:0], quoted, false)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("line %d, at byte %d: %w", l.n+1, l.off, err)
		}
		if l.size = int64(len(l.text)); l.size == 0 {
			return nil
		}
		l.text = trimEnd(l.text)
		if err := take(l); err != nil {
			return err
		}
		l.off += l.size
	}
}

// nextLine reads a line with what ends it; the second slice is the buffer to be used again. inside says that it begins
// inside of double quotes.
func nextLine(in *bufio.Reader, buf []byte, quoted, inside bool) (text, rest []byte, err error) {
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
			return nil, buf, errOpenQuotes
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

// lines gives single lines of a file. Of a compressed one they come from a spool, a run of frames at a time.
type lines struct {
	f         File
	quoted    bool
	unpacking unpacking
}

// file is the file, to be read within a context.
func (l *lines) file(ctx context.Context) lineFile {
	return lineFile{l.f.Path, within(ctx, l.f), l.f.Size, l.quoted, l.unpacking}
}

// sample is where a line lies.
func (l *lines) sample(x line) (Sample, error) {
	s := Sample{Key: rowKey(x.n), Off: x.off, Size: max(x.size, 1), Label: -1}
	var err error
	if isPacked(l.f.Path) {
		s.Off, err = runOff(l.f.Size, x.run, x.inRun)
	}
	return s, err
}

// where is the place of a sample in words.
func (l *lines) where(s Sample) string {
	if isPacked(l.f.Path) {
		return "its line" // the source names the sample
	}
	return fmt.Sprintf("the line at byte %d", s.Off)
}

// Blocks are the whole of a compressed file, which Piece cuts, and none of another one.
func (l *lines) Blocks() []Block {
	if isPacked(l.f.Path) {
		return wholeFile()
	}
	return nil
}

// Piece implements ByPlace: each run of frames is a block.
func (l *lines) Piece(off int64) int64 {
	r, _, ok := runOf(l.f.Size, off)
	if !ok {
		return 0
	}
	first, err := runOff(l.f.Size, r, 0)
	if err != nil {
		return 0
	}
	return first
}

// read appends a line to dst, without what ends it.
func (l *lines) read(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if isPacked(l.f.Path) {
		return l.readPacked(ctx, dst, s)
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

// readPacked is read of a compressed file.
func (l *lines) readPacked(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	what := "lines" // it changes with what a line is taken to be
	if l.quoted {
		what = "rows"
	}
	run, i, ok := runOf(l.f.Size, s.Off)
	if !ok { // as an index of before has it
		return l.f.fromSpool(ctx, dst, what+" 1", i, func(ctx context.Context, w spool.Writer) error {
			return l.file(ctx).each(ctx, func(x line) error { return w.Add(x.text) })
		})
	}
	what = fmt.Sprintf("%s 2 %d %t", what, run.at, run.inside)
	return l.f.fromSpool(ctx, dst, what, i, func(ctx context.Context, w spool.Writer) error {
		return l.file(ctx).eachOf(ctx, run, func(x line) error { return w.Add(x.text) })
	})
}

// fromSpool appends the i-th record of a block of a file to dst. what names its content.
func (f *File) fromSpool(ctx context.Context, dst []byte, what string, i int64, make spool.Make) ([]byte, error) {
	return fromBlock(ctx, f.Spool, what+"\x00"+f.ID, dst, int(i), make)
}
