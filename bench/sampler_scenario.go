package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"larder/cachepolicy"
	"larder/dsa"
	"larder/dsa/baseline"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/nearest"
	"larder/internal/source/subset"
	"larder/tiers/tinylfu"
)

// Scenario is what larder bench sampler runs: jobs that draw unit-size samples, and a cache.
type Scenario struct {
	Samples   int    // ids are 0..Samples-1
	Seed      uint64 // of everything random
	Repeats   int    // independent runs
	Cache     int    // capacity in samples
	Policy    string // of cachepolicy's registry, or tinylfu
	Jobs      []ScenarioJob
	Quartiles []float64 // relative sizes of the samples by a hash of their ids, four of them, or none: all equal

	// Progress, which may be nil, is called now and then with how many picks of a whole simulation are done.
	Progress func(done, all int)
}

// ScenarioJob is one job of a Scenario.
type ScenarioJob struct {
	Name   string
	Subset string  // expression; empty = all
	Speed  float64 // samples per step
	Start  float64 // step at which it joins
	Leave  float64 // step at which it is gone; 0 = when its epochs are over
	Epochs int
	Order  string // a mode of dsa, stratified(B), or a baseline
	Batch  int
	Window int    // batches committed ahead
	Seed   uint64 // of order fixed; jobs with one seed have one order
	NoShuf bool   // shuffle: false, the order of the dataset

	samples []ident.ObjectID
	mode    dsa.Mode
	tiles   int
	rival   string // baseline, or empty
}

// Limits of a scenario: generous for what can finish, and nothing below can be asked to hang or to exhaust memory.
const (
	MaxScenario = 1 << 20 // bytes of a file
	maxSamples  = 1 << 24
	maxTables   = 1 << 27 // samples x jobs: how long the tables of a run are
	maxPicks    = 1 << 34
	maxBatches  = 1 << 27 // of a run: what is remembered for the bounds, 16 bytes each
	maxStep     = 1 << 50
)

// Defaults of a job. The daemon's prefetch is 2, and it has no default batch size; 32 is what small training scripts
// use.
const (
	defaultBatch  = 32
	defaultWindow = 2
)

// Orders lists what a job of a scenario can ask for.
func Orders() []string {
	return append([]string{"fixed", "strict", "stratified", "epoch"}, baseline.Names()...)
}

// samplerHint says where a scenario of the sampler is described, for a user who wrote nothing.
const samplerHint = "docs/sampler.md shows what to write"

// readScenario hands the one YAML document of a scenario's file to parse; hint says what to write to a user whose
// file is empty.
func readScenario(name string, data []byte, hint string, parse func(top *yaml.Node) error) (err error) {
	defer func() {
		if r := recover(); r != nil { // the YAML library has panicked on hostile input before
			err = errs.New(errs.Invalid, name, "check its YAML", "%s: it cannot be read as YAML: %v", name, r)
		}
	}()
	if len(data) > MaxScenario {
		return errs.New(errs.Invalid, name, "name the YAML of a scenario", "%s: a scenario is smaller than %d bytes", name,
			MaxScenario)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return errs.New(errs.Invalid, name, hint, "%s: there is no scenario in it", name)
		}
		return errs.NotYAML(errs.Invalid, name, data, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errs.New(errs.Invalid, name, "keep one scenario in a file", "%s: more than one YAML document", name)
	}
	return parse(doc.Content[0])
}

// ParseScenario reads a scenario's YAML. All mistakes are reported, with line, column and the nearest key; name is what
// to call the file. The errors are INVALID_ARGUMENT, SUBSET_SYNTAX or SUBSET_EMPTY.
func ParseScenario(name string, data []byte) (*Scenario, error) {
	var sc *Scenario
	err := readScenario(name, data, samplerHint, func(top *yaml.Node) (err error) {
		sc, err = parseScenario(name, top)
		return err
	})
	return sc, err
}

func parseScenario(name string, top *yaml.Node) (*Scenario, error) {
	p := scenarioParser{file: name, sc: &Scenario{Seed: 1, Repeats: 1, Policy: cachepolicy.Names()[0]}}
	p.scenario(top)
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return p.sc, nil
}

