package crew

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
	"larder/internal/testenv"
)

var plainSchema = record.Schema{Fields: []record.Field{
	{Name: "x", Kind: record.Array, DType: record.Uint8, Shape: []int64{-1}},
	{Name: "y", Kind: record.Scalar, DType: record.Bool},
}}

// liar is a worker that answers as a script says.
type liar struct {
	*rig
	script, memory []byte
	batch, mark    bool
	w              *Worker
	h              *hand
	mem            []byte
	known          []uint64 // tasks that it was given
}

// arg takes n bytes of the script as a number.
func (l *liar) arg(n int) uint64 {
	var b [8]byte
	copy(b[:n], l.script)
	l.script = l.script[min(n, len(l.script)):]
	return binary.LittleEndian.Uint64(b[:])
}

func (l *liar) attach() {
	req := &wire.WorkRequest{Client: "c", PID: 1, Batch: l.batch, Window: 64}
	if l.mark {
		req.Mark = new(uint64(1<<14 - 8))
	}
	l.h, l.known = &hand{came: make(chan struct{}, 1<<16)}, nil
	l.w, l.mem = l.attachAs(req, 1<<14, l.h)
	copy(l.mem, l.memory)
}

// read takes what came, as it comes over the wire.
func (l *liar) read() {
	l.h.mu.Lock()
	tasks := l.h.tasks
	l.h.tasks = nil
	l.h.mu.Unlock()
	var got []wire.TaskFrame
	for b := wire.AppendTasks(nil, tasks); len(b) > 0; {
		h, err := wire.ParseHeader(b)
		if err != nil {
			l.t.Fatal(err)
		}
		p := b[wire.HeaderSize : wire.HeaderSize+int(h.Length)]
		b = b[wire.HeaderSize+int(h.Length):]
		if h.Type == wire.Task {
			k, err := wire.ParseTask(p)
			if err != nil {
				l.t.Fatal(err)
			}
			got = append(got, k)
			continue
		}
		several, err := wire.ParseTasks(p)
		if err != nil {
			l.t.Fatal(err)
		}
		got = append(got, several...)
	}
	same := func(a, b wire.TaskFrame) bool { return a.Task == b.Task && a.Sample == b.Sample && a.Last == b.Last }
	if !slices.EqualFunc(got, tasks, same) {
		l.t.Fatalf("%d tasks were given, %d came", len(tasks), len(got))
	}
	for _, k := range got {
		l.known = append(l.known, k.Task)
	}
}

// stack writes a good stack of n records of m bytes to the beginning of the memory.
func (l *liar) stack(n, m int) uint64 {
	views := make([]record.View, n)
	for i := range views {
		v, err := record.Open(plainBlob(l.t, m))
		if err != nil {
			l.t.Fatal(err)
		}
		views[i] = v
	}
	b, err := record.AppendStack(nil, views)
	if err != nil {
		l.t.Fatal(err)
	}
	copy(l.mem, b)
	return uint64(len(b))
}

// foreign is memory that the worker made.
func (l *liar) foreign(n int64) (*shm.Segment, []byte) {
	fd, mem, err := workertest.NewMemory(n, workertest.Seals)
	if err != nil {
		l.t.Fatal(err)
	}
	s, err := shm.MapForeign(fd, n, 1<<30)
	if err != nil {
		l.t.Fatal(err)
	}
	copy(mem, l.memory)
	l.t.Cleanup(func() { _ = unix.Munmap(mem) })
	return s, mem
}

