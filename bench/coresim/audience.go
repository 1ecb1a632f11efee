package coresim

import (
	"time"

	"larder/bench/measure"
	"larder/internal/coordinator"
	"larder/internal/ident"
)

// audience learns what clients see.
type audience interface {
	joined(c *simClient)
	began(c *simClient, k *simRank)
	// received learns of a batch whose rows were all written.
	received(c *simClient, k *simRank, x coordinator.Deliver, got receipt)
	stepped(c *simClient, step time.Duration)
	ended(c *simClient, k *simRank, e *coordinator.EndEpoch)
	departed(c *simClient)
}

// receipt is how a batch came.
type receipt struct {
	rows   *batchRows
	waited time.Duration
}

// keeper keeps all that clients see, for tests.
type keeper struct {
	clock  *clock
	epochs []*Received
}

func (a *keeper) joined(*simClient) {}

func (a *keeper) began(c *simClient, k *simRank) {
	k.rec = &Received{Job: c.c.Spec.Name, Rank: k.rank, Epoch: k.epoch, Begun: a.clock.now, Again: k.again,
		Instance: map[ident.ObjectID]uint32{}}
	a.epochs = append(a.epochs, k.rec)
}

func (a *keeper) received(_ *simClient, k *simRank, x coordinator.Deliver, got receipt) {
	for _, i := range x.Rows {
		k.rec.IDs = append(k.rec.IDs, got.rows.object[i])
		k.rec.Instance[got.rows.object[i]] = got.rows.instance[i]
	}
	k.rec.Sizes = append(k.rec.Sizes, len(x.Rows))
	k.rec.Bad = append(k.rec.Bad, x.Bad...)
}

func (a *keeper) stepped(*simClient, time.Duration) {}

func (a *keeper) ended(_ *simClient, k *simRank, e *coordinator.EndEpoch) {
	k.rec.Ended, k.rec.Account, k.rec.Finished = true, e.Account, a.clock.now
}

func (a *keeper) departed(*simClient) {}

// collected hands what clients see to a Collector, and keeps nothing.
type collected struct {
	clock *clock
	to    *measure.Collector
	ids   []uint32 // of the batch that is being received
}

func (a *collected) joined(c *simClient) { c.number = a.to.Register(a.clock.now, c.c.Measure) }

func (a *collected) began(c *simClient, k *simRank) { a.to.Begin(c.number, a.clock.now, k.epoch) }

func (a *collected) received(c *simClient, k *simRank, x coordinator.Deliver, got receipt) {
	a.ids = a.ids[:0]
	for _, i := range x.Rows {
		a.ids = append(a.ids, uint32(got.rows.object[i]))
	}
	a.to.Batch(c.number, a.clock.now, k.epoch, got.waited, a.ids)
}

func (a *collected) stepped(c *simClient, step time.Duration) { a.to.Step(c.number, step) }

func (a *collected) ended(c *simClient, k *simRank, _ *coordinator.EndEpoch) {
	dropped := 0
	if k.rank == 0 {
		dropped = c.c.Spec.Dropped()
	}
	a.to.End(c.number, a.clock.now, k.epoch, k.bad, dropped)
}

func (a *collected) departed(c *simClient) { a.to.Leave(c.number, a.clock.now) }
