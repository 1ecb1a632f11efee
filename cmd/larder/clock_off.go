//go:build !failpoints

package main

import (
	"github.com/spf13/cobra"

	"larder/internal/clock"
)

// clockFlag is empty: --clock is compiled in with -tags failpoints only.
type clockFlag struct{}

func (clockFlag) register(*cobra.Command) {}

// open returns nil, for the real clock.
func (clockFlag) open() (clock.Clock, error) { return nil, nil }
