package coresim

import (
	"slices"
	"time"

	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/ident"
)

// join registers a client and attaches its ranks.
func (s *sim) join(c *Client) {
	s.joined++
	s.pending--
	s.ask(func(t coordinator.Token) coordinator.Event {
		bytes := c.Augmented
		if bytes == 0 {
			bytes = s.m.Augment
		}
		s.augments = append(s.augments, augmented{c.Suffix, bytes})
		return coordinator.Register{Token: t, Spec: c.Spec, Sample: c.Sample, Prefix: c.Prefix, Suffix: c.Suffix,
			Share: c.Share,
			Key:   c.Key, AugmentedBytes: bytes, Dataset: c.Data, Names: c.Names}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.fail("register %s: %v", c.Spec.Name, r.Err)
			return
		}
		sc := &simClient{c: c, id: r.Job, ranks: make([]*simRank, c.Spec.World), subset: c.Sample.Subset,
			had: c.Sample.Subset}
		s.res.Subsets[c.Spec.Name] = []Selection{{0, c.Sample.Subset}}
		s.clients[r.Job] = sc
		if !s.strict {
			sc.number = s.m.Collect.Register(s.now, c.Measure)
			if c.Leave > s.now {
				s.at(c.Leave, func() { s.leave(sc) })
			}
		}
		for i := range c.Spec.World {
			s.attach(sc, i)
		}
	})
}

func (s *sim) attach(c *simClient, rank int) {
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.Attach{Token: t, Job: c.id, Rank: rank}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.fail("attach %s: %v", c.c.Spec.Name, r.Err)
			return
		}
		k := &simRank{rank: rank, inc: r.Inc, ended: map[uint32]*coordinator.EndEpoch{}}
		c.ranks[rank] = k
		s.iter(c, k, r.Epoch)
	})
}

// iter is the client's iter().
func (s *sim) iter(c *simClient, k *simRank, epoch uint32) {
	k.epoch, k.inEpoch, k.bad, k.asked, k.since = epoch, 0, 0, false, s.now
	if s.strict {
		k.rec = &Received{Job: c.c.Spec.Name, Rank: k.rank, Epoch: epoch, Begun: s.now, Again: k.inc > 1,
			Instance: map[ident.ObjectID]uint32{}}
		s.res.Epochs = append(s.res.Epochs, k.rec)
	} else {
		s.m.Collect.Begin(c.number, s.now, epoch)
	}
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: c.id, Rank: k.rank, Inc: k.inc, Epoch: epoch}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.fail("epoch %d of %s: %v", epoch, c.c.Spec.Name, r.Err)
			return
		}
		k.asked, k.batches = true, r.Batches
		s.take(c, k)
	})
}

// selects gives a job another subset, as its script or the dataset has it; nil = none. A refusal keeps the one it has,
// without what is gone.
func (s *sim) selects(c *simClient, rank int, subset []ident.ObjectID) {
	ev := coordinator.ChangeSubset{Job: c.id, Rank: rank}
	for _, x := range append(slices.Clone(c.had), subset...) {
		if s.gone[x] {
			if ev.Gone == nil {
				ev.Gone = new(bits.Set)
			}
			ev.Gone.Add(uint32(x))
		}
	}
	if len(subset) > 0 && !slices.Equal(subset, c.subset) {
		c.mark++
		ev.Mark, ev.Subset, ev.Member = c.mark, subset, coordinator.Members(subset)
	}
	was := c.subset
	if ev.Subset != nil {
		c.subset, c.had = subset, append(slices.Clone(c.had), subset...)
	}
	s.ask(func(t coordinator.Token) coordinator.Event {
		ev.Token = t
		return ev
	}, func(r coordinator.Reply) {
		switch {
		case r.Err != nil && ev.Subset != nil:
			c.subset = was
			s.selects(c, rank, nil)
		case r.Err == nil && ev.Subset != nil:
			s.res.Subsets[c.c.Spec.Name] = append(s.res.Subsets[c.c.Spec.Name], Selection{r.Epoch, subset})
		}
	})
}

// changeData adds and removes files, and announces that to the jobs.
func (s *sim) changeData(d DataChange) {
	for _, x := range d.Gone {
		s.gone[x] = true
	}
	for _, j := range s.core.Jobs(false) {
		c := s.clients[j.ID]
		if c == nil {
			continue
		}
		var subset []ident.ObjectID
		for _, x := range c.subset {
			if !s.gone[x] {
				subset = append(subset, x)
			}
		}
		s.selects(c, 0, append(subset, d.Add...))
	}
}

// happens does what the script does after so many batches.
func (s *sim) happens(c *simClient, k *simRank) {
	if subset := c.c.Change[k.got]; len(subset) > 0 && (k.rank == 0 || c.c.Alike) {
		var live []ident.ObjectID
		for _, x := range subset {
			if !s.gone[x] {
				live = append(live, x)
			}
		}
		s.selects(c, k.rank, live)
	}
	if k.rank == 0 && c.c.Pause > 0 && k.got == c.c.Pause {
		s.res.Paused++
		s.step(coordinator.Pause{Job: c.id, On: true})
		s.after(c.c.PauseFor, func() { s.step(coordinator.Pause{Job: c.id}) })
	}
}

