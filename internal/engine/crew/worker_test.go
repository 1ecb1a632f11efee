package crew

import (
	"testing"
	"time"

	"larder/internal/session/wire"
	"larder/internal/testenv"
)

// slowHand takes its first task only when it is let go.
type slowHand struct {
	*hand
	first, open chan struct{}
}

func (h *slowHand) Give(freed []uint64, tasks []wire.TaskFrame) {
	if tasks[0].Sample == 1 {
		close(h.first)
		<-h.open
	}
	h.hand.Give(freed, tasks)
}

// Tasks are sent in the order in which the worker has them, whichever goroutines give them: the oldest is blamed.
func TestTasksAreSentInOrder(t *testing.T) {
	r := newRig(t)
	h := &slowHand{&hand{came: make(chan struct{}, 16)}, make(chan struct{}), make(chan struct{})}
	w, _ := r.attachAs(&wire.WorkRequest{PID: 1}, 1<<12, h)
	defer w.Close(true)
	r.prepare(1, false)
	<-h.first // the feeder gives it
	r.prepare(2, false)
	took, pumped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(pumped)
		for { // the feeder is busy: what it would put into the queue is put there for it
			r.Crew.mu.Lock()
			added := r.Crew.mu.added
			r.Crew.mu.added = nil
			for _, k := range added {
				r.enqueue(k)
			}
			r.Crew.mu.Unlock()
			if len(added) > 0 {
				break
			}
		}
		close(took)
		w.pump()
	}()
	<-took
	testenv.Eventually(t, "it has overtaken the feeder, or waits for it", func() bool {
		select {
		case <-pumped:
			return true
		default:
		}
		waiting, all := testenv.Parked("crew.TestTasksAreSentInOrder.func1")
		return all == 1 && waiting == 1
	})
	close(h.open)
	<-pumped
	for _, want := range []uint64{1, 2} {
		if k := h.take(t); k.Sample != want {
			t.Errorf("sample %d came, want %d", k.Sample, want)
		}
	}
}

// A worker that guesses the number of a task whose input is still copied breaks the protocol.
func TestUnsentTasksAreNotAnswered(t *testing.T) {
	r := newRig(t)
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	r.prepare(1, false)
	k := h.take(t)
	b := blobOf(t, 10)
	sent := func(is bool) {
		r.Crew.mu.Lock()
		w.held[0].sent = is
		r.Crew.mu.Unlock()
	}
	sent(false)
	if err := w.put(mem, b, k.Task); err == nil {
		t.Fatal("DONE of a task that was not sent was taken")
	}
	if err := w.Failed(k.Task, wire.Failure{Type: "E"}); err == nil {
		t.Error("FAILED of a task that was not sent was taken")
	}
	sent(true)
	if err := w.put(mem, b, k.Task); err != nil {
		t.Error(err)
	}
	if p := r.waitFor(1); p.Err != "" {
		t.Errorf("%+v", p)
	}
}

// Answers to other tasks do not prolong the deadline of the oldest one.
func TestTheOldestTaskHasADeadline(t *testing.T) {
	r := newRig(t)
	r.prepare(1, false)
	r.prepare(2, false)
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	h.take(t)
	second := h.take(t)
	r.clock.pass(900 * time.Millisecond)
	if err := w.put(mem, blobOf(t, 10), second.Task); err != nil {
		t.Fatal(err)
	}
	r.clock.pass(100 * time.Millisecond)
	if len(h.gone) != 1 {
		t.Error("a worker with a task of 1 s in hand stays")
	}
}
