package plot

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// frame is where lines are drawn: a rectangle of the picture, and what its axes span.
type frame struct {
	x, y, w, h   float64
	lo, hi, high float64 // of the x axis, and the top of the values
	log          bool    // x axis
}

func (f *frame) px(x float64) float64 {
	if f.log {
		return f.x + f.w*(math.Log(x)-math.Log(f.lo))/(math.Log(f.hi)-math.Log(f.lo))
	}
	return f.x + f.w*(x-f.lo)/(f.hi-f.lo)
}

func (f *frame) py(y float64) float64 { return f.y + f.h*(1-min(max(y, 0), f.high)/f.high) }

func (f *frame) bottom() float64 { return f.y + f.h }

// lines draws series over a numeric axis, their names at their ends.
func (p *Plot) lines(b *canvas) {
	p.dropEmpty()
	height := max(plotH, top+bottom+labelStep*float64(len(p.Series)))
	p.begin(b, height)
	f := p.frame(height)
	f.w = plotW - left - right
	p.axes(b, &f)
	b.text(left+f.w/2, height-10, "middle", "unit", p.X)
	for i, m := range p.Marks {
		if m.X >= f.lo && m.X <= f.hi {
			b.line(f.px(m.X), f.y, f.px(m.X), f.bottom(), "mark")
			b.text(f.px(m.X)+4, f.y+10+13*float64(i%3), "start", "num", Clip(m.Text, 34))
		}
	}
	ends := make([]float64, len(p.Series))
	for k, s := range p.Series {
		ends[k] = f.py(0)
		for _, q := range s.Points {
			if finite(q) {
				ends[k] = f.py(q[1])
			}
		}
	}
	at := spread(ends, f.y+2, f.bottom(), labelStep)
	for k := range p.Series {
		st := b.styleOf(&p.Series[k], k)
		b.group(st.Colour, p.Series[k].Name)
		end, some := p.curve(b, k, &f)
		edge := f.x + f.w
		if some {
			b.line(max(end[0], edge)+4, end[1], edge+16, at[k], "lead")
		}
		b.line(edge+18, at[k], edge+38, at[k], "l "+st.Line)
		b.text(edge+44, at[k]+4, "start", "lab", Clip(p.Series[k].Name, 24))
		b.WriteString("</g>")
	}
}

// panels draws lines in several frames side by side, on the same axes. Series of the same place in their panels look
// alike; a legend names those of the first panel.
func (p *Plot) panels(b *canvas) {
	const gap = 62.0
	p.begin(b, plotH)
	whole := p.frame(plotH)
	n := float64(len(p.Panels))
	whole.w = (plotW - left - 12 - gap*(n-1)) / n
	whole.y += 22
	whole.h -= 22
	legend := Plot{Series: p.inPanel(0)}
	legend.legend(b, left)
	for i, name := range p.Panels {
		f := whole
		f.x += float64(i) * (f.w + gap)
		p.axes(b, &f)
		b.text(f.x+f.w, f.y-10, "end", "lab", name)
		b.text(f.x+f.w/2, plotH-10, "middle", "unit", p.X)
		part := Plot{Form: p.Form, Series: p.inPanel(i)}
		for k := range part.Series {
			b.group(b.styleOf(&part.Series[k], k).Colour, part.Series[k].Name)
			part.curve(b, k, &f)
			b.WriteString("</g>")
		}
	}
}

// inPanel returns the series of a panel.
func (p *Plot) inPanel(i int) []Series {
	var out []Series
	for _, s := range p.Series {
		if s.Panel == i {
			out = append(out, s)
		}
	}
	return out
}

// dropEmpty removes the series without a point.
func (p *Plot) dropEmpty() {
	some := p.Series[:0:0]
	for _, s := range p.Series {
		if slices.ContainsFunc(s.Points, finite) {
			some = append(some, s)
		}
	}
	p.Series = some
}

// frame returns a frame for a picture of this height that holds all series; its width is not set.
func (p *Plot) frame(height float64) frame {
	lo, hi, high := p.span()
	return frame{x: left, y: top, h: height - top - bottom, lo: lo, hi: hi, high: high, log: p.Log && lo > 0}
}

