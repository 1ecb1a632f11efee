package demo

import (
	"fmt"
	"html/template"
)

// jobClass is the style of a job's line: eight colours that people with colour blindness can tell apart (Okabe, Ito 2008),
// then the same eight dashed.
func jobClass(i int) string {
	c := fmt.Sprintf("job j%d", i%8)
	if i%16 >= 8 {
		c += " dash"
	}
	return c
}

// workPlot shows reads, decodes and augments per unique sample beside the least that any loader needs.
func workPlot(r *Result) template.HTML {
	reads, decodes, augments := r.Bounds()
	groups := []struct {
		name  string
		u, s  uint64
		bound int
	}{
		{"source reads", r.Unshared.SourceReads, r.Shared.SourceReads, reads},
		{"decodes", r.Unshared.Decodes, r.Shared.Decodes, decodes},
		{"augments", r.Unshared.Augments, r.Shared.Augments, augments},
	}
	per := func(n float64) float64 { return ratio(n, float64(r.Unique)) }
	top := 0.0
	for _, g := range groups {
		top = max(top, per(float64(g.u)), per(float64(g.s)), per(float64(g.bound)))
	}
	s := newSVG(860, 300, "Work per unique sample, unshared and shared, beside the lower bound")
	f := frame{s: s, x: 46, y: 30, w: 800, h: 220, ax: axis{float64(len(groups)), 1}, ay: newAxis(top*1.08, 5)}
	for _, v := range f.ay.ticks() {
		s.line(f.x, f.py(v), f.x+f.w, f.py(v), "grid")
		s.text(f.x-6, f.py(v)+4, "end", "num", tick(v))
	}
	s.text(f.x-34, f.y-12, "start", "unit", "times per unique sample")
	const bar = 84.0
	for i, g := range groups {
		mid := f.px(float64(i) + .5)
		for k, n := range []uint64{g.u, g.s} {
			v := per(float64(n))
			x := mid - bar - 3 + float64(k)*(bar+6)
			class, run := "bar u", "unshared"
			if k == 1 {
				class, run = "bar s", "shared"
			}
			s.rect(x, f.py(v), bar, f.y+f.h-f.py(v), class, fmt.Sprintf("%s, %s: %s, %.2f per unique sample", g.name, run, count(n), v))
			s.text(x+bar/2, f.py(v)-6, "middle", "val", fmt.Sprintf("%.2f", v))
		}
		y := f.py(per(float64(g.bound)))
		s.line(mid-bar-14, y, mid+bar+14, y, "bound")
		s.text(mid, f.y+f.h+20, "middle", "lab", g.name)
	}
	s.line(f.x, f.y+f.h, f.x+f.w, f.y+f.h, "base")
	return s.html()
}

// decodePlot shows how the decodes of both runs grew.
func decodePlot(r *Result) template.HTML {
	top, end := float64(r.Unique), 0.0
	for _, run := range []*RunStats{&r.Unshared, &r.Shared} {
		end = max(end, run.Seconds)
		top = max(top, float64(run.Decodes))
	}
	s := newSVG(860, 280, "Images decoded over time, both runs")
	f := frame{s: s, x: 60, y: 26, w: 720, h: 204, ax: newAxis(end, 10), ay: newAxis(top*1.02, 7)}
	f.grid("seconds since the jobs started", "images decoded so far")
	s.line(f.x, f.py(float64(r.Unique)), f.x+f.w, f.py(float64(r.Unique)), "bound")
	for _, run := range []struct {
		*RunStats
		class, name string
	}{{&r.Unshared, "curve cu", "unshared"}, {&r.Shared, "curve cs", "shared"}} {
		line := []xy{{f.px(0), f.py(0)}}
		for _, c := range run.Counters {
			line = append(line, xy{f.px(min(c.Seconds, f.ax.max)), f.py(float64(c.Decodes))})
		}
		s.path(line, run.class, fmt.Sprintf("%s: %s decodes in %.1f s", run.name, count(run.Decodes), run.Seconds))
		last := line[len(line)-1]
		s.text(last.x+7, last.y+4, "start", "val", run.name)
	}
	return s.html()
}

// rates turns the points of a job into samples per second, over windows of equal length.
func rates(points []Point, end, window float64) []xy {
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
	var out []xy
	for t := 0.0; t < end; t += window {
		to := min(t+window, end)
		if to-t < window/4 && len(out) > 0 {
			break // a sliver at the end is noise
		}
		out = append(out, xy{(t + to) / 2, (rowsAt(to) - rowsAt(t)) / (to - t)})
	}
	return out
}

