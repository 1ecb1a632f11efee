package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"larder/internal/errs"
	"larder/internal/imagegen"
)

func init() { extraCommands = append(extraCommands, newDemoDraw) }

// newDemoDraw draws the demo's dataset and leaves it, for benchmarks.
func newDemoDraw() *cobra.Command {
	var samples, shrink int
	var seed uint64
	cmd := &cobra.Command{
		Use:     "demo-draw FOLDER",
		Short:   "Draw the photographs of larder demo into a new folder",
		Example: "  larder demo-draw /tmp/drawn --samples 1500",
		Hidden:  true,
		Args:    args("a new folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if samples < 1 || samples > 1<<24 {
				return usagef("e.g. --samples 1500", "--samples %d is not between 1 and %d", samples, 1<<24)
			}
			if shrink < 1 || shrink > imagegen.MaxShrink {
				return usagef("e.g. --shrink 3", "--shrink %d is not between 1 and %d", shrink, imagegen.MaxShrink)
			}
			if err := os.Mkdir(args[0], 0o700); err != nil {
				return errs.New(errs.Invalid, args[0], "name a folder that does not exist yet, in one that does",
					"make the folder").Because(err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			_, err := imagegen.Draw(ctx, args[0], imagegen.Spec{Seed: seed, Samples: samples, Shrink: shrink}, nil)
			return err
		},
	}
	cmd.Flags().IntVar(&samples, "samples", 2000, "images to draw")
	cmd.Flags().IntVar(&shrink, "shrink", 1, "make sides so many times smaller")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of the images")
	return cmd
}
