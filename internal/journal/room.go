package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"larder/internal/errs"
	"larder/internal/units"
)

// A full disk is the one error that a log lives through. The next write is reserved before it is written,
// so that as a rule the refusal comes where nothing is half done; a write that ends early all the same continues where
// it stopped. Meanwhile nothing becomes durable, so that no batch leaves and no job hears that it is registered:
// all jobs wait, and continue when there is room. A *sync* that reports a full disk is final like every failed sync:
// what it was to make durable may be gone.

// reserveStep is how much of a file is reserved at a time: some thousand batches. It is what a daemon needs to begin,
// too.
const reserveStep = 1 << 20

// isFull reports whether there is no room on the disk, or in the user's share of it.
func isFull(err error) bool {
	if s := (*syncError)(nil); errors.As(err, &s) {
		return false
	}
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// syncError is one of a sync: final, whatever it says.
type syncError struct{ error }

func (e *syncError) Unwrap() error { return e.error }

func synced(err error) error {
	if err != nil {
		return &syncError{err}
	}
	return nil
}

// withRoom does op, again and again while the disk is full. When the log is closed meanwhile the error is the last one.
func (d *Disk) withRoom(need int64, op func() error) error {
	for waited := false; ; waited = true {
		err := op()
		if !isFull(err) {
			if waited {
				d.full.Store(nil)
				d.options.report(nil)
			}
			return err
		}
		if d.full.Load() == nil { // else it was closed while it waited
			f := errs.New(errs.DiskFull, d.fs.Path(""), "make room on that disk; larder continues by itself",
				"the disk of the state directory %s is full, and %s more are needed: nothing is lost, jobs wait", d.fs.Path(""),
				units.Size(need)).Because(err)
			f.RetryAfter = time.Second
			d.full.Store(f)
			d.options.report(f)
		}
		pause := d.options.Clock.NewTimer(d.options.Retry)
		select {
		case <-pause.Chan():
		case <-d.closing:
			pause.Stop()
			return err
		}
	}
}

func (o *Options) report(err error) {
	if o.Full != nil {
		o.Full(err)
	}
}

// Room is nil, or DISK_FULL with the folder and the bytes that are needed while the log waits for room on its
// disk. New work must be refused then: it could not be made durable.
func (d *Disk) Room() error {
	if f := d.full.Load(); f != nil {
		return f
	}
	return nil
}

// reserve makes sure that the file has room up to a size, and some more.
func (d *Disk) reserve(upto int64) error {
	if upto <= d.reserved {
		return nil
	}
	upto = max(upto, d.reserved+min(reserveStep, d.options.SegmentBytes))
	if err := d.file.Reserve(upto); err != nil {
		return err
	}
	d.reserved = upto
	return nil
}

// append writes to the log, however long it takes for the disk to have room.
func (d *Disk) append(b []byte) error {
	if err := d.withRoom(int64(len(b))+reserveStep,
		func() error { return d.reserve(d.written + int64(len(b))) }); err != nil {
		return err
	}
	return d.withRoom(int64(len(b)), func() error {
		n, err := d.file.Write(b)
		b = b[n:] // the file continues behind what it took
		d.written += int64(n)
		return err
	})
}

// settle makes what an earlier process wrote durable, and releases what it had reserved: what is read here is acted
// upon, so it must not be gone after a power failure.
func (d *Disk) settle(name string) error {
	size, err := d.fs.Size(name)
	if err != nil {
		return err
	}
	f, err := d.fs.Create(name, false)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close())
}

// noRoom is the error of a start on a full disk.
func (d *Disk) noRoom(err error) error {
	return errs.New(errs.StateFailed, d.fs.Path(""),
		"make room on that disk, then start again; nothing that was promised is lost",
		"the state directory %s: its disk is full, and a daemon needs %s to begin", d.fs.Path(""), units.Size(reserveStep)).
		Because(err)
}

// dropPartial removes what a failed put left behind: on a full disk it is in the way.
func (d *Disk) dropPartial(name string) error {
	if err := d.fs.Remove(name + tmpTail); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name+tmpTail, err)
	}
	return nil
}
