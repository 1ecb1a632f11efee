package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"larder/bench/coresim"
	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/internal/config"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/nearest"
)

// FromTrace makes a World of the demand of a trace, and says in sentences what the trace cannot know or the simulation
// assumes. What the trace does not say of the machine is that of fallback.
func FromTrace(t *trace.Trace, fallback LiveMachine) (w *coresim.World, limits []string, err error) {
	w = &coresim.World{Seed: t.Seed, Objects: t.Objects, Finish: fallback.Finish, InPlace: fallback.InPlace,
		Workers: fallback.Workers, Cores: fallback.Cores, Memory: float64(fallback.Memory),
		Storage: coresim.Storage{Bandwidth: float64(fallback.Bandwidth), IOPS: float64(fallback.IOPS),
			Latency: fallback.Latency}, Sizes: t.Sizes, Decoded: t.Decoded, Decode: t.Decode, Augment: t.Augment}
	say := func(format string, args ...any) { limits = append(limits, fmt.Sprintf(format, args...)) }
	if w.Sizes == nil {
		w.Sizes = slices.Repeat([]uint32{110_000}, t.Objects)
		say("The trace has no sizes: every sample has 110 kB.")
	}
	if w.Decoded == nil {
		w.Decoded = make([]uint32, t.Objects)
		for i, n := range w.Sizes {
			w.Decoded[i] = uint32(min(5.4*float64(n), 1<<32-1))
		}
		say("The trace has no decoded sizes: a decoded sample takes 5.4 times its stored bytes.")
	}
	if w.Decode == nil {
		w.Decode = slices.Repeat([]time.Duration{fallback.Decode.Mean}, t.Objects)
		say("The trace has no costs of decoding: %v for every sample.", fallback.Decode.Mean)
	}
	if w.Augment == nil {
		w.Augment = slices.Repeat([]time.Duration{fallback.Augment.Mean}, t.Objects)
		say("The trace has no costs of augmenting: %v for every sample.", fallback.Augment.Mean)
	}
	if r := t.World; r != nil {
		recordedMachine(w, r, t.Objects, say)
	} else {
		w.Tiers.Sizes = [ident.NumForms]int64{ident.Encoded: -1, ident.Decoded: -1, ident.Augmented: -1}
		say("The trace says nothing of the machine: %d workers, storage without a limit, and no memory unless tiers.total "+
			"is changed.", w.Workers)
	}
	shapes := t.Shapes()
	for i := range t.Jobs {
		j, err := traceJob(t, i)
		if err != nil {
			return nil, nil, err
		}
		if len(j.Subset) == 0 {
			continue
		}
		if t.World != nil && t.World.Jobs[i].Partial {
			say("Job %s was recorded in part: it is simulated for the %d epochs that were seen, begun or ended.", j.Name,
				j.Epochs)
		}
		if x := shapes[i]; t.World == nil && j.Leave == 0 && (x.Repeats || x.Picks > 0 && x.Picks != j.Epochs*len(j.Subset)) {
			say("Job %s did not take each sample of its subset once an epoch: here it does, %d times.", j.Name, j.Epochs)
		}
		w.Jobs = append(w.Jobs, j)
	}
	if w.Cores == 0 {
		w.Cores = w.Workers
	}
	say("Orders are drawn again from the seed: figures are those of such a run, not of the recorded picks; " +
		"two seeds differ by chance.")
	say("Every batch of a job takes its mean step time, and a change of speed changes nothing else about it; jobs " +
		"start when they started.")
	return w, limits, nil
}

// recordedMachine gives a World the machine and the tiers that a trace recorded, and says what is missing of them.
func recordedMachine(w *coresim.World, r *trace.World, objects int, say func(format string, args ...any)) {
	w.Workers, w.Cores = r.Workers, r.Cores
	w.Storage = coresim.Storage{Bandwidth: float64(r.StorageLimit), IOPS: float64(r.StorageIOPS), Latency: r.Latency}
	if r.Memory > 0 {
		w.Memory = r.Memory
	}
	if r.Finish > 0 {
		w.Finish = r.Finish
	}
	if r.InPlace > 0 {
		w.InPlace = r.InPlace
	}
	w.Tiers = coordinator.TierConfig{Total: r.Tiers.Total, Model: r.Tiers.Model,
		Sizes: [ident.NumForms]int64{ident.Encoded: r.Tiers.Encoded, ident.Decoded: r.Tiers.Decoded,
			ident.Augmented: r.Tiers.Augmented}}
	if len(r.Tiers.Policy) == 3 {
		for i, p := range r.Tiers.Policy {
			w.Tiers.Policy[ident.Encoded+ident.Form(i)] = p
		}
	}
	if r.Lost > 0 {
		say("%d picks and moves are missing: the recorder could not follow, or they had been planned before. Demand is "+
			"complete.", r.Lost)
	}
	if r.Breaks > 0 {
		say("The daemon went away while it was recorded (%d times): what it delivered in the last moments before, and "+
			"until the recording continued, is missing.", r.Breaks)
	}
	if r.Unknown > 0 {
		say("The costs of %d of %d samples were never seen: they have the mean.", r.Unknown, objects)
	}
}

