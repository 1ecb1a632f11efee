package cachepolicy

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestPoliciesAgainstTwins plays random histories to every policy and to a plain model of it.
func TestPoliciesAgainstTwins(t *testing.T) {
	for _, name := range append(Names(), "clairvoyant-7") {
		t.Run(name, func(t *testing.T) { rapid.Check(t, func(rt *rapid.T) { playTwins(rt, name) }) })
	}
}

// playTwins plays a random history of a tier to a policy and its twin.
func playTwins(rt *rapid.T, name string) {
	var block uint64
	if name == clairvoyant+"k" {
		block = 20
	}
	c := newClock(rapid.Uint64().Draw(rt, "future"), 900, 61, block)
	w := &played{name: name, clock: c, byObject: map[int]*listed{}, newcomer: listed{id: idOf(keyOf(0))}}
	w.e, w.twin = pair(rt, name, rapid.Uint64().Draw(rt, "seed"), c)
	w.room = rapid.IntRange(1, 40).Draw(rt, "room")
	needs := rapid.IntRange(-1, 4)
	for h := range uint32(100) {
		w.free = append(w.free, h)
	}
	w.sees(0, 0)
	requests := rapid.SliceOfN(rapid.IntRange(0, 1<<20), 1, 40)
	request := func(rt *rapid.T) {
		for _, v := range requests.Draw(rt, "requests") {
			w.request(rt, v%61, v/61%6-1, v/366)
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"request":  request,
		"request2": request,
		"update": func(rt *rapid.T) {
			i := w.any(rt)
			i.need = needs.Draw(rt, "need")
			w.e.Update(i.h, i.need)
		},
		"drop": func(rt *rapid.T) {
			i := w.any(rt)
			w.remove(i)
			w.free = append(w.free, i.h)
		},
		"grow": w.grow,
		"shrink": func(rt *rapid.T) {
			w.room = rapid.IntRange(1, 40).Draw(rt, "room")
			if over := len(w.byObject) - w.room; over > 0 && !w.evict(rt, over, true, false) {
				rt.Fatal("a shrinking tier was refused")
			}
		},
		"": func(rt *rapid.T) {
			if w.e.Len() != len(w.byObject) {
				rt.Fatalf("%d entries, want %d", w.e.Len(), len(w.byObject))
			}
			if len(w.byObject) > 0 && rapid.Bool().Draw(rt, "ask") {
				w.ask(rt, rapid.Bool().Draw(rt, "coldest"))
			}
		},
	})
	// In the end everything can leave, once.
	if n := len(w.byObject); !w.evict(rt, n, true, false) && n > 0 || w.e.Len() != 0 {
		rt.Fatalf("%d of %d entries cannot leave", w.e.Len(), n)
	}
}

// request is one request for x; dice draws what it needs and what is refused.
func (w *played) request(rt *rapid.T, x, need, dice int) {
	w.clock.now++ // the requests differ from what was foreseen: some foreseen ones are overdue
	if i := w.byObject[x]; i != nil {
		w.e.Hit(i.h)
		w.twin.hit(i)
		return
	}
	w.sees(x, need)
	if n := len(w.byObject) + 1 - w.room; n > 0 {
		if dice%5 == 0 {
			n++ // it takes the room of two
		}
		if !w.evict(rt, min(n, len(w.byObject)), false, dice%7 == 0) {
			return
		}
	}
	w.insert(x, need)
}

// grow takes an entry out, lets others leave for it, and inserts it again.
func (w *played) grow(rt *rapid.T) {
	i := w.any(rt)
	w.remove(i)
	if s, ok := w.e.(Sighted); ok {
		s.Newcomer(keyOf(i.x))
	}
	w.newcomer = *i
	if t, ok := w.twin.(*twinS3); ok {
		t.newcomer(i.id)
	}
	w.free = append(w.free, i.h)
	if w.evict(rt, min(1, len(w.byObject)), false, false) {
		at := slices.Index(w.free, i.h)
		w.free = append(slices.Delete(w.free, at, at+1), i.h)
		w.insert(i.x, i.need)
	}
}
