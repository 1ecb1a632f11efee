package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"larder/internal/htmlreport"
	"larder/internal/plot"
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
	n.Text = append(n.Text, fmt.Sprintf("Processor time of one core, %d images, medians of %d interleaved passes.",
		p.Images, p.Passes))
	rates := plot.Plot{Number: 10, Title: "Images in a second of processor time", Y: "images a CPU-second",
		Series: []plot.Series{{Name: "rate"}}}
	t := htmlreport.Table{Head: []string{"what", "µs an image", "images a CPU-second", "larder is, times as fast",
		"95 % interval"}}
	for _, r := range p.Rows {
		rates.Bars = append(rates.Bars, r.What)
		rates.Series[0].Points = append(rates.Series[0].Points, [2]float64{0, r.Rate})
		interval := "-"
		if r.Range != [2]float64{} {
			interval = fmt.Sprintf("%.2f to %.2f", r.Range[0], r.Range[1])
		}
		t.Rows = append(t.Rows, []string{r.What, fmt.Sprintf("%.1f", r.Micros), plot.Number(math.Round(r.Rate)),
			fmt.Sprintf("%.2f", r.Ratio), interval})
	}
	n.Plots = append(n.Plots, rates)
	n.Tables = append(n.Tables, t)
	return nil
}

// sweep is the JSON of bench/py/tiers.py, as far as a report shows it.
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
	t := htmlreport.Table{Title: "The model's choice", Head: []string{"dataset", "jobs", "memory",
		"best measured split (encoded-decoded-augmented)", "samples/s", "larder's choice", "samples/s", "of the best",
		"mean error of the model"}}
	for _, k := range order {
		p := plot.Plot{Number: 4, Title: fmt.Sprintf("%s, %s, %.3g MiB", k.dataset, k.phase, k.budget/(1<<20)),
			Form: plot.Simplex, Y: "samples a second", Panels: []string{"predicted", "measured"}}
		best, bestRate, chosen, chosenRate, off, count := "", 0.0, "-", math.NaN(), 0.0, 0.0
		for _, c := range groups[k] {
			var rates []float64
			for _, r := range c.Runs {
				rates = append(rates, r.Rate)
			}
			rate, said := median(rates), c.Predicted["bottleneck"].Rate
			cell := plot.Cell{Split: c.Split, Values: []float64{said, rate}}
			if rate > 0 {
				off += math.Abs(said/rate - 1)
				count++
			}
			if rate > bestRate {
				best, bestRate = cell.Percent(), rate
			}
			if strings.Trim(string(c.Percent), `"`) == "chosen" {
				cell.Mark = "the split that larder chose"
				chosen, chosenRate = cell.Percent(), rate
			}
			p.Cells = append(p.Cells, cell)
		}
		// The chosen split lies on top of its neighbours.
		slices.SortStableFunc(p.Cells, func(a, b plot.Cell) int { return len(a.Mark) - len(b.Mark) })
		p.Note = fmt.Sprintf("Mean error of the model: %.0f %%. Each dot is a split of the budget, its shade and number "+
			"the rate.", 100*off/max(1, count))
		n.Plots = append(n.Plots, p)
		row := []string{k.dataset, k.phase, fmt.Sprintf("%.3g MiB", k.budget/(1<<20)), best,
			plot.Number(math.Round(bestRate)), chosen, "-", "-", fmt.Sprintf("%.0f %%", 100*off/max(1, count))}
		if !math.IsNaN(chosenRate) {
			row[6], row[7] = plot.Number(math.Round(chosenRate)), percent(chosenRate/bestRate)
		}
		t.Rows = append(t.Rows, row)
	}
	n.Tables = append(n.Tables, t)
	if len(s.Reads) > 0 {
		t := htmlreport.Table{Title: "Reads of four staggered jobs over the lower bound", Head: []string{"dataset", "order",
			"reads", "lower bound", "over it"}}
		for _, r := range s.Reads {
			t.Rows = append(t.Rows, []string{r.Dataset, r.Order, plot.Number(r.Reads), plot.Number(r.Bound),
				fmt.Sprintf("%.3f", r.Reads/max(1, r.Bound))})
		}
		n.Tables = append(n.Tables, t)
	}
	return nil
}

