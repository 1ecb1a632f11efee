//go:build cgo && linux

package gpu

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a DGX A100 whose devices also answer what go-nvml's mock leaves out.
func machine(t *testing.T) *server.Server {
	t.Helper()
	s := dgxa100.New()
	for i, d := range s.Devices {
		d.(*server.Device).GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
			return nvml.Utilization{Gpu: uint32(10 * i)}, nvml.SUCCESS
		}
		d.(*server.Device).GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 40 << 30, Used: uint64(i) << 30}, nvml.SUCCESS
		}
	}
	return s
}

func TestDevices(t *testing.T) {
	s := machine(t)
	p := open(s)
	got, err := p.Devices(t.Context())
	if err != nil || len(got) != 8 {
		t.Fatalf("%d devices, %v", len(got), err)
	}
	seen := map[string]bool{}
	for i, d := range got {
		if d.Index != uint32(i) || !strings.Contains(d.Name, "A100") || d.Uuid == "" || seen[d.Uuid] ||
			d.MemoryBytes != 40<<30 || d.MemoryUsed != uint64(i)<<30 || d.Utilization != uint32(10*i) {
			t.Errorf("device %d: %+v", i, d)
		}
		seen[d.Uuid] = true
	}
	if !strings.Contains(p.Status(), "NVIDIA driver") {
		t.Errorf("status %q", p.Status())
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if n := len(s.ShutdownCalls()); n != 1 {
		t.Errorf("%d shutdowns", n)
	}
	if got, err := p.Devices(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("after Close: %v, %v", got, err)
	}
}

// A call after a failed Init would end the process; the mock without functions panics on any, which this test would
// see.
func TestNothingAfterFailedInit(t *testing.T) {
	for ret, word := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver", nvml.ERROR_DRIVER_NOT_LOADED: "not loaded",
		nvml.ERROR_NO_PERMISSION: "no right", nvml.ERROR_LIB_RM_VERSION_MISMATCH: "different versions",
		nvml.ERROR_UNKNOWN: "code 999",
	} {
		lib := &mock.Interface{InitFunc: func() nvml.Return { return ret }}
		p := open(lib)
		got, err := p.Devices(t.Context())
		if len(got) != 0 || err != nil || !strings.Contains(p.Status(), word) || p.Close() != nil {
			t.Errorf("after %d: %v, %v, status %q", ret, got, err, p.Status())
		}
	}
}

func TestDeviceThatFails(t *testing.T) {
	s := machine(t)
	dead := s.Devices[2]
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if s.Devices[i] == dead {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return s.Devices[i], nvml.SUCCESS
	}
	s.Devices[3].(*server.Device).GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{Gpu: 77}, nvml.ERROR_NOT_SUPPORTED
	}
	p := open(s)
	defer p.Close()
	got, err := p.Devices(t.Context())
	if err != nil || len(got) != 7 || got[2].Index != 3 || got[2].Utilization != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	s.ErrorStringFunc = func(nvml.Return) string { return "unknown error" }
	if _, err := p.Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "unknown error") {
		t.Errorf("count failed: %v", err)
	}
}

// A driver that hangs costs the caller its deadline, nothing more, and the next call works once it is back.
func TestHangingDriver(t *testing.T) {
	s := machine(t)
	hang, entered := make(chan struct{}), make(chan struct{}, 8)
	count := s.DeviceGetCountFunc
	s.DeviceGetCountFunc = func() (int, nvml.Return) {
		entered <- struct{}{}
		<-hang
		return count()
	}
	p := open(s)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := p.Devices(ctx); first <- err }()
	<-entered
	second := make(chan error, 1)
	go func() { _, err := p.Devices(ctx); second <- err }() // waits for the turn
	cancel()
	for _, c := range []chan error{first, second} {
		if err := <-c; !errors.Is(err, context.Canceled) {
			t.Errorf("hanging call: %v", err)
		}
	}
	close(hang)
	if got, err := p.Devices(t.Context()); err != nil || len(got) != 8 {
		t.Errorf("after the hang: %d, %v", len(got), err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// On every machine, with a driver or without, looking for GPUs returns.
func TestThisMachine(t *testing.T) {
	p := Open()
	defer p.Close()
	got, err := p.Devices(t.Context())
	t.Logf("%s: %+v, %v", p.Status(), got, err)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if os.Getenv("LARDER_REQUIRE_GPU") == "1" && (len(got) == 0 || got[0].MemoryBytes == 0 || got[0].Uuid == "") {
		t.Errorf("LARDER_REQUIRE_GPU=1, but %s: %+v", p.Status(), got)
	}
}
