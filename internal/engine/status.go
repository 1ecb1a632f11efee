package engine

import (
	"context"
	"maps"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

func itoa(n int) string { return strconv.Itoa(n) }

func forms(n [ident.NumForms]uint64) map[string]uint64 {
	return map[string]uint64{
		ident.Encoded.String(): n[ident.Encoded], ident.Decoded.String(): n[ident.Decoded],
		ident.Augmented.String(): n[ident.Augmented],
	}
}

// hits are those of tiers by form, and the samples that came from blocks.
func hits(n [ident.NumForms]uint64, b jobs.FromBlocks) map[string]uint64 {
	out := forms(n)
	out["block"], out["shared_block"] = b.Own, b.Shared
	return out
}

func account(l *jobs.Ledger) *larderv1.EpochAccount {
	if l == nil {
		return nil
	}
	a := &larderv1.EpochAccount{
		Epoch: l.Epoch, Subset: uint64(l.Subset), Delivered: uint64(l.Delivered), Quarantined: uint64(l.Quarantined),
		Removed: uint64(l.Removed),
		State:   l.State.String(),
	}
	if l.State == jobs.Complete {
		a.Dropped = uint64(l.Dropped)
	}
	return a
}

var states = map[jobs.State]larderv1.JobState{
	jobs.Joining: larderv1.JobState_JOB_STATE_JOINING, jobs.Live: larderv1.JobState_JOB_STATE_LIVE,
	jobs.Suspect: larderv1.JobState_JOB_STATE_SUSPECT, jobs.Dead: larderv1.JobState_JOB_STATE_DEAD,
	jobs.Done: larderv1.JobState_JOB_STATE_DONE,
}

// ListJobs lists jobs by id.
func (e *Engine) ListJobs(ctx context.Context, req *larderv1.ListJobsRequest) (*larderv1.ListJobsResponse, error) {
	list, err := e.views.list(ctx, req.GetIncludeEnded())
	return &larderv1.ListJobsResponse{Jobs: list}, err
}

// DescribeJob shows everything about one job.
func (e *Engine) DescribeJob(
	ctx context.Context, req *larderv1.DescribeJobRequest,
) (*larderv1.DescribeJobResponse, error) {
	j, err := e.views.named(ctx, req.GetName())
	return &larderv1.DescribeJobResponse{Job: j}, err
}

// DrainJob lets a job end after its running epoch.
func (e *Engine) DrainJob(ctx context.Context, req *larderv1.DrainJobRequest) (*larderv1.DrainJobResponse, error) {
	j, err := e.end(ctx, req.GetName(), func(t coordinator.Token, id ident.JobID) coordinator.Event {
		return coordinator.Drain{Token: t, Job: id}
	})
	return &larderv1.DrainJobResponse{Job: j}, err
}

// PauseJob stops planning for a job.
func (e *Engine) PauseJob(ctx context.Context, req *larderv1.PauseJobRequest) (*larderv1.PauseJobResponse, error) {
	j, err := e.end(ctx, req.GetName(), func(t coordinator.Token, id ident.JobID) coordinator.Event {
		return coordinator.Pause{Token: t, Job: id, On: true}
	})
	return &larderv1.PauseJobResponse{Job: j}, err
}

// ResumeJob ends the pause of a job.
func (e *Engine) ResumeJob(ctx context.Context, req *larderv1.ResumeJobRequest) (*larderv1.ResumeJobResponse, error) {
	j, err := e.end(ctx, req.GetName(), func(t coordinator.Token, id ident.JobID) coordinator.Event {
		return coordinator.Pause{Token: t, Job: id}
	})
	return &larderv1.ResumeJobResponse{Job: j}, err
}

// KillJob ends a job at once.
func (e *Engine) KillJob(ctx context.Context, req *larderv1.KillJobRequest) (*larderv1.KillJobResponse, error) {
	j, err := e.end(ctx, req.GetName(), func(t coordinator.Token, id ident.JobID) coordinator.Event {
		return coordinator.Kill{Token: t, Job: id, Reason: "killed by request", Unused: req.GetUnused()}
	})
	return &larderv1.KillJobResponse{Job: j}, err
}

func (e *Engine) end(
	ctx context.Context, name string, build func(coordinator.Token, ident.JobID) coordinator.Event,
) (*larderv1.Job, error) {
	j, live, err := e.jobs.live(ctx, name)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, e.jobs.noJob(name)
	}
	if err := mayTouch(ctx, j, "change"); err != nil {
		return nil, err
	}
	if !live {
		return nil, errs.New(errs.JobEnded, name, "nothing is left to do", "job %s has ended already", name)
	}
	if _, err := e.loop.ask(ctx, func(t coordinator.Token) coordinator.Event { return build(t, j.ID) }); err != nil {
		return nil, err
	}
	return e.views.describe(ctx, j.ID)
}

