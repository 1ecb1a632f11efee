package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/spf13/cobra"

	"larder/bench"
	"larder/bench/coresim"
	live "larder/bench/measure"
	"larder/internal/config"
	"larder/internal/errs"
)

// simFlags are the flags of commands that simulate.
type simFlags struct {
	maxMemory string
	maxTime   time.Duration
	progress  bool
}

func (f *simFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.maxMemory, "max-memory", "4GiB", "refuse what would need more memory to simulate")
	cmd.Flags().DurationVar(&f.maxTime, "max-virtual-time", 30*24*time.Hour, "end jobs that never finish")
	cmd.Flags().BoolVar(&f.progress, "progress", false,
		"report progress on standard error (on a terminal always, after 2 s)")
}

// options are how to simulate.
func (f *simFlags) options(ctx context.Context, stderr io.Writer) (coresim.Options, error) {
	var o coresim.Options
	limit, err := config.ParseSize(f.maxMemory)
	if err != nil || limit.IsPercent() || limit.IsAuto() {
		return o, usagef("e.g. --max-memory 4GiB", "--max-memory %q is not a number of bytes", f.maxMemory)
	}
	if f.maxTime <= 0 {
		return o, usagef("e.g. --max-virtual-time 24h", "--max-virtual-time %v is no time", f.maxTime)
	}
	o.MaxMemory, o.MaxTime = limit.Of(0), f.maxTime
	begun, lastReport := time.Now(), time.Now()
	show := f.progress || isTerminal(stderr)
	o.Progress = func(now time.Duration, samples, of uint64) error {
		if show && time.Since(begun) > 2*time.Second && time.Since(lastReport) > time.Second {
			lastReport = time.Now()
			fmt.Fprintf(stderr, "%d%% of %s samples, %v of virtual time\n", 100*samples/max(of, 1), count(of),
				now.Round(time.Second))
		}
		return ctx.Err()
	}
	return o, nil
}

func newBenchSim() *cobra.Command {
	var out outputFlag
	var sim simFlags
	var scenario, traceFile string
	var changes []string
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate jobs, tiers, storage and cores with the daemon's own coordinator",
		Long: `Run the jobs of a scenario (bench/scenarios/live) or of a recorded trace (larder trace record) in virtual
time. The daemon's own coordinator, sampler and policies decide; storage, cores, memory and training are models. One
seed gives one run, decision for decision. What the scenario does not say about the machine comes from --change
machine.…, or has usual values. docs/design/benchmarks.md explains the method, docs/format/live.md the output.`,
		Example: "  larder bench sim --scenario bench/scenarios/live/sweep.yaml\n  larder bench sim --trace week.ltrace " +
			"--change tiers.total=16GiB -o json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if (scenario == "") == (traceFile == "") {
				return usagef("e.g. larder bench sim --scenario bench/scenarios/live/sweep.yaml",
					"larder bench sim needs either --scenario FILE or --trace FILE")
			}
			o, err := sim.options(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			r := &live.Result{Kind: live.Kind, Facts: machineFacts()}
			var w *coresim.World
			if scenario != "" {
				l, err := readLive(scenario, cmd.InOrStdin(), r)
				if err != nil {
					return err
				}
				if w, err = l.World(nil, nil, bench.DefaultMachine); err != nil {
					return err
				}
				r.Limits = l.Notes()
			} else {
				t, err := readTrace(traceFile, "", uint64(o.MaxMemory))
				if err != nil {
					return err
				}
				r.Scenario, r.Title = traceFile, t.Name
				if w, r.Limits, err = bench.FromTrace(t, bench.DefaultMachine); err != nil {
					return err
				}
			}
			for _, c := range changes {
				if err := bench.Change(w, c); err != nil {
					return err
				}
			}
			r.Seed, r.Changes, r.Limits = w.Seed, changes, append(r.Limits, w.Notes()...)
			run, err := simulate(w, o, "simulated")
			if err != nil {
				return err
			}
			r.Runs = append(r.Runs, *run)
			if err := out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { liveTable(t, r) }); err != nil {
				return err
			}
			return runFailed(r)
		},
	}
	cmd.Flags().StringVar(&scenario, "scenario", "", "YAML of a scenario with jobs, steps and tiers; - is standard input")
	cmd.Flags().StringVar(&traceFile, "trace", "", "file of a trace")
	cmd.Flags().StringArrayVar(&changes, "change", nil,
		"change one thing first, e.g. tiers.total=16GiB, jobs.a.speed=2x; may be given several times")
	sim.register(cmd)
	out.register(cmd)
	return cmd
}