type scenarioParser struct {
	file     string
	sc       *Scenario
	problems []error
}

func (p *scenarioParser) fail(n *yaml.Node, key, hint, format string, args ...any) {
	p.problems = append(p.problems, errs.New(errs.Invalid, key, hint, "%s:%d:%d: %s", p.file, n.Line, n.Column,
		fmt.Sprintf(format, args...)))
}

// field reads the value of one key.
type field struct {
	key  string
	read func(v *yaml.Node)
}

// mapping reads known keys, each at most once, and reports the others.
func (p *scenarioParser) mapping(n *yaml.Node, what string, fields []field) (seen map[string]bool) {
	seen = map[string]bool{}
	if n.Kind != yaml.MappingNode {
		p.fail(n, what, "write key: value lines", "%s must hold keys", what)
		return seen
	}
	var names []string
	for _, f := range fields {
		names = append(names, f.key)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		f := slices.Index(names, k.Value)
		switch {
		case k.Kind != yaml.ScalarNode:
			p.fail(k, what, "write key: value lines", "a key must be a word")
		case f < 0:
			p.fail(k, clipped(k.Value), nearest.DidYouMean(k.Value, names), "unknown key %.40q in %s", k.Value, what)
		case seen[k.Value]:
			p.fail(k, k.Value, "keep one of them", "key %q is there twice in %s", k.Value, what)
		case v.Kind == yaml.AliasNode:
			p.fail(v, k.Value, "write the value out", "aliases are not supported")
		default:
			seen[k.Value] = true
			if v.Tag != "!!null" { // "key:" leaves the default
				fields[f].read(v)
			}
		}
	}
	return seen
}

func clipped(s string) string { return s[:min(len(s), 40)] }

// written is what stands at a node, for a message that says that it cannot: a value in quotes, or that there are
// several.
func written(v *yaml.Node) string {
	switch v.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a list of keys"
	case yaml.AliasNode:
		return "an alias"
	default:
		return fmt.Sprintf("%.40q", v.Value)
	}
}

func (p *scenarioParser) whole(v *yaml.Node, key string, lo, hi int, to *int) {
	n, err := strconv.ParseInt(strings.ReplaceAll(v.Value, "_", ""), 10, 64)
	if v.Kind != yaml.ScalarNode || err != nil || n < int64(lo) || n > int64(hi) {
		p.fail(v, key, fmt.Sprintf("write a whole number from %d to %d", lo, hi), "%s: %s cannot be its value", key,
			written(v))
		return
	}
	*to = int(n)
}

func (p *scenarioParser) seed(v *yaml.Node, key string, to *uint64) {
	n, err := strconv.ParseUint(v.Value, 10, 64)
	if v.Kind != yaml.ScalarNode || err != nil {
		p.fail(v, key, "write a whole number from 0 to 18446744073709551615", "%s: %s cannot be its value", key, written(v))
		return
	}
	*to = n
}

// interval is the finite numbers that are allowed, lo among them unless it is open.
type interval struct {
	lo, hi float64
	open   bool
}

// from allows lo to hi.
func from(lo, hi float64) interval { return interval{lo, hi, false} }

// above allows what is larger than lo, to hi.
func above(lo, hi float64) interval { return interval{lo, hi, true} }

func (i interval) has(x float64) bool { return x >= i.lo && x <= i.hi && !(i.open && x == i.lo) }

func (i interval) String() string {
	if i.open {
		return fmt.Sprintf("above %g to %g", i.lo, i.hi)
	}
	return fmt.Sprintf("from %g to %g", i.lo, i.hi)
}

// number reads a finite number.
func (p *scenarioParser) number(v *yaml.Node, key string, allowed interval, to *float64) {
	x, err := strconv.ParseFloat(v.Value, 64)
	if v.Kind != yaml.ScalarNode || err != nil || !allowed.has(x) {
		p.fail(v, key, "write a number "+allowed.String(), "%s: %s cannot be its value", key, written(v))
		return
	}
	*to = x
}

