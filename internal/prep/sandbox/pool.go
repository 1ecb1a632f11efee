package sandbox

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/proc"
)

// Config is what a Pool needs.
type Config struct {
	Children int         // at most so many processes; at least 1
	Command  []string    // starts a process that runs Serve
	Env      []string    // of it, beside what it needs; for tests
	Limits   prep.Limits // of one image
	Log      *slog.Logger

	stuckLooks int // how many looks a child may do nothing; 0 = the constant of that name
}

const (
	// tries is how many children may die of an image, hang or lie, before it is bad.
	tries = 2
	// outsideTries is how many may be ended from outside beside that: by the kernel for want of memory, by a person.
	outsideTries = 6
	// mostBad is how many stored images are remembered that ended their children.
	mostBad = 1 << 12
	// firstPause and longestPause are between two starts, while children die or do not start one after the other.
	firstPause   = 10 * time.Millisecond
	longestPause = 5 * time.Second
)

// Counts is what became of children since the start.
type Counts struct {
	Started uint64
	Crashed uint64 // died of themselves, hung or lied while they had an image
	Ended   uint64 // were ended from outside
}

// Pool is processes that decode. It is safe for concurrent use, and a prep.Outside.
type Pool struct {
	cfg     Config
	stopped chan struct{}

	mu struct {
		sync.Mutex
		idle    []*child // that wait for a request; the last one was busy last
		running int      // children that run, or are being started
		callers int      // Pixels under way, until Close
		streak  int      // children that died or did not start since the last answer
		state   State
		counts  Counts
		closed  bool
		bad     map[[sha256.Size]byte]string // why, by the hash of the stored bytes
		sizes   map[int]struct{}             // of those images: others need no hash
	}
	freed *sync.Cond // a child is idle, or there may be another one
}

// Open starts the first child, so that an error says early what is wrong, and what is not in force is in the log. The
// others start when they are needed.
func Open(cfg Config) (*Pool, error) {
	if len(cfg.Command) == 0 {
		return nil, errs.New(errs.ConfigInvalid, "prep.isolation", "start the daemon with larder serve, or leave it at none",
			"prep.isolation process needs a program that decodes, and this one has none")
	}
	cfg.Children = max(cfg.Children, 1)
	if cfg.stuckLooks == 0 {
		cfg.stuckLooks = stuckLooks
	}
	p := &Pool{cfg: cfg, stopped: make(chan struct{})}
	p.freed = sync.NewCond(&p.mu.Mutex)
	p.mu.running, p.mu.bad, p.mu.sizes = 1, map[[sha256.Size]byte]string{}, map[int]struct{}{}
	c, err := p.start()
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, "prep.isolation", "see the cause, or set prep.isolation to none",
			"prep.isolation process: a process that decodes could not be started").Because(err)
	}
	p.put(c)
	return p, nil
}

// Stop has Pixels return prep.ErrStopped from now on, and start no child. It does not wait for those under way.
func (p *Pool) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.closed {
		p.mu.closed = true
		close(p.stopped)
	}
	p.freed.Broadcast()
}

// Close stops the Pool, waits for what is under way, and ends the children.
func (p *Pool) Close() {
	p.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.mu.callers > 0 {
		p.freed.Wait()
	}
	for _, c := range p.mu.idle {
		c.close()
	}
	p.mu.idle = nil
}

// State is what is in force in the youngest child.
func (p *Pool) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state
}

// Counts is what became of children.
func (p *Pool) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.counts
}

// Pixels implements prep.Outside.
func (p *Pool) Pixels(enc []byte, want prep.Want, dst []byte) (prep.Area, error) {
	if !p.enter() {
		return prep.Area{}, prep.ErrStopped
	}
	defer p.leave()
	if why := p.remembered(enc); why != "" {
		return prep.Area{}, badImage(why)
	}
	var last *fault
	for faults, ended := 0, 0; faults < tries && ended <= outsideTries; {
		c, err := p.take()
		if err != nil {
			return prep.Area{}, err
		}
		if most := c.memory.Size(); pixelsAt(int64(len(enc)))+int64(len(dst)) > most {
			p.put(c)
			return prep.Area{}, errs.New(errs.SampleBad, "", "replace the file, or raise prep.max_memory",
				"the image of %d stored bytes and %d decoded ones is too large for a process that decodes", len(enc), len(dst))
		}
		got, f, err := c.ask(enc, want, dst)
		if f == nil {
			p.put(c)
			return got, err
		}
		last = f
		if f.outside {
			ended++
		} else {
			faults++
		}
		p.lost(c, f)
	}
	why := "the decoder crashed (" + last.why + ") in a process of its own, and again in another one"
	if last.outside {
		why = fmt.Sprintf("%d processes that decoded it were ended: %s", outsideTries+1, last.why)
	}
	if !last.outside {
		p.remember(enc, why)
	}
	return prep.Area{}, badImage(why)
}

