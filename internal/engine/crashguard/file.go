package crashguard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
)

// FileName is the name of a [File] in its state directory.
const FileName = "decoding"

const tmpSuffix = ".tmp"

// File says what every worker is preparing, in a file that is mapped into memory. What is written there outlives the
// process at once, however it dies, and costs no system call and no allocation. What it holds at the next start was
// being prepared when the daemon died: a suspect, until it is settled. It also holds stored bytes that crash the
// decoder.
//
// Nothing depends on it: a file that is cut, foreign or of another version is ignored, with a note. A nil *File notes
// nothing. Its methods are safe for concurrent use; a [Line] belongs to one goroutine.
type File struct {
	mem     []byte
	workers int         // lines before the entries
	lost    atomic.Bool // the file has gone from under the mapping
	onLoss  func(error) // called once, with what the mapping said

	mu struct {
		sync.Mutex
		entries [maxEntries]entry
		next    int // the entry that is replaced when there are too many
	}
}

// Piece is one piece of work: enough to do it again.
type Piece struct {
	Job      ident.JobID
	Sample   ident.SampleID // in the job's dataset, where its id outlives the daemon
	Instance uint32
	Seed     uint64 // of its random parameters
}

// Crasher is stored bytes that crash the decoder.
type Crasher struct {
	Bytes int64
	Hash  [16]byte // the first 16 bytes of their SHA-256
	Build uint64   // of the larder that crashed
	How   string   // at most 8 bytes: "SIGSEGV"
}

// Open makes the file of a state directory ready for so many workers. id is that of the log: a file that was copied
// from another directory is ignored. What an earlier daemon left is in Suspects and Crashers. onLoss is called, once,
// when the file goes from under the mapping; it may be nil. Where the file cannot be made there is no File, and a
// note says why.
func Open(dir string, id uint64, workers int, onLoss func(error)) (d *File, notes []string) {
	path := filepath.Join(dir, FileName)
	var pieces []Piece
	var crashers []Crasher
	b, err := readFile(path)
	if err == nil {
		var broken int
		pieces, crashers, broken, err = parseFile(b, id)
		if broken > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d lines cannot be read and are left out", path, broken))
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		notes = append(notes, fmt.Sprintf("%s is left aside: %v", path, err))
	}
	d = &File{workers: min(max(workers, 0), maxLines), onLoss: onLoss}
	for _, p := range pieces[max(0, len(pieces)-maxEntries):] {
		d.mu.entries[d.mu.next] = entry{kind: linePiece, piece: p}
		d.mu.next++
	}
	for _, c := range crashers[max(0, len(crashers)-(maxEntries-d.mu.next)):] {
		d.mu.entries[d.mu.next] = entry{kind: lineCrasher, crasher: c}
		d.mu.next++
	}
	d.mu.next %= maxEntries
	if err := d.make(path, id); err != nil {
		return nil, append(notes, fmt.Sprintf(
			"%s cannot be made: an image that crashes the decoder will not be known after it: %v", path, err))
	}
	return d, notes
}

// readFile reads no more of a file than a File can have.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is no file"))
	}
	return io.ReadAll(io.LimitReader(f, lineBytes*(1+maxLines+maxEntries)))
}

