//go:build failpoints

package daemon

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/journal"
)

// withFailpoints makes a call to the state directory the last one of this process, or one that fails. LARDER_FAILPOINT
// is OP:FILE:WHAT:N: the N-th OP (create, write, writeat, reserve, truncate, sync, rename, remove) on a FILE (log,
// mark, snapshot, orders, dir, any), with WHAT = "before" or "after": SIGKILL then; or an error from then on: EIO,
// ENOSPC, EROFS. With a fifth part, :PATH, the error ends once that file exists. This build is for tests of crashes.
func withFailpoints(fs journal.FS) journal.FS {
	text := os.Getenv("LARDER_FAILPOINT")
	if text == "" {
		return fs
	}
	part := strings.SplitN(text, ":", 5)
	if len(part) < 4 {
		panic("LARDER_FAILPOINT=" + text + " is not OP:FILE:WHAT:N or OP:FILE:WHAT:N:PATH")
	}
	n, err := strconv.ParseInt(part[3], 10, 64)
	if err != nil || n < 1 {
		panic("LARDER_FAILPOINT=" + text + ": N is a number from 1")
	}
	p := &failpoint{op: part[0], file: part[1], what: part[2]}
	if len(part) == 5 {
		p.until = part[4]
	}
	p.left.Store(n)
	return failFS{fs, p}
}

type failpoint struct {
	op, file, what, until string
	left                  atomic.Int64
}

var errnos = map[string]error{"EIO": unix.EIO, "ENOSPC": unix.ENOSPC, "EROFS": unix.EROFS}

// at does a call, or what is to happen in its place.
func (p *failpoint) at(op, name string, call func() error) error {
	return p.or(op, name, call, call)
}

// or is at for a call of which a process that dies after it may have done a part only. No other call is cut short: the
// process lives on for a moment, and would take the rest for written.
func (p *failpoint) or(op, name string, call, part func() error) error {
	kind, _, _ := strings.Cut(name, "-")
	kind = strings.TrimSuffix(kind, ".tmp")
	if p.op != op || p.file != "any" && p.file != kind {
		return call()
	}
	left := p.left.Add(-1)
	if err, bad := errnos[p.what]; bad {
		if left == 0 {
			fmt.Fprintln(os.Stderr, "failpoint reached:", op, name, p.what)
		}
		if left <= 0 && !p.over() { // a disk that has failed keeps failing
			return err
		}
		return call()
	}
	if left != 0 {
		return call()
	}
	if p.what == "after" {
		_ = part()
	}
	fmt.Fprintln(os.Stderr, "failpoint reached:", op, name, p.what)
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

// over says whether the errors have ended.
func (p *failpoint) over() bool {
	if p.until == "" {
		return false
	}
	_, err := os.Stat(p.until)
	return err == nil
}

type failFS struct {
	journal.FS
	p *failpoint
}

func (f failFS) Create(name string, exclusive bool) (file journal.File, err error) {
	err = f.p.at("create", name, func() error { file, err = f.FS.Create(name, exclusive); return err })
	if err != nil {
		return nil, err
	}
	return failFile{file, f.p, name}, nil
}

func (f failFS) Rename(from, to string) error {
	return f.p.at("rename", to, func() error { return f.FS.Rename(from, to) })
}

func (f failFS) Remove(name string) error {
	return f.p.at("remove", name, func() error { return f.FS.Remove(name) })
}

func (f failFS) Sync() error { return f.p.at("sync", "dir", f.FS.Sync) }

func (f failFS) Lock() (io.Closer, error) { return f.FS.Lock() }

type failFile struct {
	journal.File
	p    *failpoint
	name string
}

func (f failFile) Write(b []byte) (n int, err error) {
	write := func(b []byte) func() error {
		return func() error { n, err = f.File.Write(b); return err }
	}
	err = f.p.or("write", f.name, write(b), write(b[:min(len(b), 1+len(b)/2)]))
	return n, err
}

func (f failFile) WriteAt(b []byte, off int64) (n int, err error) {
	err = f.p.at("writeat", f.name, func() error { n, err = f.File.WriteAt(b, off); return err })
	return n, err
}

func (f failFile) Truncate(size int64) error {
	return f.p.at("truncate", f.name, func() error { return f.File.Truncate(size) })
}

func (f failFile) Reserve(size int64) error {
	return f.p.at("reserve", f.name, func() error { return f.File.Reserve(size) })
}

func (f failFile) Sync() error { return f.p.at("sync", f.name, f.File.Sync) }
