package errs

import (
	"strings"
	"testing"
)

func TestCatalogueIsComplete(t *testing.T) {
	list := Catalogue()
	if len(list) != len(Reasons) {
		t.Fatalf("%d of %d reasons are explained", len(list), len(Reasons))
	}
	for i, e := range list {
		if e.Reason != Reasons[i] || e.Happened == "" || e.Helps == "" || strings.ContainsAny(e.Happened+e.Helps, "|\n") {
			t.Errorf("entry %d explains %s, want %s: %q, %q", i, e.Reason, Reasons[i], e.Happened, e.Helps)
		}
	}
}
