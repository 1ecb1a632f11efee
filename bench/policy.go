package bench

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"larder/bench/policysim"
	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/nearest"
	"larder/internal/units"
)

// Demand is what larder bench policy runs: a scenario of jobs, or a family of traces to generate.
type Demand struct {
	Scenario *Scenario
	Spec     *trace.Spec
}

// ParseDemand reads a scenario's YAML, or one with the single key generate, whose keys are those of trace.Spec.
// Mistakes are reported as in ParseScenario.
func ParseDemand(name string, data []byte) (*Demand, error) {
	var d *Demand
	err := readScenario(name, data, samplerHint, func(top *yaml.Node) (err error) {
		d, err = parseDemand(name, top)
		return err
	})
	return d, err
}

func parseDemand(name string, top *yaml.Node) (*Demand, error) {
	if top.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(top.Content); i += 2 {
			if top.Content[i].Value == "generate" {
				return parseSpec(name, top)
			}
		}
	}
	sc, err := parseScenario(name, top)
	if err != nil {
		return nil, err
	}
	return &Demand{Scenario: sc}, nil
}

func parseSpec(name string, top *yaml.Node) (*Demand, error) {
	p := scenarioParser{file: name}
	g := &trace.Spec{Family: "aligned", Jobs: 1, Epochs: 1, Seed: 1}
	var at *yaml.Node
	whole := func(key string, lo, hi int, to *int) field {
		return field{key, func(v *yaml.Node) { p.whole(v, key, lo, hi, to) }}
	}
	p.mapping(top, "the scenario", []field{{"generate", func(v *yaml.Node) {
		at = v
		seen := p.mapping(v, "generate", []field{
			{"family", func(v *yaml.Node) {
				if p.word(v, "family", &g.Family) && trace.About(g.Family) == "" {
					p.fail(v, "family", nearest.DidYouMean(g.Family, trace.Families()), "unknown family %.40q of scenarios", g.Family)
				}
			}},
			whole("samples", 1, trace.MaxObjects, &g.Samples),
			whole("jobs", 1, 64, &g.Jobs),
			whole("epochs", 1, 1_000_000, &g.Epochs),
			whole("batch", 1, 65536, &g.Batch),
			whole("bytes", 0, 1<<28, &g.Bytes),
			{"seed", func(v *yaml.Node) { p.seed(v, "seed", &g.Seed) }},
			{"gap", func(v *yaml.Node) { p.number(v, "gap", above(0, 1e6), &g.Gap) }},
			{"skew", func(v *yaml.Node) { p.number(v, "skew", above(0, 10), &g.Skew) }},
			{"step", func(v *yaml.Node) {
				d, err := time.ParseDuration(v.Value)
				if v.Kind != yaml.ScalarNode || err != nil || d <= 0 || d > time.Hour {
					p.fail(v, "step", "write a time above 0, at most 1h, e.g. 2ms", "step: %s cannot be its value", written(v))
					return
				}
				g.Step = d
			}},
		})
		if v.Kind == yaml.MappingNode && !seen["samples"] {
			p.fail(v, "samples", "e.g. samples: 100000", "samples is missing: how many the dataset has")
		}
	}}})
	if len(p.problems) == 0 && at == nil {
		p.fail(top, "generate", "e.g. generate: {family: aligned, samples: 100000, jobs: 4, epochs: 3}", "generate is empty")
	}
	if len(p.problems) == 0 {
		if err := g.Check(0); err != nil {
			f := errs.From(err)
			p.problems = append(p.problems, errs.New(f.Reason, f.Subject, f.Hint, "%s:%d:%d: %s", name, at.Line, at.Column,
				f.Message))
		}
	}
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return &Demand{Spec: g}, nil
}

// Looks names a job whose order depends on what is in memory; ok when there is none.
func (sc *Scenario) Looks() (job string, ok bool) {
	for i := range sc.Jobs {
		if j := &sc.Jobs[i]; !j.prescribed() {
			return j.Name, false
		}
	}
	return "", true
}

func (j *ScenarioJob) prescribed() bool {
	return j.rival == "independent" || j.rival == "shared-order" || j.rival == "" &&
		(j.mode == dsa.Fixed || j.mode == dsa.Sequential)
}

