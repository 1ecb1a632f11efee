package trace

import (
	"cmp"
	"slices"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
)

// Assembler makes a trace of what a daemon recorded, piece by piece: Batch and Move in order, then Job and Object, then
// Finish. It is bounded by the memory that it may take; what is beyond is counted as lost.
type Assembler struct {
	t      Trace
	most   uint64 // picks and moves
	lost   uint64
	jobs   map[uint32]*assembled // by the daemon's id
	order  []uint32
	seen   map[uint32]uint32 // by the daemon's id of a job: 1 + the epoch of its last pick
	sizes  []Object
	number map[uint32]int // of jobs, as they first picked or were described
	had    []set          // by number of a job: what of its running epoch was recorded before the daemon went away
}

type assembled struct {
	Recorded
	epochs   int
	first    uint32
	picks    int // of the epoch that is running
	least    int // of the epochs that are not the last one
	complete bool
}

// Recorded is what is known of a job at the end.
type Recorded struct {
	Job
	World   JobWorld
	Dropped int  // samples an epoch
	Asked   int  // epochs of its spec; 0 = until it leaves
	Ended   bool // it has
}

// Object is what is known of one object; 0 = it was never seen.
type Object struct {
	Stored, Decoded uint32
	Decode, Augment time.Duration
}

// NewAssembler returns one that takes about as many bytes (0 = no limit).
func NewAssembler(name string, maxMemory uint64) *Assembler {
	a := &Assembler{t: Trace{Name: name}, most: maxMemory / 24, jobs: map[uint32]*assembled{}, seen: map[uint32]uint32{},
		number: map[uint32]int{}}
	if maxMemory == 0 {
		a.most = MaxPicks
	}
	return a
}

// Len is the picks that were taken.
func (a *Assembler) Len() int { return a.t.Pick.Len() }

func (a *Assembler) room(n int) bool {
	if uint64(a.t.Pick.Len()+len(a.t.Moves)+n) > a.most {
		a.lost += uint64(n)
		return false
	}
	return true
}

func (a *Assembler) of(job uint32) (*assembled, int) {
	n, ok := a.number[job]
	if !ok {
		n = len(a.order)
		a.number[job], a.jobs[job] = n, &assembled{least: 1<<31 - 1}
		a.order = append(a.order, job)
	}
	return a.jobs[job], n
}

// Batch notes a batch that was delivered.
func (a *Assembler) Batch(job, epoch uint32, objects []uint32) {
	if len(objects) == 0 {
		return // of such an epoch nothing begins
	}
	j, n := a.of(job)
	if n > JobMask || n >= MaxJobs {
		a.lost += uint64(len(objects))
		return
	}
	begins := epoch+1 > a.seen[job] // a rank that is behind the others still takes of the one before
	if objects = a.fresh(n, begins, objects); len(objects) == 0 {
		return
	}
	if begins {
		if j.epochs > 0 {
			j.least = min(j.least, j.picks)
		} else {
			j.first = epoch
		}
		a.seen[job] = epoch + 1
		j.epochs++
		j.picks = 0
	}
	j.picks += len(objects)
	if !a.room(len(objects)) {
		return
	}
	for _, x := range objects {
		a.t.Pick.Add(n, x, begins)
		begins = false
	}
}

// Move notes that something came into memory or left it.
func (a *Assembler) Move(x uint32, form ident.Form, in bool) {
	if a.room(1) {
		a.t.Moves = append(a.t.Moves, Move{uint64(a.t.Pick.Len()), x, form, in})
	}
}

// Job notes what a job asked for, as far as it is known; what was noted of it before, its subset too, is replaced.
func (a *Assembler) Job(job uint32, r Recorded) {
	j, _ := a.of(job)
	j.Recorded, j.complete = r, true
}

// Subset adds ranges to a job that Job has noted.
func (a *Assembler) Subset(job uint32, more []Range) {
	j, _ := a.of(job)
	j.Subset = append(j.Subset, more...)
}

// Object notes what is known of an object; what o does not know stays as it was.
func (a *Assembler) Object(x uint32, o Object) {
	for int(x) >= len(a.sizes) {
		a.sizes = append(a.sizes, Object{})
	}
	was := a.sizes[x]
	a.sizes[x] = Object{cmp.Or(o.Stored, was.Stored), cmp.Or(o.Decoded, was.Decoded), cmp.Or(o.Decode, was.Decode),
		cmp.Or(o.Augment, was.Augment)}
}

