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
// asks what it waits for, WaitOf names the cause, and says when it lasts for too long. What is in memory is served
// meanwhile, and so is what lies elsewhere: a dataset may lie on several disks, each of which is a place.

// Pauses between two tries; each is twice the one before.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// outage is that of one place of one dataset.
type outage struct {
	dataset int // its index in roster.datasets
	place   ident.Place
	since   time.Time
	next    time.Time // the next try, when none is under way
	pause   time.Duration
	why     string  // the newest failure
	probe   *flight // that tries it; nil = none does
	away    turns   // that wait for its end
}

// outageOf is the outage of the place that a flight is to be read from; nil = it answers.
func (fl *flights) outageOf(f *flight) *outage {
	at := fl.placeOf(f.key.Object)
	for _, o := range fl.outages {
		if o.dataset == f.dataset && o.place == at {
			return o
		}
	}
	return nil
}

func (fl *flights) placeOf(x ident.ObjectID) ident.Place {
	if fl.cfg.Place == nil {
		return ident.Place{}
	}
	return fl.cfg.Place(x)
}

// keepBack has a flight wait that is to be read from a place which does not answer, and reports whether it does.
func (fl *flights) keepBack(f *flight) bool {
	if len(fl.outages) == 0 || f.key.Form != ident.Decoded || f.from != ident.Stored || f.bare {
		return false
	}
	o := fl.outageOf(f)
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
		o = fl.outageOf(f)
	}
	if o == nil {
		o = fl.beginOutage(f, why)
	}
	o.why = why
	if o.probe == f {
		o.tryLater(fl.step.now)
	}
	fl.goAway(f, o)
}

func (fl *flights) beginOutage(f *flight, why string) *outage {
	now := fl.step.now
	o := &outage{dataset: f.dataset, place: fl.placeOf(f.key.Object), since: now, pause: firstPause,
		next: now.Add(firstPause)}
	fl.outages = append(fl.outages, o)
	d := &fl.roster.datasets[o.dataset]
	d.storage.begin(now)
	fl.step.emit(PlaceFailed{Dataset: d.id, Object: f.key.Object, Why: why})
	return o
}

// storage is how reliable the places of a dataset were.
type storage struct {
	outages uint64
	failing int           // places that fail at this moment
	since   time.Time     // one of them fails, without a break
	failed  time.Duration // in all, before since
}

func (s *storage) begin(now time.Time) {
	s.outages++
	if s.failing++; s.failing == 1 {
		s.since = now
	}
}

func (s *storage) end(now time.Time) {
	if s.failing--; s.failing == 0 {
		s.failed += now.Sub(s.since)
	}
}

// StorageView is how reliable the storage of a dataset was.
type StorageView struct {
	Outages uint64        // of places of the dataset, since the daemon began
	Failed  time.Duration // in which one of them failed, before Since
	Since   time.Time     // one of them has failed without a break since then; zero = all answer
	Why     string        // the newest failure of the place that has failed for longest
}

// Lasted is the time in which a place of the dataset failed, up to now.
func (v *StorageView) Lasted(now time.Time) time.Duration {
	if v.Since.IsZero() {
		return v.Failed
	}
	return v.Failed + max(now.Sub(v.Since), 0)
}

func (fl *flights) storageView(dataset int) StorageView {
	s := &fl.roster.datasets[dataset].storage
	v := StorageView{Outages: s.outages, Failed: s.failed}
	for _, o := range fl.outages {
		if o.dataset == dataset {
			v.Since, v.Why = s.since, o.why
			break
		}
	}
	return v
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
	if e.Lost { // it waits again, or is given up: then the outage ends if no other flight waits for it
		o.tryLater(fl.step.now)
		return
	}
	f.outage = nil
	fl.endOutage(o)
}

// itemRead ends the outage that a flight was to try, whose steps workers of clients have yet to run.
func (fl *flights) itemRead(e ItemRead) {
	if f := fl.flightByID[e.Flight]; f != nil {
		fl.answered(f, Prepared{Flight: e.Flight})
	}
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
	d := &fl.roster.datasets[o.dataset]
	d.storage.end(fl.step.now)
	fl.step.emit(PlaceBack{Dataset: d.id, Why: o.why, After: fl.step.now.Sub(o.since)})
}

// leaveOutage takes a flight that is given up out of the outage that it waits for. One without waiters is over:
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
		if o.probe != nil || o.away.Len() == 0 || fl.step.now.Before(o.next) {
			continue
		}
		f := o.candidate()
		fl.dequeue(f)
		o.probe = f
		fl.enqueue(f)
	}
}

// candidate is the flight that is to try the place: the earliest one that the executor makes, which always answers,
// else the earliest that workers of clients make. One waits at least.
func (o *outage) candidate() *flight {
	best := o.away.heap[0].f
	for i := range o.away.heap {
		f := o.away.heap[i].f
		if f.foreign != best.foreign && best.foreign || f.foreign == best.foreign && f.before(best) {
			best = f
		}
	}
	return best
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
	return &jobs.Outage{Why: o.why, Since: o.since, For: now.Sub(o.since), Again: o.pause}
}

// checkOutages tests that what waits for outages agrees with them.
func (fl *flights) checkOutages() error {
	var err error
	for d := range fl.roster.datasets {
		n := 0
		for _, o := range fl.outages {
			if o.dataset == d {
				n++
			}
		}
		if n != fl.roster.datasets[d].storage.failing {
			err = errors.Join(err, fmt.Errorf("%d places of dataset %d fail, counted are %d", n, d,
				fl.roster.datasets[d].storage.failing))
		}
	}
	for i, o := range fl.outages {
		if o.probe == nil && o.away.Len() == 0 {
			err = errors.Join(err, fmt.Errorf("nothing waits for the outage of dataset %d", o.dataset))
		}
		for _, p := range fl.outages[:i] {
			if p.dataset == o.dataset && p.place == o.place {
				err = errors.Join(err, fmt.Errorf("a place of dataset %d has two outages", o.dataset))
			}
		}
		err = errors.Join(err, o.away.check())
	}
	return err
}
