package coresim

import (
	"fmt"
	"slices"

	"larder/internal/ident"
)

// jobEpoch names an epoch of a job.
type jobEpoch struct {
	job   string
	epoch uint32
}

// heard is what all ranks of a job received of an epoch.
type heard struct {
	ids            []ident.ObjectID
	ranks, batches int
	unlike         bool // ranks got unlike numbers of batches
}

// Whole compares what clients received of the epochs that they finished with their subsets: guarantee G1 without the
// daemon's word. It returns what is wrong.
func (r *Result) Whole(clients []Client) (wrong []string) {
	got := map[jobEpoch]*heard{}
	for _, e := range r.Epochs {
		if !e.Ended {
			continue
		}
		k := jobEpoch{e.Job, e.Epoch}
		h := got[k]
		if h == nil {
			h = &heard{}
			got[k] = h
		}
		h.ids = append(h.ids, e.IDs...)
		for _, b := range e.Bad {
			h.ids = append(h.ids, b.Object)
		}
		full := 0
		for _, n := range e.Sizes {
			full += min(n, 1)
		}
		h.unlike = h.unlike || h.ranks > 0 && full != h.batches
		h.batches = full
		h.ranks++
	}
	for i := range clients {
		for e := range clients[i].Epochs {
			k := jobEpoch{clients[i].Spec.Name, uint32(e)}
			if h := got[k]; h != nil && h.ranks >= clients[i].Spec.World {
				wrong = append(wrong, r.whole(&clients[i], k, h)...)
			}
		}
	}
	return wrong
}

// whole compares one epoch.
func (r *Result) whole(c *Client, k jobEpoch, h *heard) (wrong []string) {
	fail := func(format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s epoch %d: ", k.job, k.epoch)+fmt.Sprintf(format, args...))
	}
	ids := slices.Clone(h.ids)
	slices.Sort(ids)
	if n := len(slices.Compact(slices.Clone(ids))); n != len(ids) {
		fail("%d samples, %d distinct", len(ids), n)
	}
	want := slices.Clone(r.Subset(k.job, k.epoch))
	spec := c.Spec
	spec.Subset = len(want)
	least, most := spec.Dealt(), spec.Subset
	if spec.InStep() {
		least -= (spec.World - 1) * spec.Slots // see docs/guarantees.md
		if h.unlike {
			fail("its ranks did not get equally many batches")
		}
	}
	if len(ids) < least || len(ids) > most {
		fail("%d samples of %d (at most %d are dropped)", len(ids), most, most-least)
	}
	slices.Sort(want)
	for _, x := range ids {
		if _, ok := slices.BinarySearch(want, x); !ok {
			fail("%d is foreign", x)
		}
	}
	return wrong
}

// Stale finds broken promises of guarantee G3: no job gets one instance of a sample twice, by whichever rank, client or
// epoch. It returns what is wrong.
func (r *Result) Stale() (wrong []string) {
	type key struct {
		job      string
		object   ident.ObjectID
		instance uint32
	}
	seen := map[key]*Received{}
	for _, e := range r.Epochs {
		for x, i := range e.Instance {
			k := key{e.Job, x, i}
			if o := seen[k]; o != nil {
				wrong = append(wrong, fmt.Sprintf("%s got instance %d of object %d in epochs %d (rank %d) and %d (rank %d)",
					e.Job, i, x, o.Epoch, o.Rank, e.Epoch, e.Rank))
			}
			seen[k] = e
		}
	}
	return wrong
}
