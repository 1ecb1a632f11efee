package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"larder/internal/spool"
	"larder/internal/units"
)

// A block is a file: a head with its key, its records, and a table of where each ends. It is read only when it is
// whole, and leaves as a whole.

// block is such a file.
type block struct {
	name, key string
	group     *group
	room      int64
	used      uint64
	refs      int
	stage     stage

	opening sync.Mutex // guards what follows until it is set; it does not change then before the last reader is gone
	file    file
	begin   int64 // of the records
	ends    []byte
}

const (
	idleBlocks  = 64 // that stay open
	blockBuffer = 1 << 20
	recordMost  = 1<<31 - 1
	mostLarge   = 4096 // blocks whose size is remembered because they are too large
)

// refusal is of a block that is larger than the tier, which had that size.
type refusal struct {
	size int64
	why  error
}

// errNoRoom says that a block may not be written to the disk.
var errNoRoom = errors.New("no room on the disk tier")

// For returns the spool for the blocks of a group.
func (s *Store) For(group string) spool.Spool { return blocksOf{s, groupName(group)} }

// Block is For("").Block: of blocks that count as needed by one job.
func (s *Store) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	return s.For("").Block(ctx, key, make)
}

var _ spool.Spool = (*Store)(nil)

type blocksOf struct {
	s     *Store
	group string
}

func (v blocksOf) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	if err := spool.CheckKey(key); err != nil {
		return nil, err
	}
	s := v.s
	for range 3 {
		if r := s.openBlock(key); r != nil {
			return r, nil
		}
		got, err := s.single.Do(ctx, key, func() (any, error) { return s.make(ctx, v.group, key, make) })
		if err != nil {
			return nil, err
		}
		if r, ok := got.(spool.Reader); ok {
			return r, nil
		}
	}
	// It left again and again before it could be opened.
	r, err := s.memory.Block(ctx, key, make)
	if errors.Is(err, spool.ErrFull) {
		return s.newUnkept(ctx, key, make)
	}
	return r, err
}

