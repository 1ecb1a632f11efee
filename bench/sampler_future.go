package bench

import (
	"fmt"

	"larder/cachepolicy"
	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
)

// maxForeseen is the most picks whose order is kept in memory, 16 bytes each.
const maxForeseen = 1 << 26

// foreseen is the future of a run whose orders do not depend on what is in the cache: it is run once without looking
// ahead, and its picks are written down. Time is the number of the pick, from 1. Only what the policy may see is
// revealed: belady all of it, clairvoyant-k the rest of each job's running epoch.
type foreseen struct {
	picks  []foreseenPick
	next   []uint32 // by pick: the next one of its sample, 0 = none
	at     []uint32 // by sample: the next pick after now
	ofJob  [][]uint32
	begun  []int      // by job: picks of ofJob that belong to epochs before the running one
	turn   [][]uint32 // by job and sample: its pick in the running epoch; nil for belady
	now    uint32
	epochs bool
}

type foreseenPick struct {
	x     ident.ObjectID
	job   uint16
	epoch uint32
}

// foreseeable says why the future of a scenario cannot be known, or nil.
func (sc *Scenario) foreseeable() error {
	if !cachepolicy.NeedsFuture(sc.Policy) {
		return nil
	}
	picks := 0
	for i := range sc.Jobs {
		j := &sc.Jobs[i]
		if prescribed := j.rival == "independent" || j.rival == "" &&
			(j.mode == dsa.Fixed || j.mode == dsa.Sequential); !prescribed {
			return errs.New(errs.Invalid, "cache.policy", "give all jobs order fixed, independent or shuffle: false, or "+
				"choose policy need",
				"policy %.40s needs to know what will be asked for, and the order of job %.40q (%s) is decided by what is in "+
					"the cache", sc.Policy, j.Name, j.Order)
		}
		picks += len(j.samples) * j.Epochs
	}
	if picks > maxForeseen {
		return errs.New(errs.Invalid, "cache.policy", "lower samples or epochs, or choose policy need",
			"policy %.40s keeps the order of %d picks in memory, the limit is %d", sc.Policy, picks, maxForeseen)
	}
	return nil
}

// foresee runs the scenario and writes down its picks; nil when its policy needs no future.
func foresee(sc *Scenario, rep int, stop func() error) (*foreseen, error) {
	if !cachepolicy.NeedsFuture(sc.Policy) {
		return nil, nil
	}
	if err := sc.foreseeable(); err != nil {
		return nil, err
	}
	blind := *sc
	blind.Policy = "minio"
	w, err := newSamplerRun(&blind, rep, newSamplerStats(&blind), nil)
	if err != nil {
		return nil, err
	}
	defer w.cache.close()
	f := &foreseen{epochs: sc.Policy != "belady", at: make([]uint32, sc.Samples), ofJob: make([][]uint32, len(sc.Jobs)),
		begun: make([]int, len(sc.Jobs))}
	w.note = func(j *samplerJob, x ident.ObjectID) {
		f.picks = append(f.picks, foreseenPick{x, uint16(j.index), uint32(j.epoch)})
	}
	if err := w.run(stop); err != nil {
		return nil, err
	}
	f.next = make([]uint32, len(f.picks))
	for i := len(f.picks) - 1; i >= 0; i-- {
		x := f.picks[i].x
		f.next[i], f.at[x] = f.at[x], uint32(i+1)
	}
	for i, p := range f.picks {
		f.ofJob[p.job] = append(f.ofJob[p.job], uint32(i+1))
	}
	if f.epochs {
		f.turn = make([][]uint32, len(sc.Jobs))
		for j := range f.turn {
			f.turn[j] = make([]uint32, sc.Samples)
		}
	}
	return f, nil
}

// begin shows an epoch of a job.
func (f *foreseen) begin(j *samplerJob) {
	if f == nil || !f.epochs {
		return
	}
	clear(f.turn[j.index])
	all := f.ofJob[j.index]
	n := f.begun[j.index]
	for ; n < len(all) && f.picks[all[n]-1].epoch == uint32(j.epoch); n++ {
		f.turn[j.index][f.picks[all[n]-1].x] = all[n]
	}
	f.begun[j.index] = n
}

// advance moves time to the next pick, which must be the one that was foreseen.
func (f *foreseen) advance(j *samplerJob, x ident.ObjectID) error {
	if f == nil {
		return nil
	}
	i := int(f.now)
	if i >= len(f.picks) || f.picks[i] != (foreseenPick{x, uint16(j.index), uint32(j.epoch)}) {
		return fmt.Errorf("job %s: pick %d is sample %d, which is not what was foreseen", j.Name, i+1, x)
	}
	f.now++
	f.at[x] = f.next[i]
	return nil
}

// Now is the number of the pick.
func (f *foreseen) Now() uint64 { return uint64(f.now) }

// Next is the pick that asks for k next, of those that are seen.
func (f *foreseen) Next(k ident.Key) (uint64, bool) {
	if !f.epochs {
		return uint64(f.at[k.Object]), f.at[k.Object] > 0
	}
	next := uint32(0)
	for _, t := range f.turn {
		if n := t[k.Object]; n > f.now && (next == 0 || n < next) {
			next = n
		}
	}
	return uint64(next), next > 0
}
