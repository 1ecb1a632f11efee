package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/imagegen"
	"larder/internal/units"
)

// syncBuffer is what a View of a test writes to; hook runs with all text so far.
type syncBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	hook func(text string)
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.b.Write(p)
	if s.hook != nil {
		s.hook(s.b.String())
	}
	return n, err
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestDemoEndsWithAReportAndNothingElse(t *testing.T) {
	r := fakeRunner(t, "good")
	r.Epochs = 3
	r.paint = imagegen.Draw
	var out syncBuffer
	r.view = PlainView(&out)
	res, err := r.all(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	assertNothingLeft(t, r)
	if !res.OK || res.Audit.JobEpochs != 24 || res.Audit.Good != 24 {
		t.Errorf("OK %v, audit %+v, verdict %v", res.OK, res.Audit, res.Verdict)
	}
	if res.Unshared.Decodes != 480 || res.Shared.Decodes != 160 || res.Unshared.Daemons != 4 || res.Shared.Daemons != 1 {
		t.Errorf("counters of the daemons were not added up: %+v, %+v", res.Unshared, res.Shared)
	}
	// The fake session shows the pictures of epoch 0 again in epoch 2; deliveries are equally many in every epoch.
	if want := int64(2 * res.Deliveries / 3); res.Audit.Repeats != want || res.Audit.Pictures != int64(2*res.Deliveries) {
		t.Errorf("%d of %d pictures repeated, want %d of %d", res.Audit.Repeats, res.Audit.Pictures, want, 2*res.Deliveries)
	}
	for _, run := range []*RunStats{&res.Unshared, &res.Shared} {
		for _, j := range run.Jobs {
			if len(j.Epochs) != 3 || j.Points[len(j.Points)-1].Rows != int64(3*j.Samples) {
				t.Errorf("%s: %d epochs, points %v, %d samples", j.Name, len(j.Epochs), j.Points, j.Samples)
			}
		}
	}
	if _, err := os.Stat(r.Report); err != nil || res.Report != r.Report {
		t.Errorf("the report: %v", err)
	}
	for _, want := range []string{"drew 40 images", "lr-0.01  epoch 3 of 3", "unshared: ", "shared: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("progress lacks %q:\n%s", want, out.String())
		}
	}
}

// The audit must find what the daemon's own word would hide.
func TestDemoFindsALostSample(t *testing.T) {
	r := fakeRunner(t, "lose")
	res, err := r.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t, r)
	if res.OK || res.Audit.Good != 15 || res.Audit.JobEpochs != 16 {
		t.Errorf("OK %v, audit %+v", res.OK, res.Audit)
	}
	if len(res.Audit.Problems) != 1 || !strings.HasPrefix(res.Audit.Problems[0],
		"shared, lr-0.1, epoch 2: 1 samples never came") {
		t.Errorf("problems: %v", res.Audit.Problems)
	}
}