// word reads a word, and reports whether there was one.
func (p *scenarioParser) word(v *yaml.Node, key string, to *string) bool {
	if v.Kind != yaml.ScalarNode {
		p.fail(v, key, "write "+key+": WORD", "%s: %s cannot be its value", key, written(v))
		return false
	}
	*to = strings.ToValidUTF8(v.Value, "\uFFFD")
	return true
}

func (p *scenarioParser) scenario(n *yaml.Node) {
	sc := p.sc
	jobs := (*yaml.Node)(nil)
	seen := p.mapping(n, "the scenario", []field{
		{"samples", func(v *yaml.Node) { p.whole(v, "samples", 1, maxSamples, &sc.Samples) }},
		{"seed", func(v *yaml.Node) { p.seed(v, "seed", &sc.Seed) }},
		{"repeats", func(v *yaml.Node) { p.whole(v, "repeats", 1, 10_000, &sc.Repeats) }},
		{"cache", func(v *yaml.Node) {
			p.mapping(v, "cache", []field{
				{"samples", func(v *yaml.Node) { p.whole(v, "cache.samples", 0, maxSamples, &sc.Cache) }},
				{"policy", func(v *yaml.Node) { p.policy(v) }},
			})
		}},
		{"jobs", func(v *yaml.Node) { jobs = v }},
		{"sizes", func(v *yaml.Node) {
			p.mapping(v, "sizes", []field{{"quartiles", func(v *yaml.Node) { p.quartiles(v) }}})
		}},
	})
	if !seen["samples"] {
		p.fail(n, "samples", "e.g. samples: 13334", "samples is missing: how many the dataset has")
	}
	switch {
	case jobs == nil || jobs.Kind == yaml.SequenceNode && len(jobs.Content) == 0:
		p.fail(n, "jobs", `e.g. jobs: [{name: a, subset: "all", epochs: 2}]`, "jobs is missing: who draws")
	case jobs.Kind != yaml.SequenceNode:
		p.fail(jobs, "jobs", "write one - line for each job", "jobs must be a list")
	case len(jobs.Content) > dsa.MaxJobs:
		p.fail(jobs, "jobs", fmt.Sprintf("leave out %d of them", len(jobs.Content)-dsa.MaxJobs),
			"%d jobs draw from the dataset, the limit is %d", len(jobs.Content), dsa.MaxJobs)
	case sc.Samples > maxTables/len(jobs.Content):
		p.fail(jobs, "jobs", "lower samples or the number of jobs", "%d jobs on %d samples, the limit of their product is %d",
			len(jobs.Content), sc.Samples, maxTables)
	case sc.Samples > 0:
		for i, v := range jobs.Content {
			p.job(v, i)
		}
		p.work(jobs)
	}
}

func (p *scenarioParser) policy(v *yaml.Node) {
	if p.word(v, "cache.policy", &p.sc.Policy) && !tinylfu.Known(p.sc.Policy) {
		p.fail(v, "cache.policy", nearest.DidYouMean(p.sc.Policy, tinylfu.Names()), "unknown cache policy %.40q", p.sc.Policy)
	}
}

func (p *scenarioParser) quartiles(v *yaml.Node) {
	if v.Kind != yaml.SequenceNode || len(v.Content) != 4 {
		p.fail(v, "sizes.quartiles", "e.g. quartiles: [1, 2, 4, 8]", "quartiles are four sizes")
		return
	}
	p.sc.Quartiles = make([]float64, 4)
	for i, q := range v.Content {
		p.number(q, "sizes.quartiles", above(0, 1e6), &p.sc.Quartiles[i])
	}
}

