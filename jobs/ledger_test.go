package jobs

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/bits"
	"larder/internal/ident"
)

func set(ids ...uint32) *bits.Set {
	s := new(bits.Set)
	for _, i := range ids {
		s.Add(i)
	}
	return s
}

// violated fails the test unless err says why and the account is marked.
func violated(t *testing.T, l *Ledger, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want %q", err, words)
	}
	if l.State != Violated || l.Open() {
		t.Errorf("the account is %s", l.State)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLedgerCatchesARepeatedPick(t *testing.T) {
	l := NewLedger(3, set(1, 2), 0)
	must(t, l.Commit(1))
	violated(t, l, l.Commit(1), "epoch 3: object 1 was picked twice")
}

func TestLedgerCatchesAForeignPick(t *testing.T) {
	l := NewLedger(0, set(1, 2), 0)
	violated(t, l, l.Commit(7), "object 7 was picked but is not in the subset")
}

func TestLedgerCatchesALostPick(t *testing.T) {
	l := NewLedger(0, set(1, 2, 3), 0)
	for x := range 3 {
		must(t, l.Commit(ident.ObjectID(x+1)))
	}
	l.Deliver(2, make([]Bad, 0)) // the third left in no batch
	violated(t, l, l.Close(), "3 were picked, 2 delivered")
}

func TestLedgerCatchesASampleThatWasNeverPicked(t *testing.T) {
	l := NewLedger(0, set(1, 2, 3), 0)
	must(t, l.Commit(1))
	must(t, l.Commit(2))
	l.Deliver(2, make([]Bad, 0))
	violated(t, l, l.Close(), "only 0 may be dropped")
}

func TestLedgerCatchesADoubleReturn(t *testing.T) {
	l := NewLedger(0, set(1, 2), 0)
	must(t, l.Commit(1))
	must(t, l.Return(1))
	violated(t, l, l.Return(1), "object 1 was returned but not picked")
}

func TestLedgerCatchesMoreDeliveriesThanPicks(t *testing.T) {
	l := NewLedger(0, set(1, 2), 1)
	must(t, l.Commit(1))
	l.Deliver(2, make([]Bad, 0))
	violated(t, l, l.Close(), "1 were picked, 2 delivered")
}

func TestAViolationIsNeverForgotten(t *testing.T) {
	l := NewLedger(0, set(1), 0)
	must(t, l.Commit(1))
	_ = l.Commit(1)
	l.Deliver(1, make([]Bad, 0))
	if err := l.Close(); err != nil || l.State != Violated { // it was reported once already
		t.Errorf("close: %v, %s", err, l.State)
	}
	if l.Abandon(); l.State != Violated {
		t.Errorf("abandoned: %s", l.State)
	}
}

func TestASettledAccountTakesNothing(t *testing.T) {
	l := NewLedger(0, set(1), 0)
	must(t, l.Commit(1))
	l.Deliver(1, make([]Bad, 0))
	must(t, l.Close())
	if err := l.Commit(1); err == nil {
		t.Error("a pick was entered after the end")
	}
	if err := l.Return(1); err == nil {
		t.Error("a pick was returned after the end")
	}
	if l.State != Complete || l.Committed() != 0 || l.Open() {
		t.Errorf("%+v", l)
	}
}

func TestDroppedIsWhatWasNotPicked(t *testing.T) {
	l := NewLedger(0, set(1, 2, 3, 4), 2)
	for x := range 3 {
		must(t, l.Commit(ident.ObjectID(x+1)))
	}
	l.Deliver(2, make([]Bad, 1)) // one quarantined; a substitute used one of the two that drop_last would have dropped
	must(t, l.Close())
	if l.Dropped != 1 || l.Delivered != 2 || l.Quarantined != 1 {
		t.Errorf("%+v", l)
	}
}

func TestACopyIsOnlyTheNumbers(t *testing.T) {
	l := NewLedger(5, set(1, 2), 0)
	must(t, l.Commit(1))
	c := l.Copy()
	must(t, l.Commit(2))
	if c.Epoch != 5 || c.Subset != 2 || c.Committed() != 0 || l.Committed() != 2 {
		t.Errorf("copy %+v", c)
	}
}

// Any history of picks, returns and deliveries: the ledger agrees with a model that remembers everything.
func TestLedgerAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "n")
		member := new(bits.Set)
		for i := range n {
			member.Add(uint32(i))
		}
		dropped := rapid.IntRange(0, n).Draw(rt, "dropped")
		l := NewLedger(0, member, dropped)
		var picked []ident.ObjectID
		delivered, broken := 0, false
		for range rapid.IntRange(0, 30).Draw(rt, "steps") {
			x := ident.ObjectID(rapid.IntRange(0, n).Draw(rt, "x"))
			has := slices.Contains(picked, x)
			if rapid.Bool().Draw(rt, "commit") {
				bad := has || int(x) >= n
				if err := l.Commit(x); (err != nil) != bad {
					rt.Fatalf("commit %d: %v", x, err)
				}
				broken = broken || bad
				if !bad {
					picked = append(picked, x)
				}
			} else {
				if err := l.Return(x); (err == nil) != has {
					rt.Fatalf("return %d: %v", x, err)
				}
				broken = broken || !has
				picked = slices.DeleteFunc(picked, func(y ident.ObjectID) bool { return y == x })
			}
		}
		delivered = rapid.IntRange(0, n).Draw(rt, "delivered")
		l.Deliver(delivered, make([]Bad, 0))
		whole := !broken && delivered == len(picked) && n-len(picked) <= dropped
		if err := l.Close(); (l.State == Complete) != whole || (err != nil) != (!whole && !broken) {
			rt.Fatalf("close: %v, %s; picked %d of %d, delivered %d, dropped %d, broken %v", err, l.State, len(picked), n,
				delivered, dropped, broken)
		}
	})
}
