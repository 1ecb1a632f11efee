package coresim

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"os"
	"slices"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// What a disk tier would keep by the need of samples, beside what it keeps. No decision of the coordinator depends on
// the disk tier, so the reads of one simulation are the demand on each of them.

// demand is what storage is asked for, and what jobs are there and what they have taken, in order of time.
type demand struct {
	samples int
	events  []demanded
	reads   int
}

type demanded struct {
	at   time.Duration
	kind int // comes, leaves, begins (an epoch), takes, asks
	job  int
	x    ident.ObjectID // of takes and asks
}

const (
	comes = iota
	leaves
	begins
	takes
	asks
)

// seen is an Outside that only looks.
type seen struct {
	desk Desk
	d    *demand
}

func (*seen) Joined(ident.JobID, *Client)         {}
func (*seen) Check(*coordinator.Core, bool) error { return nil }
func (s *seen) Do(eff coordinator.Effect) (own bool) {
	if p, ok := eff.(coordinator.Prepare); ok && p.From == ident.Stored {
		s.d.events = append(s.d.events, demanded{s.desk.Now(), asks, 0, p.Key.Object})
		s.d.reads++
	}
	return false
}

// demandOf runs jobs with memory for so many encoded samples. When a sample is taken is interpolated within its epoch.
func demandOf(t *testing.T, samples, memory int, clients []Client) *demand {
	t.Helper()
	d := &demand{samples: samples}
	m := model(uint64(len(clients)+memory), 0)
	m.Workers, m.Check = 8, 0
	total := int64(memory) * 101
	m.Tiers = coordinator.TierConfig{Total: total, Sizes: [ident.NumForms]int64{ident.Encoded: total}}
	m.Outside = func(desk Desk) Outside { return &seen{desk, d} }
	res, err := Run(m, clients, 100*time.Hour)
	if err != nil || len(res.Failures) > 0 {
		t.Fatal(err, res.Failures)
	}
	for job, c := range clients {
		var first, last time.Duration
		for _, r := range res.Epochs {
			if r.Job != c.Spec.Name {
				continue
			}
			if r.Epoch == 0 {
				first = r.Begun
			}
			last = r.Finished
			d.events = append(d.events, demanded{r.Begun, begins, job, 0})
			for i, x := range r.IDs {
				at := r.Begun + (r.Finished-r.Begun)*time.Duration(i)/time.Duration(len(r.IDs))
				d.events = append(d.events, demanded{at, takes, job, x})
			}
		}
		d.events = append(d.events, demanded{first, comes, job, 0}, demanded{last, leaves, job, 0})
	}
	slices.SortStableFunc(d.events, func(a, b demanded) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind))
	})
	return d
}

// keeping says what a tier keeps.
type keeping struct {
	name    string
	segment int  // samples that leave together
	need    bool // by the need of samples; else every sample of a dataset is needed alike
	classes bool // a segment has samples that were needed alike when they were written
	epoch   bool // need is that of jobs that have not taken a sample in this epoch; else of all that have it
}

// part is a segment of the simulated tier.
type part struct {
	in    []ident.ObjectID
	used  int // the read that found one of its samples last
	class int
}

// kept is a simulated disk tier of unit-sized samples.
type kept struct {
	keeping
	room    int
	subsets [][]bool
	of      []*part // by sample
	parts   []*part
	filling map[int]*part
	live    uint64
	wants   []uint64 // by sample: jobs that have not taken it in this epoch
	reads   int
	held    int
	written int
	missed  int
}

// needs is how many jobs need a sample.
func (k *kept) needs(x ident.ObjectID) int {
	switch {
	case !k.need:
		return 1
	case k.epoch:
		return bits.OnesCount64(k.wants[x] & k.live)
	}
	n := 0
	for job, in := range k.subsets {
		if in[x] && k.live>>job&1 == 1 {
			n++
		}
	}
	return n
}

// needed is the need of a segment: the mean of its samples'. One in which nothing was found for long is needed by none.
func (k *kept) needed(p *part) float64 {
	if k.reads-p.used > 8*k.held+1000 {
		return 0
	}
	n := 0
	for _, x := range p.in {
		n += k.needs(x)
	}
	return math.Round(float64(n) / float64(len(p.in)))
}

// ask reads a sample.
func (k *kept) ask(x ident.ObjectID) {
	k.reads++
	if p := k.of[x]; p != nil {
		p.used = k.reads
		return
	}
	k.missed++
	need, class := k.needs(x), 0
	if k.classes {
		class = need
	}
	if k.held >= k.room {
		least, at := 0.0, -1
		for i, p := range k.parts {
			if n := k.needed(p); at < 0 || n < least || n == least && p.used < k.parts[at].used {
				least, at = n, i
			}
		}
		if least >= float64(need) {
			return
		}
		k.drop(at)
	}
	p := k.filling[class]
	if p == nil || len(p.in) >= k.segment {
		p = &part{class: class}
		k.filling[class] = p
		k.parts = append(k.parts, p)
	}
	p.in, p.used, k.of[x] = append(p.in, x), k.reads, p
	k.held++
	k.written++
}

// drop evicts a segment.
func (k *kept) drop(at int) {
	p := k.parts[at]
	k.parts[at] = k.parts[len(k.parts)-1]
	k.parts = k.parts[:len(k.parts)-1]
	for _, x := range p.in {
		k.of[x] = nil
	}
	k.held -= len(p.in)
	if k.filling[p.class] == p {
		delete(k.filling, p.class)
	}
}

