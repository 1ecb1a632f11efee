package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"larder/cachepolicy/partition"
	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/units"
)

// SimpleModel is the rule of thumb as TierConfig.Model: no rate is looked at.
const SimpleModel = "simple"

// Rates are what the executor measured of the whole machine, all its workers together. What is 0, or no number, is not
// known yet.
type Rates struct {
	Storage float64 // bytes a second read from storage
	Cache   float64 // bytes a second out of memory
	Fresh   float64 // bytes a second of memory that the kernel provides
	Recipes []RecipeRates
}

// RecipeRates are samples a second of one recipe on one dataset.
type RecipeRates struct {
	Dataset        ident.DatasetID
	Prefix, Suffix ident.RecipeID
	Decode         float64 // stored bytes to the decoded form
	Augment        float64 // decoded form to the row of a batch
	InPlace        float64 // stored bytes to the row of a batch, of which only the needed part is decoded
	Finish         float64 // augmented form to the row of a batch; 0 where no jobs share
}

// Solve asks for the split of memory; Solved answers it. It takes milliseconds, so it is no work for Step: the executor
// does it beside the loop, a simulator at once.
type Solve struct {
	Seq    uint64
	Model  string // of partition.New
	Demand partition.Demand
	Now    partition.Split // in force
}

// Solved answers Solve.
type Solved struct {
	Seq  uint64
	Plan partition.Plan
	Now  partition.Candidate // what the split in force gives, by the same model
	Err  error
}

func (Measured) isEvent() {}
func (Solved) isEvent()   {}
func (Solve) isEffect()   {}

// Measured reports the rates of the machine.
type Measured struct{ Rates Rates }

// Do solves. It is a pure function.
func (s Solve) Do() Solved {
	out := Solved{Seq: s.Seq}
	m, err := partition.New(s.Model)
	if err == nil {
		out.Plan, err = m.Solve(s.Demand)
	}
	switch {
	case err != nil:
	case out.Plan.Split == s.Now:
		// nothing is to change; Predict knows no better use of each form's bytes than in proportion
		p := &out.Plan
		out.Now = partition.Candidate{Split: s.Now, Rate: p.Rate, Binding: p.Binding, Load: p.Load}
	default:
		out.Now, err = m.Predict(s.Demand, s.Now)
	}
	out.Err = err
	return out
}

// model is the state of the decision how memory is split.
type model struct {
	rates  Rates // measured last
	used   Rates // those of the last Solve
	seq    uint64
	phase  solvePhase
	change change
	moved  uint64           // samples delivered when the split changed last
	last   partition.Demand // the last that was solved for jobs, for when there are none

	// Two facts that depend neither on the phase nor on each other.
	past bool // the Solve that is out, or was last, is for the demand in last
	idle bool // by the last solution, jobs are limited by neither cores nor memory
}

// drift is the part by which a rate must differ from what the last decision was made with for a new one.
const drift = 0.10

// known is v where it is a rate or a size, else 0.
func known(v float64) float64 {
	if !(v > 1e-6 && v < 1e15) { // NaN too
		return 0
	}
	return v
}

func (ti *tiering) measured(e Measured) {
	m := &ti.model
	m.rates = e.Rates
	if drifted(m.used.Storage, e.Rates.Storage) || drifted(m.used.Cache, e.Rates.Cache) || ti.recipesDrifted() {
		ti.resolve()
	}
}

func (ti *tiering) recipesDrifted() bool {
	m := &ti.model
	for _, r := range m.rates.Recipes {
		u := find(m.used.Recipes, r.Dataset, r.Prefix, r.Suffix)
		if drifted(u.Decode, r.Decode) || drifted(u.Augment, r.Augment) || drifted(u.Finish, r.Finish) {
			return true
		}
	}
	return false
}

func drifted(old, now float64) bool {
	old, now = known(old), known(now)
	return now > 0 && math.Abs(now-old) > drift*old
}

