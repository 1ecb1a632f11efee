package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/bench"
	"larder/bench/trace"
	"larder/client"
	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/imagegen"
	"larder/internal/rpc"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

// calls counts the answers to a recorder, over all daemons.
type calls struct {
	mu   sync.Mutex
	n    int
	lose func(n int) bool // the n-th answer comes too late
	lost int
}

type counting struct {
	larderv1.LarderServiceClient
	of *calls
}

func (c *counting) RecordTrace(ctx context.Context, r *larderv1.RecordTraceRequest,
	o ...grpc.CallOption) (*larderv1.RecordTraceResponse, error) {
	res, err := c.LarderServiceClient.RecordTrace(ctx, r, o...)
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if err == nil {
		if c.of.n++; c.of.lose != nil && c.of.lose(c.of.n) {
			c.of.lost++
			return nil, fmt.Errorf("too late: %w", context.DeadlineExceeded)
		}
	}
	return res, err
}

// more waits until the recorder was answered n times more.
func (c *calls) more(t *testing.T, n int) {
	t.Helper()
	read := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }
	from := read()
	testenv.Eventually(t, "the recorder asks", func() bool { return read() >= from+n })
}

// breakable is a daemon that can go away, and a recorder of it.
type breakable struct {
	t       *testing.T
	cfg     *config.Config
	d       *daemon.Daemon
	closed  bool
	asked   calls
	dialed  atomic.Int64 // how often a successor was looked for
	stop    chan struct{}
	done    chan error
	said    bytes.Buffer // after done
	trace   *trace.Trace
	dataset string
}

const breakSamples = 96

