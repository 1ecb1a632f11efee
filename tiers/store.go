package tiers

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/tiers/arena"
)

var (
	// ErrFull says that the tier has no room for the bytes now.
	ErrFull = errors.New("tiers: the tier is full")
	// ErrGone says that the entry is not here.
	ErrGone = errors.New("tiers: the entry is gone")
	// ErrCorrupt says that the bytes are not those that were committed; the entry was dropped.
	ErrCorrupt = errors.New("tiers: the entry is corrupt and was dropped")
)

// DefaultVerifyEvery is how many reads there are to a verified one, if the configuration does not say.
const DefaultVerifyEvery = 64

// Config is how a store is made. Budgets are in bytes by form; that of Stored must be 0. One of VerifyEvery reads
// computes the checksum (0: DefaultVerifyEvery; 1: all do); builds with invariants verify every read. ChunkBytes is the
// least piece of address space to take at once (0: arena.DefaultChunk).
type Config struct {
	Budgets     [ident.NumForms]int64
	VerifyEvery int
	ChunkBytes  int64
	Pages       arena.Pages // what Probe found; the zero value: small pages
}

// Meta is what a reader must know beside the bytes. All zero for encoded entries. Planes is how the pixels lie, in the
// words of those who wrote them; 0 = packed.
type Meta struct{ Width, Height, Channels, Planes uint32 }

// Store holds the bytes. Safe for concurrent use; copying and decoding happen outside its locks.
type Store struct {
	verifyEvery uint64
	pages       arena.Pages
	forms       [ident.NumForms]*form // nil for Stored
}

// form is one tier.
type form struct {
	arena    *arena.Arena
	shelf    shelf
	reads    atomic.Uint64
	verified atomic.Uint64
	corrupt  atomic.Uint64

	mu struct {
		sync.Mutex
		filling map[*Buf]struct{} // allocated, neither committed nor aborted
		closed  bool
	}
}

// shelf holds the published slabs of one form and owns one reference of each.
type shelf interface {
	put(*slab) bool               // takes the reference over; false: it was not kept, the reference is the caller's
	open(ident.Key) *slab         // retained for the caller; nil: not here
	openAll([]ident.Key, []*slab) // open of each, into as many places
	drop(ident.Key)               // releases whatever is there
	dropIf(ident.Key, *slab)      // releases it if it is still there
	len() int
	resize(bytes int64) // the form's new budget
	close()             // releases all; nothing is kept afterwards
}

// slab is a published extent: immutable bytes and a count of references. The shelf has one, each View another.
type slab struct {
	refs  atomic.Int32
	bad   atomic.Bool // found corrupt, counted, and on its way out
	meta  Meta
	ext   arena.Extent // beside refs: lending reads both
	arena *arena.Arena
	key   ident.Key
	sum   uint64
}

// Retain takes a reference unless the last one is gone already.
func (s *slab) Retain() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release drops a reference; the last one frees the bytes.
func (s *slab) Release() {
	switch n := s.refs.Add(-1); {
	case n == 0:
		s.arena.Free(s.ext)
	case n < 0:
		invariant.Violated("tiers: %s is released more often than retained", s.key)
	}
}

