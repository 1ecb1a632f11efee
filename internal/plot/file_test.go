package plot

import (
	"encoding/xml"
	"strings"
	"testing"
)

// TestScatter: a point on the diagonal lies on it, one at the top of the axis inside the picture, and what has no place
// on logarithmic axes is left out.
func TestScatter(t *testing.T) {
	q := square{side: 100, lo: 1, hi: 100}
	if q.at(10) != 50 || q.at(1000) != 100 || q.at(.1) != 0 {
		t.Errorf("%g, %g, %g", q.at(10), q.at(1000), q.at(.1))
	}
	p := Plot{Form: Scatter, Panels: []string{"a", "b"}, Off: .1, Top: 20, Series: []Series{
		{Name: "x", Points: [][2]float64{{1, 1}, {10, 50}, {0, 3}}, Hollow: []bool{true}}, {Name: "y", Panel: 1}}}
	svg := string(p.SVG(nil))
	if n := strings.Count(svg, "<circle"); n != 2 || strings.Count(svg, `class="ring"`) != 1 {
		t.Errorf("%d points: %s", n, svg)
	}
}

// TestSimplexInRows: each panel draws the cells that have a value for it.
func TestSimplexInRows(t *testing.T) {
	p := Plot{Form: Simplex, Panels: []string{"a", "b", "c"}, Cells: []Cell{
		{Split: [3]float64{1, 0, 0}, Values: []float64{1, 2}}, {Panel: 2, Split: [3]float64{0, 1, 0}, Values: []float64{3}}}}
	svg := string(p.SVG(nil))
	if strings.Count(svg, `class="tri"`) != 3 || strings.Count(svg, `class="under"`) != 3 {
		t.Error(svg)
	}
}

// TestFileStandsAlone: a file is well-formed, has a size, its style and its note.
func TestFileStandsAlone(t *testing.T) {
	for _, form := range []string{"", Scatter, Simplex, Spans} {
		p := Plot{Form: form, Title: "a < b", Note: "x & y", Series: []Series{{Name: "s", Points: [][2]float64{{1, 2}}}}}
		svg := p.File()
		var root struct {
			XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
			ViewBox string   `xml:"viewBox,attr"`
			Title   string   `xml:"title"`
			Style   string   `xml:"style"`
		}
		if err := xml.Unmarshal([]byte(svg), &root); err != nil {
			t.Fatal(err)
		}
		if root.Title != p.Title || root.Style != PictureStyle || !strings.Contains(svg, "x &amp; y") {
			t.Errorf("%+v", root)
		}
	}
}
