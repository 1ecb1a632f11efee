package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"larder/bench"
	"larder/bench/policysim"
	"larder/bench/report"
	"larder/bench/systems"
	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/tiers/tinylfu"
)

// policyFlags are the flags of larder bench policy.
type policyFlags struct {
	out                                       outputFlag
	trace, scenario, format, export, policies string
	cache, maxMemory                          string
	warm                                      int
	seed                                      uint64
	unitSize, progress                        bool
	systems                                   string
	readTime, prepTime, maxTime               time.Duration

	left []string // what replay had to leave out
}

func newBenchPolicy() *cobra.Command {
	f := &policyFlags{}
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Compare cache policies on a trace or a scenario",
		Long: `Replay a trace (--trace) or the requests of a scenario (--scenario) against cache policies at several cache
sizes. The result also shows no cache, an unlimited cache, and the lower bound that no order, policy or foresight can
beat. Where orders depend on what is in memory, every policy gets a sampler of its own. The same input gives the same
figures. docs/design/benchmarks.md explains the method, docs/policies.md the policies.`,
		Example: "  larder bench policy --scenario bench/scenarios/demand/staggered.yaml --cache 5%,20%,50%\n  larder " +
			"bench policy --trace week.ltrace --policies lru,minio,need -o html > policies.html",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.trace, "trace", "", "file of a trace")
	cmd.Flags().StringVar(&f.scenario, "scenario", "", "YAML of a scenario; - is standard input")
	cmd.Flags().StringVar(&f.format, "format", "",
		"format of --trace: larder, oracleGeneral or csv (default: by its name)")
	cmd.Flags().StringVar(&f.policies, "policies", "all",
		"policies to compare, with commas; all = those whose figures are the same every time, and more may stand beside "+
			"it: all,tinylfu")
	cmd.Flags().StringVar(&f.cache, "cache", "1%,5%,10%,20%,35%,50%,65%,80%",
		"cache sizes, with commas: % of what is asked for, or bytes (samples, when all have size 1)")
	cmd.Flags().IntVar(&f.warm, "warm", 0, "epochs of each job whose hits are not counted")
	cmd.Flags().Uint64Var(&f.seed, "seed", 1, "seed of policies that draw")
	cmd.Flags().BoolVar(&f.unitSize, "unit-size", false, "ignore the sizes of the trace")
	cmd.Flags().StringVar(&f.maxMemory, "max-memory", "4GiB", "refuse what would need more memory")
	cmd.Flags().StringVar(&f.export, "export", "",
		"only write the requests to this file; its suffix names the format (.csv, .oracleGeneral, else larder's)")
	cmd.Flags().BoolVar(&f.progress, "progress", false, "report progress on standard error")
	cmd.Flags().StringVar(&f.systems, "systems", "",
		"also run whole systems on the same demand: names with commas, or all")
	cmd.Flags().DurationVar(&f.readTime, "read-time", 200*time.Microsecond,
		"of --systems: storage time of a sample, shared by all jobs")
	cmd.Flags().DurationVar(&f.prepTime, "prep-time", 500*time.Microsecond,
		"of --systems: time of the worker pool for a sample")
	cmd.Flags().DurationVar(&f.maxTime, "max-virtual-time", 24*time.Hour, "of --systems: cut off jobs that never finish")
	f.out.register(cmd)
	cmd.Flags().Lookup("output").Usage = "table, json, yaml or html"
	return cmd
}