func (p *scenarioParser) job(n *yaml.Node, i int) {
	if n.Kind == yaml.AliasNode {
		p.fail(n, "jobs", "write the job out", "aliases are not supported")
		return
	}
	j := ScenarioJob{Speed: 1, Epochs: 1, Order: "stratified", Batch: defaultBatch, Window: defaultWindow, Seed: uint64(i)}
	problems := len(p.problems)
	nodes := map[string]*yaml.Node{"subset": n, "order": n, "name": n}
	at := func(key string, read func(v *yaml.Node)) field {
		return field{key, func(v *yaml.Node) { nodes[key] = v; read(v) }}
	}
	what := fmt.Sprintf("job %d", i+1)
	p.mapping(n, what, []field{
		at("name", func(v *yaml.Node) { p.word(v, "name", &j.Name) }),
		at("subset", func(v *yaml.Node) { p.word(v, "subset", &j.Subset) }),
		{"speed", func(v *yaml.Node) { p.number(v, "speed", from(1e-6, 1e6), &j.Speed) }},
		{"start", func(v *yaml.Node) { p.number(v, "start", from(0, 1e12), &j.Start) }},
		at("leave", func(v *yaml.Node) { p.number(v, "leave", above(0, 1e12), &j.Leave) }),
		{"epochs", func(v *yaml.Node) { p.whole(v, "epochs", 1, 1_000_000, &j.Epochs) }},
		at("order", func(v *yaml.Node) { p.word(v, "order", &j.Order) }),
		{"batch", func(v *yaml.Node) { p.whole(v, "batch", 1, 65536, &j.Batch) }},
		{"window", func(v *yaml.Node) { p.whole(v, "window", 1, 64, &j.Window) }},
		{"seed", func(v *yaml.Node) { p.seed(v, "seed", &j.Seed) }},
		{"shuffle", func(v *yaml.Node) {
			var b bool
			if v.Tag != "!!bool" || v.Decode(&b) != nil {
				p.fail(v, "shuffle", "write true or false", "shuffle: %s cannot be its value", written(v))
			}
			j.NoShuf = !b
		}},
	})
	if len(p.problems) > problems {
		return
	}
	if j.Name == "" {
		p.fail(nodes["name"], "name", "e.g. name: a", "%s has no name", what)
	}
	if slices.ContainsFunc(p.sc.Jobs, func(k ScenarioJob) bool { return k.Name == j.Name }) {
		p.fail(nodes["name"], "name", "give each job its own name", "job %.40q is there twice", j.Name)
	}
	if j.Leave > 0 && j.Leave <= j.Start {
		p.fail(nodes["leave"], "leave", "let it leave after its start", "job %.40q leaves at %g and starts at %g", j.Name,
			j.Leave, j.Start)
	}
	if err := j.setOrder(j.Order); err != nil {
		f := errs.From(err)
		p.fail(nodes["order"], f.Subject, f.Hint, "%s", f.Message)
	}
	if err := j.selectFrom(p.sc.Samples); err != nil {
		f := errs.From(err)
		v := nodes["subset"]
		p.problems = append(p.problems, errs.New(f.Reason, "subset", f.Hint, "%s:%d:%d: %s", p.file, v.Line, v.Column,
			f.Message))
	}
	p.sc.Jobs = append(p.sc.Jobs, j)
}

// work refuses what could not end.
func (p *scenarioParser) work(n *yaml.Node) {
	picks, batches, end := 0.0, 0.0, 0.0
	for _, j := range p.sc.Jobs {
		all := float64(len(j.samples)) * float64(j.Epochs)
		stop := j.Start + all/j.Speed
		if j.Leave > 0 {
			stop = min(stop, j.Leave)
		}
		picks += (stop - j.Start) * j.Speed
		batches += (stop - j.Start) * j.Speed / float64(min(j.Batch, len(j.samples)+1))
		end = max(end, stop)
	}
	if total := picks * float64(p.sc.Repeats); total > maxPicks {
		p.fail(n, "jobs", "lower samples, epochs or repeats", "%.3g picks are asked for, the limit is %.3g", total,
			float64(maxPicks))
	}
	if batches > maxBatches {
		p.fail(n, "jobs", "lower samples or epochs, or raise batches",
			"%.3g batches are asked for in a run, the limit is %.3g", batches, float64(maxBatches))
	}
	if end > maxStep {
		p.fail(n, "jobs", "raise speeds or lower epochs", "the scenario lasts %.3g steps, the limit is %.3g", end,
			float64(maxStep))
	}
}

