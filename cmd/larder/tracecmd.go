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
	"larder/internal/errs"
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

func newTraceRecord(g *globals) *cobra.Command {
	var out outputFlag
	var file, maxMemory string
	var length time.Duration
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record the running daemon until Ctrl-C or for a given time",
		Long: `Record what jobs ask for (subsets, arrivals, step times, sizes and measured costs of samples) and what the
daemon decides (every sample delivered, what enters and leaves memory) into a trace (docs/format/trace.md). The daemon
never waits for the recorder: what cannot be fetched in time, or would exceed --max-memory, is left out and counted.
Running jobs are recorded from now on. Ctrl-C, SIGTERM or --for ends the recording and writes the file.

When the daemon dies, the recording continues with its successor on the same state. When no successor comes within a
minute, or another daemon does, the file has what was recorded until then, and the exit code is 4.`,
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
			if err := tryFile(file + ".part"); err != nil { // now, not after an hour
				return errs.New(errs.Invalid, file, "check the folder, its permissions and its space", "write the trace").
					Because(err)
			}
			stop, over := stopRecording(length)
			defer over()
			var t *trace.Trace
			ctx := context.WithoutCancel(cmd.Context()) // a signal ends the recording, and what was recorded is fetched then
			gone := g.call(ctx, 0, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				a := trace.NewAssembler(fmt.Sprintf("recorded at %s", time.Now().UTC().Format(time.RFC3339)), uint64(limit.Of(0)))
				r := &traceRecording{c: c, a: a, err: cmd.ErrOrStderr(),
					dial: func(ctx context.Context) (larderv1.LarderServiceClient, io.Closer, error) {
						ctx, cancel := context.WithTimeout(ctx, shortCall)
						defer cancel()
						return g.dial(ctx)
					}}
				var err error
				t, err = r.run(ctx, stop)
				return err
			})
			if t == nil {
				return gone
			}
			if err := exportTrace(file, t); err != nil {
				return err
			}
			return errors.Join(out.value(cmd.OutOrStdout(), recordedFacts(file, t),
				func(w *tabwriter.Writer) { recordedTable(w, file, t) }), gone)
		},
	}
	cmd.Flags().StringVar(&file, "out", "",
		"file of the trace; its suffix names the format (.csv, .oracleGeneral, else larder's)")
	cmd.Flags().DurationVar(&length, "for", 0, "how long to record (default: until Ctrl-C)")
	cmd.Flags().StringVar(&maxMemory, "max-memory", "1GiB", "memory for picks and moves; the rest is counted as lost")
	out.register(cmd)
	return cmd
}

// tryFile makes a file and removes it again.
func tryFile(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(name))
}

// stopRecording returns a channel that is closed by a signal or after length (0 = never). Call over when the recording
// has ended.
func stopRecording(length time.Duration) (stop <-chan struct{}, over func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	stopped, ended := make(chan struct{}), make(chan struct{})
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
		case <-ended:
			return
		}
		close(stopped)
	}()
	return stopped, func() { signal.Stop(signals); close(ended) }
}

// recordedSummary is what larder trace record prints.
type recordedSummary struct {
	File    string   `json:"file"`
	Jobs    []string `json:"jobs"`
	Objects int      `json:"objects"`
	Picks   int      `json:"picks"`
	Moves   int      `json:"moves"`
	Lost    uint64   `json:"lost"`
	Breaks  int      `json:"breaks"` // how often the daemon went away
	Unknown int      `json:"unknown_costs"`
}

func recordedFacts(file string, t *trace.Trace) recordedSummary {
	s := recordedSummary{File: file, Objects: t.Objects, Picks: t.Pick.Len(), Moves: len(t.Moves), Lost: t.World.Lost,
		Breaks: t.World.Breaks, Unknown: t.World.Unknown}
	for i := range t.Jobs {
		s.Jobs = append(s.Jobs, t.Jobs[i].Name)
	}
	return s
}

func recordedTable(w *tabwriter.Writer, file string, t *trace.Trace) {
	row(w, "file", file)
	row(w, "recorded", fmt.Sprintf("%s samples delivered of %s, %s moves; %s lost", count(t.Pick.Len()), count(t.Objects),
		count(len(t.Moves)), count(t.World.Lost)))
	if t.World.Breaks > 0 {
		row(w, "breaks", fmt.Sprintf("the daemon went away %s times: what it delivered in the last moments before, and "+
			"until the recording continued, is missing", count(t.World.Breaks)))
	}
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
		row(w, clip(j.Name, 40), j.Order, j.Arrive.Round(time.Millisecond), count(j.Epochs), count(j.Batch),
			(j.Step * time.Duration(j.Batch)).Round(10*time.Microsecond), note)
	}
}
