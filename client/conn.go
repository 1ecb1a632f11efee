package client

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// sendTime is how long a daemon may leave a full socket unread before the connection counts as broken. A daemon reads
// always; only one that is stopped (SIGSTOP) does not.
const sendTime = 30 * time.Second

// Error is what a user can act on: a Reason that programs may test, and a Message and a Hint for people. Find it with
// errors.As; compare its Reason with a word of docs/errors.md, e.g. e.Reason == "JOB_ENDED".
type Error = errs.Error

// Conn is a session with a daemon. It is safe for concurrent use.
type Conn struct {
	socket string
	c      *net.UnixConn
	fds    *shm.Receiver
	hello  *larderv1.HelloResponse
	done   chan struct{} // closed when the reader has ended; err is set then
	err    *errs.Error

	send struct {
		sync.Mutex // one frame after the other
		buf        []byte
	}
	mu struct {
		sync.Mutex
		next     uint64 // request id
		pending  map[uint64]*request
		stream   *Stream
		ended    bool // nothing is answered any more
		draining *errs.Error
	}
}

// request waits for its answer.
type request struct {
	// answer runs on the reader; h and p are valid until it returns. An error ends the connection.
	answer func(h wire.Header, p []byte, at int64) error
	done   chan struct{}
	err    error // valid after done
}

// Dial opens a session with the daemon at socket, a path; an empty one is the default of this user (LARDER_SOCKET, else
// a path in the run-time folder). Where no daemon answers, the Reason of the error is UNAVAILABLE.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	if socket == "" {
		socket = wire.DefaultSocket()
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, dialFault(ctx, socket, err)
	}
	c := &Conn{socket: socket, c: nc.(*net.UnixConn), done: make(chan struct{}), hello: new(larderv1.HelloResponse)}
	c.fds = shm.NewReceiver(c.c)
	c.mu.pending = make(map[uint64]*request)
	go c.read()
	p, err := wire.Marshal(&larderv1.HelloRequest{Client: "go", AbiMin: wire.ABI, AbiMax: wire.ABI,
		Pid: int32(os.Getpid())})
	if err == nil {
		err = c.do(ctx, wire.Hello, p, func(h wire.Header, p []byte, _ int64) error {
			if h.Type != wire.Welcome {
				return wire.Violation("HELLO was answered by %s", h.Type)
			}
			return wire.Unmarshal(p, c.hello)
		})
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func dialFault(ctx context.Context, socket string, err error) error {
	hint := "start one with: larder serve"
	switch {
	case ctx.Err() != nil:
		return errs.New(errs.Unavailable, socket, "is the daemon stopped or overloaded?",
			"the daemon at %s was not reached in time", socket).Because(ctx.Err())
	case errors.Is(err, unix.EACCES):
		return errs.New(errs.Denied, socket, "a daemon serves its own user, root and the members of its socket_group; "+
			"run as one of them, or start your own: larder serve",
			"no right to speak to the daemon at %s", socket)
	case errors.Is(err, unix.EINVAL):
		return errs.New(errs.Invalid, socket, "a socket's path has at most 107 bytes; choose a shorter one",
			"reach the daemon at %s", socket).Because(err)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return errs.New(errs.Unavailable, socket, hint, "no larder daemon answers at %s", socket)
	}
	return errs.New(errs.Unavailable, socket, hint, "no larder daemon answers at %s", socket).Because(err)
}

// Hello returns what the daemon said about itself when the session was opened.
func (c *Conn) Hello() *larderv1.HelloResponse { return c.hello }

// Draining returns nil until the daemon has announced that it stops when the running epochs are done; then it returns
// why.
func (c *Conn) Draining() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.draining == nil {
		return nil
	}
	return c.mu.draining
}

// Call runs a unary method of larder.v1.LarderService by its name, e.g. "RegisterJob", and fills resp. Errors are
// *Error; when ctx ends first, its error is the cause. resp is not written to after Call has returned.
func (c *Conn) Call(ctx context.Context, method string, req, resp proto.Message) error {
	p, err := wire.MarshalCall(method, req)
	if err != nil {
		return errs.New(errs.Invalid, method, "text must be UTF-8", "write the request").Because(err)
	}
	if len(p) > wire.MaxPayload {
		return errs.New(errs.ResourceExceeded, method, "ask for less at once",
			"the request has %d bytes, a session carries at most %d", len(p), wire.MaxPayload)
	}
	var decoded error // concerns this call alone, so it does not end the session
	err = c.do(ctx, wire.Call, p, func(h wire.Header, p []byte, _ int64) error {
		if h.Type != wire.Result {
			return wire.Violation("CALL was answered by %s", h.Type)
		}
		decoded = wire.Unmarshal(p, resp)
		return nil
	})
	if err != nil {
		return err
	}
	return decoded
}

