package coresim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// served are reads of the store and of the disk, for each sample and epoch of a job, and the mean place in an epoch,
// from 0 to 1, of the samples that the disk holds.
type served struct{ store, disk, place float64 }

// beside runs jobs on a dataset of which a disk tier holds every sample whose number modulo 100 is below h, with memory
// for e of 100 encoded samples, which takes what the disk has too or leaves that out.
func beside(t *testing.T, jobs, e, h int, exclusive bool) served {
	t.Helper()
	const samples, epochs, size = 1500, 6, 100
	local := func(x ident.ObjectID) bool { return int(x)%100 < h }
	m := model(uint64(1+jobs), 0)
	m.Workers, m.Check = 8, 0
	mark := int64(size + 1)
	if exclusive {
		mark = 1 << 30 // larger than memory, which so never takes it
	}
	m.Bytes = func(x ident.ObjectID) int64 {
		if local(x) {
			return mark
		}
		return size
	}
	total := int64(samples * e / 100 * (size + 1))
	m.Tiers = coordinator.TierConfig{Total: total, Sizes: [ident.NumForms]int64{ident.Encoded: total}}
	var clients []Client
	for i := range jobs {
		c := client(fmt.Sprint("j", i), span(0, samples), 20, epochs)
		c.Step = 10 * time.Millisecond
		clients = append(clients, c)
	}
	res, err := Run(m, clients, time.Hour)
	if err != nil || len(res.Failures) > 0 {
		t.Fatal(err, res.Failures)
	}
	reads := int64(res.Stats.SourceReads)
	n := int64(res.Stats.SourceBytes) - reads*size
	if exclusive {
		n = int64(res.Stats.SourceBytes) / mark
	}
	each := float64(samples * epochs)
	sum, count := 0.0, 0
	for _, r := range res.Epochs {
		for i, x := range r.IDs {
			if r.Epoch > 0 && local(x) {
				sum, count = sum+float64(i)/float64(len(r.IDs)-1), count+1
			}
		}
	}
	return served{float64(reads-n) / each, float64(n) / each, sum / float64(count)}
}

// TestMemoryIsNotApartFromTheDisk gives the figures of docs/tiers.md: memory that leaves out what a disk tier holds
// saves reads of the store, and brings a sample that the disk holds late in every epoch of jobs that share.
func TestMemoryIsNotApartFromTheDisk(t *testing.T) {
	for _, c := range []struct{ jobs, h, e int }{{1, 60, 10}, {1, 60, 30}, {4, 60, 10}, {4, 60, 30}, {4, 90, 10}} {
		with, apart := beside(t, c.jobs, c.e, c.h, false), beside(t, c.jobs, c.e, c.h, true)
		t.Logf("%d jobs, disk %d %%, memory %d %%: with the disk's %.2f; apart %.2f", c.jobs, c.h, c.e, with, apart)
		if apart.store > with.store || apart.disk < with.disk {
			t.Errorf("%+v: apart it reads %.3f of the store and %.3f of the disk, else %.3f and %.3f", c, apart.store,
				apart.disk, with.store, with.disk)
		}
		if math.Abs(with.place-.5) > .02 {
			t.Errorf("%+v: what the disk holds comes at %.3f of an epoch", c, with.place)
		}
		if late := apart.place - with.place; (late > .03) != (c.jobs > 1) {
			t.Errorf("%+v: apart it comes %.3f of an epoch later", c, late)
		}
	}
}
