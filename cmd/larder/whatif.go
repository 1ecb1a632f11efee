package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/bench"
	"larder/bench/coresim"
	live "larder/bench/measure"
)

func init() { extraCommands = append(extraCommands, newWhatIf) }

func newWhatIf() *cobra.Command {
	var out outputFlag
	var sim simFlags
	var file string
	var changes []string
	cmd := &cobra.Command{
		Use:   "whatif",
		Short: "Simulate recorded demand again with more memory, other jobs or another machine",
		Long: `Simulate the demand of a recorded trace (larder trace record) as it was, with each change alone, and with all.
The output compares reads, decodes, makespan and the waits of each job. A change is KEY=VALUE:
  tiers.total, tiers.encoded, tiers.decoded, tiers.augmented    bytes, or auto for a tier
  tiers.policy.FORM, tiers.model                                as in the configuration
  machine.workers, machine.cores, machine.memory
  machine.storage.bandwidth, machine.storage.iops, machine.storage.latency
  jobs.NAME=absent
  jobs.NAME.speed=2x, .step, .batch, .epochs, .start, .leave, .order, .prefetch, .share
  seed                                                          another draw of the same orders: how much is chance`,
		Example: "  larder whatif --trace week.ltrace --change tiers.total=16GiB --change jobs.b=absent",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if file == "" || len(changes) == 0 {
				return usagef("e.g. larder whatif --trace week.ltrace --change tiers.total=16GiB",
					"larder whatif needs --trace FILE and --change KEY=VALUE")
			}
			o, err := sim.options(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			t, err := readTrace(file, "", uint64(o.MaxMemory))
			if err != nil {
				return err
			}
			r := &live.Result{Kind: live.Kind, Scenario: file, Title: t.Name, Seed: t.Seed, Facts: machineFacts(),
				Changes: changes}
			w, limits, err := bench.FromTrace(t, bench.DefaultMachine)
			if err != nil {
				return err
			}
			r.Limits = limits
			worlds, labels := []*coresim.World{w}, []string{"before"}
			all := *w
			for _, c := range changes {
				one := *w
				if err := bench.Change(&one, c); err != nil {
					return err
				}
				if err := bench.Change(&all, c); err != nil {
					return err
				}
				if len(changes) > 1 {
					worlds, labels = append(worlds, &one), append(labels, "only "+c)
				}
			}
			worlds, labels = append(worlds, &all), append(labels, "after")
			r.Limits = append(r.Limits, notesOf(worlds, labels)...)
			if r.Runs, err = simulateAll(worlds, labels, o); err != nil {
				return err
			}
			if t.World != nil && t.World.Counted.Samples > 0 {
				c := t.World.Counted
				r.Limits = append(r.Limits, fmt.Sprintf("While it was recorded the daemon counted %d reads, %d decodes and %d "+
					"augments for %d samples delivered; simulated as it was: %d, %d and %d for %d.",
					c.Reads, c.Decodes, c.Augments, c.Samples, r.Runs[0].Counts.SourceReads, r.Runs[0].Counts.Decodes,
					r.Runs[0].Counts.Augments, r.Runs[0].Counts.Samples))
			}
			if err := out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { whatIfTable(t, r) }); err != nil {
				return err
			}
			return runFailed(r)
		},
	}
	cmd.Flags().StringVar(&file, "trace", "", "file of a recorded trace")
	cmd.Flags().StringArrayVar(&changes, "change", nil, "KEY=VALUE; may be given several times")
	sim.register(cmd)
	out.register(cmd)
	return cmd
}

// notesOf is what each world is simulated otherwise than it was asked for: once, with the runs that it is about unless
// it is about all of them.
func notesOf(worlds []*coresim.World, labels []string) []string {
	var notes []string
	about := map[string][]string{}
	for i, w := range worlds {
		for _, n := range w.Notes() {
			if about[n] == nil {
				notes = append(notes, n)
			}
			about[n] = append(about[n], labels[i])
		}
	}
	for i, n := range notes {
		if runs := about[n]; len(runs) < len(worlds) {
			notes[i] = strings.Join(runs, ", ") + ": " + n
		}
	}
	return notes
}

// whatIfTable prints what changes, before and after.
func whatIfTable(t *tabwriter.Writer, r *live.Result) {
	row(t, "RUN", "READS", "DECODES", "AUGMENTS", "MAKESPAN", "JAIN")
	first := &r.Runs[0]
	change := func(now, was float64) string {
		if was == 0 || now == was {
			return ""
		}
		return fmt.Sprintf(" (%+.1f%%)", 100*(now/was-1))
	}
	for i := range r.Runs {
		x := &r.Runs[i]
		n := func(now, was uint64) string { return count(now) + change(float64(now), float64(was)) }
		end := fmt.Sprintf("%.2f s", x.Makespan) + change(x.Makespan, first.Makespan)
		if x.CutOff {
			end += " (cut off)"
		}
		row(t, clip(x.Label, 60), n(x.Counts.SourceReads, first.Counts.SourceReads),
			n(x.Counts.Decodes, first.Counts.Decodes), n(x.Counts.Augments, first.Counts.Augments), end,
			fmt.Sprintf("%.3f", x.Jain))
	}
	last := &r.Runs[len(r.Runs)-1]
	fmt.Fprintln(t)
	row(t, "JOB", "ENDED BEFORE", "AFTER", "WAIT P50 BEFORE", "AFTER", "P99 BEFORE", "AFTER", "ALL WAITS BEFORE", "AFTER")
	for i := range first.Jobs {
		a := &first.Jobs[i]
		cells := []any{clip(a.Name, 40), fmt.Sprintf("%.2f s", a.Ended), "absent", millis(a.Wait.P50), "-",
			millis(a.Wait.P99), "-", fmt.Sprintf("%.2f s", a.Wait.Total), "-"}
		for k := range last.Jobs {
			if b := &last.Jobs[k]; b.Name == a.Name {
				cells[2], cells[4], cells[6], cells[8] = fmt.Sprintf("%.2f s", b.Ended), millis(b.Wait.P50), millis(b.Wait.P99),
					fmt.Sprintf("%.2f s", b.Wait.Total)
			}
		}
		row(t, cells...)
	}
	fmt.Fprintln(t)
	for _, s := range r.Limits {
		fmt.Fprintln(t, "* "+printable(s))
	}
}
