package telemetry

import (
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// LogFile is a log that takes a bounded part of its disk: what would make it longer than its limit begins a new file,
// and the one before it stays as NAME.1, so that both together have at most twice the limit (a line that is longer than
// the limit has a file of its own). It is an own type because standard error may be the same file: what the Go runtime
// writes when it crashes must not go to a file that was removed.
type LogFile struct {
	path   string
	limit  int64
	stderr bool // standard error is this file, and follows it

	mu sync.Mutex
	f  *os.File
}

// OpenLogFile opens or makes the file, whose folder must exist.
func OpenLogFile(path string, limit int64) (*LogFile, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, "log.file", "name an absolute path", "find the log's folder").Because(err)
	}
	l := &LogFile{path: path, limit: limit}
	if l.f, err = openLog(path); err != nil {
		return nil, errs.New(errs.ConfigInvalid, "log.file", "name a file that you may write, in a folder that exists",
			"open the log").Because(err)
	}
	st, err := l.f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		_ = l.f.Close()
		return nil, errs.New(errs.ConfigInvalid, "log.file", "leave it empty for standard error",
			"%s is no file that could be kept short", path)
	}
	if now, err2 := os.Stderr.Stat(); err == nil && err2 == nil {
		l.stderr = os.SameFile(st, now)
	}
	return l, nil
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o600)
}

// Path is where the log is.
func (l *LogFile) Path() string { return l.path }

// Write implements io.Writer; each call is a line, and is not split.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Others may write to it too: the parent of this process, and the runtime.
	if st, err := l.f.Stat(); err == nil && st.Size() > 0 && st.Size()+int64(len(p)) > l.limit {
		l.turn()
	}
	return l.f.Write(p)
}

// turn begins a new file. Where that fails the old one continues: a log that is too long is better than none.
func (l *LogFile) turn() {
	if os.Rename(l.path, l.path+".1") != nil {
		return
	}
	f, err := openLog(l.path)
	if err != nil {
		_ = os.Rename(l.path+".1", l.path)
		return
	}
	if l.stderr {
		_ = unix.Dup3(int(f.Fd()), int(os.Stderr.Fd()), 0)
	}
	_ = l.f.Close()
	l.f = f
}

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