func (f *policyFlags) run(cmd *cobra.Command) error {
	html := f.out.form == "html"
	if !html {
		if err := f.out.check(); err != nil {
			return usagef("write -o table, -o json, -o yaml or -o html", "unknown output %q", f.out.form)
		}
	}
	if (f.trace == "") == (f.scenario == "") {
		return usagef("e.g. larder bench policy --scenario bench/scenarios/demand/staggered.yaml",
			"larder bench policy needs either --trace FILE or --scenario FILE")
	}
	limit, err := config.ParseSize(f.maxMemory)
	if err != nil || limit.IsPercent() || limit.IsAuto() {
		return usagef("e.g. --max-memory 4GiB", "--max-memory %q is not a number of bytes", f.maxMemory)
	}
	most := uint64(limit.Of(0))
	c := policysim.Config{Warm: f.warm, Seed: f.seed, MaxMemory: most, UnitSize: f.unitSize}
	if c.Policies, err = policyList(f.policies); err != nil {
		return err
	}
	if f.progress {
		c.Progress = progressTo(cmd.ErrOrStderr(), "policies")
	}
	out := &report.Policy{Kind: "policy", Facts: map[string]string{}}
	var r *policysim.Report
	if f.trace != "" {
		t, err := readTrace(f.trace, f.format, most)
		if err != nil {
			return err
		}
		if f.export != "" {
			return exportTrace(f.export, t)
		}
		if r, err = f.replay(cmd.Context(), t, c); err != nil {
			return err
		}
		out.Left = f.left
		if err := f.addSystems(cmd.Context(), t, out, cmd.ErrOrStderr()); err != nil {
			return err
		}
	} else {
		raw, d, err := readDemand(f.scenario, cmd.InOrStdin())
		if err != nil {
			return err
		}
		out.Facts["scenario"], out.Facts["xxhash64 of the scenario"] = f.scenario, fmt.Sprintf("%016x", xxhash.Sum64(raw))
		if r, out.Left, err = f.onDemand(cmd.Context(), d, c, out, cmd.ErrOrStderr()); err != nil {
			return err
		}
	}
	if r == nil { // exported
		return nil
	}
	out.Report = *r
	maps.Copy(out.Facts, machineFacts())
	if html {
		n, err := asNamed("policy.json", out)
		if err != nil {
			return err
		}
		return report.Write(cmd.OutOrStdout(), "Cache policies", []report.Named{*n}, out.Facts)
	}
	return f.out.value(cmd.OutOrStdout(), out, func(t *tabwriter.Writer) { policyTable(t, out) })
}

