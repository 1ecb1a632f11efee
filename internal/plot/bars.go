package plot

import (
	"fmt"
	"html"
	"math"
	"unicode"
)

// layout is where the groups of lying bars are.
type layout struct {
	x, y, w     float64 // of the bars; names are to the left
	thick, gap  float64 // of a bar, between two groups
	group, high float64 // height of a group with its gap, the longest value
	groups      int
}

func (l *layout) px(v float64) float64 { return l.x + l.w*min(max(v, 0), l.high)/l.high }

func (l *layout) top(i int) float64 { return l.y + l.group*float64(i) }

func (l *layout) bottom() float64 { return l.top(l.groups) }

// layOut returns the layout of groups of rows bars each, up to a value.
func (p *Plot) layOut(rows int, high float64) layout {
	l := layout{y: 26, thick: 17, gap: 7, high: high, groups: len(p.Bars)}
	if rows > 1 {
		l.thick = 12
	}
	if high <= 0 {
		l.high = 1
	}
	l.group = l.thick*float64(max(1, rows)) + l.gap
	for _, n := range p.Bars {
		l.x = max(l.x, labelWidth(Clip(n, 30)))
	}
	l.x += 16
	if len(p.Series) > 1 {
		l.y += 18
	}
	if len(p.Marks) > 0 {
		l.y += 10
	}
	l.w = plotW - l.x - 90
	return l
}

// bars draws a group of lying bars for each name, so that names of any length can be read; stacked ones share one bar.
func (p *Plot) bars(b *canvas) {
	rows := len(p.Series)
	if p.Form == Stacked {
		rows = 1
	}
	l := p.layOut(rows, p.longest())
	p.barAxes(b, &l, p.Y)
	for _, m := range p.Marks {
		if m.X <= l.high {
			b.line(l.px(m.X), l.y-6, l.px(m.X), l.bottom(), "mark")
			b.text(l.px(m.X)+4, l.y-6, "start", "num", Clip(m.Text, 34))
		}
	}
	for i := range p.Bars {
		if p.Form == Stacked {
			p.stack(b, &l, i)
			continue
		}
		for k := range p.Series {
			if s := &p.Series[k]; i < len(s.Points) && finite(s.Points[i]) {
				p.bar(b, &l, i, k)
			}
		}
	}
	b.line(l.x, l.y-4, l.x, l.bottom(), "base")
}

// barAxes begins the picture and draws its grid, its legend and the names of its groups.
func (p *Plot) barAxes(b *canvas, l *layout, unit string) {
	p.begin(b, l.bottom()+40)
	for _, v := range ticks(0, l.high) {
		b.line(l.px(v), l.y-4, l.px(v), l.bottom(), "grid")
		b.text(l.px(v), l.bottom()+14, "middle", "num", Number(v))
	}
	b.text(l.x+l.w/2, l.bottom()+32, "middle", "unit", unit)
	p.legend(b, l.x)
	for i, name := range p.Bars {
		b.text(l.x-8, l.top(i)+(l.group-l.gap)/2+4, "end", "lab", Clip(name, 30))
	}
}

// longest is the value that the axis of bars must reach.
func (p *Plot) longest() float64 {
	high := p.Top
	for i := range p.Bars {
		if p.Form == Stacked {
			high = max(high, p.sum(i))
			continue
		}
		for _, s := range p.Series {
			if i < len(s.Points) && finite(s.Points[i]) {
				high = max(high, s.Points[i][1])
			}
			if i < len(s.High) && finite([2]float64{0, s.High[i]}) {
				high = max(high, s.High[i])
			}
		}
	}
	for _, m := range p.Marks {
		if p.Top == 0 {
			high = max(high, m.X*1.05)
		}
	}
	return high
}

// sum is the length of all bars of a group together.
func (p *Plot) sum(i int) float64 {
	sum := 0.0
	for _, s := range p.Series {
		if i < len(s.Points) && finite(s.Points[i]) {
			sum += max(0, s.Points[i][1])
		}
	}
	return sum
}

