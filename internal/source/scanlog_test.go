package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/testenv/lane"
)

// logOf is the only scan log in a folder of indexes; "" = there is none.
func logOf(t testing.TB, index string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(index, "*"+logSuffix))
	must(t, err)
	if len(all) > 1 {
		t.Fatalf("scan logs %q", all)
	}
	return strings.Join(all, "")
}

// shards are n tars of two samples each.
func shards(t testing.TB, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = shard(t, fmt.Sprintf("%d-a=%d", i, i%3), fmt.Sprintf("x/%d ü=w%d", i, i%5))
	}
	return out
}

// TestDamagedFilesAreNamedTogether: a scan that meets damaged files names all of them, and the next one reads only what
// was not scanned yet.
func TestDamagedFilesAreNamedTogether(t *testing.T) {
	const n = 40
	b, index, good := newBucket(t), t.TempDir(), shards(t, n)
	key := func(i int) string { return fmt.Sprintf("s/%02d.tar", i) }
	bad := []int{7, 21, 39}
	for i, s := range good {
		if slices.Contains(bad, i) {
			s = s[:1024] + strings.Repeat("x", 512) + s[1536:] // the header of the second member
		}
		b.put(t, key(i), s)
	}
	const uri = "wds:s3://data/s"
	_, err := b.open(t, index).Add(t.Context(), "", uri)
	if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "3 of 40 files cannot be scanned") ||
		strings.Count(err.Error(), "after byte 512, behind sample \"") != 3 {
		t.Fatalf("%v", err)
	}
	for _, i := range bad {
		if !strings.Contains(err.Error(), "s3://data/"+key(i)+": ") {
			t.Errorf("%s is not named: %v", key(i), err)
		}
		b.put(t, key(i), good[i])
	}
	reads := b.reads.Load()
	c := b.open(t, index)
	p := NewProgress(nil)
	d, err := c.Add(WithProgress(t.Context(), p), "", uri)
	must(t, err)
	// The three, and the first one for the fields of samples: other files may have others.
	if r := b.reads.Load() - reads; r != 3+1 {
		t.Errorf("the next scan took %d reads", r)
	}
	now := p.Now()
	if now.KeptFiles != n-3 || now.Files != n || now.AllFiles != n || now.Bytes != now.AllBytes || now.Samples != 2*n {
		t.Errorf("progress %+v", now)
	}
	if log := logOf(t, index); log != "" {
		t.Errorf("%s is left", log)
	}
	fresh, err := b.open(t, "").Add(t.Context(), "", uri)
	must(t, err)
	if got, want := listing(t, c, d), listing(t, fresh.cat, fresh); !slices.Equal(got, want) ||
		d.Fingerprint() != fresh.Fingerprint() || !slices.Equal(d.Notes(), fresh.Notes()) {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestManyDamagedFilesAreCounted: an error has an end.
func TestManyDamagedFilesAreCounted(t *testing.T) {
	root := t.TempDir()
	for i, s := range shards(t, 30) {
		if i != 12 { // the first ones, too, which say what the samples are
			s = strings.Repeat("y", len(s))
		}
		write(t, root, fmt.Sprintf("%02d.tar", i), s)
	}
	c, _ := open(t, t.TempDir())
	_, err := c.Add(t.Context(), "", "wds:"+root)
	if !errs.Is(err, errs.DatasetUnread) {
		t.Fatalf("%v", err)
	}
	// Fields are looked for in 10 files, and none of these says them.
	if !strings.Contains(err.Error(), "00.tar") || strings.Count(err.Error(), ".tar") > 2*maxProblems {
		t.Errorf("%v", err)
	}
	write(t, root, "03.tar", shards(t, 1)[0])
	_, err = c.Add(t.Context(), "", "wds:"+root)
	if err == nil || !strings.Contains(err.Error(), "28 of 30 files cannot be scanned") ||
		!strings.Contains(err.Error(), "00.tar: ") || !strings.Contains(err.Error(), "and 18 more") ||
		strings.Count(err.Error(), ".tar: ") != maxProblems {
		t.Errorf("%v", err)
	}
}

// TestStoppedScanGoesOn: a scan that is cancelled while it reads some files keeps the others, and ends at once.
func TestStoppedScanGoesOn(t *testing.T) {
	const n, open = 60, 20
	b, index := newBucket(t), t.TempDir()
	for i, s := range shards(t, n) {
		b.put(t, fmt.Sprintf("%02d.tar", i), s)
	}
	const uri = "wds:s3://data/{00..59}.tar"
	ctx, cancel := context.WithCancelCause(t.Context())
	p := NewProgress(nil)
	// The last 20 are not answered until all others are scanned; then the scan is cancelled.
	p.report = func() {
		if p.Now().Files == n-open {
			cancel(errors.New("enough"))
		}
	}
	hold := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := filepath.Base(r.URL.Path)
		if name >= fmt.Sprintf("%02d.tar", n-open) && r.Method == http.MethodGet {
			<-ctx.Done()
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b.next.ServeHTTP(w, r)
	})
	b.before.Store(&hold)
	if _, err := b.open(t, index).Add(WithProgress(ctx, p), "", uri); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	// Requests of the scan that was cancelled may arrive late, and be counted here, too: what counts is of which files.
	var mu sync.Mutex
	again := map[string]bool{}
	count := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		again[filepath.Base(r.URL.Path)] = true
		mu.Unlock()
		b.next.ServeHTTP(w, r)
	})
	b.before.Store(&count)
	c := b.open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	if d.LiveCount() != 2*n || len(again) != open || !again["40.tar"] || !again["59.tar"] {
		t.Errorf("%d samples; the next scan read %v", d.LiveCount(), again)
	}
}

