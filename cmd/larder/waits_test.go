package main

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/config"
	"larder/internal/daemon"
	larderv1 "larder/proto/larder/v1"
)

func waitingJob(name string, w *larderv1.Wait) *larderv1.Job {
	return &larderv1.Job{Spec: &larderv1.JobSpec{Name: name, Dataset: "d", WorldSize: 2},
		State: larderv1.JobState_JOB_STATE_LIVE, Wait: w, SamplesPerSecond: 1250,
		Counters: &larderv1.Counters{WaitSeconds: 7.5}}
}

// TestViewsOfAWait: the table, the description and the explanation of a job say what it waits for.
func TestViewsOfAWait(t *testing.T) {
	rank := &larderv1.Wait{Cause: "rank", Text: "rank 1, which has not come", Seconds: 5.04, Ranks: []uint32{1}}
	j := waitingJob("a", rank)
	j.Ranks = []*larderv1.RankInfo{{Rank: 0, Attached: true, Wait: rank, StepSeconds: 0.5},
		{Rank: 1, Attached: true, Wait: &larderv1.Wait{Cause: "script", Text: "the training script"}}}
	var b strings.Builder
	if err := tableTo(&b, func(t *tabwriter.Writer) {
		jobTable(t, []*larderv1.Job{j})
		describeJob(t, j)
	}); err != nil {
		t.Fatal(err)
	}
	b.WriteString(inOneLine(t, explain(j, []*larderv1.Job{j}, nil, nil)))
	for _, want := range []string{
		"SERVED BY", "d        native", "served by  native", "SAMPLES/S", "WAITS FOR", "1,250", "7.5s", "rank 1 5.0s  root\n",
		"waits for  rank 1, which has not come (it has waited 5.0 s)", "waits for the training script",
		"Now it waits for rank 1, which has not come (it has waited 5.0 s).", "Its rank 1 waits for the training script.",
		"works for 500 ms on a batch in rank 0",
		"world_size=1", "It has waited 7.5 s for data in all.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	for w, want := range map[*larderv1.Wait]string{
		nil:                            "-",
		{Cause: "script"}:              "script",
		{Cause: "disk", Seconds: 12.3}: "disk 12.3s",
		{Cause: "rank", Ranks: []uint32{0, 2, 3}, Seconds: 1}: "rank 0 and 2 more 1.0s",
	} {
		if got := waitsFor(w); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDoctorSeesAFullDisk: of the state folder, also when no daemon runs.
func TestDoctorSeesAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("larder-test", dir, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Skipf("a file system cannot be mounted here (root is needed): %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	f := checkStateDisk(dir+"/larder/state", false)
	if f.Status != "fail" || !strings.Contains(f.Detail, "512KiB are left, and a daemon needs 1MiB") || f.Fix == "" {
		t.Errorf("%+v", f)
	}
	if f := checkStateDisk(t.TempDir(), false); f.Status != "ok" {
		t.Errorf("%+v", f)
	}
}

// TestDoctorWarnsOfAFullDisk: a running daemon continues with the room that it has, so doctor warns; where none
// runs, none could start.
func TestDoctorWarnsOfAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("larder-test", disk, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		t.Skipf("a file system cannot be mounted here (root is needed): %v", err)
	}
	defer func() { // the daemon's folder stays open until the garbage is collected
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	run, err := os.MkdirTemp("", "ls-") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	cfg := config.Default()
	cfg.Socket, cfg.State.Dir = run+"/l.sock", disk+"/state"
	d, err := daemon.Open(daemonOptions(cfg, slog.New(slog.DiscardHandler), new(slog.LevelVar)))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	g := &globals{socket: cfg.Socket}
	if f := checkStateDir(t.Context(), g); f.Status != "ok" || f.Detail != cfg.State.Dir {
		t.Errorf("%+v", f)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk+"/fill", make([]byte, int64(st.Bavail)*st.Bsize-leastStateDisk/2), 0o600); err != nil {
		t.Fatal(err)
	}
	f := checkStateDir(t.Context(), g)
	if f.Status != "warn" || !strings.Contains(f.Detail,
		"512KiB are left. The daemon that runs continues until a write fails, then jobs wait; one that starts needs 1MiB") {
		t.Errorf("%+v", f)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LARDER_STATE__DIR", cfg.State.Dir)
	// what it gave back
	if err := os.WriteFile(disk+"/fill2", make([]byte, 1<<20), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if f := checkStateDir(t.Context(), g); f.Status != "fail" || !strings.Contains(f.Detail, "and a daemon needs 1MiB") {
		t.Errorf("%+v", f)
	}
}

// TestExplainDaemon: what all jobs wait for, what the machine does, what memory saves, and what helps.
func TestExplainDaemon(t *testing.T) {
	gone := waitingJob("gone", &larderv1.Wait{Cause: "cores"})
	gone.State = larderv1.JobState_JOB_STATE_DONE
	s := &larderv1.Stats{
		Jobs: []*larderv1.Job{waitingJob("a", &larderv1.Wait{Cause: "storage"}),
			waitingJob("b", &larderv1.Wait{Cause: "storage"}),
			waitingJob("c", &larderv1.Wait{Cause: "script"}), waitingJob("d", nil), gone},
		Load: &larderv1.Load{Workers: 4, Busy: 1, Cores: 0.31, Reads: 16,
			OldestRead: durationpb.New(1400 * time.Millisecond), Storage: 1},
		Totals: &larderv1.Counters{SourceReads: 25, Decodes: 20,
			Hits: map[string]uint64{"encoded": 5, "decoded": 60, "augmented": 10}},
		Tiers: []*larderv1.Tier{{Form: "encoded", Used: 1 << 20, Budget: 1 << 20, Evictions: 7},
			{Form: "decoded", Used: 1 << 20, Budget: 4 << 20}},
		RssBytes: 1 << 30, MemoryLimit: 2 << 30,
		StateFull: &larderv1.ErrorDetail{Message: "the disk of /s is full", Hint: "make room"},
		Datasets:  []*larderv1.DatasetStats{{Dataset: &larderv1.Dataset{Name: "train"}, BadSamples: 2}},
		Split:     &larderv1.Split{Why: "a rule", Predicted: 900, Binding: "storage"},
	}
	got := inOneLine(t, explainDaemon(s))
	for _, want := range []string{
		"Live: 4 jobs, given 5,000 samples/s together.", "Nothing can be recorded, and jobs wait: the disk of /s is full. " +
			"Fix: make room.",
		"1 of 4 workers decode or augment at this moment; over the last second 31 % of the cores",
		"16 reads under way, the oldest for 1.4 s",
		"Waiting for storage: a, b.", "Waiting for their training scripts: c.",
		"1GiB resident, limit 2GiB. The tiers hold 2MiB of 5MiB:",
		"encoded 1MiB of 1MiB (full: 7 entries have left for others)",
		"25 % were read, 75 % were cached: 5 % encoded, 60 % decoded, 10 % augmented. 20 decodes",
		"2 samples of train cannot be prepared", "limited by storage", "Why the tiers are as large as they are: a rule.",
		"What helps a, b: Fewer reads",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "gone") {
		t.Errorf("a job that has ended waits for nothing:\n%s", got)
	}
	if got := inOneLine(t, explainDaemon(&larderv1.Stats{})); !strings.HasPrefix(got, "jobs No job lives.") {
		t.Errorf("%q", got)
	}
	for _, c := range []string{"storage", "cores", "rank", "pause", "disk", "log", "order", "client", "larder"} {
		if causeWords[c] == "" {
			t.Errorf("no words for %q", c)
		}
	}
}