// replay gives the part of the reads that reach the store, and how often the tier was written anew, in all and in the
// second half of the reads.
func (d *demand) replay(how keeping, room int, clients []Client) (missed, written, late float64) {
	k := &kept{keeping: how, room: room, of: make([]*part, d.samples), wants: make([]uint64, d.samples),
		filling: map[int]*part{}}
	for _, c := range clients {
		in := make([]bool, d.samples)
		for _, x := range c.Sample.Subset {
			in[x] = true
		}
		k.subsets = append(k.subsets, in)
	}
	early := 0
	for _, e := range d.events {
		switch e.kind {
		case comes:
			k.live |= 1 << e.job
		case leaves:
			k.live &^= 1 << e.job
		case begins:
			for _, x := range clients[e.job].Sample.Subset {
				k.wants[x] |= 1 << e.job
			}
		case takes:
			k.wants[e.x] &^= 1 << e.job
		case asks:
			if k.ask(e.x); k.reads == d.reads/2 {
				early = k.written
			}
		}
	}
	of := float64(room)
	return float64(k.missed) / float64(k.reads), float64(k.written) / of, float64(k.written-early) / of
}

// future is the part of the reads that reach the store when the tier knows all reads that will come, and need not take
// what it reads: no policy does better (Belady's, with bypass).
func (d *demand) future(room int) float64 {
	next, last := make([]int, 0, d.reads), make([]int, d.samples)
	var order []ident.ObjectID
	for _, e := range d.events {
		if e.kind == asks {
			order = append(order, e.x)
		}
	}
	next = next[:len(order)]
	for x := range last {
		last[x] = len(order)
	}
	for i := len(order) - 1; i >= 0; i-- {
		next[i], last[order[i]] = last[order[i]], i
	}
	held, missed := map[ident.ObjectID]int{}, 0 // when it comes next
	for i, x := range order {
		if _, ok := held[x]; ok {
			held[x] = next[i]
			continue
		}
		missed++
		if next[i] == len(order) {
			continue
		}
		held[x] = next[i]
		if len(held) > room {
			worst, at := x, -1
			for y, n := range held { // order-free: moments differ
				if n > at {
					worst, at = y, n
				}
			}
			delete(held, worst)
		}
	}
	return float64(missed) / float64(len(order))
}

// keepings are what is compared. What tiers/disk does is "by subset, in segments": there the need of a segment follows
// from its latest reads.
func keepings(room int) []keeping {
	segment := max(room/256, 4)
	return []keeping{
		{name: "by dataset", segment: segment},
		{name: "by subset, in segments", segment: segment, need: true, classes: true},
		{name: "by subset, each sample", segment: 1, need: true},
		{name: "by epoch, each sample", segment: 1, need: true, epoch: true},
	}
}

// crowdOf are jobs on a dataset, each on a part of it that begins so far behind the one before.
func crowdOf(n, samples, part, apart, epochs int) (out []Client) {
	for i := range n {
		from := i * apart % samples
		subset := span(from, min(samples, from+part))
		subset = append(subset, span(0, max(0, from+part-samples))...)
		slices.Sort(subset)
		c := client(fmt.Sprint("j", i), subset, 20, epochs)
		c.Step = time.Duration(10+3*(i%4)) * time.Millisecond // they train at unlike speeds
		c.Start = time.Duration(i) * 700 * time.Millisecond
		out = append(out, c)
	}
	return out
}

// TestNeedOfSamplesOnDisk gives the figures of docs/tiers.md with LARDER_NEED_SAMPLES=3000; by default it is smaller.
func TestNeedOfSamplesOnDisk(t *testing.T) {
	samples, epochs := 600, 4
	if text := os.Getenv("LARDER_NEED_SAMPLES"); text != "" {
		epochs = 12
		if _, err := fmt.Sscan(text, &samples); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		jobs, part, apart int // percent of the samples
		disk, memory      int
		wins              float64 // at least so many of the reads of the store are saved; below 0: at most so many are added
	}{
		{2, 100, 0, 33, 0, -.01}, {2, 66, 33, 33, 0, .03}, {2, 66, 33, 20, 10, -.03}, {4, 50, 17, 33, 0, .15},
		{4, 50, 17, 33, 10, .01}, {8, 40, 10, 33, 0, .2}, {8, 40, 10, 33, 10, .03}, {4, 100, 0, 33, 10, -.01},
	} {
		clients := crowdOf(c.jobs, samples, samples*c.part/100, samples*c.apart/100, epochs)
		d := demandOf(t, samples, samples*c.memory/100, clients)
		room := samples * c.disk / 100
		line := fmt.Sprintf("%d jobs on %d %%, %d %% apart, disk %d %%, memory %d %%: %.2f reads a sample;", c.jobs, c.part,
			c.apart, c.disk, c.memory, float64(d.reads)/float64(samples))
		missed := map[string]float64{}
		for _, how := range keepings(room) {
			m, written, late := d.replay(how, room, clients)
			missed[how.name] = m
			line += fmt.Sprintf(" %s %.3f (written %.1f times, %.2f in the second half);", how.name, m, written, late)
		}
		best := d.future(room)
		t.Logf("%s future %.3f", line, best)
		one, of := missed["by subset, in segments"], missed["by dataset"]
		if one > of*(1-c.wins) {
			t.Errorf("%+v: %.3f of the reads reach the store by subset, %.3f by dataset", c, one, of)
		}
		for how, m := range missed {
			if m < best {
				t.Errorf("%+v: %s %.3f, and who knows the future %.3f", c, how, m, best)
			}
		}
	}
}