// failed leaves the scan log of a folder of tars, the last of which is damaged, and mends that.
func failed(t *testing.T, index string, n int) (uri string) {
	t.Helper()
	root, good := t.TempDir(), shards(t, n)
	for i, s := range good {
		write(t, root, fmt.Sprintf("%02d.tar", i), s)
	}
	last := fmt.Sprintf("%02d.tar", n-1)
	write(t, root, last, "no tar"+good[n-1][6:])
	c, _ := open(t, index)
	if _, err := c.Add(t.Context(), "", "wds:"+root); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), last) {
		t.Fatalf("%v", err)
	}
	write(t, root, last, good[n-1])
	return "wds:" + root
}

// TestTornScanLogIsScannedAgain: whatever is cut off a scan log, or flipped in it, the index is what it is without.
func TestTornScanLogIsScannedAgain(t *testing.T) {
	const n = 5
	index := t.TempDir()
	uri := failed(t, index, n)
	path := logOf(t, index)
	whole, err := os.ReadFile(path)
	must(t, err)
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	want := listing(t, c, d)
	kept := map[int64]int{}
	try := func(name string, b []byte) {
		must(t, os.WriteFile(path, b, 0o600))
		c, e := open(t, index)
		p := NewProgress(nil)
		d, err := c.Add(WithProgress(t.Context(), p), "", uri)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := listing(t, c, d); !slices.Equal(got, want) {
			t.Fatalf("%s: %q", name, got)
		}
		if e.count("scan log") > 0 || logOf(t, index) != "" {
			t.Fatalf("%s: %v", name, e.n)
		}
		kept[p.Now().KeptFiles]++
		if _, _, err := c.Remove(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	try("whole", whole)
	if kept[n-1] != 1 {
		t.Fatalf("of a whole log were kept %v", kept)
	}
	for i := 0; i < len(whole); i += lane.Times(11, 5) {
		try(fmt.Sprint("cut at ", i), whole[:i])
	}
	if kept[0] == 0 || kept[1] == 0 || kept[n-2] == 0 || kept[n-1] != 1 {
		t.Errorf("of logs that are cut were kept %v", kept)
	}
	for i := 0; i < len(whole); i += lane.Times(7, 3) {
		b := bytes.Clone(whole)
		b[i] ^= 0x40
		try(fmt.Sprint("flipped at ", i), b)
	}
	if kept[n-1] != 1 {
		t.Errorf("a flipped byte was not noticed: %v", kept)
	}
	try("of a longer file that was there before", append(bytes.Clone(whole), whole[40:]...))
	if kept[n-1] != 2 {
		t.Errorf("what follows a log counted: %v", kept)
	}
}

// TestScanLogOfAnotherProcess: two that index the same files at once both come to their end; each writes, and removes,
// a file of its own.
func TestScanLogOfAnotherProcess(t *testing.T) {
	index := t.TempDir()
	uri := failed(t, index, 4)
	theirs := logOf(t, index)
	f, err := os.OpenFile(theirs, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	before, err := os.ReadFile(theirs)
	must(t, err)
	root := strings.TrimPrefix(uri, "wds:")
	write(t, root, "04.tar", "no tar either")
	c, e := open(t, index)
	if _, err := c.Add(t.Context(), "", uri); !errs.Is(err, errs.DatasetUnread) {
		t.Fatal(err)
	}
	must(t, os.Remove(filepath.Join(root, "04.tar")))
	p := NewProgress(nil)
	d, err := c.Add(WithProgress(t.Context(), p), "", uri)
	must(t, err)
	if d.LiveCount() != 8 || p.Now().KeptFiles != 4 || e.count("scan log") > 0 {
		t.Errorf("%d samples, %+v", d.LiveCount(), p.Now())
	}
	if after, err := os.ReadFile(theirs); err != nil || !bytes.Equal(before, after) || logOf(t, index) != theirs {
		t.Errorf("it wrote to a scan log of another process: %d bytes, then %d, %v", len(before), len(after), err)
	}
	must(t, f.Close()) // it ends, and its scan is wanted no more
	c, _ = open(t, index)
	if _, err := c.Add(t.Context(), "", uri); err != nil || logOf(t, index) != "" {
		t.Errorf("%v; %q is left", err, logOf(t, index))
	}
}

// TestManyProcessesHaveAScanLog: one more than may have a scan log keeps nothing, says nothing and is as good.
func TestManyProcessesHaveAScanLog(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	for i, s := range shards(t, 4) {
		write(t, root, fmt.Sprintf("%d.tar", i), s)
	}
	c, e := open(t, index)
	paths := c.logPaths("wds:" + root)
	for _, path := range paths {
		f, err := os.Create(path)
		must(t, err)
		defer f.Close()
		must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	}
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	all, err := filepath.Glob(filepath.Join(index, "*"+logSuffix))
	must(t, err)
	if d.LiveCount() != 8 || e.count("scan log") > 0 || len(all) != maxLogs {
		t.Errorf("%d samples, events %v, logs %q", d.LiveCount(), e.n, all)
	}
}

// TestScanLogIsBounded: files that change between tries leave no heap of entries.
func TestScanLogIsBounded(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprintf("%0100d=1", i))
	}
	big := shard(t, names...)
	write(t, root, "0.tar", big)
	write(t, root, "1.tar", shard(t, "a=1"))
	write(t, root, "2.tar", "no tar")
	c, _ := open(t, index)
	var one, most int64
	for try := range 12 {
		at := time.Unix(int64(1e9+try), 0)
		must(t, os.Chtimes(filepath.Join(root, "0.tar"), at, at))
		if _, err := c.Add(t.Context(), "", "wds:"+root); !errs.Is(err, errs.DatasetUnread) {
			t.Fatal(err)
		}
		fi, err := os.Stat(logOf(t, index))
		must(t, err)
		if one == 0 {
			one = fi.Size()
		}
		most = max(most, fi.Size())
	}
	if most > 3*one+logWaste || most < 2*one {
		t.Errorf("a log of %d bytes grew to %d", one, most)
	}
	write(t, root, "2.tar", shard(t, "b=1"))
	p := NewProgress(nil)
	d, err := c.Add(WithProgress(t.Context(), p), "", "wds:"+root)
	must(t, err)
	if d.LiveCount() != 3002 || p.Now().KeptFiles != 2 {
		t.Errorf("%d samples, %+v", d.LiveCount(), p.Now())
	}
}

// TestScanLogThatCannotBeWritten: then a scan keeps nothing, says so once, and is as good.
func TestScanLogThatCannotBeWritten(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	for i, s := range shards(t, 4) {
		write(t, root, fmt.Sprintf("%d.tar", i), s)
	}
	c, e := open(t, index)
	must(t, os.Mkdir(c.logPaths("wds:" + root)[0], 0o700))
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	if d.LiveCount() != 8 || e.count("scan log cannot be") != 1 {
		t.Errorf("%d samples, events %v", d.LiveCount(), e.n)
	}
	again, _ := open(t, index)
	p := NewProgress(nil)
	if _, err := again.Add(WithProgress(t.Context(), p), "", "wds:"+root); err != nil || p.Now().Samples != 0 {
		t.Errorf("the index was not saved: %+v, %v", p.Now(), err)
	}
}

// TestOldScanLogsAreRemoved: a log that nobody takes up does not stay for good.
func TestOldScanLogsAreRemoved(t *testing.T) {
	index := t.TempDir()
	failed(t, index, 3)
	open(t, index)
	path := logOf(t, index)
	if path == "" {
		t.Fatal("a young log was removed")
	}
	old := time.Now().Add(-logAge - time.Hour)
	must(t, os.Chtimes(path, old, old))
	open(t, index)
	if logOf(t, index) != "" {
		t.Error("an old log is left")
	}
}

// TestDamagedTablesAreNamedTogether: of formats whose every file is read for the fields, too.
func TestDamagedTablesAreNamedTogether(t *testing.T) {
	b := newBucket(t)
	for i := range 20 {
		line := fmt.Sprintf("{\"a\": %d}\n", i)
		switch i {
		case 3, 4:
			line += "{\"a\": }\n"
		case 11:
			line = "{\"a\": \"text\"}\n"
		}
		b.put(t, fmt.Sprintf("j/%02d.jsonl", i), line)
		b.put(t, fmt.Sprintf("p/%02d.parquet", i), "no parquet")
		b.put(t, fmt.Sprintf("t/%02d.tfrecord", i), "no records, but some bytes")
	}
	for uri, want := range map[string][]string{
		"jsonl:s3://data/j": {"2 files cannot be read", "03.jsonl: line 2, at byte 9",
			"04.jsonl: line 2, at byte 9"},
		"jsonl:s3://data/j/{05..19}.jsonl":       {`11.jsonl: "a" is text there, and whole numbers in the files before`},
		"parquet:s3://data/p":                    {"20 files cannot be read", "00.parquet: ", "09.parquet: ", "and 10 more"},
		"tfrecord:s3://data/t/{00..09}.tfrecord": {"10 files cannot be read", "00.tfrecord: ", "09.tfrecord: "},
	} {
		c := b.open(t, t.TempDir())
		_, err := c.Add(t.Context(), "", uri)
		if !errs.Is(err, errs.DatasetUnread) {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: no %q in %v", uri, w, err)
			}
		}
	}
	// A store that fails is asked once for each file that is read beside it, and no more.
	b.status.Store(http.StatusForbidden)
	if _, err := b.open(t, "").Add(t.Context(), "", "jsonl:s3://data/j/{00..19}.jsonl"); err == nil ||
		strings.Contains(err.Error(), "files cannot be read") {
		t.Errorf("%v", err)
	}
}
