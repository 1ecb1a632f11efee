package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func newDatasetRm(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "rm NAME|URI",
		Short: "Make the daemon forget a dataset that no job uses",
		Long: `Make the daemon forget a dataset: its name, its samples in memory, and its saved index, unless another name
has the same folder. The files stay. The command is refused while a job uses the dataset. When the dataset is added
again, its samples get new ids.`,
		Example: "  larder dataset rm train",
		Args:    args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), longCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.RemoveDataset(ctx, &larderv1.RemoveDatasetRequest{Dataset: absoluteURI(args[0], ".")})
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
					row(t, fmt.Sprintf("removed %s: %s of memory and a saved index of %s are free", clip(r.GetDataset().GetName(), 60),
						units.Size(r.GetFreedBytes()), units.Size(r.GetIndexBytes())))
				})
			})
		},
	}
	out.register(cmd)
	return cmd
}
