package packed

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// A compressed file of lines is unpacked in runs: some frames of zstd or members of gzip, one behind the other. A run
// ends with the frame in which it has runBytes, so that of a file of one frame it is the whole file. A line belongs to
// the run that has the line end before it, and the first one to the first run: a reader of a run skips what is left of
// a line, and reads its own last line to its end. So nothing but the place of a run, and whether it begins inside of
// double quotes, is to be known to read it. Sample.Off says both, and the number of the line in its run.

// unpacking says how compressed lines are unpacked. The zero value has the constants below.
type unpacking struct {
	run   int64 // bytes after which a run ends
	least int64 // of text that every file may have
}

const (
	// runBytes can change only together with the meaning of Sample.Off: an index says which runs there are.
	runBytes = 4 << 20
	// leastText and textTimes bound what a file unpacks to: so many bytes, and so many times as many as it has. They
	// bound the memory of the index of a file that is made to unpack to endless lines.
	leastText = 256 << 20
	textTimes = 256
)

// runStart is where a run begins.
type runStart struct {
	at     int64 // in the file
	inside bool  // of double quotes
}

// runEnd is where a run ends.
type runEnd struct {
	text int64 // the bytes that were unpacked before
	next runStart
}

// Sample.Off of a compressed line has the bit inRun. In the first run its number follows. Else it has the bit laterRun,
// the place of the run in as many bits as the size of the file has, a bit for quotes, and the number in the rest. Older
// indexes have no such bit: Off is the number of a line in the file, which is one block.
const (
	inRun    = 1 << 62
	laterRun = 1 << 61
)

// numberBits is how many bits the number of a line in its run has.
func numberBits(size int64) int { return 60 - bits.Len64(uint64(size)) }

// runOff is Sample.Off of the i-th line of a run.
func runOff(size int64, r runStart, i int64) (int64, error) {
	n := numberBits(size)
	switch {
	case r.at == 0 && i < laterRun:
		return inRun | i, nil
	case r.at == 0 || n < 1 || i>>n > 0:
		return 0, fmt.Errorf("the frame that begins near byte %d has more than %d lines, which are the most of a frame in a "+
			"file of %d bytes: write smaller frames, or several files", r.at, int64(1)<<max(n, 0), size)
	}
	where := r.at << 1
	if r.inside {
		where |= 1
	}
	return inRun | laterRun | where<<n | i, nil
}

// runOf takes a Sample.Off apart, where it says a run.
func runOf(size, off int64) (r runStart, i int64, ok bool) {
	n := numberBits(size)
	switch {
	case off&inRun == 0 || n < 1:
		return runStart{}, off, false
	case off&laterRun == 0:
		return runStart{}, off &^ inRun, true
	}
	where := (off &^ (inRun | laterRun)) >> n
	return runStart{where >> 1, where&1 == 1}, off & (1<<n - 1), true
}

// frames unpacks a file from a frame on, and notes where runs end.
type frames struct {
	run    int64 // bytes after which a run ends
	most   int64 // bytes of text
	quoted bool
	raw    *chunks
	in     *bufio.Reader
	codec  codec
	frame  io.Reader // that is unpacked now; nil = between two of them

	text, begin int64 // that were unpacked, and before the run
	inside      bool
	ends        []runEnd // that were passed
	failed      error    // of a read; none comes behind it
}

// codec unpacks frames.
type codec interface {
	// next begins the next frame, of which there is a byte at least. The Reader ends with it.
	next() (io.Reader, error)
	// none says what a file of no bytes is: io.EOF, if it is one without a frame.
	none() error
	close()
}

// openFrames begins to unpack a file.
func openFrames(path string, r io.ReaderAt, size int64, quoted bool, u unpacking, from runStart) *frames {
	f := &frames{run: cmp.Or(u.run, runBytes), most: cmp.Or(u.least, leastText) + textTimes*size, quoted: quoted,
		inside: from.inside}
	f.raw = &chunks{r: r, at: from.at, end: size, from: from.at, given: from.at}
	f.in = bufio.NewReaderSize(f.raw, 64<<10)
	if strings.HasSuffix(path, ".gz") {
		f.codec = &gzipMembers{in: f.in}
	} else {
		f.codec = &zstdFrames{frame: zstdFrame{in: f.in}}
	}
	return f
}

func (f *frames) Close() error {
	f.codec.close()
	return nil
}

// where is the next byte of the file.
func (f *frames) where() int64 { return f.raw.given - int64(f.in.Buffered()) }

// Read implements io.Reader. What failed fails again: the rest of a file that is cut is not its end.
func (f *frames) Read(p []byte) (int, error) {
	if f.failed != nil {
		return 0, f.failed
	}
	n, err := f.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.failed = cut(err)
		err = f.failed
	}
	return n, err
}

