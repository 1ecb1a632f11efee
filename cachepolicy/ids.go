package cachepolicy

import (
	"larder/internal/ident"
	"larder/internal/xrand"
)

// idOf stands for a key where a policy must know a sample again. Two keys of a million have the same one with a chance
// of 3e-8, and then a policy takes the one for the other: that costs a hit, nothing else. Never 0.
func idOf(k ident.Key) uint64 {
	return max(xrand.Hash(uint64(k.Object)|uint64(k.Form)<<32, uint64(k.Recipe),
		uint64(k.Group)<<32|uint64(k.Instance)), 1)
}

// idTable leads from ids to numbers: open addressing with linear probing, at most half full, deletion by moving up what
// follows (Knuth, TAOCP 3, 6.4, algorithm R). Unlike a map it allocates only when it doubles.
type idTable struct {
	slots []idSlot // a power of two, or none
	len   int
}

type idSlot struct {
	id    uint64 // 0 = free
	value uint64
}

// find is the slot of id, or the free one where it belongs.
// REQUIRES: there is a free slot.
func (t *idTable) find(id uint64) int {
	mask := len(t.slots) - 1
	i := int(id) & mask // ids are hashes already
	for t.slots[i].id != id && t.slots[i].id != 0 {
		i = (i + 1) & mask
	}
	return i
}

func (t *idTable) get(id uint64) (value uint64, ok bool) {
	if t.len == 0 {
		return 0, false
	}
	s := &t.slots[t.find(id)]
	return s.value, s.id == id
}

func (t *idTable) put(id, value uint64) {
	if 2*(t.len+1) > len(t.slots) {
		old := t.slots
		t.slots = make([]idSlot, max(16, 2*len(old)))
		for _, s := range old {
			if s.id != 0 {
				t.slots[t.find(s.id)] = s
			}
		}
	}
	s := &t.slots[t.find(id)]
	if s.id == 0 {
		t.len++
	}
	*s = idSlot{id, value}
}

func (t *idTable) del(id uint64) {
	if t.len == 0 {
		return
	}
	i := t.find(id)
	if t.slots[i].id == 0 {
		return
	}
	t.len--
	mask := len(t.slots) - 1
	for j := (i + 1) & mask; t.slots[j].id != 0; j = (j + 1) & mask {
		// What belongs at or before i, cyclically, moves into the hole.
		if home := int(t.slots[j].id) & mask; (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = idSlot{}
}
