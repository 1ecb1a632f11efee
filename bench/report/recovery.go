package report

import (
	"fmt"
	"math"

	"larder/internal/htmlreport"
	"larder/internal/plot"
)

// recovery is what became of a run when its daemon was killed (docs/format/live.md).
type recovery struct {
	Killed float64  `json:"killed_seconds"`
	Ready  float64  `json:"ready_seconds"`
	Down   float64  `json:"down_seconds"`
	First  float64  `json:"first_batch_seconds"`
	All    float64  `json:"all_jobs_seconds"`
	Back   *float64 `json:"as_fast_seconds"`
	Lost   float64  `json:"lost"`
	Twice  float64  `json:"repeated"`
	Epochs float64  `json:"ledger_epochs"`
	Ledger float64  `json:"ledger_lost"`
	Slice  float64  `json:"slice_seconds"`
	Jobs   []struct {
		Name    string    `json:"name"`
		First   float64   `json:"first_batch_seconds"`
		Still   float64   `json:"still_seconds"`
		Samples []float64 `json:"samples_by_slice"`
	} `json:"jobs"`
}

// recoveries draws the runs whose daemon was killed: the first one over time, and all of them by what their recovery
// took.
func (n *Named) recoveries(l *live) {
	bars := plot.Plot{Number: 13, Title: "Recovery after a kill", Form: plot.Stacked, Y: "seconds",
		Series: []plot.Series{{Name: "no daemon"}, {Name: "to the first batch"}, {Name: "until every client had one"},
			{Name: "until as fast as before"}},
		Note: "From the moment of SIGKILL. A client without a daemon looks for one after 5 ms, then after pauses that " +
			"double, up to half a second; meanwhile it trains on what lies in its ring. As fast as before: 90 % of the two " +
			"seconds before, for half a second."}
	t := htmlreport.Table{Title: "Recovery after a kill", Head: []string{"run", "killed at, s", "successor ready after, s",
		"job", "first batch after that, s", "without a new batch, s", "as fast as before after, s", "samples lost",
		"samples twice", "missing by the account of the daemon"}}
	for i := range l.Runs {
		r := &l.Runs[i]
		v := r.Recovery
		if v == nil {
			continue
		}
		if len(bars.Bars) == 0 {
			n.Plots = append(n.Plots, v.over(r))
		}
		bar, back, took := r.name()+" (not as fast again)", 0.0, "-"
		if v.Back != nil {
			bar, back, took = r.name(), max(0, *v.Back-v.All), seconds(*v.Back)
		}
		bars.Bars = append(bars.Bars, bar)
		for k, s := range []float64{v.Down, v.First, v.All - v.First, back} {
			bars.Series[k].Points = append(bars.Series[k].Points, [2]float64{0, s})
		}
		t.Rows = append(t.Rows, []string{r.name(), seconds(v.Killed), seconds(v.Down), "all", seconds(v.All), "-", took,
			plot.Number(v.Lost), plot.Number(v.Twice), fmt.Sprintf("%s in %s epochs", plot.Number(v.Ledger),
				plot.Number(v.Epochs))})
		for k := range v.Jobs {
			j := &v.Jobs[k]
			row := []string{r.name(), "", "", j.Name, seconds(j.First), seconds(j.Still), "", "-", "-", ""}
			if j.First == 0 {
				row[4], row[5] = "was not training", "-"
			}
			for m := range r.Jobs {
				if o := &r.Jobs[m]; o.Name == j.Name {
					row[7], row[8] = plot.Number(o.Lost), plot.Number(o.Twice)
				}
			}
			t.Rows = append(t.Rows, row)
		}
	}
	if len(bars.Bars) > 0 {
		n.Plots = append(n.Plots, bars)
		n.Tables = append(n.Tables, t)
	}
}

func seconds(v float64) string { return fmt.Sprintf("%.3g", v) }

// over is what each job took over the time of a run, in as many parts as picture 1 has at most.
func (v *recovery) over(r *liveRun) plot.Plot {
	p := plot.Plot{Number: 13, Title: "Throughput around the death of the daemon, " + r.name(), Form: plot.Steps,
		X: "seconds since the run began", Y: "samples a second",
		Marks: []plot.Mark{{X: v.Killed, Text: "killed"}, {X: v.Ready, Text: "its successor is ready"}}}
	if !(v.Slice > 0) {
		return p
	}
	each := max(1, int(math.Ceil(r.Makespan/intervals/v.Slice)))
	part := v.Slice * float64(each)
	p.Note = fmt.Sprintf("Means of %.3g s, of what clients took.", part)
	for i := range v.Jobs {
		s := plot.Series{Name: v.Jobs[i].Name}
		of := v.Jobs[i].Samples
		for k := 0; k < len(of); k += each {
			sum := 0.0
			for _, n := range of[k:min(k+each, len(of))] {
				sum += n
			}
			s.Points = append(s.Points, [2]float64{float64(k) * v.Slice, sum / part})
			p.Top = max(p.Top, 1.25*sum/part) // room for the marks above the lines
		}
		if len(of) > 0 {
			s.Points = append(s.Points, [2]float64{float64(len(of)) * v.Slice, 0})
			p.Series = append(p.Series, s)
		}
	}
	return p
}
