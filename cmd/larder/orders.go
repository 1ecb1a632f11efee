package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/errs"
	"larder/internal/resume"
	larderv1 "larder/proto/larder/v1"
)

func newOrders(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "orders",
		Short:   "List and export the orders that jobs saw",
		Example: "  larder orders export lr-0.1 lr.order.gz --epochs 0-9",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newOrdersLs(g), newOrdersExport(g))
	return cmd
}

func newOrdersLs(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:     "ls JOB",
		Short:   "List the epochs whose order is kept (state.orders bounds how much is)",
		Example: "  larder orders ls lr-0.1",
		Args:    args("the NAME of a job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.ListOrders(ctx, &larderv1.ListOrdersRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
					row(t, "EPOCH", "INSTANCE", "SAMPLES", "BY EARLIER JOBS")
					for _, o := range r.GetOrders() {
						row(t, count(uint64(o.GetEpoch())), count(uint64(o.GetInstance())), count(o.GetSamples()), count(o.GetEarlier()))
					}
				})
			})
		},
	}
	out.register(cmd)
	return cmd
}

func newOrdersExport(g *globals) *cobra.Command {
	var epochs string
	cmd := &cobra.Command{
		Use:   "export JOB FILE",
		Short: "Write the orders of a job to a file that order=\"replay:FILE\" reads",
		Long: "Write the orders of a job to a file that order=\"replay:FILE\" reads: ids of samples, one line of JSON " +
			"for each epoch\n(docs/format/order.md). FILE ending in .gz is compressed; - is the standard output.",
		Example: "  larder orders export lr-0.1 lr.order.gz --epochs 0-9",
		Args:    args("the NAME of a job", "the FILE to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			first, last, err := epochRange(epochs)
			if err != nil {
				return err
			}
			return g.call(cmd.Context(), longCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.ListOrders(ctx, &larderv1.ListOrdersRequest{Name: args[0]})
				if err != nil {
					return err
				}
				var of []*larderv1.Order
				for _, o := range r.GetOrders() {
					if e := uint64(o.GetEpoch()); e >= first && e <= last && o.GetSamples() > 0 {
						of = append(of, o)
					}
				}
				if len(of) == 0 {
					return errs.New(errs.NotFound, args[0], "`larder orders ls "+args[0]+"` lists what is kept; state.orders "+
						"bounds how much is", "no such epoch of job %s is kept", args[0])
				}
				x := orderExport{args[0], r, of}
				if args[1] == "-" {
					return x.write(ctx, c, cmd.OutOrStdout())
				}
				if err := writeWhole(args[1], func(w io.Writer) error { return x.write(ctx, c, w) }); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d epochs of job %s, %d to %d\n", args[1], len(of), args[0],
					of[0].GetEpoch(), of[len(of)-1].GetEpoch())
				return err
			})
		},
	}
	cmd.Flags().StringVar(&epochs, "epochs", "", "only these, e.g. 3 or 0-9")
	return cmd
}

// epochRange reads 3 or 0-9; empty = all.
func epochRange(s string) (first, last uint64, err error) {
	if s == "" {
		return 0, 1<<32 - 1, nil
	}
	a, b, isRange := strings.Cut(s, "-")
	if !isRange {
		b = a
	}
	first, e1 := strconv.ParseUint(a, 10, 32)
	last, e2 := strconv.ParseUint(b, 10, 32)
	if e1 != nil || e2 != nil || first > last {
		return 0, 0, usagef("write --epochs 3 or --epochs 0-9", "%q is no range of epochs", s)
	}
	return first, last, nil
}

// orderExport is what larder orders export writes.
type orderExport struct {
	job  string
	list *larderv1.ListOrdersResponse
	of   []*larderv1.Order // the part of list that is exported
}

func (x orderExport) write(ctx context.Context, c larderv1.LarderServiceClient, w io.Writer) error {
	r := x.list
	head := resume.Orders{Job: x.job, Dataset: r.GetDataset(), Files: r.GetFiles(), Seed: r.GetSeed()}
	if err := head.WriteHead(w, len(x.of)); err != nil {
		return err
	}
	for _, o := range x.of {
		e := resume.EpochOrder{Epoch: o.GetEpoch(), Instance: o.GetInstance()}
		for total := uint64(1); uint64(len(e.Samples)) < total; {
			part, err := c.GetOrder(ctx, &larderv1.GetOrderRequest{Job: r.GetJob(), Epoch: o.GetEpoch(),
				From: uint64(len(e.Samples))})
			if err != nil {
				return err
			}
			if part.GetInstance() != o.GetInstance() || len(part.GetSamples()) == 0 && uint64(len(e.Samples)) < part.GetTotal() {
				return errs.New(errs.Stale, x.job, "export it again",
					"epoch %d of job %s was begun again meanwhile", o.GetEpoch(), x.job)
			}
			total = part.GetTotal()
			e.Samples = append(e.Samples, part.GetSamples()...)
		}
		if err := resume.WriteEpoch(w, e); err != nil {
			return err
		}
	}
	return nil
}

// writeWhole writes a file that is there whole or not at all.
func writeWhole(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return errs.New(errs.Invalid, path, "choose a file in a folder that can be written", "write %s", path).Because(err)
	}
	b := bufio.NewWriter(f)
	if strings.HasSuffix(path, ".gz") {
		z := gzip.NewWriter(b)
		err = errors.Join(write(z), z.Close())
	} else {
		err = write(b)
	}
	if err = errors.Join(err, b.Flush(), f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