// GetTiers reports the tiers.
func (e *Engine) GetTiers(ctx context.Context, _ *larderv1.GetTiersRequest) (*larderv1.GetTiersResponse, error) {
	type moment struct {
		tiers  []coordinator.TierView
		stats  coordinator.Stats
		quotas []coordinator.QuotaView
	}
	now, err := inspect(ctx, e.loop, func(c *coordinator.Core) moment { return moment{c.Tiers(), c.Stats(), c.Quotas()} })
	if err != nil {
		return nil, err
	}
	return &larderv1.GetTiersResponse{Tiers: e.views.tiers(now.tiers), Total: uint64(e.memory.total()),
		Split: shownSplit(ctx, e.views.split(now.stats, now.quotas)), Disk: e.disk(ctx)}, nil
}

// disk is the disk tier, for who asks; nil = there is none.
func (e *Engine) disk(ctx context.Context) *larderv1.DiskTier {
	if e.cfg.Daemon.Disk == nil {
		return nil
	}
	d := e.cfg.Daemon.Disk()
	if d != nil && asker(ctx) != nil { // where files of another user are
		d.Dir, d.State, d.Foreign = "", "", 0
	}
	return d
}

// Readers counts the live jobs that read a dataset, by its uri. Any goroutine may call it.
func (e *Engine) Readers(uri string) int { return e.jobs.readers(uri) }

// SetTiers changes sizes, all of the request or nothing.
func (e *Engine) SetTiers(ctx context.Context, req *larderv1.SetTiersRequest) (*larderv1.SetTiersResponse, error) {
	if err := mayRun(ctx, "resize tiers"); err != nil {
		return nil, err
	}
	if err := e.setTiers(ctx, req); err != nil {
		return nil, err
	}
	got, err := e.GetTiers(ctx, &larderv1.GetTiersRequest{})
	return &larderv1.SetTiersResponse{Tiers: got.GetTiers(), Total: got.GetTotal(), Split: got.GetSplit(),
		Disk: got.GetDisk()}, err
}

func (e *Engine) setTiers(ctx context.Context, req *larderv1.SetTiersRequest) error {
	e.registering.Lock() // one change at a time
	defer e.registering.Unlock()
	next := e.memory.get()
	next.TierSetting = maps.Clone(next.TierSetting)
	size := func(key, s string, total int64) (int64, error) {
		n, auto, err := e.cfg.Memory.ParseSize(s, total)
		if err != nil {
			return 0, errs.New(errs.ConfigInvalid, key, "write 8GiB, 30% or auto", "set %s to %q", key, s).Because(err)
		}
		if auto {
			return -1, nil
		}
		return n, nil
	}
	if s := req.GetTotal(); s != "" {
		n, err := size("tiers.total", s, -1)
		if err != nil {
			return err
		}
		if n < 0 {
			return errs.New(errs.ConfigInvalid, "tiers.total",
				"give a size such as 8GiB, or write auto in the configuration and run larder config apply",
				"tiers.total: auto can only be set in the configuration")
		}
		next.Tiers.Total = n
	}
	for _, x := range []struct {
		f ident.Form
		s string
	}{{ident.Encoded, req.GetEncoded()}, {ident.Decoded, req.GetDecoded()}, {ident.Augmented, req.GetAugmented()}} {
		if x.s == "" && req.GetTotal() != "" && strings.HasSuffix(next.TierSetting[x.f], "%") {
			x.s = next.TierSetting[x.f] // of the new total
		}
		if x.s == "" {
			continue
		}
		n, err := size("tiers."+x.f.String(), x.s, next.Tiers.Total)
		if err != nil {
			return err
		}
		next.Tiers.Sizes[x.f], next.TierSetting[x.f] = n, x.s
	}
	disk, err := e.diskSize(req.GetDisk(), size)
	if err != nil {
		return err
	}
	if err := e.apply(ctx, next); err != nil {
		return err
	}
	if disk >= 0 {
		e.cfg.Daemon.ResizeDisk(disk)
	}
	return nil
}

