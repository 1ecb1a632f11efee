package coresim

import (
	"slices"
	"time"

	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/jobs"
)

// crowd is the clients, from their registration until they leave. It knows the coordinator by its replies, and by the
// events that clients cause. Each client is to come, or is there, or has left: joined counts the last two.
type crowd struct {
	m       *Model
	clock   *clock
	checks  *checks
	seen    audience
	machine *machine
	report  func(coordinator.Event)
	running func() []jobs.Job

	enrolled func(ident.JobID, *Client) // learns of jobs; nil = nobody does

	clients               map[ident.JobID]*simClient
	waiting               map[coordinator.Token]func(coordinator.Reply) // for a reply
	token                 coordinator.Token
	pending, joined, left int
	pauses, cuts          int
	open                  int // requests that are not answered
	journal               journal
	resumed               []Resumed
	subsets               map[string][]Selection // by job
}

// simClient is a client that is registered.
type simClient struct {
	c        *Client
	id       ident.JobID
	ranks    []*simRank
	number   int // its number at the Collector
	departed bool

	subset []ident.ObjectID // asked for last
	had    []ident.ObjectID // of all subsets that it was given
	mark   uint32
}

// rankPhase is what the client of a rank does.
//
//	asking ──the coordinator began the epoch──▶ waiting ──a batch──▶ working
//	   ▲                                        │     ▲                 │
//	   └──the epoch is over, another follows────┘     └──its step is over, unless it hangs
//
//	any ──it leaves, dies or is closed──▶ gone
type rankPhase uint8

const (
	asking  rankPhase = iota // for its epoch
	waiting                  // for a batch
	working                  // on a batch
	gone
)

// rankPhases are the phases that may follow each.
var rankPhases = [...][]rankPhase{
	asking:  {waiting, gone},
	waiting: {asking, working, gone},
	working: {waiting, gone},
	gone:    {gone},
}

// simRank is one attachment of a rank: its successor is another.
type simRank struct {
	rank    int
	inc     ident.Incarnation
	phase   rankPhase
	epoch   uint32
	got     int // batches in all
	inEpoch int // batches of the epoch
	batches int // that the epoch has
	bad     int // samples of the epoch that were left out with a report
	rec     *Received
	inbox   []coordinator.Deliver
	ended   map[uint32]*coordinator.EndEpoch
	since   time.Duration // when it began to want a batch
	told    int           // batches of the epoch that it has asked for, of order given; 1 more: and its end
	away    bool          // it has lost its connection, and will come back
	dead    bool          // its process has ended
	again   bool          // it took the rank over from another client
}

func (k *simRank) become(p rankPhase) {
	if !slices.Contains(rankPhases[k.phase], p) {
		invariant.Violated("coresim: a rank of phase %d becomes %d", k.phase, p)
	}
	k.phase = p
}

// over reports whether all clients have come and gone.
func (s *crowd) over() bool { return s.left == s.joined && s.pending == 0 }

// ask steps the coordinator with a request, and calls then with its reply.
func (s *crowd) ask(build func(coordinator.Token) coordinator.Event, then func(coordinator.Reply)) {
	s.token++
	s.open++
	s.waiting[s.token] = then
	s.report(build(s.token))
}

// replied hands a reply to who asked.
func (s *crowd) replied(r coordinator.Reply) {
	if then := s.waiting[r.Token]; then != nil {
		delete(s.waiting, r.Token)
		s.clock.after(0, func() {
			s.open--
			then(r)
		})
	}
}

// join registers a client and attaches its ranks.
func (s *crowd) join(c *Client) { s.joinWith(c, nil) }

// joinWith is join of a client that begins with what is left of an epoch; nil = with a whole one.
func (s *crowd) joinWith(c *Client, rest *coordinator.Rest) {
	s.joined++
	s.pending--
	s.ask(func(t coordinator.Token) coordinator.Event {
		bytes := c.Augmented
		if bytes == 0 {
			bytes = s.m.Augment
		}
		s.machine.memory.sizes = append(s.machine.memory.sizes, augmented{c.Suffix, bytes})
		reg := coordinator.Register{Token: t, Spec: c.Spec, Sample: c.Sample, Prefix: c.Prefix, Suffix: c.Suffix,
			Share: c.Share,
			Key:   c.Key, AugmentedBytes: bytes, Dataset: c.Data, Names: c.Names, Making: c.Making, Rest: rest}
		s.journal.registers(reg)
		return reg
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.checks.fail("register %s: %v", c.Spec.Name, r.Err)
			return
		}
		sc := &simClient{c: c, id: r.Job, ranks: make([]*simRank, c.Spec.World), subset: c.Sample.Subset,
			had: c.Sample.Subset}
		s.subsets[c.Spec.Name] = selections(c, rest)
		s.clients[r.Job] = sc
		s.machine.join(r.Job, c)
		if s.enrolled != nil {
			s.enrolled(r.Job, c)
		}
		s.seen.joined(sc)
		if s.m.trusts() && c.Leave > s.clock.now {
			s.clock.at(c.Leave, func() { s.leave(sc) })
		}
		for i := range c.Spec.World {
			s.attach(sc, i)
		}
		for n, at := range c.Cuts {
			s.clock.at(at, func() { s.cut(sc, n%c.Spec.World, c.Away) })
		}
	})
}

