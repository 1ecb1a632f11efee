package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Plot is one picture. Number says which of the fourteen plots of a benchmark it is; 0 = none.
type Plot struct {
	Number int      `json:"number,omitempty"`
	Title  string   `json:"title"`
	Form   string   `json:"form,omitempty"` // one of the forms below; "" = bars when there are Bars, else lines
	X      string   `json:"x"`              // label of the axis, with its unit
	Y      string   `json:"y"`
	Log    bool     `json:"log,omitempty"`  // x axis
	Top    float64  `json:"top,omitempty"`  // of the axis of values; 0 = what the points need
	Bars   []string `json:"bars,omitempty"` // names of the groups; the points of a series are their lengths, in order
	Series []Series `json:"series,omitempty"`
	Marks  []Mark   `json:"marks,omitempty"`
	Panels []string `json:"panels,omitempty"` // of a simplex: what the values of a cell are
	Cells  []Cell   `json:"cells,omitempty"`
	Note   string   `json:"note,omitempty"` // below the picture
}

// Forms of a plot.
const (
	Steps   = "steps"   // lines that keep a value until the next point
	Stacked = "stacked" // bars on top of each other
	Simplex = "simplex" // a triangle of splits for each of Panels
)

// Series is one line, or one bar of each group.
type Series struct {
	Name   string       `json:"name"`
	Dashed bool         `json:"dashed,omitempty"` // no system can have it: a bound
	Points [][2]float64 `json:"points"`
	Low    []float64    `json:"low,omitempty"` // of each point: the interval of its repeats
	High   []float64    `json:"high,omitempty"`
}

// Mark is a place that is pointed at: on the x axis of lines a moment, on that of bars a value to compare with.
type Mark struct {
	X    float64 `json:"x"`
	Text string  `json:"text"`
}

// Cell is one split of memory: the parts for encoded, decoded and augmented samples, and a value for each panel.
type Cell struct {
	Split  [3]float64 `json:"split"`
	Values []float64  `json:"values"`
	Mark   string     `json:"mark,omitempty"` // why it stands out
}

const (
	plotW, plotH             = 860.0, 330.0
	left, top, right, bottom = 62.0, 30.0, 196.0, 52.0
	labelStep                = 14.0 // between two names at the right
)

// canvas collects the elements of a picture.
type canvas struct {
	strings.Builder
}

func (b *canvas) text(x, y float64, anchor, class, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, html.EscapeString(s))
}

func (b *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// draw makes the picture. Names become text, never markup.
func (p *Plot) draw() template.HTML {
	b := new(canvas)
	switch {
	case p.Form == Simplex:
		p.simplex(b)
	case len(p.Bars) > 0:
		p.bars(b)
	default:
		p.lines(b)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // every name went through html.EscapeString
}

func (p *Plot) begin(b *canvas, height float64) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotW, height, html.EscapeString(p.Title))
}

// lines draws series over a numeric axis, their names at their ends.
func (p *Plot) lines(b *canvas) {
	some := p.Series[:0:0]
	for _, s := range p.Series {
		if slices.ContainsFunc(s.Points, finite) {
			some = append(some, s)
		}
	}
	p.Series = some
	height := max(plotH, top+bottom+labelStep*float64(len(p.Series)))
	p.begin(b, height)
	lo, hi, high := p.span()
	w, h := plotW-left-right, height-top-bottom
	logX := p.Log && lo > 0
	px := func(x float64) float64 {
		if logX {
			return left + w*(math.Log(x)-math.Log(lo))/(math.Log(hi)-math.Log(lo))
		}
		return left + w*(x-lo)/(hi-lo)
	}
	py := func(y float64) float64 { return top + h*(1-min(max(y, 0), high)/high) }
	for _, v := range ticks(0, high) {
		b.line(left, py(v), left+w, py(v), "grid")
		b.text(left-7, py(v)+4, "end", "num", number(v))
	}
	b.text(6, top-12, "start", "unit", p.Y)
	b.text(left+w/2, height-10, "middle", "unit", p.X)
	last := math.Inf(-1)
	for _, v := range p.xTicks(lo, hi, logX) {
		b.line(px(v), top+h, px(v), top+h+4, "base")
		if px(v)-last > 34 {
			b.text(px(v), top+h+18, "middle", "num", number(v))
			last = px(v)
		}
	}
	b.line(left, top+h, left+w, top+h, "base")
	for i, m := range p.Marks {
		if m.X >= lo && m.X <= hi {
			b.line(px(m.X), top, px(m.X), top+h, "mark")
			b.text(px(m.X)+4, top+10+13*float64(i%3), "start", "num", clip(m.Text, 34))
		}
	}
	ends := make([]float64, len(p.Series))
	for k, s := range p.Series {
		ends[k] = py(0)
		for _, q := range s.Points {
			if finite(q) {
				ends[k] = py(q[1])
			}
		}
	}
	at := spread(ends, top+2, top+h, labelStep)
	for k := range p.Series {
		p.one(b, k, px, py, at[k], left+w)
	}
}

