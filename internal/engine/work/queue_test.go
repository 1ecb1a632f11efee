package work

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/coordinator"
)

// TestTaskQueueAgainstModel: what is popped is one of the tasks with the earliest turn, each task leaves once, and
// the queue keeps none that has left.
func TestTaskQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q taskQueue
		var model []task
		begun := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				begun++
				x := task{turn: rapid.Uint64Range(0, 9).Draw(t, "turn"), size: int64(begun), what: &coordinator.Fill{}}
				q.Push(x)
				model = append(model, x)
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				got := q.Pop()
				i := slices.IndexFunc(model, func(x task) bool { return x.size == got.size })
				if i < 0 || model[i].turn != got.turn || model[i].what != got.what {
					t.Fatalf("popped %d, turn %d, which is not in the queue", got.size, got.turn)
				}
				for _, x := range model {
					if x.turn < got.turn {
						t.Fatalf("popped turn %d while %d is there", got.turn, x.turn)
					}
				}
				model = slices.Delete(model, i, i+1)
			},
			"": func(t *rapid.T) {
				if len(q) != len(model) {
					t.Fatalf("%d tasks, want %d", len(q), len(model))
				}
				for _, x := range q[len(q):cap(q)] {
					if x.what != nil {
						t.Fatal("a task that has left is still referenced")
					}
				}
			},
		})
	})
}