// bars shows what make bench and make bench-compare wrote (bench/py/bench.py): figures beside their bars, and every
// run.
func (n *Named) bars() error {
	var b struct {
		Machine map[string]any                  `json:"machine"`
		Base    string                          `json:"base"`
		Absent  map[string]string               `json:"absent"`
		Runs    map[string][]map[string]float64 `json:"runs"`
		Bars    []struct {
			What      string  `json:"what"`
			Value     float64 `json:"value"`
			Low       float64 `json:"low"`
			High      float64 `json:"high"`
			Bar       float64 `json:"bar"`
			AtLeast   bool    `json:"at_least"`
			Unit      string  `json:"unit"`
			Reference string  `json:"reference"`
			Met       bool    `json:"met"`
			Why       string  `json:"why"`
		} `json:"bars"`
	}
	if err := json.Unmarshal(n.Raw, &b); err != nil {
		return err
	}
	n.Title = "The daemon beside its peers and its bars"
	if b.Base != "" {
		n.Title = "What a tree changed against " + b.Base
	}
	for k, v := range b.Machine { // order-free: a map again
		n.fact(k, fmt.Sprint(v))
	}
	for _, k := range slices.Sorted(maps.Keys(b.Absent)) {
		n.Text = append(n.Text, fmt.Sprintf("Not there: %s (%s).", k, b.Absent[k]))
	}
	p := plot.Plot{Title: "Figures by their bars",
		Y:   "figure ÷ bar, or bar ÷ figure where less is better; drawn up to 4",
		Top: 4, Marks: []plot.Mark{{X: 1, Text: "the bar"}}, Series: []plot.Series{{Name: "figure"}}}
	t := htmlreport.Table{Title: "Bars", Head: []string{"what", "figure", "95 % interval", "bar", "against", "verdict"}}
	met := 0
	for _, f := range b.Bars {
		row := []string{f.What, plot.Number(f.Value) + f.Unit, fmt.Sprintf("%s to %s", plot.Number(f.Low),
			plot.Number(f.High)), map[bool]string{true: "≥ ", false: "≤ "}[f.AtLeast] +
			plot.Number(f.Bar), f.Reference, "missed"}
		if f.Met {
			met++
			row[5] = "met"
		}
		if f.Why != "" {
			row[5] = f.Why
		}
		t.Rows = append(t.Rows, row)
		if f.Why != "" || f.Value <= 0 || f.Bar <= 0 {
			continue
		}
		part := []float64{f.Value / f.Bar, f.Low / f.Bar, f.High / f.Bar}
		if !f.AtLeast {
			part = []float64{f.Bar / f.Value, f.Bar / max(f.High, 1e-12), f.Bar / max(f.Low, 1e-12)}
		}
		p.Bars = append(p.Bars, f.What)
		s := &p.Series[0]
		s.Points, s.Low, s.High = append(s.Points, [2]float64{0, part[0]}), append(s.Low, part[1]), append(s.High, part[2])
	}
	if len(b.Bars) > 0 {
		n.Text = append(n.Text, fmt.Sprintf("%d of %d bars are met, by the worse end of the interval.", met, len(b.Bars)))
		n.Tables = append(n.Tables, t)
	}
	if len(p.Bars) > 0 {
		n.Plots = append(n.Plots, p)
	}
	n.Tables = append(n.Tables, runsTable(b.Runs))
	return nil
}

// runsTable has every figure of every run, and their median.
func runsTable(of map[string][]map[string]float64) htmlreport.Table {
	t := htmlreport.Table{Title: "All runs", Fold: true, Head: []string{"what", "figure", "median", "runs"}}
	labels := make([]string, 0, len(of))
	for k := range of { // order-free: sorted below
		labels = append(labels, k)
	}
	slices.Sort(labels)
	for _, label := range labels {
		figures := map[string][]float64{}
		for _, run := range of[label] {
			for name, x := range run { // order-free: each name keeps the order of the runs
				figures[name] = append(figures[name], x)
			}
		}
		names := make([]string, 0, len(figures))
		for k := range figures { // order-free: sorted below
			names = append(names, k)
		}
		slices.Sort(names)
		for _, name := range names {
			var runs []string
			for _, x := range figures[name] {
				runs = append(runs, plot.Number(x))
			}
			t.Rows = append(t.Rows, []string{label, name, plot.Number(median(figures[name])), strings.Join(runs, ", ")})
		}
	}
	return t
}
