package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
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