// simulate runs a world and times it.
func simulate(w *coresim.World, o coresim.Options, label string) (*live.Run, error) {
	begun := time.Now()
	r, err := w.Run(o)
	if err != nil {
		return nil, err
	}
	r.Label, r.WallSeconds = label, time.Since(begun).Seconds()
	return r, nil
}

// simulateAll runs worlds, as many at once as there are cores and as fit the limit of memory together; o.Progress
// hears of all of them. The results are in their order, and so is the error: a later world's is only reported when no
// earlier one has any.
func simulateAll(worlds []*coresim.World, labels []string, o coresim.Options) ([]live.Run, error) {
	most, of := int64(1), uint64(0)
	for i, w := range worlds { // all are refused before any is run
		if err := w.Check(o); err != nil {
			return nil, fmt.Errorf("%s: %w", labels[i], err)
		}
		most, of = max(most, w.Estimate()), of+w.Requests()
	}
	at := min(runtime.GOMAXPROCS(0), len(worlds))
	if o.MaxMemory > 0 {
		at = max(1, int(min(int64(at), o.MaxMemory/most)))
	}
	var mu sync.Mutex
	next, failed, done := 0, len(worlds), make([]uint64, len(worlds))
	runs, problems := make([]live.Run, len(worlds)), make([]error, len(worlds))
	one := func(i int) error {
		own := o
		own.Progress = func(now time.Duration, samples, _ uint64) error {
			mu.Lock()
			defer mu.Unlock()
			done[i] = samples
			if i > failed {
				return context.Canceled
			}
			all := uint64(0)
			for _, n := range done {
				all += n
			}
			if o.Progress == nil {
				return nil
			}
			return o.Progress(now, all, of)
		}
		r, err := simulate(worlds[i], own, labels[i])
		if err != nil {
			return err
		}
		runs[i] = *r
		return nil
	}
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := i >= len(worlds) || i > failed
				mu.Unlock()
				if stop {
					return
				}
				err := one(i)
				mu.Lock()
				if problems[i] = err; err != nil {
					failed = min(failed, i)
				}
				done[i] = worlds[i].Requests()
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed < len(worlds) {
		return nil, problems[failed]
	}
	return runs, nil
}

// runFailed is an error when a run found a bug of larder, or lost a sample: what was printed counts nothing then.
func runFailed(r *live.Result) error {
	for i := range r.Runs {
		if x := &r.Runs[i]; len(x.Failures) > 0 {
			return errs.New(errs.Internal, r.Scenario, "please report it with the scenario", "%s run %q: %s", x.Source, x.Label,
				x.Failures[0])
		} else if !x.ExactlyOnce {
			return errs.New(errs.Internal, r.Scenario, "please report it with the scenario",
				"%s run %q: some job did not get every sample exactly once", x.Source, x.Label)
		} else if v := x.Recovery; v != nil && v.LedgerLost != 0 {
			return errs.New(errs.Internal, r.Scenario, "please report it with the scenario",
				"%s run %q: by the account of the daemon %d samples are missing", x.Source, x.Label, v.LedgerLost)
		}
	}
	return nil
}

// readLive reads a scenario with a machine, and notes what it is in r.
func readLive(path string, stdin io.Reader, r *live.Result) (*bench.Live, error) {
	name, raw, err := readScenarioFile(path, stdin)
	if err != nil {
		return nil, err
	}
	l, err := bench.ParseLive(name, raw)
	if err != nil {
		return nil, err
	}
	r.Scenario, r.Title, r.Seed = path, l.Purpose, l.Seed
	maps.Copy(r.Facts, map[string]string{"scenario": path,
		"xxhash64 of the scenario": fmt.Sprintf("%016x", xxhash.Sum64(raw))})
	return l, nil
}

func readScenarioFile(path string, stdin io.Reader) (name string, raw []byte, err error) {
	name, r := path, stdin
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			reason := errs.Invalid
			if os.IsNotExist(err) {
				reason = errs.NotFound
			}
			return "", nil, errs.New(reason, path, "check the path and its rights; bench/scenarios/live has some",
				"read the scenario").Because(err)
		}
		defer f.Close()
		r = f
	}
	if raw, err = io.ReadAll(io.LimitReader(r, bench.MaxScenario+1)); err != nil {
		return "", nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the scenario").Because(err)
	}
	return name, raw, nil
}

