package packed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// A file of lines that is not compressed is read in pieces, some beside each other. Lines within a piece are worked off
// where it is read; one that crosses a border is put together where the pieces are taken, in order. So every byte is
// read once, and what comes out is what reading from the front gives. Rows of CSV go on within double quotes: where one
// ends follows from how many quotes there are before it. They are counted as soon as a piece is read, and the pieces
// tell each other, so that rows are worked off beside each other as well. Compressed files are read from the front.

// readsOnce are the formats whose scans read every byte of a file once, though not in order.
var readsOnce = []string{"jsonl", "csv", "text"}

// ReadsOnce reports whether scans of a scheme read every byte of a file once, in whatever order.
func ReadsOnce(scheme string) bool { return slices.Contains(readsOnce, scheme) }

const (
	// pieceBytes is the length of a piece: as long as a read that a store answers by itself.
	pieceBytes = 1 << 20
	// maxPieces is how many goroutines work off the pieces of one file; twice as many pieces are in memory.
	maxPieces = 16
)

// pieces works off the lines of a file. W is what some lines in a row gave.
type pieces[W any] struct {
	r     io.ReaderAt
	size  int64 // of the file, bytes
	piece int64 // bytes, at least 3
	most  int   // goroutines

	quoted bool  // a line goes on inside of double quotes
	from   int64 // where the first line begins, in the first piece
	first  int64 // its number
	// wrong is an error about a line with its number and place; nil = lineError.
	wrong func(n, off int64, err error) error

	// begin makes a W, and line works a line off into it, from any goroutine. The line's number and place count from the
	// first one of W, and it is its own until line returns.
	begin func() W
	line  func(W, line) error
	// take gets every W, in order, with the number and the place of its first line in the file.
	take func(w W, n, off int64) error

	free   chan []byte // buffers of pieces that were taken
	inside []chan bool // whether a piece begins inside of double quotes, in turns
}

// worked is one piece, worked off but for what lies before its first line end and after its last one.
type worked[W any] struct {
	buf        []byte // head and tail are parts of it
	skip       int64  // bytes before the first line: a mark of the order of bytes
	head, tail []byte // a piece without a line end is a head alone
	whole      bool   // it has a line end
	w          W      // of what lies between head and tail
	lines      int64  // there
	size       int64  // of them, bytes
	bad        bool   // err is about the line that follows them; else about a read
	err        error
	ends       bool // the file ends in it
}

// run works off all lines. An error about a line has its number and place.
func (p *pieces[W]) run(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	n := max(1, int((p.size+p.piece-1)/p.piece))
	ahead := 2 * p.most
	slots := make([]chan *worked[W], ahead)
	for i := range slots {
		slots[i] = make(chan *worked[W], 1) // of its pieces at most one is not taken
	}
	p.free = make(chan []byte, ahead)
	p.inside = make([]chan bool, ahead+1) // of so many pieces at most one is being read and was not told
	for i := range p.inside {
		p.inside[i] = make(chan bool, 1)
	}
	p.inside[0] <- false
	next, room := make(chan int), make(chan struct{}, ahead)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		defer close(next)
		for i := range n {
			select {
			case room <- struct{}{}:
			case <-inner.Done():
				return
			}
			select {
			case next <- i:
			case <-inner.Done():
				return
			}
		}
	})
	for range min(p.most, n) {
		wg.Go(func() {
			for i := range next {
				slots[i%ahead] <- p.work(inner, i)
			}
		})
	}
	j := joiner[W]{p: p, n: p.first}
	for i := range n {
		var w *worked[W]
		select {
		case w = <-slots[i%ahead]:
		case <-ctx.Done():
			return ctx.Err()
		}
		w.ends = w.ends || i == n-1
		if err := j.add(w); err != nil || w.ends {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if w.buf != nil {
			p.free <- w.buf // it has room for all that there are
		}
		<-room
	}
	return nil
}

// work reads a piece, and works off the lines that begin and end in it.
func (p *pieces[W]) work(ctx context.Context, i int) *worked[W] {
	w := &worked[W]{}
	if w.err = ctx.Err(); w.err != nil {
		return w
	}
	from := int64(i) * p.piece
	select {
	case w.buf = <-p.free:
	default:
		w.buf = make([]byte, min(p.piece, p.size))
	}
	b := w.buf[:max(0, min(p.piece, p.size-from))]
	n, err := p.r.ReadAt(b, from)
	if n < len(b) {
		if w.ends = errors.Is(err, io.EOF); !w.ends {
			w.err = err
		}
	}
	b = b[:n]
	if i == 0 {
		if w.err = StandsIn(b); w.err != nil {
			return w
		}
		if b = b[min(p.from, int64(n)):]; p.from == 0 {
			b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
		}
		w.skip = int64(n - len(b))
	}
	inside := false
	if p.quoted {
		odd := bytes.Count(b, []byte{'"'})&1 == 1
		select {
		case inside = <-p.inside[i%len(p.inside)]:
		case <-ctx.Done():
			w.err = ctx.Err()
			return w
		}
		p.inside[(i+1)%len(p.inside)] <- inside != odd
	}
	first := p.endOf(b, inside)
	if first == 0 {
		w.head = b
		return w
	}
	w.whole, w.head, w.tail = true, b[:first], b[first:]
	w.w = p.begin()
	for end := p.endOf(w.tail, false); end > 0; end = p.endOf(w.tail, false) {
		x := line{text: trimEnd(w.tail[:end]), n: w.lines, off: w.size, size: int64(end)}
		if err := p.line(w.w, x); err != nil {
			w.bad, w.err = true, err
			return w
		}
		w.lines++
		w.size += int64(end)
		w.tail = w.tail[end:]
	}
	return w
}

