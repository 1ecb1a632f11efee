package chaostest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"larder/internal/testenv"
	"larder/internal/testenv/steppedclock"
)

// process is a client in a process of its own.
type process struct {
	cmd *exec.Cmd
	in  io.Closer // it trains until that is closed
	err safeBuffer
	got atomic.Int64 // batches, as it says
	end chan error
}

func startClient(d *daemon, o order) *process {
	d.t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		d.t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), clientEnv+"="+string(b))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = &p.err
	p.cmd.Stdout = counter{&p.got}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		d.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	p.end = make(chan error, 1)
	go func() { p.end <- p.cmd.Wait() }()
	return p
}

// counter counts lines: a client prints one for each batch.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(strings.Count(string(b), "\n")))
	return len(b), nil
}

var _ io.Writer = counter{}

// TestClientIsStopped (R16): a client process is stopped (SIGSTOP) for up to LARDER_STOP_SECONDS, longer and shorter
// than its lease, in the middle of an epoch. Other clients continue meanwhile. When it wakes it continues, or gets
// the error that it is out; it never gets what is not its own. LARDER_STOPS is how many.
func TestClientIsStopped(t *testing.T) {
	stops, most := testenv.Count(t, "LARDER_STOPS", 1), testenv.Count(t, "LARDER_STOP_SECONDS", 1)
	r := seed(t)
	dir := images(t, 60, 24, 20)
	clock := steppedclock.Start(t)
	d := newDaemon(t, "--clock", clock.Address(), "--set", "jobs.lease=3s")
	d.must()
	others := train(d, specs(dir, "stop-"), 0)
	others.more(1)
	out, whole := 0, 0
	for n := range stops {
		spec := specs(dir, "stopped-")[n%3]
		b, err := protojson.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		p := startClient(d, order{Socket: d.socket, Spec: b, StepUS: 2000})
		want := int64(1 + r.IntN(10))
		eventually(t, "the client trains", func() bool { return p.got.Load() >= want || len(p.end) > 0 })
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatalf("%v: %v %s", err, <-p.end, p.err.String())
		}
		before := others.taken()
		for range r.IntN(most * 8) { // eighths of a second
			clock.Advance(time.Second / 8)
			others.more(1)
		}
		others.more(2) // with one that is stopped among them
		if others.taken() <= before {
			t.Error("no other client continued")
		}
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		_ = p.in.Close() // it may have ended
		err = <-p.end
		switch code := p.cmd.ProcessState.ExitCode(); {
		case code == 3:
			out++
		case err != nil:
			t.Fatalf("stop %d: %v: %s", n, err, p.err.String())
		default:
			whole++
		}
	}
	others.finish()
	figure(t, "%d clients stopped for up to %d s: %d continued to their end, %d got the error that they are out; "+
		"others read %d epochs", stops, most, whole, out, others.epochs())
}