func (s *crowd) attach(c *simClient, rank int) {
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.Attach{Token: t, Job: c.id, Rank: rank}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.checks.fail("attach %s: %v", c.c.Spec.Name, r.Err)
			return
		}
		k := &simRank{rank: rank, inc: r.Inc, ended: map[uint32]*coordinator.EndEpoch{}, again: c.ranks[rank] != nil}
		c.ranks[rank] = k
		s.iter(c, k, r.Epoch)
	})
}

// iter is the client's iter(): the rank is asking.
func (s *crowd) iter(c *simClient, k *simRank, epoch uint32) {
	k.epoch, k.inEpoch, k.bad, k.since, k.told = epoch, 0, 0, s.clock.now, 0
	s.seen.began(c, k)
	s.ask(func(t coordinator.Token) coordinator.Event {
		return coordinator.StartEpoch{Token: t, Job: c.id, Rank: k.rank, Inc: k.inc, Epoch: epoch}
	}, func(r coordinator.Reply) {
		if r.Err != nil {
			s.checks.fail("epoch %d of %s: %v", epoch, c.c.Spec.Name, r.Err)
			return
		}
		if k.phase != gone {
			k.batches = r.Batches
			k.become(waiting)
			s.tell(c, k)
			s.next(c, k)
		}
	})
}

// choose gives a job another subset, as its script or the dataset has it; nil = none. A refusal keeps the one it has,
// without what is gone.
func (s *crowd) choose(c *simClient, rank int, subset []ident.ObjectID) {
	ev := coordinator.ChangeSubset{Job: c.id, Rank: rank}
	for _, x := range append(slices.Clone(c.had), subset...) {
		if s.machine.gone[x] {
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
			s.choose(c, rank, nil)
		case r.Err == nil && ev.Subset != nil:
			s.subsets[c.c.Spec.Name] = append(s.subsets[c.c.Spec.Name], Selection{r.Epoch, subset})
		}
	})
}

// changeData adds and removes files, and announces that to the jobs.
func (s *crowd) changeData(d DataChange) {
	for _, x := range d.Gone {
		s.machine.gone[x] = true
	}
	for _, j := range s.running() {
		if c := s.clients[j.ID]; c != nil {
			s.choose(c, 0, append(s.present(c.subset), d.Add...))
		}
	}
}

// present returns the objects that can still be read.
func (s *crowd) present(subset []ident.ObjectID) []ident.ObjectID {
	var out []ident.ObjectID
	for _, x := range subset {
		if !s.machine.gone[x] {
			out = append(out, x)
		}
	}
	return out
}

// script does what the script does after so many batches.
func (s *crowd) script(c *simClient, k *simRank) {
	if subset := c.c.Change[k.got]; len(subset) > 0 && (k.rank == 0 || c.c.Alike) {
		s.choose(c, k.rank, s.present(subset))
	}
	if c.c.Then != nil && k.rank == 0 && k.got >= c.c.Stop {
		s.resumeElsewhere(c)
	}
	if k.rank == 0 && c.c.Pause > 0 && k.got == c.c.Pause {
		s.pauses++
		s.report(coordinator.Pause{Job: c.id, On: true})
		s.clock.after(c.c.PauseFor, func() { s.report(coordinator.Pause{Job: c.id}) })
	}
}

// deliver puts a batch into a rank's inbox.
func (s *crowd) deliver(x coordinator.Deliver) {
	c := s.clients[x.Job]
	k := c.ranks[x.Rank]
	if k == nil || k.phase == gone || k.inc != x.Inc {
		s.checks.fail("a batch for a client that is gone: job %d rank %d incarnation %d", x.Job, x.Rank, x.Inc)
		return
	}
	k.inbox = append(k.inbox, x)
	s.clock.after(0, func() { s.next(c, k) })
}

func (s *crowd) endEpoch(x coordinator.EndEpoch) {
	c := s.clients[x.Job]
	k := c.ranks[x.Rank]
	k.ended[x.Epoch] = &x
	s.clock.after(0, func() { s.next(c, k) })
}

// closeRank ends an attachment because the coordinator says so.
func (s *crowd) closeRank(x coordinator.CloseRank) {
	if c := s.clients[x.Job]; c != nil && c.ranks[x.Rank] != nil && c.ranks[x.Rank].inc == x.Inc {
		c.ranks[x.Rank].become(gone)
	}
}

