package parity

import (
	"fmt"
	"math"
	"slices"

	"larder/internal/prep"
)

// DrawCount is how often `larder verify` draws the parameters of an op.
const DrawCount = 12000

// The image that parameters are drawn for, the mean ImageNet photograph.
const (
	drawWidth, drawHeight = 500, 375
	drawSeed              = 20
	falseAlarm            = 1e-5
)

// CompareDraws draws the parameters of every random op of r n times on both sides, with fixed seeds, and adds their
// distances. The limit of a distance follows from n.
func (t *Torch) CompareDraws(rep *Report, r *prep.Recipe, n int) error {
	for i, o := range r.Ops() {
		switch o.Name {
		case "Resize", "CenterCrop", "Grayscale", "ToDtype", "Normalize", "MixUp", "CutMix":
			continue
		}
		var q struct {
			Draws struct {
				Name   string         `json:"name"`
				Args   map[string]any `json:"args"`
				Seed   int            `json:"seed"`
				N      int            `json:"n"`
				Width  int            `json:"width"`
				Height int            `json:"height"`
			} `json:"draws"`
		}
		q.Draws.Name, q.Draws.Args, q.Draws.Seed = o.Name, o.Args, drawSeed
		q.Draws.N, q.Draws.Width, q.Draws.Height = n, drawWidth, drawHeight
		var a struct{ Draws map[string][]float64 }
		if err := t.ask(q, &a); err != nil {
			return err
		}
		theirs := derive(a.Draws)
		if len(theirs) == 0 {
			return fmt.Errorf("torchvision draws nothing for %s", o.Name)
		}
		ours := derive(ourDraws(r, i, n))
		names := make([]string, 0, len(theirs))
		for name := range theirs {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			x, y := ours[name], theirs[name]
			d := Draw{Op: o.Name, Parameter: name, Draws: len(y), Distance: 1}
			if len(x) > 0 && len(y) > 0 {
				d.Distance = distance(x, y)
				d.Limit = math.Sqrt(-math.Log(falseAlarm/2)/2) * math.Sqrt(1/float64(len(x))+1/float64(len(y)))
			}
			rep.Draws = append(rep.Draws, d)
		}
	}
	return nil
}

// autoOps are the ops of RandAugment and its kin, in the order of parity.py.
var autoOps = []string{
	"Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
	"Posterize", "Solarize", "AutoContrast", "Equalize", "Invert",
}

func ourDraws(r *prep.Recipe, op, n int) map[string][]float64 {
	cols := map[string][]float64{}
	for s := range n {
		p := r.Params(op, prep.RandKey{Seed: drawSeed, Instance: uint32(s % 5), Sample: uint64(s)}, drawWidth, drawHeight)
		done, _ := p["apply"].(bool)
		for name, v := range p {
			if _, boxed := p["top"]; boxed && p["apply"] != nil && !done && name != "apply" {
				continue // there is no box
			}
			switch v := v.(type) {
			case int:
				cols[name] = append(cols[name], float64(v))
			case float64:
				cols[name] = append(cols[name], v)
			case bool:
				f := 0.0
				if v {
					f = 1
				}
				cols[name] = append(cols[name], f)
			case []int:
				code := 0
				for k, o := range v {
					code += o << (2 * k)
				}
				cols[name] = append(cols[name], float64(code))
			case []string:
				cols["count"] = append(cols["count"], float64(len(v)))
				for k, op := range v[:min(len(v), 4)] {
					col := fmt.Sprintf("op%d", k)
					cols[col] = append(cols[col], float64(slices.Index(autoOps, op)))
				}
			case []float64:
				for k, m := range v[:min(len(v), 4)] {
					col := fmt.Sprintf("magnitude%d", k)
					cols[col] = append(cols[col], m)
				}
			}
		}
	}
	return cols
}

// derive replaces the sides of crops by area and ratio, and their positions by the share of the room the box leaves.
func derive(c map[string][]float64) map[string][]float64 {
	w, h := c["width"], c["height"]
	if len(w) == 0 || len(h) != len(w) || len(c["top"]) != len(w) || len(c["left"]) != len(w) {
		return c
	}
	d := map[string][]float64{}
	if apply := c["apply"]; len(apply) > 0 {
		d["apply"] = apply
	}
	for i := range w {
		d["area"] = append(d["area"], w[i]*h[i])
		d["ratio"] = append(d["ratio"], w[i]/h[i])
		d["left"] = append(d["left"], (c["left"][i]+0.5)/(drawWidth-w[i]+1))
		d["top"] = append(d["top"], (c["top"][i]+0.5)/(drawHeight-h[i]+1))
	}
	return d
}

// distance is the Kolmogorov-Smirnov distance of two samples, which are sorted.
func distance(x, y []float64) float64 {
	slices.Sort(x)
	slices.Sort(y)
	d, i, j := 0.0, 0, 0
	for i < len(x) && j < len(y) {
		v := min(x[i], y[j])
		for i < len(x) && x[i] == v {
			i++
		}
		for j < len(y) && y[j] == v {
			j++
		}
		d = max(d, math.Abs(float64(i)/float64(len(x))-float64(j)/float64(len(y))))
	}
	return d
}
