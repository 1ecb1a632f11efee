package engine

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"larder/internal/coordinator"
	"larder/internal/engine/crew"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/session/wire"
	"larder/internal/source"
	"larder/internal/units"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// views turns what the coordinator, workers and rings know into the public form.
type views struct {
	loop    *loop
	jobs    *registry
	memory  *memory
	library *library
	rings   *ring.Set
	meters  *work.Meters
	crew    *crew.Crew
	catalog *source.Catalog
	journal journal.Log
	workers int
	pages   func() string // in which the tiers' memory comes
	now     func() time.Time
}

// shownDatasets leaves out for other users the datasets that none of their jobs reads.
func (w *views) shownDatasets(ctx context.Context, list []*larderv1.DatasetStats) []*larderv1.DatasetStats {
	o := asker(ctx)
	if o == nil {
		return list
	}
	own := w.jobs.datasetsOf(o.UID)
	return slices.DeleteFunc(list, func(d *larderv1.DatasetStats) bool { return !own[d.GetDataset().GetId()] })
}

// view turns a job of the coordinator into its public form; nil when the executor forgot it.
func (w *views) view(v jobs.Job) *larderv1.Job { return w.viewOn(v, w.machine()) }

// viewOn is view with what is known of the machine.
func (w *views) viewOn(v jobs.Job, m jobs.Machine) *larderv1.Job {
	j := w.jobs.byID(v.ID)
	if j == nil {
		return nil
	}
	out := &larderv1.Job{
		Owner: j.owner.uid(),
		Id:    uint32(v.ID), Spec: j.publicSpec(), State: states[v.State], SubsetSize: uint64(v.Spec.Subset),
		BatchesPerEpoch: uint64(v.Spec.Batches(0)),
		Counters:        counters(&v.Stats), Promise: v.Promise, RegisteredAt: timestamppb.New(j.registered),
		EndedReason: v.Reason,
		Recipe:      j.Recipe.ID().String(), Prefix: j.Recipe.Prefix().String(), ShareGroup: v.Group,
		InstanceOffset: v.Offset,
		Quarantined:    w.library.quarantined(j, v.Stats.Bad), Paused: v.Paused(), SubsetSince: v.Since,
	}
	switch {
	case j.Made == nil || !j.Made.Stored:
	case j.Made.Python:
		out.Schema = j.spec.GetSchema()
	default:
		out.Schema = schemaOf(&j.Made.Out)
	}
	w.addSubsets(out, j, &v)
	if v.Draining() && !v.State.Ended() {
		out.Notes = append(out.Notes, "it is drained: it ends when its running epoch is over")
	}
	for i := range v.Ranks {
		k := &v.Ranks[i]
		if k.Attaches == 0 {
			continue
		}
		info := &larderv1.RankInfo{Rank: uint32(i), Attached: k.Attached(), Incarnation: uint64(k.Incarnation),
			Epoch: k.Epoch, Step: uint64(k.Sent)}
		if r := w.rings.Get(ring.Key{Job: v.ID, Rank: i, Inc: k.Incarnation}); r != nil {
			info.Pid, info.Uid, info.RingBytes = r.Peer().PID, r.Peer().UID, uint64(r.Segment().Size())
		}
		out.Ranks = append(out.Ranks, info)
	}
	for _, l := range v.Ledgers {
		out.Epochs = append(out.Epochs, account(l))
	}
	w.waits(out, &v, m)
	return out
}

func (w *views) describe(ctx context.Context, id ident.JobID) (*larderv1.Job, error) {
	v, err := w.loop.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	if v != nil {
		if j := w.view(*v); j != nil {
			return j, nil
		}
	}
	return nil, w.jobs.noJob(itoa(int(id)))
}

func (w *views) list(ctx context.Context, ended bool) ([]*larderv1.Job, error) {
	all, err := w.loop.list(ctx, ended)
	if err != nil {
		return nil, err
	}
	var out []*larderv1.Job
	m := w.machine()
	for _, v := range all {
		if j := shown(ctx, w.viewOn(v, m)); j != nil {
			out = append(out, j)
		}
	}
	return out, nil
}

