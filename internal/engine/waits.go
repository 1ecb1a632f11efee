package engine

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/session/wire"
	"larder/internal/units"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// machine adds what meters do not know.
func (w *views) machine() jobs.Machine {
	m := w.meters.Machine()
	m.Workers = w.workers
	m.Busy = min(m.Busy, m.Workers)
	if err := w.journal.Room(); err != nil {
		m.Full = errs.From(err).Message
	}
	if n, iops := w.catalog.StorageLimit(); n > 0 {
		m.Limit = units.Size(n) + "/s by source.storage_limit"
	} else if iops > 0 {
		m.Limit = itoa(int(iops)) + " reads/s by source.storage_iops"
	}
	return m
}

func (w *views) load(m jobs.Machine) *larderv1.Load {
	return &larderv1.Load{Workers: uint32(m.Workers), Busy: uint32(m.Busy), Cores: m.Cores, Reads: uint32(m.Reads),
		OldestRead: durationpb.New(m.Oldest), Storage: m.Storage}
}

// stateFull is the error of a full disk of the state directory; nil = it has room.
func (w *views) stateFull() *larderv1.ErrorDetail {
	if err := w.journal.Room(); err != nil {
		return wire.Detail(err)
	}
	return nil
}

// waits fills in what a job and each of its ranks wait for, and adds waits that have not ended to what it has waited.
func (w *views) waits(out *larderv1.Job, v *jobs.Job, m jobs.Machine) {
	now := time.Now()
	all := make([]jobs.Wait, 0, len(v.Facts))
	for i := range v.Facts {
		f, k := v.Facts[i], &v.Ranks[i]
		if f.Asked {
			f.Waiting = k.Waiting(now)
		}
		if r := w.rings.Hold(ring.Key{Job: v.ID, Rank: i, Inc: k.Incarnation}); r != nil {
			out.Counters.WaitSeconds += r.Unreported().Seconds()
			if d, known := r.WaitNow(); known && f.Asked {
				f.Waiting = d
				out.Counters.WaitSeconds += d.Seconds()
			}
			r.Release()
		}
		all = append(all, jobs.WaitOf(f, m))
	}
	for _, k := range out.Ranks {
		k.Wait, k.StepSeconds = waitOut(all[k.GetRank()]), v.Ranks[k.GetRank()].StepTime.Seconds()
	}
	out.Wait = waitOut(jobs.Worst(all))
	out.SamplesPerSecond = v.Rate.At(now)
}

func waitOut(w jobs.Wait) *larderv1.Wait {
	out := &larderv1.Wait{Cause: string(w.Cause), Text: w.Text, Seconds: w.For.Seconds(), Rank: uint32(w.Rank)}
	for _, r := range w.Ranks {
		out.Ranks = append(out.Ranks, uint32(r))
	}
	return out
}

// addWaiting adds what a job waits at this moment to the sums that it is a part of.
func (w *views) addWaiting(s *larderv1.Stats, j *larderv1.Job, v *jobs.Job) {
	more := j.GetCounters().GetWaitSeconds() - v.Stats.Wait.Seconds()
	s.Totals.WaitSeconds += more
	k := w.jobs.byID(v.ID)
	if k == nil {
		return
	}
	for _, d := range s.GetDatasets() {
		if d.GetDataset().GetId() == uint32(k.Data.ID()) {
			d.Counters.WaitSeconds += more
		}
	}
}

// datasetStats is what was done on each dataset, by its id.
func (w *views) datasetStats(list []coordinator.DatasetView) []*larderv1.DatasetStats {
	views := map[ident.DatasetID]coordinator.DatasetView{}
	for _, v := range list {
		views[v.ID] = v
	}
	var out []*larderv1.DatasetStats
	for _, d := range w.catalog.List() {
		v, drawn := views[d.ID()]
		if !drawn {
			continue
		}
		out = append(out, &larderv1.DatasetStats{
			Dataset: &larderv1.Dataset{Id: uint32(d.ID()), Name: d.Name(), Uri: d.URI(), Samples: uint64(d.LiveCount()),
				Bytes: uint64(d.TotalBytes())},
			Counters: counters(&v.Stats), BadSamples: uint64(v.Bad), Jobs: uint32(v.Live),
		})
	}
	return out
}

func counters(s *jobs.Stats) *larderv1.Counters {
	return &larderv1.Counters{
		SourceReads: s.SourceReads, SourceBytes: s.SourceBytes, Decodes: s.Decodes, Augments: s.Augments,
		SamplesDelivered: s.Samples, BatchesDelivered: s.Batches, Hits: forms(s.Hits), Quarantined: s.Quarantined,
		WaitSeconds: s.Wait.Seconds(),
	}
}
