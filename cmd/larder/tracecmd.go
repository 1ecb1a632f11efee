package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"larder/bench/trace"
	"larder/internal/config"
	"larder/internal/fault"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// newTrace groups what is done with traces of the daemon; it needs the socket's flag, so root adds it.
func newTrace(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "trace",
		Short:   "Record what jobs ask of the running daemon, for larder whatif and larder bench",
		Example: "  larder trace record --out week.ltrace --for 1h",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newTraceRecord(g))
	return cmd
}

// Pace of a recording.
const (
	recordEvery = 200 * time.Millisecond
	recordTell  = 10 * time.Second
)

func newTraceRecord(g *globals) *cobra.Command {
	var out outputFlag
	var file, maxMemory string
	var length time.Duration
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record the running daemon until Ctrl-C, or for some time",
		Long: `Record what jobs ask for (their subsets, arrivals, step times; sizes and measured costs of samples) and what the daemon decides (every sample delivered, what
comes into memory and leaves it) into a trace (docs/format/trace.md). The daemon waits for nobody: what cannot be fetched in time, or would exceed --max-memory,
is left out and counted. Jobs that run already are recorded from now on. Ctrl-C, SIGTERM or --for ends the recording, and the file is written.`,
		Example: "  larder trace record --out week.ltrace --for 1h\n  larder trace record --out run.ltrace",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if file == "" {
				return usagef("e.g. "+firstExample(cmd), "larder trace record needs --out FILE")
			}
			if length < 0 {
				return usagef("e.g. --for 10m", "--for %v is negative", length)
			}
			limit, err := config.ParseSize(maxMemory)
			if err != nil || limit.IsPercent() || limit.IsAuto() || limit.Of(0) <= 0 {
				return usagef("e.g. --max-memory 1GiB", "--max-memory %q is not a number of bytes", maxMemory)
			}
			if f, err := os.Create(file + ".part"); err != nil { // now, not after an hour
				return fault.Wrap(err, fault.Invalid, file, "check the folder, its rights and its space", "write the trace")
			} else if err := errors.Join(f.Close(), os.Remove(file+".part")); err != nil {
				return fault.Wrap(err, fault.Invalid, file, "check the folder, its rights and its space", "write the trace")
			}
			signals := make(chan os.Signal, 1)
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
			defer signal.Stop(signals)
			stop := make(chan struct{})
			over := make(chan struct{})
			defer close(over)
			go func() {
				var end <-chan time.Time
				if length > 0 {
					t := time.NewTimer(length)
					defer t.Stop()
					end = t.C
				}
				select {
				case <-signals:
				case <-end:
				case <-over:
					return
				}
				close(stop)
			}()
			var t *trace.Trace
			ctx := context.WithoutCancel(cmd.Context()) // a signal ends the recording, and what was recorded is fetched then
			err = g.call(ctx, 0, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				a := trace.NewAssembler(fmt.Sprintf("recorded at %s", time.Now().UTC().Format(time.RFC3339)), uint64(limit.Of(0)))
				r := &traceRecording{c: c, a: a, err: cmd.ErrOrStderr()}
				var err error
				t, err = r.run(ctx, stop)
				return err
			})
			if err != nil {
				return err
			}
			if err := exportTrace(file, t); err != nil {
				return err
			}
			return out.value(cmd.OutOrStdout(), recordedFacts(file, t), func(w *tabwriter.Writer) { recordedTable(w, file, t) })
		},
	}
	cmd.Flags().StringVar(&file, "out", "", "file of the trace; its suffix tells the format (.csv, .oracleGeneral, else larder's)")
	cmd.Flags().DurationVar(&length, "for", 0, "how long to record (default: until Ctrl-C)")
	cmd.Flags().StringVar(&maxMemory, "max-memory", "1GiB", "keep no more of picks and moves; the rest is counted as lost")
	out.register(cmd)
	return cmd
}

