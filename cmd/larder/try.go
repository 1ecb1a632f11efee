package main

import (
	"github.com/spf13/cobra"

	"larder/internal/engine/crashguard"
)

func init() { extraCommands = append(extraCommands, newTry) }

// tryCommand has this program try an image in a process of its own.
var tryCommand = []string{"/proc/self/exe", "try-images"}

func newTry() *cobra.Command {
	return &cobra.Command{
		Use:    "try-images",
		Short:  "Prepare images that may have crashed a daemon, for the daemon",
		Args:   noArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return crashguard.Try(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
