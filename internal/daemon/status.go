package daemon

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	larderv1 "larder/proto/larder/v1"
)

// status answers `larder status`.
func (d *Daemon) status(ctx context.Context, _ *larderv1.StatusRequest) (*larderv1.StatusResponse, error) {
	r, err := d.engine.GetStats(ctx, &larderv1.GetStatsRequest{})
	if err != nil {
		return nil, err
	}
	s := r.GetStats()
	up := s.GetUptime().AsDuration()
	out := &larderv1.StatusResponse{
		Pid: int32(os.Getpid()), Version: d.opt.Version, Socket: d.Socket(), Http: d.HTTP(), Grpc: d.GRPC(),
		Log: logFile(d.opt.Config.Log.File), StateDir: d.resources.state.dir, StartedAt: timestamppb.New(time.Now().Add(-up)),
		Uptime: durationpb.New(up), Stopping: d.life.stopping(),
		MemoryLimit: s.GetMemoryLimit(), RssBytes: s.GetRssBytes(), Decoding: d.resources.decoding(),
	}
	n, _ := d.servers.sessions.Sessions()
	out.Sessions = uint32(n)
	countJobs(out, s.GetJobs())
	for _, x := range s.GetDatasets() {
		if x.GetOutage() != nil {
			x.Counters = nil
			out.Failing = append(out.Failing, x)
		}
	}
	for _, t := range s.GetTiers() {
		out.TiersUsed += t.GetUsed()
	}
	out.TiersTotal = uint64(max(d.engine.Settings().Tiers.Total, 0))
	if e := d.lastError.Load(); e != nil {
		out.LastError, out.LastErrorAt = e.text, timestamppb.New(e.at)
	}
	return out, nil
}

// countJobs counts jobs by whether a client holds a rank of them, and the bytes of their rings.
func countJobs(out *larderv1.StatusResponse, jobs []*larderv1.Job) {
	for _, j := range jobs {
		switch st := j.GetState(); {
		case st == larderv1.JobState_JOB_STATE_DEAD || st == larderv1.JobState_JOB_STATE_DONE:
			out.JobsEnded++
			continue
		case attached(j):
			out.JobsLive++
		default:
			out.JobsWaiting++
		}
		if j.GetPaused() {
			out.JobsPaused++
		}
		for _, k := range j.GetRanks() {
			out.RingsUsed += k.GetRingBytes()
		}
	}
}

// logFile is the file that the log goes to, as an absolute path; "" when it goes to no file. configured is log.file.
func logFile(configured string) string {
	if configured != "" {
		if path, err := filepath.Abs(configured); err == nil {
			return path
		}
	}
	if st, err := os.Stderr.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	name, err := os.Readlink("/proc/self/fd/2")
	if err != nil || !filepath.IsAbs(name) {
		return ""
	}
	return name
}
