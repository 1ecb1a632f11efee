package disk

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"larder/internal/spool/spooltest"
	"larder/internal/testenv"
)

// TestSecondDaemon: one fills the directory, another reads what is finished, and goes on when the first has ended.
func TestSecondDaemon(t *testing.T) {
	dir := t.TempDir()
	first := openAt(t, Config{Dir: dir, Size: 16 << 20}) // segments of 64 KiB
	put(first, "a", 0, 500)
	second := openAt(t, Config{Dir: dir, Size: 16 << 20, look: time.Millisecond})
	if st := second.Stats(); !strings.Contains(st.State, "another daemon (process ") {
		t.Errorf("the state is %q", st.State)
	}
	if n := countHits(t, second, "a", 0, 500); n < 450 {
		t.Errorf("%d of 500 entries can be read by another daemon", n)
	}
	before := names(must(os.ReadDir(dir)))
	put(second, "b", 1000, 1100)
	b, err := second.Block(context.Background(), "block", recordsOf("block"))
	if err != nil {
		t.Fatal(err)
	}
	spooltest.Check(t, b, spooltest.Records("block", 300))
	_ = b.Close()
	if after := names(must(os.ReadDir(dir))); len(after) != len(before) {
		t.Errorf("it has written: %v, then %v", before, after)
	}
	put(first, "a", 500, 1000)
	wait(t, "what the first has finished since", func() bool { return countHits(t, second, "a", 500, 1000) > 450 })
	first.Resize(0)
	wait(t, "what left is forgotten", func() bool { return second.Stats().Entries == 0 })
	if used := second.Stats().Used; used != fixedRoom {
		t.Errorf("what left still takes %d bytes of its size", used-fixedRoom)
	}
	first.Resize(16 << 20)
	put(first, "a", 0, 500)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, "the second owns the directory", func() bool { return second.Stats().State == "" })
	put(second, "b", 1000, 1100)
	if n := countHits(t, second, "b", 1000, 1100) + countHits(t, second, "a", 0, 500); n != 600 {
		t.Errorf("%d of 600 entries are there", n)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wait(t *testing.T, what string, until func() bool) {
	t.Helper()
	testenv.Eventually(t, what, until)
}

// TestReadOnly: a directory that cannot be written is read.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 4 << 20})
	put(s, "a", 0, 100)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := openAt(t, Config{Dir: dir, Size: 4 << 20, files: &broken{files: realFiles{dir},
		fail: func(op, name string) error {
			if op == "write" || op == "remove" || op == "truncate" || name == lockName {
				return os.ErrPermission
			}
			return nil
		}}})
	put(again, "a", 100, 200)
	if n := countHits(t, again, "a", 0, 200); n != 100 || !strings.Contains(again.Stats().State, "read-only") {
		t.Errorf("%d of 100 entries are read: %q", n, again.Stats().State)
	}
}