// traceJob is a recorded job as one that can be simulated.
func traceJob(t *trace.Trace, i int) (coresim.Job, error) {
	r := &t.Jobs[i]
	j := coresim.Job{Name: r.Name, Order: r.Order, Seed: uint64(i), Subset: t.Members(i), Batch: max(r.Batch, 1), Ranks: 1,
		Prefetch: 2, Epochs: max(r.Epochs, 1), Start: r.Arrive, Leave: r.Leave, Recipe: "r", Bytes: 3 * 224 * 224}
	switch r.Order {
	case "sequential":
		j.Order = ""
	case "independent", "":
		j.Order = dsaFixed
	case "shared-order":
		j.Order, j.Seed = dsaFixed, 0
	}
	if t.World != nil {
		w := &t.World.Jobs[i]
		j.Ranks, j.Prefetch, j.DropLast, j.Even, j.Seed, j.Recipe, j.Share, j.Bytes = w.Ranks, w.Prefetch, w.DropLast, w.Even,
			w.Seed, w.Recipe, w.Share, max(w.Augmented, 1)
	}
	j.Step = r.Step * time.Duration(j.Batch)
	check := ScenarioJob{NoShuf: j.Order == ""}
	if err := check.setOrder(r.Order); j.Order != dsaFixed && j.Order != "" && (err != nil || check.rival != "") {
		return j, errs.New(errs.Unsupported, r.Name, "larder bench policy --systems simulates other systems",
			"job %s of the trace has order %s, which is none of a daemon", r.Name, r.Order)
	}
	return j, nil
}

const dsaFixed = "fixed"

// changeKeys are what Change knows, of the machine and of a job.
var (
	changeKeys = []string{"tiers.total", "tiers.encoded", "tiers.decoded", "tiers.augmented", "tiers.policy.encoded",
		"tiers.policy.decoded", "tiers.policy.augmented", "tiers.model",
		"machine.workers", "machine.cores", "machine.storage.bandwidth", "machine.storage.iops", "machine.storage.latency",
		"machine.memory", "seed"}
	jobKeys = []string{"speed", "step", "batch", "epochs", "start", "leave", "order", "prefetch", "share"}
)

// change is a value that is to become that of a key.
type change struct{ key, value string }

func (c change) bad(hint string) error {
	return errs.New(errs.Invalid, c.key, hint, "the change %s: %.40q cannot be its value", c.key, c.value)
}

// size reads bytes; auto, where it is allowed, is -1.
func (c change) size(to *int64, auto bool) error {
	s, err := config.ParseSize(strings.TrimSuffix(c.value, "/s"))
	if err != nil || s.IsPercent() || s.IsAuto() && !auto {
		return c.bad("write a number of bytes, e.g. 16GiB")
	}
	if *to = s.Of(0); s.IsAuto() {
		*to = -1
	}
	return nil
}

// rate reads bytes a second.
func (c change) rate(to *float64) error {
	var n int64
	if err := c.size(&n, false); err != nil {
		return err
	}
	*to = float64(n)
	return nil
}

// whole reads a whole number from 1 to most.
func (c change) whole(to *int, most int) error {
	n, err := strconv.Atoi(c.value)
	if err != nil || n < 1 || n > most {
		return c.bad(fmt.Sprintf("write a whole number from 1 to %d", most))
	}
	*to = n
	return nil
}

// duration reads a time of at least least.
func (c change) duration(to *time.Duration, least time.Duration) error {
	d, err := time.ParseDuration(c.value)
	if err != nil || d < least || d > 365*24*time.Hour {
		return c.bad("write a time, e.g. 20ms")
	}
	*to = d
	return nil
}

