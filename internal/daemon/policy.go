package daemon

import (
	"fmt"

	"larder/internal/config"
	"larder/tiers/tinylfu"
)

// PolicyWarnings returns one sentence for each tier whose eviction policy breaks the promise of an order. Most policies
// break none.
func PolicyWarnings(t config.Tiers) []string {
	var out []string
	for _, p := range []struct {
		key, policy string
	}{{"encoded", t.Policy.Encoded}, {"decoded", t.Policy.Decoded}, {"augmented", t.Policy.Augmented}} {
		if b := tinylfu.BreaksOf(p.policy); b != "" {
			out = append(out, fmt.Sprintf("tiers.policy.%s %s breaks the promise of order %s", p.key, p.policy, b))
		}
	}
	return out
}
