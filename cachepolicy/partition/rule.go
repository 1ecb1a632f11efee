package partition

import (
	"fmt"

	"larder/internal/units"
)

// Split is how many bytes each tier gets.
type Split struct{ Encoded, Decoded, Augmented int64 }

// Total is the sum.
func (s Split) Total() int64 { return s.Encoded + s.Decoded + s.Augmented }

// Wanted is what a split is decided from.
type Wanted struct {
	Total                                      int64 // bytes for all tiers together
	EncodedBytes, DecodedBytes, AugmentedBytes int64 // of everything active jobs want in each form; 0 = unknown
	ShareGroups                                int   // groups of at least two jobs that share augmented samples
}

// RuleOfThumb is what the model is called where SimpleSplit decided.
const RuleOfThumb = "rule of thumb"

// SimpleSplit divides the total by rule of thumb, and says why in a sentence for people. Decoded gets all that is wanted
// when it fits, because a decoded hit saves reading and decoding, and encoded up to half of what is over, so that its
// entries are not flushed when a job leaves and the rest comes to fit; else a fifth goes to encoded, where a byte holds
// about five times as many samples and a hit still saves the read. With share groups augmented takes what it needs,
// at most a quarter; without, nothing (design.md G3: a lone job never meets an instance twice). Never exceeds Total.
func SimpleSplit(in Wanted) (Split, string) {
	total := max(in.Total, 0)
	if total == 0 {
		return Split{}, "there is no memory to divide"
	}
	var s Split
	var why string
	if in.ShareGroups > 0 {
		s.Augmented = total / 4
		if in.AugmentedBytes > 0 {
			s.Augmented = min(s.Augmented, in.AugmentedBytes)
		}
		why = fmt.Sprintf("; augmented %s for %d share group(s)", units.Size(s.Augmented), in.ShareGroups)
	}
	rest := total - s.Augmented
	switch {
	case in.DecodedBytes <= 0:
		s.Decoded = rest
		return s, "decoded gets all: the sizes are not known yet" + why
	case in.DecodedBytes <= rest:
		s.Encoded = min((rest-in.DecodedBytes)/2, max(in.EncodedBytes, 0))
		s.Decoded = rest - s.Encoded
		return s, fmt.Sprintf("decoded holds all: the %s wanted fit into %s", units.Size(in.DecodedBytes), units.Size(s.Decoded)) + why
	default:
		s.Encoded = rest / 5
		if in.EncodedBytes > 0 {
			s.Encoded = min(s.Encoded, in.EncodedBytes)
		}
		s.Decoded = rest - s.Encoded
		return s, fmt.Sprintf("the %s wanted decoded do not fit into %s: encoded gets %s, decoded %s",
			units.Size(in.DecodedBytes), units.Size(rest), units.Size(s.Encoded), units.Size(s.Decoded)) + why
	}
}
