package journal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// runs is how many cases a test does: n, or what the environment says for longer runs.
func runs(t testing.TB, env string, n int) int {
	n = lane.Times((n+2)/3, n)
	if testing.Short() {
		n /= 10
	}
	return testenv.Count(t, env, n)
}

// small makes segments and snapshots come often.
var small = Options{SegmentBytes: 600, SnapshotBytes: 1500, Retry: time.Millisecond}

// story makes valid histories: jobs register, epochs begin, batches are assigned, used, returned, end.
type story struct {
	r    *xrand.Rand
	jobs []*plot
	next ident.JobID
}

type plot struct {
	id     ident.JobID
	inc    ident.Incarnation
	epoch  uint32
	open   []uint32 // epochs that run
	step   uint32
	batch  int
	plans  []uint32 // steps assigned and neither used nor returned
	given  int
	paused bool
}

func newStory(seed uint64) *story { return &story{r: xrand.New(seed, 7), next: 1} }

func (s *story) objects(n int) []ident.ObjectID {
	out := make([]ident.ObjectID, n)
	for i := range out {
		out[i] = ident.ObjectID(uint32(s.r.Uint64()) >> s.r.IntN(32))
	}
	return out
}

// A test may append any row, also one that no type makes.
func (r row) row() row { return r }

// kept are the records of a log in memory that are in no order, oldest first.
func kept(m *Memory) []entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mu.records.list)
}

// record returns the next record.
func (s *story) record() row {
	if len(s.jobs) == 0 || len(s.jobs) < 4 && s.r.IntN(30) == 0 {
		p := &plot{id: s.next, batch: 1 + s.r.IntN(12)}
		s.next++
		s.jobs = append(s.jobs, p)
		return row{Kind: kindRegistered, Job: p.id, Text: fmt.Sprintf("job %d of %d", p.id, s.r.IntN(1000))}
	}
	i := s.r.IntN(len(s.jobs))
	p := s.jobs[i]
	switch k := s.r.IntN(60); {
	case p.inc == 0 || k == 0:
		p.inc++
		return row{Kind: kindAttached, Job: p.id, Rank: uint32(s.r.IntN(2)), Incarnation: p.inc}
	case len(p.open) == 0 || p.step > 12 || k == 1:
		p.epoch = uint32(s.r.IntN(3)) + p.epoch
		p.step, p.plans = 0, nil
		var open []uint32
		for _, e := range p.open {
			if e != p.epoch {
				open = append(open, e)
			}
		}
		p.open = append(open, p.epoch)
		p.open = p.open[max(0, len(p.open)-runningAtOne):]
		return row{Kind: kindEpochStarted, Job: p.id, Epoch: p.epoch, Step: uint32(s.r.IntN(9))}
	case k == 2 && len(p.open) > 1:
		e := p.open[0]
		return row{Kind: kindEpochEnded, Job: p.id, Epoch: e, Text: "complete"}
	case k == 3:
		return row{Kind: kindQuarantined, Job: p.id, Objects: s.objects(1), Text: "not an image"}
	case k == 4:
		return row{Kind: kindIndexed, Text: fmt.Sprint("imagefolder:/data/", s.r.IntN(5))}
	case k == 5:
		return row{Kind: kindSubsetChanged, Job: p.id, Epoch: p.epoch + 1, Step: uint32(s.r.IntN(5)), Text: "label < 3"}
	case k == 6:
		p.paused = !p.paused
		if p.paused {
			return row{Kind: kindPaused, Job: p.id}
		}
		return row{Kind: kindUnpaused, Job: p.id}
	case k == 7 && s.r.IntN(4) == 0:
		s.jobs = append(s.jobs[:i], s.jobs[i+1:]...)
		return row{Kind: kindEnded, Job: p.id, Text: "its client left"}
	case k < 30 && len(p.plans) > 0:
		p.plans = p.plans[1:] // it was used, of which the log hears nothing
		return s.record()
	case k < 33 && len(p.plans) > 0:
		x := p.plans[len(p.plans)-1]
		p.plans = p.plans[:len(p.plans)-1]
		return row{Kind: kindReturned, Job: p.id, Epoch: p.epoch, Step: x, Incarnation: p.inc}
	case k == 33 && p.step > 0:
		p.given++
		return row{Kind: kindDealt, Job: p.id, Epoch: p.epoch, Step: uint32(s.r.IntN(int(p.step))),
			Objects: s.objects(s.r.IntN(3)), Text: strconv.Itoa(p.given)}
	default:
		p.plans = append(p.plans, p.step)
		p.step++
		return row{Kind: kindAssigned, Job: p.id, Epoch: p.epoch, Step: p.step - 1, Incarnation: p.inc,
			Objects: s.objects(p.batch)}
	}
}

// fold is the state that records make, with every closed epoch still in it. Numbers and terms are those of the log.
func fold(all []row) *State {
	s := newState()
	for i, r := range all {
		e := entry{row: r, n: len(r.Objects)}
		e.packed = pack(nil, r.Objects)
		e.Seq = uint64(i + 1)
		s.apply(&e)
	}
	return s
}

// dump prints what a state holds of jobs that have not ended, and of the others; without closed epochs.
func dump(s *State) string {
	c := s.clone()
	c.closed = nil
	var b strings.Builder
	c.entries(func(e *entry) bool {
		r := e.unpacked()
		r.Seq, r.Term = 0, 0
		fmt.Fprintf(&b, "%v %+v\n", r.Kind, r)
		return true
	})
	return b.String()
}

// wantOrders lists every order that records made and that may be asked for.
func wantOrders(s *State) map[epochKey][][]ident.ObjectID {
	out := map[epochKey][][]ident.ObjectID{}
	put := func(job ident.JobID, o *EpochState) {
		list := make([][]ident.ObjectID, len(o.Batches))
		for i := range o.Batches {
			list[i] = o.Batches[i].Objects()
		}
		// what nothing was given of does not hide what there was
		if key := (epochKey{job: job, epoch: o.Epoch}); len(list) > 0 || out[key] == nil {
			out[key] = list
		}
	}
	for _, c := range s.closed {
		put(c.job, c.EpochState)
	}
	for _, j := range s.Jobs() {
		for _, o := range j.Epochs {
			put(j.ID, o)
		}
	}
	return out
}

// open opens and closes at the end.
func open(t testing.TB, fs FS, o Options) *Disk {
	t.Helper()
	d, err := OpenDisk(fs, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}
