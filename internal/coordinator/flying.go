package coordinator

import (
	mathbits "math/bits"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// flying finds flights by what they make. Those of an object are chained, nearly always one, and the table leads from
// an object to the first of them: open addressing with linear probing, at most half full (Knuth, TAOCP 3, 6.4,
// algorithms L and R). What is asked of it most is whether anything of an object is under way, and mostly nothing is.
type flying struct {
	slots []flyingSlot // a power of two, or none
	shift int          // 32 less its logarithm
	used  int          // slots
	n     int          // flights
}

type flyingSlot struct {
	x     ident.ObjectID
	first *flight // nil = free
}

const leastFlying = 64 // slots

// home is where an object belongs: the upper bits of a product, because ids that follow each other are to lie apart.
func (t *flying) home(x ident.ObjectID) int { return int(uint32(x) * 0x9e3779b1 >> t.shift) }

// find is the slot of an object, or the free one where it belongs.
// REQUIRES: there is a free slot.
func (t *flying) find(x ident.ObjectID) int {
	i := t.home(x)
	for t.slots[i].first != nil && t.slots[i].x != x {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

// of is the first flight of an object; nil = there is none. The others follow it.
func (t *flying) of(x ident.ObjectID) *flight {
	if t.used == 0 {
		return nil
	}
	return t.slots[t.find(x)].first
}

// get is the flight that makes k; nil = there is none.
func (t *flying) get(k ident.Key) *flight { return t.of(k.Object).making(k) }

// making is the flight that makes k among one and those that follow it.
func (f *flight) making(k ident.Key) *flight {
	for f != nil && f.key != k {
		f = f.next
	}
	return f
}

// add files a flight. No other makes the same.
func (t *flying) add(f *flight) {
	if 2*(t.used+1) > len(t.slots) {
		old := t.slots
		t.slots = make([]flyingSlot, max(leastFlying, 2*len(old)))
		t.shift = 32 - mathbits.TrailingZeros(uint(len(t.slots)))
		for _, s := range old {
			if s.first != nil {
				t.slots[t.find(s.x)] = s
			}
		}
	}
	s := &t.slots[t.find(f.key.Object)]
	if s.first == nil {
		t.used++
	} else if s.first.making(f.key) != nil {
		invariant.Violated("coordinator: two flights make %s", f.key)
	}
	f.next = s.first
	*s = flyingSlot{f.key.Object, f}
	t.n++
}

// remove takes a flight out, if it is in.
func (t *flying) remove(f *flight) {
	if t.used == 0 {
		return
	}
	i := t.find(f.key.Object)
	at := &t.slots[i].first
	for *at != nil && *at != f {
		at = &(*at).next
	}
	if *at == nil {
		return
	}
	*at, f.next = f.next, nil
	t.n--
	if t.slots[i].first != nil {
		return
	}
	t.used--
	mask := len(t.slots) - 1
	for j := (i + 1) & mask; t.slots[j].first != nil; j = (j + 1) & mask {
		// What belongs at or before the hole, cyclically, moves into it.
		if (j-t.home(t.slots[j].x))&mask >= (j-i)&mask {
			t.slots[i], t.slots[j] = t.slots[j], flyingSlot{}
			i = j
		}
	}
}
