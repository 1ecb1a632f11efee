package cachepolicy

import "larder/internal/invariant"

// lists is a few doubly linked lists of entries, oldest first, through one dense table: no allocation once the table
// has grown to the largest handle. A removed entry keeps its place in mind, so that restoring removals in the reverse
// order leaves every list as it was.
type lists struct {
	name  string
	heads uint32 // links[:heads] are the heads of the rings: next is the oldest entry, prev the newest
	links []link // by handle + heads
	size  []int  // entries, by list
	all   int
}

type link struct {
	next, prev uint32
	list       uint8
	in         bool
}

func newLists(name string, n uint8) lists {
	l := lists{name: name, heads: uint32(n), links: make([]link, n), size: make([]int, n)}
	for i := range l.links {
		l.links[i] = link{next: uint32(i), prev: uint32(i), list: uint8(i)}
	}
	return l
}

func (l *lists) Name() string { return l.name }
func (l *lists) Len() int     { return l.all }

// push makes h the newest entry of a list.
func (l *lists) push(list uint8, h uint32) {
	for int(h+l.heads) >= len(l.links) {
		l.links = append(l.links, link{})
	}
	if l.links[h+l.heads].in {
		invariant.Violated("%s: entry %d is in already", l.name, h)
	}
	l.links[h+l.heads] = link{next: uint32(list), prev: l.links[list].prev, list: list}
	l.tie(h)
}

// restore puts h back where it was removed from.
// REQUIRES: what was removed after h is back already, and nothing else has changed.
func (l *lists) restore(h uint32) {
	if int(h+l.heads) >= len(l.links) || l.links[h+l.heads].in {
		invariant.Violated("%s: entry %d was not removed", l.name, h)
	}
	l.tie(h)
}

// restoreOldest makes h, which was removed, the oldest of its list again. It asks nothing of what else has changed.
func (l *lists) restoreOldest(h uint32) {
	if int(h+l.heads) < len(l.links) && !l.links[h+l.heads].in {
		at := &l.links[h+l.heads]
		at.prev, at.next = uint32(at.list), l.links[at.list].next
	}
	l.restore(h)
}

// tie links h between the neighbours that it names.
func (l *lists) tie(h uint32) {
	n := h + l.heads
	at := &l.links[n]
	l.links[at.prev].next, l.links[at.next].prev = n, n
	at.in = true
	l.size[at.list]++
	l.all++
}

func (l *lists) remove(h uint32) {
	at := l.at(h)
	l.links[at.prev].next, l.links[at.next].prev = at.next, at.prev
	at.in = false
	l.size[at.list]--
	l.all--
}

// renew makes h the newest entry of a list, which need not be the one it is in.
func (l *lists) renew(list uint8, h uint32) {
	l.remove(h)
	l.push(list, h)
}

// at is the link of an entry that is in.
func (l *lists) at(h uint32) *link {
	if int(h+l.heads) >= len(l.links) || !l.links[h+l.heads].in {
		invariant.Violated("%s: entry %d is not in", l.name, h)
	}
	return &l.links[h+l.heads]
}

// oldest is the oldest entry of a list.
func (l *lists) oldest(list uint8) (uint32, bool) {
	n := l.links[list].next
	return n - l.heads, n >= l.heads
}

// after is the entry that came next after h, which is in, to the same list.
func (l *lists) after(h uint32) (uint32, bool) {
	n := l.at(h).next
	return n - l.heads, n >= l.heads
}
