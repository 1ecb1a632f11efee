package coordinator

import (
	"time"

	"larder/internal/ident"
	"larder/jobs"
)

// facts are what is known of what each rank of a job waits for.
func (c *Core) facts(j *jobs.Job) []jobs.Facts {
	s := c.roster.streams[j.ID]
	out := make([]jobs.Facts, len(j.Ranks))
	for r := range j.Ranks {
		k := &j.Ranks[r]
		f := &out[r]
		*f = jobs.Facts{Name: j.Spec.Name, Rank: r, World: len(j.Ranks), State: j.State, Course: j.Course,
			Client: k.PresenceOf(s != nil && s.ranks[r].lives), Over: k.Ended, Slots: j.Spec.Slots}
		for i := range k.Slots {
			if k.Slots[i].State == jobs.Leased {
				f.Held++
			}
		}
		if asked := k.Phase == jobs.Waiting || k.Asked >= 0 && k.Asked != k.Ended; asked {
			f.Progress = jobs.Preparing
			if s != nil && k.Attached() {
				s.progress(r, f, c.step.now)
			}
		}
	}
	return out
}

// progress says how far an attached rank is on the way to the batch that its client asked for.
func (s *stream) progress(r int, f *jobs.Facts, now time.Time) {
	k := &s.job.Ranks[r]
	whole := false
	if k.Phase == jobs.Waiting {
		f.Behind = s.behind()
	} else if q := s.ranks[r].planned; len(q) > 0 && k.Asked == int64(q[0].epoch) {
		q[0].describe(f, now)
		whole = q[0].pending == 0
		f.Step = s.blockedBy(r)
	}
	switch {
	case len(f.Behind) > 0:
		f.Progress = jobs.AwaitsEpoch
	case len(f.Step) > 0:
		f.Progress = jobs.AwaitsStep
	case s.waits() || len(s.catching) > 0:
		f.Progress = jobs.Ordering
	case s.job.Spec.Given && k.Phase == jobs.InEpoch && len(s.ranks[r].planned)+len(s.ranks[r].resends) == 0 &&
		!s.job.HasBatch(r):
		f.Progress = jobs.AwaitsPicks
	case whole && !s.ranks[r].planned[0].written():
		f.Progress = jobs.Recording
	}
}

// connectionLost reports whether the client of a rank lost its connection, or its daemon, and its process lives.
func (s *stream) connectionLost(r int) bool {
	k := &s.job.Ranks[r]
	return s.ranks[r].lives && !k.Attached() && k.Phase != jobs.Left
}

// behind are the ranks without which the next epoch cannot begin.
func (s *stream) behind() []jobs.Behind {
	var out []jobs.Behind
	for r := range s.job.Ranks {
		if k := &s.job.Ranks[r]; s.isBehind(r) {
			out = append(out, jobs.Behind{Rank: r, Client: k.PresenceOf(s.ranks[r].lives), Epoch: k.Epoch,
				InEpoch: k.Phase == jobs.InEpoch && !s.job.Exhausted(r)})
		}
	}
	return out
}

// describe says what there is of a batch, and what of it storage is to give.
func (d *delivery) describe(f *jobs.Facts, now time.Time) {
	f.Rows, f.There = len(d.rows), len(d.rows)-d.pending
	for i := range d.rows {
		w := &d.rows[i]
		if w.flight == nil || w.state != rowWaiting && w.state != rowFilling {
			continue
		}
		x := w.flight
		for x.parent != nil {
			x = x.parent
		}
		if x.phase != flightCopied && x.from == ident.Stored && !x.foreign {
			f.Stored++
		}
		if f.Outage == nil {
			f.Outage = x.outageFor(now)
		}
	}
}
