// Package parity compares what prep makes of files with what Pillow and torchvision, as installed, make of them, given
// the same random parameters. It is what stands behind larder verify parity and behind the tests of prep's claim to
// equal them.
package parity

import (
	"bufio"
	"context"
	_ "embed" // the Python side
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"larder/internal/errs"
	"larder/internal/prep"
)

//go:embed parity.py
var script string

// Row is one op's differences, over all files. Each op is given what larder had before it, so that a difference shows
// at the op that makes it; the row "whole recipe" starts from the file.
type Row struct {
	Op     string  `json:"op"`
	Images int     `json:"images"`
	Values int64   `json:"values"`
	Differ int64   `json:"differing"`
	Max    float64 `json:"max"`  // difference, in the op's own values: grey levels, or what Normalize gives
	Mean   float64 `json:"mean"` // of all values

	sum float64
}

// Draw compares the distribution of one random parameter with torchvision's: the Kolmogorov-Smirnov distance of two
// samples.
type Draw struct {
	Op        string  `json:"op"`
	Parameter string  `json:"parameter"`
	Draws     int     `json:"draws"`
	Distance  float64 `json:"distance"`
	Limit     float64 `json:"limit"` // that equal distributions exceed once in 100,000 times
}

// Report is the outcome of a comparison.
type Report struct {
	Decoder     string   `json:"decoder"`
	Kernels     string   `json:"kernels"`
	Torchvision string   `json:"torchvision"`
	Pillow      string   `json:"pillow"`
	Recipe      []string `json:"recipe"`
	Rows        []Row    `json:"ops"`
	Draws       []Draw   `json:"draws"`
	Refused     int      `json:"refused_by_both"`
	Disagree    []string `json:"disagreements"` // files that one side refuses, or of another shape
}

// Equal reports whether no byte differs, both sides take the same files, and no parameter is drawn otherwise.
func (r *Report) Equal() bool {
	for i := range r.Rows {
		if r.Rows[i].Differ > 0 {
			return false
		}
	}
	for _, d := range r.Draws {
		if d.Distance > d.Limit {
			return false
		}
	}
	return len(r.Disagree) == 0
}

// Torch is a Python process with torchvision. It belongs to one goroutine.
type Torch struct {
	cmd         *exec.Cmd
	in          io.WriteCloser
	out         *bufio.Reader
	stderr      strings.Builder
	w           *prep.Worker
	torchvision string
	pillow      string
}

// Start runs python, which must be able to import torchvision. Close ends it.
func Start(ctx context.Context, python string) (*Torch, error) {
	t := &Torch{cmd: exec.CommandContext(ctx, python, "-c", script), w: prep.NewWorker(prep.Limits{})}
	t.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	t.cmd.Stderr = &t.stderr
	in, err := t.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.in, t.out = in, bufio.NewReaderSize(out, 1<<20)
	if err := t.cmd.Start(); err != nil {
		return nil, errs.New(errs.NotFound, python, "name a Python with torchvision: --python PATH", "start Python").
			Because(err)
	}
	var hello struct{ Torchvision, Pillow string }
	if err := t.answer(&hello); err != nil {
		t.Close()
		return nil, errs.New(errs.NotFound, python, "install torchvision there, or name another Python: --python PATH",
			"compare with the torchvision of %s", python).Because(err)
	}
	t.torchvision, t.pillow = hello.Torchvision, hello.Pillow
	return t, nil
}

// Close ends the process.
func (t *Torch) Close() {
	t.w.Close()
	t.in.Close()
	_ = t.cmd.Wait() // it may have failed before, which answer has reported
}

func (t *Torch) answer(v any) error {
	line, err := t.out.ReadBytes('\n')
	if err != nil {
		t.in.Close()
		_ = t.cmd.Wait()
		said := strings.TrimSpace(t.stderr.String())
		if i := strings.LastIndexByte(said, '\n'); i >= 0 {
			said = said[i+1:]
		}
		return fmt.Errorf("python ended: %s", said)
	}
	return json.Unmarshal(line, v)
}

func (t *Torch) ask(question any, answer any, blobs ...[]byte) error {
	b, err := json.Marshal(question)
	if err != nil {
		return err
	}
	for _, part := range append([][]byte{append(b, '\n')}, blobs...) {
		if _, err := t.in.Write(part); err != nil {
			return t.answer(answer) // which says why it is gone
		}
	}
	return t.answer(answer)
}

// Report begins a report on a recipe.
func (t *Torch) Report(r *prep.Recipe) *Report {
	rep := &Report{Decoder: prep.DecoderName(), Kernels: prep.KernelName(), Torchvision: t.torchvision, Pillow: t.pillow}
	for _, o := range r.Ops() {
		rep.Recipe = append(rep.Recipe, o.Name)
	}
	return rep
}

type stage struct {
	Name   string         `json:"name"`
	Args   map[string]any `json:"args"`
	Params map[string]any `json:"params"`
	Image  bool           `json:"image"` // an image op, whose result is uint8 RGB
	Shape  []int          `json:"shape"`
	DType  string         `json:"dtype"`
	Layout string         `json:"layout"`
	Bytes  int            `json:"bytes"`
}

