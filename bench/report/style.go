package report

import (
	"fmt"
	"html/template"
	"strings"
)

// style is how a series looks, as classes of the page: always the same for the same name, in every picture.
type style struct{ colour, line string }

// Lines of a style.
const (
	whole   = "whole"
	dotted  = "dot"
	mixed   = "mix" // dashes and dots
	bold    = "bold"
	bounded = "dash" // a bound that no daemon can have
)

// known are the names that every report has: larder's own in one colour and bold, relatives alike.
var known = map[string]style{
	"need": {"c0", bold}, "refcount": {"c4", whole}, "minio": {"c2", whole}, "minio-preselect": {"c2", dotted}, "minio-partitioned": {"c2", mixed}, "lru": {"c1", whole}, "fifo": {"c1", dotted},
	"random": {"c6", whole}, "2-random": {"c6", dotted}, "w-tinylfu": {"c3", whole}, "s3-fifo": {"c7", whole}, "sieve": {"c5", whole}, "belady": {"ink", bounded}, "clairvoyant-k": {"ink", mixed},
	"independent": {"ink", whole}, "unbounded": {"ink", dotted}, "lower-bound": {"ink", bounded},
	"larder": {"c0", bold}, "larder-strict": {"c0", dotted}, "larder-epoch": {"c0", mixed}, "coordl": {"c2", whole}, "tensorsocket": {"c1", whole}, "tensorsocket-fixed": {"c1", dotted},
	"window": {"c5", whole}, "quiver": {"c3", whole}, "shade": {"c6", whole}, "icache": {"c6", dotted}, "joader": {"c4", whole}, "joader-as-released": {"c4", dotted}, "seneca": {"c7", whole},
	"encoded": {"c2", whole}, "decoded": {"c0", whole}, "augmented": {"c4", whole}, "from storage": {"c6", whole}, "working": {"c0", whole}, "waiting": {"c1", whole},
}

// colourCount is how many colours there are beside ink, that of text.
const colourCount = 8

// styleOf is the style of the k-th series of a picture.
func styleOf(s *Series, k int) style {
	name := strings.TrimSuffix(strings.TrimSuffix(s.Name, notExact), isBound)
	if st, ok := known[name]; ok {
		return st
	}
	if s.Dashed {
		return style{"ink", bounded}
	}
	return style{fmt.Sprintf("c%d", k%colourCount), []string{whole, dotted, mixed}[k/colourCount%3]}
}

// colours can be told apart by people with colour blindness (Okabe, Ito 2008), on white and, lighter, on dark.
var (
	colours     = []template.CSS{"#0072b2", "#d55e00", "#009e73", "#b0508c", "#c98600", "#2f9bd8", "#7f7f7f", "#8c6d31"}
	coloursDark = []template.CSS{"#4da6e0", "#ff8a3d", "#2fc49a", "#e08abf", "#f0b429", "#8fd0f5", "#a6a6a6", "#c9a45c"}
)
