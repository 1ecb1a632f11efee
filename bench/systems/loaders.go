package systems

import (
	"slices"

	"larder/cachepolicy"
	"larder/internal/xrand"
)

// registry is every system, in the order in which tables show them.
var registry = []entry{
	{"independent", "Independent loaders (PyTorch's DataLoader with workers): each job shuffles by itself and prepares " +
		"everything itself; the page cache is LRU over whole files. " +
		"Assumed: the kernel's page cache is close to LRU, and pages of one file come and go together.", newIndependent},
	{"coordl", "CoorDL (Mohan et al., VLDB 2021) as in its released code: MinIO keeps a seeded choice of samples, " +
		"filled in epoch 0 and never evicted; K loaders prepare batch g in turn (g mod K), " +
		"each stages one batch until all jobs took it. Same batches, order and augmentation for all. Assumed: no takeover " +
		"of a dead job's part (the paper has a time-out, the code has none).", newCoorDL},
	{"tensorsocket", "TensorSocket (arXiv 2409.18749) as in its released code: one producer, a buffer of the last 0.5 " +
		"% of the loader's batches, producer batches of 8 loader batches, one message at a time that " +
		"all live consumers queue (10 batches) before the next; the tail of an epoch is not sent; nothing flows when the " +
		"buffer is less than a producer batch; a leave costs the others 10 s. Assumed: the loader's batch is the smallest " +
		"of the jobs'.",
		func(w *World) (System, string) { return newTensorSocket(w, true) }},
	{"tensorsocket-fixed", "The same with two mistakes mended: the buffer is at least a producer batch, and the tail " +
		"is sent.", func(w *World) (System, string) { return newTensorSocket(w, false) }},
	{"window", "tf.data service's ephemeral sharing (cross-trainer cache; Audibert et al., SoCC 2023): one endless " +
		"order, a window of produced elements; the fastest job extends it, slow ones skip what has left. " +
		"Assumed: a job's epoch is as many elements as the dataset has, and the window holds as many elements as the cache.",
		newWindow},
	{"quiver", "Quiver (Kumar, Sivathanu, FAST 2020), for which no code is public: the data in random chunks of half " +
		"the cache, two of them resident; a job looks at 10 batches' worth of its pending samples and takes " +
		"cached ones first; a chunk leaves when all jobs had it. Assumed from accounts of the paper: the factor 10, " +
		"chunks of half the cache; who finds too little asks about more, and what no job has in memory is read for the " +
		"job alone.", newQuiver},
	{"shade", "SHADE (Khan et al., FAST 2023), the paper's idea and not the released sampler, which updates the wrong " +
		"samples: samples are drawn with replacement by the rank of their loss, those in memory " +
		"come 3 times and misses are cut off to keep the epoch's length; the cache keeps the most important. Assumed: " +
		"losses are random, for no model is trained here.", newShade},
	{"icache", "iCache (Chen et al., HPCA 2023): nine tenths of the cache keep the most important samples; a request " +
		"for an unimportant one is answered with the next sample of a random queue, whatever it asked for. " +
		"Assumed: half of the samples are important, losses are random; the epochs in which it asks for everything are " +
		"left out.", newICache},
	{"joader", "Joader (Xie et al., NeurIPS 2022), its dependent sampling for any number of jobs done right " +
		"(dsa/baseline), and RefCnt with live counts.", sampled("joader", "refcount")},
	{"joader-as-released", "Joader's repository at submission: independent draws in blocks of 128 ids, a cache that is " +
		"written and never looked up.", sampled("joader-as-released", "refcount")},
	{"seneca", "Seneca's ODS (FAST 2026) as published: samples in memory that the job has not had come first; a sample " +
		"that as many jobs hit as there are leaves for a random one. " +
		"Assumed: one form in memory (its partitioning, MDP, is cachepolicy's model seneca; docs/reproductions.md).",
		sampled("ods", "minio")},
	{"larder-strict", "larder, order strict, policy need.", sampled("strict", "need")},
	{"larder", "larder, its default: order stratified, policy need.", sampled("stratified", "need")},
	{"larder-epoch", "larder, order epoch, policy need.", sampled("epoch", "need")},
}