// ratePlot shows the throughput of every job over time, both runs on the same scales.
func ratePlot(r *Result) template.HTML {
	runs := []*RunStats{&r.Unshared, &r.Shared}
	end := max(runs[0].Seconds, runs[1].Seconds)
	window := max(.5, end/30)
	var lines [2][][]xy
	top := 0.0
	for i, run := range runs {
		for j := range run.Jobs {
			l := rates(run.Jobs[j].Points, run.Seconds, window)
			for _, p := range l {
				top = max(top, p.y)
			}
			lines[i] = append(lines[i], l)
		}
	}
	s := newSVG(860, 280, "Samples per second of each job over time, both runs")
	ax, ay := newAxis(end, 7), newAxis(top*1.05, 5)
	for i, run := range runs {
		f := frame{s: s, x: 50 + float64(i)*430, y: 34, w: 370, h: 196, ax: ax, ay: ay}
		f.grid("seconds", "samples per second")
		s.text(f.x+f.w, f.y-9, "end", "lab", []string{"unshared", "shared"}[i])
		for j, l := range lines[i] {
			p := make([]xy, len(l))
			for k, q := range l {
				p[k] = xy{f.px(q.x), f.py(q.y)}
			}
			s.path(p, jobClass(j), fmt.Sprintf("%s, %s: %.0f samples a second on average", run.Jobs[j].Name,
				[]string{"unshared", "shared"}[i], ratio(float64(run.Jobs[j].Samples*r.Epochs), run.Jobs[j].Seconds)))
		}
	}
	return s.html()
}

// waitPlot shows how long each job waited for batches.
func waitPlot(r *Result) template.HTML {
	n := len(r.Shared.Jobs)
	top := 0.0
	for i := range n {
		top = max(top, r.Unshared.Jobs[i].WaitSeconds, r.Shared.Jobs[i].WaitSeconds)
	}
	const row = 44.0
	s := newSVG(860, 52+row*float64(n), "Seconds each job waited for data, both runs")
	f := frame{s: s, x: 90, y: 8, w: 640, h: row * float64(n), ax: newAxis(top, 6), ay: axis{1, 1}}
	for _, v := range f.ax.ticks() {
		s.line(f.px(v), f.y, f.px(v), f.y+f.h, "grid")
		s.text(f.px(v), f.y+f.h+16, "middle", "num", tick(v))
	}
	s.text(f.x+f.w, f.y+f.h+33, "end", "unit", "seconds waited for batches")
	for i := range n {
		y := f.y + row*float64(i) + 5
		s.text(f.x-8, y+21, "end", "lab", r.Shared.Jobs[i].Name)
		for k, job := range []*JobRun{&r.Unshared.Jobs[i], &r.Shared.Jobs[i]} {
			class, run := "bar u", "unshared"
			if k == 1 {
				class, run = "bar s", "shared"
			}
			top := y + float64(k)*17
			part := fmt.Sprintf("%.1f s, %.0f%% of its time", job.WaitSeconds, 100*ratio(job.WaitSeconds, job.Seconds))
			s.rect(f.x, top, f.px(job.WaitSeconds)-f.x, 15, class, fmt.Sprintf("%s, %s: waited %s", job.Name, run, part))
			s.text(f.px(job.WaitSeconds)+6, top+12, "start", "num", part)
		}
	}
	s.line(f.x, f.y, f.x, f.y+f.h, "base")
	return s.html()
}

// epochPlot shows when every epoch of every job ran.
func epochPlot(r *Result) template.HTML {
	n := len(r.Shared.Jobs)
	const row = 44.0
	s := newSVG(860, 52+row*float64(n), "When each epoch of each job ran, both runs")
	f := frame{s: s, x: 90, y: 8, w: 750, h: row * float64(n), ax: newAxis(max(r.Unshared.Seconds, r.Shared.Seconds), 8), ay: axis{1, 1}}
	for _, v := range f.ax.ticks() {
		s.line(f.px(v), f.y, f.px(v), f.y+f.h, "grid")
		s.text(f.px(v), f.y+f.h+16, "middle", "num", tick(v))
	}
	s.text(f.x+f.w, f.y+f.h+33, "end", "unit", "seconds since the jobs started")
	for i := range n {
		y := f.y + row*float64(i) + 5
		s.text(f.x-8, y+21, "end", "lab", r.Shared.Jobs[i].Name)
		for k, job := range []*JobRun{&r.Unshared.Jobs[i], &r.Shared.Jobs[i]} {
			class, run := "bar u", "unshared"
			if k == 1 {
				class, run = "bar s", "shared"
			}
			for e, span := range job.Epochs {
				x, w := f.px(span.Start), f.px(span.End)-f.px(span.Start)
				top := y + float64(k)*17
				s.rect(x+.8, top, w-1.6, 15, class, fmt.Sprintf("%s, %s, epoch %d: %.1f s to %.1f s", job.Name, run, e+1, span.Start, span.End))
				if w > 16 {
					s.text(x+w/2, top+12, "middle", "on", fmt.Sprint(e+1))
				}
			}
		}
	}
	s.line(f.x, f.y, f.x, f.y+f.h, "base")
	return s.html()
}
