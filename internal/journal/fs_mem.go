package journal

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// MemFS is a folder in memory that records what was synced. Crash makes what a power failure could leave: any part of
// the writes, creations, renames and removals that were not synced, in sectors. Fault may fail or shorten a call. For
// tests of what keeps its state through an FS. Safe for concurrent use.
type MemFS struct {
	// Fault, when set, is asked before each change: op is create, write, writeat, sync, truncate, rename, remove,
	// syncdir. An error fails the call; of a write, the first keep bytes are written before it.
	Fault func(op, name string, n int) (keep int, err error)

	mu struct {
		sync.Mutex
		names   map[string]*inode // as seen
		durable map[string]*inode
		pending []dirOp // not synced, oldest first
		locked  bool
		room    int64 // bytes of all files and what is reserved for them; 0 = any
	}
}

type inode struct {
	data     []byte  // as seen
	durable  []byte  // as of the last sync
	pending  []write // since then; a write with no data is a truncation to off
	reserved int64   // bytes that it may have without asking
}

// taken is what the file has of the disk.
func (n *inode) taken() int64 { return max(int64(len(n.data)), n.reserved) }

type write struct {
	off  int64
	data []byte
	cut  bool
}

// dirOp binds or unbinds names.
type dirOp struct {
	bind, unbind string // "" = none
	to           *inode
}

// NewMemFS returns an empty folder.
func NewMemFS() *MemFS {
	m := &MemFS{}
	m.mu.names, m.mu.durable = map[string]*inode{}, map[string]*inode{}
	return m
}

// SetRoom makes the disk of the folder so large, in bytes; 0 = without end.
func (m *MemFS) SetRoom(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.room = bytes
}

// Used is what all files have of the disk, in bytes.
func (m *MemFS) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usedLocked()
}

func (m *MemFS) usedLocked() (all int64) {
	for _, n := range m.mu.names { // order-free: a sum
		all += n.taken()
	}
	return all
}

// growLocked returns how far n may grow towards size.
func (m *MemFS) growLocked(n *inode, size int64) int64 {
	if m.mu.room == 0 || size <= n.taken() {
		return size
	}
	return min(size, max(n.taken(), n.taken()+m.mu.room-m.usedLocked()))
}

func (m *MemFS) fault(op, name string, n int) (int, error) {
	if m.Fault == nil {
		return n, nil
	}
	keep, err := m.Fault(op, name, n)
	return min(keep, n), err
}

// Path is the name itself.
func (m *MemFS) Path(name string) string { return name }

// List returns the names of the files, sorted.
func (m *MemFS) List() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.mu.names)), nil
}

// ReadFile returns a copy of a file.
func (m *MemFS) ReadFile(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.mu.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Clone(n.data), nil
}

// ReadInto copies a file into buf.
func (m *MemFS) ReadInto(name string, buf []byte) ([]byte, error) {
	b, err := m.ReadFile(name)
	return append(buf[:0], b...), err
}

// ReadAt reads a part of a file.
func (m *MemFS) ReadAt(name string, p []byte, off int64) (int, error) {
	b, err := m.ReadFile(name)
	if err != nil || off >= int64(len(b)) {
		return 0, err
	}
	return copy(p, b[off:]), nil
}

// Size is the size of a file.
func (m *MemFS) Size(name string) (int64, error) {
	b, err := m.ReadFile(name)
	return int64(len(b)), err
}

