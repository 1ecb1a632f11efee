package coordinator

import (
	"fmt"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
)

// streamer is a client with an index stream that lives on while its daemon dies: it sends what it has not got again.
type streamer struct {
	t       *testing.T
	r       *rig
	reg     Register
	log     *journaled
	peer    *peer
	batches [][]ident.ObjectID // of its epoch
	epoch   uint32
	step    int // the next that it is to get
	sent    int
	got     []ident.ObjectID
	// the instances in which it got an object, by batch and place: a batch that comes again is the very same
	instances map[ident.ObjectID]map[uint32][2]int
	held      *Deliver
}

func (c *streamer) tell() {
	c.t.Helper()
	most := c.r.job(c.peer.job).Spec.StreamAhead()
	if to := min(len(c.batches), c.step+most); to > c.sent || to == len(c.batches) {
		c.r.ok(c.peer.give(c.epoch, c.sent, to == len(c.batches), c.batches[c.sent:to]...))
		c.sent = to
	}
}

// take gets the next batch, if there is one, and gives the one before back.
func (c *streamer) take() bool {
	d := c.peer.next()
	if d == nil {
		return false
	}
	if d.Step != c.step || d.Epoch != c.epoch {
		c.t.Fatalf("step %d of epoch %d came, and step %d of epoch %d is next", d.Step, d.Epoch, c.step, c.epoch)
	}
	for _, i := range d.Rows {
		f := c.r.rows[d.Delivery][i]
		at, known := c.instances[f.Object]
		if !known {
			at = map[uint32][2]int{}
			c.instances[f.Object] = at
		}
		now := [2]int{int(c.epoch)<<16 | d.Step, i}
		if was, twice := at[f.Instance]; twice {
			c.t.Fatalf("object %d came as instance %d in %x and in %x", f.Object, f.Instance, was, now)
		}
		at[f.Instance] = now
		c.got = append(c.got, f.Object)
	}
	if c.held != nil {
		c.peer.release(c.held)
	}
	c.held = d
	c.step++
	return true
}

// back is what a client does that was cut off: it takes its rank again, and says where it is.
func (c *streamer) back(inc ident.Incarnation) {
	c.t.Helper()
	id := c.peer.job
	a := c.r.ok(c.r.ask(func(t Token) Event { return Attach{Token: t, Job: id, Held: inc} }))
	c.peer = &peer{r: c.r, job: id, inc: a.Inc, seen: len(c.r.got)}
	c.sent, c.held = c.step, nil
	c.r.ok(c.r.ask(func(t Token) Event {
		return StartEpoch{Token: t, Job: id, Inc: a.Inc, Epoch: c.epoch, From: c.step + 1}
	}))
}

// dies replaces the daemon by one that has read its journal.
func (c *streamer) dies(bad map[ident.ObjectID]bool) {
	c.t.Helper()
	r := decodedTier(c.t, 6)
	r.bad = bad
	r.record = func(p Persist) { c.log.add(p, c.reg) }
	ev := Restore{Register: c.reg, ID: c.peer.job, Seed: c.log.seed, Ranks: []ident.Incarnation{c.log.incs[0]},
		Bad: slices.Clone(c.log.bad)}
	for _, e := range c.log.epochs {
		e.Batches = slices.Clone(e.Batches)
		ev.Epochs = append(ev.Epochs, e)
	}
	r.ok(r.ask(func(t Token) Event { ev.Token = t; return ev }))
	c.r = r
	c.back(c.log.incs[0])
}

// Daemons die and connections are cut at any moment: a client with an index stream sends again what it has not got, and
// gets every batch of it once, under its number, each pick as an instance of its own.
func TestGivenSurvives(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { streamHistory(t, xrand.New(11, seed), seed%3 == 0) })
	}
}

// So it is where the first daemon was of a build that gave each pick of an epoch the next instance: the others go on so
// in the epoch that it began, and above all that it gave in later ones.
func TestGivenOfAnOlderBuild(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			olderHistory(t, xrand.New(12, seed))
		})
	}
}