// box is a cache of samples around a policy of the registry.
type box struct {
	ev       cachepolicy.Evictor
	capacity int
	in       []uint32 // by sample: handle + 1
	object   []uint32 // by handle
	free     []uint32
	dropped  func(x uint32) // may be nil
}

func newBox(policy string, samples, capacity int, r *xrand.Rand) *box {
	e, err := cachepolicy.New(policy, r)
	if err != nil {
		panic(err) // the names are constants of this package
	}
	return &box{ev: e, capacity: capacity, in: make([]uint32, samples)}
}

func (b *box) has(x uint32) bool { return b.in[x] > 0 }

// take uses x; a miss puts it in if the policy wants that.
func (b *box) take(x uint32, need int) (hit bool) {
	if h := b.in[x]; h > 0 {
		b.ev.Hit(h - 1)
		b.ev.Update(h-1, need)
		return true
	}
	b.put(x, need)
	return false
}

// put offers x, which is not in.
func (b *box) put(x uint32, need int) bool {
	if b.capacity == 0 {
		return false
	}
	if b.ev.Len() >= b.capacity {
		h, ok := b.ev.Victim(need)
		if !ok {
			return false
		}
		b.drop(b.object[h])
	}
	h := uint32(len(b.object))
	if n := len(b.free); n > 0 {
		h = b.free[n-1]
		b.free = b.free[:n-1]
		b.object[h] = x
	} else {
		b.object = append(b.object, x)
	}
	b.in[x] = h + 1
	b.ev.Insert(h, need)
	return true
}

func (b *box) drop(x uint32) {
	h := b.in[x] - 1
	b.ev.Remove(h)
	b.in[x] = 0
	b.free = append(b.free, h)
	if b.dropped != nil {
		b.dropped(x)
	}
}

// solo is what jobs that walk orders of their own have.
type solo struct {
	order []uint32
	at    int
}

// next cuts the next batch; over when there is none left.
func (s *solo) next(batch int) (ids []uint32, over bool) {
	if s.at == len(s.order) {
		return nil, true
	}
	n := min(batch, len(s.order)-s.at)
	ids = s.order[s.at : s.at+n]
	s.at += n
	return ids, false
}

type independent struct {
	w    *World
	page *box
	jobs []solo
}

func newIndependent(w *World) (System, string) {
	return &independent{w: w, page: newBox("lru", w.Samples, w.Cache, w.rng.Split()), jobs: make([]solo, len(w.Jobs))}, ""
}

func (s *independent) Join(job int, _ float64) {
	s.jobs[job].order = s.w.shuffled(s.w.Jobs[job].Subset)
}
func (*independent) Done(int, float64)       {}
func (*independent) Gone(int, float64, bool) {}

func (s *independent) Next(job int, now float64) (Batch, Status) {
	j := &s.jobs[job]
	ids, over := j.next(s.w.Jobs[job].Batch)
	if over {
		*j = solo{order: s.w.shuffled(s.w.Jobs[job].Subset)}
		return Batch{}, EpochOver
	}
	b := Batch{IDs: ids}
	for _, x := range ids {
		if s.page.take(x, 1) {
			b.Hits++
		}
	}
	b.Ready = s.w.work(now, len(ids)-b.Hits, len(ids))
	return b, Got
}

// coorDL: batch g of the run is prepared by loader g mod K.
type coorDL struct {
	w      *World
	minio  []bool // by sample: among the chosen
	orders [][]uint32
	per    int // batches of an epoch
	stage  []staged
	pos    []int // by job: its next batch
	over   []int // by job: epochs whose end it was notified of
}

type staged struct {
	g     int
	ids   []uint32
	ready float64
	hits  int
	taken []bool
	left  int
}

