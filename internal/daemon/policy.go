package daemon

import (
	"fmt"

	"larder/cachepolicy"
	"larder/internal/config"
	"larder/internal/ident"
	"larder/internal/xrand"
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

// policyEntries sizes the sketch of tinylfu: as many entries as a tier of 8 GiB holds of ImageNet.
const policyEntries = 1 << 16

// newEvictor makes the policy of a tier. Close ends the policies that have something to end.
func (d *Daemon) newEvictor(_ ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error) {
	e, err := tinylfu.Make(policy, r, cachepolicy.Given{}, policyEntries)
	if c, ok := e.(interface{ Close() }); ok && err == nil {
		d.evictors = append(d.evictors, c.Close)
	}
	return e, err
}
