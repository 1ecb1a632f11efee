package main

import (
	"github.com/spf13/cobra"

	"larder/internal/prep/sandbox"
)

func init() { extraCommands = append(extraCommands, newDecode) }

// decodeCommand has this program decode images in a process of its own.
var decodeCommand = []string{"/proc/self/exe", "decode-images"}

func newDecode() *cobra.Command {
	return &cobra.Command{
		Use:    "decode-images",
		Short:  "Decode images in a guarded process, for the daemon",
		Args:   noArgs,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return sandbox.Serve() },
	}
}
