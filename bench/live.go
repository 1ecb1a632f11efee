package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"larder/bench/coresim"
	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/config"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/nearest"
	"larder/internal/source/subset"
	"larder/internal/units"
	"larder/internal/xrand"
)

// Live is a scenario with bytes and time: what larder bench live runs with a real daemon on real files, and larder
// bench sim in virtual time. What the file does not say of the machine is measured by bench live, and has the defaults
// of DefaultMachine in bench sim.
type Live struct {
	Purpose string // the comment before the first key
	Samples int    // of the pictures that are drawn; 0 with URI
	URI     string // of a dataset that is there
	Seed    uint64
	Repeats int
	Shrink  int // drawn pictures have so many times smaller sides
	Classes int
	Bytes   int     // mean stored size of a sample, simulated without files
	Decoded float64 // decoded ÷ stored bytes, simulated without files

	Machine LiveMachine
	Tiers   LiveTiers
	Jobs    []LiveJob
	Kill    time.Duration // of the run, at which a real daemon is killed and started again; 0 = never
}

// LiveMachine is the machine of a Live; zero values are not given.
type LiveMachine struct {
	Workers, Cores  int
	Bandwidth, IOPS int64 // of storage, a second; 0 = no limit. A real daemon is held to them
	Latency         time.Duration
	Memory          int64 // bytes copied a second
	Decode, Augment Cost
	Finish          time.Duration
	InPlace         float64
}

// Cost is what a piece of work costs one core.
type Cost struct {
	Mean    time.Duration
	Spread  float64 // samples cost from 1/Spread to Spread times the middle one, log-uniformly; 0 or 1 = all alike
	ByBytes bool    // in proportion to the stored bytes
}

// DefaultMachine is simulated where a scenario says nothing: one core each of decoding at 1 ms a sample, storage of 500
// MB/s.
var DefaultMachine = LiveMachine{Workers: 2, Latency: 100 * time.Microsecond, Memory: 8e9,
	Decode: Cost{Mean: time.Millisecond}, Augment: Cost{Mean: 250 * time.Microsecond},
	Finish: 40 * time.Microsecond, InPlace: .8}

// DefaultTotal is the memory of all tiers where a scenario does not say it.
const DefaultTotal = 1 << 30

// LiveTiers are the memory of a Live.
type LiveTiers struct {
	Total  int64
	Sizes  [ident.NumForms]int64 // -1 = auto
	Policy [ident.NumForms]string
	Model  string
}

// LiveJob is one job of a Live.
type LiveJob struct {
	coresim.Job
	Expr string // of its subset
	Crop int    // RandomResizedCrop to this side

	expr *subset.Expr
	at   *yaml.Node
}

// ParseLive reads the YAML of a scenario with a machine. Mistakes are reported as in ParseScenario.
func ParseLive(name string, data []byte) (*Live, error) {
	p := liveParser{scenarioParser: scenarioParser{file: name}, l: &Live{Seed: 1, Repeats: 3, Shrink: 1, Classes: 10,
		Decoded: 5.4,
		Tiers: LiveTiers{Total: DefaultTotal, Sizes: [ident.NumForms]int64{ident.Encoded: -1, ident.Decoded: -1,
			ident.Augmented: -1}}}}
	err := readScenario(name, data, "bench/scenarios/live has some", func(top *yaml.Node) error {
		p.live(top)
		return errors.Join(p.problems...)
	})
	if err != nil {
		return nil, err
	}
	p.l.Purpose = purpose(data)
	return p.l, nil
}

// purpose is the first line of a file, when that is a comment.
func purpose(data []byte) string {
	line, _, _ := strings.Cut(string(data), "\n")
	if !strings.HasPrefix(line, "#") {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(strings.TrimPrefix(line, "#")), "\uFFFD")
}

type liveParser struct {
	scenarioParser
	l *Live
}

