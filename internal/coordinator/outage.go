package coordinator

import (
	"errors"
	"fmt"
	"time"

	"larder/internal/ident"
	"larder/jobs"
)

// A place that a dataset is read from may fail as a whole: credentials expire, a disk is unmounted, a bucket cannot be
// reached. That says nothing of the samples, so none is quarantined, and no epoch loses one: what is to be read from
// there waits. One flight at a time tries it again, after longer and longer pauses; the first that is answered, with
// bytes or with what is wrong with that sample, ends the outage for all. Jobs need no bound of their own: a client
// waits as long as its timeout says, and WaitOf names the cause. What is in memory is served meanwhile.

// Pauses between two tries; each is twice the one before.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// outage is that of the place of one dataset.
type outage struct {
	dataset int // its index in roster.datasets
	since   time.Time
	next    time.Time // the next try, when none is under way
	pause   time.Duration
	why     string  // the newest failure
	probe   *flight // that tries it; nil = none does
	away    turns   // that wait for its end
}

// outageOf is the outage of a dataset; nil = its place answers.
func (fl *flights) outageOf(dataset int) *outage {
	for _, o := range fl.outages {
		if o.dataset == dataset {
			return o
		}
	}
	return nil
}

// keepBack has a flight wait that is to be read from a place which does not answer, and reports whether it does.
func (fl *flights) keepBack(f *flight) bool {
	if len(fl.outages) == 0 || f.key.Form != ident.Decoded || f.from != ident.Stored {
		return false
	}
	o := fl.outageOf(f.dataset)
	if o == nil || o.probe == f {
		return false
	}
	fl.goAway(f, o)
	return true
}

func (fl *flights) goAway(f *flight, o *outage) {
	f.become(flightAway)
	f.outage = o
	o.away.put(f)
}

// placeFailed has a flight wait for the end of an outage, which begins with it if there is none yet.
func (fl *flights) placeFailed(f *flight, why string) {
	o := f.outage
	if o == nil {
		o = fl.outageOf(f.dataset)
	}
	if o == nil {
		o = &outage{dataset: f.dataset, since: fl.step.now, pause: firstPause, next: fl.step.now.Add(firstPause)}
		fl.outages = append(fl.outages, o)
		fl.step.emit(PlaceFailed{Object: f.key.Object, Why: why})
	}
	o.why = why
	if o.probe == f {
		o.tryLater(fl.step.now)
	}
	fl.goAway(f, o)
}

func (o *outage) tryLater(now time.Time) {
	o.probe = nil
	o.pause = min(2*o.pause, longestPause)
	o.next = now.Add(o.pause)
}

// answered ends the outage that a flight was to try, unless its place has failed again.
func (fl *flights) answered(f *flight, e Prepared) {
	o := f.outage
	if o == nil || o.probe != f || e.Away {
		return
	}
	f.outage = nil
	if e.Lost {
		o.tryLater(fl.step.now)
		return
	}
	fl.endOutage(o)
}

func (fl *flights) endOutage(o *outage) {
	for i, p := range fl.outages {
		if p == o {
			fl.outages = append(fl.outages[:i], fl.outages[i+1:]...)
			break
		}
	}
	for f, ok := o.away.first(); ok; f, ok = o.away.first() {
		fl.dequeue(f)
		f.outage = nil
		fl.enqueue(f)
	}
	fl.step.emit(PlaceBack{Why: o.why, After: fl.step.now.Sub(o.since)})
}

// leaveOutage takes a flight that is given up out of the outage that it waits for. One that nobody waits for is over:
// the next read finds out.
func (fl *flights) leaveOutage(f *flight) {
	o := f.outage
	if o == nil {
		return
	}
	f.outage = nil
	if o.probe == f {
		o.tryLater(fl.step.now)
	}
	if o.probe == nil && o.away.Len() == 0 {
		fl.endOutage(o)
	}
}

// tryPlaces begins the tries that are due.
func (fl *flights) tryPlaces() {
	for _, o := range fl.outages {
		f, ok := o.away.first()
		if o.probe != nil || !ok || fl.step.now.Before(o.next) {
			continue
		}
		fl.dequeue(f)
		o.probe = f
		fl.enqueue(f)
	}
}

// nextTry is when the next try is due; zero = none is.
func (fl *flights) nextTry() (at time.Time) {
	for _, o := range fl.outages {
		if o.probe == nil && o.away.Len() > 0 && (at.IsZero() || o.next.Before(at)) {
			at = o.next
		}
	}
	return at
}

// outageFor says of a row's flight which outage it waits for, in words for people; nil = none.
func (f *flight) outageFor(now time.Time) *jobs.Outage {
	o := f.outage
	if o == nil {
		return nil
	}
	return &jobs.Outage{Why: o.why, For: now.Sub(o.since), Again: o.pause}
}

// checkOutages tests that what waits for outages agrees with them.
func (fl *flights) checkOutages() error {
	var err error
	for i, o := range fl.outages {
		if o.probe == nil && o.away.Len() == 0 {
			err = errors.Join(err, fmt.Errorf("nothing waits for the outage of dataset %d", o.dataset))
		}
		if fl.outageOf(o.dataset) != fl.outages[i] {
			err = errors.Join(err, fmt.Errorf("dataset %d has two outages", o.dataset))
		}
		err = errors.Join(err, o.away.check())
	}
	return err
}
