package wire

import (
	"bufio"
	"errors"
	"io"
)

// bufferSize holds the frames of a training loop (a few dozen bytes each) many times over.
const bufferSize = 8 << 10

// growth is the most memory that is taken for a payload before its bytes arrive.
const growth = 64 << 10

// Reader cuts a byte stream into frames. Not safe for concurrent use.
type Reader struct {
	r    *bufio.Reader
	pos  int64 // bytes of whole frames returned
	head [HeaderSize]byte
	buf  []byte
}

// NewReader reads frames from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, bufferSize)} }

// Buffered reports whether more than a header of what follows has been read already.
func (r *Reader) Buffered() bool { return r.r.Buffered() > HeaderSize }

// Next returns the next frame, and at which byte of the stream it began (for descriptors that ride on that byte). The
// payload is valid until the next call. The error is io.EOF between frames, io.ErrUnexpectedEOF inside one, a
// *errs.Error (PROTOCOL) for bytes that are no frame, else what r said. After an error the stream has lost its
// borders: do not continue.
func (r *Reader) Next() (h Header, payload []byte, at int64, err error) {
	at = r.pos
	// A large buffer is not kept while waiting: one big CALL would pin its size for the life of the session.
	if cap(r.buf) > growth {
		r.buf = nil
	}
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return Header{}, nil, at, err
	}
	if h, err = ParseHeader(r.head[:]); err != nil {
		return h, nil, at, err
	}
	n := int(h.Length)
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		part := min(n-len(r.buf), max(growth, len(r.buf)))
		if free := cap(r.buf) - len(r.buf); free < part {
			r.buf = append(make([]byte, 0, len(r.buf)+part), r.buf...)
		}
		got, err := io.ReadFull(r.r, r.buf[len(r.buf):len(r.buf)+part])
		r.buf = r.buf[:len(r.buf)+got]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return h, nil, at, err
		}
	}
	r.pos += HeaderSize + int64(n)
	return h, r.buf, at, nil
}