// Finish makes the trace. Only objects that some job wanted are in it, under new ids in the order of the old ones. A
// recording in which nothing was asked for is NOT_FOUND.
func (a *Assembler) Finish(w World) (*Trace, error) {
	t := &a.t
	keep := make([]bool, len(a.sizes))
	mark := func(x uint32) {
		for int(x) >= len(keep) {
			keep = append(keep, false)
		}
		keep[x] = true
	}
	for _, id := range a.order {
		for _, r := range a.jobs[id].Subset {
			for x := r.Lo; x < r.Hi; x++ {
				mark(x)
			}
		}
	}
	for _, x := range t.Pick.Object {
		mark(x)
	}
	as := make([]uint32, len(keep))
	n := uint32(0)
	for x, k := range keep {
		if k {
			as[x] = n
			n++
		}
	}
	if n == 0 || len(a.order) == 0 {
		return nil, errs.New(errs.NotFound, "recording", "record while jobs run",
			"nothing was asked for while it was recorded")
	}
	t.Objects = int(n)
	for i, x := range t.Pick.Object {
		t.Pick.Object[i] = as[x]
	}
	t.Moves = slices.DeleteFunc(t.Moves, func(m Move) bool { return int(m.Object) >= len(keep) || !keep[m.Object] })
	for i := range t.Moves {
		t.Moves[i].Object = as[t.Moves[i].Object]
	}
	a.costs(keep, &w)
	for _, id := range a.order {
		a.addJob(a.jobs[id], as, &w)
	}
	w.Lost += a.lost
	t.World = &w
	if err := t.Check(); err != nil {
		return nil, err
	}
	return t, nil
}

// costs writes the columns; what was never seen has the mean.
func (a *Assembler) costs(keep []bool, w *World) {
	t := &a.t
	var decode, augment, ratio float64
	var decodes, augments, ratios int
	for x, k := range keep {
		if o := a.object(x); k && o.Stored > 0 {
			if o.Decode > 0 {
				decode, decodes = decode+float64(o.Decode), decodes+1
			}
			if o.Augment > 0 {
				augment, augments = augment+float64(o.Augment), augments+1
			}
			if o.Decoded > 0 {
				ratio, ratios = ratio+float64(o.Decoded)/float64(o.Stored), ratios+1
			}
		}
	}
	mean := func(sum float64, n int, none float64) float64 {
		if n == 0 {
			return none
		}
		return sum / float64(n)
	}
	d, g, q := mean(decode, decodes, 1e6), mean(augment, augments, 25e4), mean(ratio, ratios, 5.4)
	for x, k := range keep {
		if !k {
			continue
		}
		o := a.object(x)
		if o.Decode == 0 || o.Augment == 0 || o.Decoded == 0 {
			w.Unknown++
		}
		o.Stored = max(1, o.Stored)
		t.Sizes = append(t.Sizes, o.Stored)
		t.Decoded = append(t.Decoded, cmp.Or(o.Decoded, uint32(min(q*float64(o.Stored), 1<<32-1))))
		t.Decode = append(t.Decode, cmp.Or(o.Decode, time.Duration(d)))
		t.Augment = append(t.Augment, cmp.Or(o.Augment, time.Duration(g)))
	}
}

func (a *Assembler) object(x int) Object {
	if x < len(a.sizes) {
		return a.sizes[x]
	}
	return Object{}
}

func (a *Assembler) addJob(j *assembled, as []uint32, w *World) {
	if !j.complete { // it had ended, and was forgotten, before the end of the recording
		j.Name, j.Batch, j.World = "forgotten", 1, JobWorld{Ranks: 1, Prefetch: 2}
	}
	var subset []Range
	size := 0
	for _, r := range j.Subset {
		size += int(r.Hi - r.Lo)
		lo := as[r.Lo]
		if k := len(subset); k > 0 && subset[k-1].Hi == lo {
			subset[k-1].Hi += r.Hi - r.Lo
		} else {
			subset = append(subset, Range{lo, lo + r.Hi - r.Lo})
		}
	}
	j.Subset = subset
	j.Epochs = max(1, j.epochs)
	whole := size - j.Dropped
	j.World.Epoch = int(j.first)
	j.World.Partial = !j.complete || j.epochs == 0 || min(j.least, j.picks) < whole || !j.Ended && j.Asked != j.epochs
	if j.epochs == 0 || !j.Ended || j.picks >= whole { // else it left inside of an epoch, and would again
		j.Leave = 0
	}
	a.t.Jobs = append(a.t.Jobs, j.Job)
	w.Jobs = append(w.Jobs, j.World)
}
