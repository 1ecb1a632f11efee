// Package live runs scenarios (bench.Live) for real: a daemon of its own on real files, clients that work on a batch
// for as long as the scenario says, storage held to the scenario's limit. What it measures has the same form as what
// the simulator says of the same scenario (bench/measure), and Compare puts both beside each other.
//
// It starts no daemon itself: who calls it says how (Starter). The scripts beside it measure single things in Python.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"larder/bench"
	"larder/bench/coresim"
	"larder/bench/measure"
	"larder/client"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/imagegen"
	"larder/internal/prep"
	"larder/internal/profile"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// Daemon is a daemon that runs.
type Daemon interface {
	Socket() string
	// Kill ends it by SIGKILL, and returns what it used.
	Kill() (Usage, error)
	// Stop ends it and returns what it used.
	Stop() (Usage, error)
}

// Usage is what a process used in its life.
type Usage struct {
	CPU     time.Duration
	PeakRSS int64 // bytes
}

// and is what two processes used, one after the other.
func (u Usage) and(o Usage) Usage {
	return Usage{CPU: u.CPU + o.CPU, PeakRSS: max(u.PeakRSS, o.PeakRSS)}
}

// Starter starts larder serve with a configuration file; the daemon's files belong into dir, which may hold those of
// one that was killed.
type Starter func(ctx context.Context, dir, config string) (Daemon, error)

// Setup is a scenario that is ready to be run.
type Setup struct {
	Live    *bench.Live
	World   *coresim.World // the same for the simulator, with the machine as it was measured
	URI     string
	Profile *profile.Profile
	Torch   *Torch // nil = clients sleep for their steps

	dir  string
	runs int
}

// Options of Prepare.
type Options struct {
	Dir     string  // an empty folder for pictures, sockets and logs
	Seconds float64 // of measuring the machine; at least 1
	Report  func(format string, args ...any)
}

// maxShapes is how many images are looked at for their decoded size; of a larger dataset the others have the mean part.
const maxShapes = 4096

// Prepare draws the pictures, or opens the dataset, and measures what the simulator must know: sizes, and the costs of
// the scenario's recipe. The errors are those of the dataset, of the profile and of the scenario's subsets.
func Prepare(ctx context.Context, l *bench.Live, o Options) (*Setup, error) {
	if o.Report == nil {
		o.Report = func(string, ...any) {}
	}
	s := &Setup{Live: l, URI: l.URI, dir: o.Dir}
	if s.URI == "" {
		root := filepath.Join(o.Dir, "photos")
		o.Report("drawing %d pictures", l.Samples)
		if _, err := imagegen.Draw(ctx, root, imagegen.Spec{Seed: l.Seed, Samples: l.Samples, Shrink: l.Shrink},
			nil); err != nil {
			return nil, err
		}
		s.URI = "imagefolder:" + root
	}
	cat, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer cat.Close()
	data, err := cat.Open(ctx, s.URI)
	if err != nil {
		return nil, err
	}
	recipe, err := recipeOf(l.Jobs[0].Crop)
	if err != nil {
		return nil, err
	}
	decoded, err := shapes(ctx, cat, data, recipe)
	if err != nil {
		return nil, err
	}
	workers := l.Machine.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	o.Report("measuring the machine for %.0f s", o.Seconds)
	if s.Profile, err = profile.Run(ctx, profile.Config{URI: s.URI, Recipe: recipe, Seconds: max(1, o.Seconds),
		Workers: workers}); err != nil {
		return nil, err
	}
	if s.World, err = l.World(data, decoded, machine(s.Profile, workers)); err != nil {
		return nil, err
	}
	if slices.Contains(s.World.Sizes, 0) {
		return nil, errs.New(errs.DatasetUnread, s.URI, "larder dataset inspect shows samples",
			"the dataset %s has empty files", s.URI)
	}
	return s, nil
}

// machine is what a profile says. Costs are by the wall clock of all workers, so that other work on the machine counts
// as it will while the daemon runs; drawn or warm files are read from the page cache, which no profile of cold storage
// describes.
func machine(p *profile.Profile, workers int) bench.LiveMachine {
	cores := min(workers, runtime.GOMAXPROCS(0))
	cost := func(rate float64) time.Duration { return time.Duration(float64(cores) / rate * float64(time.Second)) }
	m := bench.LiveMachine{Workers: workers, Cores: cores, Memory: int64(p.Memory), Latency: 50 * time.Microsecond,
		Decode: bench.Cost{Mean: cost(p.Rates.Decode), ByBytes: true}, Augment: bench.Cost{Mean: cost(p.Rates.Augment)},
		Finish: cost(p.Rates.Finish)}
	m.InPlace = min(1.5, float64(cost(p.Rates.DecodeAugment))/float64(m.Decode.Mean+m.Augment.Mean))
	return m
}

