package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
)

var bg = context.Background()

func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOf(rapid.Map(rapid.Uint64(),
			func(x uint64) ident.ObjectID { return ident.ObjectID(uint32(x) >> (x >> 59)) })).Draw(t, "ids")
		b := pack(nil, in)
		if got := unpack(b, len(in)); !reflect.DeepEqual(append([]ident.ObjectID{}, in...), got) {
			t.Fatalf("%v became %v", in, got)
		}
	})
	if n := len(pack(nil, make([]ident.ObjectID, 256))); n != 1 {
		t.Errorf("256 zeros take %d bytes", n)
	}
	all := make([]ident.ObjectID, 256)
	for i := range all {
		all[i] = ident.ObjectID(1_280_000 - 1 - i*4999)
	}
	// 5,000 batches of 256: an epoch of 1.28 million samples.
	if n := (len(pack(nil, all)) + headSize + 16) * 5000; n > 3_600_000 {
		t.Errorf("an epoch takes %d bytes", n)
	}
}

// The log on disk agrees with the one in memory, through segments, snapshots, files of orders and restarts.
func TestDiskTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := NewMemFS()
		o := Options{SegmentBytes: int64(rapid.IntRange(100, 3000).Draw(t, "segment")),
			SnapshotBytes: int64(rapid.IntRange(100, 6000).Draw(t, "snapshot"))}
		twin := OpenMemory(Limits{})
		defer twin.Close()
		s := newStory(rapid.Uint64().Draw(t, "seed"))
		var all []row
		for restart := range rapid.IntRange(1, 5).Draw(t, "restarts") {
			d, err := OpenDisk(fs, o)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close() // rapid may give up in the middle
			if d.Term() != uint64(restart+1) || dump(d.Found()) != dump(fold(all)) {
				t.Fatalf("restart %d: term %d, found\n%s\nwant\n%s", restart, d.Term(), dump(d.Found()), dump(fold(all)))
			}
			for range rapid.IntRange(0, 150).Draw(t, "records") {
				rec := s.record()
				all = append(all, rec)
				if seq := d.Append(rec, nil); seq != uint64(len(all)) || twin.Append(rec, nil) != seq {
					t.Fatalf("record %d has number %d", len(all), seq)
				}
				if rapid.IntRange(0, 40).Draw(t, "sync") == 0 {
					if err := d.Sync(bg); err != nil {
						t.Fatal(err)
					}
				}
			}
			for k := range wantOrders(fold(all)) {
				if got, want := orderOf(t, d, k.job, k.epoch), orderOf(t, twin, k.job,
					k.epoch); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("job %d epoch %d: %v, want %v", k.job, k.epoch, got, want)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if seq := d.Append(row{Kind: kindPaused}, nil); seq != 0 {
				t.Fatalf("Append after Close: %d", seq)
			}
		}
	})
}

// A state survives being written as records.
func TestSnapshotRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		s := newStory(seed)
		var all []row
		for range 400 {
			all = append(all, s.record())
		}
		want := fold(all)
		want.closed = nil // they are in a file of orders before a snapshot is written
		h := header{kind: snapshotFile, id: 9, first: want.Seq, term: 3}
		fs := NewMemFS()
		if err := putFile(fs, snapshotName(want.Seq), encodeSnapshot(h, want)); err != nil {
			t.Fatal(err)
		}
		im := &image{fs: fs}
		got, _, err := im.readSnapshot(snapshotName(want.Seq))
		if err != nil {
			t.Fatal(err)
		}
		if dump(got) != dump(want) || !reflect.DeepEqual(wantOrders(got), wantOrders(want)) || got.Seq != want.Seq {
			t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, dump(got), dump(want))
		}
	}
}

