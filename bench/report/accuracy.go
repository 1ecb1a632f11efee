package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"larder/internal/htmlreport"
	"larder/internal/plot"
)

// accuracies are what bench/py/accuracy.py writes, as far as a report shows it.
type accuracies struct {
	Chance     float64 `json:"chance"`
	Validation float64 `json:"validation_samples"`
	Tail       float64 `json:"last_epochs"`
	Baseline   string  `json:"baseline"`
	Network    string  `json:"network"`
	Runs       []struct {
		Order    string    `json:"order"`
		Seed     float64   `json:"seed"`
		Accuracy []float64 `json:"validation_accuracy"`
	} `json:"runs"`
	Orders []struct {
		Order      string   `json:"order"`
		Mean       float64  `json:"mean"`
		SD         float64  `json:"sd"`
		Difference *float64 `json:"difference"`
		Low        *float64 `json:"difference_low"`
		High       *float64 `json:"difference_high"`
		Decodes    *float64 `json:"decodes_per_delivery"`
	} `json:"orders"`
}

// accuracy shows what bench/py/accuracy.py wrote: how networks learn from orders that differ in nothing else, by
// several seeds.
func (n *Named) accuracy() error {
	var a accuracies
	if err := json.Unmarshal(n.Raw, &a); err != nil {
		return err
	}
	if n.Title == "" {
		n.Title = "Accuracy by order"
	}
	if a.Network != "" {
		n.fact("network", a.Network)
	}
	var orders []string
	by := map[string][][]float64{} // by order: of each seed, by epoch
	epochs := 0
	for _, r := range a.Runs {
		if by[r.Order] == nil {
			orders = append(orders, r.Order)
		}
		by[r.Order] = append(by[r.Order], r.Accuracy)
		epochs = max(epochs, len(r.Accuracy))
	}
	if epochs == 0 {
		return nil // it brings its pictures itself
	}
	p := plot.Plot{Number: 14, Title: "Validation accuracy by epoch: mean of the seeds, least to most", X: "epoch",
		Y: "part of the validation images that is classified correctly", Top: 1,
		Note: "Only the order of the training images differs: the same bytes, first weights by seed, and network. Points " +
			"of one epoch stand beside each other, so that their spreads can be seen."}
	for k, order := range orders {
		s := plot.Series{Name: order}
		aside := (float64(k) - float64(len(orders)-1)/2) * .08
		for e := range epochs {
			var at []float64
			for _, one := range by[order] {
				if e < len(one) {
					at = append(at, one[e])
				}
			}
			if len(at) == 0 {
				continue
			}
			sum := 0.0
			for _, v := range at {
				sum += v
			}
			s.Points = append(s.Points, [2]float64{float64(e+1) + aside, sum / float64(len(at))})
			s.Low, s.High = append(s.Low, slices.Min(at)), append(s.High, slices.Max(at))
		}
		p.Series = append(p.Series, s)
	}
	if a.Chance > 0 {
		p.Series = append(p.Series, plot.Series{Name: "chance", Dashed: true, Points: [][2]float64{{1, a.Chance},
			{float64(epochs), a.Chance}}})
	}
	n.Plots = append(n.Plots, p)
	if t := a.table(by); len(t.Rows) > 0 {
		n.Tables = append(n.Tables, t)
	}
	return nil
}

// table compares the orders; by are the accuracies of each seed by order and epoch.
func (a *accuracies) table(by map[string][][]float64) htmlreport.Table {
	t := htmlreport.Table{Title: fmt.Sprintf("Accuracy, mean of the last %s epochs and of the seeds", plot.Number(a.Tail)),
		Head: []string{"order", "seeds", "accuracy", "standard deviation of seeds", "less " + a.Baseline + ", seed by seed",
			"95 % interval", "verdict", "decodes for a delivered sample"}}
	points := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	for _, o := range a.Orders {
		row := []string{o.Order, fmt.Sprint(len(by[o.Order])), points(o.Mean), points(o.SD), "-", "-", "-", "-"}
		if o.Difference != nil && o.Low != nil && o.High != nil {
			row[4], row[5] = fmt.Sprintf("%+.1f %%", 100**o.Difference), fmt.Sprintf("%+.1f to %+.1f %%", 100**o.Low,
				100**o.High)
			switch {
			case *o.Low > 0:
				row[6] = "more"
			case *o.High < 0:
				row[6] = "less"
			default:
				row[6] = "no difference shown"
			}
		}
		if o.Decodes != nil && !math.IsNaN(*o.Decodes) {
			row[7] = fmt.Sprintf("%.3f", *o.Decodes)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
