package coordinator

import (
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

// Jobs of order given: their clients say which samples come (jobs.Spec.Given). The sampler does not know them, so they
// reach no other order. What they bring into memory is neutral, and in the tiers only what is planned for them counts.
// Each pick is an instance of its own: a sample that comes twice in an epoch is augmented twice (guarantee G3). So an
// epoch takes as many instances as its most frequent sample has picks.

// picks counts how often each object was picked in an epoch.
type picks struct {
	pages [][]uint32
	// all counts all objects together, and n is how many there were: so builds did whose journals say nothing of picks. An
	// epoch that began so goes on so, else a sample could come in an instance that it was given before.
	all bool
	n   uint32
}

const pageOfPicks = 1 << 10 // objects that are counted together, so that a small subset of a large dataset costs little

// add counts a pick, and returns by how much its instance differs from that of the epoch.
func (p *picks) add(x ident.ObjectID) uint32 {
	if p.all {
		p.n++
		return p.n - 1
	}
	at := int(x / pageOfPicks)
	for len(p.pages) <= at {
		p.pages = append(p.pages, nil)
	}
	if p.pages[at] == nil {
		p.pages[at] = make([]uint32, pageOfPicks)
	}
	n := &p.pages[at][x%pageOfPicks]
	*n++
	return *n - 1
}

// picks takes the next batches of an index stream.
func (lc *lifecycle) picks(e Picks) {
	s, k := lc.roster.live(e.Job, e.Rank, e.Inc)
	if s == nil {
		lc.step.reply(e.Token, Reply{Err: lc.rankLost(e.Job, e.Rank, e.Inc)})
		return
	}
	if err := s.refusePicks(k, e); err != nil {
		lc.step.reply(e.Token, Reply{Err: err})
		return
	}
	planned := 0
	if k.Phase == jobs.InEpoch {
		planned = k.Step
	}
	if err := k.Stream.Append(s.job.Spec, planned, e.First, e.Batches, e.End); err != nil {
		lc.step.reply(e.Token, Reply{Err: err})
		return
	}
	lc.step.reply(e.Token, Reply{Job: e.Job})
	lc.activate(s)
	lc.planner.plan(s)
	lc.planner.endStream(s, e.Rank)
}

// refusePicks says what is wrong with picks; nil = nothing is.
func (s *stream) refusePicks(k *jobs.Rank, e Picks) error {
	name := s.job.Spec.Name
	switch {
	case !s.job.Spec.Given:
		return errs.New(errs.Protocol, name, "register the job with order given",
			"picks for job %s, whose order is its own", name)
	case k.Phase != jobs.Waiting && k.Phase != jobs.InEpoch || k.Asked != int64(e.Epoch):
		return errs.New(errs.Protocol, name, "ask for the epoch first", "picks of epoch %d of job %s, which it is not in",
			e.Epoch, name)
	}
	for i, b := range e.Batches {
		for row, x := range b {
			if !s.job.Member.Has(uint32(x)) && !s.isGone(x) {
				return errs.New(errs.Invalid, name, "name samples that the job's subset has",
					"row %d of step %d of job %s is a sample outside of its subset", row, e.First+i, name)
			}
		}
	}
	return nil
}

// planGiven plans the next batch of an index stream, into a slot that was taken for it.
func (pl *planner) planGiven(d *delivery) {
	s := d.s
	picks := s.job.NextGiven(d.rank)
	d.rows, d.fills = again(&pl.spareRows, len(picks))[:0], again(&pl.spareFills, len(picks))
	pl.deliveries[d.id] = d
	s.ranks[d.rank].planned = append(s.ranks[d.rank].planned, d)
	d.pending = len(picks)
	pl.commit(s, d.ledger, picks)
	for i, x := range picks {
		d.rows = append(d.rows, row{object: x, at: s.picked.add(x), turn: pl.flights.takeTurn(s)})
		pl.flights.source(d, i)
	}
	pl.persistOf(d, RecordAssigned{Job: s.job.ID, Rank: d.rank, Inc: d.inc, Epoch: d.epoch, Step: d.step, Objects: picks})
}

// newest is the newest instance among the rows of a batch.
func (d *delivery) newest() uint32 {
	at := uint32(0)
	for i := range d.rows {
		at = max(at, d.rows[i].at)
	}
	return d.instance + at
}

// endStream ends the epoch of a rank whose client has said which batch is the last, when it was sent that one.
func (pl *planner) endStream(s *stream, r int) {
	k, q := &s.job.Ranks[r], &s.ranks[r]
	if !s.job.Spec.Given || s.job.State.Ended() || k.Phase != jobs.InEpoch || k.Asked != int64(k.Epoch) ||
		k.Ended == k.Asked || !k.Stream.Over(k.Step) || len(q.planned)+len(q.resends) > 0 {
		return
	}
	l := s.job.Ledger()
	if !l.Open() && int64(q.lastEnd.Epoch) == k.Asked {
		pl.endEpochAgain(s, r)
		return
	}
	pl.endEpoch(s, r, epochEnd{k.Epoch, k.Step, l})
}
