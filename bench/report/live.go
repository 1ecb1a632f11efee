package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"larder/internal/htmlreport"
	"larder/internal/plot"
)

// live is the JSON of larder bench live, larder bench sim and larder whatif (docs/format/live.md), as far as a report
// shows it.
type live struct {
	Scenario string       `json:"scenario"`
	Seed     uint64       `json:"seed"`
	Runs     []liveRun    `json:"runs"`
	Errors   []difference `json:"errors"`
	Changes  []string     `json:"changes"`
	Limits   []string     `json:"limits"`
}

type liveRun struct {
	Source   string     `json:"source"`
	Label    string     `json:"label"`
	Makespan float64    `json:"makespan_seconds"`
	CutOff   bool       `json:"cut_off"`
	Counts   liveCounts `json:"counts"`
	Unique   int        `json:"unique"`
	Per      ratios     `json:"per_unique"`
	Over     ratios     `json:"over_bound"`
	Bound    struct {
		Reads    float64 `json:"reads"`
		Decodes  float64 `json:"decodes"`
		Augments float64 `json:"augments"`
	} `json:"lower_bound"`
	Exact bool      `json:"exactly_once"`
	Jain  float64   `json:"jain"`
	Jobs  []liveJob `json:"jobs"`
	Tiers []struct {
		Form      string  `json:"form"`
		Policy    string  `json:"policy"`
		Budget    float64 `json:"budget_bytes"`
		Peak      float64 `json:"peak_bytes"`
		Hits      float64 `json:"hits"`
		Evictions float64 `json:"evictions"`
	} `json:"tiers"`
	CPU *struct {
		Daemon  float64 `json:"daemon_seconds"`
		Clients float64 `json:"clients_seconds"`
		Per     float64 `json:"seconds_per_1000_samples"`
		RSS     float64 `json:"daemon_peak_rss_bytes"`
		Others  float64 `json:"others"`
	} `json:"cpu"`
	Recovery *recovery `json:"recovery"`
	Failures []string  `json:"failures"`
}

type liveCounts struct {
	Reads    float64 `json:"source_reads"`
	Decodes  float64 `json:"decodes"`
	Augments float64 `json:"augments"`
	Samples  float64 `json:"samples_delivered"`
}

type ratios struct {
	Reads    float64 `json:"reads"`
	Decodes  float64 `json:"decodes"`
	Augments float64 `json:"augments"`
}

type liveJob struct {
	Name       string  `json:"name"`
	Order      string  `json:"order"`
	Samples    float64 `json:"samples"`
	Began      float64 `json:"began_seconds"`
	Ended      float64 `json:"ended_seconds"`
	FirstBatch float64 `json:"first_batch_seconds"`
	FirstEpoch float64 `json:"first_epoch_seconds"`
	Rate       float64 `json:"samples_per_second"`
	Stepping   float64 `json:"step_seconds"`
	Speed      float64 `json:"part_of_full_speed"`
	Wait       struct {
		P50       float64   `json:"p50"`
		P99       float64   `json:"p99"`
		P999      float64   `json:"p999"`
		Max       float64   `json:"max"`
		Total     float64   `json:"total"`
		Histogram []float64 `json:"histogram_of_powers_of_2_us"`
	} `json:"wait"`
	Exact   bool    `json:"exactly_once"`
	Lost    float64 `json:"lost"`
	Twice   float64 `json:"repeated"`
	Quality struct {
		KS       *float64 `json:"position_ks"`
		KSLimit  float64  `json:"position_ks_limit"`
		Rho      *float64 `json:"epoch_correlation"`
		RhoLimit float64  `json:"epoch_correlation_limit"`
		Chi      *float64 `json:"label_chi2"`
		ChiLimit float64  `json:"label_chi2_limit"`
	} `json:"order_quality"`
	Means *means `json:"mean_positions"`
	Hits  struct {
		Encoded   float64 `json:"encoded"`
		Decoded   float64 `json:"decoded"`
		Augmented float64 `json:"augmented"`
	} `json:"hits"`
	Over []struct {
		At   float64 `json:"at_seconds"`
		Rate float64 `json:"samples_per_second"`
	} `json:"throughput_over_time"`
}