// policyList reads --policies; nil is all of the registry. Each policy runs once.
func policyList(list string) ([]string, error) {
	var out []string
	add := func(names ...string) {
		for _, p := range names {
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	for p := range strings.SplitSeq(list, ",") {
		switch p = strings.TrimSpace(p); {
		case p == "all":
			add(cachepolicy.Names()...)
		case p == "" || !tinylfu.Known(p):
			return nil, errs.New(errs.Invalid, "policies", cachepolicy.Hint(p, append(tinylfu.Names(), "all")),
				"unknown cache policy %.40q", p)
		default:
			add(p)
		}
	}
	if slices.Equal(out, cachepolicy.Names()) {
		return nil, nil
	}
	return out, nil
}

func (f *policyFlags) replay(ctx context.Context, t *trace.Trace, c policysim.Config) (*policysim.Report, error) {
	bytes, unique := t.Bytes()
	if f.unitSize || t.Sizes == nil {
		bytes = int64(unique)
	}
	var err error
	if c.Caches, err = capacities(f.cache, bytes); err != nil {
		return nil, err
	}
	if slices.Contains(c.Policies, "belady") || len(c.Policies) == 0 {
		return policysim.Run(t, c, ctx.Err)
	}
	// Foresight is always there to compare with, unless it is what does not fit.
	with := c
	with.Policies = append(slices.Clone(c.Policies), "belady")
	r, err := policysim.Run(t, with, ctx.Err)
	if errs.Is(err, errs.ResourceExceeded) {
		f.left = []string{"belady (with it the run would not fit --max-memory)"}
		return policysim.Run(t, c, ctx.Err)
	}
	return r, err
}

// onDemand runs a scenario: as a trace where orders do not depend on the cache, else with a sampler for each policy.
func (f *policyFlags) onDemand(ctx context.Context, d *bench.Demand, c policysim.Config, out *report.Policy,
	stderr io.Writer) (r *policysim.Report, left []string, err error) {
	var t *trace.Trace
	if d.Spec != nil {
		t, err = trace.Generate(*d.Spec, c.MaxMemory)
	} else if _, ok := d.Scenario.Looks(); ok || f.export != "" || f.systems != "" {
		t, err = d.Scenario.Trace(c.MaxMemory, ctx.Err)
	}
	if err != nil {
		return nil, nil, err
	}
	if f.export != "" {
		return nil, nil, exportTrace(f.export, t)
	}
	if t != nil {
		if err := f.addSystems(ctx, t, out, stderr); err != nil {
			return nil, nil, err
		}
		if _, ok := t.Prescribed(); ok {
			r, err = f.replay(ctx, t, c)
			return r, f.left, err
		}
	}
	if f.warm > 0 {
		return nil, nil, usagef("leave --warm out, or give all jobs order fixed or independent",
			"--warm is for requests that do not depend on the cache")
	}
	if c.Caches, err = capacities(f.cache, int64(d.Scenario.Samples)); err != nil {
		return nil, nil, err
	}
	return bench.RunPolicies(d.Scenario, c, ctx.Err)
}

// addSystems runs whole systems on the demand of a trace, as many at once as there are cores.
func (f *policyFlags) addSystems(ctx context.Context, t *trace.Trace, out *report.Policy, stderr io.Writer) error {
	if f.systems == "" {
		return nil
	}
	if f.readTime < 0 || f.prepTime < 0 || f.maxTime <= 0 {
		return usagef("e.g. --read-time 200us --prep-time 500us --max-virtual-time 24h",
			"a time of the systems is negative, or virtual time ends at once")
	}
	names := systems.Names()
	if f.systems != "all" {
		names = strings.Split(f.systems, ",")
	}
	for i, n := range names {
		names[i] = strings.TrimSpace(n)
		if systems.About(names[i]) == "" {
			return errs.New(errs.Invalid, "systems", nearest.DidYouMean(names[i], systems.Names()), "unknown system %.40q",
				names[i])
		}
	}
	_, unique := t.Bytes()
	caches, err := capacities(f.cache, int64(unique))
	if err != nil {
		return err
	}
	rows := make([]report.SystemRow, len(names)*len(caches))
	tick := func(int, int) {}
	if f.progress {
		tick = progressTo(stderr, "systems")
	}
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for ci, cache := range caches {
		w, err := systems.FromTrace(t, int(cache), f.readTime.Seconds(), f.prepTime.Seconds(), f.seed)
		if err != nil {
			return err
		}
		w.Limit = f.maxTime.Seconds()
		for i, name := range names {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				row := report.SystemRow{System: name, Cache: cache}
				r, err := systems.Run(name, w)
				switch {
				case errs.Is(err, errs.Unsupported):
					row.Unsupported = errs.From(err).Message
				case err != nil:
					return err
				default:
					row = r.Row(&w)
				}
				rows[ci*len(names)+i] = row
				tick(int(done.Add(1)), len(rows))
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	out.Systems = rows
	return nil
}

// progressTo writes a line for every twentieth of the work; it may be called by several goroutines at once.
func progressTo(w io.Writer, what string) func(done, all int) {
	var mu sync.Mutex
	shown := 0
	return func(done, all int) {
		mu.Lock()
		defer mu.Unlock()
		if p := 100 * done / max(1, all); p >= shown+5 {
			shown = p
			fmt.Fprintf(w, "%s: %d%%\n", what, p)
		}
	}
}

// leftOut says which policies could not run, and why.
func leftOut(names []string) string {
	s := strings.Join(names, ", ")
	if strings.HasSuffix(s, ")") {
		return s
	}
	return s + ": they need to know the future"
}

// capacities reads cache sizes; percentages are of all.
func capacities(list string, all int64) (out []int64, err error) {
	for word := range strings.SplitSeq(list, ",") {
		s, err := config.ParseSize(word)
		if err != nil || s.IsAuto() {
			return nil, usagef("e.g. --cache 1%,5%,20% or --cache 64MiB", "--cache: %q is not a size", strings.TrimSpace(word))
		}
		out = append(out, s.Of(all))
	}
	if len(out) > policysim.MaxCaches {
		return nil, usagef("name fewer sizes", "--cache has %d sizes, the limit is %d", len(out), policysim.MaxCaches)
	}
	return slices.Compact(slices.Sorted(slices.Values(out))), nil
}

func readTrace(path, format string, maxMemory uint64) (*trace.Trace, error) {
	if format == "" {
		format = trace.FormatOf(path)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.NotFound, path, "check the path", "read the trace").Because(err)
	}
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the trace").Because(err)
	}
	defer f.Close()
	return trace.Import(f, path, format, maxMemory)
}

// exportTrace writes a trace under another name first, so that a failure leaves nothing that looks like one.
func exportTrace(path string, t *trace.Trace) error {
	wrap := func(err error) error {
		return errs.New(errs.Invalid, path, "check the folder, its rights and its space", "write the trace").Because(err)
	}
	part := path + ".part"
	f, err := os.Create(part)
	if err != nil {
		return wrap(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = errors.Join(trace.Export(w, t, trace.FormatOf(path)), w.Flush(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		os.Remove(part)
		return wrap(err)
	}
	return nil
}

// readDemand reads the YAML of a scenario; "-" is stdin.
func readDemand(path string, stdin io.Reader) (raw []byte, d *bench.Demand, err error) {
	name, r := path, stdin
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, errs.New(errs.NotFound, path, "check the path; bench/scenarios has some", "read the scenario").
				Because(err)
		}
		if err != nil {
			return nil, nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the scenario").Because(err)
		}
		defer f.Close()
		r = f
	}
	raw, err = io.ReadAll(io.LimitReader(r, bench.MaxScenario+1))
	if err != nil {
		return nil, nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the scenario").Because(err)
	}
	d, err = bench.ParseDemand(name, raw)
	return raw, d, err
}

// machineFacts are what a reader must know of where figures were made.
func machineFacts() map[string]string {
	facts := map[string]string{"larder": version, "go": runtime.Version(), "system": runtime.GOOS + "/" + runtime.GOARCH,
		"cores": fmt.Sprint(runtime.GOMAXPROCS(0))}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.SplitSeq(string(raw), "\n") {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				facts["processor"] = strings.TrimSpace(v)
				break
			}
		}
	}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		facts["load when it ended"], _, _ = strings.Cut(string(raw), " ")
	}
	return facts
}

