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

// tiering decides how large the tiers are: it counts what all jobs want together, splits memory by the model or the
// rule of thumb, applies the quotas of datasets, and moves memory in slices.
type tiering struct {
	cfg     *Config
	step    *step
	roster  *roster
	needs   *needs
	sampler *dsa.Sampler
	index   *residency.Index

	budgets  [ident.NumForms]int64 // of the tiers; the usable part is in index
	auto     [ident.NumForms]bool
	target   [ident.NumForms]int64 // the budgets that are being moved to
	resizing bool                  // budgets differ from target, and memory moves in each Step
	resizers []Token               // requests that are answered when it has moved
	model    model
	shares   [ident.NumForms]*shares // nil without quotas
	wanted   wanted                  // the union of all subsets
}

// begin makes the tiers as they are configured, and their index.
func (ti *tiering) begin() (*residency.Index, error) {
	var evict [ident.NumForms]residency.Evictor
	for _, f := range tierForms {
		p := ti.cfg.Tiers.Policy[f]
		if p == "" {
			p = "need"
		}
		e, err := ti.evictor(f, p)
		if err != nil {
			return nil, err
		}
		evict[f] = e
	}
	if m := ti.cfg.Tiers.Model; m != SimpleModel {
		if _, err := partition.New(m); err != nil {
			return nil, err
		}
	}
	split, why, err := ti.split(ti.cfg.Tiers)
	ti.step.stats.Why = why
	if err == nil {
		err = ti.checkQuotas(ti.cfg.Tiers)
	}
	if err != nil {
		return nil, err
	}
	ti.budgets, ti.target = split, split
	var usable [ident.NumForms]int64
	for _, f := range tierForms {
		usable[f] = ti.cfg.Usable(split[f])
		ti.auto[f] = ti.cfg.Tiers.Sizes[f] < 0
	}
	ti.index = residency.New(usable, evict)
	for _, f := range tierForms {
		ti.index.SetLeavingLimit(f, ti.leaving(f))
	}
	ti.setRoom()
	return ti.index, nil
}

// leaving is how many bytes may be on their way out of a tier under pins; -1 = no bound.
func (ti *tiering) leaving(f ident.Form) int64 {
	if spare := ti.budgets[f] - ti.cfg.Usable(ti.budgets[f]); spare > 0 {
		return spare
	}
	return -1
}

// reconfigure changes tier sizes, all of them or none. It is answered when memory has moved.
func (ti *tiering) reconfigure(e Reconfigure) {
	t := e.Tiers
	t.Policy = ti.cfg.Tiers.Policy
	split, why, err := ti.split(t)
	if err == nil {
		err = ti.checkQuotas(t)
	}
	if err != nil {
		ti.step.reply(e.Token, Reply{Err: err})
		return
	}
	ti.cfg.Tiers = t
	for _, f := range tierForms {
		ti.auto[f] = t.Sizes[f] < 0
	}
	if e.Token != 0 {
		ti.resizers = append(ti.resizers, e.Token)
	}
	ti.model.change = changeSizes
	ti.model.outdate()
	if !ti.anyAuto() {
		ti.step.stats.Why, ti.step.stats.Model, ti.step.stats.Binding, ti.step.stats.Predicted = why, "", "", 0
		ti.model.idle = false
	} else if d, _ := ti.demanded(); t.Model != SimpleModel && d.Measured() {
		split = ti.squeezed(t) // what the auto tiers hold is not thrown away for the moment that solving takes
		ti.step.stats.Why = "sizes as asked, the others in proportion, until the model is solved in a moment"
		ti.step.stats.Predicted = 0
	} else {
		ti.splitByRule()
		return
	}
	ti.apply(split)
	ti.resolve()
}

// hasWork reports whether a slice of moving memory or of counting is left for the next Step.
func (ti *tiering) hasWork() bool { return ti.resizing || len(ti.wanted.walks) > 0 }

