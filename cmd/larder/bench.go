package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/spf13/cobra"

	"larder/bench"
	"larder/bench/fair"
	"larder/internal/errs"
)

func init() { extraCommands = append(extraCommands, newBench) }

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Simulate and measure; needs no daemon",
		Example: "  larder bench sampler --scenario bench/scenarios/a.yaml",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newBenchSampler(), newBenchBound(), newBenchPolicy(), newBenchPrep(), newBenchCompare(),
		newBenchReport(), newBenchSim(), newBenchLive())
	return cmd
}

func newBenchSampler() *cobra.Command {
	var out outputFlag
	var file, order, policy string
	var cache, repeats int
	var progress bool
	cmd := &cobra.Command{
		Use:   "sampler",
		Short: "Simulate the samplers of jobs that share a cache",
		Long: `Simulate jobs that draw samples of unit size beside one cache, with the sampler and the policies of the daemon
or with one of the baselines (independent, joader, joader-as-released, ods, shared-order). The loads are compared with
lower bounds that no order and no cache can beat. The same file gives the same figures, except picks_per_second.
docs/sampler.md explains the file and the output.`,
		Example: "  larder bench sampler --scenario bench/scenarios/a.yaml\n  larder bench sampler --scenario " +
			"bench/scenarios/a.yaml --order joader --cache 1000 -o json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if file == "" {
				return usagef("e.g. larder bench sampler --scenario bench/scenarios/a.yaml",
					"larder bench sampler needs --scenario FILE")
			}
			raw, sc, err := readScenario(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			if progress {
				sc.Progress = progressTo(cmd.ErrOrStderr(), "picks")
			}
			if order != "" {
				if err := sc.SetOrder(order); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("cache") || policy != "" {
				n := sc.Cache
				if cmd.Flags().Changed("cache") {
					n = cache
				}
				if err := sc.SetCache(n, policy); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("repeats") {
				if err := sc.SetRepeats(repeats); err != nil {
					return err
				}
			}
			begun := time.Now()
			r, err := bench.RunSampler(sc, func() time.Duration { return time.Since(begun) }, cmd.Context().Err)
			if err != nil {
				return err
			}
			r.Facts = machineFacts()
			r.Facts["scenario"], r.Facts["xxhash64 of the scenario"], r.Facts["seed"] = file,
				fmt.Sprintf("%016x", xxhash.Sum64(raw)), fmt.Sprint(sc.Seed)
			return out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { samplerTable(t, r) })
		},
	}
	cmd.Flags().StringVar(&file, "scenario", "", "YAML of the scenario; - is standard input")
	cmd.Flags().StringVar(&order, "order", "", "give all shuffling jobs this order instead of the file's")
	cmd.Flags().IntVar(&cache, "cache", 0, "samples the cache holds, instead of the file's")
	cmd.Flags().StringVar(&policy, "policy", "", "policy of the cache, instead of the file's")
	cmd.Flags().IntVar(&repeats, "repeats", 0, "independent runs, instead of the file's")
	cmd.Flags().BoolVar(&progress, "progress", false, "report progress on standard error")
	out.register(cmd)
	return cmd
}

// readScenario reads the YAML of a scenario; "-" is stdin.
func readScenario(path string, stdin io.Reader) (raw []byte, sc *bench.Scenario, err error) {
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
	sc, err = bench.ParseScenario(name, raw)
	return raw, sc, err
}

func samplerTable(t *tabwriter.Writer, r *bench.SamplerReport) {
	row(t, "policy", r.Policy)
	if r.PolicyBreaks != "" {
		row(t, "it breaks", r.PolicyBreaks)
	}
	row(t, "requests", count(r.Requests))
	loads := count(r.Loads)
	if r.LoadsSD > 0 {
		loads += fmt.Sprintf(" ± %.1f in %d runs", r.LoadsSD, r.Repeats)
	}
	row(t, "loads", loads)
	row(t, "lower bound", fmt.Sprintf("%s (of whole windows: %s)", count(r.LowerBound), count(r.WindowsBound)))
	row(t, "ratio", fmt.Sprintf("%.3f", r.Ratio))
	row(t, "exactly once", map[bool]string{true: "yes", false: "NO"}[r.ExactlyOnce])
	row(t, "picks per second", perSecond(r.PicksPerSecond))
	fmt.Fprintln(t)
	row(t, "JOB", "ORDER", "REQUESTS", "LOADS", "EPOCHS", "OVERLAP OF QUARTERS", "RHO", "FURTHEST CELL",
		"SD/CHANCE OF MEANS", "AT LAGS 1, 2, 5, 20")
	for _, j := range r.Jobs {
		far, worst := "-", 0.0
		for _, c := range j.Cells {
			if c.SDOfMean == 0 {
				continue
			}
			if z := (c.MeanPosition - .5) / c.SDOfMean; far == "-" || max(z, -z) > worst {
				worst = max(z, -z)
				far = fmt.Sprintf("%.3f of %s (%.1f sd)", c.MeanPosition, count(c.Size), z)
			}
		}
		figure := func(v *float64) string {
			if v == nil {
				return "-"
			}
			return fmt.Sprintf("%.3f", *v)
		}
		row(t, clip(j.Name, 30), j.Order, count(j.Requests), count(j.Loads+j.Refills),
			fmt.Sprintf("%.4g", j.Epochs), figure(j.OverlapQ1), figure(j.Rho), far, meansOf(j.SDOfMeans, j.SDByChance),
			lagsOf(j.Lags))
	}
}

// meansOf is the standard deviation of samples' mean positions by that of chance.
func meansOf(sd, chance *float64) string {
	if sd == nil || chance == nil || *chance == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", *sd / *chance)
}

// lagsOf lists correlations by lag, in the order of the column's head: those that are missing are the last ones.
func lagsOf(lags []fair.Correlation) string {
	if len(lags) == 0 {
		return "-"
	}
	var s []string
	for _, l := range lags {
		s = append(s, fmt.Sprintf("%.3f", l.Correlation))
	}
	return strings.Join(s, ", ")
}
