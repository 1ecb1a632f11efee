package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"larder/internal/journal"
	"larder/internal/session"
	"larder/internal/xrand"
)

// stateFolder is the state folder of the daemon of a socket, below the user's own one. It follows from the socket that is served and from
// nothing else, so that whoever serves a socket finds what the daemon before him left.
func stateFolder(base, socket string) string {
	if abs, err := filepath.Abs(socket); err == nil {
		socket = abs
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(socket)); err == nil { // /var/run is /run
		socket = filepath.Join(dir, filepath.Base(socket))
	}
	return filepath.Join(base, fmt.Sprintf("socket-%016x", xxhash.Sum64String(socket)))
}

// ownFolder is stateFolder of the daemon's socket. Earlier versions kept the state of several sockets in base itself: the daemon of the
// user's own socket takes it over, by a link, for the others it is said that it is there.
func (d *daemon) ownFolder(base string) string {
	own := stateFolder(base, d.listener.Path())
	if _, err := os.Lstat(own); err == nil || !oldState(base) {
		return own
	}
	if d.listener.Path() == session.UserSocket() {
		if err := os.Symlink(".", own); err == nil {
			d.log.Info("the state of an earlier version is gone on with", "dir", base, "link", own)
			return own
		}
	}
	d.log.Warn("the state that an earlier version of larder kept is not used: whose socket it was of cannot be told", "dir", base,
		"fix", "if it was of this socket, serve it with --set state.dir="+base)
	return own
}

// oldState tells whether a folder holds state itself, and no socket has taken that over.
func oldState(base string) bool {
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

// openState opens what survives the daemon, or a log in memory. A folder that nobody configured is done without when it cannot
// be opened, with a warning; damage and another daemon's hold are errors all the same.
func (d *daemon) openState() error {
	r := d.resolved
	d.seed = d.cfg.Sampler.Seed
	dir := r.StateDir
	if dir != "" && r.StateAuto {
		dir = d.ownFolder(r.StateDir)
	}
	if dir == "" {
		d.log.Info("nothing survives this daemon", "state", "none", "note", "jobs of a daemon that is killed are lost; set state.dir")
		d.journal = journal.OpenMemory(journal.Limits{})
		return nil
	}
	fs, err := journal.OpenDir(dir, true)
	if err != nil && r.StateAuto {
		d.log.Warn("nothing survives this daemon", "state", dir, "error", err)
		d.journal = journal.OpenMemory(journal.Limits{})
		return nil
	}
	if err != nil {
		return err
	}
	fs = failing(fs)
	disk, err := journal.OpenDisk(fs, journal.Options{OrderBytes: max(r.Orders, 1), Full: func(err error) {
		go func() { // the log may be a pipe that nobody reads
			if err != nil {
				d.log.Error("jobs wait for room", "error", err)
			} else {
				d.log.Info("there is room again", "dir", dir)
			}
		}()
	}})
	if err != nil {
		return err
	}
	d.journal, d.found, d.stateDir = disk, disk.Found(), fs.Path("")
	if disk.Term() > 1 { // the draws of an earlier term are not to come again
		d.seed = xrand.Hash(d.seed, disk.Term())
	}
	for _, n := range disk.Notes() {
		d.log.Warn("the state directory", "note", n)
	}
	var notes []string
	d.decoding, notes = journal.OpenDecoding(dir, disk.ID(), r.Workers, func(err error) {
		go d.log.Error("what workers are at is not noted any more: an image that crashes the decoder would not be known after it", "dir", dir, "error", err)
	})
	for _, n := range notes {
		d.log.Warn("the state directory", "note", n)
	}
	d.log.Info("state", "dir", dir, "term", disk.Term(), "records", d.found.Seq)
	return nil
}
