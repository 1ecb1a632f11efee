package engine

import (
	"encoding/json"
	"os"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/shm"
)

// A client that loses its connection, or its daemon, hears of it with its next call: a Loader has no thread. So the lease of its job does not run
// out while its process lives. The journal knows the process of every rank's client (RecAttach), for the daemon that comes next.

// awaited is a client that vanished and whose process lives.
type awaited struct {
	key  ringKey
	exit *shm.Exit
}

// whoIs names the process at the other end of a session; "" where it cannot be told from a later one, or is this one.
func whoIs(peer shm.Peer) string {
	if peer.PID <= 0 || int(peer.PID) == os.Getpid() {
		return ""
	}
	p, err := shm.ProcessOf(peer.PID)
	if err != nil {
		return ""
	}
	text, err := json.Marshal(p)
	if err != nil {
		return ""
	}
	return string(text)
}

// living watches the process that whoIs named; nil = it has ended, or it cannot be watched.
func (e *Engine) living(who string) *shm.Exit {
	var p shm.Process
	if who == "" || json.Unmarshal([]byte(who), &p) != nil {
		return nil
	}
	x, err := p.Watch()
	if err != nil {
		return nil
	}
	return x
}

// awaits tells whether the client of a rank of the journal lives, and has Run watch it.
func (e *Engine) awaits(k ringKey, who string) bool {
	x := e.living(who)
	if x == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.awaited = append(e.mu.awaited, awaited{k, x})
	return true
}

// awaitAll watches the clients of restored jobs.
func (e *Engine) awaitAll() {
	e.mu.Lock()
	all := e.mu.awaited
	e.mu.awaited = nil
	e.mu.Unlock()
	for _, a := range all {
		e.await(a.key, a.exit)
	}
}

// rankOf is a rank of a job, whoever holds it.
type rankOf struct {
	job  ident.JobID
	rank int
}

// await tells the coordinator when the process of a client that vanished has ended. A rank has one watcher at most, and none while a later
// client holds it: a connection that is cut again and again costs no more descriptors than one that is cut once.
func (e *Engine) await(k ringKey, x *shm.Exit) {
	if x == nil {
		return
	}
	of := rankOf{k.job, k.rank}
	e.mu.Lock()
	if e.mu.stopped || e.heldSince(k) {
		e.mu.Unlock()
		_ = x.Close()
		return
	}
	if e.mu.exits == nil {
		e.mu.exits = map[rankOf]*shm.Exit{}
	}
	if old := e.mu.exits[of]; old != nil {
		_ = old.Close()
	}
	e.mu.exits[of] = x
	e.wg.Add(1)
	e.mu.Unlock()
	go func() {
		defer e.wg.Done()
		ended := x.Wait() == nil
		e.mu.Lock()
		if e.mu.exits[of] == x {
			delete(e.mu.exits, of)
		}
		e.mu.Unlock()
		_ = x.Close()
		if ended {
			e.send(coordinator.ClientGone{Job: k.job, Rank: k.rank, Inc: k.inc})
		}
	}()
}

// heldSince tells whether a later client holds the rank. Caller holds e.mu.
func (e *Engine) heldSince(k ringKey) bool {
	for r := range e.mu.rings { // order-free: one is enough
		if r.job == k.job && r.rank == k.rank && r.inc > k.inc {
			return true
		}
	}
	return false
}

// came ends the watch of a rank that has a client again. Caller holds e.mu.
func (e *Engine) came(k ringKey) {
	of := rankOf{k.job, k.rank}
	if x := e.mu.exits[of]; x != nil {
		delete(e.mu.exits, of)
		_ = x.Close() // its Wait returns
	}
}