// means is whether samples are always early or always late; positions are parts of an epoch.
type means struct {
	SD     float64       `json:"sd"`
	Chance float64       `json:"chance"`
	Lags   []correlation `json:"lags"`
}

// correlation is that of positions Lag epochs apart.
type correlation struct {
	Lag         int     `json:"lag"`
	Correlation float64 `json:"correlation"`
}

// meansHead are the heads of what cells returns.
var meansHead = []string{"sd of mean positions ÷ chance", "correlation of positions, by lag in epochs"}

func (m *means) cells() []string {
	if m == nil || m.Chance == 0 {
		return []string{"-", "-"}
	}
	lags := []string{}
	for _, l := range m.Lags {
		lags = append(lags, fmt.Sprintf("%d: %.3f", l.Lag, l.Correlation))
	}
	return []string{fmt.Sprintf("%.2f", m.SD/m.Chance), strings.Join(lags, ", ")}
}

type difference struct {
	What      string    `json:"what"`
	Simulated float64   `json:"simulated"`
	Measured  []float64 `json:"measured"`
	Median    float64   `json:"measured_median"`
	Error     float64   `json:"error"`
	Allowed   *float64  `json:"allowed"`
	Timing    bool      `json:"depends_on_timing"`
	OK        bool      `json:"ok"`
}

func (r *liveRun) name() string {
	label := strings.TrimSpace(r.Label)
	if label == "" || label == r.Source {
		return r.Source
	}
	return r.Source + ", " + label
}

// most is how many runs are drawn job by job: one simulated and one measured, or before and after a change.
const most = 2

func (n *Named) live() error {
	var l live
	if err := json.Unmarshal(n.Raw, &l); err != nil {
		return err
	}
	if len(l.Runs) == 0 {
		return nil // it brings its pictures itself
	}
	if n.Title == "" {
		n.Title = l.Scenario
	}
	n.Title = "Run: " + strings.TrimSuffix(n.Title, ".")
	if l.Scenario != "" {
		n.fact("scenario", l.Scenario)
	}
	n.fact("seed", fmt.Sprint(l.Seed))
	for _, c := range l.Changes {
		n.Text = append(n.Text, "Changed: "+c)
	}
	n.Text = append(n.Text, l.Limits...)
	for i := range l.Runs {
		r := &l.Runs[i]
		said := fmt.Sprintf("%s: %.4g s until all jobs were done, %s reads (%.3f of the lower bound), %s decodes (%.3f), "+
			"Jain's index %.3f", r.name(), r.Makespan, plot.Number(r.Counts.Reads), r.Over.Reads, plot.Number(r.Counts.Decodes),
			r.Over.Decodes, r.Jain)
		if !r.Exact {
			said += "; NOT exactly once"
		}
		if r.CutOff {
			said += "; cut off at the limit of virtual time"
		}
		if len(r.Failures) > 0 {
			said += "; FAILED: " + strings.Join(r.Failures, "; ")
		}
		if len(l.Runs) <= 4 || !r.Exact || r.CutOff || len(r.Failures) > 0 {
			n.Text = append(n.Text, said+".")
		}
	}
	var picked []*liveRun
	for i := range l.Runs {
		r := &l.Runs[i]
		if len(r.Failures) == 0 && len(picked) < most && !slices.ContainsFunc(picked,
			func(o *liveRun) bool { return o.Source == r.Source && strings.HasPrefix(r.Label, "repeat") }) {
			picked = append(picked, r)
		}
	}
	for _, r := range picked {
		n.jobs(r)
	}
	n.runs(&l, picked)
	n.errors(&l)
	n.recoveries(&l)
	return nil
}