func (s *sim) deliver(x coordinator.Deliver) {
	c := s.clients[x.Job]
	k := c.ranks[x.Rank]
	if k == nil || k.gone || k.inc != x.Inc {
		s.fail("a batch for a client that is gone: job %d rank %d incarnation %d", x.Job, x.Rank, x.Inc)
		return
	}
	k.inbox = append(k.inbox, x)
	s.after(0, func() { s.take(c, k) })
}

func (s *sim) endEpoch(x coordinator.EndEpoch) {
	c := s.clients[x.Job]
	k := c.ranks[x.Rank]
	k.ended[x.Epoch] = &x
	s.after(0, func() { s.take(c, k) })
}

func (s *sim) release(c *simClient, k *simRank, x coordinator.Deliver, waited time.Duration) {
	s.step(coordinator.Released{Job: c.id, Rank: k.rank, Inc: k.inc, Slot: x.Slot, Gen: x.Gen, Waited: waited})
}

// receive notes what is in a batch.
func (s *sim) receive(c *simClient, k *simRank, x coordinator.Deliver, waited time.Duration) {
	rows := s.rows[x.Delivery]
	if s.ids = s.ids[:0]; !s.strict {
		k.bad += len(x.Bad)
	}
	for _, i := range x.Rows {
		if rows == nil || i >= len(rows.filled) || !rows.filled[i] {
			s.fail("job %s: row %d was delivered but never filled", c.c.Spec.Name, i)
			return
		}
		if !s.strict {
			s.ids = append(s.ids, uint32(rows.object[i]))
			continue
		}
		k.rec.IDs = append(k.rec.IDs, rows.object[i])
		k.rec.Instance[rows.object[i]] = rows.instance[i]
	}
	if s.strict {
		k.rec.Sizes = append(k.rec.Sizes, len(x.Rows))
		k.rec.Bad = append(k.rec.Bad, x.Bad...)
	} else {
		s.m.Collect.Batch(c.number, s.now, k.epoch, waited, s.ids)
	}
	s.taken(x.Delivery)
}

// leave takes all ranks of a client away before its epochs are over.
func (s *sim) leave(c *simClient) {
	for _, k := range c.ranks {
		if k != nil && !k.gone {
			k.gone = true
			s.step(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc, Clean: true})
		}
	}
	s.departed(c)
}

// departed counts a client that is gone with all its ranks.
func (s *sim) departed(c *simClient) {
	if c.departed || slices.ContainsFunc(c.ranks, func(k *simRank) bool { return k == nil || !k.gone }) {
		return
	}
	c.departed = true
	s.left++
	if !s.strict {
		s.m.Collect.Leave(c.number, s.now)
	}
}

// take is the client's next(): it works on one batch for its step time, then gives it back.
func (s *sim) take(c *simClient, k *simRank) {
	if k.busy || k.gone || !k.asked {
		return
	}
	for len(k.inbox) > 0 && k.inbox[0].Epoch != k.epoch { // of an epoch that was left: unseen
		x := k.inbox[0]
		k.inbox = k.inbox[1:]
		s.taken(x.Delivery)
		s.release(c, k, x, 0)
	}
	if len(k.inbox) == 0 {
		if e := k.ended[k.epoch]; e != nil {
			if s.strict {
				k.rec.Ended, k.rec.Account, k.rec.Finished = true, e.Account, s.now
			} else {
				dropped := 0
				if k.rank == 0 {
					dropped = c.c.Spec.Dropped()
				}
				s.m.Collect.End(c.number, s.now, k.epoch, k.bad, dropped)
			}
			delete(k.ended, k.epoch)
			s.nextEpoch(c, k)
		}
		return
	}
	x := k.inbox[0]
	k.inbox = k.inbox[1:]
	if x.Step != k.inEpoch {
		s.fail("job %s rank %d epoch %d: batch %d came as number %d", c.c.Spec.Name, k.rank, k.epoch, x.Step, k.inEpoch)
	}
	waited := s.now - k.since
	s.receive(c, k, x, waited)
	k.got++
	k.inEpoch++
	s.happens(c, k)
	if k.gone {
		return
	}
	if k.rank == 0 && c.c.Die > 0 && k.got == c.c.Die && k.inc == 1 {
		k.gone = true
		s.step(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc})
		if c.c.Back > 0 {
			s.after(c.c.Back, func() { s.attach(c, k.rank) })
		}
		return
	}
	if c.c.Hang > 0 && k.got >= c.c.Hang {
		k.busy = true
		return
	}
	k.busy = true
	step := c.c.Step
	if k.rank < len(c.c.Steps) {
		step = c.c.Steps[k.rank]
	}
	if c.c.Next != nil {
		step = c.c.Next(k.rank, k.got-1)
	}
	s.after(step, func() {
		k.busy, k.since = false, s.now
		if k.gone {
			return
		}
		if !s.strict {
			s.m.Collect.Step(c.number, step)
		}
		s.release(c, k, x, waited)
		if c.c.Break > 0 && int(k.epoch)%c.c.Break == 0 && k.inEpoch >= k.batches/2 {
			s.nextEpoch(c, k)
			return
		}
		s.take(c, k)
	})
}

func (s *sim) nextEpoch(c *simClient, k *simRank) {
	if int(k.epoch)+1 >= c.c.Epochs {
		k.gone = true
		s.step(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc, Clean: true})
		s.departed(c)
		return
	}
	s.iter(c, k, k.epoch+1)
}
