package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is who opened the other end of a Unix socket, by the kernel's word (SO_PEERCRED).
type Peer struct {
	PID      int32 // 0 when the process lives in a PID namespace that this one cannot see
	UID, GID uint32
	Groups   []uint32 // supplementary ones, when it connected; nil where the kernel does not say (before Linux 4.13)
}

// In reports whether the peer is a member of a group.
func (p Peer) In(gid uint32) bool { return p.GID == gid || slices.Contains(p.Groups, gid) }

type peerKey struct{}

// WithPeer returns a context of a request that p makes.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerFrom returns whose request the context belongs to; false for one that came over TCP, or from this process.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// PeerOf asks the kernel. For an accepted connection it is the process that called connect, for a dialled one the
// process that called listen.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("ask for the peer's credentials: %w", err)
	}
	var cred *unix.Ucred
	var inner error
	var groups []uint32
	err = raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		groups = peerGroups(fd)
	})
	if err = errors.Join(err, inner); err != nil {
		return Peer{}, fmt.Errorf("ask for the peer's credentials: %w", err)
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid, Groups: groups}, nil
}

// peerGroups asks for supplementary groups; who has more than the kernel allows does not exist.
func peerGroups(fd uintptr) []uint32 {
	for n := 64; n <= 1<<16; n *= 8 {
		list := make([]uint32, n)
		size := uint32(n * 4)
		//nolint:gosec // golang.org/x/sys has no call for it
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			return list[: size/4 : size/4]
		}
		if errno != unix.ERANGE {
			return nil
		}
	}
	return nil
}

// Process names one process of this machine so that no later one is taken for it. The boot and the start of the process
// are the kernel's.
type Process struct {
	PID   int32  `json:"pid"`
	Start uint64 `json:"start"` // ticks after the boot
	Boot  string `json:"boot"`
}

// ProcessOf looks at a process that lives.
func ProcessOf(pid int32) (Process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Process{}, fmt.Errorf("name process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fmt.Errorf("name process %d: %w", pid, err)
	}
	// its name may have blanks and brackets
	_, after, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	fields := strings.Fields(after)
	if len(fields) < 20 {
		return Process{}, fmt.Errorf("name process %d: its stat has %d fields", pid, len(fields))
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("name process %d: %w", pid, err)
	}
	return Process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// Watch waits for the end of that very process. The error says that it has ended, or that the kernel cannot watch it
// (before Linux 5.3).
func (p Process) Watch() (*Exit, error) {
	fd, err := unix.PidfdOpen(int(p.PID), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	now, err := ProcessOf(p.PID) // after the descriptor was opened: it stays that process's
	if err == nil && now != p {
		err = unix.ESRCH
	}
	if err == nil {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, perr := unix.Poll(poll, 0); perr != nil || n > 0 { // a zombie has a stat, too
			err = errors.Join(unix.ESRCH, perr)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	return &Exit{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Exit waits for the end of a process.
type Exit struct{ f *os.File }

// ExitOf watches the process at the other end of an accepted connection. The socket alone does not show its death
// when a forked child inherited a copy of it. The error is errors.ErrUnsupported where the kernel cannot say (before
// Linux 5.3, or a process of another PID namespace).
func ExitOf(c *net.UnixConn) (*Exit, error) {
	fd, err := peerPidfd(c)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch the peer: %w", err)
	}
	return &Exit{os.NewFile(uintptr(fd), "pidfd")}, nil
}

func peerPidfd(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("watch the peer: %w", err)
	}
	fd, inner := -1, error(nil)
	if err := raw.Control(func(s uintptr) {
		fd, inner = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, fmt.Errorf("watch the peer: %w", err)
	}
	if inner == nil {
		unix.CloseOnExec(fd)
		return fd, nil
	}
	// Before Linux 6.5. Between connect and here the number could have been given to another process only if the peer
	// is dead already, and then the socket says so unless a child holds it: an accepted risk on old kernels.
	p, err := PeerOf(c)
	if err != nil {
		return -1, err
	}
	if p.PID <= 0 {
		return -1, fmt.Errorf("watch the peer, whose PID is not visible here: %w", errors.ErrUnsupported)
	}
	fd, err = unix.PidfdOpen(int(p.PID), unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return -1, fmt.Errorf("watch the peer: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return -1, fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	return fd, nil
}

// Over reports whether the process has ended.
func (e *Exit) Over() bool {
	raw, err := e.f.SyscallConn()
	if err != nil {
		return false
	}
	over := false
	err = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		over = err == nil && n > 0
	})
	return err == nil && over
}

// Wait returns nil once the process has ended, and an error when Close was called first.
func (e *Exit) Wait() error {
	raw, err := e.f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0
	})
}

// Close ends a Wait.
func (e *Exit) Close() error { return e.f.Close() }
