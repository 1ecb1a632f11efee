package cachepolicy

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"larder/internal/xrand"
)

// twin is a policy written for reading: lists are slices, oldest first. It says which victims the rule allows.
type twin interface {
	insert(i *listed)
	hit(i *listed)
	remove(i *listed)
	restore(at int, list uint8, i *listed)
	allowed(newcomer listed, coldest bool) []*listed // none: refuse; moves what the search for a victim moves
}

// listed is an entry, or a newcomer.
type listed struct {
	h       uint32
	x, need int
	id      uint64
	uses    int
	list    uint8
	used    int // when it was used last
}

// naive is what twins share: lists, and an answer that holds until something changes.
type naive struct {
	lists  [3][]*listed
	clock  int
	choice *listed
}

func (n *naive) push(list uint8, i *listed) { i.list = list; n.lists[list] = append(n.lists[list], i) }

func (n *naive) out(i *listed) (at int) {
	at = slices.Index(n.lists[i.list], i)
	n.lists[i.list] = slices.Delete(n.lists[i.list], at, at+1)
	return at
}

func (n *naive) all() []*listed { return slices.Concat(n.lists[0], n.lists[1], n.lists[2]) }

func (n *naive) insert(i *listed)                   { n.clock++; i.used = n.clock; n.push(0, i) }
func (n *naive) hit(i *listed)                      { n.clock++; i.used = n.clock }
func (n *naive) remove(i *listed)                   { n.out(i) }
func (n *naive) restore(at int, l uint8, i *listed) { n.lists[l] = slices.Insert(n.lists[l], at, i) }

type twinNeed struct {
	naive
	refcount bool
}

func (n *twinNeed) allowed(c listed, coldest bool) (ok []*listed) {
	for _, i := range n.lists[0] {
		if len(ok) > 0 && i.need < ok[0].need {
			ok = nil
		}
		if len(ok) == 0 || i.need == ok[0].need {
			ok = append(ok, i)
		}
	}
	neutral := len(ok) > 0 && ok[0].need < 0 // it leaves for any newcomer that is not
	if len(ok) > 0 && !coldest && (c.need < 0 || !n.refcount && !neutral && (c.need < 1 || ok[0].need > c.need)) {
		return nil
	}
	return ok
}

type twinMinio struct {
	naive
	evicts func(newcomer listed, entries []*listed) []*listed
	shrink func(entries []*listed) []*listed
}

func (m *twinMinio) allowed(c listed, coldest bool) []*listed {
	if coldest {
		return m.shrink(m.lists[0])
	}
	return m.evicts(c, m.lists[0])
}

type twinQueue struct {
	naive
	lru bool
}

func (q *twinQueue) hit(i *listed) {
	if q.lru {
		q.out(i)
		q.push(0, i)
	}
}

func (q *twinQueue) allowed(listed, bool) []*listed { return q.lists[0][:min(1, len(q.lists[0]))] }

type twinRandom struct {
	naive
	two bool
}

// The most recently used of two or more is never the older one of two draws.
func (r *twinRandom) allowed(listed, bool) []*listed {
	all := slices.Clone(r.lists[0])
	if r.two && len(all) > 1 {
		slices.SortFunc(all, func(a, b *listed) int { return a.used - b.used })
		all = all[:len(all)-1]
	}
	return all
}

type twinSieve struct {
	naive
	hand *listed
}

func (s *twinSieve) insert(i *listed) { i.uses = 0; s.push(0, i) }
func (s *twinSieve) hit(i *listed)    { i.uses = 1 }
func (s *twinSieve) next(i *listed) *listed {
	if at := slices.Index(s.lists[0], i); at+1 < len(s.lists[0]) {
		return s.lists[0][at+1]
	}
	return nil
}

func (s *twinSieve) remove(i *listed) {
	if s.hand == i {
		s.hand = s.next(i)
	}
	s.out(i)
}

func (s *twinSieve) restore(at int, l uint8, i *listed) { s.naive.restore(at, l, i); s.hand = i }

func (s *twinSieve) allowed(listed, bool) []*listed {
	for len(s.lists[0]) > 0 {
		if s.hand == nil {
			s.hand = s.lists[0][0]
		}
		if s.hand.uses == 0 {
			return []*listed{s.hand}
		}
		s.hand.uses = 0
		s.hand = s.next(s.hand)
	}
	return nil
}

// twinS3 has the small queue in list 0, the main one in 1, and the ghosts by name.
type twinS3 struct {
	naive
	ghosts []uint64 // oldest first
	left   []uint64
	full   int // entries when it began to make room; 0 = it does not
	back   bool
}

func (s *twinS3) newcomer(id uint64) {
	s.settle()
	n := len(s.ghosts)
	s.ghosts = slices.DeleteFunc(s.ghosts, func(g uint64) bool { return g == id })
	s.back = len(s.ghosts) < n
}