// duration reads a time from lo to hi.
func (p *liveParser) duration(v *yaml.Node, key string, lo, hi time.Duration, to *time.Duration) {
	d, err := time.ParseDuration(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || d < lo || d > hi {
		p.fail(v, key, fmt.Sprintf("write a time from %v to %v, e.g. 20ms", lo, hi), "%s: %s cannot be its value", key,
			written(v))
		return
	}
	*to = d
}

// bytes reads a number of bytes; auto gives -1 where it may.
func (p *liveParser) bytes(v *yaml.Node, key string, auto bool, to *int64) {
	s, err := config.ParseSize(strings.TrimSuffix(v.Value, "/s"))
	if v.Kind != yaml.ScalarNode || err != nil || s.IsPercent() || s.IsAuto() && !auto {
		p.fail(v, key, "write a number of bytes, e.g. 64MiB", "%s: %s cannot be its value", key, written(v))
		return
	}
	if *to = s.Of(0); s.IsAuto() {
		*to = -1
	}
}

func (p *liveParser) boolean(v *yaml.Node, key string, to *bool) {
	if v.Tag != "!!bool" || v.Decode(to) != nil {
		p.fail(v, key, "write true or false", "%s: %s cannot be its value", key, written(v))
	}
}

func (p *liveParser) live(n *yaml.Node) {
	l := p.l
	var list, kill *yaml.Node
	seen := p.mapping(n, "the scenario", []field{
		{"samples", func(v *yaml.Node) { p.whole(v, "samples", 1, maxSamples, &l.Samples) }},
		{"dataset", func(v *yaml.Node) { p.word(v, "dataset", &l.URI) }},
		{"seed", func(v *yaml.Node) { p.seed(v, "seed", &l.Seed) }},
		{"repeats", func(v *yaml.Node) { p.whole(v, "repeats", 1, 1000, &l.Repeats) }},
		{"shrink", func(v *yaml.Node) { p.whole(v, "shrink", 1, 8, &l.Shrink) }},
		{"classes", func(v *yaml.Node) { p.whole(v, "classes", 1, 1_000_000, &l.Classes) }},
		{"bytes", func(v *yaml.Node) { p.whole(v, "bytes", 1, 1<<28, &l.Bytes) }},
		{"decoded", func(v *yaml.Node) { p.number(v, "decoded", above(0, 1000), &l.Decoded) }},
		{"machine", func(v *yaml.Node) { p.machine(v) }},
		{"tiers", func(v *yaml.Node) { p.tiers(v) }},
		{"kill", func(v *yaml.Node) { kill = v; p.kill(v) }},
		{"jobs", func(v *yaml.Node) { list = v }},
	})
	if seen["kill"] && kill == nil {
		p.fail(n, "kill", "e.g. kill: {at: 5s}, or leave it out", "kill does not say when")
	}
	if !seen["bytes"] {
		l.Bytes = max(1, 110_000/(l.Shrink*l.Shrink))
	}
	if seen["samples"] == seen["dataset"] {
		p.fail(n, "samples", "e.g. samples: 600, or dataset: imagefolder:/data/train",
			"either samples, of pictures to be drawn, or a dataset must be there")
	}
	switch {
	case list == nil || list.Kind == yaml.SequenceNode && len(list.Content) == 0:
		p.fail(n, "jobs", "e.g. jobs: [{name: a, epochs: 2, step: 20ms}]", "jobs is missing: who trains")
	case list.Kind != yaml.SequenceNode:
		p.fail(list, "jobs", "write one - line for each job", "jobs must be a list")
	case len(list.Content) > dsa.MaxJobs:
		p.fail(list, "jobs", fmt.Sprintf("leave out %d of them", len(list.Content)-dsa.MaxJobs),
			"%d jobs draw from the dataset, the limit is %d", len(list.Content), dsa.MaxJobs)
	default:
		for i, v := range list.Content {
			p.job(v, i)
		}
	}
	if early := func(j LiveJob) bool { return j.Start < l.Kill }; l.Kill > 0 && len(l.Jobs) > 0 &&
		!slices.ContainsFunc(l.Jobs, early) {
		p.fail(kill, "kill", "kill it later, or let a job start before", "no job trains yet when the daemon is killed, at %v",
			l.Kill)
	}
}

// kill reads when the daemon is killed.
func (p *liveParser) kill(n *yaml.Node) {
	seen := p.mapping(n, "kill",
		[]field{{"at", func(v *yaml.Node) { p.duration(v, "kill.at", time.Millisecond, 365*24*time.Hour, &p.l.Kill) }}})
	if n.Kind == yaml.MappingNode && !seen["at"] {
		p.fail(n, "kill", "e.g. kill: {at: 5s}", "kill does not say when")
	}
}

func (p *liveParser) machine(n *yaml.Node) {
	m := &p.l.Machine
	p.mapping(n, "machine", []field{
		{"workers", func(v *yaml.Node) { p.whole(v, "machine.workers", 1, 4096, &m.Workers) }},
		{"cores", func(v *yaml.Node) { p.whole(v, "machine.cores", 1, 4096, &m.Cores) }},
		{"storage", func(v *yaml.Node) {
			p.mapping(v, "machine.storage", []field{
				{"bandwidth", func(v *yaml.Node) { p.bytes(v, "machine.storage.bandwidth", false, &m.Bandwidth) }},
				{"iops", func(v *yaml.Node) {
					n := 0
					p.whole(v, "machine.storage.iops", 0, 1e9, &n)
					m.IOPS = int64(n)
				}},
				{"latency", func(v *yaml.Node) { p.duration(v, "machine.storage.latency", 0, time.Minute, &m.Latency) }},
			})
		}},
		{"memory", func(v *yaml.Node) { p.bytes(v, "machine.memory", false, &m.Memory) }},
		{"decode", func(v *yaml.Node) { p.cost(v, "machine.decode", &m.Decode) }},
		{"augment", func(v *yaml.Node) { p.cost(v, "machine.augment", &m.Augment) }},
		{"finish", func(v *yaml.Node) { p.duration(v, "machine.finish", 0, time.Minute, &m.Finish) }},
		{"in_place", func(v *yaml.Node) { p.number(v, "machine.in_place", above(0, 10), &m.InPlace) }},
	})
}

func (p *liveParser) cost(v *yaml.Node, key string, to *Cost) {
	if v.Kind == yaml.ScalarNode {
		p.duration(v, key, time.Microsecond, time.Minute, &to.Mean)
		return
	}
	seen := p.mapping(v, key, []field{
		{"mean", func(v *yaml.Node) { p.duration(v, key+".mean", time.Microsecond, time.Minute, &to.Mean) }},
		{"spread", func(v *yaml.Node) { p.number(v, key+".spread", from(1, 1000), &to.Spread) }},
		{"by", func(v *yaml.Node) {
			word := ""
			if p.word(v, key+".by", &word) && word != "bytes" && word != "sample" {
				p.fail(v, key+".by", nearest.DidYouMean(word, []string{"bytes", "sample"}), "%s.by: %.40q cannot be its value", key,
					word)
			}
			to.ByBytes = word == "bytes"
		}},
	})
	if v.Kind == yaml.MappingNode && !seen["mean"] {
		p.fail(v, key, "e.g. {mean: 1ms, spread: 2}", "%s has no mean", key)
	}
}

func (p *liveParser) tiers(n *yaml.Node) {
	t := &p.l.Tiers
	tier := func(f ident.Form, read func(v *yaml.Node, f ident.Form)) field {
		return field{f.String(), func(v *yaml.Node) { read(v, f) }}
	}
	size := func(v *yaml.Node, f ident.Form) { p.bytes(v, "tiers."+f.String(), true, &t.Sizes[f]) }
	policy := func(v *yaml.Node, f ident.Form) {
		if known := cachepolicy.Unforeseeing(); p.word(v, "tiers.policy."+f.String(), &t.Policy[f]) &&
			!slices.Contains(known, t.Policy[f]) {
			p.fail(v, "tiers.policy."+f.String(), nearest.DidYouMean(t.Policy[f], known), "unknown cache policy %.40q",
				t.Policy[f])
		}
	}
	seen := p.mapping(n, "tiers", []field{
		{"total", func(v *yaml.Node) { p.bytes(v, "tiers.total", false, &t.Total) }},
		tier(ident.Encoded, size), tier(ident.Decoded, size), tier(ident.Augmented, size),
		{"policy", func(v *yaml.Node) {
			p.mapping(v, "tiers.policy", []field{tier(ident.Encoded, policy), tier(ident.Decoded, policy),
				tier(ident.Augmented, policy)})
		}},
		{"model", func(v *yaml.Node) {
			if p.word(v, "tiers.model", &t.Model) && !slices.Contains(config.Models, t.Model) {
				p.fail(v, "tiers.model", nearest.DidYouMean(t.Model, config.Models), "unknown model %.40q", t.Model)
			}
		}},
	})
	fixed := int64(0)
	for f := ident.Encoded; f < ident.NumForms; f++ {
		fixed += max(0, t.Sizes[f])
	}
	if auto := slices.Contains(t.Sizes[ident.Encoded:], -1); !seen["total"] && (!auto || fixed > t.Total) {
		t.Total = fixed
	}
	if fixed > t.Total {
		p.fail(n, "tiers", "raise tiers.total", "the tiers have %s together, and tiers.total is %s", units.Size(fixed),
			units.Size(t.Total))
	}
}

func (p *liveParser) job(n *yaml.Node, i int) {
	if n.Kind == yaml.AliasNode {
		p.fail(n, "jobs", "write the job out", "aliases are not supported")
		return
	}
	j := LiveJob{Job: coresim.Job{Order: "stratified", Batch: defaultBatch, Epochs: 1, Prefetch: 2, Seed: uint64(i),
		Step: 10 * time.Millisecond}, Crop: 224, at: n}
	problems := len(p.problems)
	nodes := map[string]*yaml.Node{"name": n, "leave": n, "subset": n, "order": n, "share": n}
	at := func(key string, read func(v *yaml.Node)) field {
		return field{key, func(v *yaml.Node) { nodes[key] = v; read(v) }}
	}
	what, shuffle, share := fmt.Sprintf("job %d", i+1), true, ""
	day := 24 * time.Hour
	p.mapping(n, what, []field{
		at("name", func(v *yaml.Node) { p.word(v, "name", &j.Name) }),
		at("subset", func(v *yaml.Node) { p.word(v, "subset", &j.Expr) }),
		at("order", func(v *yaml.Node) { p.word(v, "order", &j.Order) }),
		{"shuffle", func(v *yaml.Node) { p.boolean(v, "shuffle", &shuffle) }},
		{"seed", func(v *yaml.Node) { p.seed(v, "seed", &j.Seed) }},
		{"batch", func(v *yaml.Node) { p.whole(v, "batch", 1, 65536, &j.Batch) }},
		{"prefetch", func(v *yaml.Node) { p.whole(v, "prefetch", 1, 64, &j.Prefetch) }},
		{"ranks", func(v *yaml.Node) { p.whole(v, "ranks", 1, 64, &j.Ranks) }},
		{"epochs", func(v *yaml.Node) { p.whole(v, "epochs", 1, 1_000_000, &j.Epochs) }},
		{"drop_last", func(v *yaml.Node) { p.boolean(v, "drop_last", &j.DropLast) }},
		{"step", func(v *yaml.Node) { p.duration(v, "step", 0, time.Hour, &j.Step) }},
		{"jitter", func(v *yaml.Node) { p.number(v, "jitter", from(0, 1), &j.Jitter) }},
		{"phases", func(v *yaml.Node) { p.phases(v, &j) }},
		{"start", func(v *yaml.Node) { p.duration(v, "start", 0, 365*day, &j.Start) }},
		at("leave", func(v *yaml.Node) { p.duration(v, "leave", 0, 365*day, &j.Leave) }),
		{"crop", func(v *yaml.Node) { p.whole(v, "crop", 1, 4096, &j.Crop) }},
		at("share", func(v *yaml.Node) {
			if p.word(v, "share", &share) && share != "none" && share != "augmented" {
				p.fail(v, "share", nearest.DidYouMean(share, []string{"none", "augmented"}), "share: %.40q cannot be its value",
					share)
			}
		}),
	})
	if len(p.problems) > problems {
		return
	}
	j.Share, j.Even = share == "augmented", j.Ranks > 1
	j.Recipe, j.Bytes = fmt.Sprintf("crop %d", j.Crop), int64(3*j.Crop*j.Crop)
	if j.Name == "" {
		p.fail(nodes["name"], "name", "e.g. name: a", "%s has no name", what)
	}
	if slices.ContainsFunc(p.l.Jobs, func(k LiveJob) bool { return k.Name == j.Name }) {
		p.fail(nodes["name"], "name", "give each job its own name", "job %.40q is there twice", j.Name)
	}
	if j.Leave > 0 && j.Leave <= j.Start {
		p.fail(nodes["leave"], "leave", "let it leave after its start", "job %.40q leaves at %v and starts at %v", j.Name,
			j.Leave, j.Start)
	}
	check := ScenarioJob{NoShuf: !shuffle}
	if err := check.setOrder(j.Order); err != nil {
		f := errs.From(err)
		p.fail(nodes["order"], f.Subject, f.Hint, "%s", f.Message)
	} else if check.rival != "" {
		p.fail(nodes["order"], "order", "choose fixed, strict, stratified or epoch; larder bench sampler runs the others",
			"order %s is no order of a daemon", j.Order)
	}
	if !shuffle {
		j.Order = ""
	}
	var err error
	if j.expr, err = subset.Parse(j.Expr); err != nil {
		f := errs.From(err)
		v := nodes["subset"]
		p.problems = append(p.problems, errs.New(f.Reason, "subset", f.Hint, "%s:%d:%d: %s", p.file, v.Line, v.Column,
			f.Message))
	}
	p.l.Jobs = append(p.l.Jobs, j)
}

func (p *liveParser) phases(n *yaml.Node, j *LiveJob) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.fail(n, "phases", "e.g. phases: [{batches: 100, step: 20ms}, {batches: 10, step: 5ms}]", "phases must be a list")
		return
	}
	for _, v := range n.Content {
		ph := coresim.Phase{}
		seen := p.mapping(v, "a phase", []field{
			{"batches", func(v *yaml.Node) { p.whole(v, "batches", 1, 1e9, &ph.Batches) }},
			{"step", func(v *yaml.Node) { p.duration(v, "step", 0, time.Hour, &ph.Step) }},
		})
		if v.Kind == yaml.MappingNode && (!seen["batches"] || !seen["step"]) {
			p.fail(v, "phases", "e.g. {batches: 100, step: 20ms}", "a phase has batches and a step")
		}
		j.Phases = append(j.Phases, ph)
	}
}

