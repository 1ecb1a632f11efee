package heap

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type pair struct{ key, tie int }

func (a *pair) Before(b *pair) bool {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.tie, b.tie)) < 0
}

// What comes out of a heap is what a sorted list of the same values has first, whatever came and went before.
func TestHeapAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Heap[pair, *pair]
		var model []pair
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				x := pair{rapid.IntRange(0, 20).Draw(t, "key"), len(model)}
				q.Push(x)
				model = append(model, x)
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				first := slices.MinFunc(model,
					func(a, b pair) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.tie, b.tie)) })
				if x := q.Pop(); x.key != first.key {
					t.Fatalf("%v came out, %v is first", x, first)
				} else {
					model = slices.Delete(model, slices.Index(model, x), slices.Index(model, x)+1)
				}
			},
			"": func(t *rapid.T) {
				if len(q) != len(model) {
					t.Fatalf("%d values, %d went in and not out", len(q), len(model))
				}
			},
		})
	})
}

func TestHeapAllocatesNothing(t *testing.T) {
	q := make(Heap[pair, *pair], 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		for i := range 64 {
			q.Push(pair{i * 37 % 64, i})
		}
		for range 64 {
			q.Pop()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
