package disk

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/spool/spooltest"
	"larder/internal/xrand"
)

// TestDamage flips bytes of every kind, cuts files and swaps them: an entry is a miss or what was put, and a block too.
func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		closed bool // the writer has ended, so that the file has an index
		harm   func(r *xrand.Rand, b []byte) []byte
	}{
		{"a flipped bit", true, flip}, {"a flipped bit without an index", false, flip},
		{"a flipped bit of the beginning", true, func(r *xrand.Rand, b []byte) []byte {
			b[r.IntN(min(len(b), 200))] ^= 1 << r.IntN(8)
			return b
		}},
		{"a flipped bit of the end", true, func(r *xrand.Rand, b []byte) []byte {
			b[len(b)-1-r.IntN(min(len(b), 200))] ^= 1 << r.IntN(8)
			return b
		}},
		{"a cut file", true, func(r *xrand.Rand, b []byte) []byte { return b[:r.IntN(len(b))] }},
		{"a cut file without an index", false, func(r *xrand.Rand, b []byte) []byte { return b[:r.IntN(len(b))] }},
		{"pages of zeros", true, func(r *xrand.Rand, b []byte) []byte {
			at := r.IntN(len(b))
			clear(b[at:min(len(b), at+4096)])
			return b
		}},
		{"pages of zeros without an index", false, func(r *xrand.Rand, b []byte) []byte {
			clear(b[r.IntN(len(b)):])
			return b
		}},
		{"a piece twice", true, func(r *xrand.Rand, b []byte) []byte {
			n := r.IntN(len(b) / 2)
			copy(b[r.IntN(len(b)-n):], b[r.IntN(len(b)-n):][:n])
			return b
		}},
		{"more at the end", true, func(_ *xrand.Rand, b []byte) []byte { return append(b, b...) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(6) {
				harmed(t, xrand.New(seed, 4), c.closed, c.harm)
			}
		})
	}
}

func flip(r *xrand.Rand, b []byte) []byte {
	b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	return b
}

// written makes a tier of n entries and a block, and returns the paths of its files.
func written(t *testing.T, dir string, n int, closed bool) []string {
	t.Helper()
	s := openAt(t, Config{Dir: dir, Size: 8 << 20})
	put(s, "a", 0, n)
	b, err := s.Block(context.Background(), "block", recordsOf("block"))
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	if closed {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := filepath.Glob(dir + "/larder-*")
	if err != nil || len(list) < 2 {
		t.Fatal(list, err)
	}
	return list
}

func harmed(t *testing.T, r *xrand.Rand, closed bool, harm func(r *xrand.Rand, b []byte) []byte) {
	from, to := t.TempDir(), t.TempDir()
	list := written(t, from, 60, closed)
	for _, path := range list {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), harm(r, content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // what was repaired is opened once more
		again := openAt(t, Config{Dir: to, Size: 8 << 20})
		countHits(t, again, "a", 0, 60)
		b, err := again.Block(context.Background(), "block", recordsOf("block"))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range spooltest.Records("block", 300) {
			if got, err := b.Record(nil, i); err == nil && string(got) != string(want) {
				t.Fatalf("record %d has other bytes than were added", i)
			}
		}
		_ = b.Close()
		put(again, "a", 0, 60) // what was lost comes back
		if n := countHits(t, again, "a", 0, 60); n != 60 {
			t.Errorf("%d of 60 entries are there after they were put again", n)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChecksumsStayWhatTheyAre: bytes that one build wrote, every other must be able to read. The sums are those of
// xxhash for Python 3.5.0 (xxh3_64).
func TestChecksumsStayWhatTheyAre(t *testing.T) {
	b := make([]byte, 100_000)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for n, want := range map[int]uint64{
		0: 0x2d06800538d394c2, 5: 0x559935c0f3f7327f, 200: 0x7c64f3b17285e96a, 100_000: 0x1271d2740e5fca3,
	} {
		if got := payloadSum(b[:n]); got != want {
			t.Errorf("the checksum of %d bytes is %#x, want %#x", n, got, want)
		}
	}
}

// TestFilesOfAnotherVersion: they are removed by the owner of the directory, and nothing in them is found.
func TestFilesOfAnotherVersion(t *testing.T) {
	dir := t.TempDir()
	list := written(t, dir, 20, true)
	for _, path := range list {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		group, key := int(le.Uint32(content[12:])), int(le.Uint64(content[16:]))
		le.PutUint32(content[8:], fileVersion-1)
		le.PutUint64(content[24:], headSum(content[:24], content[fileHead:fileHead+group+key]))
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again := openAt(t, Config{Dir: dir, Size: 8 << 20})
	if n := countHits(t, again, "a", 0, 20); n != 0 {
		t.Errorf("%d of 20 entries of another version were found", n)
	}
	if left, err := filepath.Glob(dir + "/larder-*"); err != nil || len(left) != 0 {
		t.Errorf("files of another version are still there: %v, %v", left, err)
	}
	put(again, "a", 0, 20)
	if n := countHits(t, again, "a", 0, 20); n != 20 {
		t.Errorf("%d of 20 entries are there after they were put again", n)
	}
}

// FuzzFiles: whatever is in the files, a start ends, and nothing that was not put is found.
func FuzzFiles(f *testing.F) {
	dir := f.TempDir()
	s := openAt(f, Config{Dir: dir, Size: 8 << 20})
	put(s, "a", 0, 5)
	b, err := s.Block(context.Background(), "block", recordsOf("block"))
	if err != nil {
		f.Fatal(err)
	}
	_ = b.Close()
	for _, closed := range []bool{false, true} {
		if closed {
			if err := s.Close(); err != nil {
				f.Fatal(err)
			}
		}
		list, err := filepath.Glob(dir + "/larder-*")
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range list {
			content, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content, strings.HasSuffix(path, blockEnd))
		}
	}
	f.Fuzz(func(t *testing.T, content []byte, isBlock bool) {
		dir, name := t.TempDir(), segmentName(7)
		if isBlock {
			name = blockName(7)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openAt(t, Config{Dir: dir, Size: 8 << 20})
		countHits(t, s, "a", 0, 5)
		b, err := s.Block(context.Background(), "block", recordsOf("block"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			_, _ = b.Record(nil, i) // an error or bytes with their checksum
		}
		_ = b.Close()
	})
}