// squeezed is the split in force with the fixed tiers as they are to be, and the others in proportion where that leaves
// less.
func (ti *tiering) squeezed(t TierConfig) [ident.NumForms]int64 {
	out, left, auto := ti.target, t.Total, int64(0)
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
// Small changes of the measured sizes are ignored (hysteresis), a change of jobs is not.
func (ti *tiering) repartition(hysteresis bool) {
	if hysteresis && !ti.anyAuto() {
		return
	}
	if !hysteresis {
		ti.model.change = max(ti.model.change, changeJobs)
		ti.recountDegree()
		ti.resolve()
		return
	}
	if len(ti.wanted.walks) > 0 {
		return // what is wanted is being counted, and then it is solved
	}
	ti.resolve()
	if ti.model.phase != solveNone {
		return
	}
	split, _, err := ti.split(ti.cfg.Tiers)
	if err != nil {
		return // the configuration was checked when it came in
	}
	moved := int64(0)
	for _, f := range tierForms {
		moved = max(moved, split[f]-ti.target[f])
	}
	if moved > ti.cfg.Tiers.Total/20 {
		ti.splitByRule()
	}
}

// wanted is what all live jobs want together: how many of them want each object, and the sums over the objects that any
// wants. It is counted in slices.
type wanted struct {
	objects int64
	bytes   int64
	by      [][]uint8  // by object, in pages: a large id costs one page
	owners  [][]uint16 // the dataset that the object counts for, from 1
	walks   []walk     // subsets that are still to be counted, in order
	apart   [][]uint8  // of by, those that are not visible
	changed bool       // what visible jobs want has changed since setRoom
	// The same sums over the objects that any visible job wants.
	seenObjects, seenBytes int64
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
	visible bool // of a visible job
	at      int
}

const (
	wantedPage   = 1 << 14
	countPerStep = 4096 // objects counted in one Step
)

// recount enters a subset into the union of what is wanted, or takes it out. The split of memory follows when it is
// counted.
func (ti *tiering) recount(s *stream, subset []ident.ObjectID, in bool) {
	ti.wanted.walks = append(ti.wanted.walks, walk{subset: subset, dataset: s.dataset, out: !in, visible: s.visible()})
	ti.wanted.changed = ti.wanted.changed || s.visible()
	ti.countSlice()
}

// countSlice continues to count, as far as this Step may. A subset comes out only after it went in, so no count passes
// the number of jobs and of changes under way by more than one each.
func (ti *tiering) countSlice() {
	u := &ti.wanted
	if len(u.walks) == 0 {
		return
	}
	for ti.step.count > 0 && len(u.walks) > 0 {
		w := &u.walks[0]
		n := min(ti.step.count, len(w.subset)-w.at)
		for _, x := range w.subset[w.at : w.at+n] {
			ti.countOne(x, w)
		}
		w.at += n
		ti.step.count -= n + 1
		ti.step.spent.counted += n
		if w.at == len(w.subset) {
			u.walks[0] = walk{}
			u.walks = u.walks[1:]
		}
	}
	if len(u.walks) == 0 {
		u.walks = nil
		if u.changed {
			u.changed = false
			ti.setRoom()
		}
		ti.repartition(false)
	}
}

func (ti *tiering) countOne(x ident.ObjectID, w *walk) {
	if x >= dsa.MaxObjects {
		return // the sampler will refuse the job
	}
	u := &ti.wanted
	p := int(x) / wantedPage
	for p >= len(u.by) {
		u.by = append(u.by, nil)
	}
	if u.by[p] == nil {
		u.by[p] = make([]uint8, wantedPage)
	}
	n := &u.by[p][int(x)%wantedPage]
	ti.countSeen(x, w, *n)
	switch {
	case !w.out:
		if *n++; *n == 1 {
			u.setOwner(x, w.dataset) // no job wanted it any more, so its former dataset has no claim
			ti.countDistinct(x, 1)
		}
	default:
		if *n--; *n == 0 {
			ti.countDistinct(x, -1)
		}
	}
}

// countSeen counts the object among what visible jobs want. was is how many jobs wanted it before the walk.
func (ti *tiering) countSeen(x ident.ObjectID, w *walk, was uint8) {
	u := &ti.wanted
	p, i := int(x)/wantedPage, int(x)%wantedPage
	var apart uint8
	if p < len(u.apart) && u.apart[p] != nil {
		apart = u.apart[p][i]
	}
	sign := int64(1)
	if w.out {
		sign = -1
	}
	switch {
	case !w.visible:
		for p >= len(u.apart) {
			u.apart = append(u.apart, nil)
		}
		if u.apart[p] == nil {
			u.apart[p] = make([]uint8, wantedPage)
		}
		u.apart[p][i] += uint8(sign)
	case was-apart == 0 && !w.out || was-apart == 1 && w.out:
		u.seenObjects += sign
		u.seenBytes += sign * ti.cfg.Bytes(x)
	}
}

// countDistinct counts an object that gets its first job (sign 1), or loses its last one (-1).
func (ti *tiering) countDistinct(x ident.ObjectID, sign int64) {
	bytes := sign * ti.cfg.Bytes(x)
	ti.wanted.objects += sign
	ti.wanted.bytes += bytes
	d := &ti.roster.datasets[ti.wanted.owner(x)]
	d.objects += sign
	d.bytes += bytes
}

// apply moves the tiers to the sizes of a split. Memory moves in slices: tiers shrink by a bounded number of entries in
// each Step, and the others grow when that is done, so that the sum never exceeds the old and the new total.
func (ti *tiering) apply(split [ident.NumForms]int64) {
	ti.target, ti.resizing = split, true
	ti.resizeSlice()
}

const shrinkPerStep = 512 // entries that leave in one Step because a tier shrinks

func (ti *tiering) resizeSlice() {
	if !ti.resizing {
		return
	}
	for _, f := range tierForms {
		if ti.target[f] >= ti.budgets[f] {
			continue
		}
		before := ti.index.Evictions(f)
		done := ti.index.Shrink(f, ti.cfg.Usable(ti.target[f]), shrinkPerStep-ti.step.spent.shrunk, ti.needs.evicted)
		ti.step.spent.shrunk += int(ti.index.Evictions(f) - before)
		if !done {
			return
		}
		ti.resize(f)
	}
	for _, f := range tierForms {
		if u := ti.cfg.Usable(ti.target[f]); ti.index.Budget(f) != u { // it grows, or an earlier shrinking was given up
			ti.index.Shrink(f, u, 0, ti.needs.evicted)
		}
		ti.resize(f)
	}
	ti.resizing = false
	ti.apportion()
	ti.setRoom()
	for _, t := range ti.resizers {
		ti.step.reply(t, Reply{})
	}
	ti.resizers = ti.resizers[:0]
}

// resize gives a tier its size.
func (ti *tiering) resize(f ident.Form) {
	if ti.target[f] != ti.budgets[f] {
		ti.budgets[f] = ti.target[f]
		ti.step.emit(SetBudget{Form: f, Bytes: ti.budgets[f]})
	}
	ti.index.SetLeavingLimit(f, ti.leaving(f))
}

// split turns a configuration into bytes: fixed sizes as they are, the rest by the model.
func (ti *tiering) split(t TierConfig) ([ident.NumForms]int64, string, error) {
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
	in := ti.inputs()
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
	// what the model gave to a fixed tier
	for _, f := range [...]ident.Form{ident.Decoded, ident.Encoded, ident.Augmented} {
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
func (ti *tiering) inputs() partition.Wanted {
	in := partition.Wanted{EncodedBytes: ti.wanted.bytes}
	var decoded, n int64
	for i := range ti.roster.prefixes {
		decoded += ti.roster.prefixes[i].decoded.sum
		n += ti.roster.prefixes[i].decoded.n
	}
	if n > 0 {
		in.DecodedBytes = decoded / n * ti.wanted.objects
	} else {
		in.DecodedBytes = in.EncodedBytes * 6 // a JPEG unpacks to 5.4 times its size on ImageNet
	}
	in.DecodedBytes += in.DecodedBytes / 15 // only 15/16 of a tier may be resident
	for _, g := range ti.roster.groups {
		if !g.shares() {
			continue
		}
		in.ShareGroups++
		in.AugmentedBytes += g.members[0].augBytes * int64(len(g.members[0].sample.Subset))
	}
	return in
}
