package disk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// phase says what this Store may do with the directory.
//
//	off    the directory cannot be used: nothing is read or written; for good
//	guest  another daemon owns it, or it is read-only: what is finished is read; becomes owner when the lock is free
//	owner  it reads and writes; for good
type phase uint8

const (
	off phase = iota
	guest
	owner
)

// may reports whether a phase may follow.
func (p phase) may(next phase) bool { return p == off || p == guest && next == owner }

// become changes the phase; mu is held.
func (h *state) become(next phase, why string) {
	if h.phase.may(next) {
		h.phase, h.why = next, why
	}
}

// begin opens the directory and loads what is there.
func (s *Store) begin() {
	if err := s.prepare(); err != nil {
		s.held.become(off, "off: "+err.Error())
		s.log.Warn("the disk tier cannot be used; jobs read from the store instead", "dir", s.cfg.Dir, "error", err,
			"fix", "name another directory in tiers.disk.dir, and start again")
		return
	}
	lock, why, err := s.takeLock()
	if err == nil {
		s.held.lock = lock
		s.held.become(owner, "")
	} else {
		s.held.become(guest, why)
		s.log.Warn("the disk tier is read, and not written", "dir", s.cfg.Dir, "why", why)
	}
	s.load(err == nil)
	if err != nil {
		s.done.Go(s.watch) // after the load: one at a time
		return
	}
	s.shrink()
}

// prepare makes the directory, and checks that nobody else can put bytes into it.
func (s *Store) prepare() error {
	if s.cfg.files != nil {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("the directory cannot be made: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(s.cfg.Dir, &st); err != nil {
		return fmt.Errorf("the directory cannot be used: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return errors.New("it is no directory")
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("the directory belongs to user %d, and the daemon runs as user %d", st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return errors.New("other users may write to the directory: chmod go-w")
	}
	return nil
}

// takeLock makes this Store the owner, or says why it cannot be.
func (s *Store) takeLock() (_ file, why string, err error) {
	f, err := s.files.open(lockName, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, "read-only: " + err.Error(), err
	}
	if err = f.lock(); err != nil {
		why = "read-only: " + err.Error()
		if errors.Is(err, errHeld) {
			why = "read-only: another daemon" + holder(f) + " fills it"
		}
		return nil, why, errors.Join(err, f.close())
	}
	pid := fmt.Appendf(nil, "%d\n", os.Getpid())
	if err := errors.Join(f.truncate(0), f.writev([][]byte{pid}, 0)); err != nil {
		s.log.Debug("note who holds the disk tier", "error", err) // for people alone; a full disk is said elsewhere
	}
	return f, "", nil
}

// holder names the process that wrote its number into the lock.
func holder(f file) string {
	n, err := f.size()
	if err != nil || n < 2 || n > 20 {
		return ""
	}
	b := make([]byte, n)
	if f.readv([][]byte{b}, 0) != nil || strings.Trim(string(b), "0123456789\n") != "" {
		return ""
	}
	return " (process " + strings.TrimSpace(string(b)) + ")"
}

// watch is what a guest does: it looks for what the owner has finished, and takes its place when it is gone.
func (s *Store) watch() {
	t := time.NewTicker(s.cfg.look)
	defer t.Stop()
	for {
		select {
		case <-s.ending:
			return
		case <-t.C:
		}
		lock, _, err := s.takeLock()
		s.load(err == nil) // as a guest still, so that nothing is written meanwhile
		if err == nil {
			s.mu.Lock()
			s.held.lock = lock
			s.held.become(owner, "")
			s.mu.Unlock()
			s.shrink()
			s.log.Info("the disk tier is written again: the daemon that filled it has ended", "dir", s.cfg.Dir)
			return
		}
	}
}

// end closes everything.
func (s *Store) end() error {
	s.mu.Lock()
	var open []*segment
	for _, g := range s.held.filling { // order-free
		open = append(open, g)
	}
	s.mu.Unlock()
	for _, g := range open {
		s.finish(g)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	var problems []error
	for _, g := range h.segments { // order-free
		problems = append(problems, g.file.close())
	}
	for _, b := range h.idle {
		problems = append(problems, b.closeFile())
	}
	if h.lock != nil {
		problems = append(problems, h.lock.close())
	}
	h.segments, h.index, h.idle = nil, nil, nil
	return errors.Join(problems...)
}
