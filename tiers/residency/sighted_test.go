package residency

import (
	"slices"
	"testing"

	"larder/internal/ident"
)

// witness is an evictor that sees keys, records its calls, and keeps one object out.
type witness struct {
	*byNeed
	calls []string
	out   ident.ObjectID
}

func (w *witness) Admit(k ident.Key, _ int) bool {
	w.calls = append(w.calls, "admit "+k.String())
	return k.Object != w.out
}

func (w *witness) Newcomer(k ident.Key) { w.calls = append(w.calls, "newcomer "+k.String()) }
func (w *witness) Insert(h uint32, need int) {
	w.calls = append(w.calls, "insert")
	w.byNeed.Insert(h, need)
}

func (w *witness) Victim(need int) (uint32, bool) {
	w.calls = append(w.calls, "victim")
	return w.byNeed.Victim(need)
}

// A sighted policy hears of each miss before it is asked for victims, can keep it out, and learns anew which keys
// Victim and Insert are about when an entry grows.
func TestSightedPolicies(t *testing.T) {
	w := &witness{byNeed: newByNeed(), out: 3}
	var b [ident.NumForms]int64
	ev := [ident.NumForms]Evictor{ident.Encoded: newByNeed(), ident.Decoded: w, ident.Augmented: newByNeed()}
	b[ident.Decoded] = 10
	x := New(b, ev)
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(w.calls, want) {
			t.Errorf("%s: called %q, want %q", what, w.calls, want)
		}
		w.calls = nil
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	}
	name := func(o int) string { return dec(o).String() }
	h, ok := x.Admit(dec(1), 6, 1, nil)
	if !ok {
		t.Fatal("refused")
	}
	expect("room", "admit "+name(1), "insert")
	x.Admit(dec(1), 6, 2, nil)
	expect("it is in")
	if _, ok := x.Admit(dec(3), 1, 5, nil); ok {
		t.Error("came in though the policy keeps it out")
	}
	expect("kept out", "admit "+name(3))
	if _, ok := x.Admit(dec(2), 4, 1, nil); !ok {
		t.Error("refused")
	}
	expect("room again", "admit "+name(2), "insert")
	if !x.Resize(h, 8, nil) {
		t.Error("the larger entry was not kept")
	}
	expect("it grows", "newcomer "+name(1), "victim", "insert")
	if _, ok := x.Admit(dec(4), 5, 5, nil); !ok {
		t.Error("refused")
	}
	expect("it evicts", "admit "+name(4), "victim", "insert")
}