// act does what the script says next. An error is a breach of the protocol.
func (l *liar) act() error {
	task := uint64(0)
	if len(l.known) > 0 {
		task = l.known[int(l.arg(1))%len(l.known)]
	}
	w := l.w
	switch l.arg(1) % 12 {
	case 0:
		return w.Done(wire.DoneFrame{Task: task, Offset: l.arg(2), Bytes: l.arg(2)})
	case 1:
		return w.Done(wire.DoneFrame{Task: l.arg(8), Offset: l.arg(8), Bytes: l.arg(8)})
	case 2:
		return w.Done(wire.DoneFrame{Task: task, Bytes: uint64(len(l.memory))})
	case 3:
		return w.Failed(task, wire.Failure{Type: "E", Retry: l.arg(1)%2 == 0})
	case 4:
		l.clock.pass(time.Duration(l.arg(1)) * 10 * time.Millisecond)
	case 5:
		w.Settle()
	case 6, 7: // a good stack, of as many records as it says or not, for tasks that follow each other or not
		n := 1 + int(l.arg(1))%8
		bytes := l.stack(n, int(l.arg(1)))
		return w.Dones(wire.DonesFrame{First: task, Count: uint32(1 + (n-1+int(l.arg(1))/250)%8), Bytes: bytes})
	case 8:
		d, err := wire.ParseDones(wire.DonesFrame{First: l.arg(8), Count: uint32(l.arg(2)), Offset: l.arg(8),
			Bytes: l.arg(8)}.Append(nil))
		if err != nil {
			return err
		}
		return w.Dones(d)
	case 9:
		return w.Dones(wire.DonesFrame{First: task, Count: uint32(1 + l.arg(1)%8), Offset: l.arg(2), Bytes: l.arg(2)})
	case 10:
		var s *shm.Segment
		s, l.mem = l.foreign(1 + int64(l.arg(2)))
		w.Grow(s)
	case 11:
		s, _ := l.foreign(1 + int64(l.arg(1)))
		w.Words(s)
	}
	return nil
}

func plainBlob(t testing.TB, n int) []byte {
	b, err := record.Encode(&plainSchema, []record.Content{{Dims: []int64{int64(n)}, Data: make([]byte, n)},
		{Data: []byte{1}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzWorker has a worker answer with whatever it likes, replace its memory and leave last words: nothing crashes, and
// no task is lost or answered twice.
func FuzzWorker(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 200, 2, 3, 4, 5}, plainBlob(f, 100))
	f.Add([]byte{0, 1, 1, 2, 2, 0, 9, 9, 9, 9}, []byte("LREC"))
	f.Add([]byte{3, 0, 6, 3, 20, 0, 0, 5, 0, 7, 2, 9, 0, 0, 10, 0, 64, 0, 6, 1, 1, 1}, []byte("it ends\nwhere"))
	f.Add([]byte{1, 0, 11, 255, 0, 9, 3, 0, 0, 255, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0}, plainBlob(f, 7))
	f.Fuzz(func(t *testing.T, script, memory []byte) {
		l := &liar{rig: newRig(t), script: script, memory: memory}
		l.job.Made = &work.Made{Steps: 1, Cut: 1, Item: plainSchema, Out: plainSchema, Timeout: time.Second}
		flags := l.arg(1)
		l.batch, l.mark = flags&1 != 0, flags&2 != 0
		l.attach()
		const n = 12
		for id := range coordinator.FlightID(n) {
			l.prepare(id+1, id%2 == 0)
		}
		for len(l.script) > 0 {
			l.read()
			if err := l.act(); err != nil {
				l.w.Close(false)
				l.attach()
			}
		}
		l.w.Close(flags&4 == 0)
		l.clock.pass(time.Hour)
		w, h, mem := l.rig.attach(1<<14, "d")
		good := plainBlob(t, 100)
		id := coordinator.FlightID(1)
		testenv.Eventually(t, "every flight is answered", func() bool {
			for id <= n {
				if _, ok := l.answer(id); ok {
					id++
					continue
				}
				select {
				case <-h.came:
					h.mu.Lock()
					k := h.tasks[0]
					h.tasks = h.tasks[1:]
					h.mu.Unlock()
					if err := w.put(mem, good, k.Task); err != nil {
						t.Fatal(err)
					}
				default:
					return false
				}
			}
			return true
		})
		w.Close(true)
	})
}