func find(list []RecipeRates, d ident.DatasetID, prefix, suffix ident.RecipeID) RecipeRates {
	for _, r := range list {
		if r.Dataset == d && r.Prefix == prefix && r.Suffix == suffix {
			return r
		}
	}
	return RecipeRates{}
}

// rates are what is known of a stream's recipe. What was not measured for it yet is taken from its prefix on the same
// dataset, else from any other recipe: a job that has just come must not throw away what was decided for the others.
func (ti *tiering) rates(s *stream) RecipeRates {
	d, prefix := ti.roster.datasets[s.dataset].id, ti.roster.prefixes[s.prefix].id
	r := find(ti.model.rates.Recipes, d, prefix, s.suffix)
	for pass := range 2 {
		for _, o := range ti.model.rates.Recipes {
			if pass == 0 && (o.Dataset != d || o.Prefix != prefix) {
				continue
			}
			if known(r.Decode) == 0 {
				r.Decode = o.Decode
			}
			if known(r.Augment) == 0 {
				r.Augment = o.Augment
			}
			if known(r.InPlace) == 0 {
				r.InPlace = o.InPlace
			}
		}
	}
	return r
}

// resolve decides the split of the auto tiers again: at once by the rule of thumb while rates are not known, else by
// asking for a solution. Where all sizes are fixed the solution predicts what they give.
func (ti *tiering) resolve() {
	if len(ti.wanted.walks) > 0 { // what is wanted is being counted, and then it is solved
		return
	}
	m := &ti.model
	if len(ti.roster.order) == 0 && m.change != changeSizes {
		m.outdate() // no job wants anything: what is there stays, for the next jobs
		return
	}
	if ti.cfg.Tiers.Model != SimpleModel {
		if m.phase != solveNone {
			m.outdate()
			return
		}
		if d, past := ti.demanded(); d.Measured() {
			m.seq++
			m.become(solveOut)
			m.used, m.past = m.rates, past
			m.change = min(m.change, changeJobs)
			if !past {
				m.last = d
			}
			ti.step.emit(Solve{Seq: m.seq, Model: ti.cfg.Tiers.Model, Demand: d, Now: ti.splitNow()})
			return
		}
	}
	if m.change != changeNone && ti.anyAuto() {
		ti.splitByRule()
	}
}

// splitByRule splits by the rule of thumb.
func (ti *tiering) splitByRule() {
	split, why, err := ti.split(ti.cfg.Tiers)
	if err != nil {
		return // the configuration was checked when it came in
	}
	if ti.cfg.Tiers.Model != SimpleModel {
		d, _ := ti.demanded()
		why = unknown(&d) + ": " + why
	}
	ti.model.change, ti.model.idle = changeNone, false
	ti.step.stats.Why, ti.step.stats.Model = why, partition.RuleOfThumb
	ti.step.stats.Binding, ti.step.stats.Predicted = "", 0
	ti.apply(split)
}

// demanded is what the model decides from; past: that of the jobs that ran last, because none draws now. Their rates
// hold for those who come next.
func (ti *tiering) demanded() (d partition.Demand, past bool) {
	d = ti.demand()
	if len(d.Datasets) > 0 || len(ti.model.last.Datasets) == 0 {
		return d, false
	}
	d.Datasets = ti.model.last.Datasets
	if old := ti.model.last.Machine; d.Machine.Storage == 0 {
		d.Machine.Storage = old.Storage
	}
	return d, true
}

