package coordinator

import (
	"fmt"
	"strings"

	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/units"
	"larder/tiers/residency"
)

// evicted is called by the index for an entry that leaves. Bytes that nobody reads go at once; others at their last unpin.
func (c *Core) evicted(h residency.Handle, k ident.Key) {
	c.stats.Evictions[k.Form]++
	if c.index.Pins(h) == 0 {
		c.emit(FreeKey{Key: k})
	}
	c.left(k)
	c.tell(k.Object, k) // the index still shows the entry while it calls
}

func (c *Core) unpin(p pin) {
	if p.held && c.index.Unpin(p.h) {
		c.emit(FreeKey{Key: c.index.Key(p.h)}) // readable until the next Admit
	}
}

// drop takes a pinned entry out of the index for good and drops the pin.
func (c *Core) drop(p pin) {
	if !p.held {
		return
	}
	k := c.index.Key(p.h)
	c.index.Drop(p.h)
	c.left(k)
	if c.index.Unpin(p.h) {
		c.emit(FreeKey{Key: k})
	}
	c.relevel(k.Object)
}

// forgetPerStep is how many places of the index one Forget looks at.
const forgetPerStep = 512

// forget takes entries of objects out of the tiers. One that is in use leaves with its last reader, as one that is evicted does.
func (c *Core) forget(e Forget) {
	r := Reply{}
	if all := c.index.Slots(); e.From >= 0 && e.From < all {
		var out []residency.Handle
		n := min(forgetPerStep, all-e.From)
		c.index.Some(e.From, n, func(h residency.Handle, k ident.Key) {
			if e.Objects.Has(uint32(k.Object)) {
				out = append(out, h)
			}
		})
		for _, h := range out {
			r.Freed += c.index.Bytes(h)
			c.index.Pin(h)
			c.drop(pin{h, true})
		}
		if e.From+n < all {
			r.Next = e.From + n
		}
	}
	c.reply(e.Token, r)
}

// leaving is how many bytes may be on their way out of a tier under pins; -1 = no bound.
func (c *Core) leaving(f ident.Form) int64 {
	if spare := c.budgets[f] - c.cfg.Usable(c.budgets[f]); spare > 0 {
		return spare
	}
	return -1
}

// reconfigure changes tier sizes, all of them or none. It is answered when memory has moved.
func (c *Core) reconfigure(e Reconfigure) {
	t := e.Tiers
	t.Policy = c.cfg.Tiers.Policy
	split, why, err := c.split(t)
	if err == nil {
		err = c.checkQuotas(t)
	}
	if err != nil {
		c.reply(e.Token, Reply{Err: err})
		return
	}
	c.cfg.Tiers = t
	for _, f := range tierForms {
		c.auto[f] = t.Sizes[f] < 0
	}
	if e.Token != 0 {
		c.resizers = append(c.resizers, e.Token)
	}
	c.model.first, c.model.resized, c.model.stale = true, true, c.model.solving
	if !c.anyAuto() {
		c.stats.Why, c.stats.Model, c.stats.Binding, c.stats.Predicted = why, "", "", 0
		c.model.idle = false
	} else if d, _ := c.demanded(); t.Model != SimpleModel && d.Measured() {
		split = c.squeezed(t) // what the auto tiers hold is not thrown away for the moment that solving takes
		c.stats.Why, c.stats.Predicted = "sizes as asked, the others in proportion, until the model is solved in a moment", 0
	} else {
		c.thumb()
		return
	}
	c.apply(split)
	c.resolve()
}

// squeezed is the split in force with the fixed tiers as they are to be, and the others in proportion where that leaves less.
func (c *Core) squeezed(t TierConfig) [ident.NumForms]int64 {
	out, left, auto := c.target, t.Total, int64(0)
	for _, f := range tierForms {
		if t.Sizes[f] >= 0 {
			out[f] = t.Sizes[f]
			left -= t.Sizes[f]
		} else {
			auto += out[f]
		}
	}
	for _, f := range tierForms {
		if t.Sizes[f] < 0 && auto > left {
			out[f] = int64(float64(left) * (float64(out[f]) / float64(auto)))
		}
	}
	return out
}

// repartition solves the split of the auto tiers again, and what fixed ones give.
// Small changes of the measured sizes are let be (hysteresis), a change of jobs is not.
func (c *Core) repartition(hysteresis bool) {
	c.setRoom()
	if hysteresis && !c.anyAuto() {
		return
	}
	if !hysteresis {
		c.model.first = true
		c.recountDegree()
		c.resolve()
		return
	}
	if len(c.wanted.walks) > 0 {
		return // what is wanted is being counted, and then it is solved
	}
	c.resolve()
	if c.model.solving {
		return
	}
	split, _, err := c.split(c.cfg.Tiers)
	if err != nil {
		return // the configuration was checked when it came in
	}
	moved := int64(0)
	for _, f := range tierForms {
		moved = max(moved, split[f]-c.target[f])
	}
	if moved > c.cfg.Tiers.Total/20 {
		c.thumb()
	}
}

// wanted is what all live jobs want together: how many of them want each object, and the sums over the objects that any wants. It
// is counted in slices.
type wanted struct {
	objects int64
	bytes   int64
	by      [][]uint8  // by object, in pages: a large id costs one page
	owners  [][]uint16 // the dataset that the object counts for, from 1
	walks   []walk     // to be counted, in order
}

