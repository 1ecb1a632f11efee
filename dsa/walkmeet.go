package dsa

import "slices"

// Jobs of mode Blocks that walk through the same blocks meet on them, so that one read serves all. Which block comes
// next is all that they decide here; what comes of it, and how it is mixed, is as it is alone (walk.go). A job beside
// which none walks through its blocks takes them in its own order.

const (
	// swapEvery: of so many blocks that a job comes to beside others, one is a block that they are done with, if there
	// is any. It costs a read. Without it two jobs of equal speed that began at different times would have the same part
	// of the dataset at the same time of each epoch, for ever. One choice in 18 costs a twentieth more reads, and
	// moves a tenth of the blocks, of both jobs together, to another time of the epoch.
	swapEvery = 18

	// recentWindows: what a job held within its last windows it does not prefer, so that the end of an epoch is not the
	// beginning of the next one.
	recentWindows = 2

	// mostLooked bounds how many blocks of an order a choice looks at.
	mostLooked = 256

	// A job brings no more blocks that others await while more than 1/sated of its window has not come to them. Else a
	// fast job would bring all of them before a slow one comes for them, which would read them again by itself. At the
	// beginning of an epoch it takes a window at once, and may bring more.
	sated, satedFirst = 8, 4
)

// fate is what other jobs will do with a block in their running epochs.
type fate uint8

const (
	unknown fate = iota // it is in no epoch of theirs
	done                // they have had it
	holding             // one holds it, and none awaits it
	awaited             // it has not come to one of them
)

// choose finds the block that comes next, and holds it; -1 = none is left. The first ones are those that an epoch
// begins with.
func (ws *walks) choose(w *walk, first bool) int {
	p := -1
	if len(ws.list) > 1 {
		p = ws.meet(w, first)
	}
	for p < 0 && len(w.order) > 0 {
		q := int(w.order[len(w.order)-1])
		w.order = w.order[:len(w.order)-1]
		if !w.waiting[q] {
			continue
		}
		if w.owes(q) {
			p = q
		} else {
			w.waiting[q] = false
			w.waits--
		}
	}
	if p >= 0 {
		w.waiting[p] = false
		w.waits--
		w.entries++
		w.took[p] = w.entries
		ws.move(w, p, true)
	}
	return p
}

// meet is the block that w is to take next because of other jobs; -1 = it takes the next of its own order. It is one
// that another job holds: then it need not be read again. If there is none, the read is of a block that others await,
// too, as long as they come for those that w brought; else of one that they are done with, which nobody else would
// need anyhow.
func (ws *walks) meet(w *walk, first bool) int {
	if w.beside++; w.beside%swapEvery == 0 {
		if p := ws.find(w, done); p >= 0 {
			return p
		}
	}
	if p := ws.met(w); p >= 0 {
		return p
	}
	most := w.width / sated
	if first {
		most = w.width / satedFirst
	}
	if ws.brought(w) > most {
		return ws.find(w, done)
	}
	return ws.find(w, awaited)
}

// met is a block that another job holds and w may take, the newest first; -1 = none.
func (ws *walks) met(w *walk) int {
	recent := uint32(recentWindows * w.width)
	for _, o := range ws.list {
		if o == w {
			continue
		}
		for i := len(o.window); i >= 0; i-- { // the newest first; before all, the one that is being read
			q := o.ahead
			if i < len(o.window) {
				q = o.window[i].place
			}
			if q < 0 || o.blocks[q] == NoBlock {
				continue
			}
			p, ok := w.place[o.blocks[q]]
			if ok && w.waiting[p] && w.owes(p) && (w.took[p] == 0 || w.entries-w.took[p] >= recent) {
				return p
			}
		}
	}
	return -1
}

// brought is how many blocks that w draws from have not come to a job that awaits them.
func (ws *walks) brought(w *walk) int {
	n := 0
	for i := range w.window {
		if r := &w.window[i]; r.slices < w.width && ws.fateOf(w, w.blocks[r.place]) == awaited {
			n++
		}
	}
	return n
}

// find looks for a block of w's order that has a fate; -1 = none was found.
func (ws *walks) find(w *walk, want fate) int {
	if len(w.order) > 2*w.waits { // most have come
		w.order = slices.DeleteFunc(w.order, func(p int32) bool { return !w.waiting[p] })
	}
	n := len(w.order)
	at := n - 1
	if n > mostLooked { // else those that are passed over would gather where it looks
		at = ws.dice.IntN(n)
	}
	for range min(n, mostLooked) {
		p := int(w.order[at])
		if w.waiting[p] && w.owes(p) && ws.fateOf(w, w.blocks[p]) == want {
			return p
		}
		if at--; at < 0 {
			at = n - 1
		}
	}
	return -1
}

// fateOf is that of a block in the epochs of other jobs than w.
func (ws *walks) fateOf(w *walk, block uint32) fate {
	f := unknown
	if block == NoBlock {
		return f
	}
	for _, o := range ws.list {
		if o == w || o.phase == walkIdle {
			continue
		}
		p, ok := o.place[block]
		switch {
		case !ok:
		case o.awaits(p):
			return awaited
		case o.phase == walkWalking && o.holds[p]:
			f = max(f, holding)
		default:
			f = max(f, done)
		}
	}
	return f
}

// awaits reports whether a block of the epoch has not come.
func (w *walk) awaits(p int) bool {
	if w.phase == walkBegun && w.left == nil {
		return true
	}
	return (w.phase == walkBegun || w.waiting[p]) && w.owes(p)
}