func recipeOf(crop int) (*prep.Recipe, error) {
	return prep.ParseRecipe([]prep.OpSpec{{Name: "RandomResizedCrop", Args: map[string]any{"size": float64(crop)}},
		{Name: "RandomHorizontalFlip"}})
}

// shapes returns the decoded size of each sample, from the headers of the files.
func shapes(ctx context.Context, cat *source.Catalog, data *source.Dataset,
	recipe *prep.Recipe) (func(ident.SampleID) int64, error) {
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	known := make([]int64, min(data.Len(), maxShapes))
	stored, decoded := 0.0, 0.0
	var buf []byte
	for i := range known {
		b, err := cat.Read(ctx, data.Object(ident.SampleID(i)), buf[:0])
		if err != nil {
			return nil, err
		}
		buf = b
		_, _, size, err := w.DecodedShape(recipe, b)
		if err != nil {
			return nil, errs.New(errs.SampleBad, data.Key(ident.SampleID(i)), "larder dataset inspect shows samples; "+
				"benchmarks want images that are whole", "read the size of an image").Because(err)
		}
		known[i] = int64(size)
		stored, decoded = stored+float64(len(b)), decoded+float64(known[i])
	}
	return func(s ident.SampleID) int64 {
		if int(s) < len(known) {
			return known[s]
		}
		return int64(float64(data.Bytes(s)) * decoded / max(1, stored))
	}, nil
}

// Run starts a daemon, lets all jobs train, and stops it.
func (s *Setup) Run(ctx context.Context, start Starter, label string) (r *measure.Run, err error) {
	s.runs++
	dir := filepath.Join(s.dir, fmt.Sprint("r", s.runs))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errs.New(errs.ResourceExceeded, s.dir, "set TMPDIR to a folder that can be written",
			"make a folder for the daemon").Because(err)
	}
	file := filepath.Join(dir, "larder.yaml")
	if err := os.WriteFile(file, []byte(s.config(dir)), 0o600); err != nil {
		return nil, errs.New(errs.ResourceExceeded, file, "set TMPDIR to a folder that can be written",
			"write the daemon's configuration").Because(err)
	}
	d, err := start(ctx, dir, file)
	if err != nil {
		return nil, err
	}
	if err := s.index(ctx, d.Socket()); err != nil {
		_, stopped := d.Stop()
		return nil, errors.Join(err, stopped)
	}
	own, machine := processTime(), busy()
	run := &running{s: s, socket: d.Socket(), start: make(chan struct{}), began: time.Now(),
		collect: measure.New(measure.Samples{Count: s.World.Objects,
			Size: func(x uint32) int64 { return int64(s.World.Sizes[x]) }, Label: func(x uint32) int {
				return int(s.World.Labels[x])
			}})}
	r = &measure.Run{Source: measure.Measured, Label: label, Seed: s.World.Seed}
	if s.Live.Kill > 0 {
		run.death = newDeath(s, d, func(ctx context.Context) (Daemon, error) { return start(ctx, dir, file) })
	}
	err = run.all(ctx, r)
	clients := processTime() - own + run.children
	use, stopped := run.stop(d)
	if err := errors.Join(err, stopped); err != nil {
		return nil, err
	}
	r.CPU = &measure.CPU{Daemon: use.CPU.Seconds(), Clients: clients.Seconds(), PeakRSS: use.PeakRSS,
		Others: machine.others(clients + use.CPU)}
	if r.Counts.Samples > 0 {
		r.CPU.PerThousand = 1000 * (use.CPU + clients).Seconds() / float64(r.Counts.Samples)
	}
	return r, os.RemoveAll(dir)
}

// index lets the daemon walk the dataset before the clock runs: a simulated one knows it from the beginning.
func (s *Setup) index(ctx context.Context, socket string) error {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Call(ctx, "AddDataset", &larderv1.AddDatasetRequest{Name: "bench", Uri: s.URI},
		new(larderv1.AddDatasetResponse))
}

