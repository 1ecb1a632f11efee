package crew

import (
	"fmt"
	"strings"
	"time"

	"larder/internal/session/wire"
)

// A worker ends, and only its parent knows how: by which signal, with which exit code. The parent, who is the client,
// starts another worker in its place, and that one's WORK says it.

// grace is after how long it is looked whether a client outlived its worker.
const grace = 250 * time.Millisecond

// mostLooks is how often that is looked at while a client lives that is yet to say how its worker ended. One whose
// script computes says it late.
const mostLooks = 20

// client is who started a worker.
type client struct {
	name  string
	uid   uint32
	tells bool // it says how its workers ended
}

// verdicts are the ends of workers that are yet to be judged.
type verdicts struct {
	tasks map[*task]*verdict // that workers had that ended, until it is known whether that counts
	told  map[*Worker]string // how workers ended whose sessions are yet to be seen to end
}

type verdict struct {
	w     *Worker
	why   string
	looks int
	stop  func() bool
}

func newVerdicts() verdicts { return verdicts{map[*task]*verdict{}, map[*Worker]string{}} }

// judge gives a task again that a worker had that ended. It counts for the sample only if the worker's client says that
// it ended, or is still there a moment later: workers that leave with their client are no sign of a bad sample.
func (c *Crew) judge(w *Worker, t *task, why string) {
	c.mu.Lock()
	how, told := c.mu.judged.told[w]
	switch {
	case c.mu.stopped:
		c.mu.Unlock()
		t.release()
	case told:
		c.mu.Unlock()
		c.again(w, t, addTo(why, ": "+how), true)
	default:
		v := &verdict{w: w, why: why}
		c.mu.judged.tasks[t] = v
		v.stop = c.cfg.After(grace, func() { lookAgain(c, t, v) })
		c.mu.Unlock()
	}
}

// lookAgain judges, unless the client is there and may still say how its worker ended.
func lookAgain(c *Crew, t *task, v *verdict) {
	c.mu.Lock()
	if c.mu.judged.tasks[t] != v {
		c.mu.Unlock()
		return
	}
	lives := v.w.client.name != "" && v.w.client.tells && c.cfg.Rings.Attached(v.w.client.name)
	for _, o := range c.mu.workers {
		lives = lives || v.w.client.name != "" && o.client.name == v.w.client.name && o.client.uid == v.w.client.uid
	}
	if v.looks++; lives && v.w.client.tells && v.looks < mostLooks {
		v.stop = c.cfg.After(grace, func() { lookAgain(c, t, v) })
		c.mu.Unlock()
		return
	}
	delete(c.mu.judged.tasks, t)
	c.mu.Unlock()
	c.again(v.w, t, v.why, lives)
}

// hear takes what a client says of a worker of its own that ended.
func hear(c *Crew, from client, ended wire.EndedWorker) {
	is := func(w *Worker) bool {
		return w.client.name == from.name && w.client.uid == from.uid && w.pid == ended.PID
	}
	var of []*task
	var how []*verdict
	c.mu.Lock()
	for _, w := range c.mu.workers {
		if is(w) {
			c.mu.judged.told[w] = ended.How
		}
	}
	for t, v := range c.mu.judged.tasks { // order-free: a worker was at one task
		if is(v.w) {
			v.stop()
			delete(c.mu.judged.tasks, t)
			of, how = append(of, t), append(how, v)
		}
	}
	c.mu.Unlock()
	for i, t := range of {
		c.again(how[i].w, t, addTo(how[i].why, ": "+ended.How), true)
	}
}

// tried adds to a reason how often its sample was tried.
func tried(why string, times int) string {
	if times < 2 {
		return why
	}
	return addTo(why, fmt.Sprintf("; it was tried %d times", times))
}

// addTo adds to the first line of a reason; a traceback may follow.
func addTo(why, more string) string {
	first, rest, several := strings.Cut(why, "\n")
	if !several {
		return first + more
	}
	return first + more + "\n" + rest
}
