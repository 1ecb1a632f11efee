package plot

import (
	_ "embed"
	"fmt"
)

// PictureStyle is the style sheet of all pictures: a page that shows them needs it.
//
//go:embed picture.css
var PictureStyle string

// Style is how a series looks, as classes of the page.
type Style struct{ Colour, Line string }

// Lines of a style.
const (
	Whole   = "whole"
	Dotted  = "dot"
	Mixed   = "mix" // dashes and dots
	Bold    = "bold"
	Bounded = "dash" // a bound that no system can have
)

// Ink is the colour of text; "c0" to "c7" are the others.
const Ink = "ink"

// colourCount is how many colours there are beside ink.
const colourCount = 8

// Styles returns the style of a name that a report always shows alike, false of any other name.
type Styles func(name string) (Style, bool)

// styleOf is the style of the k-th series of a picture.
func (b *canvas) styleOf(s *Series, k int) Style {
	if b.styles != nil {
		if st, ok := b.styles(s.Name); ok {
			return st
		}
	}
	if s.Dashed {
		return Style{Ink, Bounded}
	}
	return Style{fmt.Sprintf("c%d", k%colourCount), []string{Whole, Dotted, Mixed}[k/colourCount%3]}
}
