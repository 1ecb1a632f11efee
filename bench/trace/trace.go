// Package trace holds what jobs asked of a dataset and what was decided about it, as one value, as a file
// (docs/format/trace.md), and in the formats of other simulators (libCacheSim's oracleGeneral, CSV).
//
// A trace has two layers. Demand is what the world did: jobs with their arrivals, speeds and subsets, the sizes and
// costs of samples. Decisions are what a sampler and a cache made of it: the picks, in order, and what came into memory
// and left it. Demand alone can be simulated again under other decisions; picks can be replayed against any cache
// policy as long as their author did not look into the cache (Prescribed). The package decides nothing and knows
// no policy; simulators own what they do with a trace.
package trace

import (
	"fmt"
	"slices"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
)

// Limits of a trace: what a file may claim before its bytes are believed.
const (
	MaxObjects = 1 << 26
	MaxJobs    = 1 << 10
	MaxPicks   = 1 << 32
	maxName    = 1 << 10
)

// Trace is what happened. Picks are two columns, in the order of decision: eight jobs on 1.28 M samples for ten epochs
// are 6 bytes x 102 M.
type Trace struct {
	Name    string
	Seed    uint64
	Objects int // ids are below it
	Jobs    []Job
	// Sizes and costs by object; nil = all alike (1 byte, no time).
	Sizes   []uint32        // stored bytes
	Decoded []uint32        // decoded bytes
	Decode  []time.Duration // decode cost
	Augment []time.Duration // cost of one augmented instance

	World *World // nil = it was not recorded

	Pick Picks
	// Moves are what came into memory and left it; At counts the picks before it.
	Moves []Move
}

// Job is one job's demand.
type Job struct {
	Name   string
	Order  string        // as scenarios name orders; empty = unknown
	Arrive time.Duration // since the trace began
	Leave  time.Duration // 0 = when its epochs are over
	Step   time.Duration // consumer time of a sample
	Batch  int
	Epochs int
	Subset []Range // ascending, apart; empty = all objects
	// Looks reports that the order was decided by what was in memory, so that another cache would have seen another order.
	Looks bool
}

// Range is the objects from Lo up to, not including, Hi.
type Range struct{ Lo, Hi uint32 }

// Picks are requests in order: Object[i] was taken by job Job[i] & JobMask; Begins marks the first pick of an epoch of
// the job.
type Picks struct {
	Object []uint32
	Job    []uint16
}

// Begins is the bit of Picks.Job that marks the first pick of an epoch; JobMask is the others.
const (
	Begins  = 1 << 15
	JobMask = Begins - 1
)

// Len is the number of picks.
func (p *Picks) Len() int { return len(p.Object) }

// Add appends a pick.
func (p *Picks) Add(job int, x uint32, begins bool) {
	j := uint16(job)
	if begins {
		j |= Begins
	}
	p.Object, p.Job = append(p.Object, x), append(p.Job, j)
}

// Move is one residency event.
type Move struct {
	At     uint64 // picks before it
	Object uint32
	Form   ident.Form
	In     bool // came; else it left
}

// Size is the stored bytes of an object.
func (t *Trace) Size(x uint32) int64 {
	if t.Sizes == nil {
		return 1
	}
	return int64(t.Sizes[x])
}

// Bytes is what all objects that are picked weigh together, and how many they are.
func (t *Trace) Bytes() (bytes int64, unique int) {
	seen := make([]uint64, (t.Objects+63)/64)
	for _, x := range t.Pick.Object {
		if seen[x>>6]>>(x&63)&1 == 0 {
			seen[x>>6] |= 1 << (x & 63)
			unique++
			bytes += t.Size(x)
		}
	}
	return bytes, unique
}

// sized reports whether anything is known of single objects.
func (t *Trace) sized() bool {
	return t.Sizes != nil || t.Decode != nil || t.Augment != nil || t.Decoded != nil
}

// Prescribed reports whether no order depended on what was in memory, so that the picks mean the same under any policy;
// otherwise it names a job whose order did.
func (t *Trace) Prescribed() (job string, ok bool) {
	for i := range t.Jobs {
		if t.Jobs[i].Looks {
			return t.Jobs[i].Name, false
		}
	}
	return "", true
}

// Memory estimates the bytes that a trace of so many picks and objects takes in memory.
func Memory(picks, objects uint64, sized bool) uint64 {
	n := picks * 6
	if sized {
		n += objects * 24
	}
	return n
}

