package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// The axis of values reaches every value that can be drawn, with a number of ticks that can be read.
func TestAxis(t *testing.T) {
	for _, top := range []float64{0, -1, math.NaN(), math.Inf(1), .003, .7, 1, 4.7, 99, 12345, 8.1e9} {
		p := Plot{Series: []Series{{Points: [][2]float64{{0, top}}}}}
		f := p.frame(plotH)
		n := len(ticks(0, f.high))
		if !math.IsNaN(top) && !math.IsInf(top, 0) && f.high < top || n < 2 || n > 12 {
			t.Errorf("top %g: high %g, %d ticks", top, f.high, n)
		}
	}
}

// Every form is well-formed XML whatever the names and the values are, and draws no value that is not a number.
func TestFormsAreWellFormed(t *testing.T) {
	const name = `<b>"a" & b</b>`
	points := [][2]float64{{0, 1}, {1, math.NaN()}, {2, math.Inf(1)}, {3, 2}}
	series := []Series{{Name: name, Points: points}, {Name: "bound", Dashed: true, Panel: 1, Points: points},
		{Name: "none"}}
	marks := []Mark{{X: 1, Text: name}}
	for what, p := range map[string]Plot{
		"lines":   {Series: series, Marks: marks},
		"log":     {Series: series, Log: true},
		"steps":   {Form: Steps, Series: series},
		"panels":  {Panels: []string{name, "b"}, Series: series},
		"bars":    {Bars: []string{name, "b", "c", "d"}, Series: series, Marks: marks},
		"stacked": {Form: Stacked, Bars: []string{name, "b", "c", "d"}, Series: series},
		"spans":   {Form: Spans, Bars: []string{name}, Series: series, Spans: []Span{{From: 1, To: 3, Text: name}}},
		"simplex": {Form: Simplex, Panels: []string{name}, Cells: []Cell{
			{Split: [3]float64{1, 0, 0}, Values: []float64{3}, Mark: name}, {Values: []float64{math.NaN()}}}},
		"empty": {},
	} {
		p.Title, p.X, p.Y = name, name, name
		svg := string(p.SVG(nil))
		for _, bad := range []string{"<b>", "NaN", "Inf"} {
			if strings.Contains(svg, bad) {
				t.Errorf("%s: the picture has %q", what, bad)
			}
		}
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: the picture is not well-formed: %v", what, err)
			}
		}
	}
}
