// Package gpu lists the GPUs of the machine, for people and for the planner.
//
// It only reads: no clock, mode, MIG or process of a device is ever changed. A machine without a driver is a normal
// machine; then the list is empty and Status says why. The returned Devices belong to the caller.
//
// NVML is reached through go-nvml, which needs cgo; other builds have a probe that finds nothing. After a failed Init
// every other call of NVML ends the process in the dynamic linker, past any recover, so calls are methods of an object
// that exists only after Init said SUCCESS.
package gpu

import (
	"context"

	larderv1 "larder/proto/larder/v1"
)

// Probe lists devices. Safe for concurrent use.
type Probe interface {
	// Devices returns the GPUs by index. It returns early, with ctx's error, when the driver hangs; an earlier call
	// that hangs makes later ones wait for it, each until its own ctx ends.
	Devices(ctx context.Context) ([]*larderv1.Device, error)
	// Status says in words what was found: the driver's version, or why there is none.
	Status() string
	// Close releases the driver. A second call does nothing. Devices then returns an empty list.
	Close() error
}

// None returns a probe that finds nothing and says why.
func None(why string) Probe { return none(why) }

type none string

func (n none) Devices(context.Context) ([]*larderv1.Device, error) { return nil, nil }
func (n none) Status() string                                      { return string(n) }
func (n none) Close() error                                        { return nil }
