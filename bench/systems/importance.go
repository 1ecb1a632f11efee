package systems

import (
	"math"
	"slices"
	"sort"
)

// shade draws with replacement by importance, and repeats what is in memory.
type shade struct {
	w    *World
	jobs []shadeJob
	page *box
}

type shadeJob struct {
	solo
	weight []float64 // by place in the subset
}

// shadeRepeat is how often a sample in memory comes.
const shadeRepeat = 3

func newShade(w *World) (System, string) {
	return &shade{w: w, jobs: make([]shadeJob, len(w.Jobs)), page: newBox("need", w.Samples, w.Cache, w.rng.Split())}, ""
}

func (*shade) Done(int, float64)       {}
func (*shade) Gone(int, float64, bool) {}

func (s *shade) Join(job int, _ float64) {
	j, d := &s.jobs[job], &s.w.Jobs[job]
	j.weight = make([]float64, len(d.Subset))
	s.losses(job)
	j.order = s.w.shuffled(d.Subset) // the first epoch takes everything
}

// losses gives each sample the logarithm of 10 + its rank in a batch of random losses.
func (s *shade) losses(job int) {
	j, d := &s.jobs[job], &s.w.Jobs[job]
	for i := range j.weight {
		j.weight[i] = math.Log(10 + float64(s.w.rng.IntN(d.Batch)))
	}
}

func (s *shade) Next(job int, now float64) (Batch, Status) {
	j, d := &s.jobs[job], &s.w.Jobs[job]
	ids, over := j.next(d.Batch)
	if over {
		s.losses(job)
		j.solo = solo{order: s.epoch(job)}
		return Batch{}, EpochOver
	}
	b := Batch{IDs: ids}
	for _, x := range ids {
		if s.page.take(x, s.need(job, x)) {
			b.Hits++
		}
	}
	b.Ready = s.w.work(now, len(ids)-b.Hits, len(ids))
	return b, Got
}

// need is a sample's importance as a whole number, from 1.
func (s *shade) need(job int, x uint32) int {
	i, _ := slices.BinarySearch(s.w.Jobs[job].Subset, x)
	return 1 + int(1e6*s.jobs[job].weight[i])
}

// epoch draws the next one: as many with replacement as there are samples, hits first and repeated, misses after them
// and cut off.
func (s *shade) epoch(job int) []uint32 {
	j, d := &s.jobs[job], &s.w.Jobs[job]
	n := len(d.Subset)
	sum := make([]float64, n)
	all := 0.0
	for i, w := range j.weight {
		all += w
		sum[i] = all
	}
	var out, misses []uint32
	for range n {
		x := d.Subset[min(n-1, sort.SearchFloat64s(sum, s.w.rng.Float64()*all))]
		if s.page.has(x) {
			for range shadeRepeat {
				out = append(out, x)
			}
		} else {
			misses = append(misses, x)
		}
	}
	s.w.rng.Shuffle(len(out), func(a, b int) { out[a], out[b] = out[b], out[a] })
	return append(out, misses...)[:n]
}

// iCache keeps the important, and answers other requests with whatever is cached.
type iCache struct {
	w         *World
	jobs      []solo
	important []bool    // by sample, by the losses of this epoch
	loss      []float64 // by sample
	page      *box
	queue     [][]uint32 // by job: the random order that unimportant requests are answered from
}

func newICache(w *World) (System, string) {
	s := &iCache{w: w, jobs: make([]solo, len(w.Jobs)), important: make([]bool, w.Samples),
		loss: make([]float64, w.Samples), queue: make([][]uint32, len(w.Jobs)),
		page: newBox("need", w.Samples, w.Cache*9/10, w.rng.Split())}
	for x := range s.loss {
		s.loss[x] = w.rng.Float64()
		s.important[x] = s.loss[x] > .5
	}
	return s, ""
}

func (*iCache) Done(int, float64)       {}
func (*iCache) Gone(int, float64, bool) {}

func (s *iCache) Join(job int, _ float64) { s.jobs[job].order = s.w.shuffled(s.w.Jobs[job].Subset) }

func (s *iCache) Next(job int, now float64) (Batch, Status) {
	d := &s.w.Jobs[job]
	ids, over := s.jobs[job].next(d.Batch)
	if over {
		s.jobs[job] = solo{order: s.w.shuffled(d.Subset)}
		return Batch{}, EpochOver
	}
	b, reads := Batch{}, 0
	for _, x := range ids {
		if !s.important[x] {
			if len(s.queue[job]) == 0 {
				s.queue[job] = s.w.shuffled(d.Subset)
			}
			x = s.queue[job][0] // read ahead: it costs a read all the same
			s.queue[job] = s.queue[job][1:]
			reads++
			b.IDs = append(b.IDs, x)
			continue
		}
		if s.page.take(x, 1+int(1e6*s.loss[x])) {
			b.Hits++
		} else {
			reads++
		}
		b.IDs = append(b.IDs, x)
	}
	b.Ready = s.w.work(now, reads, len(ids))
	return b, Got
}
