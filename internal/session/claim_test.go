package session_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/session"
	"larder/internal/session/sessiontest"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
)

// crew takes every worker, and gives it nothing.
type crew struct{}

func (crew) MaxMemory() int64 { return 1 << 20 }

func (crew) Work(
	_ context.Context, _ *wire.WorkRequest, _ shm.Peer, memory *shm.Segment, _ session.Hand,
) (session.Worker, error) {
	input, err := shm.Create("input", 4096)
	if err != nil {
		memory.Release()
		return nil, err
	}
	return &idle{input: input, memory: memory}, nil
}

// idle is a worker without tasks.
type idle struct {
	session.Worker
	input, memory *shm.Segment
}

func (w *idle) Info() wire.WorkResult { return wire.WorkResult{Worker: 1, Window: 1} }
func (w *idle) Input() *shm.Segment   { return w.input }
func (w *idle) Start()                {}
func (w *idle) Settle()               {}

func (w *idle) Close(bool) {
	w.input.Release()
	w.memory.Release()
}

// A session is one of a client or one of a worker, whichever of the two requests is carried out first.
func TestOneAttachmentOrWorker(t *testing.T) {
	d := start(t, session.Config{Crew: crew{}}, map[string]sessiontest.Job{"a": {Batches: 1}})
	for i := range 40 {
		fd, mem, err := workertest.NewMemory(4096, workertest.Seals)
		if err != nil {
			t.Fatal(err)
		}
		p := d.greeted()
		p.send(wire.Attach, 2, fmt.Sprintf(`{"job":"a","rank":%d}`, i))
		work := wire.AppendFrame(nil, wire.Work, 3, fmt.Appendf(nil, `{"dataset":"python:d@1","outBytes":%d}`, len(mem)))
		if err := shm.WriteWithFD(p.UnixConn, work, fd); err != nil {
			t.Fatal(err)
		}
		taken := 0
		for range 2 {
			h, b, _, err := p.r.Next()
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case h.Type == wire.Ring || h.Type == wire.Result && h.ID == 3:
				taken++
			case h.Type != wire.Error:
				t.Errorf("%s %d %s", h.Type, h.ID, b)
			}
		}
		if taken != 1 {
			t.Errorf("run %d: %d requests succeeded", i, taken)
		}
		_ = p.Close()
		_ = unix.Munmap(mem)
		_ = unix.Close(fd)
	}
}
