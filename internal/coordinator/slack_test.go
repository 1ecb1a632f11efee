package coordinator

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
)

// TestLargeSamplesAreBegunEarly: work on a sample that takes as long as n others begins n-1 samples before its turn,
// and the batches are what they were.
func TestLargeSamplesAreBegunEarly(t *testing.T) {
	large := map[ident.ObjectID]int64{17: 900, 22: 200, 23: 150}
	r := newRig(t, [ident.NumForms]int64{}, func(c *Config) {
		c.InFlight = 1
		c.Bytes = func(x ident.ObjectID) int64 { return cmp.Or(large[x], 100) }
	})
	p := r.join("a", 0, 24, 8)
	var order []ident.ObjectID
	for _, x := range r.prepares {
		order = append(order, x.Key.Object)
	}
	at := func(x ident.ObjectID) int { return slices.Index(order, x) }
	if n := at(17); n < 7 || n > 10 { // eight before its turn, which is the 18th
		t.Errorf("the sample of nine was begun as number %d: %v", n, order)
	}
	if at(22) > at(21) && at(22) != 22 {
		t.Errorf("the sample of two: %v", order)
	}
	for b := range 3 {
		for i, x := range r.objects(p.must()) {
			if x != ident.ObjectID(8*b+i) {
				t.Fatalf("batch %d: row %d is %d", b, i, x)
			}
		}
	}
}

// TestOneFlightAtTheEarliestTurn: what several jobs want is made once, when the first of them needs it.
func TestOneFlightAtTheEarliestTurn(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{ident.Decoded: 100 * sampleBytes}, func(c *Config) { c.InFlight = 1 })
	r.hold = is[Prepare]
	r.join("late", 0, 30, 10)  // its sample 29 is its 30th
	r.join("early", 29, 40, 2) // whose first one it is
	for len(r.prepares) < 40 {
		i := slices.IndexFunc(r.todo, is[Prepare])
		if i < 0 {
			break
		}
		e := r.todo[i]
		r.todo = slices.Delete(r.todo, i, i+1)
		r.do(e)
		r.run()
	}
	n := map[ident.ObjectID]int{}
	at := map[ident.ObjectID]int{}
	for i, x := range r.prepares {
		n[x.Key.Object]++
		at[x.Key.Object] = i
	}
	if n[29] != 1 || at[29] > 3 {
		t.Errorf("sample 29 was prepared %d times, as number %d: its first turn is that of the other job's first sample",
			n[29], at[29])
	}
}

// TestQueueAgainstModel: flights leave the queue by turn, then by age, however they are hurried and given up.
func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := New(Config{Bytes: func(ident.ObjectID) int64 { return 1 }, InFlight: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		s := &stream{}
		var model []*flight
		turns := map[*flight]uint64{}
		ops := map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				f := c.newFlightForTest(s, rapid.Uint64Range(1, 50).Draw(t, "turn"))
				if rapid.Bool().Draw(t, "copy") {
					f.parent = &flight{phase: flightCopied}
				}
				c.flights.enqueue(f)
				model, turns[f] = append(model, f), f.turn
			},
			"hurry": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				f := rapid.SampledFrom(model).Draw(t, "flight")
				turn := rapid.Uint64Range(1, 50).Draw(t, "to")
				c.flights.moveForward(f, turn)
				turns[f] = min(turns[f], turn)
			},
			"give up": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "flight")
				c.flights.dequeue(model[i])
				model = slices.Delete(model, i, i+1)
			},
			"take": func(t *rapid.T) {
				f, ok := c.flights.nextFlightInTurn()
				if ok != (len(model) > 0) {
					t.Fatalf("%d flights wait, taken: %t", len(model), ok)
				}
				if !ok {
					return
				}
				want := slices.MinFunc(model, func(a, b *flight) int {
					return cmp.Or(cmp.Compare(turns[a], turns[b]),
						cmp.Compare(a.id, b.id))
				})
				if f != want {
					t.Fatalf("flight %d of turn %d, want %d of turn %d", f.id, f.turn, want.id, turns[want])
				}
				model = slices.DeleteFunc(model, func(g *flight) bool { return g == f })
			},
			"": func(t *rapid.T) {
				if n := c.flights.queue.Len() + c.flights.onCopies.Len(); n != len(model) {
					t.Fatalf("%d wait, %d are queued", len(model), n)
				}
			},
		}
		t.Repeat(ops)
	})
}

func (c *Core) newFlightForTest(s *stream, turn uint64) *flight {
	c.flights.nextFlight++
	return &flight{id: c.flights.nextFlight, turn: turn}
}
