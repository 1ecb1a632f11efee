package engine

import (
	"fmt"
	"strings"
	"testing"

	"larder/bench/coresim"
	"larder/dsa"
	"larder/internal/errs"
)

func TestOrdersAUserMayAskFor(t *testing.T) {
	for _, c := range []struct {
		order string
		n     int
		mode  dsa.Mode
		tiles int
		noted bool
	}{
		{"strict", 10, dsa.Strict, 0, false},
		{"stratified", 10, dsa.Stratified, 0, false},
		{"stratified(1)", 10, dsa.Stratified, 1, false},
		{"stratified(4)", 10, dsa.Stratified, 4, false},
		{"stratified(5)", 10, dsa.Stratified, 4, true}, // never fewer than the default's
		{"stratified(16)", 1024, dsa.Stratified, 16, false},
		{"stratified(17)", 1024, dsa.Stratified, 16, true},
		{"stratified(256)", 1 << 20, dsa.Stratified, 256, false},
	} {
		mode, tiles, notes, err := parseOrder(c.order, c.n)
		if err != nil || mode != c.mode || tiles != c.tiles || len(notes) > 0 != c.noted {
			t.Errorf("%s of %d samples: %s with %d tiles, notes %q, %v", c.order, c.n, mode, tiles, notes, err)
		}
		// as the simulator has it
		simulated := coresim.World{Jobs: []coresim.Job{{Order: c.order, Subset: make([]uint32, c.n)}}}
		if said := simulated.Notes(); len(said) > 0 != c.noted || c.noted &&
			!strings.Contains(said[0], fmt.Sprintf("%d tiles are used", tiles)) {
			t.Errorf("%s of %d samples: the daemon uses %d tiles, the simulator says %q", c.order, c.n, tiles, said)
		}
	}
	for _, bad := range []string{"stratified(0)", "stratified(257)", "stratified(-1)", "stratified(4", "stratified()",
		"stratified(4))", "epoch(2)", "Strict", "stratified (4)"} {
		if _, _, _, err := parseOrder(bad, 1<<20); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
