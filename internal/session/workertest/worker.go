// Package workertest is a worker process for tests: one that does its work, and hands to break every rule with.
//
// It is linked into tests only. docs/protocol.md is what it follows; examples/worker is one for people to read.
package workertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/internal/shm"
)

// Task is a task with its input record, which is valid until it is answered.
type Task struct {
	wire.TaskFrame
	Input []byte
}

// Worker is a worker's end of a session. Its fields may be used to break the protocol.
type Worker struct {
	Conn   *net.UnixConn
	Result wire.WorkResult
	Memory []byte // that records are written to

	rcv   *shm.Receiver
	r     *wire.Reader
	fd    int
	input []byte
	words []byte // where it says why it ends
	more  []Task // of the last TASKS
	send  sync.Mutex
}

// Seals are those that the memory of a worker has.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// NewMemory makes a memfd of n bytes with seals, and maps it.
func NewMemory(n int64, seals int) (fd int, mem []byte, err error) {
	if fd, err = unix.MemfdCreate("worker", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return 0, nil, err
	}
	if err = unix.Ftruncate(fd, n); err == nil {
		mem, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil && seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, mem, err
}

// Greet opens a session and says HELLO.
func Greet(socket string) (*Worker, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	w := &Worker{Conn: c, rcv: shm.NewReceiver(c), fd: -1}
	w.r = wire.NewReader(w.rcv)
	if err := w.Send(wire.Hello, 1, []byte(`{"client":"worker","abiMin":1,"abiMax":1}`)); err != nil {
		return nil, err
	}
	h, p, _, err := w.Next()
	if err == nil && h.Type != wire.Welcome {
		err = answer(h, p)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return w, nil
}

// Attach opens a session and makes it one of a worker with n bytes of memory.
func Attach(socket string, req wire.WorkRequest, n int64) (*Worker, error) {
	w, err := Greet(socket)
	if err != nil {
		return nil, err
	}
	if w.fd, w.Memory, err = NewMemory(n, Seals); err != nil {
		return nil, err
	}
	if req.OutBytes == 0 {
		req.OutBytes = uint64(n)
	}
	if err := w.Work(req, w.fd); err != nil {
		_ = w.Close()
		return nil, err
	}
	return w, nil
}

// Work sends WORK with a descriptor and takes the answer.
func (w *Worker) Work(req wire.WorkRequest, fd int) error {
	if req.PID == 0 {
		req.PID = int32(os.Getpid())
	}
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if err := shm.WriteWithFD(w.Conn, wire.AppendFrame(nil, wire.Work, 2, b), fd); err != nil {
		return err
	}
	h, p, at, err := w.Next()
	if err != nil {
		return err
	}
	if h.Type != wire.Result {
		return answer(h, p)
	}
	if err := json.Unmarshal(p, &w.Result); err != nil {
		return err
	}
	in, ok := w.rcv.Take(at)
	if !ok {
		return fmt.Errorf("no descriptor of the input memory came")
	}
	mem, err := unix.Mmap(in, 0, int(w.Result.InBytes), unix.PROT_READ, unix.MAP_SHARED)
	if _, werr := unix.Mmap(in, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); werr == nil {
		err = fmt.Errorf("the input memory can be mapped for writing")
	}
	_ = unix.Close(in)
	if err != nil {
		return err
	}
	w.input = mem
	return nil
}

func answer(h wire.Header, p []byte) error {
	if h.Type == wire.Error {
		return wire.ParseError(p)
	}
	return fmt.Errorf("unexpected %s", h.Type)
}

// Send sends a frame.
func (w *Worker) Send(t wire.Type, id uint64, p []byte) error {
	w.send.Lock()
	defer w.send.Unlock()
	_, err := w.Conn.Write(wire.AppendFrame(nil, t, id, p))
	return err
}

// Next returns the next frame.
func (w *Worker) Next() (wire.Header, []byte, int64, error) { return w.r.Next() }

// Task waits for the next task; FREE frames are taken on the way. The error of an ERROR frame is the daemon's.
func (w *Worker) Task() (Task, error) {
	if len(w.more) > 0 {
		t := w.more[0]
		w.more = w.more[1:]
		return t, nil
	}
	for {
		h, p, _, err := w.Next()
		if err != nil {
			return Task{}, err
		}
		switch h.Type {
		case wire.Free, wire.Drain:
			continue
		case wire.Tasks:
			frames, err := wire.ParseTasks(p)
			if err != nil {
				return Task{}, err
			}
			for _, f := range frames[1:] {
				w.more = append(w.more, Task{TaskFrame: f})
			}
			return Task{TaskFrame: frames[0]}, nil
		case wire.Task:
		default:
			return Task{}, answer(h, p)
		}
		f, err := wire.ParseTask(p)
		t := Task{TaskFrame: f}
		if f.Bytes > 0 {
			t.Input = w.input[f.Offset : f.Offset+f.Bytes]
		}
		return t, err
	}
}

// Done writes a record at an offset of the memory, and says so.
func (w *Worker) Done(task uint64, offset int, record []byte) error {
	copy(w.Memory[offset:], record)
	return w.Send(wire.Done, 0, wire.DoneFrame{Task: task, Offset: uint64(offset), Bytes: uint64(len(record))}.Append(nil))
}

// Dones answers tasks from first on with a stack of their records, which have one form.
func (w *Worker) Dones(first uint64, offset int, records [][]byte) error {
	views := make([]record.View, len(records))
	for i, b := range records {
		v, err := record.Open(b)
		if err != nil {
			return err
		}
		views[i] = v
	}
	b, err := record.AppendStack(nil, views)
	if err != nil {
		return err
	}
	copy(w.Memory[offset:], b)
	return w.Send(wire.Dones, 0, wire.DonesFrame{First: first, Count: uint32(len(records)), Offset: uint64(offset),
		Bytes: uint64(len(b))}.Append(nil))
}

// Fail says that a task failed.
func (w *Worker) Fail(task uint64, f wire.Failure) error {
	return w.Send(wire.Failed, 0, wire.AppendFailed(nil, task, f))
}

// Serve does tasks, one after the other, until the session ends. make returns a record, or why there is none. Tasks of
// one TASKS are answered with stacks of up to 8, whose records must have one form.
func (w *Worker) Serve(make func(Task) ([]byte, *wire.Failure)) error {
	for n := 0; ; n++ {
		t, err := w.Task()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		b, f := make(t)
		if f != nil {
			err = w.Fail(t.Task, *f)
		} else {
			// parts by turns: as many answers as the worker may have tasks may not be copied yet
			parts := 2
			if w.Result.Window > 2 {
				parts = int(w.Result.Window) + 1
			}
			at := n % parts * (len(w.Memory) / parts &^ 63)
			err = w.together(t, at, b, make)
		}
		if err != nil {
			return nil // the daemon has hung up
		}
	}
}

// together answers a task, with those that came with it.
func (w *Worker) together(t Task, at int, b []byte, make func(Task) ([]byte, *wire.Failure)) error {
	records := [][]byte{b}
	for len(w.more) > 0 && len(records) < 8 {
		next, _ := w.Task()
		b, f := make(next)
		if f != nil {
			if err := w.Dones(t.Task, at, records); err != nil {
				return err
			}
			return w.Fail(next.Task, *f)
		}
		records = append(records, b)
	}
	if len(records) == 1 {
		return w.Done(t.Task, at, b)
	}
	return w.Dones(t.Task, at, records)
}

// Grow replaces the memory by one of n bytes.
func (w *Worker) Grow(n int64) error {
	fd, mem, err := NewMemory(n, Seals)
	if err != nil {
		return err
	}
	_ = unix.Munmap(w.Memory)
	_ = unix.Close(w.fd)
	w.fd, w.Memory = fd, mem
	w.send.Lock()
	defer w.send.Unlock()
	return shm.WriteWithFD(w.Conn, wire.AppendFrame(nil, wire.Grow, 0, wire.AppendGrow(nil, uint64(n))), fd)
}

// Words says that n bytes of memory are where the worker says why it ends.
func (w *Worker) Words(n int64) error { return w.WordsOf(n, Seals) }

// WordsOf is Words of memory with any seals.
func (w *Worker) WordsOf(n int64, seals int) error {
	fd, mem, err := NewMemory(n, seals)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	w.words = mem
	w.send.Lock()
	defer w.send.Unlock()
	return shm.WriteWithFD(w.Conn, wire.AppendFrame(nil, wire.Words, 0, wire.AppendWords(nil, uint64(n))), fd)
}

// Say leaves last words.
func (w *Worker) Say(text string) {
	clear(w.words)
	copy(w.words, text)
}

// Close ends the session without a word.
func (w *Worker) Close() error {
	err := w.Conn.Close()
	w.rcv.Close()
	if w.Memory != nil {
		_ = unix.Munmap(w.Memory)
		_ = unix.Close(w.fd)
	}
	if w.input != nil {
		_ = unix.Munmap(w.input)
	}
	if w.words != nil {
		_ = unix.Munmap(w.words)
	}
	w.Memory, w.input, w.words = nil, nil, nil
	return err
}
