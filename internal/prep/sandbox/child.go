package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/prep"
	"larder/internal/proc"
	"larder/internal/shm"
)

const (
	// keepShared is how much of its shared memory a child keeps from image to image: see keepBytes of prep.
	keepShared = 48 << 20
	// look is how often a request that takes long is looked at. It counts looks, not time: a stopped machine ages nothing.
	look = 100 * time.Millisecond
	// stuckLooks is how many looks a child may use no processor time and not answer.
	stuckLooks = 300
	// startLooks is how many looks a child may take to be ready.
	startLooks = 600
)

// child is one process, seen from the daemon.
type child struct {
	cmd    *osexec.Cmd
	link   *net.UnixConn
	memory *shm.Segment
	log    *proc.FirstBytes
	limit  time.Duration // processor time of one request
	stuck  int           // how many looks it may do nothing
	state  State
	ended  chan struct{} // closed when the process was waited for

	seq uint64
	out []byte
	in  []byte
}

// fault says that a child could not answer a request. It has ended.
type fault struct {
	why     string // for people
	outside bool   // it was ended from outside, or had no memory: that says little about the image
	said    string // what it wrote when it crashed
}

// start starts a child and waits until it is ready.
func start(cfg *Config) (c *child, err error) {
	size := 2*imageBytes(cfg.Limits) + 2*page
	memory, err := shm.CreateScratch("larder-decode", size)
	if err != nil {
		return nil, err
	}
	root := os.Geteuid() == 0
	x := setup{Parent: os.Getpid(), Memory: size, Limits: cfg.Limits, Drop: root, NoNet: root}
	c, err = startWith(cfg, memory, &x)
	if first := err; err != nil && x.NoNet { // e.g. a container without CAP_SYS_ADMIN: seccomp forbids sockets
		x.NoNet = false
		if c, err = startWith(cfg, memory, &x); err == nil {
			c.state.Lacks = append(c.state.Lacks, "a network of its own ("+printable(first.Error())+")")
		}
	}
	if err != nil {
		memory.Release()
	}
	return c, err
}

// startWith starts the process with a setup. Memory stays the caller's on an error.
func startWith(cfg *Config, memory *shm.Segment, x *setup) (*child, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "decoder"), os.NewFile(uintptr(fds[1]), "decoder")
	defer theirs.Close() // nothing happens when it is closed already
	conn, err := net.FileConn(mine)
	mine.Close()
	if err != nil {
		return nil, err
	}
	link, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("the socket is a %T", conn)
	}
	again, err := unix.FcntlInt(uintptr(memory.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = link.Close()
		return nil, fmt.Errorf("lend the shared memory: %w", err)
	}
	lent := os.NewFile(uintptr(again), "memory")
	defer lent.Close()
	c := &child{link: link, memory: memory, log: new(proc.FirstBytes), limit: cpuLimit(cfg.Limits), stuck: cfg.stuckLooks,
		ended: make(chan struct{}), in: make([]byte, maxAnswer+1)}
	c.cmd = osexec.Command(cfg.Command[0], cfg.Command[1:]...)
	c.cmd.Args[0] = os.Args[0] // its name, for people
	c.cmd.Env = append(environment(), cfg.Env...)
	c.cmd.Dir = "/"
	c.cmd.Stderr = c.log
	c.cmd.ExtraFiles = []*os.File{theirs, lent}             // linkFD, memoryFD
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	if x.NoNet {
		c.cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	}
	err = c.cmd.Start()
	theirs.Close() // so that the end of the process ends the connection
	if err != nil {
		_ = link.Close()
		return nil, fmt.Errorf("start %s: %w", cfg.Command[0], err)
	}
	go func() {
		_ = c.cmd.Wait() // how it ended is in ProcessState
		close(c.ended)
	}()
	if err := c.begin(x); err != nil {
		f := c.died()
		_ = link.Close()
		return nil, fmt.Errorf("the process did not become ready: %w (%s): %s", err, f.why, c.log.String())
	}
	return c, nil
}