// unknown says what a demand lacks for the model.
func unknown(d *partition.Demand) string {
	if len(d.Datasets) == 0 {
		return "no job draws, and none was measured since the start"
	}
	var out []string
	lacks := func(is bool, what string) {
		if is && !slices.Contains(out, what) {
			out = append(out, what)
		}
	}
	lacks(d.Machine.Storage == 0, "how fast storage is read")
	lacks(d.Machine.Cache == 0, "how fast memory is copied")
	for i := range d.Datasets {
		s := &d.Datasets[i]
		lacks(s.Samples == 0 || s.Stored == 0 || s.Encoded == 0, "how large samples are")
		for j := range s.Recipes {
			r := &s.Recipes[j]
			lacks(r.Decoded == 0 || r.Augmented == 0, "how large decoded samples are")
			lacks(r.Augment == 0, "how fast samples are augmented")
			lacks(r.DecodeAugment == 0, "how fast samples are decoded")
		}
	}
	if len(out) == 0 {
		return "rates are not measured yet"
	}
	return "rates are not measured yet (" + strings.Join(out, ", ") + ")"
}

func (ti *tiering) anyAuto() bool {
	return ti.auto[ident.Encoded] || ti.auto[ident.Decoded] || ti.auto[ident.Augmented]
}

func (ti *tiering) splitNow() partition.Split {
	t := ti.target
	return partition.Split{Encoded: t[ident.Encoded], Decoded: t[ident.Decoded], Augmented: t[ident.Augmented]}
}

func (ti *tiering) solved(e Solved) {
	m := &ti.model
	if m.phase == solveNone || e.Seq != m.seq {
		return
	}
	outdated := m.phase == solveOutdated
	m.become(solveNone)
	if outdated {
		ti.resolve()
		return
	}
	if e.Err != nil {
		m.idle = false
		ti.step.stats.Why = "the model could not be solved: " + errs.From(e.Err).Message
		if m.change != changeNone && ti.anyAuto() {
			ti.splitByRule()
			ti.step.stats.Why = "the model could not be solved: " + errs.From(e.Err).Message
		}
		return
	}
	if m.past {
		e.Plan.Why = "for the jobs that ran last, " + e.Plan.Why
	}
	p, now := e.Plan, ti.splitNow()
	if !ti.anyAuto() {
		m.change = changeNone
		ti.predict(p.Model, e.Now.Rate, e.Now.Binding, e.Now.Load)
		return
	}
	wants := int64(0)
	for _, s := range ti.roster.order {
		wants += int64(len(s.sample.Subset))
	}
	epochs := math.Inf(1)
	if wants > 0 {
		epochs = float64(ti.step.stats.Samples-m.moved) / float64(wants)
	}
	ok, why := partition.Adopt(partition.Change{Now: now, Next: p.Split, NowRate: e.Now.Rate, NextRate: p.Rate,
		Budget: ti.cfg.Tiers.Total, EpochsSinceMoved: epochs, First: m.change != changeNone,
		Unfair: e.Now.Unfair})
	m.change = changeNone
	if !ok {
		ti.step.stats.Why = fmt.Sprintf("kept, %s; the best split: %s", why, p.Why)
		ti.predict(p.Model, e.Now.Rate, e.Now.Binding, e.Now.Load)
		return
	}
	m.moved, ti.step.stats.Why = ti.step.stats.Samples, p.Why
	ti.predict(p.Model, p.Rate, p.Binding, p.Load)
	split := [ident.NumForms]int64{ident.Encoded: p.Split.Encoded, ident.Decoded: p.Split.Decoded,
		ident.Augmented: p.Split.Augmented}
	sum := int64(0)
	for _, f := range tierForms {
		if split[f] < 0 || !ti.auto[f] && split[f] != ti.cfg.Tiers.Sizes[f] {
			ti.step.stats.Why = "a solution was refused that moves what is fixed"
			return
		}
		sum += split[f]
	}
	if sum > ti.cfg.Tiers.Total {
		ti.step.stats.Why = "a solution was refused that exceeds tiers.total"
		return
	}
	ti.apply(split)
}