func (s *twinS3) settle() {
	s.choice = nil
	for _, id := range s.left {
		s.ghosts = append(slices.DeleteFunc(s.ghosts, func(g uint64) bool { return g == id }), id)
		s.ghosts = s.ghosts[max(0, len(s.ghosts)-s.full*9/10):]
	}
	s.left, s.full = nil, 0
}

func (s *twinS3) insert(i *listed) {
	s.settle()
	i.uses = 0
	if s.back {
		s.push(1, i)
	} else {
		s.push(0, i)
	}
	s.back = false
}

func (s *twinS3) hit(i *listed) { s.settle(); i.uses = min(3, i.uses+1) }

func (s *twinS3) remove(i *listed) {
	if i.list == 0 && s.choice == i { // dropped or evicted: a policy cannot tell
		s.left = append(s.left, i.id)
	}
	s.choice = nil
	s.out(i)
}

func (s *twinS3) restore(at int, l uint8, i *listed) {
	s.naive.restore(at, l, i)
	if l == 0 {
		s.left = s.left[:len(s.left)-1]
	}
	s.choice = i
}

func (s *twinS3) allowed(listed, bool) []*listed {
	small, main := len(s.lists[0]), len(s.lists[1])
	if small+main == 0 {
		return nil
	}
	if s.full == 0 {
		s.full = small + main
	}
	if s.choice == nil && (main == 0 || small >= max(1, (small+main)/10)) {
		for len(s.lists[0]) > 0 && s.choice == nil {
			if i := s.lists[0][0]; i.uses > 1 {
				s.out(i)
				i.uses = 0
				s.push(1, i)
			} else {
				s.choice = i
			}
		}
	}
	for s.choice == nil {
		if i := s.lists[1][0]; i.uses > 0 {
			s.out(i)
			i.uses--
			s.push(1, i)
		} else {
			s.choice = i
		}
	}
	return []*listed{s.choice}
}

// twinLFU has the window in list 0, probation in 1, protected in 2. The sketch has a test of its own.
type twinLFU struct {
	naive
	sketch sketch
}

func (w *twinLFU) insert(i *listed) {
	w.push(0, i)
	w.sketch.grow(len(w.all()))
	for len(w.lists[0]) > max(1, len(w.all())/100) {
		c := w.lists[0][0]
		w.out(c)
		w.push(1, c)
	}
}

func (w *twinLFU) hit(i *listed) {
	w.sketch.add(i.id)
	to := []uint8{0, 2, 2}[i.list]
	w.out(i)
	w.push(to, i)
	for len(w.lists[2]) > max(1, (len(w.lists[1])+len(w.lists[2]))*4/5) {
		c := w.lists[2][0]
		w.out(c)
		w.push(1, c)
	}
}

func (w *twinLFU) allowed(_ listed, coldest bool) []*listed {
	main := append(slices.Clone(w.lists[1]), w.lists[2]...)
	switch {
	case len(main) == 0:
		return w.lists[0][:min(1, len(w.lists[0]))]
	case coldest || len(w.lists[0]) < max(1, len(w.all())/100) ||
		w.sketch.count(w.lists[0][0].id) > w.sketch.count(main[0].id):
		return main[:1]
	default:
		return w.lists[0][:1]
	}
}

type twinForesight struct {
	naive
	future *clock
	window uint64
}

func (f *twinForesight) next(x int) uint64 {
	at, ok := f.future.Next(keyOf(x))
	if !ok || f.window > 0 && at > f.future.now+f.window {
		return never
	}
	return at
}

func (f *twinForesight) allowed(c listed, coldest bool) []*listed {
	var far *listed
	for _, i := range f.lists[0] {
		if far == nil || f.next(i.x) > f.next(far.x) {
			far = i
		}
	}
	if far == nil || !coldest && f.next(far.x) != never && f.next(c.x) >= f.next(far.x) {
		return nil
	}
	return []*listed{far}
}

func anyOf(entries []*listed) []*listed  { return entries }
func noneOf(listed, []*listed) []*listed { return nil }
func owns(x, node int) bool              { return xrand.Hash(uint64(x))%3 == uint64(node) }
func guests(entries []*listed) []*listed {
	return slices.DeleteFunc(slices.Clone(entries), func(i *listed) bool { return owns(i.x, 1) })
}

