package source

import (
	"context"
	"errors"
	"io"
	"sync"

	"larder/internal/source/packed"
	"larder/internal/store"
	"larder/tiers/disk"
)

// An index of packed files in a store may read them whole: tars of small members, lines, what is compressed. With a
// disk tier these bytes are kept, so that no read of a sample fetches them again. They are kept in pieces that begin at
// multiples of keptPiece, whatever an index reads at once, because it does not know samples when it reads: a sample is
// then a part of one piece, or some pieces.

const (
	// keptPiece is the length of a piece. A line of text costs the read of a piece from the disk.
	keptPiece = 32 << 10
	// maxTorn is how many pieces of one file may wait for the read that has the rest of them.
	maxTorn = 64
)

// keptPieces are the pieces of one object. nil has none.
type keptPieces struct {
	kept Kept
	key  disk.Key // of the object; Off and Size are those of a piece
	size int64    // of the object, bytes
}

// pieces are those of an object of a root; nil = there is no disk tier, or bytes that it has may be of other contents.
func (rs *rootState) pieces(in store.Info) *keptPieces {
	if rs.kept == nil || in.Size <= 0 || in.SizeAlone() {
		return nil
	}
	return &keptPieces{kept: rs.kept, size: in.Size, key: disk.Key{Place: rs.placeName(),
		Object: rs.address.Place + "/" + in.Key, Version: in.Version}}
}

// piece is the key of the piece that begins at a byte.
func (k *keptPieces) piece(off int64) disk.Key {
	key := k.key
	key.Off, key.Size = off, min(keptPiece, k.size-off)
	return key
}

// scratch has room for a piece that is needed in part.
var scratch = sync.Pool{New: func() any { return new([keptPiece]byte) }}

// get fills p with the bytes from off on, and reports whether it could.
func (k *keptPieces) get(whom disk.Whom, p []byte, off int64) bool {
	return len(p) > 0 && k.some(whom, p, off) == len(p)
}

// some fills the front of p with the bytes from off on, as far as their pieces are there, and returns how many.
func (k *keptPieces) some(whom disk.Whom, p []byte, off int64) (filled int) {
	if k == nil || len(p) == 0 || off < 0 || off+int64(len(p)) > k.size {
		return 0
	}
	at := off / keptPiece * keptPiece
	if !k.kept.Has(k.piece(at)) {
		return 0 // most likely all of it was never kept
	}
	part := scratch.Get().(*[keptPiece]byte)
	defer scratch.Put(part)
	for filled < len(p) {
		key := k.piece(at)
		n := int(min(int64(len(p)-filled), key.Off+key.Size-off))
		to := p[filled : filled+n]
		if int64(n) == key.Size {
			if !k.kept.Get(whom, key, to) {
				break
			}
		} else {
			if !k.kept.Get(whom, key, part[:key.Size]) {
				break
			}
			copy(to, part[off-at:])
		}
		filled, off, at = filled+n, off+int64(n), at+keptPiece
	}
	return filled
}

// anewKey is the key of what anew says.
type anewKey struct{}

// anew says in a context that an index reads the bytes of objects from their store, also where they are kept.
func anew(ctx context.Context) context.Context { return context.WithValue(ctx, anewKey{}, true) }

// aheadOf reads an object from the front while it is indexed.
func (rs *rootState) aheadOf(ctx context.Context, st store.Store, in store.Info) *store.Ahead {
	scheme, path := rs.format.Scheme(), "/"+in.Key
	pieces := rs.pieces(in)
	if pieces == nil || packed.Decoded(scheme, path) && !packed.Unpacked(scheme, path) { // only what is decoded is kept
		return store.NewAhead(ctx, st, in)
	}
	s := &indexedStore{Store: st, pieces: pieces, whom: disk.Whom{Group: rs.uri}, torn: map[int64]*tornPiece{},
		anew: ctx.Value(anewKey{}) != nil}
	if packed.Unpacked(scheme, path) { // what is unpacked is kept as well, and is what jobs need
		s.whom.Jobs = disk.Spare
	}
	a := store.NewAhead(ctx, s, in)
	a.Over = true
	return a
}

// indexedStore keeps what is read of one object.
type indexedStore struct {
	store.Store
	pieces *keptPieces
	whom   disk.Whom
	anew   bool // nothing that is kept is read

	mu   sync.Mutex // guards what follows
	torn map[int64]*tornPiece
}

// tornPiece is a piece of which some bytes were read: those before head, and those from tail on.
type tornPiece struct {
	buf        []byte
	head, tail int64
}

// ReadRange implements store.Store.
func (s *indexedStore) ReadRange(ctx context.Context, in store.Info, off int64, buf []byte) (int, error) {
	p := buf[:max(0, min(int64(len(buf)), s.pieces.size-off))]
	there := 0
	if !s.anew {
		there = s.pieces.some(s.whom, p, off)
	}
	switch {
	case there > 0 && there == len(p) && len(p) < len(buf):
		return there, io.EOF
	case there > 0 && there == len(p):
		return there, ctx.Err()
	}
	off += int64(there)
	n, err := s.Store.ReadRange(ctx, in, off, buf[there:])
	if err == nil || errors.Is(err, io.EOF) {
		s.put(buf[there:there+n], off)
	}
	return there + n, err
}

// put keeps bytes that were read.
func (s *indexedStore) put(b []byte, off int64) {
	for len(b) > 0 && off < s.pieces.size {
		key := s.pieces.piece(off / keptPiece * keptPiece)
		n := min(int64(len(b)), key.Off+key.Size-off)
		if n == key.Size {
			s.pieces.kept.Put(s.whom, key, b[:n])
		} else {
			s.part(key, b[:n], off-key.Off)
		}
		b, off = b[n:], off+n
	}
}

// part takes some bytes of a piece, and keeps it when it is whole.
func (s *indexedStore) part(key disk.Key, b []byte, from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.torn[key.Off]
	if t == nil {
		if len(s.torn) >= maxTorn { // of reads that leave parts out
			clear(s.torn)
		}
		t = &tornPiece{buf: make([]byte, key.Size), tail: key.Size}
		s.torn[key.Off] = t
	}
	to := from + int64(len(b))
	if from <= t.head && to > t.head {
		copy(t.buf[from:], b)
		t.head = to
	}
	if to >= t.tail && from < t.tail {
		copy(t.buf[from:], b)
		t.tail = from
	}
	if t.head >= t.tail {
		s.pieces.kept.Put(s.whom, key, t.buf)
		delete(s.torn, key.Off)
	}
}