// do sends a request and waits for its answer.
func (c *Conn) do(ctx context.Context, t wire.Type, p []byte, answer func(wire.Header, []byte, int64) error) error {
	if err := ctx.Err(); err != nil {
		return gaveUp(t, err)
	}
	// The caller's message must not be written to after do has returned because of ctx.
	var mu sync.Mutex
	left := false
	r := &request{done: make(chan struct{})}
	r.answer = func(h wire.Header, p []byte, at int64) error {
		mu.Lock()
		defer mu.Unlock()
		if left && t == wire.Call {
			return nil
		}
		return answer(h, p, at) // a late answer to the others has had its effect at the daemon
	}
	c.mu.Lock()
	if c.mu.ended {
		c.mu.Unlock()
		<-c.done
		return c.err
	}
	c.mu.next++
	id := c.mu.next
	c.mu.pending[id] = r
	c.mu.Unlock()
	if err := c.write(t, id, p); err != nil {
		_ = c.c.CloseRead() // what the daemon said last is still read: it may say why
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		mu.Lock()
		left = true
		mu.Unlock()
		select {
		case <-r.done: // both at once: the answer wins, it has had its effect
			return r.err
		default:
		}
		return gaveUp(t, ctx.Err())
	}
}

func gaveUp(t wire.Type, err error) error {
	return errs.New(errs.Unavailable, "daemon", "allow more time, or ask `larder stats` what the daemon does",
		"the daemon has not answered %s", t).Because(err)
}

// write sends one frame.
func (c *Conn) write(t wire.Type, id uint64, p []byte) error {
	c.send.Lock()
	defer c.send.Unlock()
	c.send.buf = wire.AppendFrame(c.send.buf[:0], t, id, p)
	if err := c.c.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	_, err := c.c.Write(c.send.buf)
	if cap(c.send.buf) > 64<<10 {
		c.send.buf = nil
	}
	return err
}

// read handles what the daemon sends, until the connection ends.
func (c *Conn) read() {
	r := wire.NewReader(c.fds)
	var err error
	for err == nil {
		var h wire.Header
		var p []byte
		var at int64
		if h, p, at, err = r.Next(); err == nil {
			err = c.handle(h, p, at)
		}
	}
	c.fds.Close()
	_ = c.c.Close()
	var f *errs.Error
	if !errors.As(err, &f) {
		f = errs.New(errs.Unavailable, c.socket,
			"start another one with `larder serve`; the log of this one says why it ended",
			"the daemon at %s has ended the session", c.socket)
	}
	c.err = f
	c.mu.Lock()
	c.mu.ended = true
	pending, st := c.mu.pending, c.mu.stream
	c.mu.pending = nil
	c.mu.Unlock()
	close(c.done)
	for _, q := range pending {
		q.err = f
		close(q.done)
	}
	if st != nil {
		st.push(event{err: f})
	}
}

// handle takes one frame; an error ends the connection and is what every caller then gets.
func (c *Conn) handle(h wire.Header, p []byte, at int64) error {
	switch h.Type {
	case wire.Welcome, wire.Result, wire.Ring:
		return c.answer(h, p, at)
	case wire.Error:
		if h.ID == 0 {
			return wire.ParseError(p)
		}
		return c.answer(h, p, at)
	case wire.Batch, wire.Segment, wire.EpochEnd, wire.Gone:
		c.mu.Lock()
		st := c.mu.stream
		c.mu.Unlock()
		if st == nil {
			return wire.Violation("%s came without an attachment", h.Type)
		}
		return st.handle(h, p, at)
	case wire.Drain:
		f := wire.ParseError(p)
		c.mu.Lock()
		c.mu.draining = f
		c.mu.Unlock()
	case wire.Ping:
		return c.write(wire.Pong, h.ID, nil)
	case wire.Pong:
	default:
		return wire.Violation("a daemon does not send %s", h.Type)
	}
	return nil
}

// answer hands a frame to the request it belongs to.
func (c *Conn) answer(h wire.Header, p []byte, at int64) error {
	c.mu.Lock()
	r := c.mu.pending[h.ID]
	delete(c.mu.pending, h.ID)
	c.mu.Unlock()
	if r == nil {
		return wire.Violation("%s answers request %d, which was not made", h.Type, h.ID)
	}
	defer close(r.done)
	if h.Type == wire.Error {
		r.err = wire.ParseError(p)
		return nil
	}
	r.err = r.answer(h, p, at)
	return r.err
}

// Close ends the session. Without a Detach before it the daemon treats that as the death of the client, and keeps the
// rank for a lease. Batches that were taken stay readable until they are released. Close is idempotent.
func (c *Conn) Close() error {
	_ = c.c.Close()
	<-c.done
	c.mu.Lock()
	st := c.mu.stream
	c.mu.Unlock()
	if st != nil {
		st.unmap()
	}
	return nil
}