func policyTable(t *tabwriter.Writer, r *report.Policy) {
	row(t, "trace", r.Trace)
	row(t, "requests", fmt.Sprintf("%s of %d jobs for %s samples", count(r.Requests), len(r.Jobs), count(r.Unique)))
	row(t, "counted", fmt.Sprintf("%s, after %d epochs of each job", count(r.Counted), r.Warm))
	if !r.Prescribed {
		row(t, "orders", fmt.Sprintf("that of job %s is decided by what is in memory", clip(r.LooksJob, 30)))
	}
	if r.Repeats {
		row(t, "lower bound", "only what must be loaded at all: jobs ask for samples twice in an epoch")
	}
	if len(r.Left) > 0 {
		row(t, "left out", leftOut(r.Left))
	}
	fmt.Fprintln(t)
	row(t, "POLICY", "CACHE", "SHARE", "HITS", "HIT RATIO", "LOADS", "PER UNIQUE", "OVER THE BOUND", "JAIN")
	for i := range r.Rows {
		x := &r.Rows[i]
		name := x.Policy
		if x.Breaks != "" {
			name += " *"
		}
		row(t, name, count(x.Cache), fmt.Sprintf("%.1f%%", 100*x.Share), count(x.Hits), fmt.Sprintf("%.4f", x.HitRatio),
			count(x.Loads), fmt.Sprintf("%.3f", x.PerUnique), fmt.Sprintf("%.3f", x.OverBound), fmt.Sprintf("%.3f", x.Jain))
	}
	if len(r.Systems) > 0 {
		fmt.Fprintln(t)
		row(t, "SYSTEM", "CACHE", "READS", "PREPARED", "DELIVERED", "HIT RATIO", "COVERAGE", "REPEATED", "EXACTLY ONCE",
			"MAKESPAN", "JAIN")
		for _, x := range r.Systems {
			if x.Unsupported != "" {
				row(t, x.System, count(x.Cache), "-", "-", count(x.Delivered), "-", "-", "-", "-", "-",
					"unsupported: "+x.Unsupported)
				continue
			}
			row(t, x.System, count(x.Cache), count(x.Loads), count(x.Preps), count(x.Delivered), fmt.Sprintf("%.4f", x.HitRatio),
				fmt.Sprintf("%.3f", x.Coverage), count(x.Repeated),
				map[bool]string{true: "yes", false: "NO"}[x.ExactlyOnce], fmt.Sprintf("%.2f s", x.Makespan),
				fmt.Sprintf("%.3f", x.Jain))
		}
	}
	if slices.ContainsFunc(r.Rows, func(x policysim.Row) bool { return x.Breaks != "" }) {
		fmt.Fprintln(t)
		row(t, "* breaks an order promise in a daemon: docs/policies.md")
	}
}
