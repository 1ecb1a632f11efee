package source

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/record"
	"larder/internal/source/packed"
)

// Each process that indexes a root appends to a scan log of its own, which it holds a lock of. A scan reads those of
// all, takes over those that no process holds any more, and removes none that one holds.

// logPart is one file of a scan log, read.
type logPart struct {
	path string
	f    *os.File
	held bool // this process has its lock

	seed       uint64
	end, waste int64            // of what is whole, and how much of that counts no longer
	has        map[logKey]int64 // how many bytes the entry of a file has there
	said       bool             // it has the schema
	foreign    bool             // it is of another dataset, whose hash is the same
}

func (p *logPart) close() { _ = p.f.Close() } // what is lost is torn, and scanned again

// errLogsTaken: as many other processes as may have one have a scan log.
var errLogsTaken = errors.New("every scan log is taken")

// scanLog is the scan log of a root; nil = nothing is kept.
func (c *Catalog) scanLog(rs *rootState) *scanLog {
	if c.cfg.IndexDir == "" || rs.format == nil {
		return nil
	}
	if _, lists := rs.format.(packed.Listing); lists { // they are few and small, and read again each time
		return nil
	}
	return &scanLog{paths: c.logPaths(rs.key()), uri: rs.key(), log: c.log}
}

// logPaths is where the scan logs of a root may be.
func (c *Catalog) logPaths(key string) []string {
	name := filepath.Join(c.cfg.IndexDir, strings.TrimSuffix(indexName(key, 0), indexSuffix))
	paths := []string{name + logSuffix}
	for i := 1; i < maxLogs; i++ {
		paths = append(paths, name+"-"+strconv.Itoa(i)+logSuffix)
	}
	return paths
}

// removeLog deletes the scan logs of a root, whose index is whole or is not wanted any more, and returns their size.
// Those that other processes write now stay: they are of scans that are not at their end.
func (c *Catalog) removeLog(key string) (size int64) {
	if c.cfg.IndexDir == "" {
		return 0
	}
	for _, path := range c.logPaths(key) {
		n, err := removeFreeLog(path)
		if size += n; err != nil {
			c.log.Warn("a scan log cannot be removed; the next index removes it", "scan_log", path, "error", err)
		}
	}
	return size
}

// removeFreeLog deletes a file, unless another process has it, and returns its size.
func removeFreeLog(path string) (int64, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return 0, ignoreNotExist(err)
	}
	p, err := openLog(path)
	switch {
	case err != nil && !isNoLog(err): // another process may have it
		return 0, err
	case err == nil && p == nil: // another process removed it
		return 0, nil
	case err == nil:
		defer p.close()
		if !p.held {
			return 0, nil
		}
	}
	if err := os.Remove(path); err != nil {
		return 0, ignoreNotExist(err)
	}
	return fi.Size(), nil
}

// isNoLog reports whether a path cannot be opened because of what it is: no process has it as a scan log.
func isNoLog(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) ||
		errors.Is(err, unix.EACCES)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeOldLogs deletes scan logs that no scan has taken up for long, and that no process has.
func removeOldLogs(dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+logSuffix))
	if err != nil { // of the pattern: the folder has brackets in its name
		return
	}
	for _, p := range paths {
		if fi, err := os.Lstat(p); err == nil && time.Since(fi.ModTime()) > logAge {
			_, _ = removeFreeLog(p) // another start tries again
		}
	}
}

// openLog opens a scan log, and locks it where no other process has; nil = there is none.
func openLog(path string) (*logPart, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := &logPart{path: path, f: f, has: map[logKey]int64{}}
	if p.held = lockLog(f); p.held && !isAt(f, path) { // another process removed it before it was locked
		p.close()
		return nil, nil
	}
	return p, nil
}

// flock is another one in tests.
var flock = unix.Flock

// lockLog locks a scan log; false = another process has it. Where a file system has no locks, it does without: what two
// processes write over each other has wrong checksums, and is scanned again.
func lockLog(f *os.File) bool {
	for {
		err := flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return !errors.Is(err, unix.EWOULDBLOCK)
		}
	}
}

// isAt reports whether a path still leads to an open file.
func isAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, now)
}

// open reads what earlier scans left. rows are the files as they are now; beside are those that others are read with.
func (l *scanLog) open(rows, beside []scanned) {
	if l == nil {
		return
	}
	l.mark, l.schemaKey = filesKey(beside), filesKey(rows)
	l.kept, l.schemas = map[logKey]*scanned{}, map[uint64]record.Schema{}
	for _, path := range l.paths {
		p, err := openLog(path)
		if p != nil {
			err = l.read(p, rows)
		}
		switch {
		case err != nil:
			l.path = path
			l.stop("read", err)
			fallthrough
		case p == nil || !p.held || p.foreign:
			if p != nil {
				p.close()
			}
		default:
			l.parts = append(l.parts, p)
		}
	}
}

// takeOver goes on with the first of the files that this process has, writes what counts of the others into it, and
// removes them. Entries of another schema than mark says count no longer.
func (l *scanLog) takeOver(mark uint64) {
	if len(l.parts) == 0 {
		return
	}
	p := l.parts[0]
	others := l.parts[1:]
	l.parts = nil
	defer func() {
		for _, o := range others {
			if !l.off {
				_ = os.Remove(o.path) // the next scan tries again
			}
			o.close()
		}
	}()
	if l.off {
		p.close()
		return
	}
	l.path = p.path
	for key, n := range p.has {
		if key.mark != mark {
			p.waste += n
		}
	}
	anew := p.waste > p.end-p.waste+logWaste
	if anew {
		p.end, p.said, p.has = 0, false, nil
	}
	if err := p.f.Truncate(p.end); err != nil {
		l.stop("cut", err)
		p.close()
		return
	}
	l.f, l.size, l.seed = p.f, p.end, p.seed
	if p.said {
		l.schema = nil
	}
	if !anew && len(others) == 0 {
		return
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.kept), logKey.compare) {
		if _, has := p.has[key]; !has && key.mark == mark {
			l.add(l.kept[key], mark)
		}
	}
}

// create makes a scan log for this process.
func (l *scanLog) create() error {
	for _, path := range l.paths {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		l.path = path
		if err != nil {
			return err
		}
		if !lockLog(f) || !isAt(f, path) { // another process took it at once
			_ = f.Close() // nothing was written
			continue
		}
		l.f = f
		return nil
	}
	return errLogsTaken
}
