package engine

import "sync"

// keeper does things in order in a goroutine of its own. The engine has two. One carries out what the coordinator decided
// about the tiers and may be slow: new budgets (pages go back to the kernel) and what leaves. Work that was decided
// later waits for it where the order matters: an entry is not stored again before it was freed, and a tier grows after
// another one has shrunk. The other one writes log lines: stderr may be a pipe that nobody empties.
type keeper struct {
	mu struct {
		sync.Mutex
		queue       []func()
		added, done uint64
		stopped     bool
	}
	changed *sync.Cond
}

func newKeeper() *keeper {
	k := &keeper{}
	k.changed = sync.NewCond(&k.mu.Mutex)
	return k
}

// add queues f and does not wait. What is queued for the tiers is bounded by them: an entry must be stored before it can
// leave, and storing waits.
func (k *keeper) add(f func()) {
	k.mu.Lock()
	k.mu.queue = append(k.mu.queue, f)
	k.mu.added++
	k.mu.Unlock()
	k.changed.Broadcast()
}

// waiting counts what is queued and not begun.
func (k *keeper) waiting() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.queue)
}

// mark is the number of what was added last.
func (k *keeper) mark() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.added
}

// wait returns when everything up to mark n is done, or the keeper has stopped.
func (k *keeper) wait(n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.mu.done < n && !k.mu.stopped {
		k.changed.Wait()
	}
}

// run works until stop.
func (k *keeper) run() {
	for {
		k.mu.Lock()
		for len(k.mu.queue) == 0 && !k.mu.stopped {
			k.changed.Wait()
		}
		if len(k.mu.queue) == 0 {
			k.mu.Unlock()
			return
		}
		queue := k.mu.queue
		k.mu.queue = nil
		k.mu.Unlock()
		for _, f := range queue {
			f()
			k.mu.Lock()
			k.mu.done++
			k.mu.Unlock()
			k.changed.Broadcast()
		}
	}
}

// stop lets run end when it has done what is queued.
func (k *keeper) stop() {
	k.mu.Lock()
	k.mu.stopped = true
	k.mu.Unlock()
	k.changed.Broadcast()
}
