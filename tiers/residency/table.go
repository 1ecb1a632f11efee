package residency

import (
	"slices"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// A key leads to its slot without hashing: (form, recipe, group, instance) name a plane, the plane's directory leads
// from object to page, and a page holds the slots of 16 consecutive objects. What a lookup and a pin need is in the
// slot, so they touch one cache line beside the directory, which is small (0.25 B a sample). Everything else is in the
// entry, which only admissions, needs and hits touch.
//
// Memory: 8.75 B for each sample of a page in use (slot 8, page 0.5, directory 0.25) and 24 B an entry. Pages are small
// because residency can be sparse: with 1 % of the samples in, drawn at random, 15 % of the pages exist.
const (
	pageBits  = 4  // objects of a page
	blockBits = 12 // slots of a block: what is allocated, and copied for a snapshot, at once
	chunkBits = 10 // entries of a chunk, likewise
)

type state uint8

const (
	dead     state = iota // in the free list
	resident              // admitted
	leaving               // evicted while pinned; Admit can take it back
	dropped               // removed while pinned, or never kept: its bytes are not to be used again
)

// slot is what is known of a key at its place: 0 when there is nothing, else the entry, and from the lowest bit: state,
// ready, form, pins.
type slot struct {
	entry uint32
	bits  uint32
}

const (
	stateMask = 3
	readyBit  = 4
	formShift = 3
	onePin    = 1 << 5
)

func (s slot) state() state     { return state(s.bits & stateMask) }
func (s slot) form() ident.Form { return ident.Form(s.bits >> formShift & 3) }
func (s slot) pins() uint32     { return s.bits / onePin }
func (s slot) ready() bool      { return s.bits&readyBit != 0 }
func (s *slot) become(st state) { s.bits = s.bits&^stateMask | uint32(st) }

// page says whose the 16 slots are, even when all of them are dead, until the next Admit.
type page struct {
	plane uint32
	base  uint32 // object / 16
}

// blockRef and chunkRef are copied before they are written when a snapshot has them too.
type blockRef struct {
	slots  *[1 << blockBits]slot
	pages  *[1 << (blockBits - pageBits)]page
	shared bool
}

// entry is the rest of what is known of a key. Entries are numbered densely, so that the tables of an Evictor are as
// large as the tier's most entries, not as the datasets.
type entry struct {
	bytes  int64
	at     uint32 // the handle; of a dead entry, the next free one
	need   int32
	usedBy uint32
	gen    uint32 // 0: dead
}

type chunk [1 << chunkBits]entry

type chunkRef struct {
	*chunk
	shared bool
}

// plane is all that is in with one form, recipe, group and instance. No two are of the same. One that is empty serves
// for others when they come.
type plane struct {
	recipe   ident.RecipeID
	group    uint32
	instance uint32
	form     ident.Form
	shared   bool     // a snapshot has dir too
	number   uint32   // in planes
	pages    int      // in dir
	dir      []uint32 // page by object / 16; 0 is the page of nothing
}

// nothing is a plane that no key is of.
var nothing = &plane{form: ident.NumForms}

func (p *plane) of(k ident.Key) bool {
	return p.recipe == k.Recipe && p.instance == k.Instance && p.group == k.Group && p.form == k.Form
}

// tables is the state of an index that can be read, by a snapshot as by the index itself.
type tables struct {
	sums    [ident.NumForms]sums
	planes  []*plane
	blocks  []blockRef
	chunks  []chunkRef
	entries uint32 // numbers given out, dead ones included
}

// sums are the exact totals of one tier.
type sums struct {
	budget    int64
	used      int64  // bytes of resident entries
	leaving   int64  // bytes of leaving and dropped entries
	entries   int    // resident
	evictions uint64 // entries that left for another or for a smaller budget
}

func (t *tables) entry(n uint32) *entry { return &t.chunks[n>>chunkBits].chunk[n&(1<<chunkBits-1)] }

func (t *tables) slot(at uint32) *slot {
	return &t.blocks[at>>blockBits].slots[at&(1<<blockBits-1)]
}

// place is where the plane has the object's slot: 0 to 15, which are always dead, if there is no page for it.
func (p *plane) place(o ident.ObjectID) (at uint32) {
	if i := int(o >> pageBits); i < len(p.dir) {
		at = p.dir[i]
	}
	return at<<pageBits | uint32(o)&(1<<pageBits-1)
}

// scan finds a plane by looking at all of them.
func (t *tables) scan(k ident.Key) *plane {
	if k.Form < ident.Augmented && (k.Group != 0 || k.Instance != 0 || k.Form == ident.Encoded && k.Recipe != 0) {
		invariant.Violated("residency: %s is not a key of its form", k)
	}
	for _, p := range t.planes {
		if p.of(k) {
			return p
		}
	}
	return nothing
}

// numSeen is how many planes Lookup finds without a scan: jobs ask for few of them, over and over.
const numSeen = 64

// find is scan, for Lookup to remember.
func (x *Index) find(k ident.Key) *plane {
	p := x.scan(k)
	if p != nothing {
		x.seen[(uint32(k.Recipe)+k.Instance+k.Group*5+uint32(k.Form)*3)%numSeen] = p
	}
	return p
}

// plane is find for a key that is likely to have been asked for of late.
func (x *Index) plane(k ident.Key) *plane {
	if p := x.seen[(uint32(k.Recipe)+k.Instance+k.Group*5+uint32(k.Form)*3)%numSeen]; p.of(k) {
		return p
	}
	return x.find(k)
}

// own makes the block of a slot writable.
func (x *Index) own(at uint32) *slot {
	b := &x.blocks[at>>blockBits]
	if b.shared {
		b.copy()
	}
	return &b.slots[at&(1<<blockBits-1)]
}

func (b *blockRef) copy() {
	slots, pages := *b.slots, *b.pages
	*b = blockRef{slots: &slots, pages: &pages}
}

func (x *Index) ownEntry(n uint32) *entry {
	r := &x.chunks[n>>chunkBits]
	if r.shared {
		c := *r.chunk
		r.chunk, r.shared = &c, false
	}
	return &r.chunk[n&(1<<chunkBits-1)]
}

// put finds or makes the place of a key that is not in. The place is dead until something is written there.
func (x *Index) put(k ident.Key) (at uint32) {
	p := x.plane(k)
	if p == nothing {
		p = x.addPlane(k)
	}
	if at = p.place(k.Object); at >= 1<<pageBits {
		return at
	}
	p.own()
	i := int(k.Object >> pageBits)
	if i >= len(p.dir) {
		p.dir = append(p.dir, make([]uint32, i+1-len(p.dir))...)
	}
	n := x.addPage()
	x.own(n << pageBits)
	*x.pageOf(n << pageBits) = page{plane: p.number, base: uint32(i)}
	p.dir[i] = n
	p.pages++
	return p.place(k.Object)
}

func (x *Index) addPage() (n uint32) {
	if last := len(x.freePages) - 1; last >= 0 {
		n = x.freePages[last]
		x.freePages = x.freePages[:last]
		return n
	}
	n = x.numPages
	x.numPages++
	if n%(1<<(blockBits-pageBits)) == 0 {
		x.blocks = append(x.blocks, blockRef{slots: new([1 << blockBits]slot), pages: new([1 << (blockBits - pageBits)]page)})
	}
	return n
}

// own makes the directory writable.
func (p *plane) own() {
	if p.shared {
		p.dir, p.shared = slices.Clone(p.dir), false
	}
}

// pageOf is the page of a place.
func (t *tables) pageOf(at uint32) *page {
	return &t.blocks[at>>blockBits].pages[at&(1<<blockBits-1)>>pageBits]
}

func (x *Index) addPlane(k ident.Key) *plane {
	fresh := plane{recipe: k.Recipe, group: k.Group, instance: k.Instance, form: k.Form, number: uint32(len(x.planes))}
	for i, p := range x.planes {
		if p.pages == 0 {
			fresh.number = uint32(i)
			*p = fresh
			return p
		}
	}
	x.planes = append(x.planes, &fresh)
	return &fresh
}

// del empties a place, and gives up its page and plane when nothing is left there. Both stay readable until the next
// Admit.
func (x *Index) del(at uint32) {
	*x.own(at) = slot{}
	first := at & (1<<blockBits - 1) &^ (1<<pageBits - 1)
	var any uint32
	for _, s := range x.blocks[at>>blockBits].slots[first : first+1<<pageBits] {
		any |= s.bits
	}
	if any != 0 {
		return
	}
	pg := x.pageOf(at)
	p := x.planes[pg.plane]
	p.own()
	p.dir[pg.base] = 0
	x.freePages = append(x.freePages, at>>pageBits)
	if p.pages--; p.pages == 0 { // the last job of the recipe may be gone
		p.dir = nil
	}
}

// key returns the key that has a place, or had it last.
func (t *tables) key(at uint32) ident.Key {
	pg := t.pageOf(at)
	p := t.planes[pg.plane]
	return ident.Key{Object: ident.ObjectID(pg.base<<pageBits | at&(1<<pageBits-1)), Form: p.form, Recipe: p.recipe,
		Group: p.group, Instance: p.instance}
}
