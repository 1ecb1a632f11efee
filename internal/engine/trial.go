package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/prep"
)

// charge is what a suspect is tried for: everything that a worker may do with stored bytes.
type charge struct {
	Ops    []prep.OpSpec
	Limits prep.Limits
	Key    prep.RandKey
}

// court tries suspects in a process of its own, which runs Try: one for many of them, and another one when it dies. Its processor time and memory are bounded;
// it ends by itself when this process does.
type court struct {
	command []string // what it runs; empty = there is no trial

	mu    sync.Mutex
	child *child
	stays bool // it waits for the next trial
}

// thisProgram is the running file, also when there is another one in its place by now.
const thisProgram = "/proc/self/exe"

// hangs stands for a signal where the decoder was ended because it had had its time.
const hangs = "hang"

// exitLate is the exit code of a process whose decoder has had its time.
const exitLate = 3

// trialWall is when a process is given up that neither ends nor uses its processor time. Nothing is known then.
const trialWall = 5 * time.Minute

// try says how the process dies that prepares a sample, when it does so twice: by the name of a signal, or hangs. Empty: it does not. The error says why that cannot be
// known. stderr is what it wrote.
func (c *court) try(ctx context.Context, x charge, enc []byte) (how, stderr string, err error) {
	if len(c.command) == 0 {
		return "", "", errors.New("there is no command for it")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for crashes, sound, failed := 0, 0, 0; ; {
		how, stderr, err = c.once(ctx, x, enc)
		switch {
		case err != nil:
			if failed++; failed == 2 || ctx.Err() != nil {
				return "", stderr, err
			}
		case how != "":
			if crashes++; crashes == 2 {
				return how, stderr, nil
			}
		default:
			if sound++; sound > crashes {
				if !c.stays {
					c.end()
				}
				return "", "", nil
			}
		}
	}
}

// stay says whether the process is to wait for the next trial, for as long as there are many.
func (c *court) stay(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stays = yes; !yes {
		c.end()
	}
}

// child is one process that runs Try.
type child struct {
	cmd *osexec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log *head
}

// end lets the process go; c.mu is held.
func (c *court) end() {
	if k := c.child; k != nil {
		c.child = nil
		k.wait()
	}
}

// wait ends the process in order, or waits for one that died.
func (k *child) wait() {
	_ = k.in.Close()
	_, _ = io.Copy(io.Discard, k.out)
	_ = k.cmd.Wait() // how it ended is in ProcessState
}

func (c *court) start() error {
	if c.child != nil {
		return nil
	}
	cmd := osexec.Command(c.command[0], c.command[1:]...)
	// Memory that was freed, or not written yet, has nonsense in it: a decoder that reads it is seen rather than lucky.
	if c.command[0] == thisProgram {
		cmd.Args[0] = os.Args[0] // its name, for people
	}
	cmd.Env = append(os.Environ(), "MALLOC_PERTURB_=165", "GOTRACEBACK=single", "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	k := &child{cmd: cmd, log: new(head)}
	cmd.Stderr = k.log
	var err error
	if k.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	k.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.child = k
	return nil
}

// once is one trial.
func (c *court) once(ctx context.Context, x charge, enc []byte) (how, stderr string, err error) {
	if err := ctx.Err(); err != nil {
		return "", "", err
	}
	if err := c.start(); err != nil {
		return "", "", fmt.Errorf("start %s: %w", c.command[0], err)
	}
	k := c.child
	wall := time.AfterFunc(trialWall, func() { _ = k.cmd.Process.Kill() })
	defer wall.Stop()
	defer context.AfterFunc(ctx, func() { _ = k.cmd.Process.Kill() })()
	err = k.send(x, enc)
	if err == nil {
		err = k.hear(begun)
	}
	if err != nil {
		_ = k.cmd.Process.Kill() // it may be something else than Try
		c.end()
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		return "", k.log.String(), fmt.Errorf("the process for trials ended before it began: %w (%v)", err, k.cmd.ProcessState)
	}
	if k.hear(done) == nil {
		return "", "", nil
	}
	c.end()
	if err := ctx.Err(); err != nil {
		return "", "", err
	}
	how, err = cause(k.cmd.ProcessState, k.log.String())
	return how, k.log.String(), err
}

// What the process says.
const (
	begun = "begun\n"
	done  = "done\n"
)

func (k *child) send(x charge, enc []byte) error {
	b, err := json.Marshal(x)
	if err != nil {
		return err
	}
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(b)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(enc)))
	for _, p := range [][]byte{head, b, enc} {
		if _, err := k.in.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func (k *child) hear(word string) error {
	s, err := k.out.ReadString('\n')
	if err == nil && s != word {
		err = fmt.Errorf("it says %.40q", s)
	}
	return err
}

// fatal are the signals that a process gets for what it did itself.
var fatal = []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSYS}

var signalNames = regexp.MustCompile(`\bSIG[A-Z]+\b`)

// cause is what a process died of while it decoded. Go's runtime ends a process that had such a signal with a trace and an exit code. That there was no memory, or somebody ended
// it, says nothing about the image.
func cause(s *os.ProcessState, stderr string) (string, error) {
	ws, ok := s.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return "", fmt.Errorf("it ended with %v", s)
	case ws.Signaled() && slices.Contains(fatal, ws.Signal()):
		return unix.SignalName(ws.Signal()), nil
	case ws.Signaled():
		return "", fmt.Errorf("it was ended by %s", unix.SignalName(ws.Signal()))
	case ws.ExitStatus() == exitLate:
		return hangs, nil
	}
	for _, name := range signalNames.FindAllString(stderr, -1) {
		if slices.Contains(fatal, unix.SignalNum(name)) {
			return name, nil
		}
	}
	for _, text := range []string{"out of memory", "cannot allocate memory", "failed to create new OS thread"} {
		if strings.Contains(stderr, text) {
			return "", errors.New("it had no memory")
		}
	}
	return "exit " + strconv.Itoa(ws.ExitStatus()), nil
}