// Notes returns in sentences what a simulation of it leaves out.
func (l *Live) Notes() []string {
	if l.Kill == 0 {
		return nil
	}
	return []string{fmt.Sprintf("The death of the daemon at %v is not simulated: a simulated run is one "+
		"without disturbance.", l.Kill)}
}

// Data is what a World needs to know of a dataset.
type Data interface {
	subset.View
	Bytes(ident.SampleID) int64
}

// World makes what can be simulated: of a dataset that is there, or, with data nil, of one that is made up. What the
// machine lacks is that of fallback. decoded is the bytes of a decoded sample; nil = Decoded times the stored ones.
func (l *Live) World(data Data, decoded func(ident.SampleID) int64, fallback LiveMachine) (*coresim.World, error) {
	if data == nil {
		if l.Samples == 0 {
			return nil, errs.New(errs.Invalid, "dataset", "give samples: N instead, or run larder bench live",
				"a scenario of the dataset %s needs its files", l.URI)
		}
		data = &madeUp{ids: ids{n: l.Samples}, classes: min(l.Classes, l.Samples),
			sizes: trace.PhotoSizes(xrand.New(l.Seed, 0x73697a65), l.Samples, l.Bytes)}
	}
	m := l.Machine.over(fallback)
	n := data.Len()
	w := &coresim.World{Seed: l.Seed, Objects: n, Finish: m.Finish, InPlace: m.InPlace, Workers: m.Workers, Cores: m.Cores,
		Memory:  float64(m.Memory),
		Storage: coresim.Storage{Bandwidth: float64(m.Bandwidth), IOPS: float64(m.IOPS), Latency: m.Latency},
		Tiers: coordinator.TierConfig{Total: l.Tiers.Total, Sizes: l.Tiers.Sizes, Policy: l.Tiers.Policy,
			Model: l.Tiers.Model},
		Sizes: make([]uint32, n), Decoded: make([]uint32, n), Labels: make([]int32, n)}
	for i := range n {
		s := ident.SampleID(i)
		w.Sizes[i], w.Labels[i] = uint32(min(data.Bytes(s), 1<<32-1)), int32(data.Label(s))
		if decoded != nil {
			w.Decoded[i] = uint32(min(decoded(s), 1<<32-1))
		} else {
			w.Decoded[i] = uint32(min(float64(w.Sizes[i])*l.Decoded, 1<<32-1))
		}
	}
	w.Decode, w.Augment = m.Decode.of(w.Sizes, xrand.New(l.Seed, 1)), m.Augment.of(w.Sizes, xrand.New(l.Seed, 2))
	known := map[string][]uint32{} // lookups only
	for i := range l.Jobs {
		j := l.Jobs[i].Job
		expr := l.Jobs[i].Expr
		if known[expr] == nil {
			got, err := l.Jobs[i].expr.Select(data)
			if err == nil && len(got) == 0 {
				err = errs.New(errs.SubsetEmpty, "subset", fmt.Sprintf("the ids are 0 to %d", n-1),
					"subset: job %.40q selects nothing", j.Name)
			}
			if err != nil {
				return nil, err
			}
			for _, s := range got {
				known[expr] = append(known[expr], uint32(s))
			}
		}
		j.Subset = known[expr]
		w.Jobs = append(w.Jobs, j)
	}
	return w, nil
}