// predict notes what the model says of the split that is in force from now on.
func (ti *tiering) predict(model string, rate float64, binding partition.Resource,
	load [partition.NumResources]float64) {
	ti.step.stats.Model, ti.step.stats.Predicted, ti.step.stats.Binding = model, rate, binding.String()
	ti.model.idle = true
	most := 1.0 // of the most loaded resource: less than 1 where jobs also wait for the others
	if binding < partition.Training && load[binding] > 0 {
		most = load[binding]
	}
	for _, k := range [...]partition.Resource{partition.CPU, partition.MemoryBandwidth} {
		if binding == k || load[k] > busy*most {
			ti.model.idle = false
		}
	}
}

// busy is the part of what limits the jobs from which on there is nothing of a resource to spare: what the prediction
// may be wrong by is beyond.
const busy = 0.9

// spareWork reports whether, by the last solution, jobs are limited by neither cores nor memory.
func (ti *tiering) spareWork() bool { return ti.model.idle }

// refillPays reports whether the model lets idle workers augment ahead what so many members of the group of s will
// take: the jobs wait for storage or for their training, not for cores or memory, and making an instance once and
// handing it out takes less of a core than augmenting for each.
func (ti *tiering) refillPays(s *stream, sharers int) bool {
	if ti.cfg.Refill != nil {
		return ti.cfg.Refill(sharers)
	}
	if !ti.model.idle {
		return false
	}
	r := ti.rates(s)
	augment, finish := known(r.Augment), known(r.Finish)
	if finish == 0 {
		finish = known(ti.model.rates.Cache) / float64(s.augBytes)
	}
	return augment > 0 && finish > 0 && 1/finish+1/(float64(sharers)*augment) < 1/augment
}

// demand is what the model decides from: rates as measured, sizes as seen, and who wants what.
func (ti *tiering) demand() partition.Demand {
	ti.restartShiftedCounts()
	t := ti.cfg.Tiers
	r := ti.model.rates
	d := partition.Demand{Budget: t.Total, Fairness: t.Fairness,
		Fixed: &partition.Sizes{Encoded: t.Sizes[ident.Encoded], Decoded: t.Sizes[ident.Decoded],
			Augmented: t.Sizes[ident.Augmented]},
		Machine: partition.Machine{Nodes: 1, Cache: known(r.Cache), NIC: math.Inf(1), PCIe: math.Inf(1),
			Storage: known(r.Storage),
			Waiting: partition.MeasuredWaiting}}
	room := 1.0 // only a part of a tier may be resident, so a sample costs so much more of it
	if u := ti.cfg.Usable(t.Total); u > 0 {
		room = float64(t.Total) / float64(u)
	}
	place := make([]int, len(ti.roster.datasets)) // in d.Datasets, from 1
	for _, s := range ti.roster.order {
		if s.job.Paused() || len(s.sample.Subset) == 0 || s.making.Bare { // nothing decoded of it is kept
			continue
		}
		w := &ti.roster.datasets[s.dataset]
		if place[s.dataset] == 0 {
			d.Datasets = append(d.Datasets, partition.Dataset{Name: fmt.Sprint(w.id), Samples: w.objects})
			place[s.dataset] = len(d.Datasets)
			set := &d.Datasets[len(d.Datasets)-1]
			if w.objects > 0 {
				set.Stored = float64(w.bytes) / float64(w.objects)
			} else if ti.wanted.objects > 0 { // all its samples count for another one
				set.Stored = float64(ti.wanted.bytes) / float64(ti.wanted.objects)
			}
			set.Encoded = room * float64(ti.cfg.Granule(ident.Encoded, int64(set.Stored)))
			if s.making.Workers { // nothing is read, and nothing encoded is kept: it would save a byte and cost a record
				set.Stored, set.Encoded = 1, room*float64(ti.cfg.Granule(ident.Decoded, ti.decodedBytes(s, s.augBytes)))
			}
		}
		set := &d.Datasets[place[s.dataset]-1]
		set.Samples = max(set.Samples, int64(len(s.sample.Subset)))
		ti.demandRecipe(set, s, room)
	}
	for i := range d.Datasets {
		set := &d.Datasets[i]
		for k := range set.Recipes {
			q := &set.Recipes[k]
			q.Samples = min(q.Samples, set.Samples)
			q.Degree, q.DecodeDegree = ti.degrees(q.Prefix, set)
			q.AugmentDegree = min(q.AugmentDegree, float64(q.Sharers))
		}
	}
	return d
}

