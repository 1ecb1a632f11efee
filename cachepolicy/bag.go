package cachepolicy

import (
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// bag is random replacement: a dense set from which every entry is drawn with equal chance. It admits every newcomer.
type bag struct {
	name  string
	r     *xrand.Rand
	items []uint32
	pos   []uint32 // by handle: index in items + 1, 0 = out
	next  int      // index of the drawn entry, -1 = not drawn; Victim gives the same answer until something changes
}

func newBag(name string, r *xrand.Rand) *bag { return &bag{name: name, r: r, next: -1} }

func (b *bag) Name() string { return b.name }
func (b *bag) Len() int     { return len(b.items) }

func (b *bag) Insert(h uint32, _ int) {
	for int(h) >= len(b.pos) {
		b.pos = append(b.pos, 0)
	}
	if b.pos[h] != 0 {
		invariant.Violated("%s: entry %d is in already", b.name, h)
	}
	b.items = append(b.items, h)
	b.pos[h] = uint32(len(b.items))
	b.next = -1
}

func (b *bag) Restore(h uint32, need int) {
	if int(h) >= len(b.pos) {
		invariant.Violated("%s: Restore(%d) of an entry that never was in", b.name, h)
	}
	b.Insert(h, need)
}

func (b *bag) Update(h uint32, _ int) { b.at(h) }
func (b *bag) Hit(h uint32)           { b.at(h) }

func (b *bag) Remove(h uint32) {
	i, last := b.at(h), len(b.items)-1
	b.items[i] = b.items[last]
	b.pos[b.items[i]] = uint32(i + 1)
	b.items = b.items[:last]
	b.pos[h] = 0
	b.next = -1
}

func (b *bag) at(h uint32) int {
	if int(h) >= len(b.pos) || b.pos[h] == 0 {
		invariant.Violated("%s: entry %d is not in", b.name, h)
	}
	return int(b.pos[h] - 1)
}

func (b *bag) Victim(int) (uint32, bool) { return b.Coldest() }

func (b *bag) Coldest() (uint32, bool) {
	if len(b.items) == 0 {
		return 0, false
	}
	if b.next < 0 {
		b.next = b.r.IntN(len(b.items))
	}
	return b.items[b.next], true
}
