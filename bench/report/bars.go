package report

import (
	"fmt"
	"html"
	"math"
	"slices"
	"unicode"
)

// bars draws a group of lying bars for each name, so that names of any length can be read; stacked ones share one bar.
func (p *Plot) bars(b *canvas) {
	stacked := p.Form == Stacked
	perGroup := len(p.Series)
	if stacked {
		perGroup = 1
	}
	thick := 17.0
	if perGroup > 1 {
		thick = 12
	}
	gap := 7.0
	group := thick*float64(max(1, perGroup)) + gap
	nameW := 0.0
	for _, n := range p.Bars {
		nameW = max(nameW, labelWidth(clip(n, 30)))
	}
	x0, y0 := nameW+16, 26.0
	if len(p.Series) > 1 {
		y0 += 18
	}
	if len(p.Marks) > 0 {
		y0 += 10
	}
	height := y0 + group*float64(len(p.Bars)) + 40
	p.begin(b, height)
	high := p.Top
	for i := range p.Bars {
		sum := 0.0
		for _, s := range p.Series {
			if i < len(s.Points) && finite(s.Points[i]) {
				sum += max(0, s.Points[i][1])
				if !stacked {
					high = max(high, s.Points[i][1])
				}
			}
			if !stacked && i < len(s.High) && finite([2]float64{0, s.High[i]}) {
				high = max(high, s.High[i])
			}
		}
		if stacked {
			high = max(high, sum)
		}
	}
	for _, m := range p.Marks {
		if p.Top == 0 {
			high = max(high, m.X*1.05)
		}
	}
	if high <= 0 {
		high = 1
	}
	w := plotW - x0 - 90
	px := func(v float64) float64 { return x0 + w*min(max(v, 0), high)/high }
	bottomY := y0 + group*float64(len(p.Bars))
	for _, v := range ticks(0, high) {
		b.line(px(v), y0-4, px(v), bottomY, "grid")
		b.text(px(v), bottomY+14, "middle", "num", number(v))
	}
	b.text(x0+w/2, bottomY+32, "middle", "unit", p.Y)
	p.legend(b, x0)
	for _, m := range p.Marks {
		if m.X <= high {
			b.line(px(m.X), y0-6, px(m.X), bottomY, "mark")
			b.text(px(m.X)+4, y0-6, "start", "num", clip(m.Text, 34))
		}
	}
	for i, name := range p.Bars {
		y := y0 + group*float64(i)
		b.text(x0-8, y+(group-gap)/2+4, "end", "lab", clip(name, 30))
		at := 0.0
		for k := range p.Series {
			s := &p.Series[k]
			if i >= len(s.Points) || !finite(s.Points[i]) {
				continue
			}
			v := s.Points[i][1]
			st := styleOf(s, k)
			if len(p.Series) == 1 {
				st = styleOf(&Series{Name: name}, 0)
			}
			from, row := 0.0, y+thick*float64(k)
			if stacked {
				from, row = at, y
				at += max(0, v)
			}
			faint := ""
			if s.Dashed {
				faint = " faint"
			}
			fmt.Fprintf(b, `<g class="s %s"><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="f%s"><title>%s</title></rect>`, st.colour, px(from), row, max(.5, px(from+v)-px(from)), thick-1.5, faint,
				html.EscapeString(fmt.Sprintf("%s, %s: %s%s", name, s.Name, number(v), within(s, i))))
			if i < len(s.Low) && i < len(s.High) && finite([2]float64{s.Low[i], s.High[i]}) {
				b.line(px(s.Low[i]), row+thick/2-1, px(s.High[i]), row+thick/2-1, "whisker base")
			}
			if !stacked {
				edge := v
				if i < len(s.High) && finite([2]float64{0, s.High[i]}) {
					edge = max(edge, s.High[i])
				}
				b.text(px(edge)+5, row+thick-4, "start", "num", number(v))
			}
			b.WriteString("</g>")
		}
	}
	if stacked {
		for i := range p.Bars {
			sum := 0.0
			for _, s := range p.Series {
				if i < len(s.Points) && finite(s.Points[i]) {
					sum += max(0, s.Points[i][1])
				}
			}
			b.text(px(sum)+5, y0+group*float64(i)+thick-4, "start", "num", number(math.Round(sum*100)/100))
		}
	}
	b.line(x0, y0-4, x0, bottomY, "base")
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
		faint := ""
		if s.Dashed {
			faint = " faint"
		}
		fmt.Fprintf(b, `<g class="s %s"><rect x="%.1f" y="12" width="12" height="12" class="f%s"/>`, styleOf(s, k).colour, x, faint)
		b.text(x+17, 22, "start", "lab", s.Name)
		b.WriteString("</g>")
		x += 34 + 6.6*float64(len([]rune(s.Name)))
	}
}

