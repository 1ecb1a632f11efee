package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func newTiers(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tiers",
		Short:   "Show and resize the caches of the running daemon",
		Example: "  larder tiers ls",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newTiersLs(g), newTiersResize(g))
	return cmd
}

func newTiersLs(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the tiers: what each holds, and why memory is split as it is",
		Example: "  larder tiers ls -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.GetTiers(ctx, &larderv1.GetTiersRequest{})
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { tierTable(t, r) })
			})
		},
	}
	out.register(cmd)
	return cmd
}

// tiersTold is an answer that lists the tiers.
type tiersTold interface {
	GetTiers() []*larderv1.Tier
	GetTotal() uint64
	GetSplit() *larderv1.Split
	GetDisk() *larderv1.DiskTier
}

func tierTable(t *tabwriter.Writer, r tiersTold) {
	row(t, "TIER", "USED", "BUDGET", "SETTING", "ENTRIES", "HITS", "EVICTIONS", "POLICY")
	var used, entries, hits, evictions uint64
	for _, x := range r.GetTiers() {
		row(t, x.GetForm(), units.Size(x.GetUsed()), units.Size(x.GetBudget()), x.GetSetting(),
			count(x.GetEntries()), count(x.GetHits()), count(x.GetEvictions()), x.GetPolicy())
		used, entries, hits, evictions = used+x.GetUsed(), entries+x.GetEntries(), hits+x.GetHits(),
			evictions+x.GetEvictions()
	}
	row(t, "total", units.Size(used), units.Size(r.GetTotal()), "", count(entries), count(hits), count(evictions), "")
	if d := r.GetDisk(); d != nil {
		row(t, "disk", units.Size(d.GetUsed()), units.Size(d.GetSize()), "", count(d.GetEntries()+d.GetBlocks()),
			count(d.GetHits()+d.GetBlockHits()), count(d.GetEvictions()), "need")
	}
	diskRows(t, r.GetDisk())
	s := r.GetSplit()
	if len(s.GetDatasets()) > 0 {
		fmt.Fprintln(t)
		row(t, "DATASET", "USED", "FLOOR", "CAP")
		for _, d := range s.GetDatasets() {
			limit := "none"
			if d.Cap != nil {
				limit = units.Size(d.GetCap())
			}
			used := units.Size(d.GetUsed())
			if !d.GetKnown() {
				used = "no job's" // perhaps a name that larder dataset ls does not know
			}
			row(t, clipPath(printable(d.GetDataset()), 50), used, units.Size(d.GetFloor()), limit)
		}
	}
	if s.GetWhy() == "" && s.GetPages() == "" {
		return
	}
	fmt.Fprintln(t)
	if s.GetModel() != "" {
		row(t, "model", s.GetModel())
	}
	if s.GetWhy() != "" {
		whyRows(t, s.GetWhy())
	}
	if s.GetPredicted() > 0 {
		row(t, "predicted", fmt.Sprintf("%s samples/s, limited by %s", perSecond(s.GetPredicted()), s.GetBinding()))
	}
	if s.GetPages() != "" {
		row(t, "memory", printable(s.GetPages()))
	}
}

// diskRows writes what is to be said of the disk tier, if anything.
func diskRows(t *tabwriter.Writer, d *larderv1.DiskTier) {
	if d == nil {
		return
	}
	fmt.Fprintln(t)
	where := printable(d.GetDir())
	if where == "" {
		where = "of another user"
	}
	row(t, "disk tier", where)
	row(t, "reads", fmt.Sprintf("%s (%s) from it, %s from stores", count(d.GetHits()), units.Size(d.GetHitBytes()),
		count(d.GetMisses())))
	if n := d.GetBlockHits() + d.GetBlockMakes(); n > 0 {
		row(t, "blocks", fmt.Sprintf("%s there, %s made", count(d.GetBlockHits()), count(d.GetBlockMakes())))
	}
	row(t, "kept", fmt.Sprintf("%s (%s) written; not kept: %s for want of need, %s as the disk was too slow",
		count(d.GetWritten()), units.Size(d.GetWrittenBytes()), count(d.GetRefused()), count(d.GetSkipped())))
	if n := d.GetDamaged() + d.GetErrors(); n > 0 {
		row(t, "faults", fmt.Sprintf("%s damaged, %s errors; read from stores instead", count(d.GetDamaged()),
			count(d.GetErrors())))
	}
	if d.GetForeign() > 0 {
		row(t, "foreign", plural(d.GetForeign(), "file is", "files are")+" not of larder: left alone, and not counted")
	}
	if d.GetState() != "" {
		row(t, "state", printable(d.GetState()))
	}
}

// whyRows writes the reason of a split, each of its parts on a line.
func whyRows(t *tabwriter.Writer, why string) {
	name := "why"
	for part := range strings.SplitSeq(why, "; ") {
		row(t, name, printable(part))
		name = ""
	}
}

func newTiersResize(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "resize TIER=SIZE...",
		Short: "Change tier sizes of the running daemon, all or none",
		Long: `Change the size of total, encoded, decoded or augmented: 2GiB, 512MB, auto, or a percentage. A percentage of
total is of the machine's memory; that of a tier is of total, also when total changes later. disk takes bytes alone, and
is beside the total. All sizes of one call are applied, or none. Tiers shrink and grow without a flush. The sizes hold
until the next larder config apply, SIGHUP or start of the daemon; set them in the configuration to keep them.`,
		Example: "  larder tiers resize decoded=2GiB encoded=auto",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("e.g. larder tiers resize decoded=2GiB", "larder tiers resize needs TIER=SIZE")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			req, err := resizeRequest(args)
			if err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.SetTiers(ctx, req)
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
					tierTable(t, r)
					fmt.Fprintln(t)
					row(t, "holds until the daemon's next config apply, SIGHUP or start; for good: set it in the daemon's "+
						"configuration")
				})
			})
		},
	}
	out.register(cmd)
	return cmd
}

func resizeRequest(args []string) (*larderv1.SetTiersRequest, error) {
	req := &larderv1.SetTiersRequest{}
	fields := map[string]*string{"total": &req.Total, "encoded": &req.Encoded, "decoded": &req.Decoded,
		"augmented": &req.Augmented, "disk": &req.Disk, "disk.size": &req.Disk}
	names := []string{"total", "encoded", "decoded", "augmented", "disk"}
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		name = strings.TrimPrefix(name, "tiers.")
		if !ok {
			return nil, usagef("e.g. decoded=2GiB", "%q is not TIER=SIZE", a)
		}
		field := fields[name]
		if field == nil {
			hint := "tiers are " + strings.Join(names, ", ")
			if n := config.Nearest(name, names); n != "" {
				hint = "did you mean " + n + "?"
			}
			return nil, usagef(hint, "unknown tier %q", name)
		}
		if *field != "" {
			return nil, usagef("keep one of them", "%s is given twice", name)
		}
		if _, err := config.ParseSize(value); err != nil {
			return nil, err
		}
		*field = value
	}
	return req, nil
}
