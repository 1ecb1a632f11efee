package plot

import (
	"fmt"
	"html"
	"math"
)

const (
	simplexSide = 300.0
	simplexTop  = 54.0
	simplexGap  = 110.0
	inRow       = 2 // triangles beside each other
)

// triangle is one panel of a simplex.
type triangle struct {
	x, y, tall float64 // left corner, top, height
	lo, hi     float64 // of its values
}

// at is where a split lies: encoded left, decoded right, augmented above.
func (t *triangle) at(s [3]float64) (x, y float64) {
	sum := max(1e-12, s[0]+s[1]+s[2])
	return t.x + simplexSide*(s[1]/sum+s[2]/sum/2), t.y + t.tall*(1-s[2]/sum)
}

// simplex draws the triangle of all splits for each panel: the corners are memory for one form alone, darker is more.
func (p *Plot) simplex(b *canvas) {
	tall := simplexSide * math.Sqrt(3) / 2
	row := simplexTop + tall + 40
	panels := max(1, len(p.Panels))
	height := row*float64((panels+inRow-1)/inRow) + 26
	p.begin(b, height)
	for k := range panels {
		t := triangle{x: 50 + float64(k%inRow)*(simplexSide+simplexGap), y: simplexTop + row*float64(k/inRow), tall: tall,
			lo: math.Inf(1), hi: math.Inf(-1)}
		for _, c := range p.Cells {
			if v, ok := c.value(k); ok {
				t.lo, t.hi = min(t.lo, v), max(t.hi, v)
			}
		}
		p.corners(b, &t, k)
		for _, c := range p.Cells {
			if v, ok := c.value(k); ok {
				t.dot(b, c, v)
			}
		}
	}
	for _, c := range p.Cells {
		if c.Mark != "" {
			b.text(plotW/2, height-8, "middle", "num", "ringed: "+c.Mark)
			break
		}
	}
}

// value is what a cell has for a panel, false for none.
func (c *Cell) value(k int) (v float64, ok bool) {
	k -= c.Panel
	if k < 0 || k >= len(c.Values) || !finite([2]float64{0, c.Values[k]}) {
		return 0, false
	}
	return c.Values[k], true
}

// corners draws a triangle with its title and the names of its corners.
func (p *Plot) corners(b *canvas, t *triangle, k int) {
	if k < len(p.Panels) {
		title := p.Panels[k]
		if !math.IsInf(t.lo, 1) {
			title += fmt.Sprintf(": %s to %s %s", short(t.lo), short(t.hi), p.Y)
		}
		b.text(t.x+simplexSide/2, t.y-simplexTop+14, "middle", "lab", title)
	}
	ax, ay := t.at([3]float64{1, 0, 0})
	bx, by := t.at([3]float64{0, 1, 0})
	cx, cy := t.at([3]float64{0, 0, 1})
	fmt.Fprintf(b, `<path d="M%.1f %.1fL%.1f %.1fL%.1f %.1fZ" class="tri"/>`, ax, ay, bx, by, cx, cy)
	b.text(ax, ay+30, "middle", "unit", "encoded")
	b.text(bx, by+30, "middle", "unit", "decoded")
	b.text(cx, cy-20, "middle", "unit", "augmented")
}

// dot draws the value of a split.
func (t *triangle) dot(b *canvas, c Cell, v float64) {
	x, y := t.at(c.Split)
	part := 1.0
	if t.hi > t.lo {
		part = (v - t.lo) / (t.hi - t.lo)
	}
	class, ink := "f", "mid"
	if c.Mark != "" {
		class = "f chosen"
	}
	if part > .5 {
		ink = "mid light"
	}
	tip := fmt.Sprintf("%s: %s %s", c.Percent(), Number(v), c.Mark)
	fmt.Fprintf(b, `<g class="s c0"><circle cx="%.1f" cy="%.1f" r="15" class="under"/>`, x, y)
	fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="15" class="%s" fill-opacity="%.2f"><title>%s</title></circle>`,
		x, y, class, .08+.92*part, html.EscapeString(tip))
	b.text(x, y+3.5, "middle", ink, short(v))
	b.WriteString("</g>")
}

// Percent is the split as encoded-decoded-augmented, in per cent.
func (c *Cell) Percent() string {
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