// axes draws the grid and the numbers of a frame.
func (p *Plot) axes(b *canvas, f *frame) {
	for _, v := range ticks(0, f.high) {
		b.line(f.x, f.py(v), f.x+f.w, f.py(v), "grid")
		b.text(f.x-7, f.py(v)+4, "end", "num", Number(v))
	}
	b.text(f.x-56, f.y-12, "start", "unit", p.Y)
	last := math.Inf(-1)
	for _, v := range p.xTicks(f.lo, f.hi, f.log) {
		x := f.px(v)
		b.line(x, f.bottom(), x, f.bottom()+4, "base")
		if x-last > 34 {
			b.text(x, f.bottom()+18, "middle", "num", Number(v))
			last = x
		}
	}
	b.line(f.x, f.bottom(), f.x+f.w, f.bottom(), "base")
}

// curve draws the line of a series, and returns where it ends, false where it has no point.
func (p *Plot) curve(b *canvas, k int, f *frame) (end [2]float64, some bool) {
	s := &p.Series[k]
	p.interval(b, s, f)
	var path []string
	for i, q := range s.Points {
		if !finite(q) {
			continue
		}
		x, y := f.px(q[0]), f.py(q[1])
		if p.Form == Steps && len(path) > 0 {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x, end[1]))
		}
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
		end = [2]float64{x, y}
		if len(s.Points) <= 40 && p.Form != Steps {
			tip := fmt.Sprintf("%s: %s at %s%s", s.Name, Number(q[1]), Number(q[0]), within(s, i))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.6" class="f"><title>%s</title></circle>`,
				x, y, html.EscapeString(tip))
		}
	}
	fmt.Fprintf(b, `<polyline points="%s" class="l %s"/>`, strings.Join(path, " "), b.styleOf(s, k).Line)
	return end, len(path) > 0
}

// interval draws what the repeats of each point spanned.
func (p *Plot) interval(b *canvas, s *Series, f *frame) {
	if len(s.Low) != len(s.Points) || len(s.High) != len(s.Points) {
		return
	}
	for i, q := range s.Points {
		if finite(q) && finite([2]float64{s.Low[i], s.High[i]}) {
			b.line(f.px(q[0]), f.py(s.Low[i]), f.px(q[0]), f.py(s.High[i]), "l whisker")
		}
	}
}

func within(s *Series, i int) string {
	if i >= len(s.Low) || i >= len(s.High) {
		return ""
	}
	return fmt.Sprintf(" (%s to %s)", Number(s.Low[i]), Number(s.High[i]))
}

// span is what the axes must hold.
func (p *Plot) span() (lo, hi, high float64) {
	lo, hi, high = math.Inf(1), math.Inf(-1), p.Top
	for _, s := range p.Series {
		for i, q := range s.Points {
			if !finite(q) {
				continue
			}
			lo, hi = min(lo, q[0]), max(hi, q[0])
			if p.Top == 0 {
				high = max(high, q[1])
				if i < len(s.High) && finite([2]float64{0, s.High[i]}) {
					high = max(high, s.High[i])
				}
			}
		}
	}
	if p.Top == 0 {
		high *= 1.05
	}
	if high <= 0 {
		high = 1
	}
	if math.IsInf(lo, 1) {
		lo, hi = 0, 1
	} else if hi <= lo {
		lo, hi = lo-.5, hi+.5
	}
	return lo, hi, high
}

// xTicks are the points' own places when they are few, else round numbers.
func (p *Plot) xTicks(lo, hi float64, logX bool) []float64 {
	var own []float64
	for _, s := range p.Series {
		for _, q := range s.Points {
			if finite(q) && !slices.Contains(own, q[0]) && len(own) <= 8 {
				own = append(own, q[0])
			}
		}
	}
	if len(own) > 0 && len(own) <= 8 {
		slices.Sort(own)
		return own
	}
	if !logX {
		return ticks(lo, hi)
	}
	var at []float64
	factors := []float64{1, 2, 5}
	if hi/lo > 1e3 {
		factors = factors[:1]
	}
	for v := math.Pow(10, math.Floor(math.Log10(lo))); v <= hi*1.0001; v *= 10 {
		for _, m := range factors {
			if v*m >= lo*.9999 && v*m <= hi*1.0001 {
				at = append(at, v*m)
			}
		}
	}
	return at
}
