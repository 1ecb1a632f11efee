package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"larder/internal/imagegen"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// A whole larder that is not there: the test binary plays the daemons and, with a fake session, the clients. What it
// delivers it finds on disk by itself. The scenario says what goes wrong.

// playFake is a child of a runner whose prefix is {"fake", scenario}.
func playFake(args []string) {
	scenario, role := args[0], args[1]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch role {
	case "serve":
		switch scenario {
		case "silent":
			signal.Ignore(syscall.SIGTERM)
			select {}
		case "refuses":
			fmt.Fprintln(os.Stderr, "no room at the inn")
			os.Exit(7)
		}
		socket := args[slices.Index(args, "--socket")+1]
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"socket": socket, "pid": os.Getpid()})
		<-ctx.Done()
	case "demo-client":
		switch scenario {
		case "mute":
			<-ctx.Done()
			return
		case "junk":
			fmt.Println("Traceback (most recent call last):")
			<-ctx.Done()
			return
		}
		err := runClient(ctx, os.Stdin, os.Stdout, func(_ context.Context, socket string) (session, error) {
			return &fakeSession{scenario: scenario, shared: strings.Contains(socket, "/s/d0/")}, nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

type fakeSession struct {
	scenario string
	shared   bool
	spec     *larderv1.JobSpec
}

func (f *fakeSession) Close() error { return nil }

func (f *fakeSession) register(_ context.Context, spec *larderv1.JobSpec) error {
	f.spec = spec
	return nil
}

func (f *fakeSession) attach(context.Context, string) (stream, error) {
	root := strings.TrimPrefix(f.spec.Dataset, "imagefolder:")
	d := &imagegen.Dataset{}
	classes, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for label, c := range classes {
		files, err := os.ReadDir(filepath.Join(root, c.Name()))
		if err != nil {
			return nil, err
		}
		for range files {
			d.Labels = append(d.Labels, int64(label))
		}
	}
	for _, plan := range Plan(maxJobs, len(d.Labels)) {
		if plan.Subset == f.spec.Subset {
			return &fakeStream{fakeSession: f, labelOf: d.Labels, subset: plan.Expected(d)}, nil
		}
	}
	return nil, fmt.Errorf("no plan has the subset %q", f.spec.Subset)
}

type fakeStream struct {
	*fakeSession
	labelOf []int64
	subset  []uint32
	todo    []uint32
	epoch   uint32
	batches int
}

func (f *fakeStream) startEpoch(_ context.Context, epoch uint32) error {
	f.epoch = epoch
	f.todo = slices.Clone(f.subset)
	xrand.New(f.spec.Seed, uint64(epoch)).Shuffle(len(f.todo), func(i, j int) {
		f.todo[i], f.todo[j] = f.todo[j],
			f.todo[i]
	})
	if f.scenario == "lose" && f.shared && f.spec.Name == "lr-0.1" && epoch == 1 {
		f.todo = f.todo[1:]
	}
	return nil
}

func (f *fakeStream) next(ctx context.Context) (batch, error) {
	if len(f.todo) == 0 {
		return nil, io.EOF
	}
	f.batches++
	switch {
	case f.scenario == "die" && f.spec.Name == "lr-0.3" && f.batches == 2:
		fmt.Fprintln(os.Stderr, "killed by a cosmic ray")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case f.scenario == "error" && f.spec.Name == "lr-0.1" && f.batches == 2:
		return nil, errors.New("disk on fire")
	case f.scenario == "stuck":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	n := min(int(f.spec.BatchSize), len(f.todo))
	b := fakeBatch{epoch: f.epoch}
	for _, id := range f.todo[:n] {
		b.id = append(b.id, int64(id))
		b.label = append(b.label, f.labelOf[id])
	}
	f.todo = f.todo[n:]
	return b, nil
}

func (f *fakeStream) detach(context.Context) error { return nil }

type fakeBatch struct {
	id, label []int64
	epoch     uint32
}

func (b fakeBatch) ids() []int64    { return b.id }
func (b fakeBatch) labels() []int64 { return b.label }
func (b fakeBatch) release()        {}

// pixels differ between samples; epochs 0 and 2 look alike, which a client must notice.
func (b fakeBatch) pixels(row int) []byte {
	return fmt.Appendf(nil, "%d in epoch %d", b.id[row], b.epoch%2)
}

// fakeMeter counts what real daemons might have counted.
type fakeMeter struct {
	shared bool
	asked  *atomic.Int64
}

func (fakeMeter) Close() error { return nil }

func (m fakeMeter) stats(context.Context) (*larderv1.Stats, error) {
	m.asked.Add(1)
	t := &larderv1.Counters{SourceReads: 100, Decodes: 120, Augments: 200, SamplesDelivered: 200}
	if m.shared {
		t = &larderv1.Counters{SourceReads: 150, Decodes: 160, Augments: 800, SamplesDelivered: 800}
	}
	return &larderv1.Stats{Totals: t, Decoder: "fake", RssBytes: 1 << 20}, nil
}

// fakeRunner is a runner whose children play a scenario, and whose folders lie in a folder of the test.
func fakeRunner(t *testing.T, scenario string) *runner {
	t.Helper()
	report := filepath.Join(t.TempDir(), "r.html")
	dir, err := os.MkdirTemp("", "d") // short: sockets would lie in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	return &runner{
		Options: Options{
			Jobs: 4, Samples: minSamples, Epochs: 2, Seed: 5, Share: "none", Report: report,
		},
		binary: os.Args[0], prefix: []string{"fake", scenario},
		patience: patience{start: 5 * time.Minute, job: 5 * time.Minute, stop: 2 * time.Second},
		dialMeter: func(_ context.Context, socket string) (meter, error) {
			return fakeMeter{strings.Contains(socket, "/s/d0/"), new(atomic.Int64)}, nil
		},
		paint: paintNothing,
	}
}

// paintNothing is imagegen.Draw with empty files: the fake larder looks at their names only.
func paintNothing(ctx context.Context, root string, spec imagegen.Spec, tick func()) (*imagegen.Dataset, error) {
	n := spec.Samples
	d := &imagegen.Dataset{Root: root, Bytes: 1, Min: 1, Max: 1, Pixels: 1}
	for i := range n {
		label := i * imagegen.MaxClasses / n
		key := fmt.Sprintf("c%02d/%04d.jpg", label, i)
		path := filepath.Join(root, key)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return nil, err
		}
		d.Keys, d.Labels = append(d.Keys, key), append(d.Labels, int64(label))
		tick()
	}
	return d, ctx.Err()
}

// assertNothingLeft fails when the runner's folder, or a process that was started in it, is still there.
func assertNothingLeft(t *testing.T, r *runner) {
	t.Helper()
	left, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		t.Errorf("left behind: %s", l.Name())
	}
	r.herd.mu.Lock()
	defer r.herd.mu.Unlock()
	if n := len(r.herd.kids); n > 0 {
		t.Errorf("%d children live on", n)
	}
}