// make makes a block on the disk, or returns a Reader of one in memory, which any number of callers may use.
func (s *Store) make(ctx context.Context, group, key string, make spool.Make) (any, error) {
	if s.knowsBlock(key) {
		return nil, nil
	}
	if r := s.memory.Find(key); r != nil {
		return r, nil
	}
	if err := s.wasRefused(key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.held.counts.BlockMakes++
	s.mu.Unlock()
	w := &blockWriter{s: s, group: group, key: key}
	kept, err := s.makeFile(ctx, w, make)
	if kept || err != nil {
		return nil, err
	}
	r, err := s.memory.Block(ctx, key, make)
	if !errors.Is(err, spool.ErrFull) {
		return r, err
	}
	if errors.Is(w.failure, spool.ErrFull) {
		return nil, s.refuse(key, w.failure)
	}
	w = &blockWriter{s: s, group: group, key: key, equal: true}
	if kept, err = s.makeFile(ctx, w, make); kept || err != nil {
		return nil, err
	}
	return s.newUnkept(ctx, key, make)
}

// tooLarge says that a block with a file of so many bytes would be larger than all of the tier; nil = it is not.
func (s *Store) tooLarge(length int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if roomOf(length)+fixedRoom <= s.held.size {
		return nil
	}
	return fmt.Errorf("%w: it has more than %s, and the disk tier has %s", spool.ErrFull,
		units.Size(max(s.held.size-fixedRoom, s.cfg.Memory)), units.Size(s.held.size))
}

// refuse notes that a block is larger than the tier, so that it is not made in vain, and others do not leave for it,
// while the tier is no larger than now.
func (s *Store) refuse(key string, why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	if len(h.large) >= mostLarge {
		clear(h.large)
	}
	h.large[key] = refusal{h.size, why}
	return why
}

// wasRefused is what refuse noted of a block; nil = it may be made.
func (s *Store) wasRefused(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.held.large[key]; ok && s.held.size <= r.size {
		return r.why
	}
	delete(s.held.large, key)
	return nil
}

// unkept is a block that neither the disk nor memory takes now, and that the disk may take later: another process has
// it, it is full or fails, or all that is on it is being read. Each read makes the block again and keeps one record,
// which is slow and right.
type unkept struct {
	ctx  context.Context //nolint:containedctx // of the caller who made it: with its end the block is lost to others
	make spool.Make
	n    int
}

// newUnkept returns a block that is not kept. ErrFull: it never can be, for its own bytes are more than the tier.
func (s *Store) newUnkept(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	count := picker{want: -1, check: s.tooLarge, bytes: trailer}
	if err := make(ctx, &count); err != nil {
		if errors.Is(err, spool.ErrFull) {
			err = s.refuse(key, err)
		}
		return nil, err
	}
	return &unkept{ctx, make, count.n}, nil
}

func (u *unkept) Len() int     { return u.n }
func (u *unkept) Close() error { return nil }

func (u *unkept) Record(dst []byte, i int) ([]byte, error) {
	if err := spool.CheckIndex(i, u.n); err != nil {
		return dst, err
	}
	p := picker{want: i, out: dst}
	if err := u.make(u.ctx, &p); p.n <= i {
		if u.ctx.Err() != nil {
			return dst, spool.ErrLost
		}
		return dst, cmp.Or(err, spool.ErrLost)
	}
	return p.out, nil
}

// picker is a Writer that keeps one record, and ends the making behind it. Where check is set, it ends it with the
// error of that, if the bytes of a file of the records have one.
type picker struct {
	want, n int
	out     []byte
	bytes   int64
	check   func(bytes int64) error
}

var errPicked = errors.New("the record is there")

func (p *picker) Add(b []byte) error {
	p.n++
	if p.check != nil {
		p.bytes += recordHead + int64(len(b)) + 8 // and where it ends
		return p.check(p.bytes)
	}
	if p.n != p.want+1 {
		return nil
	}
	p.out = append(p.out, b...)
	return errPicked
}

// makeFile writes a block; false = the disk does not take it. The error is that of make.
func (s *Store) makeFile(ctx context.Context, w *blockWriter, make spool.Make) (bool, error) {
	if !w.open() {
		return false, nil
	}
	err := make(ctx, w)
	if err == nil {
		w.finish()
	}
	switch {
	case w.failure != nil:
		w.abandon()
		return false, nil
	case err != nil:
		w.abandon()
		return false, err
	}
	return true, nil
}

func (s *Store) knowsBlock(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.blocks[key] != nil
}

// blockWriter writes the file of a block.
type blockWriter struct {
	s          *Store
	group, key string
	equal      bool // it takes the place of what is needed as much

	name    string
	file    file
	room    int64 // that is reserved
	at      int64 // bytes written
	begin   int64 // of the records
	buf     []byte
	ends    []byte
	failure error // of the disk, errNoRoom, or spool.ErrFull: more than all of the tier
}

func (w *blockWriter) open() bool {
	s := w.s
	s.mu.Lock()
	if s.held.closed || s.held.phase != owner || s.held.fault.writesRest(s.cfg.now()) {
		s.mu.Unlock()
		return false
	}
	s.held.next++
	w.name = blockName(s.held.next)
	s.mu.Unlock()
	w.buf = appendFileHead(nil, blockMagic, w.group, w.key)
	w.begin = int64(len(w.buf))
	if !w.reserve(roomOf(blockBuffer)) {
		return false
	}
	var err error
	if w.file, err = s.files.open(w.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL); err != nil {
		w.failure = err
		s.failed(writing, w.name, err)
		w.abandon()
		return false
	}
	return true
}

// reserve makes the room at least so large.
func (w *blockWriter) reserve(room int64) bool {
	if room <= w.room {
		return true
	}
	// Once it is begun, what is needed as much may leave for it.
	if !w.s.reserve(room-w.room, class{group: w.group}, w.equal || w.at > 0) {
		w.failure = errNoRoom
		return false
	}
	w.room = room
	return true
}

// Add implements spool.Writer.
func (w *blockWriter) Add(record []byte) error {
	if w.failure != nil {
		return w.failure
	}
	if len(record) > recordMost {
		return fmt.Errorf("a record of %d bytes, at most %d may be", len(record), recordMost)
	}
	w.buf = le.AppendUint64(w.buf, payloadSum(record))
	w.buf = append(w.buf, record...)
	w.ends = le.AppendUint64(w.ends, uint64(w.at+int64(len(w.buf))))
	if len(w.buf) >= blockBuffer {
		return w.flush()
	}
	return nil
}

func (w *blockWriter) flush() error {
	length := w.at + int64(len(w.buf)+len(w.ends)) + trailer
	if w.failure = w.s.tooLarge(length); w.failure != nil || !w.reserve(roomOf(length)) {
		return w.failure
	}
	if err := w.file.writev([][]byte{w.buf}, w.at); err != nil {
		w.failure = err
		w.s.failed(writing, w.name, err)
		return err
	}
	w.at += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// finish writes the table, and makes the block known.
func (w *blockWriter) finish() {
	if w.failure != nil {
		return
	}
	off := w.at + int64(len(w.buf))
	w.buf = append(w.buf, w.ends...)
	w.buf = appendTrailer(w.buf, w.ends, off, int64(len(w.ends)/8))
	w.ends = nil
	if w.flush() != nil {
		return
	}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	room := roomOf(w.at)
	h.used -= w.room - room
	h.clock++
	h.blocks[w.key] = &block{name: w.name, key: w.key, group: h.groupOf(w.group), room: room, used: h.clock,
		stage: finished}
	h.fault.writeWorked()
	_ = w.file.close() // it was written; one that was not is damaged, and made again
	w.file = nil
}

// abandon removes what was written.
func (w *blockWriter) abandon() {
	w.s.unmake(w.name, w.file, w.room)
	w.file, w.room = nil, 0
}

// openBlock returns a reader of a block; nil = it is not there.
func (s *Store) openBlock(key string) spool.Reader {
	s.mu.Lock()
	h := &s.held
	b := h.blocks[key]
	if b == nil || h.fault.readsRest(s.cfg.now()) {
		s.mu.Unlock()
		return nil
	}
	h.clock++
	b.used = h.clock
	b.refs++
	h.idle = slices.DeleteFunc(h.idle, func(x *block) bool { return x == b })
	h.counts.BlockHits++
	s.mu.Unlock()
	if err := s.openFile(b); err != nil {
		s.lost(b, err)
		s.giveBack(b)
		return nil
	}
	return &blockReader{s: s, b: b}
}

// openFile opens the file of a block and reads its table.
func (s *Store) openFile(b *block) error {
	b.opening.Lock()
	defer b.opening.Unlock()
	if b.file != nil {
		return nil
	}
	f, err := s.files.open(b.name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	err = func() error {
		size, err := f.size()
		if err != nil {
			return err
		}
		read := func(p []byte, off int64) error { return f.readv([][]byte{p}, off) }
		group, key, err := parseFileHead(blockMagic, read)
		if err != nil {
			return err
		}
		ends, off, err := readTable(size, 8, read)
		if err != nil {
			return err
		}
		b.begin = fileHeadLen(group, key)
		last := uint64(b.begin)
		for i := 0; i < len(ends); i += 8 {
			end := le.Uint64(ends[i:])
			if end < last+recordHead || end-last > recordHead+recordMost {
				return errTorn
			}
			last = end
		}
		if key != b.key || last != uint64(off) {
			return errTorn
		}
		b.ends = ends
		return nil
	}()
	if err != nil {
		return errors.Join(err, f.close())
	}
	b.file = f
	return nil
}

// lost forgets a block that cannot be read.
func (s *Store) lost(b *block, err error) {
	s.mu.Lock()
	s.held.leave(b)
	if errors.Is(err, errTorn) {
		s.held.counts.Damaged++
	}
	s.mu.Unlock()
	s.failed(reading, b.name, err)
}

// leave takes a block out of the index; its last reader closes it. mu is held.
func (h *state) leave(b *block) {
	if h.blocks[b.key] == b {
		delete(h.blocks, b.key)
	}
	h.idle = slices.DeleteFunc(h.idle, func(x *block) bool { return x == b })
	b.stage = leaving
	if b.refs == 0 {
		_ = b.closeFile()
	}
}

// dropBlock takes a block that nobody reads out of the index; mu is held.
func (h *state) dropBlock(b *block) leaver {
	h.leave(b)
	h.counts.Evictions++
	return leaver{b.name, nil, b.room}
}

func (b *block) closeFile() error {
	f := b.file
	b.file, b.ends = nil, nil
	if f == nil {
		return nil
	}
	return f.close()
}

// giveBack ends a use of a block.
func (s *Store) giveBack(b *block) {
	s.mu.Lock()
	h := &s.held
	b.refs--
	gone := b.refs == 0 && b.stage == leaving
	switch {
	case b.refs > 0:
	case gone || h.closed:
		_ = b.closeFile()
	default:
		h.idle = append(h.idle, b)
		if len(h.idle) > idleBlocks {
			_ = h.idle[0].closeFile()
			h.idle = slices.Delete(h.idle, 0, 1)
		}
	}
	mine := h.phase == owner
	s.mu.Unlock()
	if gone && mine {
		s.removeAll([]leaver{{b.name, nil, b.room}})
	}
}

// blockReader is one use of a block.
type blockReader struct {
	s    *Store
	b    *block
	once sync.Once
}

func (r *blockReader) Len() int { return len(r.b.ends) / 8 }

func (r *blockReader) Record(dst []byte, i int) ([]byte, error) {
	b := r.b
	if err := spool.CheckIndex(i, len(b.ends)/8); err != nil {
		return dst, err
	}
	from, to := b.begin, int64(le.Uint64(b.ends[8*i:]))
	if i > 0 {
		from = int64(le.Uint64(b.ends[8*i-8:]))
	}
	n := int(to - from - recordHead)
	out := slices.Grow(dst, n)[:len(dst)+n]
	x := r.s.heads.Get().(*scratch)
	defer r.s.heads.Put(x)
	x.buf = append(x.buf[:0], make([]byte, recordHead)...)
	x.parts = [2][]byte{x.buf, out[len(dst):]}
	err := b.file.readv(x.parts[:], from)
	x.parts = [2][]byte{}
	if err == nil && le.Uint64(x.buf) != payloadSum(out[len(dst):]) {
		err = errTorn
	}
	if err != nil {
		r.s.lost(b, err)
		return dst, fmt.Errorf("%w: %w", spool.ErrLost, err)
	}
	return out, nil
}

func (r *blockReader) Close() error {
	r.once.Do(func() { r.s.giveBack(r.b) })
	return nil
}

// lookBlock reads the head of a block, and that it has an end.
func (s *Store) lookBlock(f *found) error {
	o, err := s.files.open(f.name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = o.close() }() // nothing was written
	if f.size, err = o.size(); err != nil {
		return err
	}
	read := func(p []byte, off int64) error { return o.readv([][]byte{p}, off) }
	if f.group, f.key, err = parseFileHead(blockMagic, read); err != nil {
		return err
	}
	var b [trailer]byte
	if f.size < trailer {
		return errTorn
	}
	if err := read(b[:], f.size-trailer); err != nil {
		return err
	}
	if le.Uint64(b[:]) != trailerMagic || headSum(b[:32], nil) != le.Uint64(b[32:]) {
		return errTorn
	}
	return nil
}