// setOrder reads the name of an order: a mode, stratified(B), or a baseline.
func (j *ScenarioJob) setOrder(order string) error {
	j.Order, j.tiles, j.rival, j.mode = order, 0, "", dsa.Stratified
	bad := func() error {
		return errs.New(errs.Invalid, "order", nearest.DidYouMean(order, Orders()), "unknown order %.40q", order)
	}
	switch name, tiles, ok := strings.Cut(order, "("); {
	case ok:
		n, err := strconv.Atoi(strings.TrimSuffix(tiles, ")"))
		if name != "stratified" || !strings.HasSuffix(tiles, ")") || err != nil {
			return bad()
		}
		if n < 1 || n > dsa.MaxTiles {
			return errs.New(errs.Invalid, "order", fmt.Sprintf("choose 1 to %d tiles; 4 is the default", dsa.MaxTiles),
				"order: %d tiles are not possible", n)
		}
		j.tiles = n
	case slices.Contains(baseline.Names(), name):
		j.rival = name
	default:
		m, err := dsa.ParseMode(order)
		if err != nil {
			return bad()
		}
		j.mode = m
	}
	if j.NoShuf {
		if j.rival != "" {
			return errs.New(errs.Invalid, "order", "leave one of them out", "order %s shuffles, and shuffle is false", order)
		}
		j.mode = dsa.Sequential
	}
	return nil
}

// selectFrom evaluates the subset over n samples.
func (j *ScenarioJob) selectFrom(n int) error {
	e, err := subset.Parse(j.Subset)
	if err != nil {
		return err
	}
	v := &ids{n: n}
	got, err := e.Select(v)
	switch {
	case err != nil:
		return err
	case v.asked != "":
		return errs.New(errs.Invalid, "subset", "select by id, range(a, b) or sample(…)",
			"subset: the samples of a scenario have no %s", v.asked)
	case len(got) == 0:
		return errs.New(errs.SubsetEmpty, "subset", fmt.Sprintf("the ids are 0 to %d", n-1),
			"subset: job %.40q selects nothing", j.Name)
	}
	j.samples = make([]ident.ObjectID, len(got))
	for i, x := range got {
		j.samples[i] = ident.ObjectID(x)
	}
	return nil
}

// ids is the dataset of a scenario: nothing but ids.
type ids struct {
	n     int
	asked string // for what there is not
}

func (v *ids) Len() int                    { return v.n }
func (*ids) Live(ident.SampleID) bool      { return true }
func (v *ids) Label(ident.SampleID) int64  { v.asked = "labels"; return 0 }
func (v *ids) Key(ident.SampleID) string   { v.asked = "keys"; return "" }
func (v *ids) Class(ident.SampleID) string { v.asked = "classes"; return "" }

// SetOrder gives all jobs with shuffle another order, for comparisons.
func (sc *Scenario) SetOrder(order string) error {
	for i := range sc.Jobs {
		if j := &sc.Jobs[i]; !j.NoShuf {
			if err := j.setOrder(order); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetCache changes the cache; an empty policy stays what it is.
func (sc *Scenario) SetCache(samples int, policy string) error {
	if samples < 0 || samples > maxSamples {
		return errs.New(errs.Invalid, "cache", fmt.Sprintf("choose 0 to %d", maxSamples),
			"a cache of %d samples is not possible", samples)
	}
	if policy != "" {
		if !tinylfu.Known(policy) {
			return errs.New(errs.Invalid, "policy", cachepolicy.Hint(policy, tinylfu.Names()), "unknown cache policy %.40q",
				policy)
		}
		sc.Policy = policy
	}
	sc.Cache = samples
	return nil
}

// SetRepeats changes the number of runs.
func (sc *Scenario) SetRepeats(n int) error {
	if n < 1 || n > 10_000 {
		return errs.New(errs.Invalid, "repeats", "choose 1 to 10000", "%d repeats are not possible", n)
	}
	sc.Repeats = n
	return nil
}