func TestDemoSaysWhatWentWrong(t *testing.T) {
	for scenario, want := range map[string][]string{
		"die":     {"lr-0.3", "signal: killed", "killed by a cosmic ray"},
		"error":   {"lr-0.1", "disk on fire"},
		"refuses": {"daemon 1", "exit status 7", "no room at the inn"},
		"silent":  {"daemon 1", "does not answer"},
		"mute":    {"no job made any progress"},
		"stuck":   {"no job made any progress"},
		"junk":    {"Traceback"},
	} {
		t.Run(scenario, func(t *testing.T) {
			r := fakeRunner(t, scenario)
			r.patience = patience{start: 5 * time.Minute, job: 5 * time.Minute, stop: 200 * time.Millisecond}
			switch scenario {
			case "mute", "stuck":
				r.patience.job = 700 * time.Millisecond
			case "silent":
				r.patience.start = 300 * time.Millisecond
			}
			_, err := r.all(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if f := errs.From(err); scenario != "error" && (f.Hint == "" || f.Subject == "") {
				t.Errorf("no hint or subject: %+v", f)
			}
			assertNothingLeft(t, r)
			if _, err := os.Stat(r.Report); err == nil {
				t.Error("a failed demo wrote a report")
			}
		})
	}
}

// Whenever the user has enough, nothing stays.
func TestDemoStopsAnywhere(t *testing.T) {
	for _, when := range []string{"drawing", "unshared: 4 jobs", "epoch 1 of 2", "shared: 4 jobs, one"} {
		t.Run(when, func(t *testing.T) {
			r := fakeRunner(t, "good")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r.view = PlainView(&syncBuffer{hook: func(text string) {
				if strings.Contains(text, when) {
					cancel()
				}
			}})
			if _, err := r.all(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v", err)
			}
			assertNothingLeft(t, r)
			if _, err := os.Stat(r.Report); err == nil {
				t.Error("an interrupted demo wrote a report")
			}
		})
	}
}

func TestDemoKeepsWhenAsked(t *testing.T) {
	r := fakeRunner(t, "good")
	r.Keep, r.Report = true, ""
	res, err := r.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"photos/c00", "u/d3/larder.yaml", "s/d0/log"} {
		if _, err := os.Stat(filepath.Join(res.Kept, want)); err != nil {
			t.Error(err)
		}
	}
	// A later demo must not take it for a dead one's.
	sweep(os.TempDir())
	if _, err := os.Stat(res.Kept); err != nil {
		t.Error(err)
	}
}

func TestMemory(t *testing.T) {
	d := &imagegen.Dataset{Bytes: 90 << 20, Pixels: 300 << 20}
	if got := enough(d, 64<<30); got < d.Bytes+3*d.Pixels || got > (d.Bytes+3*d.Pixels)*6/5 {
		t.Errorf("%s for %s stored and %s decoded", units.Size(got), units.Size(d.Bytes), units.Size(3*d.Pixels))
	}
	if got := enough(d, 1<<30); got > 1<<30/3 {
		t.Errorf("%s on a machine of 1 GiB", units.Size(got))
	}
	if got := enough(&imagegen.Dataset{}, 0); got != minMemory {
		t.Errorf("%d", got)
	}
}

func TestSweepTakesOnlyWhatTheDeadLeft(t *testing.T) {
	dir := t.TempDir()
	mk := func(name string, files ...string) string {
		d := filepath.Join(dir, name)
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(d, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	dead := mk("larder-demo-1", "lock", "x")
	living, kept, other := mk("larder-demo-2", "lock"), mk("larder-demo-3", "x"), mk("something-else", "lock")
	f, err := os.Open(filepath.Join(living, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	trap := filepath.Join(dir, "larder-demo-4")
	if err := os.Symlink(other, trap); err != nil {
		t.Fatal(err)
	}
	sweep(dir)
	if _, err := os.Stat(dead); err == nil {
		t.Error("what a killed demo left is still there")
	}
	for _, d := range []string{living, kept, other, trap} {
		if _, err := os.Stat(d); err != nil {
			t.Error(err)
		}
	}
}

func TestOptionsAreCheckedAllAtOnce(t *testing.T) {
	o := Options{Jobs: 1, Samples: 3, Epochs: 0, Share: "all", Memory: 5}
	_, err := Run(t.Context(), o, nil)
	for _, want := range []string{"--jobs", "--samples", "--epochs", "--share", "--memory", "32MiB"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	o = Options{Jobs: 2, Samples: 40, Epochs: 1, Share: "none", Report: filepath.Join(t.TempDir(), "no", "r.html")}
	if _, err := Run(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), "--report") {
		t.Errorf("a report that cannot be written: %v", err)
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), strings.Repeat("long/", 20)))
	if err := os.MkdirAll(os.TempDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	o.Report = ""
	if _, err := Run(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("a folder whose sockets have too long a path: %v", err)
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestResultIsOneJSONObject(t *testing.T) {
	b, err := json.Marshal(made(4, 2))
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if back.Shared.Decodes != 2300 || !back.OK || len(back.Shared.Jobs) != 4 {
		t.Errorf("came back as %+v", back)
	}
}