// diskSize reads a new size of the disk tier; -1 = none is asked.
func (e *Engine) diskSize(s string, size func(key, s string, total int64) (int64, error)) (int64, error) {
	const key = "tiers.disk.size"
	if s == "" {
		return -1, nil
	}
	if e.cfg.Daemon.ResizeDisk == nil {
		return 0, errs.New(errs.Unsupported, key, "set tiers.disk.dir and tiers.disk.size, and start the daemon again",
			"resize the disk tier: there is none")
	}
	n, err := size(key, s, -1)
	switch {
	case err != nil:
		return 0, err
	case n < 0 || strings.HasSuffix(strings.TrimSpace(s), "%"):
		return 0, errs.New(errs.ConfigInvalid, key, "write bytes like 200GiB", "set %s to %q", key, s)
	}
	return n, nil
}

// GetStats returns all counters.
func (e *Engine) GetStats(ctx context.Context, req *larderv1.GetStatsRequest) (*larderv1.GetStatsResponse, error) {
	type moment struct {
		stats  coordinator.Stats
		tiers  []coordinator.TierView
		jobs   []jobs.Job
		quotas []coordinator.QuotaView
		data   []coordinator.DatasetView
	}
	now, err := inspect(ctx, e.loop, func(c *coordinator.Core) moment {
		return moment{c.Stats(), c.Tiers(), c.Jobs(true), c.Quotas(), c.Datasets()}
	})
	if err != nil {
		return nil, err
	}
	st, machine := now.stats, e.views.machine()
	s := &larderv1.Stats{
		At: timestamppb.Now(), Version: e.cfg.Version, Pid: int32(pid), Uptime: durationpb.New(time.Since(e.started)),
		Totals: &larderv1.Counters{
			SourceReads: st.SourceReads, SourceBytes: st.SourceBytes, Decodes: st.Decodes, Augments: st.Augments,
			Hits:      hits(st.Hits, st.FromBlocks),
			Evictions: forms(st.Evictions), Quarantined: st.Quarantined, SamplesDelivered: st.Samples,
			BatchesDelivered: st.Batches,
			WaitSeconds:      st.Wait.Seconds(),
		},
		Tiers: e.views.tiers(now.tiers), RssBytes: rss(), MemoryLimit: uint64(max(e.cfg.Memory.Limit, 0)),
		Parity: prep.Parity(), Decoder: prep.DecoderName(),
		Split: shownSplit(ctx, e.views.split(st, now.quotas)), StateFull: e.views.stateFull(), Load: e.views.load(machine),
		Datasets: e.views.shownDatasets(ctx, e.views.datasetStats(now.data)), Workers: e.views.workerStats(),
	}
	for _, v := range now.jobs {
		j := e.views.viewOn(v, machine)
		if j == nil {
			continue
		}
		e.views.addWaiting(s, j, &v)
		if j = shown(ctx, j); req.GetJob() == "" || v.Spec.Name == req.GetJob() {
			s.Jobs = append(s.Jobs, j)
		}
	}
	if req.GetJob() != "" && len(s.Jobs) == 0 {
		return nil, e.jobs.noJob(req.GetJob())
	}
	if e.cfg.Daemon.Listeners != nil {
		s.Listeners = e.cfg.Daemon.Listeners()
	}
	if e.cfg.Daemon.Stores != nil && asker(ctx) == nil { // names of buckets are not for other users
		s.Stores = e.cfg.Daemon.Stores()
	}
	s.Disk = e.disk(ctx)
	if e.cfg.Daemon.GPU != nil {
		devices, err := e.cfg.Daemon.GPU.Devices(ctx)
		if err == nil {
			s.Devices = devices
		}
	}
	return &larderv1.GetStatsResponse{Stats: s}, nil
}

// rss is the resident memory of this process in bytes, 0 when the system does not say.
func rss() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil || pages > math.MaxInt64/4096 {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
