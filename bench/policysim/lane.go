package policysim

import (
	"math/bits"
	"slices"

	"larder/bench/trace"
	"larder/cachepolicy"
	"larder/internal/ident"
	"larder/tiers/tinylfu"
)

// lane is one policy at one capacity: a cache of whole objects around an Evictor.
type lane struct {
	run      *run
	policy   string
	capacity int64
	ev       cachepolicy.Evictor
	sighted  cachepolicy.Sighted
	whole    *whole  // the future of belady
	epochs   *epochs // of clairvoyant-k

	in     []uint32 // by object: handle + 1; 0 = out
	object []uint32 // by handle: object + 1; 0 = free
	free   []uint32
	used   int64
	gone   []uint32 // scratch: handles that would leave for a newcomer
	held   []uint16 // by handle: the need that the policy knows; of sized traces only

	blind bool   // the policy asks for no need
	near  uint32 // keeps the reading ahead alive

	misses, admitted, evicted int
	jobHits                   []int // of the counted requests
	hitBytes                  int64
}

// weight is about what a request costs, for sharing lanes among workers.
func (l *lane) weight() int {
	switch {
	case l.epochs != nil:
		return 8 + len(l.run.t.Jobs)
	case l.policy == tinylfu.Name: // it waits for another goroutine
		return 60
	case l.whole != nil, l.policy == "need", l.policy == "refcount", l.policy == "minio-preselect":
		return 6
	case l.policy == "w-tinylfu", l.policy == "s3-fifo":
		return 3
	}
	return 1
}

// needBlind are the policies of the registry whose Update does nothing: they are spared it, and where all policies are,
// the needs are not even computed. A test holds the list to what the policies do.
var needBlind = []string{"minio", "minio-preselect", "minio-partitioned", "lru", "fifo", "random", "2-random",
	"w-tinylfu", "s3-fifo", "sieve"}

// counts marks in a note that the request is counted; what is below it is the need.
const counts = 1 << 15

// requests handles a block. notes has the number of other jobs that still need the object, and whether the request
// counts.
func (l *lane) requests(from int, objects []uint32, jobs, notes []uint16) {
	near := uint32(0)
	// loads that wait for no other: the block's part of a large table is near before it is needed
	for _, x := range objects {
		near += l.in[x]
	}
	l.near = near
	for i, x := range objects {
		if l.whole != nil {
			l.whole.advance(from+i, x)
		} else if l.epochs != nil {
			l.epochs.advance(from+i, x, jobs[i]&trace.JobMask)
		}
		note := notes[i]
		h := l.in[x]
		if h == 0 {
			l.misses++
			l.miss(x, int(note&^counts))
			continue
		}
		l.ev.Hit(h - 1)
		if !l.blind {
			l.ev.Update(h-1, int(note&^counts))
		}
		if l.held != nil {
			l.held[h-1] = note &^ counts
		}
		if note&counts != 0 {
			l.jobHits[jobs[i]&trace.JobMask]++
			if l.run.sizes != nil {
				l.hitBytes += int64(l.run.sizes[x])
			} else {
				l.hitBytes++
			}
		}
	}
}

// miss offers x to the policy. Sizes decide how many leave, never which: when not enough would leave, all of them stay.
func (l *lane) miss(x uint32, need int) {
	if l.sighted != nil && !l.sighted.Admit(ident.Key{Object: ident.ObjectID(x), Form: ident.Decoded}, need) {
		return
	}
	size := l.run.size(x)
	if size > l.capacity {
		return
	}
	if l.used+size > l.capacity && !l.makeRoom(size, need) {
		return
	}
	h := uint32(len(l.object))
	if n := len(l.free); n > 0 {
		h = l.free[n-1]
		l.free = l.free[:n-1]
		l.object[h] = x + 1
	} else {
		l.object = append(l.object, x+1)
	}
	if l.run.sizes != nil {
		for int(h) >= len(l.held) {
			l.held = append(l.held, 0)
		}
		l.held[h] = uint16(need)
	}
	l.in[x] = h + 1
	l.used += size
	l.admitted++
	l.ev.Insert(h, need)
}

func (l *lane) makeRoom(size int64, need int) bool {
	l.gone = l.gone[:0]
	room := l.capacity - l.used
	for room < size {
		v, ok := l.ev.Victim(need)
		if !ok {
			for _, h := range slices.Backward(l.gone) {
				l.ev.Restore(h, int(l.held[h]))
			}
			return false
		}
		l.ev.Remove(v)
		l.gone = append(l.gone, v)
		room += l.run.size(l.object[v] - 1)
	}
	for _, h := range l.gone {
		x := l.object[h] - 1
		l.used -= l.run.size(x)
		l.in[x], l.object[h] = 0, 0
		l.free = append(l.free, h)
		l.evicted++
	}
	return true
}

// feed goes over the trace, keeps what each job still needs of its running epoch, and notifies the lanes.
type feed struct {
	t     *trace.Trace
	warm  int
	need  []uint16   // by object: jobs whose running epoch still has it to come
	owed  [][]uint64 // by job, as a bitset: these
	epoch []int      // by job: epochs begun
	notes []uint16
	blind bool // no lane asks for needs
}

func newFeed(t *trace.Trace, warm int) *feed {
	return &feed{t: t, warm: warm, need: make([]uint16, t.Objects), owed: make([][]uint64, len(t.Jobs)),
		epoch: make([]int, len(t.Jobs)), notes: make([]uint16, block)}
}

