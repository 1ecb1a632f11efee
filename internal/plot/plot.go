package plot

import (
	"fmt"
	"html"
	"html/template"
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
	// Panels are pictures side by side. Of a simplex: what each value of a cell is. Of lines: each shows the series that
	// name it, on the same axes.
	Panels []string `json:"panels,omitempty"`
	Cells  []Cell   `json:"cells,omitempty"`
	Note   string   `json:"note,omitempty"` // below the picture
}

// Forms of a plot.
const (
	Steps   = "steps"   // lines that keep a value until the next point
	Stacked = "stacked" // bars on top of each other
	Simplex = "simplex" // a triangle of splits for each of Panels
	Spans   = "spans"   // when each series of each group was active
)

// Series is one line, or one bar of each group.
type Series struct {
	Name   string       `json:"name"`
	Dashed bool         `json:"dashed,omitempty"` // no system can have it: a bound
	Panel  int          `json:"panel,omitempty"`  // the index of its panel, where lines have panels
	Points [][2]float64 `json:"points"`
	Low    []float64    `json:"low,omitempty"` // of each point: the interval of its repeats
	High   []float64    `json:"high,omitempty"`
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

// Cell is one split of memory: the parts for encoded, decoded and augmented samples, and a value for each panel.
type Cell struct {
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

func (p *Plot) begin(b *canvas, height float64) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotW, height, html.EscapeString(p.Title))
}
