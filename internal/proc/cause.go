package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// fatal are the signals that a process gets for what it did itself.
var fatal = []syscall.Signal{
	syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSYS,
}

var signalNames = regexp.MustCompile(`\bSIG[A-Z]+\b`)

// Cause is what a process of this program died of: the name of a signal, or an exit code. Go's runtime ends a process
// that had such a signal with a trace and an exit code. A lack of memory, or a signal from outside, says nothing about
// what the process did: that is an error.
func Cause(s *os.ProcessState, stderr string) (string, error) {
	ws, ok := s.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return "", fmt.Errorf("it ended with %v", s)
	case ws.Signaled() && slices.Contains(fatal, ws.Signal()):
		return unix.SignalName(ws.Signal()), nil
	case ws.Signaled():
		return "", fmt.Errorf("it was ended by %s", unix.SignalName(ws.Signal()))
	}
	for _, name := range signalNames.FindAllString(stderr, -1) {
		if slices.Contains(fatal, unix.SignalNum(name)) {
			return name, nil
		}
	}
	for _, text := range []string{"out of memory", "cannot allocate memory", "failed to create new OS thread"} {
		if strings.Contains(stderr, text) {
			return "", errors.New("it had no memory")
		}
	}
	return "exit " + strconv.Itoa(ws.ExitStatus()), nil
}

// SignalLine is the line of a trace that names the signal.
func SignalLine(stderr string) string {
	for l := range strings.Lines(stderr) {
		if signalNames.MatchString(l) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

// FirstBytes keeps the beginning of what a process writes, and reads the rest.
type FirstBytes struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const maxStderr = 8 << 10

// Write implements io.Writer.
func (h *FirstBytes) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b.Write(p[:min(len(p), maxStderr-h.b.Len())])
	return len(p), nil
}

// String is what was kept.
func (h *FirstBytes) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}