// Change changes one thing of a World: KEY=VALUE, e.g. tiers.total=16GiB, jobs.NAME=absent, jobs.NAME.speed=2x. The
// errors are INVALID_ARGUMENT, with the nearest key or job.
func Change(w *coresim.World, text string) error {
	key, value, ok := strings.Cut(text, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if !ok || key == "" || value == "" {
		return errs.New(errs.Invalid, text, "e.g. tiers.total=16GiB, jobs.b=absent, jobs.a.speed=2x",
			"the change %.60q is not KEY=VALUE", text)
	}
	c := change{key, value}
	if name, ok := strings.CutPrefix(key, "jobs."); ok {
		return changeJob(w, name, c)
	}
	forms := map[string]ident.Form{"encoded": ident.Encoded, "decoded": ident.Decoded, "augmented": ident.Augmented}
	switch key {
	case "tiers.total":
		return c.size(&w.Tiers.Total, false)
	case "tiers.encoded", "tiers.decoded", "tiers.augmented":
		return c.size(&w.Tiers.Sizes[forms[strings.TrimPrefix(key, "tiers.")]], true)
	case "tiers.policy.encoded", "tiers.policy.decoded", "tiers.policy.augmented":
		if known := cachepolicy.Unforeseeing(); !slices.Contains(known, value) {
			return c.bad(nearest.DidYouMean(value, known))
		}
		w.Tiers.Policy[forms[strings.TrimPrefix(key, "tiers.policy.")]] = value
	case "tiers.model":
		if !slices.Contains(config.Models, value) {
			return c.bad(nearest.DidYouMean(value, config.Models))
		}
		w.Tiers.Model = value
	case "machine.workers":
		if err := c.whole(&w.Workers, 1<<16); err != nil {
			return err
		}
		w.Cores = max(w.Cores, 1)
	case "machine.cores":
		return c.whole(&w.Cores, 1<<16)
	case "machine.storage.bandwidth":
		return c.rate(&w.Storage.Bandwidth)
	case "machine.storage.iops":
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= 0 && v <= 1e9) {
			return c.bad("write a number from 0 (no limit) to 1000000000")
		}
		w.Storage.IOPS = v
	case "machine.storage.latency":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 || d > time.Minute {
			return c.bad("write a time up to 1m, e.g. 2ms")
		}
		w.Storage.Latency = d
	case "machine.memory":
		return c.rate(&w.Memory)
	case "seed":
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return c.bad("write a whole number")
		}
		w.Seed = n
	default:
		return errs.New(errs.Invalid, key, nearest.DidYouMean(key, append(slices.Clone(changeKeys), "jobs.NAME",
			"jobs.NAME.speed")), "unknown change %.60q", key)
	}
	return nil
}

// changeJob changes one thing of a job, or removes the job.
func changeJob(w *coresim.World, name string, c change) error {
	var names []string
	for i := range w.Jobs {
		names = append(names, w.Jobs[i].Name)
	}
	find := func(n string) int { return slices.Index(names, n) }
	if i := find(name); i >= 0 {
		if c.value != "absent" {
			return c.bad("write absent, or change jobs." + name + ".speed")
		}
		if len(w.Jobs) == 1 {
			return errs.New(errs.Invalid, name, "keep one job", "without job %s no job is left", name)
		}
		w.Jobs = slices.Delete(slices.Clone(w.Jobs), i, i+1)
		return nil
	}
	cut := strings.LastIndex(name, ".")
	i := -1
	if cut > 0 {
		i = find(name[:cut])
	}
	if i < 0 {
		near := name
		if cut > 0 && slices.Contains(jobKeys, name[cut+1:]) {
			near = name[:cut]
		}
		return errs.New(errs.Invalid, near, nearest.DidYouMean(near, names), "there is no job %.60q", near)
	}
	w.Jobs = slices.Clone(w.Jobs)
	j := &w.Jobs[i]
	switch attr := name[cut+1:]; attr {
	case "speed":
		f, err := strconv.ParseFloat(strings.TrimSuffix(c.value, "x"), 64)
		if err != nil || !(f >= 1e-3 && f <= 1e3) {
			return c.bad("write a factor from 0.001x to 1000x, e.g. 2x")
		}
		j.Step = time.Duration(float64(j.Step) / f)
		j.Phases = slices.Clone(j.Phases)
		for k := range j.Phases {
			j.Phases[k].Step = time.Duration(float64(j.Phases[k].Step) / f)
		}
	case "step":
		j.Phases = nil
		return c.duration(&j.Step, 0)
	case "batch":
		was := j.Batch
		if err := c.whole(&j.Batch, 1<<16); err != nil {
			return err
		}
		j.Step = j.Step * time.Duration(j.Batch) / time.Duration(was) // a sample takes what it took
	case "epochs":
		return c.whole(&j.Epochs, 1_000_000)
	case "start":
		return c.duration(&j.Start, 0)
	case "leave":
		return c.duration(&j.Leave, j.Start+1)
	case "prefetch":
		return c.whole(&j.Prefetch, 64)
	case "order":
		check := ScenarioJob{}
		if err := check.setOrder(c.value); err != nil || check.rival != "" {
			return c.bad(nearest.DidYouMean(c.value, []string{"fixed", "strict", "stratified", "epoch"}))
		}
		j.Order = c.value
	case "share":
		if c.value != "none" && c.value != "augmented" {
			return c.bad("write none or augmented")
		}
		j.Share = c.value == "augmented"
	default:
		return errs.New(errs.Invalid, attr, nearest.DidYouMean(attr, jobKeys), "unknown change %.40q of job %s", attr, j.Name)
	}
	return nil
}
