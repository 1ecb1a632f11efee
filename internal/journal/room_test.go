package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/clock/stepped"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

// acks counts what became durable and what never will.
type acks struct {
	good, bad atomic.Uint64
	changed   chan struct{} // has room for one; nil = no listener
}

func (a *acks) done(err error) {
	if err != nil {
		a.bad.Add(1)
	} else {
		a.good.Add(1)
	}
	a.tell()
}

func (a *acks) tell() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// behind waits until at most so many of all are neither acknowledged nor refused, or the disk is full.
func (a *acks) behind(d *Disk, all uint64, most uint64) {
	for all-a.good.Load()-a.bad.Load() > most && d.Room() == nil {
		<-a.changed
	}
}

// A disk in memory becomes full again and again, at any byte. No caller gets an error, nothing is acknowledged that
// is not there, and with room everything continues; a process that ends while it waits finds at its next start what was
// acknowledged.
func TestFullDisk(t *testing.T) {
	rnd := xrand.New(11)
	for round := range testenv.Count(t, "LARDER_FULL_DISK", 2) * 10 {
		fs := NewMemFS()
		var reports []string
		var mu sync.Mutex
		o, a := small, acks{changed: make(chan struct{}, 1)}
		o.Full = func(err error) {
			defer a.tell()
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, fmt.Sprint(err != nil))
		}
		d, err := OpenDisk(fs, o)
		if err != nil {
			t.Fatal(err)
		}
		s := newStory(uint64(round))
		var all []row
		for range 1 + rnd.IntN(4) {
			fs.SetRoom(fs.Used() + int64(rnd.IntN(3000)))
			for d.Room() == nil {
				rec := s.record()
				all = append(all, rec)
				d.Append(rec, a.done)
				a.behind(d, uint64(len(all)), 8)
			}
			waits := d.Room()
			if !errs.Is(waits, errs.DiskFull) || !errors.Is(waits, syscall.ENOSPC) || !strings.Contains(waits.Error(),
				"more are needed") {
				t.Fatal(waits)
			}
			img := fs.Clone()
			img.SetRoom(0)
			good := a.good.Load() // of those, or a few later ones
			next, err := OpenDisk(img, small)
			if err != nil {
				t.Fatal(err)
			}
			if got := next.Found(); got.Seq < good && good < uint64(len(all)) || dump(got) != dump(fold(all[:got.Seq])) {
				t.Fatalf("round %d: a copy of the folder has %d records, %d were acknowledged", round, got.Seq, good)
			}
			if err := next.Close(); err != nil {
				t.Fatal(err)
			}
			if rnd.IntN(4) == 0 {
				break
			}
			fs.SetRoom(0)
			if err := d.Sync(t.Context()); err != nil || a.good.Load() != uint64(len(all)) || d.Room() != nil {
				t.Fatalf("round %d: with room %d of %d records were acknowledged: %v, %v", round, a.good.Load(), len(all), err,
					d.Room())
			}
		}
		if err := d.Close(); errs.Is(err, errs.StateFailed) != (a.bad.Load() > 0) {
			t.Fatalf("round %d: %d refused, Close says %v", round, a.bad.Load(), err)
		}
		if a.good.Load()+a.bad.Load() != uint64(len(all)) {
			t.Fatalf("round %d: %d acknowledged, %d refused, of %d", round, a.good.Load(), a.bad.Load(), len(all))
		}
		mu.Lock()
		for i, w := range reports {
			if w != fmt.Sprint(i%2 == 0) {
				t.Errorf("round %d: reports %v", round, reports)
				break
			}
		}
		mu.Unlock()
		fs.SetRoom(0)
		next := open(t, fs, small)
		if got := next.Found(); got.Seq < a.good.Load() || dump(got) != dump(fold(all[:got.Seq])) {
			t.Fatalf("round %d: %d records, %d were acknowledged", round, got.Seq, a.good.Load())
		}
	}
}

// A daemon does not start where there is no room to begin, says how much it needs, and what is there stays as it is.
func TestStartOnAFullDisk(t *testing.T) {
	fs := NewMemFS()
	d := open(t, fs, Options{})
	d.Append(row{Kind: kindRegistered, Job: 1, Text: "job"}, nil)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	fs = fs.Clone()
	fs.SetRoom(fs.Used() + 10_000)
	for range 3 {
		_, err := OpenDisk(fs, Options{})
		if !errs.Is(err, errs.StateFailed) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(),
			"1MiB to begin") || !strings.Contains(err.Error(), "make room") {
			t.Fatal(err)
		}
	}
	fs.SetRoom(0)
	if got := open(t, fs, Options{}).Found(); got.Job(1) == nil {
		t.Error("the job is gone")
	}
}

