package crashguard

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/prep"
	"larder/internal/proc"
)

// Charge is what stored bytes are tried for: everything that a worker may do with them.
type Charge struct {
	Ops    []prep.OpSpec
	Record bool // the ops are on the images of a record
	Limits prep.Limits
	Key    prep.RandKey
}

// trials tries suspects in a process of its own, which runs [Try]. One process serves many trials; when it dies, the
// next trial starts another one. Its processor time and memory are bounded, and it ends by itself when this process
// does.
type trials struct {
	command []string // starts the process; empty = no trial is possible

	mu    sync.Mutex
	child *child
	kept  bool // the process waits for the next trial
}

// thisProgram is the running program, also when its file was replaced meanwhile.
const thisProgram = "/proc/self/exe"

// hangs stands in the place of a signal when the decoder was ended because it used up its time.
const hangs = "hang"

// exitLate is the exit code of a process whose decoder used up its time.
const exitLate = 3

// trialWall is how long a process may neither end nor use its processor time. Such a trial has no result.
const trialWall = 5 * time.Minute

// try says how the process dies that prepares a sample, when it dies twice: the name of a signal, an exit code, or
// hangs. Empty: it does not. The error says why that cannot be known. stderr is what the process wrote.
func (c *trials) try(ctx context.Context, x Charge, enc []byte) (how, stderr string, err error) {
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
				if !c.kept {
					c.end()
				}
				return "", "", nil
			}
		}
	}
}

// keep says whether the process is to wait for the next trial, which saves a start for each of many.
func (c *trials) keep(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept = yes; !yes {
		c.end()
	}
}

// child is one process that runs [Try].
type child struct {
	cmd *osexec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log *proc.FirstBytes
}

// end lets the process end; c.mu is held.
func (c *trials) end() {
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

func (c *trials) start() error {
	if c.child != nil {
		return nil
	}
	cmd := osexec.Command(c.command[0], c.command[1:]...)
	if c.command[0] == thisProgram {
		cmd.Args[0] = os.Args[0] // its name, for people
	}
	// MALLOC_PERTURB_ fills memory that was freed, or not written yet: a decoder that reads it crashes here rather than
	// later.
	cmd.Env = append(os.Environ(), "MALLOC_PERTURB_=165", "GOTRACEBACK=single", "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	k := &child{cmd: cmd, log: new(proc.FirstBytes)}
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
func (c *trials) once(ctx context.Context, x Charge, enc []byte) (how, stderr string, err error) {
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
		err = k.expect(begun)
	}
	if err != nil {
		_ = k.cmd.Process.Kill() // it may be something else than Try
		c.end()
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		err = fmt.Errorf("the process for trials ended before it began: %w (%v)", err, k.cmd.ProcessState)
		return "", k.log.String(), err
	}
	if k.expect(done) == nil {
		return "", "", nil
	}
	c.end()
	if err := ctx.Err(); err != nil {
		return "", "", err
	}
	if k.cmd.ProcessState.ExitCode() == exitLate {
		return hangs, k.log.String(), nil
	}
	how, err = proc.Cause(k.cmd.ProcessState, k.log.String())
	return how, k.log.String(), err
}

// The process answers each charge with these lines.
const (
	begun = "begun\n"
	done  = "done\n"
)

func (k *child) send(x Charge, enc []byte) error {
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

func (k *child) expect(word string) error {
	s, err := k.out.ReadString('\n')
	if err == nil && s != word {
		err = fmt.Errorf("it says %.40q", s)
	}
	return err
}

// Try is the process for trials: it prepares what it reads from in until that ends. See [Serve].
func Try(in io.Reader, out io.Writer) error { return Serve(in, out, Charge.Prepare) }

// Serve reads charges and stored bytes from in, one after the other, and passes each to prepare. It reports on out
// that it begins and that it is done; whether the image was good does not matter. It returns when in ends, and exits
// the process when prepare used up its processor time.
func Serve(in io.Reader, out io.Writer, prepare func(Charge, []byte)) error {
	r := bufio.NewReader(in)
	for first := true; ; first = false {
		x, enc, err := readCharge(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
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
		survive(func() { prepare(x, enc) })
		close(over)
		if _, err := io.WriteString(out, done); err != nil {
			return err
		}
	}
}

// survive recovers a panic, as a worker does.
func survive(f func()) {
	defer func() { _ = recover() }()
	f()
}

// readCharge returns io.EOF when there is none.
func readCharge(r io.Reader) (x Charge, enc []byte, err error) {
	var n [16]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return x, nil, err
	}
	text, size := binary.LittleEndian.Uint64(n[:]), binary.LittleEndian.Uint64(n[8:])
	if text > 1<<24 || size > 1<<40 {
		return x, nil, fmt.Errorf("a charge of %d bytes about %d", text, size)
	}
	b := make([]byte, text)
	enc = make([]byte, size)
	for _, p := range [][]byte{b, enc} {
		if _, err := io.ReadFull(r, p); err != nil {
			return x, nil, fmt.Errorf("a charge that is cut: %s", err.Error()) // io.EOF would say that there is none
		}
	}
	err = json.Unmarshal(b, &x)
	return x, enc, err
}

// trialTime is the processor time of a trial: the decoder ends by itself after a third of it, if it ends by itself.
func trialTime(l prep.Limits) time.Duration {
	each := l.Timeout
	if each <= 0 {
		each = 20 * time.Second
	}
	return 3*each + time.Second
}

// watch ends the process when it uses more processor time than limit before over is closed.
func watch(over <-chan struct{}, limit time.Duration) {
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
			if used()-begin > limit {
				fmt.Fprintf(os.Stderr, "the decoder has had %v of processor time\n", limit)
				os.Exit(exitLate)
			}
		}
	}
}

// limitMemory bounds what this process takes beyond what it has, for an image of up to so many decoded bytes. It is
// best effort: without it the memory of the machine is the bound.
func limitMemory(image int64) {
	if image <= 0 {
		image = 1 << 30
	}
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "VmData:" {
			if has, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				n := uint64(has<<10 + 1<<30 + 4*image)
				_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: n, Max: n})
			}
		}
	}
}

