package journal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/invariant"
)

// Options bounds the files of a Disk. Zero values stand for the defaults.
type Options struct {
	SegmentBytes  int64 // of a file of the log; default 16 MiB
	SnapshotBytes int64 // of log after which a snapshot is written, at least, and at least its size; default 16 MiB
	// Full is called when the log begins to wait for room on its disk, and with nil when it continues; it must not block.
	// Nil = it is not called.
	Full  func(error)
	Retry time.Duration // between two looks for room; default 500 ms
	Clock clock.Clock   // of Retry; nil = the real one
	// of the orders of epochs that are over; default 1 GiB, about 300 epochs of 1.28 million samples; negative = none
	OrderBytes int64
}

// Disk is a Log in a state directory: a log in segments, of which a snapshot from time to time takes the place, and
// the orders of epochs that are over in files of their own. Records are written in groups; one sync makes a whole
// group durable, and a group that no caller waits for is written at once and synced with the next.
//
// A full disk makes every caller wait (see Room). Every other error of a write, and the first one of a sync, is final:
// nothing is written after it and every callback gets it. What the disk holds then is found at the next open; trying
// again could report as durable what the kernel has dropped.
type Disk struct {
	fs      FS
	options Options
	lock    io.Closer
	id      uint64
	term    uint64
	found   *State // as it was at the open
	notes   []string
	wake    chan struct{} // one token: something is in pending, or the log is closed
	idle    chan struct{} // closed when the goroutine has ended
	closing chan struct{} // closed by Close
	full    atomic.Pointer[errs.Error]
	tidying sync.WaitGroup

	// of the goroutine
	file     File
	mark     File
	header   header
	written  int64  // of file
	reserved int64  // of file, at least
	durable  uint64 // the last record that is
	lazy     bool   // something is written and not synced

	mu struct {
		sync.Mutex
		state   *State // with everything appended
		closed  bool
		broken  error
		buf     []byte // frames not written
		ends    []int  // where each of them ends
		dones   []func(error)
		demand  bool // a caller waits
		queued  uint64
		called  uint64
		waiters []waiter
		since   int64 // bytes of log after the last snapshot
		snap    int64 // bytes of that
		tidying bool
		hold    int64 // bytes of log to wait for before a snapshot is tried again for which the disk had no room

		files     []segment // oldest first
		snapshots []string
		orders    []string
		sizes     map[string]int64 // of orders
		nextFile  uint64           // number of the next one
	}
}

var _ Log = (*Disk)(nil)

// OpenDisk takes the folder for itself, reads what is there, cuts a torn tail off and begins a new term. What was found
// is Found. Errors are *errs.Error: ALREADY_EXISTS when another process has it, STATE_DAMAGED with file and offset,
// UNSUPPORTED when a newer larder wrote it, STATE_FAILED when the disk refuses.
func OpenDisk(fs FS, o Options) (*Disk, error) {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = 16 << 20
	}
	if o.SnapshotBytes <= 0 {
		o.SnapshotBytes = 16 << 20
	}
	if o.OrderBytes == 0 {
		o.OrderBytes = 1 << 30
	}
	o.Clock = clock.Or(o.Clock)
	if o.Retry <= 0 {
		o.Retry = 500 * time.Millisecond
	}
	lock, err := takeLock(fs)
	if err != nil {
		return nil, err
	}
	d := &Disk{fs: fs, options: o, lock: lock, wake: make(chan struct{}, 1), idle: make(chan struct{}),
		closing: make(chan struct{})}
	if err := d.open(); err != nil {
		if d.file != nil {
			_ = d.file.Close()
		}
		if d.mark != nil {
			_ = d.mark.Close()
		}
		_ = lock.Close()
		return nil, err
	}
	go d.run()
	return d, nil
}

