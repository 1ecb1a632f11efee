package crashguard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/ident"
)

func openFile(t testing.TB, dir string, workers int) (*File, []string) {
	t.Helper()
	d, notes := Open(dir, 7, workers, func(err error) { t.Errorf("lost: %v", err) })
	if d == nil {
		t.Fatal(notes)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, notes
}

func piece(n int) Piece {
	return Piece{Job: ident.JobID(n), Sample: ident.SampleID(n * n), Instance: uint32(n + 1), Seed: uint64(n) << 40}
}

func crasher(n int) Crasher {
	return Crasher{Bytes: int64(n), Hash: [16]byte{1, byte(n), byte(n >> 8)}, Build: 9, How: "SIGSEGV"}
}

// What workers are at when a process dies is what the next one finds, until it is settled, through as many deaths as
// it takes. What they had done is not.
func TestTheFileOutlivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	d, notes := openFile(t, dir, 4)
	if len(notes) != 0 || len(d.Suspects()) != 0 {
		t.Errorf("a new one: %v, %v", notes, d.Suspects())
	}
	for i := range 4 {
		d.Line(i).Set(piece(i))
	}
	d.Line(1).Clear()
	d.Line(2).Set(piece(9))
	d.Line(3).Set(piece(0)) // two of them at one sample
	// It is not closed: that is its death.
	for _, workers := range []int{2, 8, 0} {
		next, notes := openFile(t, dir, workers)
		if want := []Piece{piece(0), piece(9)}; len(notes) != 0 || !slices.Equal(next.Suspects(), want) {
			t.Fatalf("%d workers: %v, %v", workers, notes, next.Suspects())
		}
		if next.Line(workers) != nil || next.Line(-1) != nil {
			t.Error("a slot that no worker has")
		}
	}
	last, _ := openFile(t, dir, 3)
	last.Line(0).Set(piece(5))
	last.Settle(piece(0))
	last.Condemn(crasher(1))
	last.Condemn(Crasher{Bytes: 1, Hash: crasher(1).Hash, Build: 10, How: "SIGABRT"}) // the same, by another build
	last.Condemn(crasher(2))
	last.Acquit(Crasher{Bytes: 2, Hash: crasher(2).Hash})
	end, _ := openFile(t, dir, 3)
	got := end.Suspects()
	if !slices.Equal(got, []Piece{piece(5), piece(9)}) && !slices.Equal(got, []Piece{piece(9), piece(5)}) {
		t.Errorf("suspects are %v", got)
	}
	want := Crasher{Bytes: 1, Hash: crasher(1).Hash, Build: 10, How: "SIGABRT"}
	if got := end.Crashers(); len(got) != 1 || got[0] != want {
		t.Errorf("crashers are %v", got)
	}
}

// There is room for so many; the oldest go first, and suspects before crashers are left out.
func TestTheFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	d, _ := openFile(t, dir, 1)
	for i := range maxEntries + 10 {
		d.Condemn(crasher(i))
	}
	all := d.Crashers()
	if len(all) != maxEntries || slices.Contains(all, crasher(0)) || !slices.Contains(all, crasher(maxEntries+9)) {
		t.Errorf("%d are kept", len(all))
	}
	d.Line(0).Set(piece(3))
	next, _ := openFile(t, dir, 1)
	if len(next.Crashers()) != maxEntries-1 || !slices.Equal(next.Suspects(), []Piece{piece(3)}) {
		t.Errorf("%d crashers, suspects %v", len(next.Crashers()), next.Suspects())
	}
	info, err := os.Stat(filepath.Join(dir, FileName))
	if err != nil || info.Size() != lineBytes*(1+1+maxEntries) || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A start with a damaged file, or with something else in its place, continues without it and says so. The next start
// has a sound file.
func TestAFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	d, _ := openFile(t, dir, 2)
	d.Line(0).Set(piece(1))
	d.Line(1).Set(piece(2))
	d.Condemn(crasher(1))
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int, v ...byte) []byte {
		b := bytes.Clone(sound)
		copy(b[at:], v)
		return b
	}
	for what, c := range map[string]struct {
		b    []byte
		note string
		left []Piece
	}{
		"empty":             {nil, "0 bytes", nil},
		"cut in its header": {sound[:40], "40 bytes", nil},
		"cut in a line":     {sound[:lineBytes+70], "its header says", nil},
		"cut at a line":     {sound[:2*lineBytes], "its header says", nil},
		"longer":            {append(bytes.Clone(sound), 0), "its header says", nil},
		"something else":    {bytes.Repeat([]byte("hello "), 100), "no file of larder", nil},
		"a newer version":   {changed(8, 2), "version 2", nil},
		"another directory": {changed(0, newHeader(8, 2)...), "another state directory", nil},
		"a broken header":   {changed(12, 3), "header is broken", nil},
		"a torn line":       {changed(lineBytes+16, 0xff), "1 lines", []Piece{piece(2)}},
		"a kind unheard of": {changed(lineBytes, 77), "1 lines", []Piece{piece(2)}},
	} {
		if err := os.WriteFile(path, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, notes := openFile(t, dir, 2)
		noted := len(notes) == 1 && strings.Contains(notes[0], c.note) && strings.Contains(notes[0], path)
		if !noted || !slices.Equal(got.Suspects(), c.left) {
			t.Errorf("%s: %v, %v", what, notes, got.Suspects())
		}
		if again, notes := openFile(t, dir, 2); len(notes) != 0 || !slices.Equal(again.Suspects(), c.left) {
			t.Errorf("%s, the start after that: %v, %v", what, notes, again.Suspects())
		}
	}
	if err := errors.Join(os.Remove(path), os.Symlink("/dev/zero", path)); err != nil {
		t.Fatal(err)
	}
	if _, notes := openFile(t, dir, 1); len(notes) != 1 {
		t.Errorf("a link: %v", notes)
	}
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, notes := openFile(t, dir, 1); len(notes) != 1 || !strings.Contains(notes[0], "it is no file") {
		t.Errorf("a pipe: %v", notes)
	}
}