// Compare runs r on one file by both sides and adds the outcome to rep. The error is about the comparison, not the
// file.
func (t *Torch) Compare(rep *Report, r *prep.Recipe, name string, enc []byte, key prep.RandKey) error {
	stages, data, bad, err := t.stages(r, enc, key)
	if err != nil {
		return err
	}
	if bad != nil {
		stages, data = []stage{}, nil
	}
	var q struct {
		Case struct {
			Bytes  int     `json:"bytes"`
			Grey   bool    `json:"grey"`
			Stages []stage `json:"stages"`
		} `json:"case"`
	}
	q.Case.Bytes, q.Case.Stages, q.Case.Grey = len(enc), stages, oneChannel(r)
	var a struct {
		Refused string
		Rows    []opAnswer
	}
	if err := t.ask(q, &a, append([][]byte{enc}, data...)...); err != nil {
		return err
	}
	switch {
	case bad != nil && a.Refused != "":
		rep.Refused++
	case bad != nil:
		rep.Disagree = append(rep.Disagree, fmt.Sprintf("%s: only larder refuses it: %v", name, bad))
	case a.Refused != "":
		rep.Disagree = append(rep.Disagree, fmt.Sprintf("%s: only Pillow refuses it: %s", name, a.Refused))
	}
	for i, row := range a.Rows {
		if row.Error != "" {
			rep.Disagree = append(rep.Disagree, fmt.Sprintf("%s: %s: %s", name, row.Op, row.Error))
			continue
		}
		rep.add(i, row)
	}
	return nil
}

// opAnswer is what the other side says of one op on one image.
type opAnswer struct {
	Op, Error      string
	Values, Differ int64
	Max, Sum       float64
}

// add sums up the i-th op; an op that is twice in a recipe has two rows.
func (r *Report) add(i int, a opAnswer) {
	for len(r.Rows) <= i {
		r.Rows = append(r.Rows, Row{})
	}
	row := &r.Rows[i]
	row.Op = a.Op
	row.Images++
	row.Values += a.Values
	row.Differ += a.Differ
	row.Max = max(row.Max, a.Max)
	row.sum += a.Sum
	row.Mean = row.sum / float64(row.Values)
}

func oneChannel(r *prep.Recipe) bool {
	for _, o := range r.Ops() {
		if o.Name == "Grayscale" && o.Args["num_output_channels"] == 1.0 {
			return true
		}
	}
	return false
}

// cast is the index of the ToDtype among canonical ops: what is before it works on uint8.
func cast(ops []prep.OpSpec) int {
	return slices.IndexFunc(ops, func(o prep.OpSpec) bool { return o.Name == "ToDtype" })
}

// onBatches says that an op mixes whole batches, which is not compared here.
func onBatches(o prep.OpSpec) bool { return o.Name == "MixUp" || o.Name == "CutMix" }

// stages runs r op by op: the k-th result is that of a recipe of the first k ops, so it comes out of the same code as
// that of the whole. bad is what larder has against the file.
func (t *Torch) stages(r *prep.Recipe, enc []byte, key prep.RandKey) (stages []stage, data [][]byte, bad, err error) {
	ops := r.Ops()
	if n := len(ops) - 1; onBatches(ops[n]) {
		ops = ops[:n]
	}
	tail := cast(ops)
	for i := range ops {
		if ops[i].Name == "Grayscale" { // between ops an image has three channels
			ops[i].Args["num_output_channels"] = 3.0
		}
	}
	raw := prep.OpSpec{Name: "ToDtype", Args: map[string]any{"dtype": prep.Uint8, "layout": prep.HWC}}
	w, h := 0, 0
	for k := 0; k <= len(ops); k++ {
		s := stage{Name: "decode", Args: map[string]any{}, Params: map[string]any{}, Image: true}
		list := append(append([]prep.OpSpec{}, ops[:k]...), raw)
		if k > 0 {
			s.Name, s.Args = ops[k-1].Name, ops[k-1].Args
			s.Image = k-1 < tail
			s.Params = r.Params(k-1, key, w, h)
			if !s.Image {
				if r.Output().Ragged {
					break // the cast of ragged images says uint8 HWC, which is what an image is
				}
				list = r.Ops()[:k]
			}
		}
		rk, err := prep.ParseRecipe(list)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("the first %d ops: %w", k, err)
		}
		if w, h, bad = t.w.SampleSize(rk, enc, key); bad != nil {
			return nil, nil, bad, nil
		}
		o := rk.Output()
		s.Shape, s.DType, s.Layout, s.Bytes = o.Shape, o.DType, o.Layout, o.SampleBytes
		if o.Ragged {
			s.Shape, s.Bytes = []int{h, w, 3}, w*h*3
		}
		dst := make([]byte, s.Bytes)
		if bad := t.w.DecodeInto(rk, enc, key, dst); bad != nil {
			return nil, nil, bad, nil
		}
		stages, data = append(stages, s), append(data, dst)
	}
	return stages, data, nil, nil
}
