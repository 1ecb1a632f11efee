package crew

import (
	"time"

	"larder/internal/engine/work"
)

// View is a worker as users see it.
type View struct {
	ID     uint32
	PID    int32
	UID    uint32
	Client string
	Tasks  int
	Done   uint64
	Busy   time.Duration // on the oldest of its tasks; 0 = it has none
}

// State is what there is for a job.
type State struct {
	Workers []View // that can make its samples
	Tasks   int    // of the job that no worker has
}

// Of returns the workers that can make samples of a job, and how many of its tasks no worker has.
func (c *Crew) Of(j *work.Job) State {
	prefix := fit{j.Recipe.Prefix(), false, j.ID}
	whole := fit{j.Recipe.ID(), true, j.ID}
	now := c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{}
	for _, w := range c.mu.workers {
		if !c.serves(w, prefix, true) && !c.serves(w, whole, true) {
			continue
		}
		v := View{ID: w.id, PID: w.pid, UID: w.client.uid, Client: w.client.name, Tasks: len(w.held), Done: w.done}
		if v.Tasks > 0 {
			v.Busy = now.Sub(w.oldest)
		}
		s.Workers = append(s.Workers, v)
	}
	for _, f := range c.mu.order {
		if f.job == j.ID {
			s.Tasks += c.mu.queues[f].len()
		}
	}
	s.Tasks += c.mu.reads.waiting(func(f fit) bool { return f.job == j.ID })
	return s
}

// Attached counts the workers, Waiting the tasks that none of them has.
func (c *Crew) Attached() (workers, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.mu.order {
		waiting += c.mu.queues[f].len()
	}
	waiting += c.mu.reads.waiting(func(fit) bool { return true })
	return len(c.mu.workers), waiting
}

// Held is the bytes of records that no tier holds: working copies, and what lies between two stages of a task.
func (c *Crew) Held() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.mu.held { // order-free: a sum
		n += b
	}
	return n
}