func takeLock(fs FS) (io.Closer, error) {
	lock, err := fs.Lock()
	if held := (*LockedError)(nil); errors.As(err, &held) {
		return nil, errs.New(errs.AlreadyExists, fs.Path(""), "use that daemon, end it, or give this one another state.dir",
			"open the state directory %s: it is in use by %s", fs.Path(""), held.Holder)
	}
	if err != nil {
		return nil, failed(fs, err, "lock it")
	}
	return lock, nil
}

// failed is the error of a disk that refuses.
func failed(fs FS, err error, what string) error {
	hint := "check the disk and the rights of the folder, then start again; state.dir: none runs in memory"
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "make room on that disk, then start again; nothing that was promised is lost"
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		hint = "set state.dir to a folder that larder may write to, or state.dir: none"
	}
	return errs.New(errs.StateFailed, fs.Path(""), hint, "the state directory %s: cannot %s", fs.Path(""), what).
		Because(err)
}

func (d *Disk) open() error {
	im, err := load(d.fs, false)
	if dmg := (*Damage)(nil); errors.As(err, &dmg) {
		return dmg.fault(d.fs.Path(""))
	}
	if err != nil {
		return failed(d.fs, err, "read it")
	}
	if err := d.begin(im); isFull(err) {
		return d.noRoom(err)
	} else if err != nil {
		return failed(d.fs, err, "begin a new term in it")
	}
	return nil
}

// begin makes the folder ready for a new term.
func (d *Disk) begin(im *image) error {
	for _, name := range im.leftover {
		if err := d.fs.Remove(name); err != nil {
			return err
		}
	}
	if err := d.cutTail(im); err != nil {
		return err
	}
	if n := len(im.segments); n > 0 {
		if err := d.settle(im.segments[n-1].name); err != nil {
			return err
		}
	}
	d.id, d.term, d.notes = im.id, im.state.Term+1, im.notes
	if !im.known {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it does not fail
		d.id = binary.LittleEndian.Uint64(b[:])
	}
	d.mu.files = slices.Clone(im.segments)
	d.durable = im.state.Seq
	if err := d.newSegment(im.state.Seq + 1); err != nil {
		return err
	}
	var err error
	if d.mark, err = d.fs.Create(markName, false); err != nil {
		return err
	}
	if _, err := d.mark.WriteAt(mark{id: d.id, seq: d.durable, term: d.term}.encode(), 0); err != nil {
		return err
	}
	if err := errors.Join(d.mark.Truncate(markSize), d.mark.Sync(), d.fs.Sync()); err != nil {
		return err
	}
	im.state.Term = d.term
	d.found = im.state.clone()
	d.mu.state, d.mu.snapshots, d.mu.orders = im.state, im.snapshots, im.orders
	d.mu.since, d.mu.snap, d.mu.sizes = im.replayed, im.snapBytes, map[string]int64{}
	for _, name := range im.orders {
		if d.mu.sizes[name], err = d.fs.Size(name); err != nil {
			return err
		}
		_, _ = fmt.Sscanf(name, "orders-%08x", &d.mu.nextFile)
	}
	d.mu.nextFile++
	return nil
}

// cutTail takes off what was not durable when the machine stopped.
func (d *Disk) cutTail(im *image) error {
	if im.tail == "" {
		return nil
	}
	d.notes = append(d.notes, im.tailNote())
	if im.good < 0 {
		im.segments = slices.DeleteFunc(im.segments, func(g segment) bool { return g.name == im.tail })
		return errors.Join(d.fs.Remove(im.tail), d.fs.Sync())
	}
	f, err := d.fs.Create(im.tail, false)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(im.good), f.Sync(), f.Close())
}

func (im *image) tailNote() string {
	return fmt.Sprintf("%s: the last %d bytes, from byte %d on, were never durable and are cut off", im.fs.Path(im.tail),
		im.torn, max(im.good, 0))
}

