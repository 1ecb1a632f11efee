package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func newStats(g *globals) *cobra.Command {
	var out outputFlag
	var watch bool
	var interval time.Duration
	var job string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show the counters of the daemon and its jobs",
		Long: `Show what was read, decoded, augmented and delivered, by the daemon and for each job, and what the tiers hold.
--watch repeats that until Ctrl-C; -o json then writes one line of JSON each time.`,
		Example: "  larder stats --watch --interval 2s",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if watch && job != "" {
				return usagef("leave --job away", "--watch shows all jobs")
			}
			if !watch {
				return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
					r, err := c.GetStats(ctx, &larderv1.GetStatsRequest{Job: job})
					if err != nil {
						return err
					}
					if r.GetStats() == nil {
						return errNoAnswer
					}
					return out.message(cmd.OutOrStdout(), r.GetStats(), func(t *tabwriter.Writer) { statsTable(t, r.GetStats()) })
				})
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			err := g.call(ctx, 0, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				return watchStats(ctx, cmd.OutOrStdout(), &out, c, interval)
			})
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how it ends
			}
			return err
		},
	}
	out.register(cmd)
	cmd.Flags().BoolVar(&watch, "watch", false, "show them again and again")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two, with --watch; at least 100ms")
	cmd.Flags().StringVar(&job, "job", "", "only this job")
	return cmd
}

func watchStats(ctx context.Context, w io.Writer, out *outputFlag, c larderv1.LarderServiceClient,
	interval time.Duration) error {
	s, err := c.WatchStats(ctx, &larderv1.WatchStatsRequest{Interval: durationpb.New(interval)})
	if err != nil {
		return err
	}
	screen := out.form == "table" && isTerminal(w)
	for first := true; ; first = false {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var b bytes.Buffer
		switch out.form {
		case "json": // one line each, for jq and friends
			raw, err := protoJSON.Marshal(r.GetStats())
			if err == nil {
				err = json.Compact(&b, raw)
			}
			if err != nil {
				return fmt.Errorf("write json: %w", err)
			}
			b.WriteByte('\n')
		case "yaml":
			b.WriteString("---\n")
			if err := out.message(&b, r.GetStats(), nil); err != nil {
				return err
			}
		default:
			if screen {
				b.WriteString("\x1b[H\x1b[2J") // not colour: without it the screen would scroll away
			} else if !first {
				b.WriteByte('\n')
			}
			if err := tableTo(&b, func(t *tabwriter.Writer) { statsTable(t, r.GetStats()) }); err != nil {
				return err
			}
		}
		if _, err := w.Write(b.Bytes()); err != nil {
			return err
		}
	}
}

func statsTable(t *tabwriter.Writer, s *larderv1.Stats) {
	c := s.GetTotals()
	row(t, "larder", fmt.Sprintf("%s, process %d, up %v", s.GetVersion(), s.GetPid(),
		s.GetUptime().AsDuration().Round(time.Second)))
	row(t, "decoder", decoderLine(s.GetDecoder(), s.GetParity()))
	row(t, "memory", fmt.Sprintf("%s resident, limit %s", units.Size(s.GetRssBytes()), units.Size(s.GetMemoryLimit())))
	row(t, "source reads", fmt.Sprintf("%s (%s)", count(c.GetSourceReads()), units.Size(c.GetSourceBytes())))
	row(t, "decodes", count(c.GetDecodes()))
	row(t, "augments", count(c.GetAugments()))
	row(t, "delivered", fmt.Sprintf("%s samples in %s batches", count(c.GetSamplesDelivered()),
		count(c.GetBatchesDelivered())))
	if d := c.GetDecodes(); d > 0 {
		row(t, "sharing", fmt.Sprintf("%.2f samples delivered for each decode", float64(c.GetSamplesDelivered())/float64(d)))
	}
	row(t, "quarantined", count(c.GetQuarantined()))
	for _, x := range s.GetStores() {
		line := fmt.Sprintf("%s reads and %s lists (%s), %s retries, %s hedges, %s errors", count(x.GetReads()),
			count(x.GetLists()), units.Size(x.GetBytes()), count(x.GetRetries()), count(x.GetHedges()), count(x.GetErrors()))
		if m := x.GetMoney(); m > 0 {
			line += fmt.Sprintf(", cost %.4g", m)
		}
		row(t, clip(x.GetName(), 40), line)
	}
	for _, d := range s.GetDevices() {
		row(t, fmt.Sprintf("gpu %d", d.GetIndex()), fmt.Sprintf("%s, %s of %s used, %d%% busy", d.GetName(),
			units.Size(d.GetMemoryUsed()), units.Size(d.GetMemoryBytes()), d.GetUtilization()))
	}
	row(t)
	var total uint64
	for _, x := range s.GetTiers() {
		total += x.GetBudget()
	}
	tierTable(t, &larderv1.GetTiersResponse{Tiers: s.GetTiers(), Total: total, Split: s.GetSplit(),
		Disk: s.GetDisk()})
	row(t)
	jobTable(t, s.GetJobs())
}