// one draws one line with its name.
func (p *Plot) one(b *canvas, k int, px, py func(float64) float64, label, edge float64) {
	s := &p.Series[k]
	st := styleOf(s, k)
	fmt.Fprintf(b, `<g class="s %s"><title>%s</title>`, st.colour, html.EscapeString(s.Name))
	p.interval(b, s, px, py)
	var path []string
	var end [2]float64
	for i, q := range s.Points {
		if !finite(q) {
			continue
		}
		x, y := px(q[0]), py(q[1])
		if p.Form == Steps && len(path) > 0 {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x, end[1]))
		}
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
		end = [2]float64{x, y}
		if len(s.Points) <= 40 && p.Form != Steps {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.6" class="f"><title>%s</title></circle>`, x, y, html.EscapeString(fmt.Sprintf("%s: %s at %s%s", s.Name, number(q[1]), number(q[0]), within(s, i))))
		}
	}
	fmt.Fprintf(b, `<polyline points="%s" class="l %s"/>`, strings.Join(path, " "), st.line)
	if len(path) > 0 {
		b.line(max(end[0], edge)+4, end[1], edge+16, label, "lead")
	}
	b.line(edge+18, label, edge+38, label, "l "+st.line)
	b.text(edge+44, label+4, "start", "lab", clip(s.Name, 24))
	b.WriteString("</g>")
}

// interval draws what the repeats of each point spanned.
func (p *Plot) interval(b *canvas, s *Series, px, py func(float64) float64) {
	if len(s.Low) != len(s.Points) || len(s.High) != len(s.Points) {
		return
	}
	for i, q := range s.Points {
		if finite(q) && finite([2]float64{s.Low[i], s.High[i]}) {
			b.line(px(q[0]), py(s.Low[i]), px(q[0]), py(s.High[i]), "l whisker")
		}
	}
}

func within(s *Series, i int) string {
	if i >= len(s.Low) || i >= len(s.High) {
		return ""
	}
	return fmt.Sprintf(" (%s to %s)", number(s.Low[i]), number(s.High[i]))
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

// spread moves places apart so that two are at least step apart and all are from lo to hi, each as near to its own as its neighbours let it.
func spread(at []float64, lo, hi, step float64) []float64 {
	n := len(at)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case at[a] < at[b]:
			return -1
		case at[a] > at[b]:
			return 1
		}
		return 0
	})
	out := slices.Clone(at)
	if n > 1 {
		step = min(step, (hi-lo)/float64(n-1))
	}
	next := lo
	for _, i := range order {
		out[i] = max(out[i], next)
		next = out[i] + step
	}
	next = hi
	for _, i := range slices.Backward(order) {
		out[i] = min(out[i], next)
		next = out[i] - step
	}
	return out
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

// number writes a value in a few characters.
func number(v float64) string {
	a := math.Abs(v)
	switch {
	case v == 0: // and never -0
		return "0"
	case a >= 1e7:
		return fmt.Sprintf("%.3g", v)
	case a >= 1e4:
		return thousands(fmt.Sprintf("%.0f", v))
	case a < 1e-3:
		return fmt.Sprintf("%.2g", v)
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

// thousands puts commas into a whole number.
func thousands(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
