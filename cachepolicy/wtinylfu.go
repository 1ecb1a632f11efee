package cachepolicy

import (
	"math/bits"

	"larder/internal/ident"
)

// wtinylfu is W-TinyLFU (Einziger, Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
// Transactions on Storage 13(4), 2017, section 4): newcomers begin in a window of one entry in a hundred, which is an
// LRU list. The entry that the window pushes out is compared with the one that the main part would give up, by how
// often a sketch has counted them lately; the rarer one leaves, on equality the candidate. The main part is a segmented
// LRU: used again, an entry is protected, with at most four fifths of the main part. Sizes are counted in entries, of
// as many as the tier holds when it must make room.
//
// Not taken over from Caffeine, which the paper describes: the window that adapts itself (a later paper), and the
// chance that lets a warm candidate in against hash flooding.
type wtinylfu struct {
	lists
	ids      []uint64 // by handle
	sketch   sketch
	newcomer uint64
}

const (
	lfuWindow uint8 = iota
	lfuProbation
	lfuProtected
)

func newWTinyLFU() *wtinylfu { return &wtinylfu{lists: newLists("w-tinylfu", 3)} }

func (w *wtinylfu) Newcomer(k ident.Key) { w.newcomer = idOf(k) }

func (w *wtinylfu) Admit(k ident.Key, _ int) bool {
	w.Newcomer(k)
	w.sketch.add(w.newcomer)
	return true
}

// window is how many entries the window may have.
func (w *wtinylfu) window() int { return max(1, w.all/100) }

func (w *wtinylfu) Insert(h uint32, _ int) {
	w.push(lfuWindow, h)
	for int(h) >= len(w.ids) {
		w.ids = append(w.ids, 0)
	}
	w.ids[h] = w.newcomer
	w.sketch.grow(w.all)
	for w.size[lfuWindow] > w.window() {
		c, _ := w.oldest(lfuWindow)
		w.renew(lfuProbation, c)
	}
}

func (w *wtinylfu) Restore(h uint32, _ int) { w.restore(h) }
func (w *wtinylfu) Update(h uint32, _ int)  { w.at(h) }
func (w *wtinylfu) Remove(h uint32)         { w.remove(h) }

func (w *wtinylfu) Hit(h uint32) {
	list := w.at(h).list
	w.sketch.add(w.ids[h])
	if list == lfuProbation {
		list = lfuProtected
	}
	w.renew(list, h)
	for main := w.all - w.size[lfuWindow]; w.size[lfuProtected] > max(1, main*4/5); {
		old, _ := w.oldest(lfuProtected)
		w.renew(lfuProbation, old)
	}
}

// main is what the main part gives up.
func (w *wtinylfu) main() (uint32, bool) {
	if h, ok := w.oldest(lfuProbation); ok {
		return h, true
	}
	return w.oldest(lfuProtected)
}

// Victim compares what a newcomer would push out of the window with what the main part would give up; Insert carries
// the pushing out.
func (w *wtinylfu) Victim(int) (uint32, bool) {
	v, ok := w.main()
	c, full := w.oldest(lfuWindow)
	switch {
	case !ok:
		return c, full
	case full && w.size[lfuWindow] >= w.window() && w.sketch.count(w.ids[c]) <= w.sketch.count(w.ids[v]):
		return c, true
	default:
		return v, true
	}
}

func (w *wtinylfu) Coldest() (uint32, bool) {
	if v, ok := w.main(); ok {
		return v, true
	}
	return w.oldest(lfuWindow)
}

// sketch counts how often ids were seen lately: a count-min sketch of four rows of four-bit counters, sixteen counters
// to an entry, halved after ten additions an entry (section 3.3 of the paper: the reset). It forgets all when its table
// grows.
type sketch struct {
	words   []uint64 // sixteen counters each; a power of two
	entries int      // most that there were at once
	added   int
}

func (s *sketch) grow(entries int) {
	if entries <= s.entries {
		return
	}
	s.entries = entries
	if entries > len(s.words) {
		s.words = make([]uint64, max(64, 1<<bits.Len(uint(entries-1))))
		s.added = 0
	}
}

// at is where row counts id.
func (s *sketch) at(id uint64, row uint) (word uint64, shift uint) {
	// Odd multipliers spread the bits of what is a good hash already; each row has four of the sixteen counters of a word.
	h := id * [4]uint64{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0xd6e8feb86659fd93}[row]
	h ^= h >> 32
	return h & uint64(len(s.words)-1), (row*4 + uint(h>>60)&3) * 4
}

func (s *sketch) count(id uint64) uint64 {
	if len(s.words) == 0 {
		return 0
	}
	least := uint64(15)
	for row := range uint(4) {
		w, shift := s.at(id, row)
		least = min(least, s.words[w]>>shift&15)
	}
	return least
}

func (s *sketch) add(id uint64) {
	if len(s.words) == 0 {
		return
	}
	added := false
	for row := range uint(4) {
		if w, shift := s.at(id, row); s.words[w]>>shift&15 < 15 {
			s.words[w] += 1 << shift
			added = true
		}
	}
	if !added {
		return
	}
	if s.added++; s.added >= 10*s.entries {
		s.added = 0
		for i := range s.words {
			s.words[i] = s.words[i] >> 1 & 0x7777777777777777
		}
	}
}
