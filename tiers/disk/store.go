package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/spool"
)

// Config says where a Store is and how large it may be.
type Config struct {
	Dir  string
	Size int64 // bytes on the disk, never more
	// Need says how many live jobs read a group, by a name that SameGroup knows. It is called with locks held, so it must
	// not call the Store. nil = 1.
	Need   func(group string) int
	Log    *slog.Logger
	Queue  int64 // bytes of entries that wait to be written; what comes beyond is left out; 0 = 64 MiB
	Memory int64 // bytes of blocks that the disk does not take; 0 = 64 MiB

	now   func() time.Time // tests only, like what follows
	files files
	look  time.Duration // between two looks of a guest
}

// Store is the tier. Safe for concurrent use.
type Store struct {
	cfg    Config
	files  files
	log    *slog.Logger
	memory *spool.Memory // blocks that the disk does not take
	single spool.Single  // blocks that are being made
	heads  sync.Pool     // of *scratch
	done   sync.WaitGroup
	ending chan struct{}
	evict  sync.Mutex // one makes room at a time; it is taken before mu

	mu   sync.Mutex
	wake sync.Cond // the queue changed, or the store closes
	held state
}

// state is what mu guards.
type state struct {
	phase  phase
	why    string // of a phase that is not owner
	lock   file
	fault  fault
	closed bool
	counts Stats

	size, used int64
	clock      uint64
	next       uint32
	index      map[uint64]place
	segments   map[uint32]*segment
	filling    map[class]*segment
	groups     map[string]*group
	blocks     map[string]*block // by key
	idle       []*block          // that are open without a reader, longest first
	large      map[string]refusal

	queue   []*item
	pending map[uint64]*item // by hash of the key
	queued  int64            // bytes
}

// Whom is for whom bytes are read.
type Whom struct {
	Group string // the dataset
	Jobs  int    // live jobs, of those on the group, that read these bytes in every epoch; 0 = not known: all; or Spare
}

// Spare says that no job needs the bytes: they save a fetch as long as there is room.
const Spare = -1

// class is entries of a group that are needed alike: a segment has those of one class.
type class struct {
	group string // as in files
	jobs  int    // Whom.Jobs
}

// spareMark is the key in the head of a segment of what no job needs: it stays so when another daemon loads it.
const spareMark = "spare"

// mark is the key in the head of a segment of this class.
func (c class) mark() string {
	if c.jobs == Spare {
		return spareMark
	}
	return ""
}

// needOf is how many live jobs need entries of a class: never more than need the group. mu is held.
func (s *Store) needOf(c class) int {
	if c.jobs == Spare {
		return 0
	}
	n := s.cfg.Need(c.group)
	if c.jobs > 0 {
		n = min(n, c.jobs)
	}
	return n
}

// place is where an entry lies.
type place struct{ segment, off, size uint32 }

// group is a dataset.
type group struct {
	name         string
	reads        uint64 // by which a segment becomes stale
	refused      int    // entries that are needed by no more than so many are refused without a look,
	refusedUntil time.Time
}

// segment is a file of entries of one group.
type segment struct {
	id     uint32
	name   string
	group  *group
	file   file
	len    int64   // of its head and entries
	jobs   int     // of the class it is filled with
	seen   float64 // jobs that its entries were read for lately, on average; 0 = not known
	room   int64   // counted against the size
	hashes []uint64
	refs   int    // who reads or writes it
	used   uint64 // the clock at its last use
	found  uint64 // group.reads at the last read that found an entry in it
	stage  stage
}

// stage is what a file is going through. Files only go forward.
type stage uint8

const (
	filling  stage = iota // its writer appends to it
	finished              // it does not change any more
	leaving               // it is in no index, and is being removed
)

// item is an entry that waits to be written.
type item struct {
	hash  uint64
	class class
	key   []byte
	data  []byte
}

type scratch struct {
	buf   []byte
	want  []byte
	parts [2][]byte
}

const fixedRoom = 2 * page // of the directory and the lock

