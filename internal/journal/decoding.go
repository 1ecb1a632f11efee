package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
)

// DecodingName is the file of a state directory that a Decoding is.
const DecodingName = "decoding"

// Decoding says what every worker is at, in a file that is mapped into memory: what is written there outlives the process at once, however it dies, and costs
// no system call and no allocation. What stands in it at the next start was being prepared when the daemon died: a suspect, until it is settled. Beside that it
// knows stored bytes that crash the decoder. It holds nothing that is owed to anybody: a file that is cut, foreign or of another version is left aside,
// with a note. A nil *Decoding is one that notes nothing.
type Decoding struct {
	mem   []byte
	slots int
	lost  atomic.Bool // the file has gone from under the mapping
	tell  func(error)

	mu struct {
		sync.Mutex
		cases [maxCases]kase
		next  int // case that is given up when there are too many
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
	Hash  [16]byte // the beginning of their SHA-256
	Build uint64   // of the larder that crashed
	How   string   // at most 8 bytes: "SIGSEGV"
}

// Bytes of the file. A line is what a processor's cache has: workers do not get in each other's way.
const (
	decodingMagic   = "LARDERDC"
	decodingVersion = 1
	line            = 64
	maxCases        = 512     // suspects and crashers together
	maxSlots        = 1 << 12 // workers
)

// What a line holds: its first eight bytes.
const (
	lineFree    = 0
	linePiece   = 1
	lineCrasher = 2
)

type kase struct {
	kind    uint64
	piece   Piece
	crasher Crasher
}

// OpenDecoding makes the file of a state directory ready for so many workers. id is that of the log: a file that was copied from another directory says nothing
// about this one. What an earlier daemon left in it is in Suspects and Crashers. lost is told, once, when the file goes from under the mapping. Where the
// file cannot be made there is no Decoding, and a note says why.
func OpenDecoding(dir string, id uint64, workers int, lost func(error)) (d *Decoding, notes []string) {
	path := filepath.Join(dir, DecodingName)
	var pieces []Piece
	var crashers []Crasher
	b, err := readDecoding(path)
	if err == nil {
		var broken int
		pieces, crashers, broken, err = parseDecoding(b, id)
		if broken > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d lines cannot be read and are left out", path, broken))
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		notes = append(notes, fmt.Sprintf("%s is left aside: %v", path, err))
	}
	d = &Decoding{slots: min(max(workers, 0), maxSlots), tell: lost}
	for _, p := range pieces[max(0, len(pieces)-maxCases):] {
		d.mu.cases[d.mu.next] = kase{kind: linePiece, piece: p}
		d.mu.next++
	}
	for _, c := range crashers[max(0, len(crashers)-(maxCases-d.mu.next)):] {
		d.mu.cases[d.mu.next] = kase{kind: lineCrasher, crasher: c}
		d.mu.next++
	}
	d.mu.next %= maxCases
	if err := d.make(path, id); err != nil {
		return nil, append(notes, fmt.Sprintf("%s cannot be made: an image that crashes the decoder will not be known after it: %v", path, err))
	}
	return d, notes
}

// readDecoding reads no more of a file than a Decoding can have.
func readDecoding(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is no file"))
	}
	return io.ReadAll(io.LimitReader(f, line*(1+maxSlots+maxCases)))
}