func (f *frames) read(p []byte) (int, error) {
	for len(p) > 0 {
		if f.frame == nil {
			_, err := f.in.Peek(1)
			if errors.Is(err, io.EOF) && f.where() == 0 {
				err = f.codec.none()
			}
			if err != nil {
				return 0, err
			}
			if f.frame, err = f.codec.next(); err != nil {
				return 0, err
			}
		}
		n, err := f.frame.Read(p)
		f.text += int64(n)
		if f.quoted && bytes.Count(p[:n], []byte{'"'})&1 == 1 {
			f.inside = !f.inside
		}
		if f.text > f.most {
			return 0, fmt.Errorf("it unpacks to more than %d bytes, which is more than %d times its own: unpack it",
				f.most, textTimes)
		}
		if errors.Is(err, io.EOF) {
			f.frame, err = nil, nil
			f.passed()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// passed notes that a frame has ended.
func (f *frames) passed() {
	if f.text-f.begin < f.run {
		return
	}
	f.ends = append(f.ends, runEnd{f.text, runStart{f.where(), f.inside}})
	f.begin = f.text
}

// wanted is about how many bytes of the file the only run that is read still needs, by what its first ones unpacked to.
func (f *frames) wanted(last int) int {
	const behind = 128 << 10 // a block of zstd: what was read and has not been unpacked yet
	has := f.raw.given - f.raw.from
	switch {
	case last == 0:
		return firstChunk
	case f.text < f.run:
		return int(float64(f.run)*float64(has)/float64(f.text+behind)) - int(has)
	case len(f.ends) > 0: // the rest of the line behind it
		return leastChunk
	}
	return 2 * last // one large frame
}

// gzipMembers unpacks members of gzip.
type gzipMembers struct {
	in *bufio.Reader
	z  *gzip.Reader
}

// none implements codec: gzip of nothing has a member.
func (*gzipMembers) none() error {
	return errors.New("it has no bytes, and gzip of nothing has: it is cut")
}

func (g *gzipMembers) next() (io.Reader, error) {
	var err error
	if g.z == nil {
		g.z, err = gzip.NewReader(g.in)
	} else {
		err = g.z.Reset(g.in)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("it is no gzip file: %w", err)
	}
	g.z.Multistream(false)
	return g.z, nil
}

func (g *gzipMembers) close() {}

// zstdFrames unpacks frames of zstd.
type zstdFrames struct {
	frame zstdFrame
	z     *zstd.Decoder
}

// none implements codec: zstd of nothing may have no frame.
func (*zstdFrames) none() error { return io.EOF }

func (s *zstdFrames) next() (_ io.Reader, err error) {
	if s.z == nil {
		s.z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
	}
	if err = s.frame.begin(); err == nil {
		err = s.z.Reset(&s.frame)
	}
	if err != nil {
		return nil, fmt.Errorf("it is no zstd file: %w", err)
	}
	return s.z, nil
}

func (s *zstdFrames) close() {
	if s.z != nil {
		s.z.Close()
	}
}

// zstdFrame gives the bytes of one frame as it is in the file: a header, blocks that say how long they are, a checksum.
// It is what the decoder reads, which by itself goes on with the next frame and does not say where that begins.
type zstdFrame struct {
	in   *bufio.Reader
	left int64 // bytes of the part that is being given
	next func() error
	sum  bool
}

// begin reads the header of a frame.
func (z *zstdFrame) begin() error {
	head, err := z.in.Peek(zstd.HeaderMaxSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var h zstd.Header
	if err := h.Decode(head); err != nil {
		return err
	}
	z.left, z.sum, z.next = int64(h.HeaderSize), h.HasCheckSum, z.block
	if h.Skippable {
		z.left += int64(h.SkippableSize)
		z.next = ended
	}
	return nil
}

func ended() error { return io.EOF }

// block reads the header of a block.
func (z *zstdFrame) block() error {
	head, err := z.in.Peek(3)
	if err != nil {
		return cutEarly(err)
	}
	const last, kindRLE = 1, 1
	word := int64(head[0]) | int64(head[1])<<8 | int64(head[2])<<16
	z.left = 3 + word>>3
	if word>>1&3 == kindRLE {
		z.left = 3 + 1
	}
	if word&last != 0 {
		z.next = z.checksum
	}
	return nil
}

func (z *zstdFrame) checksum() error {
	z.next = ended
	if z.sum {
		z.left = 4
	}
	return nil
}

// Read implements io.Reader.
func (z *zstdFrame) Read(p []byte) (int, error) {
	for z.left == 0 {
		if err := z.next(); err != nil {
			return 0, err
		}
	}
	n, err := z.in.Read(p[:min(int64(len(p)), z.left)])
	z.left -= int64(n)
	return n, cutEarly(err)
}

// cutEarly makes the end of a file an error.
func cutEarly(err error) error {
	if err == io.EOF { //nolint:errorlint // bufio gives it bare
		return io.ErrUnexpectedEOF
	}
	return err
}

// chunks reads a file from a byte on, in few reads: where it lies in a store each is a request.
type chunks struct {
	r       io.ReaderAt
	at, end int64 // what is not read yet
	// wanted is how many bytes the next read is to have, by those of the last one; nil = firstChunk.
	wanted      func(last int) int
	from, given int64 // the first byte, and the next to be given
	last        int
	buf, left   []byte
}

const (
	firstChunk = 256 << 10
	leastChunk = 64 << 10
	mostChunk  = 4 << 20
)

// newChunks reads all of a file, of which nothing is known, in larger and larger pieces.
func newChunks(r io.ReaderAt, size int64) *chunks {
	return &chunks{r: r, end: size, wanted: func(last int) int { return max(firstChunk, 2*last) }}
}

// Read implements io.Reader.
func (c *chunks) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.left)
	c.left, c.given = c.left[n:], c.given+int64(n)
	return n, nil
}

func (c *chunks) fill() error {
	if c.at >= c.end {
		return io.EOF
	}
	size := firstChunk
	if c.wanted != nil {
		size = c.wanted(c.last)
	}
	size = int(min(int64(min(max(size, leastChunk), mostChunk)), c.end-c.at))
	if cap(c.buf) < size {
		c.buf = make([]byte, size)
	}
	n, err := c.r.ReadAt(c.buf[:size], c.at)
	if n == 0 {
		return cutEarly(cmp.Or(err, io.ErrUnexpectedEOF))
	}
	c.at, c.last, c.left = c.at+int64(n), n, c.buf[:n]
	return nil
}
