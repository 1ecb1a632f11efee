//go:build cgo && linux

package gpu

import (
	"context"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	larderv1 "larder/proto/larder/v1"
)

// Open loads the driver's NVML. It never fails: without a driver the probe finds nothing, and its Status says why.
func Open() Probe { return open(nvml.New()) }

// open is the only caller of Init. Nothing else of lib may be called before it said SUCCESS, not even ErrorString,
// which looks its symbol up in the library too.
func open(lib nvml.Interface) Probe {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return None(absence(ret))
	}
	return &driver{lib: lib, turn: make(chan struct{}, 1)}
}

// absence names the usual reasons in our own words, for NVML's own words need the library.
func absence(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "no NVIDIA driver (libnvidia-ml.so.1 was not found)"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA driver is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no right to talk to the NVIDIA driver"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the NVIDIA driver and libnvidia-ml.so.1 are of different versions; a reboot usually helps"
	default:
		return fmt.Sprintf("NVML did not start (code %d)", int(ret))
	}
}

// driver exists only while NVML is initialised.
type driver struct {
	lib nvml.Interface
	// turn is held by the one call that is inside NVML. A call of NVML cannot be cancelled, so a hanging one keeps the
	// turn, and a call that waits for it gives up with its own context.
	turn   chan struct{}
	closed bool // guarded by turn
}

type answer struct {
	devices []*larderv1.Device
	err     error
}

func (d *driver) Devices(ctx context.Context) ([]*larderv1.Device, error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("list GPUs: NVML does not answer: %w", context.Cause(ctx))
	}
	if d.closed {
		<-d.turn
		return nil, nil
	}
	res := make(chan answer, 1)
	go func() { // ends with NVML's call; it cannot be made to end sooner
		devices, err := d.list()
		<-d.turn
		res <- answer{devices, err}
	}()
	select {
	case a := <-res:
		return a.devices, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("list GPUs: NVML does not answer: %w", context.Cause(ctx))
	}
}

// list needs the turn. A device that cannot be asked for one thing is listed without it; one without a handle (fallen
// off the bus, or forbidden to this user) is left out.
func (d *driver) list() ([]*larderv1.Device, error) {
	n, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %s", d.lib.ErrorString(ret))
	}
	out := make([]*larderv1.Device, 0, n)
	for i := range n {
		h, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		dev := &larderv1.Device{Index: uint32(i)}
		if s, ret := h.GetName(); ret == nvml.SUCCESS {
			dev.Name = s
		}
		if s, ret := h.GetUUID(); ret == nvml.SUCCESS {
			dev.Uuid = s
		}
		if m, ret := h.GetMemoryInfo(); ret == nvml.SUCCESS {
			dev.MemoryBytes, dev.MemoryUsed = m.Total, m.Used
		}
		if u, ret := h.GetUtilizationRates(); ret == nvml.SUCCESS { // not on a GPU in MIG mode
			dev.Utilization = u.Gpu
		}
		out = append(out, dev)
	}
	return out, nil
}

func (d *driver) Status() string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return "the NVIDIA driver does not answer"
	}
	defer func() { <-d.turn }()
	if d.closed {
		return "closed"
	}
	if v, ret := d.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		return "NVIDIA driver " + v
	}
	return "NVIDIA driver of unknown version"
}

// Close waits a moment for a running call; if NVML hangs, it is left as it is, for the process is about to end.
func (d *driver) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("close NVML: %w", ctx.Err())
	}
	defer func() { <-d.turn }()
	if d.closed {
		return nil
	}
	d.closed = true
	if ret := d.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("close NVML: code %d", int(ret))
	}
	return nil
}
