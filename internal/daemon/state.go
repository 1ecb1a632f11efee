package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"larder/internal/engine/crashguard"
	"larder/internal/journal"
	"larder/internal/session"
	"larder/internal/xrand"
)

// state is what survives the daemon, or stands in for it in memory.
type state struct {
	journal  journal.Log
	found    *journal.State // what the journal held at the start; nil = nothing
	decoding *crashguard.File
	dir      string // of the journal; "" = it is in memory
	seed     uint64 // of every draw that no job's own seed fixes
}

// durable reports whether jobs survive the daemon.
func (s state) durable() bool {
	_, ok := s.journal.(*journal.Disk)
	return ok
}

func (s state) close() error {
	err := s.decoding.Close()
	if s.journal != nil {
		err = errors.Join(err, s.journal.Close())
	}
	return err
}

// folderOf is the state folder of the daemon of a socket, below base. It follows from the socket alone, so that the
// next daemon of a socket finds what the one before left.
func folderOf(base, socket string) string {
	if abs, err := filepath.Abs(socket); err == nil {
		socket = abs
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(socket)); err == nil { // /var/run is /run
		socket = filepath.Join(dir, filepath.Base(socket))
	}
	return filepath.Join(base, fmt.Sprintf("socket-%016x", xxhash.Sum64String(socket)))
}

// StateFolder returns the folder below base that a daemon of socket would keep its state in: a folder of the socket's
// own, or base itself where this daemon would take over the state of an earlier version. It changes nothing.
func StateFolder(base, socket string) string {
	own := folderOf(base, socket)
	if _, err := os.Stat(own); err == nil || socket != session.UserSocket() || !earlierState(base) {
		return own
	}
	return base
}

// chooseFolder is StateFolder for the daemon's own socket, and does what it says. Earlier versions kept the state of
// all sockets in base itself: the daemon of the user's own socket takes that over with a link, and any other daemon
// logs that it is there.
func chooseFolder(base string, o resourceOptions) string {
	own := folderOf(base, o.socket)
	if _, err := os.Lstat(own); err == nil || !earlierState(base) {
		return own
	}
	if o.socket == session.UserSocket() {
		if err := os.Symlink(".", own); err == nil {
			o.log.Info("the state of an earlier version is taken over", "dir", base, "link", own)
			return own
		}
	}
	o.log.Warn("the state that an earlier version of larder kept is not used: its socket is unknown",
		"dir", base,
		"fix", "if it was of this socket, serve it with --set state.dir="+base)
	return own
}

// earlierState reports whether a folder holds state itself that no socket has taken over.
func earlierState(base string) bool {
	if logs, _ := filepath.Glob(filepath.Join(base, "log-*")); len(logs) == 0 {
		return false
	}
	sockets, _ := filepath.Glob(filepath.Join(base, "socket-*"))
	for _, s := range sockets {
		if to, err := os.Readlink(s); err == nil && to == "." {
			return false
		}
	}
	return true
}

// openState opens the state directory, or a journal in memory. A default directory that cannot be opened costs
// only a warning; a damaged one, or one that another daemon holds, is an error in any case.
func openState(o resourceOptions) (state, error) {
	r, seed := o.resolved, o.config.Sampler.Seed
	dir := r.StateDir
	if dir != "" && r.StateAuto {
		dir = chooseFolder(r.StateDir, o)
	}
	if dir == "" {
		o.log.Info("nothing survives this daemon", "state", "none", "note",
			"jobs of a daemon that is killed are lost; set state.dir")
		return state{journal: journal.OpenMemory(journal.Limits{}), seed: seed}, nil
	}
	fs, err := journal.OpenDir(dir, true)
	if err != nil && r.StateAuto {
		o.log.Warn("nothing survives this daemon", "state", dir, "error", err)
		return state{journal: journal.OpenMemory(journal.Limits{}), seed: seed}, nil
	}
	if err != nil {
		return state{}, err
	}
	fs = withFailpoints(fs)
	disk, err := journal.OpenDisk(fs, journal.Options{OrderBytes: max(r.Orders, 1), Clock: o.clock,
		Full: func(err error) { logRoom(o.log, dir, err) }})
	if err != nil {
		return state{}, err
	}
	s := state{journal: disk, found: disk.Found(), dir: fs.Path(""), seed: seed}
	if disk.Term() > 1 { // the draws of an earlier term must not be repeated
		s.seed = xrand.Hash(seed, disk.Term())
	}
	notes := disk.Notes()
	for _, n := range notes {
		o.log.Warn("the state directory", "note", n)
	}
	s.decoding, notes = crashguard.Open(dir, disk.ID(), r.Workers, func(err error) {
		go o.log.Error("the images in work are not recorded any more: after a crash, the image that caused it is unknown",
			"dir", dir, "error", err)
	})
	for _, n := range notes {
		o.log.Warn("the state directory", "note", n)
	}
	o.log.Info("state", "dir", dir, "term", disk.Term(), "records", s.found.Seq)
	return s, nil
}

// logRoom logs that the disk of the state directory is full (err), or has room again (nil). It must not block: the log
// may be a pipe that no process reads.
func logRoom(log *slog.Logger, dir string, err error) {
	go func() {
		if err != nil {
			log.Error("jobs wait for room", "error", err)
		} else {
			log.Info("there is room again", "dir", dir)
		}
	}()
}
