package session_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/session"
	"larder/internal/session/sessiontest"
	"larder/internal/session/wire"
	"larder/internal/testenv"
)

// FuzzSession: no bytes of a peer bring the daemon down, leave a session behind, or reach another session.
func FuzzSession(f *testing.F) {
	frame := func(b []byte, t wire.Type, payload string) []byte { return wire.AppendFrame(b, t, 7, []byte(payload)) }
	greet := frame(nil, wire.Hello, hello)
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add(greet)
	f.Add(frame(bytes.Clone(greet), wire.Call, `{"method":"GetStats","body":{"job":"a"}}`))
	f.Add(frame(frame(frame(bytes.Clone(greet), wire.Attach, `{"job":"a"}`), wire.Epoch, string(wire.AppendEpoch(nil, 0))),
		wire.Release, string(wire.ReleaseFrame{Slot: 1, Gen: 1}.Append(nil))))
	f.Add(frame(frame(bytes.Clone(greet), wire.Attach, `{"job":"a"}`), wire.Detach, ""))
	f.Add(frame(frame(bytes.Clone(greet), wire.Ping, ""), wire.Pong, ""))
	d := start(f, session.Config{}, map[string]sessiontest.Job{"a": {Batches: 3, Rows: 1, Side: 1}})
	f.Fuzz(func(t *testing.T, data []byte) {
		fd, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := os.NewFile(uintptr(fd[0]), ""), os.NewFile(uintptr(fd[1]), "")
		c, err := net.FileConn(theirs)
		_ = theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		l := &once{c: c, done: make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- d.Serve(l) }()
		if _, err := ours.Write(data); err != nil && !errors.Is(err, unix.EPIPE) {
			t.Fatal(err)
		}
		_ = unix.Shutdown(fd[0], unix.SHUT_WR)
		// The daemon answers with frames only, and hangs up by itself.
		r := wire.NewReader(ours)
		for {
			if _, _, _, err := r.Next(); err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("the daemon's answer: %v", err)
				}
				break
			}
		}
		_ = ours.Close()
		close(l.done)
		if err := <-served; err != nil {
			t.Error(err)
		}
		testenv.Eventually(t, "no session is left", func() bool { n, _ := d.Sessions(); return n == 0 })
		if n := d.engine.Counts(); n.Held != 0 || len(n.Violations) != 0 {
			t.Errorf("%+v", n)
		}
	})
}

// once is a listener that accepts one connection.
type once struct {
	c    net.Conn
	done chan struct{}
}

func (o *once) Accept() (net.Conn, error) {
	if c := o.c; c != nil {
		o.c = nil
		return c, nil
	}
	<-o.done
	return nil, net.ErrClosed
}
func (o *once) Close() error   { return nil }
func (o *once) Addr() net.Addr { return &net.UnixAddr{} }
