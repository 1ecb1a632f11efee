package work

import "sync"

// Serial runs functions in order, in the goroutine of Run. It is safe for concurrent use.
//
// The daemon has two. One carries out what the coordinator decided about the tiers and may be slow: new budgets
// (pages return to the kernel) and entries that leave. Work that was decided later waits for it where the order
// matters: an entry is not stored again before it was freed, and a tier grows after another one has shrunk. The other
// one writes log lines: stderr may be a pipe that is not read.
type Serial struct {
	mu struct {
		sync.Mutex
		queue       []func()
		added, done uint64
		stopped     bool
	}
	changed *sync.Cond
}

// NewSerial returns a Serial with an empty queue.
func NewSerial() *Serial {
	k := &Serial{}
	k.changed = sync.NewCond(&k.mu.Mutex)
	return k
}

// Add queues f and does not wait. What is queued for the tiers is bounded by them: an entry must be stored before it
// can leave, and storing waits.
func (k *Serial) Add(f func()) {
	k.mu.Lock()
	k.mu.queue = append(k.mu.queue, f)
	k.mu.added++
	k.mu.Unlock()
	k.changed.Broadcast()
}

// Waiting counts what is queued and not begun.
func (k *Serial) Waiting() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.queue)
}

// Mark is the number of what was added last.
func (k *Serial) Mark() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.added
}

// Wait returns when everything up to mark n is done, or after Stop.
func (k *Serial) Wait(n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.mu.done < n && !k.mu.stopped {
		k.changed.Wait()
	}
}

// Run works until Stop.
func (k *Serial) Run() {
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

// Stop lets Run end when it has done what is queued.
func (k *Serial) Stop() {
	k.mu.Lock()
	k.mu.stopped = true
	k.mu.Unlock()
	k.changed.Broadcast()
}
