package demo

import (
	"fmt"

	"larder/internal/htmlreport"
	"larder/internal/plot"
)

// styles are those of both runs; jobs take the colours in order.
func styles(name string) (plot.Style, bool) {
	st, ok := map[string]plot.Style{
		"unshared": {Colour: "c1", Line: plot.Bold},
		"shared":   {Colour: "c0", Line: plot.Bold},
	}[name]
	return st, ok
}

// figure draws a plot without a title of its own: the section has one.
func figure(p plot.Plot) []htmlreport.Figure {
	return []htmlreport.Figure{{Picture: p.SVG(styles)}}
}

// bothRuns are series of the two runs, without points.
func bothRuns() []plot.Series { return []plot.Series{{Name: "unshared"}, {Name: "shared"}} }

// add appends a value to a series of bars.
func add(s *plot.Series, v float64) { s.Points = append(s.Points, [2]float64{0, v}) }

// workPlot shows reads, decodes and augments per unique sample beside the least that any loader needs.
func workPlot(r *Result) plot.Plot {
	reads, decodes, augments := r.Bounds()
	p := plot.Plot{
		Title:  "Work per unique sample, unshared and shared, beside the lower bound",
		Y:      "times per unique sample",
		Series: append(bothRuns(), plot.Series{Name: "lower bound", Dashed: true}),
	}
	for _, g := range []struct {
		name             string
		unshared, shared uint64
		bound            int
	}{
		{"source reads", r.Unshared.SourceReads, r.Shared.SourceReads, reads},
		{"decodes", r.Unshared.Decodes, r.Shared.Decodes, decodes},
		{"augments", r.Unshared.Augments, r.Shared.Augments, augments},
	} {
		p.Bars = append(p.Bars, g.name)
		for i, n := range []float64{float64(g.unshared), float64(g.shared), float64(g.bound)} {
			add(&p.Series[i], ratio(n, float64(r.Unique)))
		}
	}
	return p
}

// decodePlot shows how the decodes of both runs grew.
func decodePlot(r *Result) plot.Plot {
	p := plot.Plot{
		Title:  "Images decoded over time, both runs",
		X:      "seconds since the jobs started",
		Y:      "images decoded so far",
		Series: append(bothRuns(), plot.Series{Name: "every sample once", Dashed: true}),
	}
	for i, run := range []*RunStats{&r.Unshared, &r.Shared} {
		s := &p.Series[i]
		s.Points = append(s.Points, [2]float64{})
		for _, c := range run.Counters {
			s.Points = append(s.Points, [2]float64{c.Seconds, float64(c.Decodes)})
		}
	}
	bound := float64(r.Unique)
	p.Series[2].Points = [][2]float64{{0, bound}, {max(r.Unshared.Seconds, r.Shared.Seconds), bound}}
	return p
}

// rates turns the points of a job into samples per second, over windows of equal length.
func rates(points []Point, end, window float64) [][2]float64 {
	rowsAt := func(t float64) float64 { // linear between reports
		var prev Point
		for _, p := range points {
			if p.Seconds >= t {
				if p.Seconds == prev.Seconds {
					return float64(p.Rows)
				}
				return float64(prev.Rows) + float64(p.Rows-prev.Rows)*(t-prev.Seconds)/(p.Seconds-prev.Seconds)
			}
			prev = p
		}
		return float64(prev.Rows)
	}
	if len(points) == 0 {
		return nil
	}
	end = min(end, points[len(points)-1].Seconds)
	var out [][2]float64
	for t := 0.0; t < end; t += window {
		to := min(t+window, end)
		if to-t < window/4 && len(out) > 0 {
			break // a sliver at the end is noise
		}
		out = append(out, [2]float64{(t + to) / 2, (rowsAt(to) - rowsAt(t)) / (to - t)})
	}
	return out
}

// ratePlot shows the throughput of every job over time, both runs on the same scales.
func ratePlot(r *Result) plot.Plot {
	p := plot.Plot{
		Title:  "Samples per second of each job over time, both runs",
		X:      "seconds",
		Y:      "samples per second",
		Panels: []string{"unshared", "shared"},
	}
	window := max(.5, max(r.Unshared.Seconds, r.Shared.Seconds)/30)
	for i, run := range []*RunStats{&r.Unshared, &r.Shared} {
		for _, job := range run.Jobs {
			s := plot.Series{Name: job.Name, Panel: i, Points: rates(job.Points, run.Seconds, window)}
			p.Series = append(p.Series, s)
		}
	}
	return p
}

// waitPlot shows how long each job waited for batches.
func waitPlot(r *Result) plot.Plot {
	p := plot.Plot{
		Title:  "Seconds each job waited for data, both runs",
		Y:      "seconds waited for batches",
		Series: bothRuns(),
	}
	for i := range r.Shared.Jobs {
		p.Bars = append(p.Bars, r.Shared.Jobs[i].Name)
		add(&p.Series[0], r.Unshared.Jobs[i].WaitSeconds)
		add(&p.Series[1], r.Shared.Jobs[i].WaitSeconds)
	}
	return p
}

// epochPlot shows when every epoch of every job ran.
func epochPlot(r *Result) plot.Plot {
	p := plot.Plot{
		Title:  "When each epoch of each job ran, both runs",
		Form:   plot.Spans,
		X:      "seconds since the jobs started",
		Series: bothRuns(),
	}
	for i := range r.Shared.Jobs {
		p.Bars = append(p.Bars, r.Shared.Jobs[i].Name)
		for k, job := range []*JobRun{&r.Unshared.Jobs[i], &r.Shared.Jobs[i]} {
			for e, span := range job.Epochs {
				p.Spans = append(p.Spans, plot.Span{Group: i, Series: k, From: span.Start, To: span.End, Text: fmt.Sprint(e + 1)})
			}
		}
	}
	return p
}
