package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"larder/bench/measure"
	"larder/bench/py"
	"larder/internal/errs"
)

// Torch lets jobs really train: processes of a Python that can import torch and larder, in place of clients that sleep.
type Torch struct {
	Python  string
	Threads int // of torch in each process; 0 = 1
}

// Check returns why this Python cannot train: UNSUPPORTED, with its own words.
func (t *Torch) Check(ctx context.Context, s *Setup) error {
	if s.Live.Kill > 0 {
		return errs.New(errs.Unsupported, "kill", "leave kill out, or --torch", "the daemon of jobs that really train is "+
			"not killed")
	}
	for i := range s.World.Jobs {
		if j := &s.World.Jobs[i]; j.Ranks > 1 || j.Leave > 0 {
			return errs.New(errs.Unsupported, j.Name, "leave ranks and leave out, or --torch",
				"job %s has ranks or leaves, which jobs that train do not", j.Name)
		}
	}
	cmd := exec.CommandContext(ctx, t.Python, "-c", "import torch, larder")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	why := lines[len(lines)-1]
	if why == "" {
		why = err.Error()
	}
	return errs.New(errs.Unsupported, t.Python, "name a Python with torch and larder: --python PATH, PYTHONPATH=python "+
		"in a source tree", "%s cannot train: %s", t.Python, why)
}

// trained is one line of train.py.
type trained struct {
	Event  string   `json:"event"`
	Epoch  uint32   `json:"epoch"`
	Waited float64  `json:"waited"` // seconds
	Took   float64  `json:"took"`
	IDs    []uint32 `json:"ids"`
}

// collect enters an event of job number into the measurement.
func (t *trained) collect(c *measure.Collector, number int, at time.Duration, dropped int) {
	switch t.Event {
	case "begin":
		c.Begin(number, at, t.Epoch)
	case "got":
		c.Batch(number, at, t.Epoch, time.Duration(t.Waited*float64(time.Second)), t.IDs)
	case "step":
		c.Step(number, time.Duration(t.Took*float64(time.Second)))
	case "end":
		c.End(number, at, t.Epoch, 0, dropped)
	}
}

// train is a job as a process that trains.
func (r *running) train(ctx context.Context, i int) error {
	s := r.s
	j, l := &s.World.Jobs[i], &s.Live.Jobs[i]
	share := "none"
	if j.Share {
		share = "augmented"
	}
	threads := max(1, s.Torch.Threads)
	spec, err := json.Marshal(map[string]any{"dataset": s.URI, "batch": j.Batch, "shuffle": j.Order != "",
		"order": j.Order, "seed": j.Seed, "subset": l.Expr, "drop_last": j.DropLast, "share": share,
		"prefetch": j.Prefetch, "epochs": j.Epochs, "job": j.Name, "socket": r.socket, "crop": l.Crop, "classes": 10,
		"threads": threads})
	if err != nil {
		return fmt.Errorf("write to job %s what to train: %w", j.Name, err)
	}
	script := filepath.Join(s.dir, "train.py")
	if err := os.WriteFile(script, py.Train, 0o600); err != nil {
		return errs.New(errs.ResourceExceeded, script, "set TMPDIR to a folder that can be written",
			"write the training script").Because(err)
	}
	cmd := exec.CommandContext(ctx, s.Torch.Python, script)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start job %s: %w", j.Name, err)
	}
	defer in.Close()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start job %s: %w", j.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return errs.New(errs.Unsupported, s.Torch.Python, "name a Python with --python PATH", "start job %s", j.Name).
			Because(err)
	}
	_, err = in.Write(append(spec, '\n'))
	number := -1
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for err == nil && lines.Scan() {
		var t trained
		if err = json.Unmarshal(lines.Bytes(), &t); err != nil {
			err = fmt.Errorf("job %s wrote %.100q: %w", j.Name, lines.Bytes(), err)
			_ = cmd.Cancel()
			break
		}
		if t.Event == "ready" {
			if err = r.together(ctx, j.Start); err == nil {
				_, err = in.Write([]byte("go\n"))
			}
			continue
		}
		r.record(func(c *measure.Collector, at time.Duration) {
			if number < 0 {
				number = c.Register(at, s.World.Demand(i))
			}
			t.collect(c, number, at, j.Spec().Dropped())
		})
	}
	ended := cmd.Wait()
	r.mu.Lock() // its end was reported with that of its last epoch: taking an interpreter down is no part of the training
	r.children += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	r.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		err = ended
	}
	if err != nil {
		text := strings.TrimSpace(said.String())
		return errs.New(errs.Internal, j.Name, "its last words: "+text[max(0, len(text)-500):], "job %s failed", j.Name).
			Because(err)
	}
	return nil
}

// together waits until all processes can begin, which starts the clock, and then for the start of this one: imports are
// no part of the training.
func (r *running) together(ctx context.Context, start time.Duration) error {
	r.mu.Lock()
	if r.ready++; r.ready == len(r.s.World.Jobs) {
		r.began = time.Now()
		close(r.start)
	}
	r.mu.Unlock()
	select {
	case <-r.start:
		return r.wait(ctx, start)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// LearnSteps gives the simulated jobs the step times that were measured: real training takes what it takes.
func (s *Setup) LearnSteps(runs []*measure.Run) {
	for i := range s.World.Jobs {
		j := &s.World.Jobs[i]
		sum, batches := 0.0, uint64(0)
		for _, r := range runs {
			for k := range r.Jobs {
				if r.Jobs[k].Name == j.Name {
					sum, batches = sum+r.Jobs[k].Stepping, batches+r.Jobs[k].Batches
				}
			}
		}
		if batches > 0 {
			j.Step, j.Jitter, j.Phases = time.Duration(sum/float64(batches)*float64(time.Second)), 0, nil
		}
	}
}