// make writes the file anew, with all its blocks, in the place of the old one, and maps it.
func (d *Decoding) make(path string, id uint64) (err error) {
	b := decodingHeader(id, d.slots)
	b = append(b, make([]byte, line*(d.slots+maxCases))...)
	for i := range d.mu.cases {
		d.mu.cases[i].put(b[line*(1+d.slots+i):])
	}
	f, err := os.OpenFile(path+tmpTail, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close() // the mapping stays
		if err != nil {
			_ = os.Remove(path + tmpTail)
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if d.mem, err = unix.Mmap(int(f.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if err = os.Rename(path+tmpTail, path); err != nil {
		_ = unix.Munmap(d.mem)
	}
	return err
}

func decodingHeader(id uint64, slots int) []byte {
	b := make([]byte, line)
	copy(b, decodingMagic)
	binary.LittleEndian.PutUint32(b[8:], decodingVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(slots))
	binary.LittleEndian.PutUint32(b[16:], maxCases)
	binary.LittleEndian.PutUint64(b[24:], id)
	copy(b[32:], decodingHeaderSum(b))
	return b
}

func decodingHeaderSum(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b[:32], castagnoli))
}

// parseDecoding reads a file: what was in work and is still suspect, each once, and what crashes. broken counts lines that hold something else.
func parseDecoding(b []byte, id uint64) (pieces []Piece, crashers []Crasher, broken int, err error) {
	if len(b) < line {
		return nil, nil, 0, fmt.Errorf("it has %d bytes", len(b))
	}
	if string(b[:8]) != decodingMagic {
		return nil, nil, 0, errors.New("it is no file of larder")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != decodingVersion {
		return nil, nil, 0, fmt.Errorf("it has version %d, and this larder knows %d", v, decodingVersion)
	}
	if crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return nil, nil, 0, errors.New("its header is broken")
	}
	if binary.LittleEndian.Uint64(b[24:]) != id {
		return nil, nil, 0, errors.New("it is of another state directory")
	}
	lines := uint64(binary.LittleEndian.Uint32(b[12:])) + uint64(binary.LittleEndian.Uint32(b[16:]))
	if have := uint64(len(b)/line - 1); have != lines || len(b)%line != 0 {
		return nil, nil, 0, fmt.Errorf("it has %d bytes, and its header says %d", len(b), (1+lines)*line)
	}
	known := map[Piece]bool{}
	for at := line; at < len(b); at += line {
		k, ok := readLine(b[at : at+line])
		switch {
		case !ok:
			broken++
		case k.kind == linePiece && !known[k.piece]:
			known[k.piece] = true
			pieces = append(pieces, k.piece)
		case k.kind == lineCrasher:
			crashers = append(crashers, k.crasher)
		}
	}
	return pieces, crashers, broken, nil
}

// sum tells a line from other bytes.
func sum(words ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, w := range words {
		h = (h ^ w) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return h
}

func (p Piece) words() (a, b, c, check uint64) {
	a, b, c = uint64(p.Job)<<32|uint64(p.Sample), uint64(p.Instance), p.Seed
	return a, b, c, sum(linePiece, a, b, c)
}

// putPiece writes all of a line but its kind.
func putPiece(b []byte, p Piece) {
	x, y, z, check := p.words()
	binary.LittleEndian.PutUint64(b[8:], x)
	binary.LittleEndian.PutUint64(b[16:], y)
	binary.LittleEndian.PutUint64(b[24:], z)
	binary.LittleEndian.PutUint64(b[32:], check)
}

// put writes a line. Its kind comes last: a process that dies in between leaves a free one, or one whose sum does not fit.
func (k *kase) put(b []byte) {
	setKind(b, lineFree)
	switch k.kind {
	case linePiece:
		putPiece(b, k.piece)
	case lineCrasher:
		binary.LittleEndian.PutUint64(b[8:], uint64(k.crasher.Bytes))
		copy(b[16:32], k.crasher.Hash[:])
		binary.LittleEndian.PutUint64(b[32:], k.crasher.Build)
		clear(b[40:48])
		copy(b[40:48], k.crasher.How)
		binary.LittleEndian.PutUint64(b[48:], crasherSum(b))
	}
	setKind(b, k.kind)
}

func crasherSum(b []byte) uint64 {
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	return sum(lineCrasher, w(8), w(16), w(24), w(32), w(40))
}

func setKind(b []byte, kind uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[0])), kind)
}

// readLine is the reverse of put; false when the line holds nothing that put writes.
func readLine(b []byte) (k kase, ok bool) {
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	switch k.kind = w(0); k.kind {
	case lineFree:
		return k, true
	case linePiece:
		k.piece = Piece{Job: ident.JobID(w(8) >> 32), Sample: ident.SampleID(w(8)), Instance: uint32(w(16)), Seed: w(24)}
		x, y, z, check := k.piece.words()
		return k, x == w(8) && y == w(16) && z == w(24) && check == w(32)
	case lineCrasher:
		k.crasher = Crasher{Bytes: int64(w(8)), Hash: [16]byte(b[16:32]), Build: w(32)}
		how := b[40:48]
		for len(how) > 0 && how[len(how)-1] == 0 {
			how = how[:len(how)-1]
		}
		k.crasher.How = string(how)
		return k, crasherSum(b) == w(48)
	}
	return k, false
}

