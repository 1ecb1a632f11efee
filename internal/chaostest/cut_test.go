package chaostest

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/client"
	"larder/internal/testenv"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// proxy stands between clients and a daemon, passes descriptors on, and cuts connections: after a random number of
// bytes in either direction, in the middle of a frame or not, at once or after it has let nothing through for a while.
type proxy struct {
	socket string
	to     string
	l      *net.UnixListener
	wg     sync.WaitGroup
	cuts   atomic.Int64
	calm   atomic.Bool // nothing is cut any more

	mu    sync.Mutex
	rand  *xrand.Rand
	conns map[*net.UnixConn]bool
}

func newProxy(t testing.TB, r *xrand.Rand, to string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "lp-")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{socket: filepath.Join(dir, "p"), to: to, rand: r.Split(), conns: map[*net.UnixConn]bool{}}
	if p.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: p.socket, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		_ = p.l.Close()
		p.mu.Lock()
		for c := range p.conns { // order-free: all are closed
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return p
}

func (p *proxy) serve() {
	for {
		a, err := p.l.AcceptUnix()
		if err != nil {
			return
		}
		b, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.to, Net: "unix"})
		if err != nil {
			_ = a.Close()
			continue
		}
		p.mu.Lock()
		p.conns[a], p.conns[b] = true, true
		// Bytes until the cut: HELLO and ATTACH take about a thousand, a batch some fifty.
		budget := [2]int{1 << 60, 1 << 60}
		if p.rand.IntN(8) > 0 {
			budget[p.rand.IntN(2)] = 1 + p.rand.IntN([]int{300, 3000, 6000, 20_000}[p.rand.IntN(4)])
		} else { // it lives for some epochs; if it were never cut, every client would get such a one in the end
			budget[1] = 20_000 + p.rand.IntN(60_000)
		}
		wait := time.Duration(0) // half open: it lets nothing through, and then it is gone
		if p.rand.IntN(4) == 0 {
			wait = time.Duration(p.rand.IntN(50)) * time.Millisecond
		}
		p.mu.Unlock()
		var once sync.Once
		end := func(cut bool) {
			once.Do(func() {
				if cut {
					time.Sleep(wait)
					p.cuts.Add(1)
				}
				_, _ = a.Close(), b.Close()
				p.mu.Lock()
				delete(p.conns, a)
				delete(p.conns, b)
				p.mu.Unlock()
			})
		}
		p.wg.Go(func() { end(p.pass(a, b, budget[0])) })
		p.wg.Go(func() { end(p.pass(b, a, budget[1])) })
	}
}

// pass copies until the end, or until it has passed so many bytes: then it reports a cut.
func (p *proxy) pass(from, to *net.UnixConn, budget int) (cut bool) {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
	for {
		n, k, _, _, err := from.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return false
		}
		fds := descriptors(oob[:k])
		if n >= budget && !p.calm.Load() {
			n, cut = budget, true
		}
		budget -= n
		for at := 0; at < n && err == nil; {
			var w int
			control := oob[:k]
			if at > 0 {
				control = nil
			}
			w, _, err = to.WriteMsgUnix(buf[at:n], control, nil)
			at += w
			if w == 0 && err == nil {
				err = io.ErrShortWrite
			}
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if cut || err != nil {
			return cut
		}
	}
}

func descriptors(oob []byte) (out []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		if fds, e := unix.ParseUnixRights(&msgs[i]); e == nil {
			out = append(out, fds...)
		} else {
			err = errors.Join(err, e)
		}
	}
	_ = err // what cannot be read is passed on as it is
	return out
}

// TestConnectionsAreCut (R7): every connection goes through a proxy that cuts most of them, anywhere. Every client
// continues with the very next batch: no epoch is restarted or given up, nothing in one is lost or repeated.
// LARDER_CUTS is how many cuts.
func TestConnectionsAreCut(t *testing.T) {
	cuts := testenv.Count(t, "LARDER_CUTS", 15)
	r := seed(t)
	dir := images(t, 60, 24, 20)
	d := newDaemon(t, "--set", "jobs.lease=10m") // a busy machine may keep a client from returning within 30 s
	d.must()
	_, empty := d.holds()
	p := newProxy(t, r, d.socket)
	c := train(d, specs(dir, "cut-"), 0, func(tr *trainee) { tr.socket, tr.wait = p.socket, 9*patience })
	moved := func() int64 { return p.cuts.Load() + c.taken() }
	steadily(t, "enough cuts", moved, func() bool { c.check(); return int(p.cuts.Load()) >= cuts })
	p.calm.Store(true)
	for _, tr := range c.all {
		n := tr.epochs.Load()
		steadily(t, "an epoch after the last cut", moved, func() bool { c.check(); return tr.epochs.Load() > n })
	}
	for _, tr := range c.all {
		wholeAccounts(t, d.socket, tr.spec.GetName())
	}
	c.finish()
	eventually(t, "the daemon holds nothing for any client", func() bool { _, n := d.holds(); return n <= empty })
	var afresh, backed int64
	for _, tr := range c.all {
		afresh, backed = afresh+tr.afresh.Load(), backed+tr.backed.Load()
	}
	figure(t, "%d connections cut, %d epochs restarted because of it, %d times continued in the middle of one, %d "+
		"read to their end",
		p.cuts.Load(), afresh, backed, c.epochs())
	if afresh > 0 || backed == 0 {
		t.Error("an epoch was restarted, or none was continued")
	}
}

// wholeAccounts fails the test when the daemon's account of a job has an epoch that was given up.
func wholeAccounts(t *testing.T, socket, job string) {
	t.Helper()
	ctx := t.Context()
	c, err := client.Dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out := new(larderv1.DescribeJobResponse)
	if err := c.Call(ctx, "DescribeJob", &larderv1.DescribeJobRequest{Name: job}, out); err != nil {
		t.Fatal(err)
	}
	if len(out.GetJob().GetEpochs()) == 0 {
		t.Errorf("job %s has no epochs", job)
	}
	for _, e := range out.GetJob().GetEpochs() {
		if s := e.GetState(); s != "complete" && s != "running" {
			t.Errorf("epoch %d of job %s is %s", e.GetEpoch(), job, s)
		}
	}
}
