package plot

import (
	"fmt"
	"html"
	"html/template"
	"strings"
)

// Plot is one picture. Which fields it uses depends on its Form.
type Plot struct {
	Number int      `json:"number,omitempty"` // of the reader's list of pictures that a report should have; 0 = none
	Title  string   `json:"title"`
	Form   string   `json:"form,omitempty"` // one of the forms below; "" = bars when there are Bars, else lines
	X      string   `json:"x"`              // label of the axis, with its unit
	Y      string   `json:"y"`
	Log    bool     `json:"log,omitempty"`  // x axis
	Top    float64  `json:"top,omitempty"`  // of the axis of values; 0 = what the points need
	Bars   []string `json:"bars,omitempty"` // names of the groups; the points of a series are their lengths, in order
	Series []Series `json:"series,omitempty"`
	Spans  []Span   `json:"spans,omitempty"`
	Marks  []Mark   `json:"marks,omitempty"`
	// Panels are pictures side by side. Of a simplex: what each value of a cell is. Of lines and a scatter: each shows the
	// series that name it, on the same axes.
	Panels []string `json:"panels,omitempty"`
	Cells  []Cell   `json:"cells,omitempty"`
	// Off is of a scatter the distance of its dashed lines from the diagonal, as a part: 0.1 = 10 %; 0 = none.
	Off  float64 `json:"off,omitempty"`
	Note string  `json:"note,omitempty"` // below the picture
}

// Forms of a plot.
const (
	Steps   = "steps"   // lines that keep a value until the next point
	Stacked = "stacked" // bars on top of each other
	Simplex = "simplex" // a triangle of splits for each of Panels
	Spans   = "spans"   // when each series of each group was active
	Scatter = "scatter" // points about a diagonal, both axes logarithmic: what was predicted over what was measured
)

// Series is one line, or one bar of each group.
type Series struct {
	Name   string       `json:"name"`
	Dashed bool         `json:"dashed,omitempty"` // no system can have it: a bound
	Panel  int          `json:"panel,omitempty"`  // the index of its panel, where lines have panels
	Points [][2]float64 `json:"points"`
	Low    []float64    `json:"low,omitempty"` // of each point: the interval of its repeats
	High   []float64    `json:"high,omitempty"`
	Hollow []bool       `json:"hollow,omitempty"` // of each point of a scatter: it does not count
}

// Span is a time in which a series of a group was active.
type Span struct {
	Group  int     `json:"group"`  // an index of Bars
	Series int     `json:"series"` // an index of Series
	From   float64 `json:"from"`
	To     float64 `json:"to"`
	Text   string  `json:"text,omitempty"` // inside, where it has room
}

// Mark is a place that is pointed at: on the x axis of lines a moment, on that of bars a value to compare with.
type Mark struct {
	X    float64 `json:"x"`
	Text string  `json:"text"`
}

// Cell is one split of memory: the parts for encoded, decoded and augmented samples, and a value for each panel from
// Panel on.
type Cell struct {
	Panel  int        `json:"panel,omitempty"`
	Split  [3]float64 `json:"split"`
	Values []float64  `json:"values"`
	Mark   string     `json:"mark,omitempty"` // why it stands out
}

// SVG draws the picture. The styles of names that styles knows are the same in every picture of a report.
func (p *Plot) SVG(styles Styles) template.HTML {
	b := &canvas{styles: styles}
	switch {
	case p.Form == Simplex:
		p.simplex(b)
	case p.Form == Spans:
		p.spans(b)
	case p.Form == Scatter:
		p.scatter(b)
	case len(p.Bars) > 0:
		p.bars(b)
	case len(p.Panels) > 0:
		p.panels(b)
	default:
		p.lines(b)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // every name went through html.EscapeString
}

// File draws the picture as an SVG file of its own, with its style and its note.
func (p *Plot) File() string {
	open, rest, _ := strings.Cut(string(p.SVG(nil)), ">")
	var w, h float64
	if _, err := fmt.Sscanf(open, `<svg viewBox="0 0 %g %g"`, &w, &h); err != nil {
		panic(err) // begin wrote it
	}
	rest = strings.TrimSuffix(rest, "</svg>")
	note := ""
	if p.Note != "" {
		h += 20
		note = fmt.Sprintf(`<text x="12" y="%g" class="num">%s</text>`, h-8, html.EscapeString(p.Note))
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">`+
		"<title>%s</title><style>%s</style>\n"+`<rect width="100%%" height="100%%" class="paper"/>`+"%s%s</svg>\n",
		w, h, w, h, html.EscapeString(p.Title), html.EscapeString(PictureStyle), rest, note)
}

func (p *Plot) begin(b *canvas, height float64) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotW, height, html.EscapeString(p.Title))
}
