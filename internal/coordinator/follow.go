package coordinator

import (
	"cmp"
	"slices"

	"larder/internal/ident"
)

// Who waits for a flight, and what becomes of it when one of them leaves.

// abandonFlight takes a flight away and hands its rows, and those of what depends on it, to then.
func (fl *flights) abandonFlight(f *flight, then func(waiter)) {
	rows, augments := f.rows, f.augments
	f.rows, f.augments = nil, nil
	fl.dequeue(f)
	fl.leaveOutage(f)
	fl.forgetFlight(f)
	fl.needs.drop(f.entry)
	if f.from == ident.Stored {
		fl.needs.drop(f.encoded)
	} else {
		fl.needs.unpin(f.encoded)
	}
	f.entry, f.encoded = pin{}, pin{}
	fl.leaveSource(f)
	fl.needs.relevel(f.key.Object)
	for _, a := range augments {
		a.parent = nil
		fl.abandonFlight(a, then)
	}
	for _, w := range rows {
		w.d.rows[w.row].flight = nil
		then(w)
	}
}

// leaveFlight takes a row of a canceled batch out of its flight; a flight without waiters that was not handed
// out yet is given up.
func (fl *flights) leaveFlight(d *delivery, i int) {
	f := d.rows[i].flight
	d.rows[i].flight = nil
	if f == nil {
		return
	}
	for n, w := range f.rows {
		if w.d == d && w.row == i {
			f.rows = append(f.rows[:n], f.rows[n+1:]...)
			break
		}
	}
	fl.passOn(f)
	fl.dropUnwanted(f)
}

// passOn makes a flight, and what it waits for, the work of the oldest of those who wait for it, if the job whose work
// it was has left: that may end and be forgotten, and what the executor is told must be of a job that it still has.
func (fl *flights) passOn(f *flight) {
	for ; f != nil; f = f.parent {
		if s := f.follower(); s != nil && !f.followedBy(f.job) {
			f.job, f.dataset = s.job.ID, s.dataset
		}
	}
}

// follower is the oldest that waits for a flight; nil = none does.
func (f *flight) follower() *stream {
	if len(f.rows) > 0 {
		return f.rows[0].d.s
	}
	for _, a := range f.augments {
		if s := a.follower(); s != nil {
			return s
		}
	}
	return nil
}

// followedBy reports whether a job waits for a flight.
func (f *flight) followedBy(job ident.JobID) bool {
	for i := range f.rows {
		if f.rows[i].d.s.job.ID == job {
			return true
		}
	}
	for _, a := range f.augments {
		if a.followedBy(job) {
			return true
		}
	}
	return false
}

// leave gives up what was to be made ahead for a job that ends, and that no row has asked for.
func (fl *flights) leave(s *stream) {
	var over []*flight
	for _, f := range fl.flightByID { // order-free: they are sorted
		if f.job == s.job.ID && f.phase <= flightAway && f.follower() == nil {
			over = append(over, f)
		}
	}
	slices.SortFunc(over, func(a, b *flight) int { return cmp.Compare(a.id, b.id) })
	for _, f := range over {
		fl.dropUnwanted(f)
	}
}

func (fl *flights) dropUnwanted(f *flight) {
	if f.phase > flightAway || len(f.rows) > 0 || len(f.augments) > 0 {
		return
	}
	parent := f.parent
	if parent != nil && parent.phase != flightCopied {
		for n, a := range parent.augments {
			if a == f {
				parent.augments = append(parent.augments[:n], parent.augments[n+1:]...)
				break
			}
		}
		f.parent = nil // it never used the copy, so leaveSource must not count it
	}
	fl.abandonFlight(f, nil)
	if parent != nil && parent.phase != flightCopied {
		fl.passOn(parent)
		fl.dropUnwanted(parent)
	}
}