// Callbacks come in order, after their record is durable; many records share a sync.
func TestGroupCommit(t *testing.T) {
	fs := NewMemFS()
	d := open(t, fs, Options{})
	var mu sync.Mutex
	syncs, hold := 0, make(chan struct{})
	fs.Fault = func(op, name string, n int) (int, error) {
		if op == "sync" && strings.HasPrefix(name, "log-") {
			mu.Lock()
			syncs++
			first := syncs == 1
			mu.Unlock()
			if first {
				<-hold
			}
		}
		return n, nil
	}
	var got []uint64
	var wg sync.WaitGroup
	append1 := func() {
		wg.Add(1)
		var seq uint64
		mu.Lock()
		seq = d.Append(row{Kind: kindAssigned, Job: 1, Objects: ids(1, 2, 3)}, func(err error) {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			got = append(got, seq)
		})
		mu.Unlock()
	}
	for range 1000 {
		append1()
	}
	mu.Lock()
	if len(got) != 0 {
		t.Errorf("%d callbacks before the sync returned", len(got))
	}
	mu.Unlock()
	close(hold)
	wg.Wait()
	for i, seq := range got {
		if seq != uint64(i+1) {
			t.Fatalf("callback %d is of record %d", i, seq)
		}
	}
	if syncs > 3 {
		t.Errorf("1000 records took %d syncs", syncs)
	}
	before := syncs
	for range 100 {
		d.Append(row{Kind: kindPaused, Job: 1}, nil)
	}
	if err := d.Sync(t.Context()); err != nil || syncs == before {
		t.Errorf("Sync: %v after %d syncs", err, syncs-before)
	}
}

// A record that no caller waits for is written at once, so that it survives the process. It is synced with later ones.
func TestLazyRecordsAreWritten(t *testing.T) {
	fs := NewMemFS()
	d := open(t, fs, Options{})
	wrote := make(chan struct{}, 16)
	fs.Fault = func(op, name string, n int) (int, error) {
		if op == "sync" {
			t.Error("a record that no caller waits for was synced")
		}
		if op == "write" {
			wrote <- struct{}{}
		}
		return n, nil
	}
	d.Append(row{Kind: kindPaused, Job: 3, Step: 1}, nil)
	<-wrote
	// The next group begins when the first is done.
	d.Append(row{Kind: kindPaused, Job: 3, Step: 2}, nil)
	<-wrote
	im, err := load(fs.Clone(), true)
	if err != nil || im.state.Seq < 1 {
		t.Errorf("after a kill: %v, %d records", err, im.state.Seq)
	}
	fs.Fault = nil
}

// Whatever a power failure leaves of what was not synced: all that was acknowledged is there, nothing else than what
// was appended, in order. LARDER_CRASH_IMAGES sets how many images are opened.
func TestCrashImages(t *testing.T) {
	left := runs(t, "LARDER_CRASH_IMAGES", 1000)
	images, torn := 0, 0
	for seed := uint64(0); left > images; seed++ {
		r := xrand.New(seed, 1)
		n, k := crashHistory(t, seed, r, left-images)
		images += n
		torn += k
	}
	t.Logf("%d crash images, %d with a torn tail", images, torn)
	if images >= 1000 && torn < images/50 {
		t.Errorf("only %d of %d images had a torn tail: the crashes are too kind", torn, images)
	}
}