// A folder in which nothing can be made costs the notes, not the start; and without a file everything may be called.
func TestNoFile(t *testing.T) {
	d, notes := Open(filepath.Join(t.TempDir(), "gone"), 1, 2, nil)
	if d != nil || len(notes) != 1 || !strings.Contains(notes[0], "cannot be made") {
		t.Errorf("%v, %v", d, notes)
	}
	d.Line(0).Set(piece(1))
	d.Line(0).Clear()
	d.Condemn(crasher(1))
	d.Acquit(crasher(1))
	d.Settle(piece(1))
	if d.Suspects() != nil || d.Crashers() != nil || d.Close() != nil {
		t.Error("something was kept")
	}
}

// Another process truncates the file while it is mapped. Touching it would kill the process (SIGBUS); instead nothing
// is noted any more, which is said once.
func TestTheFileIsCutUnderItsUsers(t *testing.T) {
	dir := t.TempDir()
	var lost []error
	d, _ := Open(dir, 7, 2, func(err error) { lost = append(lost, err) })
	defer d.Close()
	d.Line(0).Set(piece(1))
	if err := os.Truncate(filepath.Join(dir, FileName), 0); err != nil {
		t.Fatal(err)
	}
	d.Line(0).Clear()
	d.Line(1).Set(piece(2))
	d.Condemn(crasher(3))
	d.Line(1).Clear()
	if len(lost) != 1 {
		t.Errorf("it reported %v", lost)
	}
	if !slices.Equal(d.Crashers(), []Crasher{crasher(3)}) {
		t.Error("this process has forgotten what it knew")
	}
}

// Saying what one is at takes neither memory nor a system call.
func TestALineAllocatesNothing(t *testing.T) {
	d, _ := openFile(t, t.TempDir(), 1)
	s, n := d.Line(0), 0
	if got := testing.AllocsPerRun(1000, func() { n++; s.Set(piece(n)); s.Clear() }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkLine(b *testing.B) {
	d, _ := openFile(b, b.TempDir(), 1)
	s, p := d.Line(0), piece(3)
	b.ReportAllocs()
	for b.Loop() {
		s.Set(p)
		s.Clear()
	}
}

// Any lines behind a good header: what is read of them, written again, reads the same.
func FuzzFile(f *testing.F) {
	var seed []byte
	for i, k := range []entry{{}, {kind: linePiece, piece: piece(3)}, {kind: lineCrasher, crasher: crasher(4)}} {
		seed = append(seed, make([]byte, lineBytes)...)
		k.put(seed[i*lineBytes:])
	}
	f.Add(seed, uint32(0), uint64(7))
	f.Add(seed, uint32(fileVersion), uint64(7))
	f.Add(seed[:70], uint32(0), uint64(8))
	f.Fuzz(func(t *testing.T, lines []byte, other uint32, id uint64) {
		_, _, _, _ = parseFile(lines, id)
		b := append(newHeader(7, 0), lines...)
		binary.LittleEndian.PutUint32(b[12:], uint32(len(lines)/lineBytes)^other)
		binary.LittleEndian.PutUint32(b[16:], 0)
		copy(b[32:], headerSum(b))
		pieces, crashers, broken, err := parseFile(b, id)
		if err != nil {
			if len(pieces)+len(crashers)+broken > 0 {
				t.Fatal("an error, and something was read")
			}
			return
		}
		if broken+len(pieces)+len(crashers) > len(lines)/lineBytes {
			t.Fatalf("%d lines: %d pieces, %d crashers, %d broken", len(lines)/lineBytes, len(pieces), len(crashers), broken)
		}
		again := newHeader(7, len(pieces)+len(crashers))
		binary.LittleEndian.PutUint32(again[16:], 0)
		copy(again[32:], headerSum(again))
		for _, p := range pieces {
			again = append(again, make([]byte, lineBytes)...)
			(&entry{kind: linePiece, piece: p}).put(again[len(again)-lineBytes:])
		}
		for _, c := range crashers {
			again = append(again, make([]byte, lineBytes)...)
			(&entry{kind: lineCrasher, crasher: c}).put(again[len(again)-lineBytes:])
		}
		p, c, broken, err := parseFile(again, id)
		if err != nil || broken != 0 || !slices.Equal(p, pieces) || !slices.Equal(c, crashers) {
			t.Fatal(fmt.Sprint(err, broken, p, pieces, c, crashers))
		}
	})
}