// older makes the daemon number picks as older builds did, and its journal silent about it.
func (c *streamer) older() {
	c.r.c.roster.streams[c.peer.job].picked.all = true
	for i := range c.log.epochs {
		c.log.epochs[i].ByPick = true
	}
}

func olderHistory(t *testing.T, rng *xrand.Rand) {
	g, p, log, reg := recordedRun(t, asGiven, slots(3))
	c := &streamer{t: t, r: g, reg: reg, log: log, peer: p, instances: map[ident.ObjectID]map[uint32][2]int{}}
	last := rng.IntN(2) // epoch of the first daemon in which it dies
	for c.epoch = range uint32(4) {
		c.batches, c.got, c.step, c.sent, c.held = nil, nil, 0, 0, nil
		for range 4 + rng.IntN(8) {
			c.batches = append(c.batches, []ident.ObjectID{0, ident.ObjectID(rng.IntN(3)), ident.ObjectID(rng.IntN(9))})
		}
		want := slices.Concat(c.batches...)
		if c.epoch > 0 {
			c.peer.epoch(c.epoch)
			c.peer.seen = len(c.r.got)
		}
		if int(c.epoch) <= last {
			c.older()
		}
		dies := rng.IntN(len(c.batches))
		for n := 0; c.step < len(c.batches); n++ {
			c.tell()
			c.r.run()
			c.take()
			if n == dies && int(c.epoch) >= last {
				c.dies(nil)
			}
			if n > 100 {
				t.Fatalf("epoch %d does not end: step %d of %d", c.epoch, c.step, len(c.batches))
			}
		}
		if !slices.Equal(c.got, want) {
			t.Fatalf("epoch %d: got %v, want %v", c.epoch, c.got, want)
		}
		for n := 0; c.take() || n < 3; n++ {
			c.tell()
			c.r.run()
		}
	}
}

func streamHistory(t *testing.T, rng *xrand.Rand, someBad bool) {
	g, p, log, reg := recordedRun(t, asGiven, slots(2+rng.IntN(3)))
	bad := map[ident.ObjectID]bool{}
	if someBad {
		bad[3], bad[5], g.bad = true, true, bad
	}
	c := &streamer{t: t, r: g, reg: reg, log: log, peer: p, instances: map[ident.ObjectID]map[uint32][2]int{}}
	for c.epoch = range uint32(3) {
		var want []ident.ObjectID
		c.batches, c.got, c.step, c.sent, c.held = nil, nil, 0, 0, nil
		for range rng.IntN(12) {
			var b []ident.ObjectID
			for range 1 + rng.IntN(4) {
				x := ident.ObjectID(rng.IntN(9))
				if b = append(b, x); !bad[x] {
					want = append(want, x)
				}
			}
			c.batches = append(c.batches, b)
		}
		if c.epoch > 0 {
			c.peer.epoch(c.epoch)
			c.peer.seen = len(c.r.got)
		}
		for tries := 0; ; tries++ {
			c.tell()
			c.r.run()
			if n := len(c.r.ends); !c.take() && n > 0 && c.r.ends[n-1].Epoch == c.epoch {
				break
			}
			switch {
			case tries == 200:
				t.Fatalf("epoch %d does not end: step %d of %d", c.epoch, c.step, len(c.batches))
			case rng.IntN(8) == 0:
				c.r.step(Detached{Job: c.peer.job, Inc: c.peer.inc, Lives: true})
				c.back(c.peer.inc)
			case rng.IntN(12) == 0:
				c.dies(bad)
			}
		}
		if !slices.Equal(c.got, want) {
			t.Fatalf("epoch %d: got %v, want %v", c.epoch, c.got, want)
		}
		end := c.r.ends[len(c.r.ends)-1]
		if end.Epoch != c.epoch || end.Batches != len(c.batches) || end.Account == nil ||
			end.Account.State != jobs.Complete || end.Account.Delivered != len(want) {
			t.Fatalf("epoch %d ended as %+v: %+v", c.epoch, end, end.Account)
		}
		c.r.check()
	}
}
