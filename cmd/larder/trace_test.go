package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/bench"
	"larder/bench/coresim"
	"larder/bench/policysim"
	"larder/bench/trace"
	"larder/client"
	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/imagegen"
	"larder/internal/rpc"
	larderv1 "larder/proto/larder/v1"
)

// began closes when the daemon answered a recorder for the first time.
type began struct {
	larderv1.LarderServiceClient
	once sync.Once
	ch   chan struct{}
}

func (b *began) RecordTrace(ctx context.Context, r *larderv1.RecordTraceRequest,
	o ...grpc.CallOption) (*larderv1.RecordTraceResponse, error) {
	res, err := b.LarderServiceClient.RecordTrace(ctx, r, o...)
	b.once.Do(func() { close(b.ch) })
	return res, err
}

// train registers a job and takes all its epochs.
func train(ctx context.Context, socket string, spec *larderv1.JobSpec, step time.Duration) (got [][]int64, err error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: spec},
		new(larderv1.RegisterJobResponse)); err != nil {
		return nil, err
	}
	st, err := c.Attach(ctx, &larderv1.AttachRequest{Job: spec.GetName(), Pid: int32(os.Getpid())})
	if err != nil {
		return nil, err
	}
	for e := range spec.GetEpochs() {
		if err := st.StartEpoch(ctx, e); err != nil {
			return nil, err
		}
		var ids []int64
		for {
			b, err := st.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			ids = append(ids, b.Index()...)
			time.Sleep(step)
			b.Release()
		}
		got = append(got, ids)
	}
	return got, st.Detach(ctx)
}

