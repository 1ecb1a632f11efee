package main

import (
	"fmt"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"larder/internal/journal"
	"larder/internal/session"
	"larder/internal/xrand"
)

// openState opens what survives the daemon, or a log in memory. A folder that nobody configured is done without when it cannot
// be opened, with a warning; damage and another daemon's hold are errors all the same.
func (d *daemon) openState() error {
	r := d.resolved
	d.seed = d.cfg.Sampler.Seed
	dir := r.StateDir
	if dir != "" && r.StateAuto && d.listener.Path() != session.DefaultSocket() { // daemons on other sockets are others
		dir = filepath.Join(dir, fmt.Sprintf("socket-%016x", xxhash.Sum64String(d.listener.Path())))
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
	d.journal, d.found = disk, disk.Found()
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
