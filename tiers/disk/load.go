package disk

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"larder/internal/invariant"
)

// loaders is how many files are looked at at once.
const loaders = 16

// found is a file of the directory, and what is in it.
type found struct {
	id      uint32
	isBlock bool
	name    string
	file    file   // of a segment
	group   string // and of a block
	key     string // of a block; spareMark of a segment that no job needs
	len     int64  // of a segment, without its index
	size    int64  // of the file
	taken   int64  // bytes, as the directory says: what counts where the file cannot be looked at
	entries []entry
	err     error
}

type entry struct {
	hash      uint64
	off, size uint32
}

// load adds what the directory has and the Store does not know, and as a guest forgets what is not there any more. Who
// holds the lock repairs what was cut off, and removes what is none; nothing may be written meanwhile.
func (s *Store) load(repair bool) {
	list, err := s.files.list()
	if err != nil {
		s.failed(reading, "", err)
		return
	}
	fresh := s.compare(list)
	var wg sync.WaitGroup
	work := make(chan *found)
	for range min(loaders, len(fresh)) {
		wg.Go(func() {
			for f := range work {
				if f.isBlock {
					f.err = s.lookBlock(f)
				} else {
					f.err = s.lookSegment(f, repair)
				}
			}
		})
	}
	for _, f := range fresh {
		work <- f
	}
	close(work)
	wg.Wait()
	for _, f := range fresh {
		if f.err == nil {
			continue
		}
		if f.file != nil {
			_ = f.file.close()
		}
		if repair { // without the lock, its owner may be writing it
			s.reject(f)
		}
	}
	s.mu.Lock()
	var twice []leaver
	for _, f := range fresh {
		if f.err == nil && !s.held.add(f) {
			twice = append(twice, leaver{f.name, nil, roomOf(f.size)})
		}
	}
	s.mu.Unlock()
	if repair {
		s.removeAll(twice)
	}
}

// reject removes a file that is torn. One that cannot be looked at now may be whole: it stays, and takes its room.
func (s *Store) reject(f *found) {
	s.mu.Lock()
	s.held.used += roomOf(f.taken)
	s.mu.Unlock()
	if !errors.Is(f.err, errTorn) {
		s.failed(reading, f.name, f.err)
		return
	}
	s.mu.Lock()
	s.held.counts.Damaged++
	s.mu.Unlock()
	s.removeAll([]leaver{{f.name, nil, roomOf(f.taken)}})
}

// compare returns the files that are not known, by their numbers, and forgets those that are gone.
func (s *Store) compare(list []os.DirEntry) (fresh []*found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	known, there := map[string]bool{}, map[string]bool{}
	for _, g := range h.segments { // order-free
		known[g.name] = true
	}
	for _, b := range h.blocks { // order-free
		known[b.name] = true
	}
	foreign, foreignName := 0, ""
	for _, d := range list {
		id, isBlock, ok := ours(d.Name())
		h.next = max(h.next, id) // also of what only has such a name
		if !ok || !d.Type().IsRegular() {
			if d.Name() != lockName {
				foreign, foreignName = foreign+1, cmp.Or(foreignName, d.Name())
			}
			continue
		}
		there[d.Name()] = true
		if !known[d.Name()] {
			f := &found{id: id, isBlock: isBlock, name: d.Name()}
			if in, err := d.Info(); err == nil {
				f.taken = in.Size()
			}
			fresh = append(fresh, f)
		}
	}
	if foreign > 0 && h.counts.Foreign == 0 {
		s.log.Warn("the directory of the disk tier has files that are not of larder; they are left alone, and not counted",
			"dir", s.cfg.Dir, "files", foreign, "one", foreignName)
	}
	h.counts.Foreign, h.counts.ForeignName = foreign, foreignName
	for _, g := range h.segments { // order-free
		if h.phase == guest && !there[g.name] {
			h.used -= g.room
			h.dropSegment(g)
			s.closeLeft(g)
		}
	}
	for _, b := range h.blocks { // order-free
		if h.phase == guest && !there[b.name] {
			h.used -= b.room
			h.leave(b)
		}
	}
	slices.SortFunc(fresh, func(a, b *found) int { return cmp.Compare(a.id, b.id) })
	return fresh
}