// config is the daemon's configuration file.
func (s *Setup) config(dir string) string {
	size := func(n int64) string {
		if n < 0 {
			return "auto"
		}
		return fmt.Sprint(n)
	}
	l, m := s.Live, s.Live.Machine
	t := l.Tiers
	text := fmt.Sprintf("tiers:\n  total: %s\n  encoded: %s\n  decoded: %s\n  augmented: %s\n", size(t.Total),
		size(t.Sizes[ident.Encoded]), size(t.Sizes[ident.Decoded]), size(t.Sizes[ident.Augmented]))
	if t.Model != "" {
		text += fmt.Sprintf("  model: %s\n", t.Model)
	}
	var policy strings.Builder
	for f := ident.Encoded; f < ident.NumForms; f++ {
		if t.Policy[f] != "" {
			fmt.Fprintf(&policy, "    %s: %s\n", f, t.Policy[f])
		}
	}
	if policy.Len() > 0 {
		text += "  policy:\n" + policy.String()
	}
	text += fmt.Sprintf("source:\n  index_dir: %q\n", filepath.Join(dir, "index"))
	if m.Bandwidth > 0 {
		text += fmt.Sprintf("  storage_limit: %d\n", m.Bandwidth)
	}
	if m.IOPS > 0 {
		text += fmt.Sprintf("  storage_iops: %d\n", m.IOPS)
	}
	state := "none"
	if s.Live.Kill > 0 {
		state = strconv.Quote(filepath.Join(dir, "state"))
	}
	return text + fmt.Sprintf("prep: {workers: %d}\nstate: {dir: %s}\nlog: {level: warn}\n", s.World.Workers, state)
}

// running is a run in progress.
type running struct {
	s       *Setup
	socket  string
	began   time.Time
	mu      sync.Mutex // guards collect
	collect *measure.Collector

	death    *death        // nil where the daemon is not killed
	children time.Duration // processor time of clients that are processes
	ready    int           // of these
	start    chan struct{} // closed when all are
}

func (r *running) now() time.Duration { return time.Since(r.began) }

// record calls f with the Collector and the time.
func (r *running) record(f func(c *measure.Collector, at time.Duration)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.collect, r.now())
}

func (r *running) all(ctx context.Context, out *measure.Run) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	problems := make([]error, len(r.s.World.Jobs))
	var wg sync.WaitGroup
	while := r.watch(ctx, cancel)
	for i := range r.s.World.Jobs {
		wg.Go(func() {
			work := r.job
			if r.s.Torch != nil {
				work = r.train
			}
			if problems[i] = work(ctx, i); problems[i] != nil {
				cancel() // the others would continue for nothing
			}
		})
	}
	wg.Wait()
	failed, late := while()
	if failed != nil {
		return failed
	}
	for _, err := range problems { // the first one that is not only canceled
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	if errors.Join(problems...) != nil {
		return context.Canceled // all of them were canceled
	}
	if late != nil {
		return late
	}
	stats, err := statsOf(ctx, r.socket)
	if err != nil {
		return err
	}
	r.death.addTo(stats)
	n := stats.GetTotals()
	out.Counts = measure.Counts{SourceReads: n.GetSourceReads(), SourceBytes: n.GetSourceBytes(), Decodes: n.GetDecodes(),
		Augments: n.GetAugments(), Samples: n.GetSamplesDelivered(),
		Batches: n.GetBatchesDelivered(), Quarantined: n.GetQuarantined()}
	for _, t := range stats.GetTiers() {
		out.Tiers = append(out.Tiers, measure.Tier{Form: t.GetForm(), Policy: t.GetPolicy(), Budget: int64(t.GetBudget()),
			Peak: int64(t.GetUsed()), Hits: t.GetHits(), Evictions: t.GetEvictions()})
	}
	r.collect.Finish(out, r.s.World.Capacity())
	for _, j := range stats.GetJobs() {
		k := slices.IndexFunc(out.Jobs, func(o measure.Job) bool { return o.Name == j.GetSpec().GetName() })
		if n := j.GetCounters(); k >= 0 {
			hits := n.GetHits()
			out.Jobs[k].Count(n.GetSourceReads(), n.GetDecodes(), n.GetAugments(), measure.Hits{Encoded: hits["encoded"],
				Decoded: hits["decoded"], Augmented: hits["augmented"]})
		}
	}
	return r.death.report(out, stats)
}