// simplex draws the triangle of all splits for each panel: the corners are memory for one form alone, darker is more.
func (p *Plot) simplex(b *canvas) {
	panels := max(1, len(p.Panels))
	const side, y0 = 300.0, 54.0
	tall := side * math.Sqrt(3) / 2
	height := y0 + tall + 66
	p.begin(b, height)
	for k := range panels {
		x0 := 50 + float64(k)*(side+110)
		at := func(s [3]float64) (x, y float64) { // encoded left, decoded right, augmented above
			sum := max(1e-12, s[0]+s[1]+s[2])
			return x0 + side*(s[1]/sum+s[2]/sum/2), y0 + tall*(1-s[2]/sum)
		}
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, c := range p.Cells {
			if k < len(c.Values) && finite([2]float64{0, c.Values[k]}) {
				lo, hi = min(lo, c.Values[k]), max(hi, c.Values[k])
			}
		}
		if k < len(p.Panels) {
			title := p.Panels[k]
			if !math.IsInf(lo, 1) {
				title += fmt.Sprintf(": %s to %s %s", short(lo), short(hi), p.Y)
			}
			b.text(x0+side/2, 14, "middle", "lab", title)
		}
		ax, ay := at([3]float64{1, 0, 0})
		bx, by := at([3]float64{0, 1, 0})
		cx, cy := at([3]float64{0, 0, 1})
		fmt.Fprintf(b, `<path d="M%.1f %.1fL%.1f %.1fL%.1f %.1fZ" class="tri"/>`, ax, ay, bx, by, cx, cy)
		b.text(ax, ay+30, "middle", "unit", "encoded")
		b.text(bx, by+30, "middle", "unit", "decoded")
		b.text(cx, cy-20, "middle", "unit", "augmented")
		for _, c := range p.Cells {
			if k >= len(c.Values) || !finite([2]float64{0, c.Values[k]}) {
				continue
			}
			x, y := at(c.Split)
			part := 1.0
			if hi > lo {
				part = (c.Values[k] - lo) / (hi - lo)
			}
			class := "f"
			if c.Mark != "" {
				class = "f chosen"
			}
			fmt.Fprintf(b, `<g class="s c0"><circle cx="%.1f" cy="%.1f" r="15" class="under"/><circle cx="%.1f" cy="%.1f" r="15" class="%s" fill-opacity="%.2f"><title>%s</title></circle>`, x, y, x, y, class, .08+.92*part,
				html.EscapeString(fmt.Sprintf("%s: %s %s", split(c), number(c.Values[k]), c.Mark)))
			ink := "mid"
			if part > .5 {
				ink = "mid light"
			}
			b.text(x, y+3.5, "middle", ink, short(c.Values[k]))
			b.WriteString("</g>")
		}
	}
	marks := []string{}
	for _, c := range p.Cells {
		if c.Mark != "" && !slices.Contains(marks, c.Mark) {
			marks = append(marks, c.Mark)
		}
	}
	if len(marks) > 0 {
		b.text(plotW/2, height-8, "middle", "num", "ringed: "+marks[0])
	}
}

func split(c Cell) string {
	sum := max(1e-12, c.Split[0]+c.Split[1]+c.Split[2])
	return fmt.Sprintf("%.0f-%.0f-%.0f", 100*c.Split[0]/sum, 100*c.Split[1]/sum, 100*c.Split[2]/sum)
}

// short fits a value into a dot.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return fmt.Sprintf("%.1fM", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.0fk", v/1e3)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