// mounted is a real file system of a size, in memory; for root.
func mounted(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("larder-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		"size="+size+",mode=0700"); err != nil {
		t.Skipf("no file system of a size of its own: only root may mount one here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// ballast fills a file system but for some bytes.
func ballast(t *testing.T, dir string, leave int64) string {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for { // the log grows meanwhile
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		n := int64(st.Bavail)*st.Bsize - leave
		if n <= 0 || unix.Fallocate(int(f.Fd()), 0, 0, n) == nil {
			return name
		}
	}
}

// The same on a real file system of 64 MiB: it is full, there is room, and a process that ended in between finds
// everything.
func TestFullDiskOfTheSystem(t *testing.T) {
	dir := mounted(t, "64m")
	listening := make(chan struct{}, 1)
	o := Options{SegmentBytes: 1 << 20, SnapshotBytes: 3 << 20, OrderBytes: 4 << 20, Retry: time.Millisecond}
	o.Full = func(error) { (&acks{changed: listening}).tell() }
	total := 0
	for round := range testenv.Count(t, "LARDER_FULL_DISK", 2) {
		fs, err := OpenDir(filepath.Join(dir, "state"), true)
		if err != nil {
			t.Fatal(err)
		}
		d, err := OpenDisk(fs, o)
		if err != nil {
			t.Fatal(err)
		}
		if n := int(d.Found().Seq); n < total {
			t.Fatalf("round %d: %d records, %d were acknowledged", round, n, total)
		}
		begun := d.Found().Seq
		rnd := xrand.New(uint64(round))
		a := acks{changed: listening}
		appended := uint64(0)
		write := func() {
			objects := make([]ident.ObjectID, 500)
			for i := range objects {
				objects[i] = ident.ObjectID(rnd.Uint64())
			}
			step := uint32(appended % 300)
			if step == 0 {
				d.Append(row{Kind: kindEpochStarted, Job: 1, Epoch: uint32(begun + appended)}, a.done)
				appended++
			}
			d.Append(row{Kind: kindAssigned, Job: 1, Epoch: uint32(begun + appended - appended%500), Step: step,
				Objects: objects}, a.done)
			appended++
		}
		for _, leave := range []int64{0, 100 << 10, 5 << 20} {
			full := ballast(t, dir, leave)
			for d.Room() == nil {
				write()
				a.behind(d, appended, 200)
			}
			if err := os.Remove(full); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "it continues by itself", func() bool { return d.Room() == nil })
			if err := d.Sync(t.Context()); err != nil || a.good.Load() != appended {
				t.Fatalf("round %d: %d of %d acknowledged: %v", round, a.good.Load(), appended, err)
			}
			for range 1000 { // half of a segment, so that now and then a snapshot is due, for which there is room
				write()
			}
			if err := d.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "the snapshot is written", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return !d.mu.tidying
			})
		}
		total = int(begun + appended)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := Check(fs); err != nil || len(r.Damage) > 0 {
			t.Fatalf("round %d: %v %v", round, r, err)
		}
	}
	t.Logf("nightly: %d cycles, %d records, none lost", testenv.Count(t, "LARDER_FULL_DISK", 2), total)
}

// A full disk is looked at again when its time has come, and not before: meanwhile the log waits, and loses nothing.
func TestAFullDiskIsLookedAtAgain(t *testing.T) {
	clock := stepped.New(time.Unix(1e9, 0))
	fs := NewMemFS()
	a := acks{changed: make(chan struct{}, 1)}
	d, err := OpenDisk(fs, Options{SegmentBytes: 600, SnapshotBytes: 1500, Clock: clock,
		Full: func(error) { a.tell() }})
	if err != nil {
		t.Fatal(err)
	}
	s := newStory(1)
	for range 3 {
		fs.SetRoom(fs.Used())
		n, done := uint64(0), a.good.Load()
		for d.Room() == nil {
			d.Append(s.record(), a.done)
			n++
			a.behind(d, n+done, 8)
		}
		if err := clock.Await(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		fs.SetRoom(0)
		before := a.good.Load()
		clock.Advance(500*time.Millisecond - 1)
		if d.Room() == nil || a.good.Load() != before {
			t.Error("the disk was looked at before its time")
		}
		clock.Advance(1)
		if err := d.Sync(t.Context()); err != nil || d.Room() != nil || a.bad.Load() != 0 {
			t.Errorf("with room: %v, %v, %d refused", err, d.Room(), a.bad.Load())
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