// Open returns an empty store. Close it.
func Open(cfg Config) (*Store, error) {
	var problems []error
	for f, b := range cfg.Budgets {
		if b < 0 {
			problems = append(problems, errs.New(errs.ConfigInvalid, "tiers."+ident.Form(f).String(), "use 0 or more bytes",
				"the tier cannot have %d bytes", b))
		}
	}
	if cfg.Budgets[ident.Stored] > 0 {
		problems = append(problems, errs.New(errs.ConfigInvalid, "tiers.stored",
			"give the bytes to encoded, decoded or augmented",
			"stored samples are in storage and take no memory, got a budget of %d bytes", cfg.Budgets[ident.Stored]))
	}
	if cfg.VerifyEvery < 0 || cfg.ChunkBytes < 0 {
		problems = append(problems, errs.New(errs.ConfigInvalid, "tiers", "use 0 for the defaults",
			"verify_every %d and chunk size %d must not be negative", cfg.VerifyEvery, cfg.ChunkBytes))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	s := &Store{verifyEvery: uint64(cfg.VerifyEvery), pages: cfg.Pages}
	if s.verifyEvery == 0 {
		s.verifyEvery = DefaultVerifyEvery
	}
	if invariant.Enabled {
		s.verifyEvery = 1
	}
	for f := ident.Encoded; f < ident.NumForms; f++ {
		if err := s.openForm(f, cfg); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func (s *Store) openForm(f ident.Form, cfg Config) error {
	t := &form{}
	t.mu.filling = make(map[*Buf]struct{})
	var err error
	t.arena, err = arena.New(arena.Config{
		Name: f.String(), Budget: cfg.Budgets[f], ChunkBytes: cfg.ChunkBytes, Prefault: true,
		HugeBelow: cfg.Pages.Below,
	})
	if err != nil {
		return fmt.Errorf("open tier %s: %w", f, err)
	}
	if f == ident.Encoded {
		t.shelf, err = newHandles(cfg.Budgets[f])
	} else {
		t.shelf = newTable()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open tier %s: %w", f, err), t.arena.Close())
	}
	s.forms[f] = t
	return nil
}

// Buf is memory that is being filled. It belongs to one goroutine at a time.
type Buf struct {
	Bytes []byte // exactly as many as asked for; undefined at first

	key   ident.Key
	form  *form
	ext   arena.Extent
	freed bool // the key was, meanwhile; guarded by form.mu
}

// Alloc returns n bytes to fill for k, or ErrFull. End it with Commit or Abort.
func (s *Store) Alloc(k ident.Key, n int64) (*Buf, error) {
	t := s.form(k.Form)
	if t == nil {
		return nil, fmt.Errorf("%w: there is no tier %s", ErrFull, k.Form)
	}
	ext, err := t.arena.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("%w: %s, %d bytes: %w", ErrFull, k, n, err)
	}
	b := &Buf{Bytes: ext.Bytes(), key: k, form: t, ext: ext}
	t.mu.Lock()
	closed := t.mu.closed
	if !closed {
		t.mu.filling[b] = struct{}{}
	}
	t.mu.Unlock()
	if closed {
		t.arena.Free(ext)
		return nil, fmt.Errorf("%w: the store is closed", ErrFull)
	}
	return b, nil
}

// Commit publishes the bytes under the key, in place of what was published there. After it the Buf and its Bytes are
// no longer the caller's, whatever the result. ErrGone: the key was freed since Alloc. ErrFull: the tier did not keep
// it. Either way nothing is published.
func (b *Buf) Commit(m Meta) error { return b.publish(m, xxhash.Sum64(b.Bytes)) }

// CommitSummed is Commit of bytes that were somewhere else since they were committed: in another engine, or in a former
// life of this one. sum is View.Sum there. ErrCorrupt: they have another one, so they are counted and not published.
func (b *Buf) CommitSummed(m Meta, sum uint64) error {
	b.form.verified.Add(1)
	if xxhash.Sum64(b.Bytes) != sum {
		b.form.corrupt.Add(1)
		b.Abort()
		return fmt.Errorf("%w: %s, as it was received", ErrCorrupt, b.key)
	}
	return b.publish(m, sum)
}

func (b *Buf) publish(m Meta, sum uint64) error {
	b.take()
	s := &slab{key: b.key, arena: b.form.arena, ext: b.ext, meta: m, sum: sum}
	s.refs.Store(1)
	if b.isFreed() { // do not displace what was committed for the key since
		b.end()
		s.Release()
		return ErrGone
	}
	b.form.shelf.drop(b.key)
	kept := b.form.shelf.put(s)
	// Only now, so that a Free that came too early for the shelf finds the Buf, and one that comes later the entry.
	freed := b.end()
	switch {
	case !kept:
		s.Release()
		return fmt.Errorf("%w: %s was not kept", ErrFull, b.key)
	case freed:
		b.form.shelf.dropIf(b.key, s)
		return ErrGone
	default:
		return nil
	}
}

// Abort frees the bytes.
func (b *Buf) Abort() {
	b.take()
	b.end()
	b.form.arena.Free(b.ext)
}

// take gives the bytes away, once.
func (b *Buf) take() {
	if b.Bytes == nil {
		invariant.Violated("tiers: the buffer of %s is ended twice", b.key)
	}
	b.Bytes = nil
}

func (b *Buf) isFreed() bool {
	b.form.mu.Lock()
	defer b.form.mu.Unlock()
	return b.freed
}

// end takes the Buf out of those that are being filled and reports whether its key was freed.
func (b *Buf) end() (freed bool) {
	b.form.mu.Lock()
	defer b.form.mu.Unlock()
	delete(b.form.mu.filling, b)
	return b.freed
}

// View is a lent entry. The bytes must not be written, and not be read after Close.
type View struct {
	Bytes []byte
	Meta  Meta
	slab  *slab
}

// Sum returns the xxhash64 of the bytes as they were committed.
func (v *View) Sum() uint64 { return v.slab.sum }

// Close gives the entry back. A second Close of the same View does nothing.
func (v *View) Close() {
	if v.slab != nil {
		s := v.slab
		v.slab, v.Bytes = nil, nil
		s.Release()
	}
}

// Open lends the entry of k. ErrGone: it is not here. ErrCorrupt: it was, with other bytes than were committed; it is
// gone now. Close the View.
func (s *Store) Open(k ident.Key) (View, error) {
	t := s.form(k.Form)
	if t == nil {
		return View{}, ErrGone
	}
	e := t.shelf.open(k)
	if e == nil {
		return View{}, ErrGone
	}
	return s.lend(t, e)
}

// OpenAll is Open of several entries of one form. It appends a View for each to dst, in order: where Open would have
// failed, one without Bytes. Close them all. It takes the lock of the tier once for many.
func (s *Store) OpenAll(f ident.Form, keys []ident.Key, dst []View) []View {
	t := s.form(f)
	if t == nil {
		return append(dst, make([]View, len(keys))...)
	}
	var few [64]*slab
	for len(keys) > 0 {
		n := min(len(keys), len(few))
		t.shelf.openAll(keys[:n], few[:n])
		for _, e := range few[:n] {
			v := View{}
			if e != nil {
				v, _ = s.lend(t, e) // without Bytes if it fails
			}
			dst = append(dst, v)
		}
		keys = keys[n:]
	}
	return dst
}

// lend makes a View of a slab that is retained for it.
func (s *Store) lend(t *form, e *slab) (View, error) {
	bytes := e.ext.Bytes()
	if s.verifies(t.reads.Add(1)) {
		t.verified.Add(1)
		if xxhash.Sum64(bytes) != e.sum && e.bad.CompareAndSwap(false, true) {
			t.corrupt.Add(1)
			t.shelf.dropIf(e.key, e)
			e.Release()
			return View{}, fmt.Errorf("%w: %s", ErrCorrupt, e.key)
		}
	}
	if e.bad.Load() { // the shelf may need a moment to release it
		e.Release()
		return View{}, ErrGone
	}
	return View{Bytes: bytes, Meta: e.meta, slab: e}, nil
}

// verifies reports whether the n-th read is one that is verified. Multiples of the golden ratio fall evenly and follow
// no period of the reader: of an order that repeats each epoch, every n-th read could be the same samples every time.
func (s *Store) verifies(n uint64) bool {
	return s.verifyEvery == 1 || n*0x9E3779B97F4A7C15 < math.MaxUint64/s.verifyEvery
}

// Free drops what is published under k, and what is being filled for it (its Commit says ErrGone). Memory returns when
// the last View is closed. It does not block on readers or writers. Frees and Allocs of one key must come in the order
// in which they were decided.
func (s *Store) Free(k ident.Key) {
	t := s.form(k.Form)
	if t == nil {
		return
	}
	t.mu.Lock()
	for b := range t.mu.filling { // as many as there are workers
		if b.key == k {
			b.freed = true
		}
	}
	t.mu.Unlock()
	t.shelf.drop(k)
}

// SetBudget changes a tier's bytes while it is in use. Nothing is flushed: after a shrink the tier is over its budget,
// and full, until enough entries were freed; their pages go back to the kernel as they are.
func (s *Store) SetBudget(f ident.Form, bytes int64) error {
	t := s.form(f)
	if t == nil || bytes < 0 {
		return errs.New(errs.Invalid, "tiers."+f.String(), "use 0 or more bytes, for encoded, decoded or augmented",
			"cannot give tier %s %d bytes", f, bytes)
	}
	t.shelf.resize(bytes)
	if err := t.arena.SetBudget(bytes); err != nil {
		return fmt.Errorf("resize tier %s: %w", f, err)
	}
	return nil
}

// Used returns the bytes in use: published, being filled, and freed but still viewed. Rounded up to Granule each.
func (s *Store) Used(f ident.Form) int64 {
	if t := s.form(f); t != nil {
		return t.arena.Usage().Used
	}
	return 0
}

// Usable returns how many of a tier's bytes an index should promise. The rest keeps allocation cheap and takes what is
// leaving under pins: replacing values in a tier that is full to 94 % needs new pages from the kernel for under 1 % of
// the bytes, in one that is full to 100 % for 88 % of them, at about seven times the time.
func Usable(budget int64) int64 { return budget - budget/16 }

// Granule returns what each entry's bytes are rounded up to.
func (s *Store) Granule(ident.Form) int64 { return arena.Granule }

// Stats is what one tier holds.
type Stats struct {
	arena.Usage
	Entries  int    // published
	Reads    uint64 // entries lent, and found corrupt, since the start
	Verified uint64 // checksums computed to verify, since the start
	Corrupt  uint64 // of those, such as showed changed bytes: the entry was dropped
}

// Stats returns the figures of this moment.
func (s *Store) Stats(f ident.Form) Stats {
	t := s.form(f)
	if t == nil {
		return Stats{}
	}
	return Stats{Usage: t.arena.Usage(), Entries: t.shelf.len(), Reads: t.reads.Load(), Verified: t.verified.Load(),
		Corrupt: t.corrupt.Load()}
}

// WhenIdle makes the tiers get memory from the kernel ahead of what is stored while idle answers true, and not
// otherwise. Before it is called, they get it always.
func (s *Store) WhenIdle(idle func() bool) {
	for _, t := range s.forms {
		if t != nil {
			t.arena.WhenIdle(idle)
		}
	}
}

// Pages says in a sentence in which pages new memory comes, and why; empty = nobody asked.
func (s *Store) Pages() string {
	for _, t := range s.forms {
		if t != nil && s.pages.Below > 0 && !t.arena.Huge() {
			return "small pages: huge ones became slower than they were at the start"
		}
	}
	return s.pages.Why
}

// Fresh returns how many bytes of pages the kernel provided since the start, for all tiers, and the time that took.
func (s *Store) Fresh() (bytes int64, took time.Duration) {
	for f := ident.Encoded; f < ident.NumForms; f++ {
		if t := s.form(f); t != nil {
			u := t.arena.Usage()
			bytes, took = bytes+u.Taken, took+u.Waited
		}
	}
	return bytes, took
}

// Close frees everything. Buffers that are being filled and open Views stay valid; the last of them unmaps the memory.
// A second Close does nothing.
func (s *Store) Close() error {
	var problems []error
	for _, t := range s.forms {
		if t == nil {
			continue
		}
		t.mu.Lock()
		t.mu.closed = true
		t.mu.Unlock()
		t.shelf.close()
		problems = append(problems, t.arena.Close())
	}
	return errors.Join(problems...)
}

func (s *Store) form(f ident.Form) *form {
	if f >= ident.NumForms {
		return nil
	}
	return s.forms[f]
}