// over is m with what it lacks from another one.
func (m LiveMachine) over(o LiveMachine) LiveMachine {
	if m.Workers == 0 {
		m.Workers = o.Workers
	}
	if m.Cores == 0 {
		m.Cores = max(o.Cores, 0)
	}
	if m.Bandwidth == 0 {
		m.Bandwidth = o.Bandwidth
	}
	if m.IOPS == 0 {
		m.IOPS = o.IOPS
	}
	if m.Latency == 0 {
		m.Latency = o.Latency
	}
	if m.Memory == 0 {
		m.Memory = o.Memory
	}
	if m.Decode.Mean == 0 {
		m.Decode = o.Decode
	}
	if m.Augment.Mean == 0 {
		m.Augment = o.Augment
	}
	if m.Finish == 0 {
		m.Finish = o.Finish
	}
	if m.InPlace == 0 {
		m.InPlace = o.InPlace
	}
	return m
}

// of draws what every sample costs, with the given mean.
func (c Cost) of(sizes []uint32, r *xrand.Rand) []time.Duration {
	weight := make([]float64, len(sizes))
	sum := 0.0
	for i := range weight {
		weight[i] = 1
		if c.ByBytes {
			weight[i] = float64(max(1, sizes[i]))
		}
		if c.Spread > 1 {
			weight[i] *= r.LogUniform(1/c.Spread, c.Spread)
		}
		sum += weight[i]
	}
	out := make([]time.Duration, len(sizes))
	for i := range out {
		out[i] = time.Duration(weight[i] / sum * float64(len(sizes)) * float64(c.Mean))
	}
	return out
}

// madeUp is a dataset without files.
type madeUp struct {
	ids
	classes int
	sizes   []uint32
}

func (d *madeUp) Label(s ident.SampleID) int64  { return int64(int(s) * d.classes / d.n) }
func (d *madeUp) Class(s ident.SampleID) string { return fmt.Sprintf("class_%02d", d.Label(s)) }
func (d *madeUp) Key(s ident.SampleID) string {
	return fmt.Sprintf("%s/photo_%06d.jpg", d.Class(s), s)
}
func (d *madeUp) Bytes(s ident.SampleID) int64 { return int64(d.sizes[s]) }