// bar draws the bar of a series in a group, with its interval and its value.
func (p *Plot) bar(b *canvas, l *layout, i, k int) {
	s := &p.Series[k]
	v, row := s.Points[i][1], l.top(i)+l.thick*float64(k)
	p.rect(b, l, i, k, [2]float64{0, row})
	edge := v
	if i < len(s.High) && finite([2]float64{0, s.High[i]}) {
		edge = max(edge, s.High[i])
	}
	b.text(l.px(edge)+5, row+l.thick-4, "start", "num", Number(v))
	b.WriteString("</g>")
}

// stack draws the bars of a group behind one another, and their sum.
func (p *Plot) stack(b *canvas, l *layout, i int) {
	from, row := 0.0, l.top(i)
	for k := range p.Series {
		s := &p.Series[k]
		if i >= len(s.Points) || !finite(s.Points[i]) {
			continue
		}
		p.rect(b, l, i, k, [2]float64{from, row})
		b.WriteString("</g>")
		from += max(0, s.Points[i][1])
	}
	b.text(l.px(from)+5, row+l.thick-4, "start", "num", Number(math.Round(from*100)/100))
}

// rect opens the group of a bar that begins at a value and a height, and draws it with its interval.
func (p *Plot) rect(b *canvas, l *layout, i, k int, at [2]float64) {
	s, name := &p.Series[k], p.Bars[i]
	st := b.styleOf(s, k)
	if len(p.Series) == 1 {
		st = b.styleOf(&Series{Name: name}, 0)
	}
	v := s.Points[i][1]
	tip := fmt.Sprintf("%s, %s: %s%s", name, s.Name, Number(v), within(s, i))
	x := l.px(at[0])
	fmt.Fprintf(b,
		`<g class="s %s"><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="f%s"><title>%s</title></rect>`,
		st.Colour, x, at[1], max(.5, l.px(at[0]+v)-x), l.thick-1.5, faint(s), html.EscapeString(tip))
	if i < len(s.Low) && i < len(s.High) && finite([2]float64{s.Low[i], s.High[i]}) {
		middle := at[1] + l.thick/2 - 1
		b.line(l.px(s.Low[i]), middle, l.px(s.High[i]), middle, "whisker base")
	}
}

// faint is the class of a bar that is a bound.
func faint(s *Series) string {
	if s.Dashed {
		return " faint"
	}
	return ""
}

// spans draws when each series of each group was active.
func (p *Plot) spans(b *canvas) {
	high := p.Top
	for _, s := range p.Spans {
		high = max(high, s.To)
	}
	l := p.layOut(len(p.Series), high)
	p.barAxes(b, &l, p.X)
	for _, s := range p.Spans {
		series := &p.Series[s.Series]
		row := l.top(s.Group) + l.thick*float64(s.Series)
		x, w := l.px(s.From), l.px(s.To)-l.px(s.From)
		tip := fmt.Sprintf("%s, %s, %s: %s to %s", p.Bars[s.Group], series.Name, s.Text, Number(s.From), Number(s.To))
		fmt.Fprintf(b,
			`<g class="s %s"><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="f"><title>%s</title></rect>`,
			b.styleOf(series, s.Series).Colour, x+.8, row, max(.5, w-1.6), l.thick-1.5, html.EscapeString(tip))
		if w > labelWidth(s.Text)+4 {
			b.text(x+w/2, row+l.thick-4, "middle", "mid light", s.Text)
		}
		b.WriteString("</g>")
	}
	b.line(l.x, l.y-4, l.x, l.bottom(), "base")
}

// labelWidth is how wide a name is at most, in the units of a picture.
func labelWidth(s string) float64 {
	w := 0.0
	for _, r := range s {
		if unicode.IsUpper(r) || r == 'm' || r == 'w' || r > 127 {
			w += 9.2
		} else {
			w += 6.6
		}
	}
	return w
}

// legend names the series above the bars.
func (p *Plot) legend(b *canvas, x float64) {
	if len(p.Series) < 2 {
		return
	}
	for k := range p.Series {
		s := &p.Series[k]
		fmt.Fprintf(b, `<g class="s %s"><rect x="%.1f" y="12" width="12" height="12" class="f%s"/>`,
			b.styleOf(s, k).Colour, x, faint(s))
		b.text(x+17, 22, "start", "lab", s.Name)
		b.WriteString("</g>")
		x += 34 + 6.6*float64(len([]rune(s.Name)))
	}
}