// over replays the whole trace against some lanes, block by block; a block ends where a job begins an epoch.
func (f *feed) over(lanes []*lane, stop func() error, progress func(int)) error {
	objects, jobs := f.t.Pick.Object, f.t.Pick.Job
	last := 0
	f.blind = !slices.ContainsFunc(lanes, func(l *lane) bool { return !l.blind })
	for from := 0; from < len(objects); {
		if jobs[from]&trace.Begins != 0 {
			f.epoch[jobs[from]&trace.JobMask]++
			if !f.blind {
				f.begin(from)
			}
			for _, l := range lanes {
				if !l.blind {
					l.refresh(f, from)
				}
			}
		}
		to := from
		for to < len(objects) && to-from < block && (to == from || jobs[to]&trace.Begins == 0) {
			k := jobs[to] & trace.JobMask
			x := objects[to]
			note := uint16(0)
			if !f.blind {
				// A job needs an object until it has had it once in the epoch.
				if w, b := &f.owed[k][x>>6], uint64(1)<<(x&63); *w&b != 0 {
					*w &^= b
					f.need[x]--
				}
				note = f.need[x]
			}
			if f.epoch[k] > f.warm {
				note |= counts
			}
			f.notes[to-from] = note
			to++
		}
		for _, l := range lanes {
			l.requests(from, objects[from:to], jobs[from:to], f.notes[:to-from])
		}
		from = to
		if from-last >= 1<<20 || from == len(objects) {
			last = from
			progress(from)
			if stop != nil {
				if err := stop(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// begin finds what the epoch that begins with a request asks for.
func (f *feed) begin(at int) {
	objects, jobs := f.t.Pick.Object, f.t.Pick.Job
	k := jobs[at] & trace.JobMask
	owed := f.owed[k]
	if owed == nil {
		owed = make([]uint64, (f.t.Objects+63)/64)
		f.owed[k] = owed
	}
	for w := range owed { // of an epoch that was left
		for b := owed[w]; b != 0; b &= b - 1 {
			f.need[w<<6+bits.TrailingZeros64(b)]--
		}
		owed[w] = 0
	}
	for i := at; i < len(jobs); i++ {
		switch jobs[i] {
		case k | trace.Begins:
			if i > at {
				return
			}
			fallthrough
		case k:
			x := objects[i]
			if w, b := &owed[x>>6], uint64(1)<<(x&63); *w&b == 0 {
				*w |= b
				f.need[x]++
			}
		}
	}
}

// refresh passes to the policy what is needed now that an epoch begins, by handle, so that names have no influence.
func (l *lane) refresh(f *feed, at int) {
	if l.epochs != nil {
		l.epochs.begin(at)
	}
	for h, x := range l.object {
		if x != 0 {
			l.ev.Update(uint32(h), int(f.need[x-1]))
			if l.held != nil {
				l.held[h] = f.need[x-1]
			}
		}
	}
}

// whole is the Future of belady: all of the trace.
type whole struct {
	now  uint64   // number of the request, from 1
	next []uint32 // by request
	at   []uint32 // by object: its next request after now
}

// firstUse is, by object, the number of its first request from 1; 0 = none.
func firstUse(t *trace.Trace) []uint32 {
	at := make([]uint32, t.Objects)
	for i, x := range slices.Backward(t.Pick.Object) {
		at[x] = uint32(i + 1)
	}
	return at
}

func (w *whole) advance(i int, x uint32) {
	w.now = uint64(i + 1)
	w.at[x] = w.next[i]
}

// Now is the number of the request.
func (w *whole) Now() uint64 { return w.now }

// Next is the number of the object's next request.
func (w *whole) Next(k ident.Key) (uint64, bool) {
	at := w.at[k.Object]
	return uint64(at), at > 0
}

// epochs is the Future of clairvoyant-k: the rest of each job's running epoch.
type epochs struct {
	t    *trace.Trace
	now  uint64
	next []uint32   // by request: the next one of the same object, job and epoch; nil when there are none
	turn [][]uint32 // by job and object: its request in the running epoch
}

// nextInEpoch is, for each request, the number of the next one of the same object, job and epoch, from 1; 0 = none.
func nextInEpoch(t *trace.Trace) []uint32 {
	next := make([]uint32, t.Pick.Len())
	at := make([][]uint32, len(t.Jobs))
	for i := len(next) - 1; i >= 0; i-- {
		j := t.Pick.Job[i]
		k := j & trace.JobMask
		if at[k] == nil {
			at[k] = make([]uint32, t.Objects)
		}
		x := t.Pick.Object[i]
		next[i] = at[k][x]
		at[k][x] = uint32(i + 1)
		if j&trace.Begins != 0 {
			clear(at[k])
		}
	}
	return next
}

func (e *epochs) begin(at int) {
	objects, jobs := e.t.Pick.Object, e.t.Pick.Job
	k := jobs[at] & trace.JobMask
	if e.turn[k] == nil {
		e.turn[k] = make([]uint32, e.t.Objects)
	}
	clear(e.turn[k])
	e.now = uint64(at) // before the request
	for i := at; i < len(jobs); i++ {
		if j := jobs[i]; j&trace.JobMask == k {
			if i > at && j&trace.Begins != 0 {
				return
			}
			if x := objects[i]; e.turn[k][x] == 0 {
				e.turn[k][x] = uint32(i + 1)
			}
		}
	}
}

func (e *epochs) advance(i int, x uint32, job uint16) {
	e.now = uint64(i + 1)
	if e.next != nil {
		e.turn[job][x] = e.next[i]
	}
}

// Now is the number of the request.
func (e *epochs) Now() uint64 { return e.now }

// Next is the number of the object's next request in the epochs that run.
func (e *epochs) Next(k ident.Key) (at uint64, ok bool) {
	for _, t := range e.turn {
		if t == nil {
			continue
		}
		if n := uint64(t[k.Object]); n > e.now && (!ok || n < at) {
			at, ok = n, true
		}
	}
	return at, ok
}