// demandRecipe enters a job into the demand of its dataset.
func (ti *tiering) demandRecipe(set *partition.Dataset, s *stream, room float64) {
	sharers, group := 1, uint32(0)
	if s.group != nil && len(s.group.members) > 1 {
		sharers, group = len(s.group.members), s.group.id
	}
	prefix := ti.roster.prefixes[s.prefix].id.String()
	name := fmt.Sprintf("%s/%s/%d", prefix, s.suffix, group)
	ingest := math.Inf(1)
	if step := s.job.Ranks[0].StepTime.Seconds(); step > 1e-6 && s.job.Ranks[0].Attached() {
		ingest = float64(s.job.Spec.Batch*s.job.Spec.World) / step // StepTime leaves waiting out
	}
	for k := range set.Recipes {
		if q := &set.Recipes[k]; q.Name == name {
			q.Jobs = append(q.Jobs, partition.Job{Ingest: ingest})
			q.Samples = max(q.Samples, int64(len(s.sample.Subset)))
			q.Sharers = min(sharers, len(q.Jobs))
			return
		}
	}
	r := ti.rates(s)
	guess := int64(6 * set.Stored)
	if s.making.Workers {
		guess = s.augBytes
	}
	decoded := float64(ti.cfg.Granule(ident.Decoded, ti.decodedBytes(s, guess)))
	augmented := decoded
	if s.augBytes > 0 {
		augmented = float64(ti.cfg.Granule(ident.Augmented, s.augBytes))
	}
	q := partition.Recipe{
		Name: name, Prefix: prefix, Samples: int64(len(s.sample.Subset)), Decoded: room * decoded,
		Augmented: room * augmented,
		Augment:   known(r.Augment), Finish: known(r.Finish), Sharers: 1, Degree: 1, Jobs: []partition.Job{{Ingest: ingest}},
	}
	if s.making.Workers && !s.making.InSteps { // its rows are copies of the decoded form
		q.Augment = known(ti.model.rates.Cache) / decoded
	}
	if decode := known(r.Decode); decode > 0 && q.Augment > 0 {
		q.DecodeAugment = 1 / (1/decode + 1/q.Augment)
	}
	if sharers > 1 {
		q.AugmentDegree = ti.augmentDegree(s.group)
	}
	if q.Finish == 0 && augmented > 0 {
		q.Finish = known(ti.model.rates.Cache) / augmented // copying is the least it takes
	}
	set.Recipes = append(set.Recipes, q)
}

// decoded counts what a sample weighs that was decoded.
func (ti *tiering) decoded(f *flight, bytes int64) {
	p := ti.roster.prefixOf(f.key.Recipe)
	ti.roster.prefixes[p].decoded.add(bytes)
	s := ti.roster.streams[f.job]
	if s != nil {
		d := &ti.roster.datasets[s.dataset]
		for p >= len(d.decoded) {
			d.decoded = append(d.decoded, meter{})
		}
		d.decoded[p].add(bytes)
	}
	if f.visible {
		ti.saw(s, p, bytes)
	}
}

// saw counts what a sample weighs that a visible job decoded, or found decoded by one that is not visible; s may be
// nil.
func (ti *tiering) saw(s *stream, prefix int, bytes int64) {
	ti.roster.prefixes[prefix].seen.add(bytes)
	if s != nil {
		d := &ti.roster.datasets[s.dataset]
		for prefix >= len(d.seen) {
			d.seen = append(d.seen, meter{})
		}
		d.seen[prefix].add(bytes)
	}
}

