package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func newDataset(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dataset",
		Short:   "Add, list, look at, index, verify and remove datasets",
		Example: "  larder dataset ls",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newDatasetAdd(g), newDatasetLs(g), newDatasetInspect(g), newDatasetRefresh(g), newDatasetRm(g),
		newDatasetVerify(g), newDatasetStats(g), newDatasetIndex(g))
	return cmd
}

func newDatasetAdd(g *globals) *cobra.Command {
	var out outputFlag
	var name string
	var skipEmpty bool
	cmd := &cobra.Command{
		Use:   "add URI",
		Short: "Index a dataset under a name of its own",
		Long: `Index a dataset under a name of its own. The command reports everything that is wrong with its folders at
once. Files that are no samples are counted by kind (-o yaml has all kinds).`,
		Example: "  larder dataset add imagefolder:/data/train --name train",
		Args:    args("a URI"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), longCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.AddDataset(ctx, &larderv1.AddDatasetRequest{Name: name, Uri: absoluteURI(args[0], "."),
					SkipEmpty: skipEmpty})
				if err != nil {
					return err
				}
				if r.GetDataset() == nil {
					return errNoAnswer
				}
				return out.message(cmd.OutOrStdout(), r.GetDataset(), func(t *tabwriter.Writer) { oneDataset(t, r.GetDataset()) })
			})
		},
	}
	out.register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name for jobs to use (default: the URI)")
	cmd.Flags().BoolVar(&skipEmpty, "skip-empty", false,
		"accept class folders without images, now and later: they keep their label")
	return cmd
}

func newDatasetLs(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the datasets the daemon knows",
		Example: "  larder dataset ls -o yaml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.ListDatasets(ctx, &larderv1.ListDatasetsRequest{})
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { datasetTable(t, r.GetDatasets()) })
			})
		},
	}
	out.register(cmd)
	return cmd
}

func datasetTable(t *tabwriter.Writer, list []*larderv1.Dataset) {
	row(t, "NAME", "URI", "SAMPLES", "CLASSES", "BYTES", "SHARED", "IGNORED", "FINGERPRINT")
	for _, d := range list {
		row(t, clip(d.GetName(), 40), clipPath(d.GetUri(), 60), count(d.GetSamples()), count(len(d.GetClasses())),
			units.Size(d.GetBytes()), count(d.GetSharedSamples()), count(ignored(d)), d.GetFingerprint())
	}
}

// ignored is how many files of a dataset's folders are no samples.
func ignored(d *larderv1.Dataset) (n uint64) {
	for _, k := range d.GetIgnored() {
		n += k.GetFiles()
	}
	return n
}

// oneDataset is the table of a dataset, with what one may miss in it.
func oneDataset(t *tabwriter.Writer, d *larderv1.Dataset) {
	datasetTable(t, []*larderv1.Dataset{d})
	for _, n := range d.GetNotes() {
		row(t)
		row(t, "note: "+n)
	}
}

func newDatasetInspect(g *globals) *cobra.Command {
	var out outputFlag
	var subset, page string
	var samples uint32
	cmd := &cobra.Command{
		Use:   "inspect NAME|URI",
		Short: "Show a dataset and a few of its samples",
		Long: `Show a dataset and the first samples of a subset of it; the number of selected samples shows whether a
subset expression means what it should. The dataset is indexed if it is not known yet. Of a dataset of records, each
field of these samples is shown with its dtype, shape and value, as this process reads it.

With --html, the command writes a page instead, in its own process: thumbnails of samples spread over the subset with
label, key and size, the classes, the stored sizes, the samples that cannot be decoded, and those that running jobs have
quarantined. Of records it shows every field, images as thumbnails. The page needs no network.`,
		Example: `  larder dataset inspect imagefolder:/data/train --subset 'label < 600' --samples 5
  larder dataset inspect imagefolder:/data/train --html train.html`,
		Args: args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if page != "" {
				if !cmd.Flags().Changed("samples") {
					samples = 0
				}
				path, err := g.inspectHTML(cmd.Context(), args[0], page, subset, int(samples))
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), "wrote "+printable(path))
				}
				return err
			}
			return g.call(cmd.Context(), longCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.InspectDataset(ctx, &larderv1.InspectDatasetRequest{Dataset: absoluteURI(args[0], "."), Subset: subset,
					Samples: samples})
				if err != nil {
					return err
				}
				if holdsRecords(r) {
					return inspectRecords(ctx, &out, cmd.OutOrStdout(), r)
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
					oneDataset(t, r.GetDataset())
					row(t)
					row(t, fmt.Sprintf("selected %s of %s samples", count(r.GetSelected()), count(r.GetDataset().GetSamples())))
					row(t)
					row(t, "ID", "KEY", "LABEL", "CLASS", "BYTES", "FORMAT", "SIZE")
					for _, s := range r.GetSamples() {
						row(t, s.GetId(), clipPath(s.GetKey(), 60), s.GetLabel(), clip(s.GetClassName(), 30), units.Size(s.GetBytes()),
							s.GetFormat(), fmt.Sprintf("%dx%d", s.GetWidth(), s.GetHeight()))
					}
				})
			})
		},
	}
	out.register(cmd)
	cmd.Flags().StringVar(&subset, "subset", "", "subset expression (default: every sample)")
	cmd.Flags().Uint32Var(&samples, "samples", 3, "samples to show, up to 1000; 0 means 3, with --html 100")
	cmd.Flags().StringVar(&page, "html", "", "write a page of thumbnails to this file instead")
	return cmd
}

func newDatasetRefresh(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "refresh NAME|URI",
		Short: "Check every file of a dataset again, and notify its jobs of changes",
		Long: `Check every file of a dataset again. New files get new ids; running jobs see them from their next epoch on, as
far as their subset selects them. Removed files are no longer delivered, at once.`,
		Example: "  larder dataset refresh imagefolder:/data/train",
		Args:    args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), longCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.RefreshDataset(ctx, &larderv1.RefreshDatasetRequest{Dataset: absoluteURI(args[0], ".")})
				if err != nil {
					return err
				}
				if r.GetDataset() == nil {
					return errNoAnswer
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
					oneDataset(t, r.GetDataset())
					row(t)
					row(t, fmt.Sprintf("added %s, removed %s samples", count(r.GetAdded()), count(r.GetRemoved())))
					for _, j := range r.GetJobs() {
						row(t, "from its next epoch on: job "+clip(j, 40))
					}
				})
			})
		},
	}
	out.register(cmd)
	return cmd
}
