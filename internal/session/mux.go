package session

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/clock"
	"larder/internal/shm"
)

const (
	// firstBytes is how long a peer may take to show what it speaks.
	firstBytes = 10 * time.Second
	// maxUndecided bounds the peers that have not shown it yet; more are turned away.
	maxUndecided = 1024
)

// preface begins every HTTP/2 connection. A session begins with its abi, a small number.
const preface = "PRI "

// Mux divides what l accepts by its first four bytes, which it only peeks at: "PRI " is gRPC, the rest are sessions.
// Every peer is looked at by a goroutine of its own, so a silent one delays no other. A gRPC peer of another user is
// dropped here; the session server sends such a peer the reason.
//
// Nothing runs before the first Accept of either half. Closing either half closes only that half; when both are
// closed, so is l.
func Mux(l net.Listener) (grpc, sessions net.Listener) { return MuxFor(l, SameUser, nil) }

// MuxFor is Mux for other gRPC peers than those of this user and root. c is the clock of what a peer may take for its
// first bytes; nil = the real one.
func MuxFor(l net.Listener, allow func(shm.Peer) bool, c clock.Clock) (grpc, sessions net.Listener) {
	m := &mux{l: l, allow: allow, clock: clock.Or(c)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for i := range m.half {
		m.half[i] = &half{m: m, conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	return m.half[0], m.half[1]
}

type mux struct {
	l      net.Listener
	allow  func(shm.Peer) bool
	clock  clock.Clock
	half   [2]*half
	ctx    context.Context // ends when both halves are closed
	cancel context.CancelFunc
	work   sync.WaitGroup // the accepting goroutine and those that look at a peer
	mu     struct {
		sync.Mutex
		started   bool
		closed    int // halves
		undecided map[net.Conn]struct{}
	}
}

// half implements net.Listener.
type half struct {
	m      *mux
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (h *half) Addr() net.Addr { return h.m.l.Addr() }

// Accept waits for the next peer of this kind.
func (h *half) Accept() (net.Conn, error) {
	h.m.begin()
	select {
	case <-h.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close ends this half. The one that closes last closes the listener, and waits until nothing is left behind.
func (h *half) Close() error {
	if !h.shut() {
		return nil
	}
	err := h.m.l.Close()
	h.m.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// shut closes this half and reports whether both are closed now.
func (h *half) shut() bool {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.once.Do(func() {
		close(h.closed)
		h.m.mu.closed++
	})
	if h.m.mu.closed < len(h.m.half) {
		return false
	}
	h.m.cancel()
	for c := range h.m.mu.undecided {
		_ = c.Close()
	}
	return true
}

// begin starts accepting, once.
func (m *mux) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.started && m.ctx.Err() == nil {
		m.mu.started = true
		m.work.Go(m.accept)
	}
}

func (m *mux) accept() {
	pause := time.Duration(0)
	for {
		c, err := m.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				for _, h := range m.half { // the listener may have been closed under us
					h.shut()
				}
				return
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-m.ctx.Done():
			}
			continue
		}
		pause = 0
		m.mu.Lock()
		if m.ctx.Err() != nil || len(m.mu.undecided) >= maxUndecided {
			m.mu.Unlock()
			_ = c.Close()
			continue
		}
		if m.mu.undecided == nil {
			m.mu.undecided = make(map[net.Conn]struct{})
		}
		m.mu.undecided[c] = struct{}{}
		m.work.Go(func() { m.decide(c) })
		m.mu.Unlock()
	}
}

// decide looks at the first bytes and hands the connection on, or closes it.
func (m *mux) decide(nc net.Conn) {
	isGRPC, ok := false, false
	if c, unix := nc.(*net.UnixConn); unix {
		isGRPC, ok = peek(c, m.clock)
		if ok && isGRPC {
			p, err := shm.PeerOf(c)
			ok = err == nil && m.allow(p)
		}
	}
	m.mu.Lock()
	delete(m.mu.undecided, nc)
	m.mu.Unlock()
	if !ok {
		_ = nc.Close()
		return
	}
	h := m.half[1]
	if isGRPC {
		h = m.half[0]
	}
	select {
	case h.conns <- nc:
	case <-h.closed:
		_ = nc.Close()
	}
}

// peek waits until the peer has shown what it speaks. The bytes stay in the socket.
func peek(c *net.UnixConn, clk clock.Clock) (isGRPC, ok bool) {
	deadline := clock.NewDeadline(clk, c.SetReadDeadline)
	if deadline.In(firstBytes) != nil {
		return false, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false, false
	}
	var b [len(preface)]byte
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		for errors.Is(err, unix.EINTR) {
			n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		}
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if err != nil || n == 0 {
			return true // gone
		}
		if string(b[:n]) != preface[:n] {
			ok = true
			return true
		}
		isGRPC = n == len(preface)
		ok = isGRPC
		return isGRPC // the rest of the preface is still to come
	})
	if err != nil || deadline.Off() != nil {
		return false, false
	}
	return isGRPC, ok
}