// Create makes or opens a file.
func (m *MemFS) Create(name string, exclusive bool) (File, error) {
	if _, err := m.fault("create", name, 0); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.mu.names[name]
	if n != nil && exclusive {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	if n == nil {
		n = &inode{}
		m.mu.names[name] = n
		m.mu.pending = append(m.mu.pending, dirOp{bind: name, to: n})
	}
	return &memFile{m: m, n: n, name: name}, nil
}

// Rename gives a file another name.
func (m *MemFS) Rename(from, to string) error {
	if _, err := m.fault("rename", from, 0); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.mu.names[from]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	delete(m.mu.names, from)
	m.mu.names[to] = n
	m.mu.pending = append(m.mu.pending, dirOp{bind: to, unbind: from, to: n})
	return nil
}

// Remove removes a file.
func (m *MemFS) Remove(name string) error {
	if _, err := m.fault("remove", name, 0); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	delete(m.mu.names, name)
	m.mu.pending = append(m.mu.pending, dirOp{unbind: name})
	return nil
}

// Sync makes names durable.
func (m *MemFS) Sync() error {
	if _, err := m.fault("syncdir", "", 0); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.durable, m.mu.pending = maps.Clone(m.mu.names), nil
	return nil
}

// Lock takes the folder.
func (m *MemFS) Lock() (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.locked {
		return nil, &LockedError{Holder: "this process"}
	}
	m.mu.locked = true
	return unlock{m}, nil
}

type unlock struct{ m *MemFS }

func (u unlock) Close() error {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	u.m.mu.locked = false
	return nil
}

type memFile struct {
	m    *MemFS
	n    *inode
	name string
	off  int64
}

func (f *memFile) Write(p []byte) (int, error) {
	n, err := f.put("write", p, f.off)
	f.off += int64(n)
	return n, err
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) { return f.put("writeat", p, off) }

func (f *memFile) put(op string, p []byte, off int64) (int, error) {
	keep, err := f.m.fault(op, f.name, len(p))
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if end := off + int64(keep); err == nil && f.m.growLocked(f.n, end) < end {
		keep, err = int(max(f.m.growLocked(f.n, end)-off, 0)), syscall.ENOSPC
	}
	p = slices.Clone(p[:keep])
	if len(p) > 0 {
		f.n.data = apply(f.n.data, write{off: off, data: p})
		f.n.pending = append(f.n.pending, write{off: off, data: p})
	}
	return keep, err
}

func (f *memFile) Reserve(size int64) error {
	if _, err := f.m.fault("reserve", f.name, 0); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.m.growLocked(f.n, size) < size {
		return syscall.ENOSPC
	}
	f.n.reserved = max(f.n.reserved, size)
	return nil
}

func (f *memFile) Truncate(size int64) error {
	if _, err := f.m.fault("truncate", f.name, 0); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	w := write{off: size, cut: true}
	f.n.reserved = 0
	f.n.data = apply(f.n.data, w)
	f.n.pending = append(f.n.pending, w)
	return nil
}

func (f *memFile) Sync() error {
	if _, err := f.m.fault("sync", f.name, 0); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.durable, f.n.pending = slices.Clone(f.n.data), nil
	return nil
}

func (f *memFile) Close() error { return nil }

// apply carries a write out; holes are zero.
func apply(b []byte, w write) []byte {
	end := w.off + int64(len(w.data))
	if end > int64(len(b)) {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	if w.cut {
		return b[:w.off]
	}
	copy(b[w.off:], w.data)
	return b
}

// Crash returns what a power failure now could leave behind. choose(n) is a number below n; it decides what of the
// unsynced is there.
func (m *MemFS) Crash(choose func(n int) int) *MemFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := maps.Clone(m.mu.durable)
	// Most file systems keep the order of names; some of these crashes do, others drop any of them.
	ordered, until := choose(2) == 0, choose(len(m.mu.pending)+1)
	for i, op := range m.mu.pending {
		if ordered && i >= until || !ordered && choose(2) == 0 {
			continue
		}
		if op.unbind != "" && (op.to == nil || names[op.unbind] == op.to) {
			delete(names, op.unbind)
		}
		if op.bind != "" {
			names[op.bind] = op.to
		}
	}
	out := NewMemFS()
	done := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		if done[n] == nil {
			data := n.crash(choose)
			done[n] = &inode{data: data, durable: slices.Clone(data)}
		}
		out.mu.names[name] = done[n]
	}
	out.mu.durable = maps.Clone(out.mu.names)
	return out
}

// crash keeps any sectors of the unsynced writes: none, all, a prefix, or a random half of them.
func (n *inode) crash(choose func(int) int) []byte {
	b := slices.Clone(n.durable)
	mode, until := choose(4), choose(len(n.pending)+1)
	for i, w := range n.pending {
		switch {
		case mode == 0, mode == 1 && i > until:
			continue
		case w.cut:
			if mode == 3 && choose(2) == 0 {
				continue
			}
			b = apply(b, w)
			continue
		}
		for off := w.off; off < w.off+int64(len(w.data)); {
			end := min((off/sector+1)*sector, w.off+int64(len(w.data)))
			part := write{off: off, data: w.data[off-w.off : end-w.off]}
			off = end
			switch {
			case mode == 1 && i == until && choose(3) == 0:
				return b // torn here
			case mode == 3 && choose(2) == 0:
				if choose(2) == 0 { // the size grew, the sector did not come
					if end > int64(len(b)) {
						b = append(b, make([]byte, end-int64(len(b)))...)
					}
				}
				continue
			}
			b = apply(b, part)
		}
	}
	return b
}

// Damage changes the content of a file as if it had always been so; for tests of damaged media.
func (m *MemFS) Damage(name string, change func([]byte) []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.mu.names[name]
	if n == nil {
		return fmt.Errorf("no file %s", name)
	}
	n.data = change(slices.Clone(n.data))
	n.durable, n.pending = slices.Clone(n.data), nil
	return nil
}

// Clone returns an independent copy of the folder as it is seen, all of it durable and unlocked.
func (m *MemFS) Clone() *MemFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := NewMemFS()
	for name, n := range m.mu.names { // order-free: names are distinct
		out.mu.names[name] = &inode{data: slices.Clone(n.data), durable: slices.Clone(n.data)}
	}
	out.mu.durable = maps.Clone(out.mu.names)
	return out
}