// A running daemon is recorded: the picks of every job are what its client got, sizes are those of the files, what is
// in memory adds up, and the simulation of the recorded demand reads as often as the daemon did.
func TestRecordTrace(t *testing.T) {
	ctx := t.Context()
	dir, err := os.MkdirTemp("", "lt-") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const n = 120
	drawn, err := imagegen.Draw(ctx, filepath.Join(dir, "photos"), imagegen.Spec{Seed: 3, Samples: n, Shrink: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.LoadContent("t", fmt.Appendf(nil,
		"socket: %s\ntiers: {total: 2MiB, encoded: 0, decoded: 2MiB, augmented: 0}\nstate: {dir: none}\nsource: "+
			"{index_dir: %q, storage_limit: 20MB}\nprep: {workers: 2}\n",
		filepath.Join(dir, "s"), filepath.Join(dir, "i")), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(daemonOptions(cfg, slog.New(slog.DiscardHandler), new(slog.LevelVar)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, closer, err := rpc.Dial(ctx, cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	b := &began{LarderServiceClient: conn, ch: make(chan struct{})}
	stop := make(chan struct{})
	var recorded *trace.Trace
	done := make(chan error, 1)
	go func() {
		r := &traceRecording{c: b, a: trace.NewAssembler("test", 1<<26), err: io.Discard}
		var err error
		recorded, err = r.run(ctx, stop)
		done <- err
	}()
	<-b.ch
	if _, err := conn.RecordTrace(ctx, &larderv1.RecordTraceRequest{}); !errs.Is(rpcFault(err), errs.AlreadyExists) {
		t.Errorf("a second recording: %v", err)
	}
	size, err := structpb.NewStruct(map[string]any{"size": 32})
	if err != nil {
		t.Fatal(err)
	}
	spec := func(name, subset string, epochs uint32) *larderv1.JobSpec {
		return &larderv1.JobSpec{Name: name, Dataset: "imagefolder:" + drawn.Root, Subset: subset, BatchSize: 8,
			Shuffle: true, Epochs: epochs,
			Transform: []*larderv1.Op{{Name: "RandomResizedCrop", Args: size}, {Name: "RandomHorizontalFlip"}}}
	}
	jobs := []*larderv1.JobSpec{spec("a", "", 3), spec("b", "range(0, 60)", 2)}
	got := make([][][]int64, len(jobs))
	var wg sync.WaitGroup
	for i, s := range jobs {
		wg.Go(func() {
			var err error
			if got[i], err = train(ctx, cfg.Socket, s, 5*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	tr := recorded
	var file bytes.Buffer
	if err := trace.Write(&file, tr); err != nil {
		t.Fatal(err)
	}
	if again, err := trace.Read(&file, "t", 0); err != nil || !trace.Equal(tr, again) {
		t.Fatalf("the recording does not survive its file: %v", err)
	}
	if tr.Objects != n || len(tr.Jobs) != 2 || tr.World.Lost != 0 || tr.World.StorageLimit != 20e6 ||
		tr.World.Tiers.Decoded != 2<<20 || tr.World.Workers != 2 {
		t.Fatalf("%d objects, %+v, %+v", tr.Objects, tr.Jobs, tr.World)
	}
	bytes := int64(0)
	for x := range tr.Objects {
		bytes += tr.Size(uint32(x))
	}
	if bytes != drawn.Bytes {
		t.Errorf("%d bytes were recorded, the files have %d", bytes, drawn.Bytes)
	}
	at := map[string]int{}
	for i := range tr.Jobs {
		at[tr.Jobs[i].Name] = i
	}
	for i, s := range jobs {
		k := at[s.GetName()]
		j := &tr.Jobs[k]
		var picks []int64
		epochs := 0
		for p, x := range tr.Pick.Object {
			if int(tr.Pick.Job[p]&trace.JobMask) == k {
				picks = append(picks, int64(x))
				if tr.Pick.Job[p]&trace.Begins != 0 {
					epochs++
				}
			}
		}
		if want := slices.Concat(got[i]...); !slices.Equal(picks, want) {
			t.Errorf("job %s: other samples were recorded than the client got: %d and %d", j.Name, len(picks), len(want))
		}
		if epochs != int(s.GetEpochs()) || j.Epochs != epochs || len(tr.Members(k)) != len(got[i][0]) || j.Batch != 8 ||
			j.Order != "stratified" || !j.Looks || tr.World.Jobs[k].Partial {
			t.Errorf("job %s: %d epochs begin; %+v %+v", j.Name, epochs, *j, tr.World.Jobs[k])
		}
		if step := j.Step * 8; step < 5*time.Millisecond {
			t.Errorf("job %s: steps of %v were recorded, they took 5 ms at least", j.Name, step)
		}
	}
	held := map[uint32]bool{}
	came := 0
	for _, m := range tr.Moves {
		if m.Form != ident.Decoded || held[m.Object] == m.In {
			t.Fatalf("%+v: it came twice, or left without having come", m)
		}
		held[m.Object] = m.In
		if m.In {
			came++
		}
	}
	if c := tr.World.Counted; c.Samples != 3*n+2*60 || uint64(came) > c.Decodes || came == 0 {
		t.Errorf("%d came into memory; the daemon counted %+v", came, c)
	}
	w, limits, err := bench.FromTrace(tr, bench.DefaultMachine)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := w.Run(coresim.Options{})
	if err != nil || !sim.ExactlyOnce || sim.Counts.Samples != tr.World.Counted.Samples ||
		sim.Counts.Augments != tr.World.Counted.Augments {
		t.Fatalf("%v %+v, counted %+v", err, sim, tr.World.Counted)
	}
	if e := float64(sim.Counts.SourceReads)/float64(tr.World.Counted.Reads) - 1; math.Abs(e) > .15 {
		t.Errorf("%d reads simulated, the daemon had %d", sim.Counts.SourceReads, tr.World.Counted.Reads)
	}
	if !slices.ContainsFunc(limits, func(s string) bool { return strings.Contains(s, "drawn again") }) {
		t.Errorf("it does not say what it assumes: %q", limits)
	}
	rep, err := policysim.Run(tr, policysim.Config{Policies: []string{"lru", "minio"}, Caches: []int64{bytes / 4},
		Seed: 1}, nil)
	if err != nil || rep.Requests != tr.Pick.Len() || rep.Prescribed || rep.Find("minio", bytes/4).Hits == 0 {
		t.Errorf("cache policies on the recording: %v %+v", err, rep)
	}
	if _, err := conn.RecordTrace(ctx, &larderv1.RecordTraceRequest{Recording: 5}); !errs.Is(rpcFault(err),
		errs.NotFound) {
		t.Errorf("an unknown recording: %v", err)
	}
}

// rpcFault is the error of a call as the commands see it.
func rpcFault(err error) error {
	if err == nil {
		return nil
	}
	return errs.From(err)
}
