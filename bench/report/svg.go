package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// Plot is one picture: lines over a numeric axis, or bars over names. Number says which of the fourteen plots of a benchmark it is; 0 = none.
type Plot struct {
	Number int      `json:"number,omitempty"`
	Title  string   `json:"title"`
	X      string   `json:"x"` // label of the axis
	Y      string   `json:"y"`
	Log    bool     `json:"log,omitempty"`  // x axis
	Top    float64  `json:"top,omitempty"`  // of the y axis; 0 = what the points need
	Bars   []string `json:"bars,omitempty"` // names of the groups; the points of a series are their heights, in order
	Series []Series `json:"series"`
}

// Series is one line, or one bar of each group.
type Series struct {
	Name   string       `json:"name"`
	Dashed bool         `json:"dashed,omitempty"` // no system can have it: a bound
	Points [][2]float64 `json:"points"`
}

const (
	plotW, plotH             = 860.0, 340.0
	left, top, right, bottom = 60.0, 26.0, 190.0, 50.0
)

// draw makes the picture. Names become text, never markup.
func (p *Plot) draw() template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotW, plotH, html.EscapeString(p.Title))
	text := func(x, y float64, anchor, class, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, html.EscapeString(s))
	}
	lo, hi, high := math.Inf(1), math.Inf(-1), p.Top
	for _, s := range p.Series {
		for _, q := range s.Points {
			if finite(q) {
				lo, hi = min(lo, q[0]), max(hi, q[0])
				if p.Top == 0 {
					high = max(high, q[1])
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
	if math.IsInf(lo, 1) || hi <= lo {
		lo, hi = 0, 1
	}
	w, h := plotW-left-right, plotH-top-bottom
	logX := p.Log && lo > 0
	px := func(x float64) float64 {
		if logX {
			return left + w*(math.Log(x)-math.Log(lo))/(math.Log(hi)-math.Log(lo))
		}
		return left + w*(x-lo)/(hi-lo)
	}
	py := func(y float64) float64 { return top + h*(1-min(max(y, 0), high)/high) }
	for _, v := range ticks(0, high) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>`, left, py(v), left+w, py(v))
		text(left-6, py(v)+4, "end", "num", number(v))
	}
	text(left-50, top-10, "start", "unit", p.Y)
	text(left+w, plotH-8, "end", "unit", p.X)
	if len(p.Bars) > 0 {
		group := w / float64(len(p.Bars))
		bar := group * .8 / float64(max(1, len(p.Series)))
		for i, name := range p.Bars {
			x := left + group*float64(i)
			if len(p.Bars) <= 6 {
				text(x+group/2, top+h+18, "middle", "lab", name)
			} else {
				fmt.Fprintf(&b, `<text transform="translate(%.1f %.1f) rotate(-24)" text-anchor="end" class="num">%s</text>`, x+group/2+6, top+h+14, html.EscapeString(clip(name, 18)))
			}
			for k, s := range p.Series {
				if i < len(s.Points) && finite(s.Points[i]) {
					y := s.Points[i][1]
					fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="f%d%s"><title>%s</title></rect>`, x+group*.1+bar*float64(k), py(y), bar*.94, top+h-py(y), k%8,
						dashed(s), html.EscapeString(fmt.Sprintf("%s, %s: %s", name, s.Name, number(y))))
				}
			}
		}
	} else {
		at := ticks(lo, hi)
		if logX {
			at = at[:0]
			for v := math.Pow(10, math.Floor(math.Log10(lo))); v <= hi*1.0001; v *= 10 {
				for _, m := range []float64{1, 2, 5} {
					if v*m >= lo*.9999 && v*m <= hi*1.0001 {
						at = append(at, v*m)
					}
				}
			}
		}
		for _, v := range at {
			text(px(v), top+h+18, "middle", "num", number(v))
		}
		for k, s := range p.Series {
			var path []string
			for _, q := range s.Points {
				if finite(q) {
					path = append(path, fmt.Sprintf("%.1f,%.1f", px(q[0]), py(q[1])))
				}
			}
			fmt.Fprintf(&b, `<polyline points="%s" class="l%d%s"><title>%s</title></polyline>`, strings.Join(path, " "), k%8, look(k, s), html.EscapeString(s.Name))
			for _, q := range s.Points {
				if finite(q) && len(s.Points) <= 64 {
					fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.6" class="f%d"><title>%s</title></circle>`, px(q[0]), py(q[1]), k%8, html.EscapeString(fmt.Sprintf("%s: %s, %s", s.Name, number(q[0]), number(q[1]))))
				}
			}
		}
	}
	fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="base"/>`, left, top+h, left+w, top+h)
	step := min(17, h/float64(max(1, len(p.Series))))
	for k, s := range p.Series {
		y := top + 4 + step*float64(k)
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="14" height="4" class="f%d%s"/>`, left+w+12, y, k%8, dashed(s))
		text(left+w+32, y+6, "start", "lab", clip(s.Name, 24))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // every name went through html.EscapeString
}

// look tells a line from the one of the same colour eight before it.
func look(k int, s Series) string {
	if k >= 8 && !s.Dashed {
		return " dot"
	}
	return dashed(s)
}

func dashed(s Series) string {
	if s.Dashed {
		return " dash"
	}
	return ""
}

func finite(q [2]float64) bool {
	return !math.IsNaN(q[0]+q[1]) && !math.IsInf(q[0], 0) && !math.IsInf(q[1], 0)
}

func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// ticks are some round numbers from lo to hi.
func ticks(lo, hi float64) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	var out []float64
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+step*1e-9 && len(out) < 12; i++ {
		out = append(out, i*step)
	}
	return out
}

func number(v float64) string {
	a := math.Abs(v)
	switch {
	case v == 0: // and never -0
		return "0"
	case a >= 1e6 || a > 0 && a < 1e-3:
		return fmt.Sprintf("%.3g", v)
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

// colours can be told apart by people with colour blindness (Okabe, Ito 2008).
var colours = []template.CSS{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c6d31"}