// make writes a new file, with all its blocks, in the place of the old one, and maps it.
func (d *File) make(path string, id uint64) (err error) {
	b := newHeader(id, d.workers)
	b = append(b, make([]byte, lineBytes*(d.workers+maxEntries))...)
	for i := range d.mu.entries {
		d.mu.entries[i].put(b[lineBytes*(1+d.workers+i):])
	}
	f, err := os.OpenFile(path+tmpSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close() // the mapping stays
		if err != nil {
			_ = os.Remove(path + tmpSuffix)
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if d.mem, err = unix.Mmap(int(f.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if err = os.Rename(path+tmpSuffix, path); err != nil {
		_ = unix.Munmap(d.mem)
	}
	return err
}

// Line is the line of one worker. It belongs to one goroutine. A nil *Line notes nothing.
type Line struct {
	d *File
	b []byte
}

// Line returns the line of worker i, from 0; nil when the file has none for it.
func (d *File) Line(i int) *Line {
	if d == nil || i < 0 || i >= d.workers {
		return nil
	}
	at := lineBytes * (1 + i)
	return &Line{d, d.mem[at : at+lineBytes : at+lineBytes]}
}

// Set notes what the worker begins.
func (l *Line) Set(p Piece) {
	if l == nil || l.d.lost.Load() {
		return
	}
	defer l.d.guard(debug.SetPanicOnFault(true))
	putPiece(l.b, p)
	setKind(l.b, linePiece)
}

// Clear notes that the worker is done.
func (l *Line) Clear() {
	if l == nil || l.d.lost.Load() {
		return
	}
	defer l.d.guard(debug.SetPanicOnFault(true))
	setKind(l.b, lineFree)
}

// guard keeps a file that was cut under the mapping, or whose disk has no room for what a copy-on-write file system
// wants, from killing the daemon: from then on nothing is noted.
func (d *File) guard(old bool) {
	debug.SetPanicOnFault(old)
	r := recover()
	if r == nil {
		return
	}
	err, ok := r.(error)
	if !ok {
		panic(r)
	}
	if !d.lost.Swap(true) && d.onLoss != nil {
		d.onLoss(err)
	}
}

// Suspects returns what earlier daemons were preparing when they died and what is not settled since.
func (d *File) Suspects() (out []Piece) {
	d.each(func(e *entry) {
		if e.kind == linePiece {
			out = append(out, e.piece)
		}
	})
	return out
}

// Crashers returns the stored bytes that are known to crash the decoder.
func (d *File) Crashers() (out []Crasher) {
	d.each(func(e *entry) {
		if e.kind == lineCrasher {
			out = append(out, e.crasher)
		}
	})
	return out
}

func (d *File) each(f func(*entry)) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.mu.entries {
		f(&d.mu.entries[i])
	}
}

// Settle ends the suspicion of a piece.
func (d *File) Settle(p Piece) {
	d.drop(func(e *entry) bool { return e.kind == linePiece && e.piece == p })
}

// Acquit forgets a crasher, whatever build crashed.
func (d *File) Acquit(c Crasher) {
	d.drop(func(e *entry) bool { return e.same(c) })
}

func (e *entry) same(c Crasher) bool {
	return e.kind == lineCrasher && e.crasher.Hash == c.Hash && e.crasher.Bytes == c.Bytes
}

// Condemn notes a crasher and replaces what was known of the same bytes. When there are too many, the oldest is
// dropped.
func (d *File) Condemn(c Crasher) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.IndexFunc(d.mu.entries[:], func(e entry) bool { return e.same(c) })
	if at < 0 {
		at = slices.IndexFunc(d.mu.entries[:], func(e entry) bool { return e.kind == lineFree })
	}
	if at < 0 {
		at, d.mu.next = d.mu.next, (d.mu.next+1)%maxEntries
	}
	d.mu.entries[at] = entry{kind: lineCrasher, crasher: c}
	d.write(at)
}

func (d *File) drop(which func(*entry) bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.mu.entries {
		if which(&d.mu.entries[i]) {
			d.mu.entries[i] = entry{}
			d.write(i)
		}
	}
}

// write copies an entry to the file; d.mu is held.
func (d *File) write(i int) {
	if d.lost.Load() || d.mem == nil {
		return
	}
	defer d.guard(debug.SetPanicOnFault(true))
	at := lineBytes * (1 + d.workers + i)
	d.mu.entries[i].put(d.mem[at : at+lineBytes])
}

// Close unmaps the file. No Line may be used any more.
func (d *File) Close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mem := d.mem
	if d.mem = nil; mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}