// Trace runs the scenario once and writes down its demand and its picks. Where orders look into the cache, they are
// those that the cache of the scenario leads to.
func (sc *Scenario) Trace(maxMemory uint64, stop func() error) (*trace.Trace, error) {
	picks := uint64(0)
	t := &trace.Trace{Name: "scenario", Seed: sc.Seed, Objects: sc.Samples}
	for i := range sc.Jobs {
		j := &sc.Jobs[i]
		picks += uint64(len(j.samples)) * uint64(j.Epochs)
		const step = time.Millisecond // of a job of speed 1, for a sample
		tj := trace.Job{Name: j.Name, Order: j.Order, Arrive: time.Duration(j.Start * float64(step)),
			Leave: time.Duration(j.Leave * float64(step)),
			Step:  time.Duration(float64(step) / j.Speed), Batch: j.Batch, Epochs: j.Epochs, Looks: !j.prescribed()}
		if len(j.samples) < sc.Samples {
			tj.Subset = trace.Ranges(slices.Sorted(slices.Values(j.samples)))
		}
		t.Jobs = append(t.Jobs, tj)
	}
	if need := trace.Memory(picks, uint64(sc.Samples), len(sc.Quartiles) > 0); maxMemory > 0 && need > maxMemory {
		return nil, errs.New(errs.ResourceExceeded, "jobs", "lower samples or epochs, or raise --max-memory",
			"the trace of %d picks needs about %s of memory, the limit is %s", picks, units.Size(need), units.Size(maxMemory))
	}
	plain := *sc
	if cachepolicy.NeedsFuture(plain.Policy) {
		plain.Policy = "need"
	}
	st := newSamplerStats(&plain)
	w, err := newSamplerRun(&plain, 0, st, nil)
	if err != nil {
		return nil, err
	}
	defer w.cache.close()
	last := make([]int, len(sc.Jobs)) // epoch + 1 of the pick before
	w.note = func(j *samplerJob, x ident.ObjectID) {
		t.Pick.Add(j.index, uint32(x), last[j.index] != j.epoch+1)
		last[j.index] = j.epoch + 1
	}
	if err := w.run(stop); err != nil {
		return nil, err
	}
	if st.quart != nil {
		for x := range sc.Samples {
			t.Sizes = append(t.Sizes, uint32(st.size(ident.ObjectID(x))))
		}
	}
	return t, nil
}

// policyTask is one run of RunPolicies.
type policyTask struct {
	policy string
	cache  int
	out    *SamplerReport
	err    error
}

// RunPolicies compares policies on a scenario whose orders depend on what is in memory: one sampler and one cache for
// each policy and capacity (in samples), as many at once as there are cores. Hits are of whole runs, without a warm-up;
// policies that need to know the future are left out, and named.
func RunPolicies(sc *Scenario, c policysim.Config, stop func() error) (r *policysim.Report, left []string, err error) {
	looks, prescribed := sc.Looks()
	union := make([]bool, sc.Samples)
	r = &policysim.Report{Trace: "scenario", TraceSeed: sc.Seed, Seed: sc.Seed, Objects: sc.Samples,
		Prescribed: prescribed, LooksJob: looks, UnitSize: len(sc.Quartiles) == 0}
	for i := range sc.Jobs {
		r.Jobs = append(r.Jobs, sc.Jobs[i].Name)
		for _, x := range sc.Jobs[i].samples {
			if !union[x] {
				union[x] = true
				r.Unique++
			}
		}
	}
	r.Bytes = int64(r.Unique)
	// of what is asked for: all together, and the smallest
	sizes, once, smallest := newSamplerStats(sc), int64(0), int64(0)
	for x, asked := range union {
		if n := sizes.size(ident.ObjectID(x)); asked {
			once += n
			if smallest == 0 || n < smallest {
				smallest = n
			}
		}
	}
	tasks, left := policyTasks(c, prescribed)
	if len(tasks) == 0 {
		return nil, left, errs.New(errs.Invalid, "policies", "choose others, or give all jobs order fixed or independent",
			"policies %s need to know the future, and the order of job %.40q is decided by what is in the cache",
			strings.Join(left, ", "), looks)
	}
	if err := runTasks(sc, tasks, c.Progress, stop); err != nil {
		return nil, left, err
	}
	for i, t := range tasks {
		s := t.out
		r.Requests, r.Counted = s.Requests, s.Requests
		if i == 0 || tasks[i-1].cache != t.cache {
			r.Rows = append(r.Rows, bare(r, policysim.Independent, t, s.Requests))
		}
		r.Rows = append(r.Rows, t.row(r))
		if i+1 == len(tasks) || tasks[i+1].cache != t.cache {
			all := bare(r, policysim.Unbounded, t, r.Unique)
			all.Bounding, all.Bound, all.OverBound = true, r.Unique, 1
			// Orders differ with the policy, and the bound with when jobs took their samples: the lowest one of the capacity.
			least := s.LowerBound
			for _, o := range tasks {
				if o.cache == t.cache {
					least = min(least, o.out.LowerBound)
				}
			}
			low := bare(r, policysim.LowerBound, t, least)
			low.Bounding, low.Bound, low.OverBound = true, least, 1
			asked := float64(max(1, s.askedBytes)) / float64(max(1, sc.Repeats))
			all.ByteMiss = float64(once) / asked
			low.ByteMiss = float64(once+int64(least-r.Unique)*smallest) / asked
			r.Rows = append(r.Rows, all, low)
		}
	}
	return r, left, nil
}