// add takes a file into the index, and counts its room; false = a block that is there already.
func (h *state) add(f *found) bool {
	h.clock++
	h.used += roomOf(f.size)
	if f.isBlock {
		if h.blocks[f.key] != nil {
			if h.phase == guest { // its owner removes it
				h.used -= roomOf(f.size)
			}
			return false
		}
		h.blocks[f.key] = &block{name: f.name, key: f.key, group: h.groupOf(f.group), room: roomOf(f.size),
			used: h.clock, stage: finished}
		return true
	}
	g := &segment{id: f.id, name: f.name, group: h.groupOf(f.group), file: f.file, len: f.len, room: roomOf(f.size),
		used: h.clock, stage: finished}
	if f.key == spareMark {
		g.jobs = Spare
	}
	if h.segments[f.id] != nil {
		invariant.Violated("disk: segment %d is added twice", f.id)
	}
	h.segments[f.id] = g
	for _, e := range f.entries {
		h.index[e.hash] = place{f.id, e.off, e.size}
		g.hashes = append(g.hashes, e.hash)
	}
	return true
}

// lookSegment reads what a segment has: its index, or, when it was cut off and repair is asked, its entries.
func (s *Store) lookSegment(f *found, repair bool) (err error) {
	flags := unix.O_RDONLY
	if repair {
		flags = unix.O_RDWR
	}
	if f.file, err = s.files.open(f.name, flags); err != nil {
		return err
	}
	if f.size, err = f.file.size(); err != nil {
		return err
	}
	read := func(p []byte, off int64) error { return f.file.readv([][]byte{p}, off) }
	if f.group, f.key, err = parseFileHead(segmentMagic, read); err != nil {
		return err
	}
	begin := fileHeadLen(f.group, f.key)
	table, end, err := readTable(f.size, indexEntry, read)
	if err == nil && end >= begin {
		f.len = end
		for ; len(table) > 0; table = table[indexEntry:] {
			e := entry{le.Uint64(table), le.Uint32(table[8:]), le.Uint32(table[12:])}
			if int64(e.off) < begin || int64(e.off)+entryHead+int64(e.size) > end {
				return fmt.Errorf("%w: its index names bytes that it has not", errTorn)
			}
			f.entries = append(f.entries, e)
		}
		return nil
	}
	if !repair {
		return errTorn
	}
	if err := f.scan(begin); err != nil {
		return err
	}
	if len(f.entries) == 0 {
		return errTorn
	}
	return f.repair()
}

// scan reads the headers of a segment, up to the first that is none.
func (f *found) scan(at int64) error {
	buf := make([]byte, 1024)
	for at < f.size {
		b := buf[:min(int64(len(buf)), f.size-at)]
		if err := f.file.readv([][]byte{b}, at); err != nil {
			return err
		}
		h, ok := parseHead(b)
		if !ok || at+entryLen(h.key, h.payload) > f.size {
			break
		}
		if int64(len(b)) < entryHead+h.key {
			buf = make([]byte, entryHead+maxKey)
			continue
		}
		key := b[entryHead : entryHead+h.key]
		if !h.valid(b, key) {
			break
		}
		f.entries = append(f.entries, entry{xxhash.Sum64(key), uint32(at), uint32(h.payload)})
		at += entryLen(h.key, h.payload)
	}
	f.len = at
	return nil
}

// repair gives a segment that was cut off its end. A disk that cannot be written leaves it as it was.
func (f *found) repair() error {
	table := make([]byte, 0, indexEntry*len(f.entries))
	for _, e := range f.entries {
		table = le.AppendUint64(table, e.hash)
		table = le.AppendUint32(table, e.off)
		table = le.AppendUint32(table, e.size)
	}
	end := appendTrailer(nil, table, f.len, int64(len(f.entries)))
	err := f.file.truncate(f.len)
	if err == nil {
		err = f.file.writev([][]byte{table, end}, f.len)
	}
	if err == nil {
		f.size = f.len + int64(len(table)+len(end))
	}
	return nil // what is there can be read
}