// wait sleeps until a time of the run; false when ctx ended.
func (r *running) wait(ctx context.Context, until time.Duration) error {
	d := until - r.now()
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// job is one training run from its start to its end.
func (r *running) job(ctx context.Context, i int) error {
	j := &r.s.World.Jobs[i]
	if err := r.wait(ctx, j.Start); err != nil {
		return err
	}
	number := 0
	r.record(func(c *measure.Collector, at time.Duration) { number = c.Register(at, r.s.World.Demand(i)) })
	spec, err := r.s.Spec(i)
	if err != nil {
		return err
	}
	var c *client.Conn
	err = r.retry(ctx, func() (err error) {
		if c, err = client.Dial(ctx, r.socket); err != nil {
			return err
		}
		if err = c.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: spec},
			new(larderv1.RegisterJobResponse)); err != nil {
			_ = c.Close() // the failure itself is returned
		}
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	ranks := max(1, j.Ranks)
	problems := make([]error, ranks)
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() { problems[rank] = r.rank(ctx, i, number, rank) })
	}
	wg.Wait()
	r.record(func(c *measure.Collector, at time.Duration) { c.Leave(number, at) })
	return errors.Join(problems...)
}

// Spec is a job as the daemon is asked for it.
func (s *Setup) Spec(i int) (*larderv1.JobSpec, error) {
	j, l := &s.World.Jobs[i], &s.Live.Jobs[i]
	size, err := structpb.NewStruct(map[string]any{"size": l.Crop})
	if err != nil {
		return nil, fmt.Errorf("make the recipe of job %s: %w", j.Name, err)
	}
	spec := &larderv1.JobSpec{Name: j.Name, Dataset: s.URI, Subset: l.Expr, BatchSize: uint32(j.Batch),
		Shuffle: j.Order != "", Order: j.Order, Seed: j.Seed, DropLast: j.DropLast,
		WorldSize: uint32(max(1, j.Ranks)), Prefetch: uint32(j.Prefetch), Epochs: uint32(j.Epochs), Share: "none",
		Transform: []*larderv1.Op{{Name: "RandomResizedCrop", Args: size}, {Name: "RandomHorizontalFlip"}}}
	if j.Share {
		spec.Share = "augmented"
	}
	return spec, nil
}

// rank is one process of a job: it takes batches, works on each, and gives it back.
func (r *running) rank(ctx context.Context, i, number, rank int) error {
	j := &r.s.World.Jobs[i]
	h := &hold{r: r, job: j.Name, rank: rank}
	defer h.close()
	if err := r.retry(ctx, func() error { return h.attach(ctx) }); err != nil {
		return err
	}
	leaving := ctx
	if j.Leave > 0 {
		var cancel context.CancelFunc
		leaving, cancel = context.WithDeadline(ctx, r.began.Add(j.Leave))
		defer cancel()
	}
	got := 0
	var ids []uint32
	for epoch := range j.Epochs {
		asked := r.now()
		r.record(func(c *measure.Collector, at time.Duration) { c.Begin(number, at, uint32(epoch)) })
		if err := h.begin(leaving, uint32(epoch)); err != nil {
			return left(ctx, leaving, h, err)
		}
		bad := 0
		for step := uint32(0); ; step++ {
			b, err := h.next(leaving, uint32(epoch), step)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return left(ctx, leaving, h, err)
			}
			bad += len(b.Report())
			ids = ids[:0]
			for _, x := range b.Index() {
				ids = append(ids, uint32(x))
			}
			r.record(func(c *measure.Collector, at time.Duration) {
				c.Batch(number, at, uint32(epoch), at-asked, ids)
				r.death.saw(i, rank, at, len(ids), h.again)
			})
			begun := r.now()
			// The training step: the processor is free meanwhile, as it is while an accelerator works.
			if err := r.wait(leaving, begun+j.StepAt(r.s.World.Seed, rank, got)); err != nil {
				b.Release()
				return left(ctx, leaving, h, err)
			}
			got++
			asked = r.now()
			r.record(func(c *measure.Collector, _ time.Duration) { c.Step(number, asked-begun) })
			b.Release()
		}
		dropped := 0
		if spec := j.Spec(); rank == 0 {
			dropped = spec.Dropped()
		}
		r.record(func(c *measure.Collector, at time.Duration) { c.End(number, at, uint32(epoch), bad, dropped) })
	}
	return h.detach(ctx)
}

// left ends a client whose time to leave has come; any other error stays one.
func left(ctx, leaving context.Context, h *hold, err error) error {
	if ctx.Err() == nil && leaving.Err() != nil {
		return h.detach(ctx)
	}
	return err
}

// processTime is the processor time of this process so far.
func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