// jobs draws one run job by job.
func (n *Named) jobs(r *liveRun) {
	over := plot.Plot{Number: 1, Title: "Throughput of each job over time, " + r.name(), Form: plot.Steps,
		X: "seconds since the run began", Y: "samples a second", Note: fmt.Sprintf("Means of %.3g s.", r.Makespan/intervals)}
	cdf := plot.Plot{Number: 8, Title: "Waits for a batch, " + r.name(), X: "wait of next(), up to … milliseconds",
		Y: "part of all waits", Log: true, Top: 1, Form: ""}
	spent := plot.Plot{Number: 7, Title: "What jobs spent their time on, " + r.name(), Form: plot.Stacked, Y: "seconds",
		Series: []plot.Series{{Name: "working"}, {Name: "waiting"}}}
	tiers := plot.Plot{Number: 2, Title: "Where samples were found, " + r.name(), Form: plot.Stacked, Y: "samples",
		Series: []plot.Series{{Name: "augmented"}, {Name: "decoded"}, {Name: "encoded"}, {Name: "from storage"}}}
	first := plot.Plot{Number: 9, Title: "Time to the first batch and the first epoch, " + r.name(), Y: "seconds",
		Series: []plot.Series{{Name: "first batch"}, {Name: "first epoch"}}}
	fair := plot.Plot{Number: 11, Title: fmt.Sprintf("Part of its full speed that each job had, %s (Jain's index %.3f)",
		r.name(), r.Jain), Y: "time working ÷ time working and waiting", Top: 1, Series: []plot.Series{
		{Name: "part of full speed"}}}
	t := htmlreport.Table{Title: "Jobs, " + r.name(), Head: []string{"job", "order", "samples", "samples/s",
		"of full speed", "wait p50, ms", "p99", "p99.9", "longest", "exactly once", "position KS (limit)",
		"epoch correlation (limit)", "label χ² (limit)"}}
	t.Head = append(t.Head, meansHead...)
	bar := func(p *plot.Plot, name string, values ...float64) {
		p.Bars = append(p.Bars, name)
		for k, v := range values {
			p.Series[k].Points = append(p.Series[k].Points, [2]float64{0, v})
		}
	}
	for i := range r.Jobs {
		j := &r.Jobs[i]
		if s := j.overTime(r.Makespan); len(s) > 0 {
			over.Series = append(over.Series, plot.Series{Name: j.Name, Points: s})
		}
		if s := cumulated(j.Wait.Histogram); len(s) > 0 {
			cdf.Series = append(cdf.Series, plot.Series{Name: j.Name, Points: s})
		}
		bar(&spent, j.Name, j.Stepping, j.Wait.Total)
		bar(&tiers, j.Name, j.Hits.Augmented, j.Hits.Decoded, j.Hits.Encoded,
			max(0, j.Samples-j.Hits.Augmented-j.Hits.Decoded-j.Hits.Encoded))
		bar(&first, j.Name, j.FirstBatch, j.FirstEpoch)
		bar(&fair, j.Name, j.Speed)
		once := "yes"
		if !j.Exact {
			once = "NO"
		}
		ms := func(s float64) string { return fmt.Sprintf("%.3g", s*1e3) }
		t.Rows = append(t.Rows, []string{j.Name, j.Order, plot.Number(j.Samples), plot.Number(math.Round(j.Rate*10) / 10),
			fmt.Sprintf("%.3f", j.Speed), ms(j.Wait.P50), ms(j.Wait.P99), ms(j.Wait.P999), ms(j.Wait.Max), once,
			quality(j.Quality.KS, j.Quality.KSLimit), quality(j.Quality.Rho, j.Quality.RhoLimit), quality(j.Quality.Chi,
				j.Quality.ChiLimit)})
		t.Rows[i] = append(t.Rows[i], j.Means.cells()...)
	}
	spent.Note = "Waiting is time in next() without a batch: storage, decoding, augmenting and gathering together."
	fair.Series[0].Name = "working"
	for _, p := range []plot.Plot{over, spent, cdf, tiers, first, fair, orders(r)} {
		if len(p.Series) > 0 && (len(p.Bars) > 0 || len(p.Series[0].Points) > 0) {
			n.Plots = append(n.Plots, p)
		}
	}
	n.Tables = append(n.Tables, t)
}

func quality(v *float64, limit float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f (%.3f)", *v, limit)
}

