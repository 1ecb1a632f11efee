package shm

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// WriteWithFD writes all of b, which must not be empty; a copy of fd rides on its first byte. The caller keeps fd and
// must not let two writers use c at once.
func WriteWithFD(c *net.UnixConn, b []byte, fd int) error {
	if len(b) == 0 {
		return errors.New("shm: a descriptor needs a byte to ride on")
	}
	oob := unix.UnixRights(fd)
	n, oobn, err := c.WriteMsgUnix(b, oob, nil)
	if err != nil {
		return fmt.Errorf("pass a descriptor: %w", err)
	}
	if oobn != len(oob) {
		return fmt.Errorf("pass a descriptor: %d of %d control bytes went out", oobn, len(oob))
	}
	if n < len(b) { // a full socket takes a part; the descriptor is gone with the first one
		if _, err := c.Write(b[n:]); err != nil {
			return fmt.Errorf("pass a descriptor: %w", err)
		}
	}
	return nil
}

// maxWaiting is how many descriptors may have arrived without having been taken. A ring has at most prefetch + 2
// slots and a daemon passes one descriptor per frame, so more than that is a peer that went wrong.
const maxWaiting = 64

// kernelMax is SCM_MAX_FD: no message carries more descriptors.
const kernelMax = 253

// Receiver reads a Unix stream socket and keeps the descriptors that ride on its bytes, close-on-exec, until Take asks
// for them or Close closes them; none is ever leaked, whatever the peer sends. Not safe for concurrent use, but Close
// may be called once reading has ended.
type Receiver struct {
	c       *net.UnixConn
	pos     int64 // bytes read so far
	waiting []arrival
	oob     []byte
}

// arrival is a descriptor that rode on one of the bytes [from, to) of the stream: recvmsg may glue bytes without
// descriptors in front of those that carry one, never behind.
type arrival struct {
	fd       int
	from, to int64
}

// NewReceiver reads from c, which stays the caller's.
func NewReceiver(c *net.UnixConn) *Receiver {
	return &Receiver{c: c, oob: make([]byte, unix.CmsgSpace(kernelMax*4)+unix.CmsgSpace(unix.SizeofUcred))}
}

// Read implements io.Reader.
func (r *Receiver) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, oobn, flags, _, err := r.c.ReadMsgUnix(p, r.oob) // sets MSG_CMSG_CLOEXEC
	n = max(n, 0)                                       // -1 on an error
	from := r.pos
	r.pos += int64(n)
	if oobn > 0 {
		if got := r.collect(r.oob[:oobn], from); got != nil && err == nil {
			err = got
		}
	}
	if flags&unix.MSG_CTRUNC != 0 && err == nil {
		// The buffer holds all a message can carry, so the kernel found no free descriptor for what came.
		err = tooManyFiles("session", unix.EMFILE)
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF // net wraps it for this call; readers compare
	}
	return n, err
}

func (r *Receiver) collect(oob []byte, from int64) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("read control message: %w", err)
	}
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fmt.Errorf("read passed descriptors: %w", err)
		}
		for _, fd := range fds {
			r.waiting = append(r.waiting, arrival{fd, from, r.pos})
		}
	}
	if len(r.waiting) > maxWaiting {
		n := len(r.waiting)
		r.Close()
		return errs.New(errs.Protocol, "session", "only larder's daemon may speak on this socket",
			"%d descriptors came that no frame announced", n)
	}
	return nil
}

// Take hands over the descriptor that rode on byte at of the stream (counted from 0). The caller owns it. Descriptors
// that rode on earlier bytes were not taken, and are closed.
func (r *Receiver) Take(at int64) (fd int, ok bool) {
	r.Forget(at)
	if len(r.waiting) == 0 || at < r.waiting[0].from || at >= r.waiting[0].to {
		return -1, false
	}
	fd = r.waiting[0].fd
	r.waiting = r.waiting[1:]
	return fd, true
}

// Forget closes the descriptors that rode on bytes before byte at of the stream.
func (r *Receiver) Forget(at int64) {
	for len(r.waiting) > 0 && r.waiting[0].to <= at {
		_ = unix.Close(r.waiting[0].fd)
		r.waiting = r.waiting[1:]
	}
}

// Waiting returns the number of descriptors that were not taken.
func (r *Receiver) Waiting() int { return len(r.waiting) }

// Close closes the descriptors that were not taken.
func (r *Receiver) Close() {
	for _, a := range r.waiting {
		_ = unix.Close(a.fd)
	}
	r.waiting = nil
}
