package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/bench/bound"
	"larder/internal/errs"
	"larder/internal/units"
)

// maxTrace bounds a trace's file and maxTraceSamples the subset it may name.
const (
	maxTrace        = 256 << 20
	maxTraceSamples = 1 << 28
)

// deliveries is the file of larder bench bound: what jobs on one dataset received, each of them all of its samples.
type deliveries struct {
	Subset int `json:"subset"` // samples of the dataset
	Jobs   int `json:"jobs"`
	Cache  int `json:"cache"` // samples that can be held from one instant to a later one, those in flight included
	Epochs []struct {
		Job   int        `json:"job"`
		Steps [][2]int64 `json:"steps"` // instant, samples; ascending
	} `json:"epochs"`
}

// boundOf is what larder bench bound prints.
type boundOf struct {
	Delivered    int `json:"delivered"`
	LowerBound   int `json:"lower_bound"`
	WindowsBound int `json:"windows_bound"`
}

func newBenchBound() *cobra.Command {
	var out outputFlag
	var file string
	cmd := &cobra.Command{
		Use:   "bound",
		Short: "Compute how few reads could have served a run",
		Long: `Compute the lower bound of reads for what the jobs of a real run received and when: no order, cache or
foresight could have read less. bench/bound says how it is computed. The trace is JSON:

  {"subset": 700, "jobs": 4, "cache": 140, "epochs": [{"job": 0, "steps": [[1000, 16], [2000, 16], …]}, …]}

Every job wants the whole subset. A step is an instant and the number of samples received then. cache is how many
samples the tier and everything in flight can hold.`,
		Example: "  larder bench bound --trace trace.json -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if file == "" {
				return usagef(firstExample(cmd), "larder bench bound needs --trace FILE")
			}
			d, err := readDeliveries(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			t := d.trace()
			b := boundOf{LowerBound: bound.Loads(t), WindowsBound: bound.Windows(t)}
			for _, e := range t.Epochs {
				for _, s := range e.Steps {
					b.Delivered += int(s.N)
				}
			}
			return out.value(cmd.OutOrStdout(), &b, func(w *tabwriter.Writer) {
				row(w, "delivered", count(int64(b.Delivered)))
				row(w, "lower bound", fmt.Sprintf("%s (of whole windows: %s)", count(int64(b.LowerBound)),
					count(int64(b.WindowsBound))))
			})
		},
	}
	cmd.Flags().StringVar(&file, "trace", "", "what was delivered; - is standard input")
	out.register(cmd)
	return cmd
}

// readDeliveries reads a trace; errors are *errs.Error NOT_FOUND or INVALID_ARGUMENT that name the place.
func readDeliveries(path string, stdin io.Reader) (*deliveries, error) {
	r, name := stdin, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errs.New(errs.NotFound, path, "check the path", "read the trace").Because(err)
		}
		if err != nil {
			return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the trace").Because(err)
		}
		defer f.Close()
		r, name = f, path
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxTrace+1))
	if err != nil {
		return nil, errs.New(errs.Invalid, name, "check the path and its rights", "read the trace").Because(err)
	}
	if len(raw) > maxTrace {
		return nil, errs.New(errs.Invalid, name, "leave epochs out", "a trace is smaller than %s", units.Size(maxTrace))
	}
	return parseDeliveries(name, raw)
}

func parseDeliveries(name string, raw []byte) (*deliveries, error) {
	const hint = "larder bench bound --help shows what a trace looks like"
	d := new(deliveries)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, errs.New(errs.Invalid, name, hint, "%s is no trace", name).Because(err)
	}
	bad := func(format string, args ...any) error {
		return errs.New(errs.Invalid, name, hint, "%s: %s", name, fmt.Sprintf(format, args...))
	}
	switch {
	case d.Subset < 1 || d.Subset > maxTraceSamples:
		return nil, bad("a subset of %d samples", d.Subset)
	case d.Jobs < 1 || d.Jobs > 1024:
		return nil, bad("%d jobs", d.Jobs)
	case d.Cache < 0:
		return nil, bad("a cache of %d samples", d.Cache)
	}
	for i, e := range d.Epochs {
		if e.Job < 0 || e.Job >= d.Jobs {
			return nil, bad("epoch %d is of job %d, there are %d", i, e.Job, d.Jobs)
		}
		left := int64(d.Subset)
		for k, s := range e.Steps {
			if s[1] < 1 || s[1] > left {
				return nil, bad("step %d of epoch %d delivers %d samples, %d are left", k, i, s[1], left)
			}
			if k > 0 && s[0] <= e.Steps[k-1][0] {
				return nil, bad("step %d of epoch %d is not later than the one before it", k, i)
			}
			left -= s[1]
		}
	}
	return d, nil
}

func (d *deliveries) trace() bound.Trace {
	all := make([]uint32, d.Subset)
	for i := range all {
		all[i] = uint32(i)
	}
	t := bound.Trace{Cache: d.Cache}
	for range d.Jobs {
		t.Subsets = append(t.Subsets, all)
	}
	for _, e := range d.Epochs {
		b := bound.Epoch{Job: e.Job}
		for _, s := range e.Steps {
			b.Steps = append(b.Steps, bound.Step{At: s[0], N: int32(s[1])})
		}
		t.Epochs = append(t.Epochs, b)
	}
	return t
}