// owner is the dataset that an object counts for; -1 = none yet.
func (u *wanted) owner(x ident.ObjectID) int {
	if p := int(x) / wantedPage; p < len(u.owners) && u.owners[p] != nil {
		return int(u.owners[p][int(x)%wantedPage]) - 1
	}
	return -1
}

func (u *wanted) setOwner(x ident.ObjectID, dataset int) {
	p := int(x) / wantedPage
	for p >= len(u.owners) {
		u.owners = append(u.owners, nil)
	}
	if u.owners[p] == nil {
		u.owners[p] = make([]uint16, wantedPage)
	}
	u.owners[p][int(x)%wantedPage] = uint16(min(dataset+1, 1<<16-1))
}

// walk is a subset on its way into the counts, or out of them.
type walk struct {
	subset  []ident.ObjectID
	dataset int
	out     bool
	at      int
}

const (
	wantedPage   = 1 << 14
	countPerStep = 4096 // objects counted in one Step
)

// recount enters a subset into the union of what is wanted, or takes it out. The split of memory follows when it is counted.
func (c *Core) recount(s *stream, subset []ident.ObjectID, in bool) {
	c.wanted.walks = append(c.wanted.walks, walk{subset: subset, dataset: s.dataset, out: !in})
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
			c.countOne(x, w)
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

func (c *Core) countOne(x ident.ObjectID, w *walk) {
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
	case !w.out:
		if *n++; *n == 1 {
			u.setOwner(x, w.dataset) // nobody wanted it, so whoever did has no claim any more
			c.wantOne(x, 1)
		}
	default:
		if *n--; *n == 0 {
			c.wantOne(x, -1)
		}
	}
}

// wantOne counts an object that a first job wants, or none any more.
func (c *Core) wantOne(x ident.ObjectID, sign int64) {
	bytes := sign * c.cfg.Bytes(x)
	c.wanted.objects += sign
	c.wanted.bytes += bytes
	d := &c.datasets[c.wanted.owner(x)]
	d.objects += sign
	d.bytes += bytes
}

// apply has the tiers become of those sizes. Memory moves in slices: tiers shrink by a bounded number of entries in each Step, and the
// others grow when that is done, so that the sum never exceeds what it was or is to be.
func (c *Core) apply(split [ident.NumForms]int64) {
	c.target, c.resizing = split, true
	c.resizeSlice()
}

const shrinkPerStep = 512 // entries that leave in one Step because a tier shrinks

func (c *Core) resizeSlice() {
	if !c.resizing {
		return
	}
	for _, f := range tierForms {
		if c.target[f] >= c.budgets[f] {
			continue
		}
		before := c.index.Evictions(f)
		done := c.index.Shrink(f, c.cfg.Usable(c.target[f]), shrinkPerStep-c.spent.shrunk, c.evicted)
		c.spent.shrunk += int(c.index.Evictions(f) - before)
		if !done {
			return
		}
		c.resize(f)
	}
	for _, f := range tierForms {
		if u := c.cfg.Usable(c.target[f]); c.index.Budget(f) != u { // it grows, or an earlier shrinking was given up
			c.index.Shrink(f, u, 0, c.evicted)
		}
		c.resize(f)
	}
	c.resizing = false
	c.apportion()
	c.setRoom()
	for _, t := range c.resizers {
		c.reply(t, Reply{})
	}
	c.resizers = c.resizers[:0]
}

// resize tells a tier its size.
func (c *Core) resize(f ident.Form) {
	if c.target[f] != c.budgets[f] {
		c.budgets[f] = c.target[f]
		c.emit(SetBudget{Form: f, Bytes: c.budgets[f]})
	}
	c.index.SetLeavingLimit(f, c.leaving(f))
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
			fixed = append(fixed, fmt.Sprintf("tiers.%s %s", f, units.Size(t.Sizes[f])))
		}
	}
	if left < 0 {
		verb := "exceeds"
		if len(fixed) > 1 {
			verb = "exceed"
		}
		return out, "", errs.New(errs.ResourceExceeded, "tiers", "lower a tier or raise tiers.total",
			"%s %s tiers.total %s", strings.Join(fixed, " + "), verb, units.Size(t.Total))
	}
	if autos == 0 {
		return out, "fixed by the configuration", nil
	}
	in := c.inputs()
	in.Total = left
	s, why := partition.SimpleSplit(in)
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
	if autos < len(tierForms) { // the rule's own words are of a split in which nothing is fixed
		var rest []string
		for _, f := range tierForms {
			if t.Sizes[f] < 0 {
				rest = append(rest, fmt.Sprintf("%s %s", f, units.Size(out[f])))
			} else if t.Sizes[f] == 0 {
				fixed = append(fixed, fmt.Sprintf("tiers.%s 0", f))
			}
		}
		why = fmt.Sprintf("%s fixed; the rest by the rule of thumb: %s", strings.Join(fixed, ", "), strings.Join(rest, ", "))
	}
	return out, why, nil
}

// inputs are what active jobs want in each form, for the rule of thumb.
func (c *Core) inputs() partition.Wanted {
	in := partition.Wanted{EncodedBytes: c.wanted.bytes}
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