func (w *views) named(ctx context.Context, name string) (*larderv1.Job, error) {
	j := w.jobs.byName(name)
	if j == nil {
		return nil, w.jobs.noJob(name)
	}
	if err := mayTouch(ctx, j, "describe"); err != nil {
		return nil, err
	}
	return w.describe(ctx, j.ID)
}

func (w *views) tiers(views []coordinator.TierView) []*larderv1.Tier {
	var out []*larderv1.Tier
	for _, t := range views {
		out = append(out, &larderv1.Tier{
			Form: t.Form.String(), Budget: uint64(t.Budget), Used: uint64(t.Used), Entries: uint64(t.Entries), Hits: t.Hits,
			Evictions: t.Evictions, Policy: t.Policy, Setting: w.memory.shown(t.Form),
		})
	}
	return out
}

// machine adds what meters do not know.
func (w *views) machine() jobs.Machine {
	m := w.meters.Machine()
	m.Workers, m.Outage = w.workers, w.memory.get().OutageTimeout
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
	now := w.now()
	all := make([]jobs.Wait, 0, len(v.Facts))
	workers := w.workersOf(out, v.ID)
	for i := range v.Facts {
		f, k := v.Facts[i], &v.Ranks[i]
		f.Workers = workers
		if f.Outage != nil { // what the coordinator knew may be half a minute old
			o := *f.Outage
			o.For = now.Sub(o.Since)
			f.Outage = &o
		}
		if f.Asked() {
			f.Waiting = k.Waiting(now)
		}
		if r := w.rings.Hold(ring.Key{Job: v.ID, Rank: i, Inc: k.Incarnation}); r != nil {
			out.Counters.WaitSeconds += r.Unreported().Seconds()
			if d, known := r.WaitNow(); known && f.Asked() {
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

// workersOf fills in the workers that can make the samples of a job; nil = larder's own do.
func (w *views) workersOf(out *larderv1.Job, id ident.JobID) *jobs.Workers {
	j := w.jobs.byID(id)
	if j == nil || !j.ByClients() {
		return nil
	}
	s := w.crew.Of(&j.Job)
	k := &jobs.Workers{Attached: len(s.Workers), Tasks: s.Tasks}
	out.TasksWaiting = uint64(s.Tasks)
	for _, v := range s.Workers {
		out.Workers = append(out.Workers, &larderv1.WorkerInfo{Id: v.ID, Pid: v.PID, Uid: v.UID, Client: v.Client,
			Tasks: uint32(v.Tasks), Done: v.Done, BusySeconds: v.Busy.Seconds()})
		if v.Tasks > 0 {
			k.Busy++
		}
		k.Longest = max(k.Longest, v.Busy)
	}
	return k
}

// workerStats is what workers of clients did.
func (w *views) workerStats() *larderv1.WorkerStats {
	st := w.crew.Stats()
	attached, waiting := w.crew.Attached()
	return &larderv1.WorkerStats{
		Attached: uint32(attached), Waiting: uint64(waiting), Tasks: st.Tasks, Retries: st.Retries, Refused: st.Refused,
		Failed: st.Failed, Late: st.Late, Deaths: st.Deaths,
		Seconds: map[string]float64{"decode": st.Seconds[work.Decode], "augment": st.Seconds[work.Augment],
			"in_place": st.Seconds[work.InPlace]},
	}
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
			if waitsForOutage(j) {
				d.JobsWaiting++
			}
		}
	}
}

// waitsForOutage reports whether a rank of a job waits for storage that fails.
func waitsForOutage(j *larderv1.Job) bool {
	return slices.ContainsFunc(j.GetRanks(), func(r *larderv1.RankInfo) bool { return r.GetWait().GetOutage() != nil })
}

// datasetStats is what was done on each dataset, by its id.
func (w *views) datasetStats(list []coordinator.DatasetView) []*larderv1.DatasetStats {
	views := map[ident.DatasetID]coordinator.DatasetView{}
	for _, v := range list {
		views[v.ID] = v
	}
	var out []*larderv1.DatasetStats
	now := w.now()
	for _, d := range w.catalog.List() {
		v, drawn := views[d.ID()]
		if !drawn {
			continue
		}
		s := &larderv1.DatasetStats{
			Dataset: &larderv1.Dataset{Id: uint32(d.ID()), Name: d.Name(), Uri: d.URI(), Samples: uint64(d.LiveCount()),
				Bytes: uint64(d.TotalBytes())},
			Counters: counters(&v.Stats), BadSamples: uint64(v.Bad), Jobs: uint32(v.Live),
			Outages: v.Storage.Outages, OutageSeconds: v.Storage.Lasted(now).Seconds(),
		}
		if !v.Storage.Since.IsZero() {
			s.Outage = &larderv1.Outage{Why: v.Storage.Why, Seconds: now.Sub(v.Storage.Since).Seconds(),
				LimitSeconds: w.memory.get().OutageTimeout.Seconds()}
		}
		out = append(out, s)
	}
	return out
}

// addSubsets says in a job's public form which subset it draws, which one is next, and its notes.
func (w *views) addSubsets(out *larderv1.Job, j *job, v *jobs.Job) {
	if expr := j.subsets.expr(v.Mark); expr != out.GetSpec().GetSubset() {
		out.Spec = j.specWith(expr)
	}
	if v.Next != nil {
		out.NextSubset, out.NextSubsetSize = j.subsets.expr(v.Next.Mark), uint64(v.Next.Subset)
	}
	out.Notes = append(slices.Clone(j.notes), j.window.notes()...)
	j.subsets.Lock()
	note := j.subsets.note
	j.subsets.Unlock()
	if note != "" {
		out.Notes = append(out.Notes, note)
	}
	if d, ok := w.catalog.Get(j.spec.GetDataset()); ok && d != j.Data {
		out.Notes = append(out.Notes, "class folders of the dataset changed, so its labels did: "+
			"the job keeps the files and labels it began with")
	}
}

// attached describes the job of a ring that was just added, if the coordinator has not ended the attachment before it
// could know the ring.
func (w *views) attached(ctx context.Context, k ring.Key) (*jobs.Job, *larderv1.Job, error) {
	v, err := w.loop.lookup(ctx, k.Job)
	if err != nil {
		return nil, nil, err
	}
	if v != nil && v.Ranks[k.Rank].Attached() && v.Ranks[k.Rank].Incarnation == k.Inc {
		if j := w.view(*v); j != nil {
			return v, j, nil
		}
	}
	return nil, nil, errs.New(errs.JobEnded, itoa(int(k.Job)), "register it again",
		"job %d ended while rank %d was being attached", k.Job, k.Rank)
}

// split is the division of memory in its public form.
func (w *views) split(st coordinator.Stats, quotas []coordinator.QuotaView) *larderv1.Split {
	out := &larderv1.Split{Model: st.Model, Why: st.Why, Binding: st.Binding, Predicted: st.Predicted,
		Pages: w.pages()}
	for _, q := range quotas {
		d := &larderv1.DatasetShare{Dataset: q.Dataset, Floor: uint64(q.Floor), Used: uint64(q.Used), Known: q.Known}
		if q.Cap >= 0 {
			n := uint64(q.Cap)
			d.Cap = &n
		}
		out.Datasets = append(out.Datasets, d)
	}
	return out
}

func waitOut(w jobs.Wait) *larderv1.Wait {
	out := &larderv1.Wait{Cause: string(w.Cause), Text: w.Text, Seconds: w.For.Seconds(), Rank: uint32(w.Rank)}
	if o := w.Outage; o != nil {
		out.Outage = &larderv1.Outage{Why: o.Why, Seconds: o.For.Seconds(), LimitSeconds: o.Limit.Seconds(), Over: o.Over()}
	}
	for _, r := range w.Ranks {
		out.Ranks = append(out.Ranks, uint32(r))
	}
	return out
}

func counters(s *jobs.Stats) *larderv1.Counters {
	return &larderv1.Counters{
		SourceReads: s.SourceReads, SourceBytes: s.SourceBytes, Decodes: s.Decodes, Augments: s.Augments,
		SamplesDelivered: s.Samples, BatchesDelivered: s.Batches, Hits: hits(s.Hits, s.FromBlocks),
		Quarantined: s.Quarantined, WaitSeconds: s.Wait.Seconds(),
	}
}