// Slot is the line of one worker. It belongs to one goroutine. A nil *Slot notes nothing.
type Slot struct {
	d *Decoding
	b []byte
}

// Slot returns that of worker i, from 0.
func (d *Decoding) Slot(i int) *Slot {
	if d == nil || i < 0 || i >= d.slots {
		return nil
	}
	at := line * (1 + i)
	return &Slot{d, d.mem[at : at+line : at+line]}
}

// Set says what the worker begins.
func (s *Slot) Set(p Piece) {
	if s == nil || s.d.lost.Load() {
		return
	}
	defer s.d.guard(debug.SetPanicOnFault(true))
	putPiece(s.b, p)
	setKind(s.b, linePiece)
}

// Clear says that it has done it.
func (s *Slot) Clear() {
	if s == nil || s.d.lost.Load() {
		return
	}
	defer s.d.guard(debug.SetPanicOnFault(true))
	setKind(s.b, lineFree)
}

// guard keeps a file that was cut under the mapping, or whose disk has no room for what a copy-on-write file system wants, from killing the daemon: nothing is noted
// any more.
func (d *Decoding) guard(old bool) {
	debug.SetPanicOnFault(old)
	r := recover()
	if r == nil {
		return
	}
	err, ok := r.(error)
	if !ok {
		panic(r)
	}
	if !d.lost.Swap(true) && d.tell != nil {
		d.tell(err)
	}
}

// Suspects returns what earlier daemons were at when they died, and what is not settled since.
func (d *Decoding) Suspects() (out []Piece) {
	d.each(func(k *kase) {
		if k.kind == linePiece {
			out = append(out, k.piece)
		}
	})
	return out
}

// Crashers returns what is known to crash.
func (d *Decoding) Crashers() (out []Crasher) {
	d.each(func(k *kase) {
		if k.kind == lineCrasher {
			out = append(out, k.crasher)
		}
	})
	return out
}

func (d *Decoding) each(f func(*kase)) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.mu.cases {
		f(&d.mu.cases[i])
	}
}

// Settle ends the suspicion of a piece.
func (d *Decoding) Settle(p Piece) {
	d.drop(func(k *kase) bool { return k.kind == linePiece && k.piece == p })
}

// Acquit forgets a crasher, of whatever build.
func (d *Decoding) Acquit(c Crasher) {
	d.drop(func(k *kase) bool { return k.same(c) })
}

func (k *kase) same(c Crasher) bool {
	return k.kind == lineCrasher && k.crasher.Hash == c.Hash && k.crasher.Bytes == c.Bytes
}

// Condemn notes a crasher, in the place of what was known of the same bytes. When there are too many the oldest is given up.
func (d *Decoding) Condemn(c Crasher) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.IndexFunc(d.mu.cases[:], func(k kase) bool { return k.same(c) })
	if at < 0 {
		at = slices.IndexFunc(d.mu.cases[:], func(k kase) bool { return k.kind == lineFree })
	}
	if at < 0 {
		at, d.mu.next = d.mu.next, (d.mu.next+1)%maxCases
	}
	d.mu.cases[at] = kase{kind: lineCrasher, crasher: c}
	d.write(at)
}

func (d *Decoding) drop(which func(*kase) bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.mu.cases {
		if which(&d.mu.cases[i]) {
			d.mu.cases[i] = kase{}
			d.write(i)
		}
	}
}

// write brings a case to the file; d.mu is held.
func (d *Decoding) write(i int) {
	if d.lost.Load() || d.mem == nil {
		return
	}
	defer d.guard(debug.SetPanicOnFault(true))
	at := line * (1 + d.slots + i)
	d.mu.cases[i].put(d.mem[at : at+line])
}

// Close unmaps the file. Nobody may hold a Slot any more.
func (d *Decoding) Close() error {
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