// expectedBytes is decodedBytes, for a tier that is to make room. What jobs that are not visible decoded is no part of
// it for those that are.
func (ti *tiering) expectedBytes(s *stream, fallback int64) int64 {
	if !s.visible() {
		return ti.decodedBytes(s, fallback)
	}
	d := &ti.roster.datasets[s.dataset]
	if s.prefix < len(d.seen) && d.seen[s.prefix].n > 0 {
		return d.seen[s.prefix].mean(0)
	}
	return ti.roster.prefixes[s.prefix].seen.mean(fallback)
}

// decodedBytes is what a decoded sample of a stream weighs in the mean: of its dataset and prefix; of its prefix while
// none of that was decoded.
func (ti *tiering) decodedBytes(s *stream, fallback int64) int64 {
	d := &ti.roster.datasets[s.dataset]
	if s.prefix < len(d.decoded) && d.decoded[s.prefix].n > 0 {
		return d.decoded[s.prefix].mean(0)
	}
	return ti.roster.prefixes[s.prefix].decoded.mean(fallback)
}

// meanBytes is what an entry of a form takes in the mean, over all jobs; 0 = not known.
func (ti *tiering) meanBytes(f ident.Form) int64 {
	switch f {
	case ident.Encoded:
		if ti.wanted.objects > 0 {
			return max(1, ti.cfg.Granule(f, ti.wanted.bytes/ti.wanted.objects))
		}
	case ident.Decoded:
		seen := meter{}
		for i := range ti.roster.prefixes {
			seen.n += ti.roster.prefixes[i].decoded.n
			seen.sum += ti.roster.prefixes[i].decoded.sum
		}
		if seen.n > 0 {
			return max(1, ti.cfg.Granule(f, seen.mean(0)))
		}
	case ident.Augmented:
		for _, g := range ti.roster.groups {
			if g.shares() && g.members[0].augBytes > 0 {
				return max(1, ti.cfg.Granule(f, g.members[0].augBytes))
			}
		}
	case ident.Stored, ident.NumForms: // no tier
	}
	return 0
}

// tooSmall says of the tiers that have bytes, but not enough for one sample, that they hold nothing; "" where there is
// none.
func (ti *tiering) tooSmall() string {
	var out strings.Builder
	for _, f := range tierForms {
		if n := ti.meanBytes(f); ti.budgets[f] > 0 && n > ti.index.Budget(f) && !ti.resizing {
			fmt.Fprintf(&out, "; tier %s is too small for one sample of %s", f, units.Size(n))
		}
	}
	return out.String()
}

// setRoom gives the sampler how many samples of mean size the tiers hold: of the samples of visible jobs.
func (ti *tiering) setRoom() {
	encoded, decoded := int64(1), meter{}
	if u := &ti.wanted; u.seenObjects > 0 {
		encoded = max(1, ti.cfg.Granule(ident.Encoded, u.seenBytes/u.seenObjects))
	}
	for i := range ti.roster.prefixes {
		decoded.n += ti.roster.prefixes[i].seen.n
		decoded.sum += ti.roster.prefixes[i].seen.sum
	}
	each := 6 * encoded
	if decoded.n > 0 {
		each = max(1, ti.cfg.Granule(ident.Decoded, decoded.mean(0)))
	}
	n := ti.index.Budget(ident.Encoded)/encoded + ti.index.Budget(ident.Decoded)/each
	for _, g := range ti.roster.groups {
		if g.shares() && g.members[0].visible() && g.members[0].augBytes > 0 {
			n += ti.index.Budget(ident.Augmented) / max(1, ti.cfg.Granule(ident.Augmented, g.members[0].augBytes))
			break
		}
	}
	ti.sampler.SetRoom(int(min(n, dsa.MaxObjects)))
	ti.sampler.SetDecoding(ti.index.Budget(ident.Decoded) >= each)
}