// newSegment makes the file that records from first on go to.
func (d *Disk) newSegment(first uint64) error {
	name := logName(first, d.term)
	f, err := d.fs.Create(name, true)
	if err != nil {
		return err
	}
	h := header{kind: logFile, id: d.id, first: first, term: d.term}
	b := h.encode()
	reserved := min(reserveStep, d.options.SegmentBytes)
	if err = f.Reserve(reserved); err == nil {
		_, err = f.Write(b)
	}
	// nothing is in it, and another attempt makes it again; it must not come back when the old file continues
	if isFull(err) {
		return errors.Join(err, f.Close(), d.fs.Remove(name), synced(d.fs.Sync()))
	}
	if err == nil {
		err = synced(f.Sync())
	}
	if err == nil {
		err = synced(d.fs.Sync())
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	if d.file != nil {
		_ = d.file.Close() // synced
	}
	d.header = h // not before: until then the old file is written to
	d.file, d.written, d.reserved = f, int64(len(b)), reserved
	d.mu.Lock()
	d.mu.files = append(d.mu.files, segment{name, first, d.term})
	d.mu.Unlock()
	return nil
}

// Term is how often the directory was opened. It is in every record.
func (d *Disk) Term() uint64 { return d.term }

// Found is the state that the directory held when it was opened, with the new term. It is not to be changed.
func (d *Disk) Found() *State { return d.found }

// Notes says what was odd at the open, and harmless; for the log.
func (d *Disk) Notes() []string { return d.notes }

// Append adds a record; see Log.
func (d *Disk) Append(rec Record, done func(error)) uint64 {
	r := rec.row()
	if !r.Kind.known() || len(r.Objects) > maxObjects || len(r.Text) > maxText {
		invariant.Violated("journal: a record of kind %d with %d objects and %d bytes", r.Kind, len(r.Objects), len(r.Text))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return 0
	}
	e := entry{row: r, Seq: d.mu.state.Seq + 1, Term: d.term}
	d.mu.buf = appendBody(openFrame(d.mu.buf), &e)
	d.mu.ends = append(d.mu.ends, len(d.mu.buf))
	d.mu.state.apply(&e)
	d.mu.dones = append(d.mu.dones, done)
	d.mu.queued++
	d.mu.demand = d.mu.demand || done != nil
	d.signalLocked()
	return e.Seq
}

func (d *Disk) signalLocked() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// group is what is written and synced together.
type group struct {
	buf      []byte
	ends     []int
	dones    []func(error)
	demand   bool
	closed   bool
	broken   error
	first    uint64
	snapshot *State // to be written after this group, which it includes
}

func (d *Disk) takeLocked(old group) group {
	g := group{buf: d.mu.buf, ends: d.mu.ends, dones: d.mu.dones, demand: d.mu.demand, closed: d.mu.closed,
		broken: d.mu.broken}
	g.first = d.mu.state.Seq + 1 - uint64(len(g.ends))
	d.mu.buf, d.mu.ends, d.mu.dones, d.mu.demand = old.buf[:0], old.ends[:0], old.dones[:0], false
	d.mu.since += int64(len(g.buf))
	due := d.mu.since > max(d.options.SnapshotBytes, d.mu.snap) || len(d.mu.files) > maxOpenFiles && d.mu.since > d.mu.hold
	if due && !d.mu.tidying && g.broken == nil && !g.closed {
		g.snapshot = d.mu.state.clone()
		d.mu.tidying = true
		d.mu.since = 0
	}
	return g
}

// run writes groups, and calls back in order and outside the lock, so that a callback may append.
func (d *Disk) run() {
	defer close(d.idle)
	var old group
	for range d.wake {
		for {
			d.mu.Lock()
			g := d.takeLocked(old)
			d.mu.Unlock()
			old = g                                       // its buffers are free when the next group is taken
			last := g.closed && d.lazy && g.broken == nil // something is written and not synced
			if len(g.ends) == 0 && !g.demand && g.snapshot == nil && !last {
				if g.closed {
					return
				}
				break
			}
			err := g.broken
			if err == nil {
				if err = d.write(&g); err != nil {
					err = failed(d.fs, err, "write to it")
					d.mu.Lock()
					d.mu.broken = err
					d.mu.Unlock()
				}
			}
			d.callBack(g.dones, err)
			if err == nil && !g.closed {
				if err = d.roll(&g); err != nil && !isFull(err) { // full: it is being closed, and needs no other file
					d.mu.Lock()
					d.mu.broken = failed(d.fs, err, "begin another file in it")
					d.mu.Unlock()
				}
			}
		}
	}
}

func (d *Disk) callBack(dones []func(error), err error) {
	for i, done := range dones {
		if done != nil {
			done(err)
		}
		dones[i] = nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.called += uint64(len(dones))
	d.mu.waiters = slices.DeleteFunc(d.mu.waiters, func(w waiter) bool {
		if w.until > d.mu.called || d.lazy && d.mu.broken == nil {
			return false
		}
		close(w.done)
		return true
	})
}

// write makes a group part of the log, and durable when a caller waits for it.
func (d *Disk) write(g *group) error {
	if len(g.buf) > 0 {
		seed, from := d.header.seed(), 0
		for i, end := range g.ends {
			sealFrame(g.buf[from:end:end], seed, g.first+uint64(i), d.durable)
			from = end
		}
		if err := d.append(g.buf); err != nil {
			return err
		}
		d.lazy = true
	}
	last := g.last()
	if d.lazy && (g.demand || g.closed || d.rolls(g)) {
		if err := d.file.Sync(); err != nil {
			return err
		}
		d.lazy, d.durable = false, last
		return d.withRoom(markSize, func() error {
			_, err := d.mark.WriteAt(mark{id: d.id, seq: last, term: d.term}.encode(), 0)
			return err
		})
	}
	return nil
}

func (g *group) last() uint64 { return g.first + uint64(len(g.ends)) - 1 }

// rolls reports whether the group is the last one in its segment.
func (d *Disk) rolls(g *group) bool { return d.written > d.options.SegmentBytes || g.snapshot != nil }

// roll begins another segment when this one is full, and a snapshot when one is due. It comes behind the callbacks of
// the group, which is durable whatever becomes of this.
func (d *Disk) roll(g *group) error {
	if d.rolls(g) && d.written > headerSize {
		if d.reserved > d.written { // it does not need the rest
			if err := d.file.Truncate(d.written); err != nil {
				return err
			}
			d.reserved = d.written
		}
		if err := d.withRoom(reserveStep, func() error { return d.newSegment(g.last() + 1) }); err != nil {
			return err
		}
	}
	if s := g.snapshot; s != nil {
		d.tidying.Go(func() { d.tidy(s) })
	}
	return nil
}

// Sync waits until everything appended is durable; see Log. It must not be called from a callback.
func (d *Disk) Sync(ctx context.Context) error {
	d.mu.Lock()
	if d.mu.broken != nil || d.mu.closed {
		defer d.mu.Unlock()
		return d.mu.broken
	}
	w := waiter{until: d.mu.queued, done: make(chan struct{})}
	d.mu.waiters = append(d.mu.waiters, w)
	d.mu.demand = true
	d.signalLocked()
	d.mu.Unlock()
	select {
	case <-w.done:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.mu.broken
	case <-ctx.Done():
		d.mu.Lock()
		d.mu.waiters = slices.DeleteFunc(d.mu.waiters, func(x waiter) bool { return x.done == w.done })
		d.mu.Unlock()
		return context.Cause(ctx)
	}
}

// Close makes everything durable, calls back, and releases the folder; see Log. The error is the one that broke the
// log.
func (d *Disk) Close() error {
	d.mu.Lock()
	again := d.mu.closed
	d.mu.closed = true
	if !again {
		close(d.closing)
	}
	d.signalLocked()
	d.mu.Unlock()
	<-d.idle
	d.tidying.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if again {
		return d.mu.broken
	}
	if d.mu.broken == nil {
		if err := d.mark.Sync(); err != nil {
			d.mu.broken = failed(d.fs, err, "sync its mark")
		}
	}
	_, _, _ = d.file.Close(), d.mark.Close(), d.lock.Close() // synced, or broken already
	return d.mu.broken
}