func (s *crowd) release(c *simClient, k *simRank, x coordinator.Deliver, waited time.Duration) {
	s.report(coordinator.Released{Job: c.id, Rank: k.rank, Inc: k.inc, Slot: x.Slot, Gen: x.Gen, Waited: waited})
}

// detach ends an attachment in order.
func (s *crowd) detach(c *simClient, k *simRank) {
	k.become(gone)
	s.report(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc, Clean: true})
}

// leave takes all ranks of a client away before its epochs are over.
func (s *crowd) leave(c *simClient) {
	for _, k := range c.ranks {
		if k == nil {
			continue
		}
		k.away = false
		if k.phase != gone {
			s.detach(c, k)
		}
	}
	s.depart(c)
}

// depart counts a client as soon as all its ranks are gone.
func (s *crowd) depart(c *simClient) {
	present := func(k *simRank) bool { return k == nil || k.phase != gone || k.away }
	if c.departed || slices.ContainsFunc(c.ranks, present) {
		return
	}
	c.departed = true
	s.left++
	s.seen.departed(c)
}

// next is the client's next(): a waiting rank takes the next batch of its epoch, or sees that the epoch is over.
func (s *crowd) next(c *simClient, k *simRank) {
	if k.phase != waiting {
		return
	}
	for len(k.inbox) > 0 && k.inbox[0].Epoch != k.epoch { // of an epoch that was left: unseen
		x := k.pop()
		s.machine.rows.release(x.Delivery)
		s.release(c, k, x, 0)
	}
	if len(k.inbox) > 0 {
		s.take(c, k, k.pop())
		return
	}
	if e := k.ended[k.epoch]; e != nil {
		s.seen.ended(c, k, e)
		delete(k.ended, k.epoch)
		s.nextEpoch(c, k)
	}
}

func (k *simRank) pop() coordinator.Deliver {
	x := k.inbox[0]
	k.inbox = k.inbox[1:]
	return x
}

// take works on a batch for the time of a step, then releases it. A client may die or hang instead.
func (s *crowd) take(c *simClient, k *simRank, x coordinator.Deliver) {
	if x.Step != k.inEpoch {
		s.checks.fail("job %s rank %d epoch %d: batch %d came as number %d", c.c.Spec.Name, k.rank, k.epoch, x.Step,
			k.inEpoch)
	}
	waited := s.clock.now - k.since
	s.receive(c, k, x, waited)
	k.got++
	k.inEpoch++
	s.script(c, k)
	if k.phase == gone {
		return
	}
	s.tell(c, k)
	if k.rank == 0 && c.c.Die > 0 && k.got == c.c.Die && k.inc == 1 {
		k.become(gone)
		k.dead = true
		s.report(coordinator.Detached{Job: c.id, Rank: k.rank, Inc: k.inc})
		if c.c.Back > 0 {
			s.clock.after(c.c.Back, func() { s.attach(c, k.rank) })
		}
		return
	}
	k.become(working)
	if c.c.Hang > 0 && k.got >= c.c.Hang {
		return
	}
	step := c.c.stepTime(k)
	s.clock.after(step, func() {
		if k.phase == gone {
			return
		}
		k.since = s.clock.now
		k.become(waiting)
		s.seen.stepped(c, step)
		s.release(c, k, x, waited)
		if c.c.Break > 0 && int(k.epoch)%c.c.Break == 0 && k.inEpoch >= k.batches/2 {
			s.nextEpoch(c, k)
			return
		}
		s.next(c, k)
	})
}

// stepTime is how long a rank works on the batch that it got last.
func (c *Client) stepTime(k *simRank) time.Duration {
	switch {
	case c.Next != nil:
		return c.Next(k.rank, k.got-1)
	case k.rank < len(c.Steps):
		return c.Steps[k.rank]
	}
	return c.Step
}

// receive notes what is in a batch. A row that was not written is a failure.
func (s *crowd) receive(c *simClient, k *simRank, x coordinator.Deliver, waited time.Duration) {
	written := s.machine.rows.written[x.Delivery]
	k.bad += len(x.Bad)
	for _, i := range x.Rows {
		if !written.has(i) {
			s.checks.fail("job %s: row %d was delivered but never filled", c.c.Spec.Name, i)
			return
		}
	}
	s.seen.received(c, k, x, receipt{written, waited})
	s.machine.rows.release(x.Delivery)
}

func (s *crowd) nextEpoch(c *simClient, k *simRank) {
	if int(k.epoch)+1 >= c.c.Epochs {
		s.detach(c, k)
		s.depart(c)
		return
	}
	k.become(asking)
	s.iter(c, k, k.epoch+1)
}
