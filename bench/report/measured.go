package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// prep shows the JSON of larder bench prep.
func (n *Named) prep() error {
	var p struct {
		Decoder string `json:"decoder"`
		Kernels string `json:"kernels"`
		Images  int    `json:"images"`
		Passes  int    `json:"passes"`
		Rows    []struct {
			What   string     `json:"what"`
			Micros float64    `json:"cpu_us_per_image"`
			Rate   float64    `json:"images_per_cpu_second"`
			Ratio  float64    `json:"larder_to_this"`
			Range  [2]float64 `json:"ratio_95"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(n.Raw, &p); err != nil {
		return err
	}
	if len(p.Rows) == 0 {
		return nil
	}
	n.Title = "Preparation: decode and augment"
	n.fact("decoder", p.Decoder)
	n.fact("kernels", p.Kernels)
	n.Text = append(n.Text, fmt.Sprintf("Processor time of one core, %d images, medians of %d interleaved passes.", p.Images, p.Passes))
	plot := Plot{Number: 10, Title: "Images in a second of processor time", Y: "images a CPU-second", Series: []Series{{Name: "rate"}}}
	t := Table{Head: []string{"what", "µs an image", "images a CPU-second", "larder is, times as fast", "95 % interval"}}
	for _, r := range p.Rows {
		plot.Bars = append(plot.Bars, r.What)
		plot.Series[0].Points = append(plot.Series[0].Points, [2]float64{0, r.Rate})
		interval := "-"
		if r.Range != [2]float64{} {
			interval = fmt.Sprintf("%.2f to %.2f", r.Range[0], r.Range[1])
		}
		t.Rows = append(t.Rows, []string{r.What, fmt.Sprintf("%.1f", r.Micros), number(math.Round(r.Rate)), fmt.Sprintf("%.2f", r.Ratio), interval})
	}
	n.Plots = append(n.Plots, plot)
	n.Tables = append(n.Tables, t)
	return nil
}

// sweep is the JSON of bench/live/tiers.py, as far as a report shows it.
type sweep struct {
	Processors int    `json:"processors"`
	Repeats    int    `json:"repeats"`
	Workers    string `json:"workers"`
	Version    struct {
		Version string `json:"version"`
		Decoder string `json:"decoder"`
	} `json:"version"`
	Cells []sweepCell `json:"cells"`
	Reads []struct {
		Dataset string  `json:"dataset"`
		Order   string  `json:"order"`
		Reads   float64 `json:"reads"`
		Bound   float64 `json:"bound"`
	} `json:"reads"`
}

type sweepCell struct {
	Dataset   string          `json:"dataset"`
	Phase     string          `json:"phase"`
	Budget    float64         `json:"budget"`
	Percent   json.RawMessage `json:"percent"` // a split, or "chosen": larder's own
	Split     [3]float64      `json:"split"`
	Predicted map[string]struct {
		Rate float64 `json:"rate"`
	} `json:"predicted"`
	Runs []struct {
		Rate float64 `json:"rate"`
	} `json:"runs"`
}

// tiers draws the triangles of predicted and measured rates, one pair for each dataset, number of jobs and budget.
func (n *Named) tiers() error {
	var s sweep
	if err := json.Unmarshal(n.Raw, &s); err != nil {
		return err
	}
	n.Title = "Splits of memory: the model beside the running daemon"
	n.fact("larder", s.Version.Version)
	n.fact("decoder", s.Version.Decoder)
	n.fact("processors", fmt.Sprint(s.Processors))
	n.fact("repeats", fmt.Sprint(s.Repeats))
	type key struct {
		dataset, phase string
		budget         float64
	}
	groups, order := map[key][]sweepCell{}, []key{}
	for _, c := range s.Cells {
		if len(c.Runs) == 0 {
			continue
		}
		k := key{c.Dataset, c.Phase, c.Budget}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], c)
	}
	t := Table{Title: "The model's choice", Head: []string{"dataset", "jobs", "memory", "best measured split (encoded-decoded-augmented)", "samples/s", "larder's choice", "samples/s", "of the best", "mean error of the model"}}
	for _, k := range order {
		p := Plot{Number: 4, Title: fmt.Sprintf("%s, %s, %.3g MiB", k.dataset, k.phase, k.budget/(1<<20)), Form: Simplex, Y: "samples a second", Panels: []string{"predicted", "measured"}}
		best, bestRate, chosen, chosenRate, off, count := "", 0.0, "-", math.NaN(), 0.0, 0.0
		for _, c := range groups[k] {
			var rates []float64
			for _, r := range c.Runs {
				rates = append(rates, r.Rate)
			}
			rate, said := median(rates), c.Predicted["bottleneck"].Rate
			cell := Cell{Split: c.Split, Values: []float64{said, rate}}
			if rate > 0 {
				off += math.Abs(said/rate - 1)
				count++
			}
			if rate > bestRate {
				best, bestRate = split(cell), rate
			}
			if strings.Trim(string(c.Percent), `"`) == "chosen" {
				cell.Mark = "the split that larder chose"
				chosen, chosenRate = split(cell), rate
			}
			p.Cells = append(p.Cells, cell)
		}
		// The chosen split lies on top of its neighbours.
		slices.SortStableFunc(p.Cells, func(a, b Cell) int { return len(a.Mark) - len(b.Mark) })
		p.Note = fmt.Sprintf("Mean error of the model: %.0f %%. Each dot is a split of the budget, its shade and number the rate.", 100*off/max(1, count))
		n.Plots = append(n.Plots, p)
		row := []string{k.dataset, k.phase, fmt.Sprintf("%.3g MiB", k.budget/(1<<20)), best, number(math.Round(bestRate)), chosen, "-", "-", fmt.Sprintf("%.0f %%", 100*off/max(1, count))}
		if !math.IsNaN(chosenRate) {
			row[6], row[7] = number(math.Round(chosenRate)), percent(chosenRate/bestRate)
		}
		t.Rows = append(t.Rows, row)
	}
	n.Tables = append(n.Tables, t)
	if len(s.Reads) > 0 {
		t := Table{Title: "Reads of four staggered jobs over the lower bound", Head: []string{"dataset", "order", "reads", "lower bound", "over it"}}
		for _, r := range s.Reads {
			t.Rows = append(t.Rows, []string{r.Dataset, r.Order, number(r.Reads), number(r.Bound), fmt.Sprintf("%.3f", r.Reads/max(1, r.Bound))})
		}
		n.Tables = append(n.Tables, t)
	}
	return nil
}