func badImage(why string) error {
	return errs.New(errs.SampleBad, "", "replace the file, and please report it", "%s", why)
}

// remembered says why a stored image is bad that ended its children before.
func (p *Pool) remembered(enc []byte) string {
	p.mu.Lock()
	_, hash := p.mu.sizes[len(enc)]
	p.mu.Unlock()
	if !hash {
		return ""
	}
	sum := sha256.Sum256(enc)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.bad[sum]
}

// remember has a stored image end no more children. When there are too many all are forgotten.
func (p *Pool) remember(enc []byte, why string) {
	sum := sha256.Sum256(enc)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.bad) == mostBad {
		clear(p.mu.bad)
		clear(p.mu.sizes)
	}
	p.mu.bad[sum], p.mu.sizes[len(enc)] = why, struct{}{}
}

// enter begins a call; false = the pool has ended.
func (p *Pool) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.callers++
	return true
}

func (p *Pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.callers--
	p.freed.Broadcast()
}

// take returns a child that waits, or starts one. It waits while there may be no other one, and between starts that
// fail. The error is prep.ErrStopped.
func (p *Pool) take() (*child, error) {
	for {
		c, pause, err := p.reserve()
		if c != nil || err != nil {
			return c, err
		}
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-p.stopped:
			}
		}
		if c, err = p.start(); err == nil {
			return c, nil
		}
		p.cfg.Log.Error("a process that decodes could not be started; larder tries again", "error", err)
	}
}

// reserve returns a child that waits, or the right to start one after a pause.
func (p *Pool) reserve() (c *child, pause time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.mu.closed {
			return nil, 0, prep.ErrStopped
		}
		for n := len(p.mu.idle); n > 0; n = len(p.mu.idle) {
			c, p.mu.idle = p.mu.idle[n-1], p.mu.idle[:n-1]
			if !c.gone() {
				return c, 0, nil
			}
			p.mu.running-- // somebody ended it while it waited
			p.mu.counts.Ended++
			go c.close()
		}
		if p.mu.running < p.cfg.Children {
			p.mu.running++
			if n := p.mu.streak; n > 1 { // the first start after a crash is at once
				pause = min(firstPause<<min(n-2, 20), longestPause)
			}
			return nil, pause, nil
		}
		p.freed.Wait()
	}
}

// start starts a child that was reserved.
func (p *Pool) start() (*child, error) {
	c, err := start(&p.cfg)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.running--
		p.mu.streak++
		p.freed.Broadcast()
		return nil, err
	}
	if p.started(c) {
		level, msg := slog.LevelInfo, "images are decoded in processes of their own"
		if len(c.state.Lacks) > 0 {
			level, msg = slog.LevelWarn, "images are decoded in processes of their own, which lack some protection"
		}
		p.cfg.Log.Log(context.Background(), level, msg, "processes", p.cfg.Children, "in_force", c.state.In,
			"lacks", c.state.Lacks)
	}
	return c, nil
}

// started notes a child, and reports whether something else is in force in it than in the one before.
func (p *Pool) started(c *child) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = p.mu.counts.Started == 0 || !p.mu.state.equal(&c.state)
	p.mu.counts.Started++
	p.mu.state = c.state
	return news
}

// put gives a child back that answered.
func (p *Pool) put(c *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.streak = 0
	p.mu.idle = append(p.mu.idle, c)
	p.freed.Broadcast()
}

// lost notes that a child is gone.
func (p *Pool) lost(c *child, f *fault) {
	p.cfg.Log.Warn("a process that decoded an image has ended; another one tries", "why", f.why,
		"said", proc.SignalLine(f.said))
	c.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.running--
	p.mu.streak++
	if f.outside {
		p.mu.counts.Ended++
	} else {
		p.mu.counts.Crashed++
	}
	p.freed.Broadcast()
}
