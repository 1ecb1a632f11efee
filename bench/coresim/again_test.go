package coresim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
)

// interrupted are worlds in which clients and daemons come again, by what happens in them.
var interrupted = []string{"cuts", "restarts", "resumes", "given", "blocks"}

// interruptedWorld draws a random world of a kind: those of scenario, with connections that are cut, clients that take
// ranks over and, in all kinds but cuts, daemons that die.
func interruptedWorld(kind string, seed uint64) (Model, []Client) {
	m, clients := scenario(seed)
	r := xrand.New(seed, 79)
	m.Data, m.Resize, m.Block = nil, nil, 800
	if kind != "cuts" {
		for range 1 + r.IntN(3) {
			m.Restarts = append(m.Restarts, time.Duration(2000+r.IntN(120_000))*time.Microsecond)
		}
	}
	for i := range clients {
		c := &clients[i]
		c.Change = nil
		if r.IntN(3) > 0 {
			for range 1 + r.IntN(4) {
				c.Cuts = append(c.Cuts, c.Start+time.Duration(500+r.IntN(100_000))*time.Microsecond)
			}
			c.Away = time.Duration(r.IntN(20_000)) * time.Microsecond
		}
		if c.Spec.World == 1 && r.IntN(3) == 0 { // another client takes the rank before the lease is over
			c.Die, c.Back = 1+r.IntN(8), time.Duration(r.IntN(30_000))*time.Microsecond
			// Not paused as well. A daemon that dies while that client waits for the end of the pause leaves no record of its
			// request, and the next daemon gives it the batches of the dead client again, as the same instances.
			c.Pause = 0
		}
		switch {
		case kind == "resumes" && r.IntN(3) > 0:
			resumed(r, c)
		case kind == "given" && r.IntN(3) > 0:
			asGiven(r, c)
		case kind == "blocks" && r.IntN(3) > 0:
			c.Sample.Mode, c.Sample.Window = dsa.Blocks, 1+r.IntN(3)
			c.Sample.Block = func(x ident.ObjectID) uint32 { return uint32(x / 8) }
		}
	}
	return m, clients
}

// resumed has a job be killed, and another one, of other ranks and batches, continue with what is left of its epoch.
func resumed(r *xrand.Rand, c *Client) {
	next := *c
	next.Spec.Name += " again"
	next.Spec.Batch, next.Spec.World = 1+r.IntN(20), 1+r.IntN(2)
	next.Spec.DropLast, next.Break, next.Die, next.Hang, next.Pause, next.Cuts = false, 0, 0, 0, 0, nil
	c.Break, c.Die, c.Hang, c.Pause, c.Cuts = 0, 0, 0, 0, nil
	if next.Spec.Validate() == nil {
		c.Then, c.Stop = &next, 1+r.IntN(6)
	}
}

// asGiven has a client say which samples come.
func asGiven(r *xrand.Rand, c *Client) {
	c.Spec.Given, c.Spec.Advance = true, jobs.OnRequest
	c.Spec.World, c.Spec.Even, c.Spec.DropLast, c.Spec.OnError = 1, false, false, jobs.OnError(r.IntN(2))
	c.Sample.Mode, c.Break, c.Share = dsa.Sequential, 0, false
	seed, batch, subset := r.Uint64(), c.Spec.Batch, c.Sample.Subset
	c.Given = func(epoch uint32) (out [][]ident.ObjectID) {
		draw := xrand.New(seed, uint64(epoch))
		for range draw.IntN(10) {
			var b []ident.ObjectID
			for range 1 + draw.IntN(batch) {
				b = append(b, subset[draw.IntN(len(subset))])
			}
			out = append(out, b)
		}
		return out
	}
}

// happened counts what was interrupted in some worlds.
type happened struct{ cuts, restarts, resumed, given, held int }

// recordedSeeds is how many worlds of each kind TestDecisionsStayWhatTheyWere runs.
const recordedSeeds = 20