// repeats shows the JSON of the scripts of bench/live that measure a few figures of several things, repeatedly: loaders.py, handover.py, cold.py.
func (n *Named) repeats() error {
	var h struct {
		Data       string                       `json:"data"`
		Processors int                          `json:"processors"`
		Results    map[string][]json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(n.Raw, &h); err != nil {
		return err
	}
	n.fact("data", h.Data)
	n.fact("processors", fmt.Sprint(h.Processors))
	keys := make([]string, 0, len(h.Results))
	for k := range h.Results { // order-free: sorted below
		keys = append(keys, k)
	}
	slices.Sort(keys)
	t := Table{Head: []string{"what", "figure", "median", "repeats"}}
	for _, k := range keys {
		figures, names := map[string][]float64{}, []string{}
		for _, raw := range h.Results[k] {
			var run map[string]any
			if err := json.Unmarshal(raw, &run); err != nil {
				return err
			}
			for name, v := range run { // order-free: sorted below
				if x, ok := v.(float64); ok {
					if figures[name] == nil {
						names = append(names, name)
					}
					figures[name] = append(figures[name], x)
				}
			}
		}
		slices.Sort(names)
		for _, name := range names {
			var runs []string
			for _, x := range figures[name] {
				runs = append(runs, number(x))
			}
			t.Rows = append(t.Rows, []string{k, name, number(median(figures[name])), strings.Join(runs, ", ")})
		}
	}
	n.Tables = append(n.Tables, t)
	return nil
}