// Check says what contradicts itself, as an INVALID_ARGUMENT; nil for a trace that any simulator can run.
func (t *Trace) Check() error {
	bad := func(format string, args ...any) error {
		return errs.New(errs.Invalid, "trace", "record or export the trace again",
			"the trace %.60q contradicts itself: "+format, append([]any{t.Name}, args...)...)
	}
	switch {
	case t.Objects < 1 || t.Objects > MaxObjects:
		return bad("it has %d objects, the limit is %d", t.Objects, MaxObjects)
	case len(t.Jobs) < 1 || len(t.Jobs) > MaxJobs:
		return bad("it has %d jobs, the limit is %d", len(t.Jobs), MaxJobs)
	case len(t.Pick.Object) != len(t.Pick.Job):
		return bad("%d objects for %d picks", len(t.Pick.Object), len(t.Pick.Job))
	case t.Sizes != nil && len(t.Sizes) != t.Objects, t.Decoded != nil && len(t.Decoded) != t.Objects, t.Decode != nil &&
		len(t.Decode) != t.Objects, t.Augment != nil && len(t.Augment) != t.Objects:
		return bad("sizes or costs are not of all %d objects", t.Objects)
	}
	for i := range t.Jobs {
		j := &t.Jobs[i]
		if j.Arrive < 0 || j.Leave < 0 || j.Step < 0 || j.Batch < 0 || j.Epochs < 0 {
			return bad("job %d has a negative time or count", i)
		}
		last := uint32(0)
		for k, r := range j.Subset {
			if r.Lo >= r.Hi || k > 0 && r.Lo < last || r.Hi > uint32(t.Objects) {
				return bad("range %d of job %d is %d to %d", k, i, r.Lo, r.Hi)
			}
			last = r.Hi
		}
	}
	if t.World != nil {
		if err := t.World.check(len(t.Jobs)); err != nil {
			return err
		}
	}
	begun := make([]bool, len(t.Jobs))
	for i, x := range t.Pick.Object {
		j := t.Pick.Job[i]
		n := int(j & JobMask)
		if x >= uint32(t.Objects) || n >= len(t.Jobs) {
			return bad("pick %d is object %d of job %d", i, x, n)
		}
		if j&Begins != 0 {
			begun[n] = true
		} else if !begun[n] {
			return bad("pick %d belongs to no epoch of job %d", i, n)
		}
	}
	at := uint64(0)
	for i, m := range t.Moves {
		if m.At < at || m.At > uint64(t.Pick.Len()) || m.Object >= uint32(t.Objects) || m.Form >= ident.NumForms {
			return bad("residency event %d is object %d, form %d, after %d picks", i, m.Object, m.Form, m.At)
		}
		at = m.At
	}
	return nil
}

// Ranges writes ascending ids as ranges. It is an error of the caller to pass ids that do not ascend; they make ranges
// that Check refuses.
func Ranges[T ~uint32](ids []T) []Range {
	var out []Range
	for _, x := range ids {
		if n := len(out); n > 0 && out[n-1].Hi == uint32(x) {
			out[n-1].Hi++
		} else {
			out = append(out, Range{uint32(x), uint32(x) + 1})
		}
	}
	return out
}

// Members lists the objects of a job's subset.
func (t *Trace) Members(job int) []uint32 {
	rs := t.Jobs[job].Subset
	if len(rs) == 0 {
		rs = []Range{{0, uint32(t.Objects)}}
	}
	n := 0
	for _, r := range rs {
		n += int(r.Hi - r.Lo)
	}
	out := make([]uint32, 0, n)
	for _, r := range rs {
		for x := r.Lo; x < r.Hi; x++ {
			out = append(out, x)
		}
	}
	return out
}

// Shape is what a job took, and how.
type Shape struct {
	Picks, Epochs int
	Repeats       bool // it took some sample twice in an epoch
}

// Shapes are those of all jobs.
func (t *Trace) Shapes() []Shape {
	out := make([]Shape, len(t.Jobs))
	last := make([][]uint32, len(t.Jobs)) // by object: the epoch in which the job took it last
	for i, x := range t.Pick.Object {
		k := t.Pick.Job[i] & JobMask
		s := &out[k]
		s.Picks++
		if t.Pick.Job[i]&Begins != 0 {
			s.Epochs++
		}
		if last[k] == nil {
			last[k] = make([]uint32, t.Objects)
		}
		now, was := uint32(s.Epochs+1), &last[k][x]
		s.Repeats = s.Repeats || *was == now
		*was = now
	}
	return out
}

// Equal reports whether two traces are the same in everything.
func Equal(a, b *Trace) bool {
	return a.Name == b.Name && a.Seed == b.Seed && a.Objects == b.Objects &&
		slices.EqualFunc(a.Jobs, b.Jobs, func(x, y Job) bool {
			s, u := x.Subset, y.Subset
			x.Subset, y.Subset = nil, nil
			return fmt.Sprint(x) == fmt.Sprint(y) && slices.Equal(s, u)
		}) &&
		slices.Equal(a.Sizes, b.Sizes) && slices.Equal(a.Decoded, b.Decoded) && sameWorld(a.World, b.World) &&
		slices.Equal(a.Decode, b.Decode) && slices.Equal(a.Augment, b.Augment) &&
		slices.Equal(a.Pick.Object, b.Pick.Object) && slices.Equal(a.Pick.Job, b.Pick.Job) && slices.Equal(a.Moves, b.Moves)
}
