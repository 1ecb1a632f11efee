package bench

import (
	"larder/internal/coordinator"
	"larder/internal/ident"
)

// join registers a client and attaches its ranks.
func (s *sim) join(c *Client) {
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.Register{Token: t, Spec: c.Spec, Sample: c.Sample, Prefix: c.Prefix, Suffix: c.Suffix, Share: c.Share,
			Key: c.Key, AugmentedBytes: s.m.Augment}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.fail("register %s: %v", c.Spec.Name, r.Err)
			return
		}
		sc := &simClient{c: c, id: r.Job, ranks: make([]*simRank, c.Spec.World)}
		s.clients[r.Job] = sc
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
		s.iter(c, k, 0)
	})
}

// iter is the client's iter().
func (s *sim) iter(c *simClient, k *simRank, epoch uint32) {
	k.epoch, k.inEpoch, k.asked = epoch, 0, false
	k.rec = &Received{Job: c.c.Spec.Name, Rank: k.rank, Epoch: epoch, Begun: s.now, Instance: map[ident.ObjectID]uint32{}}
	s.res.Epochs = append(s.res.Epochs, k.rec)
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: c.id, Rank: k.rank, Inc: k.inc, Epoch: epoch}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.fail("epoch %d of %s: %v", epoch, c.c.Spec.Name, r.Err)
			return
		}
		k.asked = true
		s.take(c, k)
	})
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

func (s *sim) release(c *simClient, k *simRank, x coordinator.Deliver) {
	s.step(coordinator.Released{Job: c.id, Rank: k.rank, Inc: k.inc, Slot: x.Slot, Gen: x.Gen})
}

// take is the client's next(): it works on one batch for its step time, then gives it back.
func (s *sim) take(c *simClient, k *simRank) {
	if k.busy || k.gone || !k.asked {
		return
	}
	for len(k.inbox) > 0 && k.inbox[0].Epoch != k.epoch { // of an epoch that was left: unseen
		x := k.inbox[0]
		k.inbox = k.inbox[1:]
		delete(s.rows, x.Delivery)
		s.release(c, k, x)
	}
	if len(k.inbox) == 0 {
		if e := k.ended[k.epoch]; e != nil {
			k.rec.Ended, k.rec.Account, k.rec.Finished = true, e.Account, s.now
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
	for _, i := range x.Rows {
		row, ok := s.rows[x.Delivery][i]
		if !ok {
			s.fail("job %s: row %d was delivered but never filled", c.c.Spec.Name, i)
		}
		k.rec.IDs = append(k.rec.IDs, row.object)
		k.rec.Instance[row.object] = row.instance
	}
	k.rec.Sizes = append(k.rec.Sizes, len(x.Rows))
	k.rec.Bad = append(k.rec.Bad, x.Bad...)
	delete(s.rows, x.Delivery)
	k.got++
	k.inEpoch++
	if k.rank == 0 && c.c.Die > 0 && k.got == c.c.Die {
		k.gone = true
		s.step(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc})
		return
	}
	if c.c.Hang > 0 && k.got >= c.c.Hang {
		k.busy = true
		return
	}
	k.busy = true
	s.after(c.c.Step, func() {
		k.busy = false
		if k.gone {
			return
		}
		s.release(c, k, x)
		if c.c.Break > 0 && int(k.epoch)%c.c.Break == 0 && k.inEpoch >= c.c.Spec.Batches(k.rank)/2 {
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
		return
	}
	s.iter(c, k, k.epoch+1)
}