// policyTasks are the runs of every policy at every capacity. Policies that need to know a future which the cache
// decides are left out.
func policyTasks(c policysim.Config, prescribed bool) (tasks []*policyTask, left []string) {
	if len(c.Policies) == 0 {
		c.Policies = cachepolicy.Names()
	}
	for _, cache := range c.Caches {
		for _, p := range c.Policies {
			if cachepolicy.NeedsFuture(p) && !prescribed {
				if !slices.Contains(left, p) {
					left = append(left, p)
				}
				continue
			}
			tasks = append(tasks, &policyTask{policy: p, cache: int(cache)})
		}
	}
	return tasks, left
}

// runTasks runs the scenario for every task, on all cores, and returns the first error in the order of tasks.
func runTasks(sc *Scenario, tasks []*policyTask, progress func(done, all int), stop func() error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	next, done := 0, 0
	for range min(runtime.GOMAXPROCS(0), len(tasks)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(tasks) {
					return
				}
				own := *sc
				own.Jobs = slices.Clone(sc.Jobs)
				if tasks[i].err = own.SetCache(tasks[i].cache, tasks[i].policy); tasks[i].err == nil {
					tasks[i].out, tasks[i].err = RunSampler(&own, nil, stop)
				}
				mu.Lock()
				done++
				if progress != nil {
					progress(done, len(tasks))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, t := range tasks {
		if t.err != nil {
			return t.err
		}
	}
	return nil
}

// row is what a policy did at a capacity.
func (t *policyTask) row(r *policysim.Report) policysim.Row {
	s := t.out
	row := bare(r, t.policy, t, s.Loads)
	row.OverBound, row.Breaks, row.Bounding = s.Ratio, s.PolicyBreaks, cachepolicy.NeedsFuture(t.policy)
	row.Hits, row.JobRatios = 0, nil
	sum, sq := 0.0, 0.0
	for _, j := range s.Jobs {
		ratio := float64(j.Hits) / float64(max(1, j.Requests))
		row.Hits += j.Hits
		row.JobRatios = append(row.JobRatios, ratio)
		sum, sq = sum+ratio, sq+ratio*ratio
	}
	row.HitRatio = float64(row.Hits) / float64(max(1, s.Requests))
	row.MissRatio = 1 - row.HitRatio
	row.ByteMiss = float64(s.missedBytes) / float64(max(1, s.askedBytes))
	if row.Jain = 1; sq > 0 {
		row.Jain = sum * sum / (float64(len(s.Jobs)) * sq)
	}
	return row
}

// bare is the row of something that loads as often, and hits otherwise, as far as that says everything.
func bare(r *policysim.Report, name string, t *policyTask, loads int) policysim.Row {
	hits := r.Requests - loads
	return policysim.Row{Policy: name, Cache: int64(t.cache), Share: float64(t.cache) / float64(r.Unique), Hits: hits,
		HitRatio: float64(hits) / float64(max(1, r.Requests)), MissRatio: float64(loads) / float64(max(1, r.Requests)),
		ByteMiss: float64(loads) / float64(max(1, r.Requests)), Loads: loads, PerUnique: float64(loads) / float64(r.Unique),
		Bound: t.out.LowerBound, OverBound: float64(loads) / float64(max(1, t.out.LowerBound)), Jain: 1}
}

// String says what is compared.
func (d *Demand) String() string {
	if d.Spec != nil {
		return "generate " + d.Spec.String()
	}
	return fmt.Sprintf("%d jobs on %d samples", len(d.Scenario.Jobs), d.Scenario.Samples)
}