// begin sends the setup and reads what is in force.
func (c *child) begin(x *setup) error {
	b, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if _, err := c.link.Write(b); err != nil {
		return err
	}
	b = make([]byte, maxSetup)
	for i := 0; ; i++ {
		_ = c.link.SetReadDeadline(time.Now().Add(look))
		n, err := c.link.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && i < startLooks {
			continue
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(b[:n], &c.state)
	}
}

// cpuLimit is the processor time of one request: a decoder that still obeys ends by itself after a third of it.
func cpuLimit(l prep.Limits) time.Duration {
	each := l.Timeout
	if each <= 0 {
		each = 20 * time.Second
	}
	return 3*each + time.Second
}

// ask has the child decode. The error is about the image. With a fault the child is gone, and says nothing about it.
func (c *child) ask(enc []byte, want prep.Want, dst []byte) (got prep.Area, f *fault, err error) {
	c.seq++
	r := request{seq: c.seq, stored: int64(len(enc)), pixels: int64(len(dst)), want: want}
	at := pixelsAt(r.stored)
	memory := c.memory.Bytes()
	copy(memory, enc)
	_ = c.link.SetWriteDeadline(time.Now().Add(time.Minute)) // the socket has room for a request
	if _, err := c.link.Write(r.append(c.out[:0])); err != nil {
		return got, c.died(), nil
	}
	n, f := c.wait()
	if f != nil {
		return got, f, nil
	}
	a, lie := parseAnswer(c.in[:n], &r)
	switch {
	case lie != nil:
		return got, c.kill(lie.Error()), nil
	case a.bad != nil:
		return got, nil, a.bad.Err()
	}
	copy(dst, memory[at:][:want.Bytes(a.got)])
	if used := at + r.pixels; used > keepShared {
		_ = c.memory.Punch(keepShared, used-keepShared)
	}
	return a.got, nil, nil
}

// wait reads an answer into c.in. It looks after a child that takes long.
func (c *child) wait() (n int, f *fault) {
	var begun, last time.Duration
	for looks, stuck := 0, 0; ; looks++ {
		_ = c.link.SetReadDeadline(time.Now().Add(look))
		n, err := c.link.Read(c.in)
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, c.died()
		}
		used, err := c.cpu()
		if err != nil {
			continue // it ends: the next read says so
		}
		if looks == 0 {
			begun, last = used, used
		}
		if stuck++; used > last {
			stuck, last = 0, used
		}
		why := ""
		switch {
		case used-begun > c.limit:
			why = fmt.Sprintf("it used more than %v of processor time", c.limit)
		case stuck >= c.stuck:
			why = fmt.Sprintf("it did nothing for %v", time.Duration(c.stuck)*look)
		default:
			continue
		}
		return 0, c.kill(why)
	}
}

// cpu is the processor time that the process has used.
func (c *child) cpu() (time.Duration, error) {
	var t unix.Timespec
	// the clock of a process: ~pid << 3 | CPUCLOCK_SCHED
	if err := unix.ClockGettime(int32(^c.cmd.Process.Pid)<<3|2, &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}

// gone reports whether the process has ended by itself.
func (c *child) gone() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// kill ends a process that does not do what it should.
func (c *child) kill(why string) *fault {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.ended
	return &fault{why: why}
}

// crashTime is how long a process that closed its socket may take to end.
const crashTime = 5 * time.Second

// died says what a process died of that closed its socket.
func (c *child) died() *fault {
	select {
	case <-c.ended:
	case <-time.After(crashTime):
		return c.kill("it ended the connection")
	}
	how, err := proc.Cause(c.cmd.ProcessState, c.log.String())
	if err != nil {
		return &fault{why: err.Error(), outside: true}
	}
	return &fault{why: how, said: c.log.String()}
}

// close ends the process, in order if it waits for a request, and gives its memory back.
func (c *child) close() {
	_ = c.link.Close()
	select {
	case <-c.ended:
	case <-time.After(crashTime):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
	c.memory.Release()
}
