package plot

import (
	"fmt"
	"html"
	"math"
)

// square is one panel of a scatter: the same logarithmic axis to the right and up.
type square struct {
	x, y, side float64 // left edge, top
	lo, hi     float64
}

// at is how far a value is along an axis. What lies beyond the axis is at its end.
func (q *square) at(v float64) float64 {
	v = min(max(v, q.lo), q.hi)
	return q.side * math.Log(v/q.lo) / math.Log(q.hi/q.lo)
}

// scatter draws points about a diagonal in square panels side by side; both axes are logarithmic and the same in all.
func (p *Plot) scatter(b *canvas) {
	const gap = 44.0
	n := float64(max(1, len(p.Panels)))
	q := square{x: left, y: top + 22, side: (plotW - left - 12 - gap*(n-1)) / n, lo: math.Inf(1)}
	for _, s := range p.Series {
		for _, v := range s.Points {
			if drawn(v) {
				q.lo, q.hi = min(q.lo, v[0], v[1]), max(q.hi, v[0], v[1])
			}
		}
	}
	if q.lo >= q.hi {
		q.lo, q.hi = 1, 10
	}
	q.lo, q.hi = q.lo/1.15, q.hi*1.15
	if p.Top > q.lo {
		q.hi = min(q.hi, p.Top)
	}
	p.begin(b, q.y+q.side+52)
	legend := Plot{Series: p.inPanel(0)}
	legend.legend(b, left)
	for i := range max(1, len(p.Panels)) {
		p.diagonal(b, &q)
		if i == 0 {
			b.text(q.x-left+4, q.y+q.side+34, "start", "unit", p.Y)
		}
		if i < len(p.Panels) {
			b.text(q.x+q.side, q.y-8, "end", "lab", p.Panels[i])
		}
		for k, s := range p.inPanel(i) {
			p.points(b, &q, k, &s)
		}
		q.x += q.side + gap
	}
}

// drawn reports whether a point has a place on logarithmic axes.
func drawn(v [2]float64) bool { return finite(v) && v[0] > 0 && v[1] > 0 }

// diagonal draws the axes of a panel, its diagonal and the lines that are Off from it.
func (p *Plot) diagonal(b *canvas, q *square) {
	bottom := q.y + q.side
	for v := math.Pow(10, math.Floor(math.Log10(q.lo))); v <= q.hi; v *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if t := v * m; t >= q.lo && t <= q.hi {
				x, y := q.x+q.at(t), bottom-q.at(t)
				b.line(x, q.y, x, bottom, "grid")
				b.line(q.x, y, q.x+q.side, y, "grid")
				b.text(x, bottom+15, "middle", "num", short(t))
				b.text(q.x-4, y+4, "end", "num", short(t))
			}
		}
	}
	line := func(factor float64, class string) {
		lo, hi := max(q.lo, q.lo/factor), min(q.hi, q.hi/factor)
		b.line(q.x+q.at(lo), bottom-q.at(lo*factor), q.x+q.at(hi), bottom-q.at(hi*factor), class)
	}
	line(1, "base")
	if p.Off > 0 && p.Off < 1 {
		line(1-p.Off, "mark")
		line(1+p.Off, "mark")
	}
	b.text(q.x+q.side/2, bottom+34, "middle", "unit", p.X)
}

func (p *Plot) points(b *canvas, q *square, k int, s *Series) {
	b.group(b.styleOf(s, k).Colour, s.Name)
	for i, v := range s.Points {
		if !drawn(v) {
			continue
		}
		class := "f"
		if i < len(s.Hollow) && s.Hollow[i] {
			class = "ring"
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" class="%s"><title>%s</title></circle>`, q.x+q.at(v[0]),
			q.y+q.side-q.at(v[1]), class, html.EscapeString(s.Name+": "+Number(v[1])+" at "+Number(v[0])))
	}
	b.WriteString("</g>")
}
