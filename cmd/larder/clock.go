//go:build failpoints

package main

import (
	"github.com/spf13/cobra"

	"larder/internal/clock"
	"larder/internal/clock/stepped"
)

// clockFlag has the daemon follow the clock of a test. This build is for tests.
type clockFlag struct{ address string }

func (f *clockFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "clock", "", "follow the clock of a test at unix:PATH (default: the real clock)")
}

// open returns the clock; nil = the real one.
func (f *clockFlag) open() (clock.Clock, error) {
	if f.address == "" {
		return nil, nil
	}
	c, err := stepped.Follow(f.address)
	if err != nil {
		return nil, err // and no *stepped.Clock that is nil
	}
	return c, nil
}
