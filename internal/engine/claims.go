package engine

import (
	"context"
	"slices"
	"sync"

	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/engine/ring"
	"larder/internal/ident"
	"larder/internal/session"
	"larder/internal/shm"
)

// claims are the processes that registered a job by a session and have not attached to it yet. While one of them lives,
// the job waits for it: a session that was cut comes back with the next call. When the last one is gone the coordinator
// begins the job's lease. A job that came over gRPC has none, and waits. It is safe for concurrent use.
type claims struct {
	send func(coordinator.Event) bool
	over func(ident.JobID) bool // the job has ended
	mu   struct {               // held while something is sent, which the coordinator therefore must never wait for
		sync.Mutex
		jobs    map[ident.JobID][]*claim
		stopped bool
	}
	running sync.WaitGroup // watches of processes
}

// claim is one process.
type claim struct {
	process string      // see ring.ProcessOf; empty = it cannot be watched, and is gone with its session
	exit    *shm.Exit   // once its session has ended
	forget  func() bool // the end of the session
}

func newClaims(send func(coordinator.Event) bool, over func(ident.JobID) bool) *claims {
	c := &claims{send: send, over: over}
	c.mu.jobs = map[ident.JobID][]*claim{}
	return c
}

// registrant is the process that asks by a session; nil: it asks otherwise, as larder jobs register does.
func registrant(ctx context.Context) *record.Client {
	if _, ok := session.LifeFrom(ctx); !ok {
		return nil
	}
	peer, _ := shm.PeerFrom(ctx)
	return &record.Client{Process: ring.ProcessOf(peer)}
}

// hold has a job wait for a process that registered it by a session.
func (c *claims) hold(ctx context.Context, id ident.JobID) {
	by := registrant(ctx)
	life, ok := session.LifeFrom(ctx)
	if by == nil || !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	if c.mu.stopped {
		return
	}
	if len(c.mu.jobs[id]) == 0 {
		c.send(coordinator.Registrant{Job: id, Lives: true})
	}
	k := &claim{process: by.Process}
	c.mu.jobs[id] = append(c.mu.jobs[id], k)
	k.forget = context.AfterFunc(life, func() { c.cut(id, k) })
}

// expect has a restored job wait for the process that registered it; false: that has ended.
func (c *claims) expect(id ident.JobID, process string) bool {
	x := ring.Living(process)
	if x == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.jobs[id] = append(c.mu.jobs[id], &claim{process: process, exit: x})
	return true
}

// start watches the expected processes.
func (c *claims) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, list := range c.mu.jobs { // order-free: all are watched
		for _, k := range list {
			if k.exit != nil {
				c.watch(id, k)
			}
		}
	}
}

// watch waits for the end of a process. c.mu is held.
func (c *claims) watch(id ident.JobID, k *claim) {
	c.running.Go(func() {
		if k.exit.Wait() == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.gone(id, k)
		}
	})
}

// cut notes that the session of a process ended: the process may live.
func (c *claims) cut(id ident.JobID, k *claim) {
	x := ring.Living(k.process)
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.mu.jobs[id]
	watched := slices.ContainsFunc(list, func(o *claim) bool { return o.exit != nil && o.process == k.process })
	known := slices.Contains(list, k) // else the job has a client, or has ended
	if x != nil && known && !watched && !c.mu.stopped && !c.over(id) {
		k.exit = x
		c.watch(id, k)
		return
	}
	if x != nil {
		_ = x.Close()
	}
	c.gone(id, k)
}

// gone drops a process, and says so if it was the last one of its job. c.mu is held.
func (c *claims) gone(id ident.JobID, k *claim) {
	i := slices.Index(c.mu.jobs[id], k)
	if i < 0 {
		return
	}
	k.end()
	if c.mu.jobs[id] = slices.Delete(c.mu.jobs[id], i, i+1); len(c.mu.jobs[id]) == 0 {
		delete(c.mu.jobs, id)
		c.send(coordinator.Registrant{Job: id})
	}
}

// drop forgets the processes of a job that has a client: from now on its ranks have leases.
func (c *claims) drop(id ident.JobID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.mu.jobs[id] {
		k.end()
	}
	delete(c.mu.jobs, id)
}

// sweep drops those of jobs that have ended. c.mu is held.
func (c *claims) sweep() {
	for id, list := range c.mu.jobs { // order-free: each by itself
		if !c.over(id) {
			continue
		}
		for _, k := range list {
			k.end()
		}
		delete(c.mu.jobs, id)
	}
}

// stop ends all watches.
func (c *claims) stop() {
	c.mu.Lock()
	c.mu.stopped = true
	for id, list := range c.mu.jobs { // order-free: all end
		for _, k := range list {
			k.end()
		}
		delete(c.mu.jobs, id)
	}
	c.mu.Unlock()
	c.running.Wait()
}

func (k *claim) end() {
	if k.forget != nil {
		k.forget()
	}
	if k.exit != nil {
		_ = k.exit.Close() // its Wait returns
	}
}