// traceRecording fetches a recording from the daemon.
type traceRecording struct {
	c   larderv1.LarderServiceClient
	a   *trace.Assembler
	err io.Writer

	lost     uint64
	machine  *larderv1.RecordedMachine
	subsetAt map[uint32]uint32 // by job: where its last range ended
}

func (r *traceRecording) run(ctx context.Context, stop <-chan struct{}) (*trace.Trace, error) {
	r.subsetAt = map[uint32]uint32{}
	id, told := uint64(0), time.Now()
	ended := false
	for {
		res, err := r.fetch(ctx, &larderv1.RecordTraceRequest{Recording: id, Stop: ended})
		if err != nil {
			return nil, err
		}
		if id == 0 {
			id = res.GetRecording()
			fmt.Fprintln(r.err, "recording; Ctrl-C ends it and writes the file")
		}
		if r.take(res); res.GetMore() {
			continue
		}
		if ended {
			break
		}
		if time.Since(told) > recordTell {
			told = time.Now()
			fmt.Fprintf(r.err, "%s samples recorded, %s lost\n", count(r.a.Len()), count(r.lost))
		}
		select {
		case <-stop:
			ended = true
		case <-time.After(recordEvery):
		}
	}
	if r.machine == nil {
		return nil, errNotTold
	}
	return r.a.Finish(r.world())
}

func (r *traceRecording) fetch(ctx context.Context, req *larderv1.RecordTraceRequest) (*larderv1.RecordTraceResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	return r.c.RecordTrace(ctx, req)
}

func (r *traceRecording) take(res *larderv1.RecordTraceResponse) {
	r.lost = res.GetLost()
	moves, after := res.GetMoves(), res.GetMoveAfter()
	k := 0
	for i := 0; ; i++ {
		for ; k < len(moves) && k < len(after) && int(after[k]) <= i; k++ {
			if f := ident.Form(moves[k] >> 1 & 3); f != ident.Stored {
				r.a.Move(uint32(moves[k]>>3), f, moves[k]&1 == 1)
			}
		}
		if i == len(res.GetBatches()) {
			break
		}
		b := res.GetBatches()[i]
		r.a.Batch(b.GetJob(), b.GetEpoch(), b.GetObjects())
	}
	for _, j := range res.GetJobs() {
		if j.GetSpec() != nil {
			r.a.Job(j.GetJob(), recordedJob(j))
		}
		var ranges []trace.Range
		at := r.subsetAt[j.GetJob()]
		for s := j.GetSubset(); len(s) >= 2; s = s[2:] {
			at += s[0]
			ranges = append(ranges, trace.Range{Lo: at, Hi: at + s[1]})
			at += s[1]
		}
		r.subsetAt[j.GetJob()] = at
		r.a.Subset(j.GetJob(), ranges)
	}
	for _, o := range res.GetObjects() {
		for i, stored := range o.GetStored() {
			r.a.Object(o.GetFirst()+uint32(i), trace.Object{Stored: stored, Decoded: at(o.GetDecoded(), i), Decode: time.Duration(at(o.GetDecodeNs(), i)), Augment: time.Duration(at(o.GetAugmentNs(), i))})
		}
	}
	if m := res.GetMachine(); m != nil {
		r.machine = m
	}
}

func at[T uint32 | uint64](list []T, i int) T {
	if i < len(list) {
		return list[i]
	}
	return 0
}

func recordedJob(j *larderv1.RecordedJob) trace.Recorded {
	s := j.GetSpec()
	batch := max(1, int(s.GetBatchSize()))
	order := s.GetOrder()
	if !s.GetShuffle() {
		order = "sequential"
	}
	looks := s.GetShuffle() && order != "fixed"
	out := trace.Recorded{
		Job: trace.Job{Name: s.GetName(), Order: order, Arrive: max(0, j.GetRegistered().AsDuration()), Step: max(0, j.GetStep().AsDuration()) / time.Duration(batch), Batch: batch, Looks: looks},
		World: trace.JobWorld{Ranks: max(1, int(s.GetWorldSize())), Prefetch: max(1, int(s.GetPrefetch())), DropLast: s.GetDropLast(), Even: s.GetEven() == "drop", Seed: s.GetSeed(),
			Recipe: j.GetRecipe(), Share: s.GetShare() == "augmented", Augmented: int64(j.GetAugmentedBytes())},
		Dropped: int(j.GetDropped()), Asked: int(s.GetEpochs()), Ended: j.GetEnded() != nil,
	}
	if out.Ended {
		out.Leave = max(0, j.GetEnded().AsDuration())
	}
	return out
}

