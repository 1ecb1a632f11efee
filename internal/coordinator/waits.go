package coordinator

import (
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
		*f = jobs.Facts{Name: j.Spec.Name, Rank: r, World: len(j.Ranks), Ended: j.State.Ended(), Paused: j.Paused(),
			Attached: k.Attached(), Came: k.Attaches > 0, Left: k.Phase == jobs.Left, Over: k.Ended, Slots: j.Spec.Slots,
			Asked: k.Phase == jobs.Waiting || k.Asked >= 0 && k.Asked != k.Ended}
		for i := range k.Slots {
			if k.Slots[i].State == jobs.Leased {
				f.Held++
			}
		}
		f.Lost = s != nil && s.connectionLost(r)
		if s == nil || !k.Attached() || !f.Asked {
			continue
		}
		f.Order = s.waits() || len(s.catching) > 0
		if k.Phase == jobs.Waiting {
			f.Behind = s.behind()
			continue
		}
		if q := s.ranks[r].planned; len(q) > 0 && k.Asked == int64(q[0].epoch) {
			q[0].describe(f)
			f.Step = s.blockedBy(r)
		}
	}
	return out
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
			out = append(out, jobs.Behind{Rank: r, Came: k.Attaches > 0, Attached: k.Attached(), Lost: s.connectionLost(r),
				Epoch:   k.Epoch,
				InEpoch: k.Phase == jobs.InEpoch && k.Step < s.job.Spec.Batches(r)})
		}
	}
	return out
}

// describe says what there is of a batch, and what of it storage is to give.
func (d *delivery) describe(f *jobs.Facts) {
	f.Rows, f.There = len(d.rows), len(d.rows)-d.pending
	f.Unwritten = d.pending == 0 && !d.written()
	for i := range d.rows {
		w := &d.rows[i]
		if w.flight == nil || w.state != rowWaiting && w.state != rowFilling {
			continue
		}
		x := w.flight
		for x.parent != nil {
			x = x.parent
		}
		if x.phase != flightCopied && x.from == ident.Stored {
			f.Stored++
		}
	}
}
