package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/client"
	"larder/internal/clock/stepped"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/testenv"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// stopAfter is how many samples a trainee has had when it waits to be stopped.
const stopAfter = 28

// trainee is the test binary as a training process of its own: it goes through epochs of a job, says of every sample
// what it got and whether it was still the same at the end of the step, and in the end why it ended. In one step it
// waits for a word of its parent, who stops it meanwhile.
func trainee(socket, job string) {
	ctx := context.Background()
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	reason := func(err error) string {
		if f, ok := errors.AsType[*errs.Error](err); ok {
			return string(f.Reason)
		}
		return err.Error()
	}
	c, err := client.Dial(ctx, socket)
	if err != nil {
		say("end %s", reason(err))
		return
	}
	st, err := c.Attach(ctx, &larderv1.AttachRequest{Job: job})
	if err != nil {
		say("end %s", reason(err))
		return
	}
	first, had := st.Info().GetNextEpoch(), 0
	for e := first; e < first+3; e++ {
		if err := st.StartEpoch(ctx, e); err != nil {
			say("end %s", reason(err))
			return
		}
		for {
			b, err := st.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				say("end %s", reason(err))
				return
			}
			sums := func() (out []uint64) {
				for i := range b.Index() {
					pix, _, _, _ := b.Image(i)
					out = append(out, xxhash.Sum64(pix))
				}
				return out
			}
			before := sums()
			if had == stopAfter {
				say("ready")
				_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
			}
			had += len(before)
			runtime.Gosched() // the step
			if !slices.Equal(before, sums()) {
				say("end ALTERED")
				return
			}
			for i, id := range b.Index() {
				say("got %d %d %016x", e, id, before[i])
			}
			b.Release()
		}
	}
	_ = st.Detach(ctx)
	say("end well")
}