// orders is the quality of orders, as parts of what chance allows.
func orders(r *liveRun) plot.Plot {
	p := plot.Plot{Number: 12, Title: "Order quality, " + r.name(), Y: "part of the limit that random orders exceed " +
		"once in a thousand runs", Top: 1.2, Marks: []plot.Mark{{X: 1, Text: "limit"}},
		Series: []plot.Series{{Name: "positions (KS)"}, {Name: "epochs (correlation)"}, {Name: "labels (χ²)"}}}
	for i := range r.Jobs {
		j := &r.Jobs[i]
		part := func(v *float64, limit float64) float64 {
			if v == nil || limit == 0 {
				return math.NaN()
			}
			return math.Abs(*v) / limit
		}
		q := &j.Quality
		v := []float64{part(q.KS, q.KSLimit), part(q.Rho, q.RhoLimit), part(q.Chi, q.ChiLimit)}
		if !slices.ContainsFunc(v, func(x float64) bool { return !math.IsNaN(x) }) {
			continue
		}
		p.Bars = append(p.Bars, j.Name)
		for k := range v {
			p.Series[k].Points = append(p.Series[k].Points, [2]float64{0, v[k]})
		}
	}
	return p
}

// intervals is how many parts of a run throughput over time is the mean of.
const intervals = 48

// overTime is the throughput of a job in equal parts of a run: each point begins one. A point is the mean since
// the point before.
func (j *liveJob) overTime(makespan float64) [][2]float64 {
	if len(j.Over) == 0 || !(makespan > 0) {
		return nil
	}
	var got [intervals]float64 // samples
	part := makespan / intervals
	from := j.Began
	for _, p := range j.Over {
		to := p.At
		for k := max(0, int(from/part)); k < intervals && float64(k)*part < to; k++ {
			got[k] += p.Rate * max(0, min(to, float64(k+1)*part)-max(from, float64(k)*part))
		}
		from = max(from, to)
	}
	first, last := max(0, int(j.Began/part)), min(intervals-1, int(from/part))
	var out [][2]float64
	for k := first; k <= last; k++ {
		out = append(out, [2]float64{float64(k) * part, got[k] / part})
	}
	return append(out, [2]float64{float64(last+1) * part, 0})
}

// cumulated is the part of waits up to 1 µs, 2 µs, 4 µs and so on, in milliseconds; from the last empty bin on.
func cumulated(histogram []float64) [][2]float64 {
	sum := 0.0
	for _, n := range histogram {
		sum += n
	}
	if sum == 0 {
		return nil
	}
	var out [][2]float64
	at := 0.0
	for i, n := range histogram {
		at += n
		if at == 0 && i+1 < len(histogram) && histogram[i+1] == 0 {
			continue
		}
		out = append(out, [2]float64{math.Pow(2, float64(i)) / 1e3, at / sum})
		if at == sum {
			break
		}
	}
	return out
}

