package exec

import (
	"encoding/json"
	"os"

	"larder/internal/coordinator"
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

// await tells the coordinator when the process of a client that vanished has ended.
func (e *Engine) await(k ringKey, x *shm.Exit) {
	if x == nil {
		return
	}
	e.mu.Lock()
	if e.mu.stopped {
		e.mu.Unlock()
		_ = x.Close()
		return
	}
	if e.mu.exits == nil {
		e.mu.exits = map[*shm.Exit]bool{}
	}
	e.mu.exits[x] = true
	e.wg.Add(1)
	e.mu.Unlock()
	go func() {
		defer e.wg.Done()
		ended := x.Wait() == nil
		e.mu.Lock()
		delete(e.mu.exits, x)
		e.mu.Unlock()
		_ = x.Close()
		if ended {
			e.send(coordinator.ClientGone{Job: k.job, Rank: k.rank, Inc: k.inc})
		}
	}()
}
