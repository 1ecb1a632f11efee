package chaostest

import (
	"context"
	"testing"
	"time"

	"larder/client"
	"larder/internal/testenv/steppedclock"
	larderv1 "larder/proto/larder/v1"

	"google.golang.org/protobuf/encoding/protojson"
)

// TestTimesOfADaemonPassByItsClock: the lease of a job whose client died, and the idle end of a daemon, come when the
// test steps the clock so far, and not before, however much real time passes.
func TestTimesOfADaemonPassByItsClock(t *testing.T) {
	const lease, idle = time.Hour, 3 * time.Hour
	clock := steppedclock.Start(t)
	d := newDaemon(t, "--clock", clock.Address(), "--idle-exit", idle.String(), "--set", "jobs.lease="+lease.String())
	d.must()
	clock.Await(1)
	fds, _ := d.holds()

	spec := specs(images(t, 30, 24, 20), "clock-")[0]
	b, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	p := startClient(d, order{Socket: d.socket, Spec: b})
	eventually(t, "the client trains", func() bool { return p.got.Load() > 0 || len(p.end) > 0 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatalf("%v: %v %s", err, <-p.end, p.err.String())
	}
	<-p.end
	alone := func() {
		t.Helper()
		eventually(t, "the daemon has seen the end of every client", func() bool { n, _ := d.holds(); return n <= fds })
	}
	eventually(t, "the daemon has seen the end of its client", func() bool {
		return d.jobState(spec.GetName()) == larderv1.JobState_JOB_STATE_SUSPECT
	})
	clock.Advance(lease - 1)
	if s := d.jobState(spec.GetName()); s != larderv1.JobState_JOB_STATE_SUSPECT {
		t.Errorf("before the end of its lease the job is %v", s)
	}
	clock.Advance(1)
	eventually(t, "the job ends with its lease", func() bool {
		return d.jobState(spec.GetName()) == larderv1.JobState_JOB_STATE_DEAD
	})

	for range 2 { // who asks is a client: the idle time begins after it
		alone()
		clock.Advance(idle - time.Second)
		d.jobState(spec.GetName())
	}
	alone()
	clock.Advance(idle - time.Second)
	clock.Advance(time.Second)
	clock.Advance(time.Second) // it looks once a second
	<-d.ended
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %d: %s", code, d.log.String())
	}
}

func (d *daemon) dial() *client.Conn {
	d.t.Helper()
	c, err := client.Dial(context.Background(), d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	return c
}

// jobState asks a daemon what a job is.
func (d *daemon) jobState(name string) larderv1.JobState {
	d.t.Helper()
	c := d.dial()
	defer c.Close()
	var r larderv1.DescribeJobResponse
	if err := c.Call(d.t.Context(), "DescribeJob", &larderv1.DescribeJobRequest{Name: name}, &r); err != nil {
		d.t.Fatal(err)
	}
	return r.GetJob().GetState()
}
