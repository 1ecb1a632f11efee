package ring

import (
	"context"
	"sync"

	"larder/internal/ident"
	"larder/internal/shm"
)

// Set is the rings that get batches, and the processes of clients that vanished. It is safe for concurrent use.
type Set struct {
	gone func(Key)
	mu   struct {
		sync.Mutex
		rings    map[Key]*Ring
		exits    map[rank]*shm.Exit      // of processes that are watched
		claims   map[claim]chan struct{} // of clients whose attachments are under way; closed when they are not
		expected []expected              // before Start: clients of restored jobs that live
		stopped  bool                    // no ring may be added any more
	}
	running sync.WaitGroup // goroutines of rings, watches of processes
}

// claim is a rank that a client asks for.
type claim struct {
	rank
	client string
}

// rank is a rank of a job, whatever client holds it.
type rank struct {
	job  ident.JobID
	rank int
}

// expected is the process of a client that an earlier daemon had.
type expected struct {
	key  Key
	exit *shm.Exit
}

// NewSet returns an empty Set. gone is called when the process of a vanished client has ended.
func NewSet(gone func(Key)) *Set {
	s := &Set{gone: gone}
	s.mu.rings = map[Key]*Ring{}
	s.mu.exits = map[rank]*shm.Exit{}
	s.mu.claims = map[claim]chan struct{}{}
	return s
}

// Claim has a client's attachments to a rank come one after the other: the coordinator may have given it the rank by a
// connection that ended before the ring was there, and HeldBy does not know of that. done ends the turn.
func (s *Set) Claim(ctx context.Context, job ident.JobID, r int, client string) (done func(), err error) {
	if client == "" {
		return func() {}, nil
	}
	k, mine := claim{rank{job, r}, client}, make(chan struct{})
	for {
		s.mu.Lock()
		before := s.mu.claims[k]
		if before == nil {
			s.mu.claims[k] = mine
		}
		s.mu.Unlock()
		if before == nil {
			break
		}
		select {
		case <-before:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() {
		s.mu.Lock()
		delete(s.mu.claims, k)
		s.mu.Unlock()
		close(mine)
	}, nil
}

// Add starts a ring; the caller stays its user. False: the Set has stopped.
func (s *Set) Add(r *Ring) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stopped {
		return false
	}
	k := r.Key()
	s.mu.rings[k] = r
	of := rank{k.Job, k.Rank}
	if x := s.mu.exits[of]; x != nil { // the rank has a client again
		delete(s.mu.exits, of)
		_ = x.Close() // its Wait returns
	}
	r.Hold()
	s.running.Go(r.run)
	return true
}

// Take removes a ring; nil when it is not there.
func (s *Set) Take(k Key) *Ring {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.rings[k]
	delete(s.mu.rings, k)
	return r
}

// Get finds a ring; nil when it is not there.
func (s *Set) Get(k Key) *Ring {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.rings[k]
}

// Hold is Get for a user: the memory stays mapped until it calls Release.
func (s *Set) Hold(k Key) *Ring {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.rings[k]
	if r != nil {
		r.Hold()
	}
	return r
}

// Collect appends the slots that clients gave back in release words since the last time, of all rings.
func (s *Set) Collect(dst []Given) []Given {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.mu.rings { // order-free: clients give slots back in any order
		dst = r.collect(k, dst)
	}
	return dst
}

// Len counts the rings.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.rings)
}

// HeldBy is the incarnation of a rank that this very client holds by another connection; 0 = none.
func (s *Set) HeldBy(job ident.JobID, rank int, client string) ident.Incarnation {
	if client == "" {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	inc := ident.Incarnation(0)
	for k, r := range s.mu.rings { // order-free: the newest
		if k.Job == job && k.Rank == rank && r.cfg.Client == client {
			inc = max(inc, k.Inc)
		}
	}
	return inc
}

// Attached reports whether a client holds a rank of any job.
func (s *Set) Attached(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.mu.rings { // order-free: one is enough
		if r.cfg.Client == client {
			return true
		}
	}
	return false
}

// Holder is the process that holds a rank.
func (s *Set) Holder(job ident.JobID, rank int) (peer shm.Peer, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.mu.rings { // order-free: while two incarnations overlap, either is a true answer
		if k.Job == job && k.Rank == rank {
			return r.Peer(), true
		}
	}
	return shm.Peer{}, false
}

// Lives reports whether the client of a rank lives, attached or not, as far as can be seen: one that is attached does
// unless its process has ended, and one that vanished does while its process is watched.
func (s *Set) Lives(job ident.JobID, r int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, x := range s.mu.rings { // order-free: each one is looked at
		if k.Job == job && k.Rank == r && !ended(x.Process()) {
			return true
		}
	}
	x := s.mu.exits[rank{job, r}]
	return x != nil && !x.Over()
}

// ended reports whether a process is seen to have ended.
func ended(process string) bool {
	x := Living(process)
	if x == nil {
		return false
	}
	over := x.Over()
	_ = x.Close()
	return over
}

// Expect reports whether the client of a restored rank lives, and has Start watch it.
func (s *Set) Expect(k Key, process string) bool {
	x := Living(process)
	if x == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.expected = append(s.mu.expected, expected{k, x})
	return true
}

// Start watches the expected clients.
func (s *Set) Start() {
	s.mu.Lock()
	all := s.mu.expected
	s.mu.expected = nil
	s.mu.Unlock()
	for _, a := range all {
		s.Watch(a.key, a.exit)
	}
}

// Watch calls gone when the process of a vanished client has ended; x may be nil. A rank has one watch at most, and
// none while a later client holds it: a connection that is cut again and again costs no more descriptors than one
// cut.
func (s *Set) Watch(k Key, x *shm.Exit) {
	if x == nil {
		return
	}
	of := rank{k.Job, k.Rank}
	s.mu.Lock()
	if s.mu.stopped || s.heldSince(k) {
		s.mu.Unlock()
		_ = x.Close()
		return
	}
	if old := s.mu.exits[of]; old != nil {
		_ = old.Close()
	}
	s.mu.exits[of] = x
	s.running.Go(func() {
		ended := x.Wait() == nil
		s.mu.Lock()
		if s.mu.exits[of] == x {
			delete(s.mu.exits, of)
		}
		s.mu.Unlock()
		_ = x.Close()
		if ended {
			s.gone(k)
		}
	})
	s.mu.Unlock()
}

// heldSince reports whether a later client holds the rank; s.mu is held.
func (s *Set) heldSince(k Key) bool {
	for r := range s.mu.rings { // order-free: one is enough
		if r.Job == k.Job && r.Rank == k.Rank && r.Inc > k.Inc {
			return true
		}
	}
	return false
}

// Stop closes all rings with the reason for the client of each, by job, and ends all watches. Wait waits for them.
func (s *Set) Stop(reason func(job string) error) {
	s.mu.Lock()
	s.mu.stopped = true
	for _, x := range s.mu.exits { // order-free: all are closed
		_ = x.Close()
	}
	rings := s.mu.rings
	s.mu.rings = map[Key]*Ring{}
	s.mu.Unlock()
	for _, r := range rings { // order-free: all are closed
		r.Close(reason(r.Job()))
	}
}

// Wait returns when everything that Stop ended has ended.
func (s *Set) Wait() { s.running.Wait() }