// runInterrupted runs worlds of a kind and returns the hash of all that was decided. Every epoch that a client finished
// must be whole, whatever was interrupted.
func runInterrupted(t *testing.T, kind string, from, to uint64) (uint64, happened) {
	t.Helper()
	all := xxhash.New()
	var n happened
	for seed := from; seed < to; seed++ {
		m, clients := interruptedWorld(kind, seed)
		if len(clients) == 0 {
			continue
		}
		res, err := Run(m, clients, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(all, "%x %v\n", res.Hash, res.Elapsed)
		n.cuts, n.restarts, n.resumed = n.cuts+res.Cuts, n.restarts+res.Restarts, n.resumed+len(res.Resumed)
		var orders []Client // of clients without an order of their own
		for _, c := range clients {
			if c.Given == nil {
				orders = append(orders, c)
			} else {
				n.given += asAsked(t, res, &c)
			}
			if c.Then != nil {
				orders = append(orders, *c.Then)
			}
		}
		wholeEpochs(t, res, orders)
		fresh(t, res)
		for _, x := range res.Resumed {
			hadBefore(t, res, x)
		}
		for i := range res.Jobs {
			n.held += int(res.Jobs[i].Stats.FromBlocks.Own + res.Jobs[i].Stats.FromBlocks.Shared)
		}
		if t.Failed() {
			t.Fatalf("%s, seed %d", kind, seed)
		}
	}
	return all.Sum64(), n
}

// asAsked compares the epochs that a client finished with what it asked for, and counts them.
func asAsked(t *testing.T, res *Result, c *Client) (epochs int) {
	t.Helper()
	for _, e := range res.Epochs {
		if e.Job != c.Spec.Name || !e.Ended {
			continue
		}
		epochs++
		bad := map[ident.ObjectID]bool{}
		for _, b := range e.Bad {
			bad[b.Object] = true
		}
		want := slices.DeleteFunc(slices.Concat(c.Given(e.Epoch)...), func(x ident.ObjectID) bool { return bad[x] })
		if !slices.Equal(e.IDs, want) {
			t.Errorf("epoch %d of %s was %v, and %v was asked for", e.Epoch, e.Job, e.IDs, want)
		}
	}
	return epochs
}

// hadBefore checks that what a job does not get of the epoch that it resumes was received by the one before it.
func hadBefore(t *testing.T, res *Result, x Resumed) {
	t.Helper()
	had := map[ident.ObjectID]bool{}
	for _, e := range res.Epochs {
		if e.Job == x.From && e.Epoch == x.Epoch {
			for _, id := range e.IDs {
				had[id] = true
			}
			for _, b := range e.Bad {
				had[b.Object] = true
			}
		}
	}
	for _, id := range x.Before {
		if !had[id] {
			t.Errorf("%s resumes epoch %d of %s without sample %d, which that one did not get", x.Job, x.Epoch, x.From, id)
		}
	}
}

// Connections are cut, daemons die, jobs are resumed by others, in random worlds: every epoch is whole, and an index
// stream holds the picks that its client asked for. The first worlds are in TestDecisionsStayWhatTheyWere.
func TestInterruptedWorlds(t *testing.T) {
	seeds := uint64(lane.Times(15, 40))
	if testing.Short() || invariant.Enabled {
		seeds = 10
	}
	for _, kind := range interrupted {
		t.Run(kind, func(t *testing.T) {
			_, n := runInterrupted(t, kind, recordedSeeds, recordedSeeds+seeds)
			t.Logf("%+v", n)
			enough := n.cuts >= int(seeds)
			switch kind {
			case "restarts":
				enough = n.restarts >= int(seeds)
			case "resumes":
				enough = n.resumed >= int(seeds)/2 && n.restarts >= int(seeds)
			case "given":
				enough = n.given >= int(seeds) && n.restarts >= int(seeds)
			case "blocks":
				enough = n.held >= 20*int(seeds) && n.restarts >= int(seeds)
			}
			if !enough {
				t.Errorf("too little happens: %+v", n)
			}
		})
	}
}
