package disk

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/spool"
	"larder/internal/spool/spooltest"
)

// rigged is a Store on a directory that fails as fail says, with a clock of its own.
type rigged struct {
	*Store
	dir string
	log *bytes.Buffer
	clock
}

func riggedAt(t *testing.T, size int64, fail func(op, name string) error) *rigged {
	t.Helper()
	x := &rigged{dir: t.TempDir(), log: &bytes.Buffer{}}
	x.Store = openAt(t, Config{Dir: x.dir, Size: size, Log: slog.New(slog.NewTextHandler(x.log, nil)),
		now:   x.now,
		files: &broken{files: realFiles{x.dir}, fail: fail}})
	return x
}

// TestEveryOperationFailsOnce lets the n-th operation fail, for every n: nothing is wrong or held up, and later all is
// well again.
func TestEveryOperationFailsOnce(t *testing.T) {
	for _, errno := range []error{unix.EIO, unix.ENOSPC, unix.EROFS} {
		for n := int64(1); ; n++ {
			var ops atomic.Int64
			x := riggedAt(t, 4<<20, func(op, _ string) error {
				if ops.Add(1) == n {
					return errno
				}
				return nil
			})
			for i := range 40 {
				x.Put(Whom{Group: "a"}, keyOf(i), bytesOf(i))
				if i%20 == 19 {
					x.Flush()
				}
			}
			countHits(t, x.Store, "a", 0, 40)
			for i, want := range spooltest.Records("block", 30) {
				if got := recordOf(t, x.Store, i); string(got) != string(want) {
					t.Fatalf("operation %d failed, and record %d is %q", n, i, got)
				}
			}
			done := ops.Load() < n
			ops.Store(1 << 40) // from now on nothing fails
			x.seconds.Add(3600)
			put(x.Store, "a", 0, 40)
			// A start that could not look at the directory leaves it alone.
			if k := countHits(t, x.Store, "a", 0, 40); k != 40 && x.Stats().State == "" {
				t.Fatalf("operation %d failed with %v: %d of 40 entries are there an hour later: %+v", n, errno, k, x.Stats())
			}
			if said := strings.Count(x.log.String(), "level=WARN"); said > 1 {
				t.Fatalf("operation %d failed, and was said %d times: %s", n, said, x.log)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			if done {
				break
			}
		}
	}
}

// recordOf reads a record as a format does: a block that is lost is asked for again.
func recordOf(t *testing.T, s *Store, i int) []byte {
	t.Helper()
	for range 3 {
		b, err := s.Block(context.Background(), "block", func(_ context.Context, w spool.Writer) error {
			for _, r := range spooltest.Records("block", 30) {
				if err := w.Add(r); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Record(nil, i)
		_ = b.Close()
		if err == nil {
			return r
		}
		if !errors.Is(err, spool.ErrLost) {
			t.Fatal(err)
		}
	}
	t.Fatal("a block is lost again and again")
	return nil
}

// TestFailingWrites: while writes fail, they rest for longer and longer, are said once, and reads go on.
func TestFailingWrites(t *testing.T) {
	var sick atomic.Bool
	var tries atomic.Int64
	x := riggedAt(t, 8<<20, func(op, _ string) error {
		if sick.Load() && op == "write" {
			tries.Add(1)
			return unix.EIO
		}
		return nil
	})
	put(x.Store, "a", 0, 50)
	sick.Store(true)
	for range 600 { // seconds
		x.seconds.Add(1)
		put(x.Store, "a", 100, 103)
		if n := countHits(t, x.Store, "a", 0, 50); n != 50 {
			t.Fatalf("%d of 50 entries can be read", n)
		}
	}
	if n := tries.Load(); n < 2 || n > 10 {
		t.Errorf("a failing disk was tried %d times in ten minutes", n)
	}
	if st := x.Stats(); !strings.Contains(st.State, "not written") || st.Errors == 0 || st.Skipped == 0 {
		t.Errorf("the figures are %+v", st)
	}
	sick.Store(false)
	x.seconds.Add(3600)
	put(x.Store, "a", 100, 103)
	if n := countHits(t, x.Store, "a", 100, 103); n != 3 || x.Stats().State != "" {
		t.Errorf("%d of 3 entries were written when the disk was well again: %q", n, x.Stats().State)
	}
	if n := strings.Count(x.log.String(), "level=WARN"); n != 1 {
		t.Errorf("it was said %d times: %s", n, x.log)
	}
}

// TestFailingReads: what cannot be read is a miss, and after some of them reads rest.
func TestFailingReads(t *testing.T) {
	var sick atomic.Bool
	var tries atomic.Int64
	x := riggedAt(t, 8<<20, func(op, _ string) error {
		if sick.Load() && op == "read" {
			tries.Add(1)
			return unix.EIO
		}
		return nil
	})
	put(x.Store, "a", 0, 100)
	sick.Store(true)
	if n := countHits(t, x.Store, "a", 0, 100); n != 0 || tries.Load() != badReads {
		t.Errorf("%d hits, and the disk was tried %d times", n, tries.Load())
	}
	if st := x.Stats(); !strings.Contains(st.State, "not read") {
		t.Errorf("the figures are %+v", st)
	}
	sick.Store(false)
	x.seconds.Add(3600)
	if n := countHits(t, x.Store, "a", 0, 100); n != 100-badReads {
		t.Errorf("%d entries can be read later", n)
	}
}

// TestFullDisk: a disk that fills up keeps what it has, and takes more when there is room. The writer combines what
// waits for it, so 25 writes hold a number of entries that depends on its pace: one each at least, but for the head of
// the segment, and all ten of a put each at most.
func TestFullDisk(t *testing.T) {
	const writes = 25
	var room atomic.Int64
	room.Store(writes)
	x := riggedAt(t, 64<<20, func(op, name string) error {
		if op == "write" && name != lockName && room.Add(-1) < 0 {
			return unix.ENOSPC
		}
		return nil
	})
	for i := 0; i < 500; i += 10 {
		put(x.Store, "a", i, i+10)
	}
	kept := countHits(t, x.Store, "a", 0, 500)
	if kept < writes-1 || kept > 10*writes || !strings.Contains(x.Stats().State, "full") {
		t.Errorf("%d entries are kept, and the state is %q", kept, x.Stats().State)
	}
	room.Store(1 << 40)
	x.seconds.Add(3600)
	put(x.Store, "a", 0, 500)
	if n := countHits(t, x.Store, "a", 0, 500); n != 500 || x.Stats().State != "" {
		t.Errorf("%d of 500 entries are there when there is room: %q", n, x.Stats().State)
	}
}

// TestRealFullDisk fills a small file system, with a file of another program that comes and goes.
func TestRealFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		if os.Geteuid() == 0 && !errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		t.Skip("only root can mount a file system: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var c clock
	s := openAt(t, Config{Dir: filepath.Join(dir, "tier"), Size: 64 << 20,
		now: c.now})
	for range 3 {
		c.seconds.Add(3600)
		put(s, "a", 0, 4000)
		if n := countHits(t, s, "a", 0, 4000); n < 1000 || n == 4000 {
			t.Errorf("%d of 4,000 entries of 4 KiB are on a disk of 8 MiB", n)
		}
		b, err := s.Block(context.Background(), "block", recordsOf("block"))
		if err != nil {
			t.Fatal(err)
		}
		spooltest.Check(t, b, spooltest.Records("block", 300))
		_ = b.Close()
		if st := s.Stats(); st.Damaged > 0 || st.State == "" {
			t.Errorf("the figures are %+v", st)
		}
	}
}

// TestDirectoryVanishes: a directory that is removed costs speed only.
func TestDirectoryVanishes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tier")
	s := openAt(t, Config{Dir: dir, Size: 2 << 20})
	put(s, "a", 0, 200)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	put(s, "a", 200, 2000)
	countHits(t, s, "a", 0, 2000)
	b, err := s.Block(context.Background(), "block", recordsOf("block"))
	if err != nil {
		t.Fatal(err)
	}
	spooltest.Check(t, b, spooltest.Records("block", 300))
	_ = b.Close()
}