func newCoorDL(w *World) (System, string) {
	if why := w.alike(true, true); why != "" {
		return nil, why
	}
	ids := w.Jobs[0].Subset
	s := &coorDL{w: w, minio: make([]bool, w.Samples), per: (len(ids) + w.Jobs[0].Batch - 1) / w.Jobs[0].Batch,
		pos: make([]int, len(w.Jobs)), over: make([]int, len(w.Jobs))}
	for _, x := range w.shuffled(ids)[:min(w.Cache, len(ids))] {
		s.minio[x] = true
	}
	for range w.Jobs[0].Epochs {
		s.orders = append(s.orders, w.shuffled(ids))
	}
	for l := range w.Jobs {
		s.stage = append(s.stage, staged{})
		s.prepare(l, l, w.Jobs[0].Start)
	}
	return s, ""
}

// prepare makes loader l stage batch g.
func (s *coorDL) prepare(l, g int, now float64) {
	epoch := g / s.per
	if epoch >= len(s.orders) {
		s.stage[l] = staged{g: -1}
		return
	}
	b := s.w.Jobs[0].Batch
	from := g % s.per * b
	ids := s.orders[epoch][from:min(from+b, len(s.orders[epoch]))]
	st := staged{g: g, ids: ids, taken: make([]bool, len(s.w.Jobs)), left: len(s.w.Jobs)}
	for _, x := range ids {
		if epoch > 0 && s.minio[x] {
			st.hits++
		}
	}
	st.ready = s.w.work(now, len(ids)-st.hits, len(ids))
	s.stage[l] = st
}

func (*coorDL) Join(int, float64)       {}
func (*coorDL) Gone(int, float64, bool) {} // its counts stay
func (*coorDL) Done(int, float64)       {}

func (s *coorDL) Next(job int, now float64) (Batch, Status) {
	g := s.pos[job]
	if g%s.per == 0 && g/s.per > s.over[job] {
		s.over[job]++
		return Batch{}, EpochOver
	}
	st := &s.stage[g%len(s.stage)]
	if st.g != g || st.taken[job] {
		return Batch{}, Wait
	}
	st.taken[job] = true
	st.left--
	s.pos[job]++
	b := Batch{IDs: st.ids, Ready: st.ready}
	b.Hits = len(st.ids)
	if st.left == len(s.w.Jobs)-1 { // the first to come is charged with what was read
		b.Hits = st.hits
	}
	if st.left == 0 {
		s.prepare(g%len(s.stage), g+len(s.stage), max(now, st.ready))
	}
	return b, Got
}

// window is one endless order and a deque of what was produced of it last.
type window struct {
	w     *World
	order []uint32 // produced so far; what has left keeps its place
	ready []float64
	start int
	left  []uint32 // of the running pass
	index []int    // by job
	had   []int    // by job, in its epoch
}

func newWindow(w *World) (System, string) {
	if why := w.alike(false, false); why != "" {
		return nil, why
	}
	return &window{w: w, index: make([]int, len(w.Jobs)), had: make([]int, len(w.Jobs))}, ""
}

func (*window) Join(int, float64)       {}
func (*window) Done(int, float64)       {}
func (*window) Gone(int, float64, bool) {}

func (s *window) Next(job int, now float64) (Batch, Status) {
	j := &s.w.Jobs[job]
	if s.had[job] >= len(j.Subset) {
		s.had[job] = 0
		return Batch{}, EpochOver
	}
	b := Batch{Ready: now}
	for range min(j.Batch, len(j.Subset)-s.had[job]) {
		i := max(s.index[job], s.start)
		if i == len(s.order) {
			if len(s.left) == 0 {
				s.left = s.w.shuffled(j.Subset)
			}
			s.order = append(s.order, s.left[0])
			s.ready = append(s.ready, s.w.work(now, 1, 1))
			s.left = s.left[1:]
			if len(s.order)-s.start > max(1, s.w.Cache) {
				s.start++
			}
		} else {
			b.Hits++
		}
		b.IDs = append(b.IDs, s.order[i])
		b.Ready = max(b.Ready, s.ready[i])
		s.index[job] = i + 1
		s.had[job]++
	}
	return b, Got
}

// quiver draws batches from what is resident of two chunks.
type quiver struct {
	w       *World
	chunk   []int      // by sample
	chunks  [][]uint32 // samples of each
	here    []int      // the resident ones
	next    int
	drained [][]bool // by place in here and job: it had all of the chunk that it wanted, since the chunk came
	pending [][]uint32
	active  []bool
	ready   float64
}

