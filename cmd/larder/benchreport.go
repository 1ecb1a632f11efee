package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/bench/report"
	"larder/internal/errs"
)

// asNamed makes a result of a value as if it had been read from a file.
func asNamed(name string, v any) (*report.Named, error) {
	raw, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return report.Parse(name, raw)
}

func newBenchReport() *cobra.Command {
	var out, title string
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Write the results of a folder as one HTML file",
		Long: `Write every *.json of a folder that larder bench has written (-o json) as one self-contained HTML file:
pictures, tables, facts of machine and seeds, and the raw data. The file needs no network. Other JSON files are left out
and named.`,
		Example: "  larder bench report results --out report.html",
		Args:    args("DIR"),
		RunE: func(cmd *cobra.Command, a []string) error {
			results, skipped, err := report.ReadDir(a[0])
			if err != nil {
				return err
			}
			for _, s := range skipped {
				fmt.Fprintf(cmd.ErrOrStderr(), "left out %s: it is no result of larder bench\n", printable(s))
			}
			facts := machineFacts()
			delete(facts, "load when it ended")
			if out == "-" {
				return report.Write(cmd.OutOrStdout(), title, results, facts)
			}
			if out == "" {
				out = filepath.Join(a[0], "report.html")
			}
			part := out + ".part"
			f, err := os.Create(part)
			if err == nil {
				err = report.Write(f, title, results, facts)
				if e := f.Close(); err == nil {
					err = e
				}
				if err == nil {
					err = os.Rename(part, out)
				}
			}
			if err != nil {
				os.Remove(part)
				return errs.New(errs.Invalid, out, "name another file with --out", "write the report").Because(err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), out)
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "file to write; - is standard output (default: report.html in the folder)")
	cmd.Flags().StringVar(&title, "title", "larder benchmarks", "title of the page")
	return cmd
}

func newBenchCompare() *cobra.Command {
	var out outputFlag
	var least float64
	var seed uint64
	var fail bool
	cmd := &cobra.Command{
		Use:   "compare BEFORE.json AFTER.json",
		Short: "Compare two results",
		Long: `Compare all numbers that two results of larder bench share. Repeats of a measurement are compared by the ratio
of their medians with a bootstrap 95 % interval. No change is claimed when the interval contains 1 or the change is
below --least. Single numbers are counts or virtual time, and must be equal.`,
		Example: "  larder bench compare before.json after.json --fail",
		Args:    args("BEFORE.json", "AFTER.json"),
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := out.check(); err != nil {
				return err
			}
			var results [2]report.Output
			for i, path := range a {
				n, err := report.ReadFile(path)
				if err != nil {
					return err
				}
				results[i] = report.Output{Name: path, JSON: n.Raw}
			}
			c, err := report.Compare(results[0], results[1], least, seed)
			if err != nil {
				return err
			}
			if err := out.value(cmd.OutOrStdout(), c, func(t *tabwriter.Writer) { compareTable(t, c) }); err != nil {
				return err
			}
			if fail && c.Worse > 0 {
				return &exitError{code: exitFailure}
			}
			return nil
		},
	}
	cmd.Flags().Float64Var(&least, "least", .05, "smallest change of repeats that is claimed")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "seed of the bootstrap")
	cmd.Flags().BoolVar(&fail, "fail", false, "exit with 1 when something is worse")
	out.register(cmd)
	return cmd
}

func compareTable(t *tabwriter.Writer, c *report.Comparison) {
	verdict := "nothing is worse"
	if c.Worse > 0 {
		verdict = plural(c.Worse, "metric is", "metrics are") + " WORSE"
	}
	row(t, "verdict", fmt.Sprintf("%s; %d better, %d changed, %d unclear, %d the same", verdict, c.Better, c.Changed,
		c.Unclear, c.Same))
	if len(c.Only) > 0 {
		row(t, "not compared", fmt.Sprintf("%d metrics that only one has, e.g. %s", len(c.Only), clip(c.Only[0], 80)))
	}
	for _, n := range c.Notes {
		row(t, "not the same", clip(n, 120))
	}
	if c.Same == len(c.Metrics) {
		return
	}
	fmt.Fprintln(t)
	row(t, "METRIC", "BEFORE", "AFTER", "RATIO", "95% INTERVAL", "VERDICT")
	for _, m := range c.Metrics {
		if m.Verdict == "same" {
			continue
		}
		interval := "-"
		if m.N[0] > 1 && m.N[1] > 1 {
			interval = ratioText(m.Low) + " to " + ratioText(m.High)
		}
		row(t, clip(m.Path, 70), fmt.Sprintf("%.6g", m.Median[0]), fmt.Sprintf("%.6g", m.Median[1]), ratioText(m.Ratio),
			interval, m.Verdict)
	}
}

// ratioText writes a ratio as far as it is one; from nothing to something it has no end.
func ratioText(x float64) string {
	if x > 1e6 || x < -1e6 {
		return "-"
	}
	return fmt.Sprintf("%.4f", x)
}