// pair makes a policy and its twin.
func pair(t interface{ Fatal(...any) }, name string, seed uint64, c *clock) (Evictor, twin) {
	e, err := NewGiven(name, xrand.New(seed), Given{Future: c, Node: 1, Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	switch name {
	case "need", "refcount":
		return e, &twinNeed{refcount: name == "refcount"}
	case "minio":
		return e, &twinMinio{evicts: noneOf, shrink: anyOf}
	case "minio-preselect":
		rank := xrand.New(seed).Uint64()
		hash := func(x int) uint64 { return xrand.Hash(rank, uint64(x)) }
		last := func(entries []*listed) []*listed {
			if len(entries) == 0 {
				return nil
			}
			return []*listed{slices.MaxFunc(entries, func(a, b *listed) int {
				if hash(a.x) > hash(b.x) {
					return 1
				}
				return -1
			})}
		}
		return e, &twinMinio{shrink: last, evicts: func(c listed, entries []*listed) []*listed {
			if l := last(entries); len(l) > 0 && hash(c.x) < hash(l[0].x) {
				return l
			}
			return nil
		}}
	case "minio-partitioned":
		return e, &twinMinio{
			evicts: func(c listed, entries []*listed) []*listed {
				if !owns(c.x, 1) {
					return nil
				}
				return guests(entries)
			},
			shrink: func(entries []*listed) []*listed {
				if g := guests(entries); len(g) > 0 {
					return g
				}
				return entries
			}}
	case "lru", "fifo":
		return e, &twinQueue{lru: name == "lru"}
	case "random", "2-random":
		return e, &twinRandom{two: name == "2-random"}
	case "sieve":
		return e, &twinSieve{}
	case "s3-fifo":
		return e, &twinS3{}
	case "w-tinylfu":
		return e, &twinLFU{}
	default:
		f := &twinForesight{future: c}
		if name == "clairvoyant-7" {
			f.window = 7
		}
		return e, f
	}
}

// played drives a policy and its twin like a tier does: hits, misses that find room or evict one or more, refusals half
// way, entries that are dropped, grow or get another need, and tiers that shrink.
type played struct {
	name     string
	e        Evictor
	twin     twin
	clock    *clock
	byObject map[int]*listed
	free     []uint32
	newcomer listed
	room     int
}

func (w *played) sees(x, need int) {
	w.newcomer = listed{x: x, need: need, id: idOf(keyOf(x))}
	admit(w.e, x, need)
	switch t := w.twin.(type) {
	case *twinS3:
		t.newcomer(w.newcomer.id)
	case *twinLFU:
		t.sketch.add(w.newcomer.id)
	}
}

// ask compares Victim or Coldest with what the twin allows.
func (w *played) ask(rt *rapid.T, coldest bool) *listed {
	ask := func() (uint32, bool) {
		if coldest {
			return w.e.Coldest()
		}
		return w.e.Victim(w.newcomer.need)
	}
	h, ok := ask()
	if again, ok2 := ask(); again != h || ok2 != ok {
		rt.Fatalf("victim %d %v, then %d %v", h, ok, again, ok2)
	}
	allowed := w.twin.allowed(w.newcomer, coldest)
	if ok != (len(allowed) > 0) {
		rt.Fatalf("coldest %v: victim %d %v, allowed %v", coldest, h, ok, allowed)
	}
	if !ok {
		return nil
	}
	at := slices.IndexFunc(allowed, func(i *listed) bool { return i.h == h })
	if at < 0 {
		rt.Fatalf("coldest %v: victim %d, allowed %d and %d others", coldest, h, allowed[0].h, len(allowed)-1)
	}
	return allowed[at]
}

type removed struct {
	i    *listed
	at   int
	list uint8
}

func (w *played) remove(i *listed) removed {
	r := removed{i: i, list: i.list}
	if n := w.naive(); n != nil {
		r.at = slices.Index(n.lists[i.list], i)
	}
	w.e.Remove(i.h)
	w.twin.remove(i)
	delete(w.byObject, i.x)
	return r
}

func (w *played) naive() *naive {
	switch t := w.twin.(type) {
	case *twinNeed:
		return &t.naive
	case *twinMinio:
		return &t.naive
	case *twinQueue:
		return &t.naive
	case *twinRandom:
		return &t.naive
	case *twinSieve:
		return &t.naive
	case *twinS3:
		return &t.naive
	case *twinLFU:
		return &t.naive
	case *twinForesight:
		return &t.naive
	}
	return nil
}

func (w *played) insert(x, need int) {
	h := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	i := &listed{h: h, x: x, need: need, id: idOf(keyOf(x))}
	w.byObject[x] = i
	w.e.Insert(h, need)
	w.twin.insert(i)
}

// evict takes n victims out, or puts all back when the policy refuses or refuse says so after them.
func (w *played) evict(rt *rapid.T, n int, coldest, refuse bool) bool {
	var gone []removed
	for range n {
		i := w.ask(rt, coldest)
		if i == nil {
			refuse = true
			break
		}
		gone = append(gone, w.remove(i))
	}
	if refuse {
		for _, r := range slices.Backward(gone) {
			w.e.Restore(r.i.h, r.i.need)
			w.twin.restore(r.at, r.list, r.i)
			w.byObject[r.i.x] = r.i
		}
		return false
	}
	for _, r := range gone {
		w.free = append(w.free, r.i.h)
	}
	return true
}

func (w *played) any(rt *rapid.T) *listed {
	if len(w.byObject) == 0 {
		rt.Skip("empty")
	}
	return w.byObject[rapid.SampledFrom(slices.Sorted(maps.Keys(w.byObject))).Draw(rt, "x")]
}