// TestStoppedClients: real training processes are stopped while the clock passes (SIGSTOP, SIGCONT). Those that were
// stopped for less than the timeout have every sample of every epoch once. The others lost their rank: another client
// had it meanwhile, with all of an epoch, and they hear STALE; what they had got is what it should be, and what they
// held in their hands was not written to. A neighbour that trains all the while has everything. LARDER_STOPS is how
// many, LARDER_STOP_SECONDS the timeout.
func TestStoppedClients(t *testing.T) {
	const n, atOnce = 60, 4
	stops := testenv.Count(t, "LARDER_STOPS", 6)
	timeout := time.Duration(testenv.Count(t, "LARDER_STOP_SECONDS", 3)) * time.Second
	dir := folder(t, n)
	clock := stepped.New(time.Unix(1e9, 0))
	w := serve(t, func(c *engine.Config) { c.Jobs.IdleTimeout, c.Clock = timeout, clock })
	fixed := recipe(op("Resize", map[string]any{"size": []any{16.0, 16.0}}))
	want := map[int64]string{}
	before := w.train(spec("before", dir, 6, fixed), 0)
	for id, pix := range before.must(0).pixels {
		want[id] = fmt.Sprintf("%016x", xxhash.Sum64(pix))
	}
	before.detach()

	neighbour := w.train(spec("neighbour", dir, 5, fixed), 0)
	over, trained := make(chan struct{}), make(chan error, 1)
	var epochs atomic.Int64
	go func() { trained <- neighbour.trainUntil(over, n, &epochs) }()
	// pass lets time pass in parts, in each of which the neighbour trains: it is never idle.
	pass := func(d time.Duration) {
		for part := timeout / 8; d > 0; d -= part {
			clock.Advance(min(part, d))
			from := epochs.Load()
			eventually(t, "the neighbour trains", func() bool { return epochs.Load() > from+1 || len(trained) > 0 })
		}
	}

	rnd := xrand.New(5)
	var mu sync.Mutex
	ends := map[string]int{}
	for first := 0; first < stops; first += atOnce {
		pause := time.Duration(1 + rnd.IntN(int(timeout)/2)) // of those that keep their rank
		count := min(atOnce, stops-first)
		stopped, goOn := make(chan struct{}, count), [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		var wait [2]sync.WaitGroup
		for i := range count {
			lose := i % 2
			wait[lose].Go(func() {
				s := &stop{name: fmt.Sprint("stopped", first+i), loses: lose == 1, goOn: goOn[lose],
					stopped: sync.OnceFunc(func() { stopped <- struct{}{} })}
				defer s.stopped()
				end, err := w.stopOne(spec(s.name, dir, 4, fixed), s, want)
				if err != nil {
					t.Errorf("stop %d, of %s: %v", first+i, pause, err)
				}
				mu.Lock()
				ends[end]++
				mu.Unlock()
			})
		}
		for range count {
			<-stopped
		}
		pass(pause)
		close(goOn[0])
		wait[0].Wait()
		pass(timeout + timeout/8 - pause)
		close(goOn[1])
		wait[1].Wait()
	}
	close(over)
	if err := <-trained; err != nil {
		t.Error(err)
	}
	neighbour.detach()
	if ends["end STALE"] != stops/2 || ends["end well"] != stops-stops/2 {
		t.Errorf("%v", ends)
	}
	t.Logf("nightly: %d stops, half of them for longer than %s: %v; the neighbour had %d epochs", stops, timeout, ends,
		epochs.Load())
}

// trainUntil trains whole epochs of n samples until over is closed.
func (tr *trainer) trainUntil(over chan struct{}, n int, epochs *atomic.Int64) error {
	for e := uint32(0); ; e++ {
		s, err := tr.epoch(e)
		if err != nil {
			return err
		}
		if got := slices.Compact(slices.Sorted(slices.Values(s.ids))); len(got) != n || len(s.ids) != n {
			return fmt.Errorf("epoch %d of the neighbour: %d samples, %d of them distinct", e, len(s.ids), len(got))
		}
		epochs.Add(1)
		select {
		case <-over:
			return nil
		default:
		}
	}
}

// stop is how a training process is stopped.
type stop struct {
	name    string
	loses   bool          // its rank, before it continues
	stopped func()        // called when it is stopped, or has failed
	goOn    chan struct{} // closed when it may continue
}

// stopOne runs one training process and stops it. It returns its last word.
func (w *world) stopOne(spec *larderv1.JobSpec, s *stop, want map[int64]string) (string, error) {
	n := len(want)
	c, err := client.Dial(context.Background(), w.socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := register(c, spec); err != nil {
		return "", err
	}
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LARDER_TEST_TRAINEE="+w.socket, "LARDER_TEST_JOB="+s.name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	epochs, end := map[string][]string{}, ""
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		line := scan.Text()
		if strings.HasPrefix(line, "end") {
			end = line
			break
		}
		if line == "ready" {
			if err := w.stopAndGo(cmd.Process, s, n); err != nil {
				return "", err
			}
			if _, err := io.WriteString(in, "go\n"); err != nil {
				return "", err
			}
			continue
		}
		var e, id int64
		var sum string
		if _, err := fmt.Sscanf(line, "got %d %d %s", &e, &id, &sum); err != nil {
			return "", fmt.Errorf("it says %q", line)
		}
		if sum != want[id] {
			return "", fmt.Errorf("sample %d of epoch %d is not what it should be", id, e)
		}
		epochs[fmt.Sprint(e)] = append(epochs[fmt.Sprint(e)], fmt.Sprint(id))
	}
	if err := scan.Err(); err != nil {
		return "", err
	}
	for e, ids := range epochs {
		slices.Sort(ids)
		distinct := len(slices.Compact(slices.Clone(ids)))
		if distinct != len(ids) || end == "end well" && len(ids) != n {
			return end, fmt.Errorf("epoch %s: %d samples, %d of them distinct", e, len(ids), distinct)
		}
	}
	if end == "end well" && len(epochs) != 3 {
		return end, fmt.Errorf("%d epochs", len(epochs))
	}
	return end, nil
}

func (w *world) stopAndGo(p *os.Process, s *stop, n int) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	s.stopped()
	<-s.goOn
	if s.loses {
		if err := w.succeed(s.name, n); err != nil {
			return err
		}
	}
	return p.Signal(syscall.SIGCONT)
}

// succeed takes the rank of a client that has lost it, and trains for an epoch.
func (w *world) succeed(name string, n int) error {
	c, err := client.Dial(context.Background(), w.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	var st *client.Stream
	eventually(w.t, "the rank of a client that is idle is free", func() bool {
		st, err = c.Attach(context.Background(), &larderv1.AttachRequest{Job: name})
		return !errs.Is(err, errs.RankHeld)
	})
	if err != nil {
		return fmt.Errorf("take the rank over: %w", err)
	}
	if inc := st.Info().GetIncarnation(); inc != 2 {
		return fmt.Errorf("incarnation %d follows 1", inc)
	}
	tr := &trainer{t: w.t, conn: c, st: st}
	s, err := tr.epoch(st.Info().GetNextEpoch())
	if err != nil {
		return fmt.Errorf("the successor: %w", err)
	}
	if got := slices.Compact(slices.Sorted(slices.Values(s.ids))); len(got) != n || len(s.ids) != n {
		return fmt.Errorf("the successor has %d samples, %d of them distinct", len(s.ids), len(got))
	}
	return st.Detach(context.Background())
}
