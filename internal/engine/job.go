package engine

import (
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/engine/record"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// job is what the engine must know of a job. It does not change after registration, but for subsets.
type job struct {
	work.Job
	spec       *larderv1.JobSpec // with defaults
	life       jobs.Spec
	mode       dsa.Mode
	registered time.Time
	notes      []string // what was decided otherwise than asked, and why
	subsets    *subsets
	seed       *atomic.Uint64  // of random parameters, once it is registered
	chosen     bool            // the spec's prefetch is the daemon's choice
	resume     *recordedResume // what it continues from; nil = it began by itself
	rows       int             // that a slot of its rings has room for: no batch may have more
	window     *window         // of blocks, for order blocks; nil = it has another order
	owner      *owner          // who registered it; nil = the user of the daemon
	by         *record.Client  // the process that registered it by a session; nil = it waits for any client

	brief func() *larderv1.JobSpec // the spec without its indices, made once
}

// forWork is what workers must know of a job; nil when it is not known any more.
func (j *job) forWork() *work.Job {
	if j == nil {
		return nil
	}
	return &j.Job
}

// sameAs refuses another job than the live one.
func (j *job) sameAs(other *job) error {
	diff, spec := j.diff(other), other.spec
	if diff == "" {
		return nil
	}
	if e := j.otherPrefetch(spec); e != nil {
		return e
	}
	return errs.New(errs.AlreadyExists, spec.GetName(),
		"use the same arguments, choose another job name, or end it: larder jobs kill "+spec.GetName(),
		"job %s exists with another spec: %s", spec.GetName(), diff)
}

// otherPrefetch is the error of a spec that differs in its prefetch alone, as that of another rank may; nil = in more.
func (j *job) otherPrefetch(spec *larderv1.JobSpec) error {
	like := proto.CloneOf(spec)
	if like.Prefetch = j.spec.GetPrefetch(); j.diff(&job{spec: like}) != "" {
		return nil
	}
	by := "as it was registered"
	if j.chosen {
		by = "as the daemon chose, because the rank that registered it says none"
	}
	return errs.New(errs.AlreadyExists, spec.GetName(),
		fmt.Sprintf("say prefetch=%d in every rank of the job, or leave it out here: then this rank takes the job's. "+
			"If it is another job, choose another job name, or end that one: larder jobs kill %s", spec.GetPrefetch(),
			spec.GetName()),
		"job %s has prefetch=%d, %s, and this rank says prefetch=%d", spec.GetName(), j.spec.GetPrefetch(), by,
		spec.GetPrefetch())
}

// layout is that of the job's rings.
func (j *job) layout() ring.Layout {
	if j.Made != nil {
		return ring.NewRecordLayout(&j.Made.Out, j.rows, j.life.Slots, j.Made.Guess())
	}
	return ring.NewLayout(j.Recipe, j.rows, j.life.Slots, j.guess())
}

// sampleBytes is what a row of a batch takes, about.
func (j *job) sampleBytes() int64 {
	switch {
	case j.Made != nil:
		return max(ring.RecordRow(&j.Made.Out, j.Made.Guess()), 1)
	case j.Recipe.Output().Ragged:
		return max(j.guess(), 1) + ring.RaggedEntry
	}
	return max(int64(j.Recipe.Output().SampleBytes), 1)
}

// guess is the mean decoded size of a sample, in bytes.
func (j *job) guess() int64 {
	n := j.Data.LiveCount()
	if n == 0 {
		return 0
	}
	// a JPEG unpacks to 5.4 times its size; a larger batch gets larger memory
	return min(j.Data.TotalBytes()/int64(n)*6, 4<<20)
}

// roomFor refuses a subset of n samples of which a batch could have more than the slots of the job's rings have room
// for. It takes a dataset that has grown.
func (j *job) roomFor(n int) error {
	share := (n + j.life.World - 1) / j.life.World
	if need := min(j.life.Batch, share); need > j.rows {
		return errs.New(errs.ResourceExceeded, j.spec.GetName(), "register the job again, or lower batch_size",
			"job %s: its rings were made when the dataset had fewer samples, for batches of %d, and a batch would have %d now",
			j.spec.GetName(), j.rows, need)
	}
	return nil
}

// publicSpec is the job's spec as users see it: without the list of its samples, which may have megabytes.
func (j *job) publicSpec() *larderv1.JobSpec {
	if len(j.spec.GetIndices()) == 0 {
		return j.spec
	}
	return j.brief()
}

// specWith is the job's spec with another subset.
func (j *job) specWith(subset string) *larderv1.JobSpec {
	s := proto.CloneOf(j.spec)
	s.Subset = subset
	return s
}

// diff names the fields in which another job's spec differs; empty = it is the same job. Its subset may be the one
// it was registered with, or the one it was given last: scripts that come back still say the first. A prefetch that
// the daemon chose is no difference: with more or less memory for rings, or by an earlier daemon, it was another one.
func (j *job) diff(other *job) string {
	spec := other.spec
	if other.chosen && spec.GetPrefetch() != j.spec.GetPrefetch() {
		spec = proto.CloneOf(spec)
		spec.Prefetch = j.spec.GetPrefetch()
	}
	if last := j.subsets.last().expr; spec.GetSubset() == last && last != j.spec.GetSubset() {
		return specDiff(j.specWith(last), spec)
	}
	return specDiff(j.spec, spec)
}

// vanished is the set of objects that the job was to draw and that do not exist any more; nil = none.
func (j *job) vanished() *bits.Set {
	j.subsets.Lock()
	defer j.subsets.Unlock()
	var gone *bits.Set
	for _, a := range j.subsets.asked {
		for _, x := range a.objects {
			if exists(j.Data, x) {
				continue
			}
			if gone == nil {
				gone = new(bits.Set)
			}
			gone.Add(uint32(x))
		}
	}
	return gone
}
