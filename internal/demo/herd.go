package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// herd owns the child processes of a demo. Every child leads a process group of its own, so that Ctrl-C in the terminal
// reaches the parent alone and the parent decides the order of the end; and the kernel kills every child when the
// parent is gone (Pdeathsig), however it went.
type herd struct {
	spawn chan func()
	quit  chan struct{}
	gone  chan struct{}
	hurry <-chan struct{} // closed: no more patience

	mu     sync.Mutex
	closed bool
	kids   map[*child]struct{}
}

// newHerd starts the thread that will start all children. Pdeathsig is tied to the thread that forked, not to the
// process (prctl(2)): started from any goroutine, children would die as soon as the runtime retired that thread.
func newHerd(hurry <-chan struct{}) *herd {
	h := &herd{
		spawn: make(chan func()), quit: make(chan struct{}), gone: make(chan struct{}),
		hurry: hurry, kids: map[*child]struct{}{},
	}
	go func() {
		defer close(h.gone)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, when no child is left
		for {
			select {
			case f := <-h.spawn:
				f()
			case <-h.quit:
				return
			}
		}
	}()
	return h
}

// child is a running process.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *os.File // our end of its standard output
	log   string   // file with its standard error

	done chan struct{} // closed when it was waited for
	err  error         // valid after done
}

// errClosed says that the demo is being taken down.
var errClosed = errors.New("the demo is ending")

// start runs a program. Its standard error goes to the file log.
func (h *herd) start(name, log string, env []string, path string, args ...string) (*child, error) {
	logFile, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	c := &child{name: name, out: r, log: log, done: make(chan struct{})}
	c.cmd = exec.Command(path, args...) //nolint:noctx // the herd ends it, in an order that a context does not know
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = env, w, logFile
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		r.Close()
		return nil, err
	}
	result := make(chan error, 1)
	start := func() { result <- h.startLocked(c) }
	select {
	case h.spawn <- start:
		err = <-result
	case <-h.gone:
		err = errClosed
	}
	if err != nil {
		r.Close()
		c.stdin.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		// What a dead child has written is in the pipe already; do not wait for someone else who holds the other end.
		_ = c.out.SetReadDeadline(time.Now().Add(5 * time.Second))
		h.mu.Lock()
		delete(h.kids, c)
		h.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

// startLocked forks under the lock, so that close never misses a child that is being born.
func (h *herd) startLocked(c *child) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	h.kids[c] = struct{}{}
	return nil
}

// signal sends s to the child's whole process group. Accepted risk: between the child's end and our noticing it, its id
// could in theory belong to a new group; the kernel hands ids out in a circle of at least 32,768.
func (c *child) signal(s syscall.Signal) {
	select {
	case <-c.done:
	default:
		_ = syscall.Kill(-c.cmd.Process.Pid, s)
	}
}

// stop asks the children to end, all at once, and kills what still runs after grace, or at once when the user is in a
// hurry.
func (h *herd) stop(grace time.Duration, children ...*child) {
	for _, c := range children {
		c.stdin.Close()
		c.signal(syscall.SIGTERM)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	patience := true
	for _, c := range children {
		if patience {
			select {
			case <-c.done:
				continue
			case <-timer.C:
			case <-h.hurry:
			}
			patience = false
		}
		c.signal(syscall.SIGKILL)
	}
	for _, c := range children {
		<-c.done
	}
}

// close kills every child that is left, waits for all of them, and lets no other be born. Calling it twice is fine.
func (h *herd) close() {
	h.mu.Lock()
	first := !h.closed
	h.closed = true
	left := make([]*child, 0, len(h.kids))
	for c := range h.kids {
		left = append(left, c)
	}
	h.mu.Unlock()
	for _, c := range left {
		c.signal(syscall.SIGKILL)
	}
	for _, c := range left {
		<-c.done
	}
	if first {
		close(h.quit)
	}
	<-h.gone
}

// cpu returns the processor time of an ended child, user and system.
func (c *child) cpu() time.Duration {
	s := c.cmd.ProcessState
	return s.UserTime() + s.SystemTime()
}

// tail returns the last bytes of the child's log, for an error message.
func (c *child) tail() string {
	const most = 2000
	f, err := os.Open(c.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}