// world is what was recorded of the machine. A read that waits for the configured limit is no latency of the storage.
func (r *traceRecording) world() trace.World {
	m := r.machine
	w := trace.World{Workers: max(1, int(m.GetWorkers())), Cores: max(1, int(m.GetCores())), StorageLimit: int64(m.GetStorageLimit()), StorageIOPS: int64(m.GetStorageIops()), Bandwidth: m.GetStorageBandwidth(),
		Latency: m.GetStorageLatency().AsDuration(), Memory: m.GetMemoryBandwidth(), Finish: time.Duration(m.GetFinishNs()), InPlace: m.GetInPlace(), Lost: r.lost,
		Tiers:   trace.Tiers{Total: int64(m.GetTotal()), Encoded: -1, Decoded: -1, Augmented: -1, Policy: make([]string, 3), Model: m.GetModel()},
		Counted: trace.Counted{Reads: m.GetCounted().GetSourceReads(), Decodes: m.GetCounted().GetDecodes(), Augments: m.GetCounted().GetAugments(), Samples: m.GetCounted().GetSamplesDelivered()}}
	if w.StorageLimit > 0 || w.StorageIOPS > 0 {
		w.Latency = 100 * time.Microsecond
	}
	for _, t := range m.GetTiers() {
		size, k := &w.Tiers.Encoded, 0
		switch t.GetForm() {
		case ident.Decoded.String():
			size, k = &w.Tiers.Decoded, 1
		case ident.Augmented.String():
			size, k = &w.Tiers.Augmented, 2
		}
		if t.Bytes != nil {
			*size = int64(t.GetBytes())
		}
		w.Tiers.Policy[k] = t.GetPolicy()
	}
	return w
}

// recordedSummary is what larder trace record prints.
type recordedSummary struct {
	File    string   `json:"file"`
	Jobs    []string `json:"jobs"`
	Objects int      `json:"objects"`
	Picks   int      `json:"picks"`
	Moves   int      `json:"moves"`
	Lost    uint64   `json:"lost"`
	Unknown int      `json:"unknown_costs"`
}

func recordedFacts(file string, t *trace.Trace) recordedSummary {
	s := recordedSummary{File: file, Objects: t.Objects, Picks: t.Pick.Len(), Moves: len(t.Moves), Lost: t.World.Lost, Unknown: t.World.Unknown}
	for i := range t.Jobs {
		s.Jobs = append(s.Jobs, t.Jobs[i].Name)
	}
	return s
}

func recordedTable(w *tabwriter.Writer, file string, t *trace.Trace) {
	row(w, "file", file)
	row(w, "recorded", fmt.Sprintf("%s samples delivered of %s, %s moves; %s lost", count(t.Pick.Len()), count(t.Objects), count(len(t.Moves)), count(t.World.Lost)))
	if t.World.Unknown > 0 {
		row(w, "costs", fmt.Sprintf("of %s samples were never seen: they have the mean", count(t.World.Unknown)))
	}
	fmt.Fprintln(w)
	row(w, "JOB", "ORDER", "ARRIVED", "EPOCHS", "BATCH", "STEP OF A BATCH", "")
	for i := range t.Jobs {
		j := &t.Jobs[i]
		note := ""
		if t.World.Jobs[i].Partial {
			note = "recorded in part"
		}
		row(w, clip(j.Name, 40), j.Order, j.Arrive.Round(time.Millisecond), count(j.Epochs), count(j.Batch), (j.Step * time.Duration(j.Batch)).Round(10*time.Microsecond), note)
	}
}