// runs compares all runs of a file.
func (n *Named) runs(l *live, picked []*liveRun) {
	work := plot.Plot{Number: 6, Title: "Reads, decodes and augments per unique sample", Y: "times each sample",
		Series: []plot.Series{{Name: "reads"}, {Name: "decodes"}, {Name: "augments"}}}
	cpu := plot.Plot{Number: 10, Title: "Processor time", Form: plot.Stacked, Y: "seconds of processor time",
		Series: []plot.Series{{Name: "daemon"}, {Name: "clients"}}}
	t := htmlreport.Table{Title: "Runs", Head: []string{"run", "seconds", "reads", "over the bound", "decodes",
		"over the bound", "augments", "Jain", "exactly once", "CPU-s for 1,000 samples", "peak memory", "other work"}}
	tiers := htmlreport.Table{Title: "Tiers", Head: []string{"run", "form", "policy", "budget", "peak", "hits",
		"evictions"}}
	var bounds []liveRun
	for i := range l.Runs {
		r := &l.Runs[i]
		work.Bars = append(work.Bars, r.name())
		for k, v := range []float64{r.Per.Reads, r.Per.Decodes, r.Per.Augments} {
			work.Series[k].Points = append(work.Series[k].Points, [2]float64{0, v})
		}
		row := []string{r.name(), plot.Number(r.Makespan), plot.Number(r.Counts.Reads), fmt.Sprintf("%.3f", r.Over.Reads),
			plot.Number(r.Counts.Decodes), fmt.Sprintf("%.3f", r.Over.Decodes), plot.Number(r.Counts.Augments),
			fmt.Sprintf("%.3f", r.Jain), map[bool]string{true: "yes", false: "NO"}[r.Exact], "-", "-", "-"}
		if c := r.CPU; c != nil {
			row[9], row[10], row[11] = plot.Number(c.Per), fmt.Sprintf("%.0f MiB", c.RSS/(1<<20)), percent(c.Others)
			cpu.Bars = append(cpu.Bars, r.name())
			cpu.Series[0].Points = append(cpu.Series[0].Points, [2]float64{0, c.Daemon})
			cpu.Series[1].Points = append(cpu.Series[1].Points, [2]float64{0, c.Clients})
		}
		t.Rows = append(t.Rows, row)
		if slices.Contains(picked, r) {
			bounds = append(bounds, *r)
			for _, x := range r.Tiers {
				tiers.Rows = append(tiers.Rows, []string{r.name(), x.Form, x.Policy, fmt.Sprintf("%.1f MiB", x.Budget/(1<<20)),
					fmt.Sprintf("%.1f MiB", x.Peak/(1<<20)), plot.Number(x.Hits), plot.Number(x.Evictions)})
			}
		}
	}
	for i := range bounds {
		r := &bounds[i]
		if u := float64(r.Unique); u > 0 {
			work.Bars = append(work.Bars, "bound, "+r.name())
			for k, v := range []float64{r.Bound.Reads, r.Bound.Decodes, r.Bound.Augments} {
				work.Series[k].Points = append(work.Series[k].Points, [2]float64{0, v / u})
			}
		}
	}
	n.Plots = append(n.Plots, work)
	if len(cpu.Bars) > 0 {
		n.Plots = append(n.Plots, cpu)
	}
	n.Tables = append(n.Tables, t)
	if len(tiers.Rows) > 0 {
		n.Tables = append(n.Tables, tiers)
	}
}

// errors shows what the simulator said beside what was measured.
func (n *Named) errors(l *live) {
	if len(l.Errors) == 0 {
		return
	}
	p := plot.Plot{Title: "Simulated beside measured", Y: "simulated ÷ median of the measured runs",
		Marks: []plot.Mark{{X: 1, Text: "equal"}}, Series: []plot.Series{{Name: "ratio"}}}
	t := htmlreport.Table{Title: "Simulated beside measured", Head: []string{"what", "simulated", "measured, median",
		"measured, least to most", "error", "allowed", "verdict"}}
	wrong := 0
	for _, e := range l.Errors {
		p.Bars = append(p.Bars, e.What)
		p.Series[0].Points = append(p.Series[0].Points, [2]float64{0, 1 + e.Error})
		row := []string{e.What, plot.Number(e.Simulated), plot.Number(e.Median), "-", fmt.Sprintf("%+.1f %%", 100*e.Error),
			"reported only", "-"}
		if len(e.Measured) > 0 {
			low, high := slices.Min(e.Measured), slices.Max(e.Measured)
			row[3] = plot.Number(low) + " to " + plot.Number(high)
			if e.Median > 0 {
				p.Series[0].Low = append(p.Series[0].Low, e.Simulated/max(high, 1e-12))
				p.Series[0].High = append(p.Series[0].High, e.Simulated/max(low, 1e-12))
			}
		}
		if e.Allowed != nil {
			row[5], row[6] = percent(*e.Allowed), "within"
			if !e.OK {
				row[6] = "TOO FAR"
				wrong++
			}
		}
		t.Rows = append(t.Rows, row)
	}
	if len(p.Series[0].Low) != len(p.Bars) {
		p.Series[0].Low, p.Series[0].High = nil, nil
	}
	if wrong > 0 {
		n.Text = append(n.Text, fmt.Sprintf("%d counts of the simulator are further from what was measured than allowed.",
			wrong))
	}
	n.Plots = append(n.Plots, p)
	n.Tables = append(n.Tables, t)
}
