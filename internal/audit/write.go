package audit

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Env names the folder that clients write their logs to.
const Env = "LARDER_AUDIT_LOG"

// Log is the file of one process. Every record is one write, so that SIGKILL loses none that was written. Safe for
// concurrent use.
type Log struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
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
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("audit-%d-%x.log", os.Getpid(), salt)),
		os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Log{file: f}
	if err := l.Write(&Record{Kind: KindLog, Version: Version, PID: os.Getpid(), Client: client,
		Boot: ts.Nano()}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// Write appends a record; it numbers the line.
func (l *Log) Write(r *Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Line = l.line + 1
	b, err := r.encode(l.buf[:0])
	if err != nil {
		return err
	}
	return l.writeLocked(b)
}

func (l *Log) writeLocked(b []byte) error {
	l.buf = b
	if _, err := l.file.Write(b); err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	l.line++
	return nil
}

// Batch appends that a batch was received: what Write would of such a record, without its allocations.
func (l *Log) Batch(run uint64, step uint32, ids, bad []int64, hash uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.stepLocked(KindBatch, run, step)
	b = appendIDs(append(b, `,"ids":`...), ids)
	b = strconv.AppendInt(append(b, `,"rows":`...), int64(len(ids)), 10)
	if len(bad) > 0 {
		b = appendIDs(append(b, `,"bad":`...), bad)
	}
	return l.endLocked(b, hash)
}

// Done appends that a step is over.
func (l *Log) Done(run uint64, step, hash uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endLocked(l.stepLocked(KindDone, run, step), hash)
}

func (l *Log) stepLocked(kind string, run uint64, step uint32) []byte {
	l.buf = append(l.buf[:0], `00000000 {"i":`...)
	b := strconv.AppendUint(l.buf, l.line+1, 10)
	b = append(append(append(b, `,"r":"`...), kind...), `","run":`...)
	b = strconv.AppendUint(b, run, 10)
	return strconv.AppendUint(append(b, `,"step":`...), uint64(step), 10)
}

func (l *Log) endLocked(b []byte, hash uint32) error {
	b = strconv.AppendUint(append(b, `,"hash":`...), uint64(hash), 10)
	b = append(b, '}')
	seal(b)
	return l.writeLocked(append(b, '\n'))
}

func appendIDs(b []byte, ids []int64) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return append(b, ']')
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