// liveTable prints runs beside each other, then the jobs of the last one.
func liveTable(t *tabwriter.Writer, r *live.Result) {
	if r.Title != "" {
		row(t, "scenario", clip(r.Title, 100))
	}
	for _, c := range r.Changes {
		row(t, "change", clip(c, 100))
	}
	fmt.Fprintln(t)
	row(t, "RUN", "SOURCE", "READS", "DECODES", "AUGMENTS", "SAMPLES", "READS/BOUND", "DECODES/BOUND", "MAKESPAN", "JAIN",
		"EXACTLY ONCE")
	for i := range r.Runs {
		x := &r.Runs[i]
		end := fmt.Sprintf("%.2f s", x.Makespan)
		if x.CutOff {
			end += " (cut off)"
		}
		row(t, clip(x.Label, 40), x.Source, count(x.Counts.SourceReads), count(x.Counts.Decodes), count(x.Counts.Augments),
			count(x.Counts.Samples), fmt.Sprintf("%.3f", x.OverBound.Reads),
			fmt.Sprintf("%.3f", x.OverBound.Decodes), end, fmt.Sprintf("%.3f", x.Jain),
			map[bool]string{true: "yes", false: "NO"}[x.ExactlyOnce])
	}
	for i := range r.Runs {
		x := &r.Runs[i]
		if i > 0 && x.Source == live.Measured && r.Runs[i-1].Source == live.Measured {
			continue // one of the repeats is enough for eyes
		}
		fmt.Fprintln(t)
		row(t, "JOB OF "+clip(x.Label, 30), "ORDER", "EPOCHS", "SAMPLES", "SAMPLES/S", "SPEED", "WAIT P50", "P99", "P99.9",
			"KS/LIMIT", "RHO", "SD/CHANCE OF MEANS", "AT LAGS 1, 2, 5, 20", "HITS")
		for k := range x.Jobs {
			j := &x.Jobs[k]
			sd, lags := "-", "-"
			if f := j.MeanPositions; f != nil {
				sd, lags = meansOf(&f.SD, &f.Chance), lagsOf(f.Lags)
			}
			row(t, clip(j.Name, 30), j.Order, count(j.Epochs), count(j.Samples), fmt.Sprintf("%.0f", j.Throughput),
				fmt.Sprintf("%.0f%%", 100*j.Speed), millis(j.Wait.P50), millis(j.Wait.P99), millis(j.Wait.P999),
				figureOver(j.Quality.PositionKS, j.Quality.PositionKSLimit), figureOf(j.Quality.EpochCorrelation), sd, lags,
				fmt.Sprintf("%.0f%%", 100*j.Hits.Rate))
		}
		if x.CPU != nil {
			row(t, "processor time", fmt.Sprintf("daemon %.2f s, clients %.2f s, %.3f s for 1,000 samples; others had %.0f%% "+
				"of the machine", x.CPU.Daemon, x.CPU.Clients, x.CPU.PerThousand, 100*x.CPU.Others))
		}
		if v := x.Recovery; v != nil {
			fast := ", they were not as fast again as before"
			if v.Back != nil {
				fast = fmt.Sprintf(", %.2f s until they were as fast as before", *v.Back)
			}
			row(t, "killed", fmt.Sprintf("at %.2f s; its successor was ready %.2f s later; from then on %.2f s to the first "+
				"batch of some job, %.2f s until all had one%s; %s lost, %s twice; its account of %s lacks %s", v.Killed, v.Down,
				v.First, v.All, fast, count(v.Lost), count(v.Repeated),
				plural(v.LedgerEpochs, "finished epoch", "finished epochs"), count(v.LedgerLost)))
		}
		if x.Events > 0 && x.WallSeconds > 0 {
			row(t, "simulated", fmt.Sprintf("%s events in %.1f s", count(x.Events), x.WallSeconds))
		}
	}
	if len(r.Errors) > 0 {
		fmt.Fprintln(t)
		row(t, "COUNT", "SIMULATED", "MEASURED", "ERROR", "ALLOWED", "")
		for _, e := range r.Errors {
			allowed := "-"
			if e.Allowed != nil {
				allowed = fmt.Sprintf("%.0f%%", 100**e.Allowed)
			}
			row(t, e.What, fmt.Sprintf("%.6g", e.Simulated), fmt.Sprintf("%.6g", e.Median), fmt.Sprintf("%+.1f%%", 100*e.Error),
				allowed, map[bool]string{true: "", false: "TOO MUCH"}[e.OK])
		}
	}
	for i, s := range r.Limits {
		if i == 0 {
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t, "* "+printable(s))
	}
}

func millis(seconds float64) string { return fmt.Sprintf("%.1f ms", 1e3*seconds) }

func figureOf(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *v)
}

func figureOver(v *float64, limit float64) string {
	if v == nil || limit == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v/limit)
}