// crashHistory runs one history and opens images of it, taken before any change and after.
func crashHistory(t *testing.T, seed uint64, r *xrand.Rand, most int) (images, torn int) {
	fs := NewMemFS()
	s := newStory(seed)
	type shot struct {
		fs    *MemFS
		acked uint64
		term  uint64
		after string
	}
	var mu sync.Mutex
	var all []row
	var shots []shot
	var acked, term uint64
	every := 1 + r.IntN(6)
	hooked := xrand.New(seed, 2) // the hook is called from other goroutines
	ops := 0
	fs.Fault = func(op, name string, n int) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		if ops++; ops%every == 0 && len(shots) < most {
			shots = append(shots, shot{fs.Crash(hooked.IntN), acked, term, fmt.Sprintf("before %s %s", op, name)})
		}
		return n, nil
	}
	for range 1 + r.IntN(3) {
		d, err := OpenDisk(fs, small)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		term = d.Term()
		mu.Unlock()
		for range 20 + r.IntN(100) {
			var done func(error)
			seq := uint64(len(all) + 1)
			if r.IntN(3) > 0 {
				done = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
					}
					acked = seq
				}
			}
			rec := s.record()
			mu.Lock()
			all = append(all, rec)
			mu.Unlock()
			d.Append(rec, done)
			if r.IntN(4) == 0 {
				if err := d.Sync(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r.IntN(3) > 0 {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		// Another life begins in a crash image.
		if err := d.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := fs.Crash(r.IntN)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		next.Fault = fs.Fault
		mu.Lock()
		fs = next
		mu.Unlock()
	}
	for i, x := range shots {
		images++
		im, err := load(x.fs, false)
		if err != nil {
			t.Fatalf("history %d image %d (%s): %v", seed, i, x.after, err)
		}
		if im.tail != "" {
			torn++
		}
		d, err := OpenDisk(x.fs, small)
		if err != nil {
			t.Fatalf("history %d image %d (%s): %v", seed, i, x.after, err)
		}
		found := d.Found()
		if found.Seq < x.acked || found.Seq > uint64(len(all)) || d.Term() <= x.term {
			t.Fatalf("history %d image %d (%s): %d records in term %d, of %d acknowledged in term %d", seed, i, x.after,
				found.Seq, d.Term(), x.acked, x.term)
		}
		want := fold(all[:found.Seq])
		if dump(found) != dump(want) {
			t.Fatalf("history %d image %d (%s): found\n%s\nwant\n%s", seed, i, x.after, dump(found), dump(want))
		}
		for k, w := range wantOrders(want) {
			if got := orderOf(t, d, k.job, k.epoch); fmt.Sprint(got) != fmt.Sprint(w) {
				t.Fatalf("history %d image %d (%s): job %d epoch %d is %v, want %v", seed, i, x.after, k.job, k.epoch, got, w)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := load(x.fs, true); err != nil {
			t.Fatalf("history %d image %d (%s): after it was opened: %v", seed, i, x.after, err)
		}
	}
	return images, torn
}

// Every call to the disk fails once: nothing is acknowledged after it, every caller gets the error, and what was
// acknowledged is there at the next open.
func TestEveryCallFails(t *testing.T) {
	kinds := []error{syscall.EIO, syscall.ENOSPC}
	cases := 0
	for n := 0; ; n++ {
		reached := false
		for _, cause := range kinds {
			for _, short := range []bool{false, true} {
				if failNth(t, n, cause, short) {
					reached = true
					cases++
				}
			}
		}
		if !reached {
			break
		}
	}
	t.Logf("%d failures", cases)
	if cases < 400 {
		t.Errorf("only %d calls were failed", cases)
	}
}

func failNth(t *testing.T, n int, cause error, short bool) (reached bool) {
	fs := NewMemFS()
	var mu sync.Mutex
	calls := 0
	var first error
	fs.Fault = func(op, name string, size int) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if calls-1 != n {
			return size, nil
		}
		reached = true
		first = fmt.Errorf("%s %s: %w", op, name, cause)
		if short {
			return size / 2, first
		}
		return 0, first
	}
	s := newStory(4)
	var all []row
	acked, after := uint64(0), 0
	d, err := OpenDisk(fs, small)
	if err == nil {
		for i := range 120 {
			seq := uint64(i + 1)
			rec := s.record()
			all = append(all, rec)
			d.Append(rec, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					after++
					if !errs.Is(err, errs.StateFailed) || !errors.Is(err, cause) {
						t.Errorf("call %d: %v", n, err)
					}
				case after > 0:
					t.Errorf("call %d: record %d was acknowledged after %v", n, seq, first)
				default:
					acked = seq
				}
			})
			if i%3 == 0 {
				_ = d.Sync(t.Context())
			}
		}
		err = d.Close()
	}
	lived := reached && err == nil && errors.Is(cause, syscall.ENOSPC) // there is room again with the next call
	if reached != (err != nil) && !lived {
		t.Fatalf("call %d failed: %v; Close says %v", n, reached, err)
	}
	if !reached {
		return false
	}
	// no caller relies on a file that is being made
	final := reached && strings.HasPrefix(first.Error(), "sync") && !strings.Contains(first.Error(), tmpTail)
	if lived && (final || acked+1 < uint64(len(all)) || after > 0) {
		t.Errorf("call %d: %v was lived through; %d of %d records were acknowledged, %d were not", n, first, acked, len(all),
			after)
	}
	if !lived && (!errs.Is(err, errs.StateFailed) || !errors.Is(err, cause)) {
		t.Errorf("call %d: %v", n, err)
	}
	fs.Fault = nil
	for i, img := range []*MemFS{fs.Clone(), fs.Crash(xrand.New(uint64(n), 5).IntN)} {
		d, err := OpenDisk(img, small)
		if err != nil {
			t.Fatalf("call %d (%v), image %d: %v", n, first, i, err)
		}
		if got := d.Found(); got.Seq < acked || got.Seq > uint64(len(all)) || dump(got) != dump(fold(all[:got.Seq])) {
			t.Fatalf("call %d (%v), image %d: %d records, %d were acknowledged", n, first, i, got.Seq, acked)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

// Orders of epochs that are over go, oldest file first, beyond the retention; what runs always stays.
func TestDiskRetention(t *testing.T) {
	fs := NewMemFS()
	d := open(t, fs, Options{SegmentBytes: 2000, SnapshotBytes: 2000, OrderBytes: 6000})
	for e := range uint32(100) {
		d.Append(row{Kind: kindEpochStarted, Job: 1, Epoch: e}, nil)
		for step := range uint32(10) {
			d.Append(row{Kind: kindAssigned, Job: 1, Epoch: e, Step: step, Objects: ids(1, 2, 3, int(e), 100_000)}, nil)
		}
		d.Append(row{Kind: kindEpochEnded, Job: 1, Epoch: e}, nil)
		if err := d.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for tidying := true; tidying; runtime.Gosched() { // in memory the writer is far faster than on any disk
			d.mu.Lock()
			tidying = d.mu.tidying
			d.mu.Unlock()
		}
	}
	d.Append(row{Kind: kindEpochStarted, Job: 1, Epoch: 100}, nil)
	d.Append(row{Kind: kindAssigned, Job: 1, Epoch: 100, Objects: ids(7)}, nil)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	var total int64
	names, _ := fs.List()
	logs := 0
	for _, name := range names {
		n, _ := fs.Size(name)
		total += n
		if strings.HasPrefix(name, "log-") {
			logs++
		}
	}
	if total > 30_000 || logs > 10 {
		t.Errorf("%d bytes in %d files, %d of them log: %v", total, len(names), logs, names)
	}
	d = open(t, fs, Options{SegmentBytes: 2000, SnapshotBytes: 2000, OrderBytes: 6000})
	kept := 0
	for e := range uint32(101) {
		if n := len(orderOf(t, d, 1, e)); n > 0 {
			kept++
		} else if e > 95 {
			t.Errorf("epoch %d is gone", e)
		}
	}
	if kept < 10 || kept > 80 {
		t.Errorf("%d orders are kept", kept)
	}
}

// One daemon per directory: another process gets an error that names the holder. After a SIGKILL the directory is free
// again.
func TestTwoProcesses(t *testing.T) {
	if path := os.Getenv("LARDER_TEST_HOLD"); path != "" {
		fs, err := OpenDir(path, true)
		if err != nil {
			t.Fatal(err)
		}
		d, err := OpenDisk(fs, Options{})
		if err != nil {
			t.Fatal(err)
		}
		d.Append(row{Kind: kindRegistered, Job: 1, Text: "held"}, func(error) { fmt.Println("held") })
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or the test ends
		return
	}
	path := t.TempDir() + "/state"
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestTwoProcesses$")
	cmd.Env = append(os.Environ(), "LARDER_TEST_HOLD="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	if _, err := out.Read(buf); err != nil || string(buf[:4]) != "held" {
		t.Fatalf("the other process says %q, %v", buf, err)
	}
	fs, err := OpenDir(path, true)
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenDisk(fs, Options{})
	if !errs.Is(err, errs.AlreadyExists) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", cmd.Process.Pid)) {
		t.Errorf("a directory in use: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	d := open(t, fs, Options{})
	if j := d.Found().Job(1); d.Term() != 2 || j == nil || j.Spec != "held" {
		t.Errorf("after a kill: term %d, job %+v", d.Term(), j)
	}
}

func TestOpenDirRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenDir(dir+"/none", false); !errs.Is(err, errs.NotFound) {
		t.Errorf("a missing folder: %v", err)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir+"/file", true); !errs.Is(err, errs.ConfigInvalid) {
		t.Errorf("a file: %v", err)
	}
	if err := os.Mkdir(dir+"/open", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/open", 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir+"/open", true); !errs.Is(err, errs.ConfigInvalid) || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a folder for all users: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Mkdir(dir+"/other", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir+"/other", 12345, 12345); err != nil {
			t.Skip(err)
		}
		if _, err := OpenDir(dir+"/other", true); !errs.Is(err, errs.ConfigInvalid) {
			t.Errorf("another user's folder: %v", err)
		}
	}
}
