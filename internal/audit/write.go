package audit

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Env names the folder that clients write their logs to.
const Env = "LARDER_AUDIT_LOG"

// Log is the file of one process. Every record is one write, so that SIGKILL loses none that was written. Safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	file *os.File
	line uint64
	runs uint64
}

// Process is the log of this process, opened at the first call; nil without LARDER_AUDIT_LOG.
var Process = sync.OnceValues(func() (*Log, error) {
	dir := os.Getenv(Env)
	if dir == "" {
		return nil, nil
	}
	return Create(dir, "go")
})

// Create makes a log in a folder, which is made when it is missing.
func Create(dir, client string) (*Log, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // it does not fail
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("audit-%d-%x.log", os.Getpid(), salt)), os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Log{file: f}
	if err := l.Write(&Record{Kind: KindLog, Version: Version, PID: os.Getpid(), Client: client, Boot: ts.Nano()}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// Write appends a record; it numbers the line.
func (l *Log) Write(r *Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Line = l.line + 1
	b, err := r.encode()
	if err != nil {
		return err
	}
	if _, err := l.file.Write(b); err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	l.line++
	return nil
}

// Begin writes that an epoch begins and returns the number of its run.
func (l *Log) Begin(s Start) (uint64, error) {
	l.mu.Lock()
	l.runs++
	run := l.runs
	l.mu.Unlock()
	return run, l.Write(&Record{Kind: KindEpoch, Run: run, Start: &s})
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }
