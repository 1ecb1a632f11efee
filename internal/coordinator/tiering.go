package coordinator

import (
	"fmt"
	"strings"

	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/fault"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// evicted is called by the index for an entry that leaves. Bytes that nobody reads go at once; others at their last unpin.
func (c *Core) evicted(h residency.Handle, k ident.Key) {
	c.stats.Evictions[k.Form]++
	if c.index.Pins(h) == 0 {
		c.emit(FreeKey{Key: k})
	}
	c.tell(k.Object, k) // the index still shows the entry while it calls
}

func (c *Core) unpin(p pin) {
	if !p.held {
		return
	}
	k := c.index.Key(p.h)
	if c.index.Unpin(p.h) {
		c.emit(FreeKey{Key: k})
	}
}

// drop takes a pinned entry out of the index for good and drops the pin.
func (c *Core) drop(p pin) {
	if !p.held {
		return
	}
	k := c.index.Key(p.h)
	c.index.Drop(p.h)
	if c.index.Unpin(p.h) {
		c.emit(FreeKey{Key: k})
	}
	c.relevel(k.Object)
}

// leaving is how many bytes may be on their way out of a tier under pins; -1 = no bound.
func (c *Core) leaving(f ident.Form) int64 {
	if spare := c.budgets[f] - c.cfg.Usable(c.budgets[f]); spare > 0 {
		return spare
	}
	return -1
}

// reconfigure changes tier sizes, all of them or none.
func (c *Core) reconfigure(e Reconfigure) {
	split, _, err := c.split(e.Tiers)
	if err != nil {
		c.reply(e.Token, Reply{Err: err})
		return
	}
	c.cfg.Tiers.Total, c.cfg.Tiers.Sizes = e.Tiers.Total, e.Tiers.Sizes
	for _, f := range tierForms {
		c.auto[f] = e.Tiers.Sizes[f] < 0
	}
	c.apply(split)
	c.reply(e.Token, Reply{})
}

// repartition solves the split of the auto tiers again.
// Small changes of the measured sizes are let be (hysteresis), a change of jobs is not.
func (c *Core) repartition(hysteresis bool) {
	if !c.auto[ident.Encoded] && !c.auto[ident.Decoded] && !c.auto[ident.Augmented] {
		return
	}
	split, why, err := c.split(c.cfg.Tiers)
	if err != nil {
		return // the configuration was checked when it came in
	}
	if hysteresis {
		if len(c.wanted.walks) > 0 {
			return // what is wanted is being counted, and then it is solved
		}
		moved := int64(0)
		for _, f := range tierForms {
			moved = max(moved, split[f]-c.budgets[f])
		}
		if moved <= c.cfg.Tiers.Total/20 {
			return
		}
	}
	c.stats.Why = why
	c.apply(split)
}

// wanted is what all live jobs want together: how many of them want each object, and the sums over the objects that any wants. It
// is counted in slices.
type wanted struct {
	objects int64
	bytes   int64
	by      [][]uint8 // by object, in pages: a large id costs one page
	walks   []walk    // to be counted, in order
}

// walk is a subset on its way into the counts, or out of them.
type walk struct {
	subset []ident.ObjectID
	out    bool
	at     int
}

const (
	wantedPage   = 1 << 14
	countPerStep = 4096 // objects counted in one Step
)

// recount enters a subset into the union of what is wanted, or takes it out. The split of memory follows when it is counted.
func (c *Core) recount(subset []ident.ObjectID, in bool) {
	c.wanted.walks = append(c.wanted.walks, walk{subset: subset, out: !in})
	c.countSlice()
}

// countSlice counts on, as far as this Step may. A subset comes out only after it went in, so no count passes the number of jobs
// and of changes under way by more than one each.
func (c *Core) countSlice() {
	u := &c.wanted
	if len(u.walks) == 0 {
		return
	}
	for c.count > 0 && len(u.walks) > 0 {
		w := &u.walks[0]
		n := min(c.count, len(w.subset)-w.at)
		for _, x := range w.subset[w.at : w.at+n] {
			c.countOne(x, w.out)
		}
		w.at += n
		c.count -= n + 1
		c.spent.counted += n
		if w.at == len(w.subset) {
			u.walks[0] = walk{}
			u.walks = u.walks[1:]
		}
	}
	if len(u.walks) == 0 {
		u.walks = nil
		c.repartition(false)
	}
}

func (c *Core) countOne(x ident.ObjectID, out bool) {
	if x >= dsa.MaxObjects {
		return // the sampler will refuse the job
	}
	u := &c.wanted
	p := int(x) / wantedPage
	for p >= len(u.by) {
		u.by = append(u.by, nil)
	}
	if u.by[p] == nil {
		u.by[p] = make([]uint8, wantedPage)
	}
	n := &u.by[p][int(x)%wantedPage]
	switch {
	case !out:
		if *n++; *n == 1 {
			u.objects++
			u.bytes += c.cfg.Bytes(x)
		}
	default:
		if *n--; *n == 0 {
			u.objects--
			u.bytes -= c.cfg.Bytes(x)
		}
	}
}

// apply sets budgets: shrinking first, so that the sum never exceeds the total.
func (c *Core) apply(split [ident.NumForms]int64) {
	for _, shrink := range []bool{true, false} {
		for _, f := range tierForms {
			if now := c.budgets[f]; split[f] != now && (split[f] < now) == shrink {
				c.budgets[f] = split[f]
				c.index.SetBudget(f, c.cfg.Usable(split[f]), c.evicted)
				c.index.SetLeavingLimit(f, c.leaving(f))
				c.emit(SetBudget{Form: f, Bytes: split[f]})
			}
		}
	}
}

// split turns a configuration into bytes: fixed sizes as they are, the rest by the model.
func (c *Core) split(t TierConfig) ([ident.NumForms]int64, string, error) {
	var out [ident.NumForms]int64
	left, autos := t.Total, 0
	var fixed []string
	for _, f := range tierForms {
		if t.Sizes[f] < 0 {
			autos++
			continue
		}
		out[f] = t.Sizes[f]
		left -= t.Sizes[f]
		if t.Sizes[f] > 0 {
			fixed = append(fixed, fmt.Sprintf("tiers.%s %s", f, fault.Size(t.Sizes[f])))
		}
	}
	if left < 0 {
		verb := "exceeds"
		if len(fixed) > 1 {
			verb = "exceed"
		}
		return out, "", fault.New(fault.ResourceExceeded, "tiers", "lower a tier or raise tiers.total",
			"%s %s tiers.total %s", strings.Join(fixed, " + "), verb, fault.Size(t.Total))
	}
	if autos == 0 {
		return out, "fixed by the configuration", nil
	}
	in := c.demand()
	in.Total = left
	s, why := cachepolicy.SimpleSplit(in)
	model := [ident.NumForms]int64{ident.Encoded: s.Encoded, ident.Decoded: s.Decoded, ident.Augmented: s.Augmented}
	spare := left
	for _, f := range tierForms {
		if t.Sizes[f] < 0 {
			out[f] = model[f]
			spare -= model[f]
		}
	}
	for _, f := range [...]ident.Form{ident.Decoded, ident.Encoded, ident.Augmented} { // what the model gave to a fixed tier
		if t.Sizes[f] < 0 && spare > 0 {
			out[f] += spare
			break
		}
	}
	return out, why, nil
}

// demand measures what active jobs want in each form.
func (c *Core) demand() cachepolicy.Inputs {
	in := cachepolicy.Inputs{EncodedBytes: c.wanted.bytes}
	var decoded, n int64
	for i := range c.prefixes {
		decoded += c.prefixes[i].decoded.sum
		n += c.prefixes[i].decoded.n
	}
	if n > 0 {
		in.DecodedBytes = decoded / n * c.wanted.objects
	} else {
		in.DecodedBytes = in.EncodedBytes * 6 // a JPEG unpacks to 5.4 times its size on ImageNet
	}
	in.DecodedBytes += in.DecodedBytes / 15 // only 15/16 of a tier may be resident
	for _, g := range c.groups {
		if !g.shares() {
			continue
		}
		in.ShareGroups++
		in.AugmentedBytes += g.members[0].augBytes * int64(len(g.members[0].sample.Subset))
	}
	return in
}