// Open opens the directory, and makes it where it is missing. A directory that cannot be used is no error: the Store
// then holds nothing, and Stats says why. Close it. Errors: CONFIG_INVALID for a size below 0 or no directory.
func Open(cfg Config) (*Store, error) {
	if cfg.Size < 0 || cfg.Dir == "" {
		return nil, errs.New(errs.ConfigInvalid, "tiers.disk", "name a directory, and a size such as 200GiB",
			"the disk tier cannot have %d bytes in %q", cfg.Size, cfg.Dir)
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 64 << 20
	}
	if cfg.Memory <= 0 {
		cfg.Memory = 64 << 20
	}
	if cfg.now == nil {
		cfg.now = time.Now
	}
	if cfg.look <= 0 {
		cfg.look = 2 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Need == nil {
		cfg.Need = func(string) int { return 1 }
	}
	s := &Store{cfg: cfg, files: cfg.files, log: cfg.Log, memory: spool.NewMemory(cfg.Memory),
		ending: make(chan struct{})}
	if s.files == nil {
		s.files = realFiles{cfg.Dir}
	}
	s.wake.L = &s.mu
	s.heads.New = func() any { return new(scratch) }
	s.forget()
	s.held.size, s.held.pending, s.held.large = cfg.Size, map[uint64]*item{}, map[string]refusal{}
	s.begin()
	s.done.Go(s.write)
	return s, nil
}

// forget empties all that is known of the directory.
func (s *Store) forget() {
	h := &s.held
	h.used = fixedRoom
	h.index, h.segments, h.filling = map[uint64]place{}, map[uint32]*segment{}, map[class]*segment{}
	h.groups, h.blocks = map[string]*group{}, map[string]*block{}
}

// groupOf returns what is known of a group; mu is held.
func (h *state) groupOf(name string) *group {
	g := h.groups[name]
	if g == nil {
		g = &group{name: name}
		h.groups[name] = g
	}
	return g
}

// groupName is what a group is called in files: itself, or, where it is long, its beginning and a hash of it.
func groupName(group string) string {
	if len(group) <= maxGroup {
		return group
	}
	h := sha256.Sum256([]byte(group))
	return group[:maxGroup-2*len(h)-1] + "#" + hex.EncodeToString(h[:])
}

// SameGroup reports whether a name that Config.Need gets stands for a group.
func SameGroup(name, group string) bool {
	return name == group || len(group) > maxGroup && name == groupName(group)
}

// Get fills buf, which has the key's size, with the bytes of an entry, and reports whether it could: they are what was
// put.
func (s *Store) Get(whom Whom, k Key, buf []byte) bool {
	if int64(len(buf)) != k.Size {
		return false
	}
	group := groupName(whom.Group)
	x := s.heads.Get().(*scratch)
	defer s.heads.Put(x)
	x.buf = k.append(append(x.buf[:0], make([]byte, entryHead)...))
	key := x.buf[entryHead:]
	hash := xxhash.Sum64(key)

	s.mu.Lock()
	h := &s.held
	h.groupOf(group).reads++
	if p := h.pending[hash]; p != nil && bytes.Equal(p.key, key) {
		h.counts.Hits++
		h.counts.HitBytes += uint64(len(buf))
		s.mu.Unlock()
		copy(buf, p.data)
		return true
	}
	at, ok := h.index[hash]
	seg := h.segments[at.segment]
	if !ok || seg == nil || int64(at.size) != k.Size || h.fault.readsRest(s.cfg.now()) {
		h.counts.Misses++
		s.mu.Unlock()
		return false
	}
	seg.refs++
	s.mu.Unlock()

	x.parts = [2][]byte{x.buf, buf}
	x.want = append(x.want[:0], key...) // the read overwrites it
	err := seg.file.readv(x.parts[:], int64(at.off))
	x.parts = [2][]byte{}
	if err == nil && !matches(x.buf, x.want, buf) {
		err = errTorn
	}
	s.read(seg, hash, at, whom.Jobs, err)
	return err == nil
}

// Has reports whether an entry is there, as far as is known without reading it. It counts as no read.
func (s *Store) Has(k Key) bool {
	x := s.heads.Get().(*scratch)
	defer s.heads.Put(x)
	x.buf = k.append(x.buf[:0])
	hash := xxhash.Sum64(x.buf)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.held.index[hash]; ok {
		return true
	}
	return s.held.pending[hash] != nil
}

// matches reports whether an entry that was read is that of the key, and whole.
func matches(b, key, payload []byte) bool {
	h, ok := parseHead(b)
	return ok && h.key == int64(len(key)) && h.payload == int64(len(payload)) && bytes.Equal(b[entryHead:], key) &&
		h.valid(b, key) && h.sum == payloadSum(payload)
}

// read ends a read of an entry, for so many jobs.
func (s *Store) read(seg *segment, hash uint64, at place, jobs int, err error) {
	s.mu.Lock()
	h := &s.held
	seg.refs--
	s.closeLeft(seg)
	if err == nil {
		h.clock++
		seg.used, seg.found = h.clock, seg.group.reads
		seg.readFor(jobs)
		h.counts.Hits++
		h.counts.HitBytes += uint64(at.size)
		h.fault.readWorked()
		s.mu.Unlock()
		return
	}
	h.counts.Misses++
	if h.index[hash] == at {
		delete(h.index, hash)
	}
	if errors.Is(err, errTorn) {
		h.counts.Damaged++
	}
	s.mu.Unlock()
	s.failed(reading, seg.name, err)
}

// Put offers the bytes of an entry. It copies them, never waits for the disk, and never fails: what there is no room
// for is left out.
func (s *Store) Put(whom Whom, k Key, b []byte) {
	if int64(len(b)) != k.Size || k.Size > maxEntry {
		return
	}
	c := class{groupName(whom.Group), whom.Jobs}
	key := k.append(nil)
	if len(key) > maxKey {
		return
	}
	hash := xxhash.Sum64(key)
	s.mu.Lock()
	h := &s.held
	_, there := h.index[hash]
	switch {
	case h.closed || h.phase != owner || there || h.pending[hash] != nil:
		s.mu.Unlock()
		return
	case h.queued+k.Size > s.cfg.Queue || h.fault.writesRest(s.cfg.now()):
		h.counts.Skipped++
		s.mu.Unlock()
		return
	case s.refuses(c):
		h.counts.Refused++
		s.mu.Unlock()
		return
	}
	h.queued += k.Size
	it := &item{hash: hash, class: c, key: key}
	s.mu.Unlock()
	it.data = bytes.Clone(b) // outside the lock; the room is taken
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.closed || h.pending[hash] != nil {
		h.queued -= k.Size
		return
	}
	h.pending[hash] = it
	h.queue = append(h.queue, it)
	s.wake.Broadcast()
}

// refuses reports whether entries needed as much were refused a moment ago; mu is held.
func (s *Store) refuses(c class) bool {
	g := s.held.groupOf(c.group)
	return s.cfg.now().Before(g.refusedUntil) && s.needOf(c) <= g.refused
}

// Flush waits until what was put has been written or left out.
func (s *Store) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.held.pending) > 0 && !s.held.closed {
		s.wake.Wait()
	}
}

// Resize changes the size. What is beyond it leaves before Resize returns, but for what is being read.
func (s *Store) Resize(bytes int64) {
	s.mu.Lock()
	s.held.size = max(bytes, 0)
	s.mu.Unlock()
	s.shrink()
}

// Close writes what is queued, finishes the segments and ends. Blocks that are open stay readable until they are
// closed; nothing else may be called after it, but for a second Close.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.held.closed {
		s.mu.Unlock()
		return nil
	}
	s.held.closed = true
	close(s.ending)
	s.wake.Broadcast()
	s.mu.Unlock()
	s.done.Wait()
	return s.end()
}