// look is how many batches' worth of pending samples a job asks about.
const look = 10

func newQuiver(w *World) (System, string) {
	size := max(1, w.Cache/2)
	union := map[uint32]bool{}
	var ids []uint32
	for i := range w.Jobs {
		for _, x := range w.Jobs[i].Subset {
			if !union[x] {
				union[x] = true
				ids = append(ids, x)
			}
		}
	}
	slices.Sort(ids)
	s := &quiver{w: w, chunk: make([]int, w.Samples), pending: make([][]uint32, len(w.Jobs)),
		active: make([]bool, len(w.Jobs))}
	for x := range s.chunk {
		s.chunk[x] = -1
	}
	ids = w.shuffled(ids)
	for from := 0; from < len(ids); from += size {
		c := ids[from:min(from+size, len(ids))]
		for _, x := range c {
			s.chunk[x] = len(s.chunks)
		}
		s.chunks = append(s.chunks, c)
	}
	return s, ""
}

func (s *quiver) Join(job int, now float64) {
	s.active[job] = true
	s.pending[job] = s.w.shuffled(s.w.Jobs[job].Subset)
	for len(s.here) < min(2, len(s.chunks)) && s.w.Cache >= 2 {
		s.bring(now)
	}
}

// bring loads the next chunk.
func (s *quiver) bring(now float64) {
	s.here = append(s.here, s.next)
	s.drained = append(s.drained, make([]bool, len(s.w.Jobs)))
	s.ready = s.w.work(now, len(s.chunks[s.next]), 0)
	s.next = (s.next + 1) % len(s.chunks)
}

func (*quiver) Done(int, float64) {}

func (s *quiver) Gone(job int, now float64, _ bool) {
	s.active[job] = false
	s.turn(now)
}

// turn lets chunks leave that all active jobs have drained.
func (s *quiver) turn(now float64) {
	for i := 0; i < len(s.here) && len(s.chunks) > 2; i++ {
		all, any := true, false
		for j, on := range s.active {
			all = all && (!on || s.drained[i][j])
			any = any || on
		}
		if all && any {
			s.here, s.drained = slices.Delete(s.here, i, i+1), slices.Delete(s.drained, i, i+1)
			s.bring(now)
			i--
		}
	}
}

func (s *quiver) Next(job int, now float64) (Batch, Status) {
	j, p := &s.w.Jobs[job], s.pending[job]
	if len(p) == 0 {
		s.pending[job] = s.w.shuffled(j.Subset)
		return Batch{}, EpochOver
	}
	b, miss := Batch{}, 0
	// The pending list is in random order: its first 10 batches are a random choice. Who finds too little in memory asks
	// about the next.
	var rest []uint32
	n := 0
	for n < len(p) && len(b.IDs) < j.Batch {
		for end := min(n+look*j.Batch, len(p)); n < end; n++ {
			if x := p[n]; len(b.IDs) < j.Batch && slices.Contains(s.here, s.chunk[x]) {
				b.IDs = append(b.IDs, x)
			} else {
				rest = append(rest, x)
			}
		}
	}
	b.Hits = len(b.IDs)
	for len(b.IDs) < j.Batch && len(rest) > 0 { // read for this job alone
		b.IDs = append(b.IDs, rest[0])
		rest = rest[1:]
		miss++
	}
	tail := p[n:]
	// What was looked at and not taken goes back to a random place.
	p = append(slices.Clone(tail), rest...)
	for i := len(tail); i < len(p); i++ {
		k := s.w.rng.IntN(i + 1)
		p[i], p[k] = p[k], p[i]
	}
	s.pending[job] = p
	b.Ready = s.w.work(now, miss, len(b.IDs))
	if b.Hits > 0 {
		b.Ready = max(b.Ready, s.ready)
	}
	for i, c := range s.here {
		if !s.drained[i][job] && !slices.ContainsFunc(p, func(x uint32) bool { return s.chunk[x] == c }) {
			s.drained[i][job] = true
		}
	}
	s.turn(now)
	return b, Got
}