// endOf is the length of the line that some bytes begin with, with what ends it; 0 = its end is not among them. inside
// says that it begins inside of double quotes.
func (p *pieces[W]) endOf(b []byte, inside bool) int {
	for at := 0; ; {
		i := bytes.IndexByte(b[at:], '\n') + 1
		if i == 0 {
			return 0
		}
		if p.quoted && bytes.Count(b[at:at+i], []byte{'"'})&1 == 1 {
			inside = !inside
		}
		if at += i; !inside {
			return at
		}
	}
}

// joiner takes pieces in order.
type joiner[W any] struct {
	p    *pieces[W]
	open []byte // the line that the pieces before began
	n    int64  // its number
	off  int64  // its place
}

func (j *joiner[W]) add(w *worked[W]) error {
	j.off += w.skip
	if len(j.open)+len(w.head) > maxLine {
		return j.failed(fmt.Errorf("it has more than %d bytes", maxLine))
	}
	j.open = append(j.open, w.head...)
	if w.whole {
		if err := j.close(); err != nil {
			return err
		}
		if w.lines > 0 {
			if err := j.p.take(w.w, j.n, j.off); err != nil {
				return err
			}
		}
		j.n += w.lines
		j.off += w.size
		if w.bad {
			return j.wrong(w.err)
		}
		j.open = append(j.open, w.tail...)
	}
	switch {
	case w.err != nil:
		return j.failed(w.err)
	case w.ends && len(j.open) > 0:
		if j.p.quoted && bytes.Count(j.open, []byte{'"'})&1 == 1 {
			return j.failed(errOpenQuotes)
		}
		return j.close()
	}
	return nil
}

var errOpenQuotes = errors.New("its double quotes are not closed")

// close works off the open line.
func (j *joiner[W]) close() error {
	w, size := j.p.begin(), int64(len(j.open))
	if err := j.p.line(w, line{text: trimEnd(j.open), size: size}); err != nil {
		return j.wrong(err)
	}
	if err := j.p.take(w, j.n, j.off); err != nil {
		return err
	}
	j.n++
	j.off += size
	j.open = j.open[:0]
	return nil
}

// failed is an error about how the open line was read.
func (j *joiner[W]) failed(err error) error { return lineError(j.n, j.off, err) }

// wrong is an error about what is in it.
func (j *joiner[W]) wrong(err error) error {
	if j.p.wrong != nil {
		return j.p.wrong(j.n, j.off, err)
	}
	return j.failed(err)
}

func lineError(n, off int64, err error) error {
	return fmt.Errorf("line %d, at byte %d: %w", n+1, off, err)
}

// givenLine is what a line of a piece gave.
type givenLine[T any] struct {
	x            T
	n, off, size int64
}

// scanLines calls take for all lines of a file that give something, in order. of says what a line gives, and is called
// from any goroutine; its errors get the number and the place of the line.
func scanLines[T any](
	ctx context.Context, f lineFile, goroutines int, piece int64, of func(line) (x T, ok bool, err error),
	take func(T, line) error,
) error {
	if goroutines < 2 || isPacked(f.path) || f.size <= piece {
		return f.each(ctx, func(l line) error {
			x, ok, err := of(l)
			switch {
			case err != nil:
				return lineError(l.n, l.off, err)
			case !ok:
				return nil
			}
			return take(x, l)
		})
	}
	p := pieces[*[]givenLine[T]]{r: f.r, size: f.size, piece: piece, most: min(goroutines, maxPieces),
		begin: func() *[]givenLine[T] { return &[]givenLine[T]{} },
		line: func(w *[]givenLine[T], l line) error {
			x, ok, err := of(l)
			if err == nil && ok {
				*w = append(*w, givenLine[T]{x, l.n, l.off, l.size})
			}
			return err
		},
		take: func(w *[]givenLine[T], n, off int64) error {
			for i := range *w {
				g := &(*w)[i]
				if err := take(g.x, line{n: n + g.n, off: off + g.off, size: g.size}); err != nil {
					return err
				}
			}
			return nil
		}}
	return p.run(ctx)
}
