package dsa

import "larder/internal/bits"

// The bounds of a slow job: it becomes slow when it takes less than a quarter of its epoch during one of the fast job,
// and ceases to be slow when it takes a third.
const (
	slowBelow = 4 // a quarter
	slowAbove = 3 // a third
)

// pace is how fast a job goes beside its neighbours. prefer.go says what follows from it.
type pace struct {
	took   uint64          // picks of all epochs, without what was withdrawn
	faster bits.JobSet     // jobs beside which this one is slow
	at     uint64          // took, when the neighbours were last compared
	with   bits.JobSet     // the neighbours that ran then
	from   [MaxJobs]uint64 // by slot: what they had taken then
}

// comparePace compares how far the neighbours of j have come while j took as many samples as its subset holds: an
// epoch, or parts of several that it gave up. A job that resumes an epoch has not taken what was withdrawn, so it
// compares no one too early. It reports whether some neighbour became slow beside j, or ceased to be.
func (r *roster) comparePace(j *job) (changed bool) {
	if j.pace.took-j.pace.at < uint64(len(j.subset)) && j.pace.with != 0 {
		return false
	}
	for m := j.peers.neighbours & j.pace.with & r.live; m != 0; m &= m - 1 {
		k := r.slot[first(m)]
		took, n := k.pace.took-j.pace.from[k.slot], uint64(len(k.subset))
		was := k.pace.faster.Has(j.slot)
		if is := took*slowBelow < n || was && took*slowAbove < n; is != was {
			changed = true
			if is {
				k.pace.faster = k.pace.faster.With(j.slot)
			} else {
				k.pace.faster = k.pace.faster.Without(j.slot)
			}
			r.setSlow(k)
		}
	}
	j.pace.at, j.pace.with = j.pace.took, 0
	for m := j.peers.neighbours & r.live & r.marked & r.active; m != 0; m &= m - 1 {
		if k := r.slot[first(m)]; k != j {
			j.pace.from[k.slot] = k.pace.took
			j.pace.with = j.pace.with.With(k.slot)
		}
	}
	return changed
}

// setSlow enters the job in the set of slow jobs, or removes it.
func (r *roster) setSlow(k *job) {
	if k.pace.faster != 0 {
		r.slow = r.slow.With(k.slot)
	} else {
		r.slow = r.slow.Without(k.slot)
	}
}

// forgetPace drops every comparison with the job in that slot: it has left, stopped, come back or changed its subset.
func (r *roster) forgetPace(slot uint8) {
	for _, k := range r.slot {
		if k == nil {
			continue
		}
		k.pace.with, k.pace.faster = k.pace.with.Without(slot), k.pace.faster.Without(slot)
		if k.slot == slot {
			k.pace.with, k.pace.faster = 0, 0
		}
		r.setSlow(k)
	}
}

// reclassify notes that needs near j may count differently now, without a take: the lists of its neighbours may hold
// objects that belong in lower ones (lists.go).
func (r *roster) reclassify(j *job) {
	for m := (j.peers.neighbours | 1<<j.slot) & r.laidOut; m != 0; m &= m - 1 {
		r.slot[first(m)].groups.reclassified = true
	}
}
