package jobs

import (
	"testing"

	"larder/internal/bits"
	"larder/internal/ident"
)

// TestCommitAll: it enters what Commit would, and refuses what Commit would refuse, with its words.
func TestCommitAll(t *testing.T) {
	member := new(bits.Set)
	for x := range uint32(8) {
		member.Add(x)
	}
	for _, picks := range [][]ident.ObjectID{{}, {3, 1}, {3, 3}, {9}, {2, 9, 2}, {0, 7}, {5, 0}} {
		one, all := NewLedger(4, member, 0), NewLedger(4, member, 0)
		for _, l := range []*Ledger{one, all} {
			if err := l.Commit(0); err != nil {
				t.Fatal(err)
			}
		}
		var want error
		for _, x := range picks {
			if err := one.Commit(x); want == nil {
				want = err
			}
		}
		got := all.CommitAll(picks)
		if (got == nil) != (want == nil) || got != nil && got.Error() != want.Error() || one.State != all.State ||
			one.Committed() != all.Committed() {
			t.Errorf("%v: %v, state %s, %d committed; want %v, %s, %d", picks, got, all.State, all.Committed(), want,
				one.State, one.Committed())
		}
	}
}