// head keeps the beginning of what a process writes.
type head struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const mostSaid = 8 << 10

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b.Write(p[:min(len(p), mostSaid-h.b.Len())])
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

// beforeTrial is for tests, which have no image that crashes.
var beforeTrial func(enc []byte)

// Try is what the process for trials does: it reads charges and stored bytes, one after the other, and does with them everything that a worker may do. It says that it
// begins and that it is done; whether the image was good does not matter. It ends when in does, and exits when a decoder has had its time.
func Try(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	for first := true; ; first = false {
		var n [16]byte
		if _, err := io.ReadFull(r, n[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		text, size := binary.LittleEndian.Uint64(n[:]), binary.LittleEndian.Uint64(n[8:])
		if text > 1<<24 || size > 1<<40 {
			return fmt.Errorf("a charge of %d bytes about %d", text, size)
		}
		b := make([]byte, text)
		enc := make([]byte, size)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if _, err := io.ReadFull(r, enc); err != nil {
			return err
		}
		var x charge
		if err := json.Unmarshal(b, &x); err != nil {
			return err
		}
		if first {
			limitMemory(x.Limits.MaxBytes)
			_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // rather this process than the daemon
		}
		if _, err := io.WriteString(out, begun); err != nil {
			return err
		}
		over := make(chan struct{})
		go watch(over, trialTime(x.Limits))
		x.attempt(enc)
		close(over)
		if _, err := io.WriteString(out, done); err != nil {
			return err
		}
	}
}

// trialTime is the processor time of a trial: the decoder ends by itself after a third of it, if it ends by itself.
func trialTime(l prep.Limits) time.Duration {
	each := l.Timeout
	if each <= 0 {
		each = 20 * time.Second
	}
	return 3*each + time.Second
}

// watch ends the process when it has used so much processor time before over is closed.
func watch(over <-chan struct{}, most time.Duration) {
	used := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // it does not fail
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begin := used()
	look := time.NewTicker(50 * time.Millisecond)
	for {
		select {
		case <-over:
			look.Stop()
			return
		case <-look.C:
			if used()-begin > most {
				fmt.Fprintf(os.Stderr, "the decoder has had %v of processor time\n", most)
				os.Exit(exitLate)
			}
		}
	}
}

// limitMemory bounds what this process takes beyond what it has, for an image that may take most. Best effort: without a bound there is the one of the machine.
func limitMemory(most int64) {
	if most <= 0 {
		most = 1 << 30
	}
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "VmData:" {
			if has, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				n := uint64(has<<10 + 1<<30 + 4*most)
				_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: n, Max: n})
			}
		}
	}
}

// attempt does what a worker may do with stored bytes. A panic is one that a worker lives through.
func (x charge) attempt(enc []byte) {
	defer func() { _ = recover() }()
	if beforeTrial != nil {
		beforeTrial(enc)
	}
	r, err := prep.ParseRecipe(x.Ops)
	if err != nil {
		return
	}
	w := prep.NewWorker(x.Limits)
	defer w.Close()
	room := func(n int) ([]byte, error) { return make([]byte, n), nil }
	img, err := w.Decode(r, enc, room)
	if err == nil {
		_, err = w.Augment(r, img, x.Key, room)
	}
	if r.Output().Ragged {
		return
	}
	dst := make([]byte, r.Output().SampleBytes)
	if err == nil {
		_ = w.AugmentInto(r, img, x.Key, dst)
	}
	_ = w.DecodeInto(r, enc, x.Key, dst) // whatever became of the whole image: it decodes a part of it
}
