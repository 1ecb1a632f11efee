package partition

import (
	"fmt"

	"larder/internal/units"
)

// Split holds how many bytes each tier gets.
type Split struct{ Encoded, Decoded, Augmented int64 }

// Total returns the bytes of all tiers together.
func (s Split) Total() int64 { return s.Encoded + s.Decoded + s.Augmented }

// Wanted is what SimpleSplit decides from.
type Wanted struct {
	Total int64 // bytes for all tiers together
	// bytes of all samples that active jobs need, in each form; 0 = unknown
	EncodedBytes, DecodedBytes, AugmentedBytes int64
	ShareGroups                                int // groups of two or more jobs that share augmented samples
}

// RuleOfThumb is the name that reports give to SimpleSplit.
const RuleOfThumb = "rule of thumb"

// SimpleSplit divides the total by a rule of thumb, and returns the reason as a sentence for people. The result never
// exceeds Total.
//
//   - With share groups, augmented takes what it needs, at most a quarter. Without, it takes nothing: an instance
//     serves a job only once, so a job that shares with no other never finds one twice (docs/guarantees.md).
//   - If all needed samples fit decoded, decoded takes that much, because a decoded hit saves both the read and the
//     decode. Encoded takes up to half of the rest, so that its entries survive when a job leaves and the rest comes to
//     fit.
//   - Otherwise a fifth goes to encoded, where a byte holds about five times as many samples and a hit still saves the
//     read, and the rest to decoded.
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
		return s, fmt.Sprintf("decoded holds all: the %s wanted fit into %s", units.Size(in.DecodedBytes),
			units.Size(s.Decoded)) + why
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