func newBreakable(t *testing.T) *breakable {
	dir, err := os.MkdirTemp("", "lb-") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	drawn, err := imagegen.Draw(t.Context(), filepath.Join(dir, "photos"),
		imagegen.Spec{Seed: 3, Samples: breakSamples, Shrink: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &breakable{t: t, dataset: "imagefolder:" + drawn.Root, stop: make(chan struct{}), done: make(chan error, 1)}
	b.cfg, err = config.LoadContent("t", fmt.Appendf(nil,
		"socket: %s\ntiers: {total: 1MiB, encoded: 0, decoded: 1MiB, augmented: 0}\nstate: {dir: %s}\nsource: {index_dir: "+
			"%q}\nprep: {workers: 2}\n",
		filepath.Join(dir, "s"), filepath.Join(dir, "state"), filepath.Join(dir, "i")), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.open()
	t.Cleanup(b.goAway)
	return b
}

// record begins a recording.
func (b *breakable) record() {
	t := b.t
	t.Helper()
	conn, closer, err := rpc.Dial(t.Context(), b.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	r := &traceRecording{c: &counting{conn, &b.asked}, a: trace.NewAssembler("test", 1<<26), err: &b.said,
		dial: func(ctx context.Context) (larderv1.LarderServiceClient, io.Closer, error) {
			b.dialed.Add(1)
			c, closer, err := rpc.Dial(ctx, b.cfg.Socket)
			if err != nil {
				return nil, nil, err
			}
			return &counting{c, &b.asked}, closer, nil
		}}
	go func() {
		var err error
		b.trace, err = r.run(context.WithoutCancel(t.Context()), b.stop)
		b.done <- err
	}()
	b.asked.more(t, 1)
}

func (b *breakable) open() {
	d, err := daemon.Open(daemonOptions(b.cfg, slog.New(slog.DiscardHandler), new(slog.LevelVar)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.d, b.closed = d, false
}

func (b *breakable) goAway() {
	if !b.closed {
		b.closed = true
		if err := b.d.Close(); err != nil {
			b.t.Error(err)
		}
	}
}

// student is a client that continues with the next daemon.
type student struct {
	t     *testing.T
	spec  *larderv1.JobSpec
	c     *client.Conn
	st    *client.Stream
	inc   uint64
	epoch uint32
	step  uint32
	got   [][]int64
}

func (b *breakable) student(name string, epochs uint32) *student {
	b.t.Helper()
	size, err := structpb.NewStruct(map[string]any{"size": 16})
	if err != nil {
		b.t.Fatal(err)
	}
	s := &student{t: b.t, got: make([][]int64, epochs),
		spec: &larderv1.JobSpec{Name: name, Dataset: b.dataset, BatchSize: 4, Shuffle: true, Epochs: epochs,
			Transform: []*larderv1.Op{{Name: "RandomResizedCrop", Args: size}}}}
	s.attach(b)
	return s
}

func (s *student) attach(b *breakable) {
	s.t.Helper()
	var err error
	if s.c, err = client.Dial(s.t.Context(), b.cfg.Socket); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = s.c.Close() })
	if err := s.c.Call(s.t.Context(), "RegisterJob", &larderv1.RegisterJobRequest{Spec: s.spec},
		new(larderv1.RegisterJobResponse)); err != nil {
		s.t.Fatal(err)
	}
	if s.st, err = s.c.Attach(s.t.Context(), &larderv1.AttachRequest{Job: s.spec.GetName(), Pid: int32(os.Getpid()),
		Incarnation: s.inc}); err != nil {
		s.t.Fatal(err)
	}
	if again := s.inc != 0; again {
		err = s.st.Continue(s.t.Context(), s.epoch, s.step)
	} else {
		err = s.st.StartEpoch(s.t.Context(), 0)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.inc = s.st.Info().GetIncarnation()
}

// take takes n batches, or all that are left.
func (s *student) take(n int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	for range n {
		b, err := s.st.Next(ctx)
		if errors.Is(err, io.EOF) {
			if s.epoch, s.step = s.epoch+1, 0; int(s.epoch) == len(s.got) {
				if err := s.st.Detach(ctx); err != nil {
					s.t.Fatal(err)
				}
				return
			}
			if err := s.st.StartEpoch(ctx, s.epoch); err != nil {
				s.t.Fatal(err)
			}
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.got[s.epoch] = append(s.got[s.epoch], b.Index()...)
		s.step++
		b.Release()
	}
}

// The daemon goes away in the midst of an epoch and comes back on the same state: one trace has both parts, no sample
// twice in an epoch, what is in memory adds up, and whatever is missing was counted or never sent to the recorder.
func TestRecordingOutlivesItsDaemon(t *testing.T) {
	b := newBreakable(t)
	b.record()
	a := b.student("a", 3)
	a.take(30)          // into its second epoch
	b.asked.more(t, 12) // the job is described, and all that was delivered is fetched
	b.goAway()
	b.open()
	a.attach(b)
	b.asked.more(t, 2) // it records again
	second := b.student("second", 1)
	second.take(1 << 10)
	a.take(1 << 10)
	b.asked.more(t, 2)
	close(b.stop)
	if err := <-b.done; err != nil {
		t.Fatalf("%v\n%s", err, b.said.String())
	}
	for _, s := range []string{"the daemon went away", "samples are kept", "it is back"} {
		if !strings.Contains(b.said.String(), s) {
			t.Errorf("it does not say %q: %s", s, b.said.String())
		}
	}
	tr := b.trace
	var file bytes.Buffer
	if err := trace.Write(&file, tr); err != nil {
		t.Fatal(err)
	}
	if again, err := trace.Read(&file, "t", 0); err != nil || !trace.Equal(tr, again) {
		t.Fatalf("the recording does not survive its file: %v", err)
	}
	if tr.World.Breaks != 1 || tr.World.Counted.Samples != 0 || tr.Objects != breakSamples || len(tr.Jobs) != 2 ||
		tr.Jobs[1].Name != "second" || tr.Jobs[1].Arrive <= tr.Jobs[0].Arrive {
		t.Errorf("%+v %+v", tr.World, tr.Jobs)
	}
	for k, s := range []*student{a, second} {
		epoch, had, recorded := -1, map[int64]bool{}, 0
		for p, x := range tr.Pick.Object {
			if int(tr.Pick.Job[p]&trace.JobMask) != k {
				continue
			}
			if tr.Pick.Job[p]&trace.Begins != 0 {
				epoch, had = epoch+1, map[int64]bool{}
			}
			if had[int64(x)] || !slices.Contains(s.got[epoch], int64(x)) {
				t.Fatalf("job %s epoch %d: sample %d was recorded twice, or never delivered", s.spec.GetName(), epoch, x)
			}
			had[int64(x)] = true
			recorded++
		}
		all := len(slices.Concat(s.got...))
		if all != len(s.got)*breakSamples || epoch+1 != len(s.got) {
			t.Fatalf("job %s got %d samples; %d epochs were recorded", s.spec.GetName(), all, epoch+1)
		}
		if missing := all - recorded; missing > int(tr.World.Lost) || k == 1 && missing > 0 {
			t.Errorf("job %s: %d of %d samples were recorded, %d are said to be lost", s.spec.GetName(), recorded, all,
				tr.World.Lost)
		}
		if len(tr.Members(k)) != breakSamples || tr.Jobs[k].Step <= 0 || tr.Jobs[k].Epochs != len(s.got) {
			t.Errorf("%+v", tr.Jobs[k])
		}
	}
	held := map[uint32]bool{}
	for _, m := range tr.Moves {
		if held[m.Object] == m.In {
			t.Fatalf("%+v: it came twice, or left without having come", m)
		}
		held[m.Object] = m.In
	}
	_, limits, err := bench.FromTrace(tr, bench.DefaultMachine)
	if err != nil || !strings.Contains(strings.Join(limits, "\n"), "went away while it was recorded (1 times)") {
		t.Errorf("%v %q", err, limits)
	}
}

// A daemon that is slow has not gone away: answers that came too late are asked for again, and nothing is missing and
// nothing is there twice.
func TestRecordingOfASlowDaemon(t *testing.T) {
	b := newBreakable(t)
	b.asked.lose = func(n int) bool { return n > 1 && n%3 != 0 } // two of three, also one after the other
	b.record()
	a := b.student("a", 3)
	a.take(30)
	b.asked.more(t, 12)
	a.take(1 << 10)
	b.asked.more(t, 2)
	close(b.stop)
	if err := <-b.done; err != nil {
		t.Fatal(err)
	}
	if said := b.said.String(); !strings.Contains(said, "is asked again") || strings.Contains(said, "went away") ||
		b.asked.lost < 8 {
		t.Errorf("%d answers were lost; it said %s", b.asked.lost, said)
	}
	tr, got := b.trace, slices.Concat(a.got...)
	if tr.World.Lost != 0 || tr.World.Breaks != 0 || tr.Pick.Len() != len(got) || len(got) != 3*breakSamples {
		t.Fatalf("%d of %d samples were recorded; %+v", tr.Pick.Len(), len(got), tr.World)
	}
	for i, x := range got {
		if int64(tr.Pick.Object[i]) != x {
			t.Fatalf("pick %d is %d, the client got %d", i, tr.Pick.Object[i], x)
		}
	}
	if len(tr.Jobs) != 1 || len(tr.Members(0)) != breakSamples || tr.Objects != breakSamples || tr.World.Workers != 2 {
		t.Errorf("%+v %+v", tr.Jobs, tr.World)
	}
}

// A daemon that goes away before anything was delivered leaves no file, and the error does not speak of one.
func TestRecordingOfNothing(t *testing.T) {
	b := newBreakable(t)
	b.record()
	b.goAway()
	close(b.stop)
	err := <-b.done
	if b.trace != nil || !errs.Is(err, errs.Unavailable) || !strings.Contains(errs.From(err).Hint, "no file was written") {
		t.Errorf("%v %+v", err, b.trace)
	}
}

// The daemon does not come back, or another one does: what was recorded is a whole trace, with what jobs asked for, and
// the error says so.
func TestRecordingEndsWithItsDaemon(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprint("another one comes: ", other), func(t *testing.T) {
			b := newBreakable(t)
			b.record()
			a := b.student("a", 3)
			a.take(30)
			b.asked.more(t, 12) // the job is described a second after it was seen
			b.goAway()
			if other {
				if err := os.RemoveAll(b.cfg.State.Dir); err != nil {
					t.Fatal(err)
				}
				b.open()
			} else {
				testenv.Eventually(t, "the recorder looks for the daemon", func() bool { return b.dialed.Load() > 0 })
				close(b.stop)
			}
			err := <-b.done
			if !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "went away") ||
				exitCode(err) != exitUnavailable {
				t.Errorf("%v", err)
			}
			if want := map[bool]string{false: "not back when the recording was ended",
				true: "knows none of its jobs"}[other]; err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
			tr := b.trace
			if tr == nil || tr.Check() != nil || len(tr.Jobs) != 1 || tr.Jobs[0].Name != "a" || tr.Jobs[0].Batch != 4 ||
				len(tr.Members(0)) != breakSamples || tr.World.Breaks != 1 || !tr.World.Jobs[0].Partial || tr.World.Workers != 2 {
				t.Fatalf("%+v", tr)
			}
			got, n := slices.Concat(a.got...), tr.Pick.Len()
			if n < len(got) { // what lay in the ring was recorded too
				t.Errorf("%d samples were recorded, the client had %d", n, len(got))
			}
			for i, x := range got {
				if int64(tr.Pick.Object[i]) != x {
					t.Fatalf("pick %d is %d, the client got %d", i, tr.Pick.Object[i], x)
				}
			}
		})
	}
}

// A recording that begins in the midst of an epoch leaves out what had been planned before, says how much that is, and
// is whole otherwise.
func TestRecordingBeginsInAnEpoch(t *testing.T) {
	b := newBreakable(t)
	a := b.student("a", 2)
	a.take(3)
	b.record()
	a.take(1 << 10)
	b.asked.more(t, 2)
	close(b.stop)
	if err := <-b.done; err != nil {
		t.Fatal(err)
	}
	tr := b.trace
	got := slices.Concat(a.got...)
	n := tr.Pick.Len()
	const taken, ring = 3 * 4, 4 * 4 // samples that had been delivered before
	if all := n + int(tr.World.Lost); all > len(got)-taken || all < len(got)-taken-ring || n < breakSamples ||
		tr.Jobs[0].Epochs != 2 || !tr.World.Jobs[0].Partial {
		t.Errorf("%d of %d samples were recorded, %d are said to be lost; %+v", n, len(got), tr.World.Lost, tr.Jobs[0])
	}
	for i, x := range got[len(got)-n:] { // what was not planned yet is all there
		if int64(tr.Pick.Object[i]) != x {
			t.Fatalf("pick %d is %d, the client got %d", i, tr.Pick.Object[i], x)
		}
	}
	if _, _, err := bench.FromTrace(tr, bench.DefaultMachine); err != nil {
		t.Error(err)
	}
}
