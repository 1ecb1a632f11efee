package coordinator

import (
	"larder/internal/ident"
	"larder/jobs"
)

// wantsAlone reports whether no other job that has the prefix of s needs x now. For a job that is not visible, whatever
// another one in the order of the dataset may come to is left to be shared; what an index stream comes to is not
// known. Samples of ragged batches are not written in place, because their size is not known before.
func (fl *flights) wantsAlone(s *stream, x ident.ObjectID) bool {
	if s.augBytes == 0 || s.making.InSteps || fl.sampler.NeedOf(x, fl.roster.prefixes[s.prefix].jobs) > 0 {
		return false
	}
	for _, o := range fl.roster.order {
		if s.visible() && !o.visible() { // no choice of a visible job may know of it
			continue
		}
		if o != s && o.prefix == s.prefix && o.positional() && !o.job.Spec.Given && o.job.Active() &&
			o.job.Member.Has(uint32(x)) {
			return false
		}
	}
	return true
}

// shareFlight lets one more row, of s, wait for a flight, and reports whether it may: not what is being prepared in
// place. For the sampler, what only a job that is not visible shares is alone.
func (fl *flights) shareFlight(f *flight, s *stream) bool {
	if f.phase == flightInPlace {
		return false
	}
	if f.alone && (s.visible() || !f.visible) {
		f.alone = false
		fl.needs.relevel(f.key.Object)
	}
	return true
}

// preparedInPlace takes the row that was filled with its flight. A job that began to wait for the sample meanwhile
// starts a new flight.
func (fl *flights) preparedInPlace(f *flight, e Prepared) {
	fl.step.stats.InPlace++
	fl.step.stats.Augments += uint64(e.Augments)
	fl.countWork(f, func(j *jobs.Stats) { j.Augments += uint64(e.Augments) })
	d, w := f.rows[0].d, &f.rows[0].d.rows[f.rows[0].row]
	f.rows = f.rows[1:]
	fl.served(d.s, w.turn)
	w.state, w.flight = rowDone, nil
	if d.phase != deliveryCanceled {
		d.pending--
	}
	fl.counted, f.counted = f.counted, nil
	fl.abandonFlight(f, func(w waiter) { fl.source(w.d, w.row) })
	fl.counted = nil
	fl.settle(d)
}

// leavePlace takes back that a row was being written by its flight, which failed. The row waits for what the flight
// does next, unless its batch was canceled; that is returned. If visible jobs came to it meanwhile, it is theirs too.
func (fl *flights) leavePlace(f *flight) *delivery {
	d, i := f.rows[0].d, f.rows[0].row
	f.become(flightRunning)
	d.rows[i].state = rowWaiting
	if d.phase == deliveryCanceled {
		f.rows = f.rows[1:]
		d.rows[i].state, d.rows[i].flight = rowDone, nil
		fl.passOn(f)
	}
	if f.later.entry.held { // it can take the result after all
		f.entry, f.later.entry = f.later.entry, pin{}
	}
	users := f.visibleUsers()
	f.visible = f.visible || users > 0
	f.alone = users <= 1 && !f.entry.held
	if !f.alone {
		fl.needs.relevel(f.key.Object)
	}
	return d
}
