package coordinator

import (
	"larder/internal/ident"
	"larder/tiers/residency"
)

// What jobs that are not visible have in memory, or are having made, is used by visible jobs too, and must change none
// of their choices. So a visible job that comes upon it decides as if it were not there, and only then saves the work.

// underWay is the flight that makes k, as the stream may see it: one that is not visible sees all.
func (fl *flights) underWay(s *stream, k ident.Key) *flight {
	f := fl.flying.get(k)
	if f != nil && s.visible() && !f.visible {
		return nil
	}
	return f
}

// usable reports whether the neutral decoded entry of a sample can stand for what a visible job would have made. It
// cannot where the original bytes would be kept as well, and are not there: then the sample is read as without it.
func (fl *flights) usable(s *stream, x ident.ObjectID, h residency.Handle) bool {
	if !fl.index.Ready(h) && fl.flying.get(fl.index.Key(h)) == nil {
		return false
	}
	if s.making.Workers || fl.index.Budget(ident.Encoded) == 0 {
		return true
	}
	_, there := fl.needs.seen(ident.Key{Object: x, Form: ident.Encoded})
	return there || fl.needs.need(x, fl.needs.unserved(x)&^fl.roster.prefixes[s.prefix].jobs) == 0
}

// discard drops an entry that is neutral.
func (ne *needs) discard(h residency.Handle) {
	k := ne.index.Key(h)
	if ne.index.Drop(h) {
		ne.step.emit(FreeKey{Key: k})
	}
}

// takeOver makes a flight that was begun for jobs that are not visible also that of a visible one, for which it was
// decided whether the decoded tier keeps the result. If it was handed out without that, the entry is filled by another
// flight when this one is over.
//
// Original bytes that the encoded tier would keep are not brought then: see docs/guarantees.md.
func (fl *flights) takeOver(f *flight, s *stream, entry residency.Handle, admitted, alone bool) {
	x := f.key.Object
	if admitted && !f.entry.held {
		fl.hold(f, s, entry)
	}
	if f.phase == flightInPlace { // the row waits for its end, and is sourced again
		return
	}
	f.visible, f.alone = true, alone && !admitted
	switch {
	case s.making.Workers:
	case f.encoded.held:
		if fl.needs.neutral(f.encoded.h) {
			fl.keepStored(x, s, admitted)
		}
	case f.phase == flightQueued || f.phase == flightAway:
		fl.holdStored(f, s)
	default:
	}
	fl.needs.relevel(x)
}

// hold pins the entry that is to have the result of a flight, once, however many visible rows come to it.
func (fl *flights) hold(f *flight, s *stream, entry residency.Handle) {
	if f.later.held && f.later.h == entry {
		return
	}
	fl.needs.unpin(f.later.pin)
	f.later = later{}
	fl.index.Pin(entry)
	if f.phase == flightQueued || f.phase == flightAway {
		f.entry = pin{entry, true}
		return
	}
	f.later = later{pin{entry, true}, s.job.ID}
}

// later is an entry that another flight fills when this one is over, for a job.
type later struct {
	pin
	job ident.JobID
}

// asker is a job that waits for the flight, a visible one if there is any.
// REQUIRES: some row waits.
func (f *flight) asker() *stream {
	for i := range f.rows {
		if s := f.rows[i].d.s; s.visible() {
			return s
		}
	}
	return f.rows[0].d.s
}

// makeLater begins the flight that fills an entry which a flight that is over could not fill any more.
func (fl *flights) makeLater(f *flight) {
	if !f.later.held {
		return
	}
	l := f.later
	f.later = later{}
	if fl.index.Ready(l.h) {
		fl.needs.unpin(l.pin)
		return
	}
	s := fl.roster.streams[l.job]
	if s == nil || !fl.index.Resident(l.h) {
		fl.needs.drop(l.pin)
		return
	}
	g := fl.newFlight(f.key, s, fl.turn+1)
	g.refill, g.entry = true, l.pin
	g.from = ident.Stored
	fl.enqueue(g)
}

// visibleUsers is how many rows of visible jobs, and flights for them, wait for the flight.
func (f *flight) visibleUsers() (n int) {
	for i := range f.rows {
		if f.rows[i].d.s.visible() {
			n++
		}
	}
	for _, a := range f.augments {
		if a.visible {
			n++
		}
	}
	return n
}
