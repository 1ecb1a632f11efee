package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/record"
	"larder/internal/source/packed"
)

// TestOnlyAScanLogThatIsNoneIsRemovedUnlocked: what cannot be opened because of what it is goes; where another error
// says nothing about that, the file stays.
func TestOnlyAScanLogThatIsNoneIsRemovedUnlocked(t *testing.T) {
	for _, err := range []error{unix.ELOOP, unix.EISDIR, unix.ENXIO, unix.EACCES} {
		if !isNoLog(&os.PathError{Op: "open", Path: "x", Err: err}) {
			t.Errorf("%v says that another process may have it", err)
		}
	}
	for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.EINTR, unix.EIO, unix.ENOMEM} {
		if isNoLog(&os.PathError{Op: "open", Path: "x", Err: err}) {
			t.Errorf("%v says that no process has it", err)
		}
	}
	dir := t.TempDir()
	link, folder, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "folder"), filepath.Join(dir, "pipe")
	must(t, os.Symlink(dir, link))
	must(t, os.Mkdir(folder, 0o700))
	must(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{link, folder, pipe, filepath.Join(dir, "none")} {
		if _, err := removeFreeLog(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

// TestAScanLogThatCannotBeOpenedStays: a process without a file number to spare knows nothing about the log.
func TestAScanLogThatCannotBeOpenedStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x"+logSuffix)
	must(t, os.WriteFile(path, []byte("log"), 0o600))
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	size, err := removeFreeLog(path)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	if size != 0 || err == nil {
		t.Errorf("%d bytes, %v", size, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// TestAnOldScanLogThatIsHeldStays: until its process ends.
func TestAnOldScanLogThatIsHeldStays(t *testing.T) {
	index := t.TempDir()
	failed(t, index, 3)
	path := logOf(t, index)
	old := time.Now().Add(-logAge - time.Hour)
	must(t, os.Chtimes(path, old, old))
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	removeOldLogs(index)
	if logOf(t, index) != path {
		t.Error("a log that another process has was removed")
	}
	must(t, f.Close())
	removeOldLogs(index)
	if logOf(t, index) != "" {
		t.Error("an old log is left")
	}
}

// TestScanLogWithoutLocks: where the file system has none, a scan that fails goes on all the same, and leaves no files.
func TestScanLogWithoutLocks(t *testing.T) {
	defer func() { flock = unix.Flock }()
	for _, without := range []error{unix.ENOSYS, unix.EOPNOTSUPP, unix.ENOLCK} {
		interrupted := false
		flock = func(int, int) error {
			if interrupted = !interrupted; interrupted {
				return unix.EINTR
			}
			return without
		}
		index := t.TempDir()
		uri := failed(t, index, 4)
		path := logOf(t, index)
		if fi, err := os.Stat(path); err != nil || fi.Size() == 0 {
			t.Fatalf("%v: %q is empty: %v", without, path, err)
		}
		c, e := open(t, index)
		p := NewProgress(nil)
		d, err := c.Add(WithProgress(t.Context(), p), "", uri)
		must(t, err)
		if p.Now().KeptFiles != 3 || d.LiveCount() != 8 || e.count("scan log") > 0 || logOf(t, index) != "" {
			t.Errorf("%v: %+v, %d samples, log %q", without, p.Now(), d.LiveCount(), logOf(t, index))
		}
	}
}

// TestScanLogsOfTwoSchemasAreMerged: of two logs that have the same files under other schemas, in either order, the
// entries that count are kept, also when the scan that merged them fails.
func TestScanLogsOfTwoSchemasAreMerged(t *testing.T) {
	for _, currentFirst := range []bool{true, false} {
		const n = 4
		index := t.TempDir()
		uri := failed(t, index, n)
		root := strings.TrimPrefix(uri, "wds:")
		c, _ := open(t, index)
		paths := c.logPaths(uri)
		at := &scanLog{paths: paths[:1], uri: uri, log: c.log}
		var rows []scanned
		for _, name := range []string{"00.tar", "01.tar", "02.tar", "03.tar"} {
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(root, name), &st))
			rows = append(rows, scanned{rel: name, st: fileMeta{dev: st.Dev, ino: st.Ino, size: st.Size,
				mtime: st.Mtim.Nano()}})
		}
		at.open(rows, nil) // the log that was left has the entries that count
		if len(at.kept) != n-1 {
			t.Fatalf("%d entries", len(at.kept))
		}
		kept := at.kept
		at.close()
		other := &scanLog{paths: paths[1:2], uri: uri, log: c.log}
		other.open(rows, nil)
		for key, r := range kept { // order-free: each by itself
			other.add(r, key.mark+1)
		}
		other.close()
		if !currentFirst {
			must(t, os.Rename(paths[0], paths[0]+".tmp"))
			must(t, os.Rename(paths[1], paths[0]))
			must(t, os.Rename(paths[0]+".tmp", paths[1]))
		}
		bad := filepath.Join(root, "04.tar")
		write(t, root, "04.tar", "no tar")
		for try := range 2 {
			c, _ := open(t, index)
			p := NewProgress(nil)
			if _, err := c.Add(WithProgress(t.Context(), p), "", uri); !errs.Is(err, errs.DatasetUnread) {
				t.Fatal(err)
			}
			if got := p.Now().KeptFiles; got != int64(n-1+try) || logOf(t, index) != paths[0] {
				t.Errorf("current first %v: %d files were kept in try %d", currentFirst, got, try)
			}
		}
		must(t, os.Remove(bad))
	}
}

// TestEntriesThatCountNoLongerAreWaste: a file that stays as it is leaves no heap of entries, neither while the schema
// changes, since another file brings other fields, nor where it is scanned again, since its entry does not fit.
func TestEntriesThatCountNoLongerAreWaste(t *testing.T) {
	big := scanned{rel: "0.jsonl", st: fileMeta{size: 1 << 30}}
	for i := range 5000 {
		big.samples = append(big.samples, packed.Sample{Key: fmt.Sprintf("%0100d", i), Off: int64(100 * i), Size: 100})
	}
	for name, again := range map[string]struct {
		schemas int
		fits    error
	}{
		"other schema": {schemas: 12},
		"does not fit": {schemas: 1, fits: errors.New("it does not")},
	} {
		index := t.TempDir()
		c, e := open(t, index)
		uri := "jsonl:" + t.TempDir()
		check := func(*scanned) func(*packed.Sample) error { return func(*packed.Sample) error { return again.fits } }
		// scan is one that fails behind the big file.
		scan := func(try int) (kept bool) {
			l := &scanLog{paths: c.logPaths(uri), uri: uri, log: c.log}
			rows := []scanned{{rel: big.rel, st: big.st}, {rel: "1.jsonl", st: fileMeta{size: 9, mtime: int64(try)}}}
			l.open(rows, nil)
			defer l.close()
			s := &record.Schema{Fields: []record.Field{{Name: fmt.Sprint("f", try%again.schemas), DType: record.Int64}}}
			l.use(s, rows, check)
			if !rows[0].kept {
				l.add(&big, schemaMark(s))
			}
			return rows[0].kept
		}
		sizes := make([]int64, 0, 12)
		for try := range cap(sizes) {
			if scan(try) || again.fits == nil && !scan(try) {
				t.Fatalf("%s: try %d: an entry counted that should not, or the other way round", name, try)
			}
			fi, err := os.Stat(logOf(t, index))
			must(t, err)
			sizes = append(sizes, fi.Size())
		}
		if one, most := sizes[0], slices.Max(sizes); most > 3*one+logWaste || most <= one || e.count("scan log") > 0 {
			t.Errorf("%s: a log of %d bytes grew to %d: %v", name, one, most, sizes)
		}
	}
}
