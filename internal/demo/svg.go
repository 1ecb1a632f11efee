package demo

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// svg draws one inline picture. Colours come from classes of the page's style sheet, so that a picture is right in a
// light and in a dark page; every text is escaped here, once.
type svg struct {
	b    strings.Builder
	w, h float64
}

func newSVG(w, h float64, label string) *svg {
	s := &svg{w: w, h: h}
	fmt.Fprintf(&s.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, w, h, html.EscapeString(label))
	return s
}

func (s *svg) html() template.HTML {
	return template.HTML(s.b.String() + "</svg>") //nolint:gosec // built here from escaped text and numbers only
}

func f1(v float64) string {
	t := fmt.Sprintf("%.1f", v)
	return strings.TrimSuffix(t, ".0")
}

// rect draws a bar; the tip is shown when the pointer rests on it.
func (s *svg) rect(x, y, w, h float64, class, tip string) {
	fmt.Fprintf(&s.b, `<rect x="%s" y="%s" width="%s" height="%s" rx="2" class="%s"><title>%s</title></rect>`,
		f1(x), f1(y), f1(max(w, 0)), f1(max(h, 0)), class, html.EscapeString(tip))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&s.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, f1(x1), f1(y1), f1(x2), f1(y2), class)
}

// text writes a word; anchor is start, middle or end.
func (s *svg) text(x, y float64, anchor, class, t string) {
	fmt.Fprintf(&s.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, f1(x), f1(y), anchor, class, html.EscapeString(t))
}

// xy is a point in units of the data.
type xy struct{ x, y float64 }

func (s *svg) path(p []xy, class, tip string) {
	if len(p) == 0 {
		return
	}
	fmt.Fprintf(&s.b, `<path class="%s" d="`, class)
	for i, q := range p {
		c := 'L'
		if i == 0 {
			c = 'M'
		}
		fmt.Fprintf(&s.b, "%c%s %s", c, f1(q.x), f1(q.y))
	}
	fmt.Fprintf(&s.b, `"><title>%s</title></path>`, html.EscapeString(tip))
}

// axis is a scale from 0 to a round number.
type axis struct {
	max, step float64
}

// newAxis returns an axis that reaches top and has about n steps of 1, 2 or 5 times a power of ten.
func newAxis(top float64, n int) axis {
	if !(top > 0) || math.IsInf(top, 0) {
		return axis{1, 1}
	}
	raw := top / float64(n)
	p := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * p
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*p*1.0000001 {
			step = m * p
			break
		}
	}
	return axis{max: math.Ceil(top/step*.9999999) * step, step: step}
}

func (a axis) ticks() []float64 {
	var t []float64
	for i := 0; float64(i)*a.step <= a.max*1.0000001; i++ {
		t = append(t, float64(i)*a.step)
	}
	return t
}

func tick(v float64) string {
	if v >= 1000 {
		return count(int64(math.Round(v)))
	}
	return strings.TrimSuffix(fmt.Sprintf("%.4g", v), ".0")
}

// frame is the part of a picture that data are drawn in.
type frame struct {
	s          *svg
	x, y, w, h float64
	ax, ay     axis
}

func (f frame) px(x float64) float64 { return f.x + f.w*x/f.ax.max }
func (f frame) py(y float64) float64 { return f.y + f.h*(1-y/f.ay.max) }

// grid draws the lines and numbers of both axes.
func (f frame) grid(xUnit, yUnit string) {
	for _, v := range f.ay.ticks() {
		f.s.line(f.x, f.py(v), f.x+f.w, f.py(v), "grid")
		f.s.text(f.x-6, f.py(v)+4, "end", "num", tick(v))
	}
	for _, v := range f.ax.ticks() {
		f.s.text(f.px(v), f.y+f.h+16, "middle", "num", tick(v))
	}
	f.s.text(f.x+f.w, f.y+f.h+31, "end", "unit", xUnit)
	f.s.text(f.x-34, f.y-9, "start", "unit", yUnit)
	f.s.line(f.x, f.y+f.h, f.x+f.w, f.y+f.h, "base")
}
