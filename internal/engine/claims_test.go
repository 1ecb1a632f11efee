package engine_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"larder/client"
	"larder/internal/engine"
	"larder/internal/journal"
	larderv1 "larder/proto/larder/v1"
)

// registrant is the body of a process that registers a job and never attaches. A byte on its standard input has it
// close its connection, another one open a new one and register again.
func registrant(socket, job, dir string) {
	for in := bufio.NewReader(os.Stdin); ; {
		c, err := client.Dial(context.Background(), socket)
		if err == nil {
			_, err = register(c, spec(job, dir, 4))
		}
		fmt.Println(err)
		_, _ = in.ReadByte()
		_ = c.Close()
		if _, err := in.ReadByte(); err != nil {
			return
		}
	}
}

// process is a registrant.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func (w *world) registrant(job, dir string) *process {
	w.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LARDER_TEST_REGISTRANT="+w.socket, "LARDER_TEST_JOB="+job, "LARDER_TEST_DIR="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	p := &process{w.t.(*testing.T), cmd, in, bufio.NewReader(out)}
	w.t.Cleanup(p.kill)
	p.registered()
	return p
}

// registered waits until it has registered its job.
func (p *process) registered() {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); line != "<nil>\n" {
		p.t.Fatal(line, err)
	}
}

func (p *process) byte() {
	p.t.Helper()
	if _, err := p.in.Write([]byte{'\n'}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// is waits until a job is in that state, which it takes without a clock.
func (w *world) is(job string, s larderv1.JobState) {
	w.t.Helper()
	var j *larderv1.DescribeJobResponse
	eventually(w.t, job+" is "+s.String(), func() (ok bool) {
		var err error
		if j, err = w.engine.DescribeJob(w.t.Context(), &larderv1.DescribeJobRequest{Name: job}); err != nil {
			w.t.Fatal(err)
		}
		return j.GetJob().GetState() == s
	})
}

const (
	joining = larderv1.JobState_JOB_STATE_JOINING
	suspect = larderv1.JobState_JOB_STATE_SUSPECT
)

// A job waits for the processes that registered it, whatever becomes of their sessions, and for one that was registered
// otherwise without an end. After a restart of the daemon, too.
func TestAJobWaitsForItsRegistrant(t *testing.T) {
	dir, fs := folder(t, 20), journal.NewMemFS()
	w := onDisk(t, fs)
	if _, err := w.engine.RegisterJob(t.Context(), &larderv1.RegisterJobRequest{Spec: spec("waits", dir, 4)}); err != nil {
		t.Fatal(err)
	}
	a, b, x := w.registrant("left", dir), w.registrant("left", dir), w.registrant("cut", dir)
	y, z := w.registrant("waits", dir), w.registrant("attached", dir)
	tr := w.train(spec("attached", dir, 4), 0)
	a.kill()
	y.kill()
	z.kill()
	sessions := func() int { n, _ := w.server.Sessions(); return n }
	eventually(t, "three sessions are over", func() bool { return sessions() == 3 })
	x.byte() // its connection is cut, and it lives
	eventually(t, "one more is", func() bool { return sessions() == 2 })
	w.is("left", joining)
	w.is("cut", joining)
	b.kill()
	w.is("left", suspect)
	again := w.registrant("left", dir)
	w.is("left", joining)
	again.kill()
	w.is("left", suspect)
	w.is("cut", joining)
	w.is("waits", joining)
	w.is("attached", larderv1.JobState_JOB_STATE_LIVE)
	tr.detach()

	w2 := onDisk(t, fs.Clone())
	w2.is("left", suspect)
	w2.is("cut", joining)
	w2.is("waits", joining)
	x.byte() // it speaks to the old one
	x.registered()
	x.kill()
	w2.is("cut", suspect)
	w.is("cut", suspect)
}

// Registrants that are killed leave no place taken.
func TestKilledRegistrantsTakeNoPlace(t *testing.T) {
	dir := folder(t, 20)
	w := serve(t, func(c *engine.Config) { c.Jobs.Max, c.Jobs.Lease = 2, time.Hour })
	for i := range 4 {
		p := w.registrant(fmt.Sprint("killed", i), dir)
		p.kill()
		w.is(fmt.Sprint("killed", i), suspect)
	}
	exactly(t, "one more", w.train(spec("more", dir, 4), 0).must(0).ids, all(20))
}
