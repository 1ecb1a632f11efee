package session

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/invariant"
	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// Config of a Server. Engine and Service must be set, every other zero value stands for its default.
type Config struct {
	Engine  Engine
	Service larderv1.LarderServiceServer // answers CALL
	Crew    Crew                         // takes workers; nil = none are taken
	Log     *slog.Logger                 // default: nothing is logged

	Group        int                 // whose members may speak too; 0 = no group's
	Allow        func(shm.Peer) bool // default: the daemon's own uid, root and Group
	HelloTimeout time.Duration       // until the first frame; default 10 s
	// a peer that takes nothing for so long while its socket is full is dropped; default 60 s
	WriteTimeout time.Duration
	MaxCalls     int // in flight per session; default 16
	MaxSessions  int // default 1024

	Clock clock.Clock // of these times and of Sessions; default: the real one
}

// Server serves sessions. Safe for concurrent use.
type Server struct {
	cfg  Config
	gone atomic.Bool                // draining
	why  atomic.Pointer[errs.Error] // why the daemon stops, for clients; nil = the daemon is stopping
	wg   sync.WaitGroup

	mu struct {
		sync.Mutex
		closed    bool
		listeners map[net.Listener]struct{}
		conns     map[*conn]struct{}
		idle      time.Time     // when the last session ended
		changed   chan struct{} // closed when a session ends
	}
}

// NewServer makes a server; Serve starts it.
func NewServer(cfg Config) *Server {
	if cfg.Engine == nil || cfg.Service == nil {
		invariant.Violated("session: a server needs an Engine and a Service")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Allow == nil {
		cfg.Allow = Allow(cfg.Group)
	}
	if cfg.HelloTimeout <= 0 {
		cfg.HelloTimeout = 10 * time.Second
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = time.Minute
	}
	if cfg.MaxCalls <= 0 {
		cfg.MaxCalls = 16
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = 1024
	}
	cfg.Clock = clock.Or(cfg.Clock)
	s := &Server{cfg: cfg}
	s.mu.listeners = make(map[net.Listener]struct{})
	s.mu.conns = make(map[*conn]struct{})
	s.mu.idle = cfg.Clock.Now()
	s.mu.changed = make(chan struct{})
	return s
}

// SameUser allows the user of this process, and root.
func SameUser(p shm.Peer) bool { return p.UID == 0 || p.UID == uint32(os.Getuid()) }

// Allow lets in the user of this process, root, and the members of a group; 0 = no group's.
func Allow(group int) func(shm.Peer) bool {
	return func(p shm.Peer) bool { return SameUser(p) || group > 0 && p.In(uint32(group)) }
}

// Serve accepts sessions until the listener is closed, which Shutdown and Close do; then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return errors.Join(l.Close(), errs.New(errs.Unavailable, "daemon", "make a new server",
			"the session server was closed"))
	}
	s.mu.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.mu.listeners, l)
		s.mu.Unlock()
	}()
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Out of descriptors, say: running sessions continue, so wait for one to end rather than stop serving.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.cfg.Log.Warn("accept", "error", err, "again_in", pause)
			time.Sleep(pause)
			continue
		}
		pause = 0
		s.start(c)
	}
}

// start runs a session for c, or refuses it.
func (s *Server) start(nc net.Conn) {
	c, ok := nc.(*net.UnixConn)
	if !ok {
		s.cfg.Log.Error("a session came over something that is no Unix socket", "network", nc.LocalAddr().Network())
		_ = nc.Close()
		return
	}
	peer, err := shm.PeerOf(c)
	if err != nil {
		s.cfg.Log.Warn("session refused", "error", err)
		_ = c.Close()
		return
	}
	k := &conn{srv: s, c: c, peer: peer, out: newQueue(), log: s.cfg.Log.With("pid", peer.PID, "uid", peer.UID)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	if s.mu.closed || len(s.mu.conns) >= s.cfg.MaxSessions {
		closed := s.mu.closed
		s.mu.Unlock()
		k.cancel()
		if !closed {
			f := errs.New(errs.ResourceExceeded, "session", "close loaders that are not used",
				"the daemon serves %d sessions, which is its limit", s.cfg.MaxSessions)
			s.cfg.Log.Warn("session refused", "error", f)
			_ = c.SetWriteDeadline(time.Now().Add(flushTime)) // a fresh socket has room: this does not block
			_, _ = c.Write(wire.AppendFrame(nil, wire.Error, 0, wire.MarshalError(f)))
		}
		_ = c.Close()
		return
	}
	s.mu.conns[k] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		k.run()
		s.mu.Lock()
		delete(s.mu.conns, k)
		s.mu.idle = s.cfg.Clock.Now()
		close(s.mu.changed)
		s.mu.changed = make(chan struct{})
		s.mu.Unlock()
		s.endWorkers()
	}()
}

// Sessions is the number of sessions there are, and since when there are none.
func (s *Server) Sessions() (n int, idleSince time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns), s.mu.idle
}

func (s *Server) draining() bool { return s.gone.Load() }

// Because sets why the daemon stops, by Shutdown and after it.
func (s *Server) Because(why *errs.Error) { s.why.Store(why) }

// Farewell ends every session at once, like Close, but sends every client the reason first. One that takes nothing for
// a second is not waited for.
func (s *Server) Farewell(why *errs.Error) error {
	s.why.Store(why)
	s.gone.Store(true)
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.farewell(why)
	}
	ctx, cancel := clock.WithTimeout(context.Background(), s.cfg.Clock, flushTime)
	defer cancel()
	_ = s.emptied(ctx) // sessions that are left are closed
	return s.Close()
}

// emptied waits until every session has ended; the error is ctx's when that ends first.
func (s *Server) emptied(ctx context.Context) error {
	for {
		s.mu.Lock()
		n, changed := len(s.mu.conns), s.mu.changed
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Shutdown notifies every client that the daemon will stop (DRAIN), refuses new sessions and attachments, and waits
// until every session has ended: at once where nothing is attached, else when the engine calls Gone or the client
// leaves. When ctx ends first its error is returned and the sessions live on until Close.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.gone.Swap(true)
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	if first {
		why := s.why.Load()
		if why == nil {
			why = errs.New(errs.Unavailable, "daemon", "running epochs are finished; start another daemon for the next one",
				"the daemon is stopping")
		}
		msg := wire.MarshalError(why)
		for _, c := range conns {
			c.out.add(out{t: wire.Drain, payload: msg, pushed: true})
			c.notified.Store(true)
		}
	}
	for _, c := range conns {
		c.endIfDrained()
	}
	s.endWorkers()
	if err := s.emptied(ctx); err != nil {
		return err
	}
	return s.Close()
}

// Close ends every session at once and waits for them. Twice is fine.
func (s *Server) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.gone.Store(true)
	for l := range s.mu.listeners {
		_ = l.Close()
	}
	for c := range s.mu.conns {
		_ = c.c.Close() // first: no client should read of requests that are canceled
		c.cancel()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
