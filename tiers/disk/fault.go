package disk

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/units"
)

// deed is what failed.
type deed uint8

const (
	reading deed = iota
	writing
	removing
)

func (d deed) String() string { return [...]string{"read", "write", "remove"}[d] }

const (
	restFirst = 30 * time.Second
	restMost  = 10 * time.Minute
	fullFor   = time.Minute // until a full disk is tried again
	badReads  = 16          // one after another, until reads rest
)

// fault is what a failing disk has led to. A rest ends by itself: then the disk is tried again.
type fault struct {
	full        int64 // what may be used until fullUntil
	fullUntil   time.Time
	writesUntil time.Time
	readsUntil  time.Time
	rest        time.Duration // of the last rest of writes
	bad         int           // failed reads one after another
	why         error
	said        map[string]bool
}

func (f *fault) limit(size int64, now time.Time) int64 {
	if now.Before(f.fullUntil) {
		return min(size, f.full)
	}
	return size
}

func (f *fault) writesRest(now time.Time) bool { return now.Before(f.writesUntil) }
func (f *fault) readsRest(now time.Time) bool  { return now.Before(f.readsUntil) }
func (f *fault) readWorked()                   { f.bad = 0 }
func (f *fault) writeWorked()                  { f.rest = 0 }

// words says what does not work now; "" = everything does.
func (f *fault) words(now time.Time) string {
	switch {
	case f.readsRest(now):
		return fmt.Sprintf("it is not read until %s: %v", f.readsUntil.Format(time.TimeOnly), f.why)
	case f.writesRest(now):
		return fmt.Sprintf("it is not written until %s: %v", f.writesUntil.Format(time.TimeOnly), f.why)
	case now.Before(f.fullUntil):
		return fmt.Sprintf("the disk is full: it has %s until there is room", units.Size(f.full))
	}
	return ""
}

// failed counts a failure, says it the first time, and lets the tier do less for a while.
func (s *Store) failed(d deed, name string, err error) {
	now := s.cfg.now()
	s.mu.Lock()
	h := &s.held
	f := &h.fault
	torn := errors.Is(err, errTorn)
	if !torn {
		h.counts.Errors++
		f.why = err
	}
	what := "the disk tier has damaged bytes, which are read from the store again"
	switch {
	case torn:
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		what = "the disk of the disk tier is full; the tier stays as large as it is until there is room"
		f.full, f.fullUntil = h.used, now.Add(fullFor)
	case d == reading:
		what = "the disk tier cannot be read; jobs read from the store instead"
		if f.bad++; f.bad >= badReads {
			f.bad, f.readsUntil = 0, now.Add(restFirst)
		}
	default:
		what = "the disk tier cannot be written; jobs are not held up, and it is tried again"
		f.rest = min(max(restFirst, 2*f.rest), restMost)
		f.writesUntil = now.Add(f.rest)
	}
	kind := what
	first := !f.said[kind]
	if first {
		if f.said == nil {
			f.said = map[string]bool{}
		}
		f.said[kind] = true
	}
	s.mu.Unlock()
	if first {
		s.log.Warn(what, "dir", s.cfg.Dir, "file", name, "attempt", d.String(), "error", err,
			"fix", "larder tiers ls shows how it is; the kernel's log may say more")
	}
}