// Prepare does everything that a worker may do with stored bytes.
func (x Charge) Prepare(enc []byte) {
	if x.Record {
		x.prepareRecord(enc)
		return
	}
	r, err := prep.ParseRecipe(x.Ops)
	if err != nil {
		return
	}
	w := prep.NewWorker(x.Limits)
	defer w.Close()
	for _, file := range prep.Files(enc) {
		x.prepareImage(w, r, file)
	}
}

// prepareRecord tries each file of a record as its image: which one is that does not matter.
func (x Charge) prepareRecord(enc []byte) {
	whole, err := prep.ParseRecipe(nil)
	runs, errOfRuns := prep.ParseRuns(x.Ops)
	if err != nil || errOfRuns != nil {
		return
	}
	w := prep.NewWorker(x.Limits)
	defer w.Close()
	for _, file := range prep.Files(enc) {
		img, err := w.Decode(whole, file, func(n int) ([]byte, error) { return make([]byte, n), nil })
		for i := 0; err == nil && i < len(runs); i++ {
			img, err = x.run(w, runs[i], img)
		}
	}
}

// run is the image behind the ops of a run; what is no image any more ends the work.
func (x Charge) run(w *prep.Worker, r *prep.Recipe, img prep.Image) (prep.Image, error) {
	width, height, n, err := w.FieldSize(r, r.Whole(), x.Key, img.W, img.H)
	if err != nil {
		return img, err
	}
	dst := make([]byte, n)
	err = w.FieldInto(r, r.Whole(), img, x.Key, dst)
	if err == nil && n != 3*width*height {
		err = errors.New("the image is cast")
	}
	return prep.Image{Pix: dst, W: width, H: height, C: 3}, err
}

func (x Charge) prepareImage(w *prep.Worker, r *prep.Recipe, enc []byte) {
	room := func(n int) ([]byte, error) { return make([]byte, n), nil }
	_, _ = w.Decode(r, enc, room)
	img, err := w.DecodeCompact(r, enc, room)
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
