package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// scheduleAsBatch moves every thread of this process from Linux's default scheduling policy to SCHED_BATCH, whose
// threads never take a processor from a running one because they have just been woken. Without it each batch that a
// client releases wakes the daemon on the client's processor, in the middle of the client's training step. Shares of
// processor time stay as they are. A process that was started under another policy keeps it.
//
// Threads that start later inherit the policy of the thread that starts them, so this repeats until all have it.
func scheduleAsBatch() error {
	for range mostRounds {
		changed, err := moveThreads()
		if err != nil || !changed {
			return err
		}
	}
	return errors.New("the kernel accepts SCHED_BATCH and does not apply it")
}

// mostRounds bounds the rounds in which new threads are looked for: a sandbox may ignore the system call.
const mostRounds = 100

func moveThreads() (changed bool, err error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false, fmt.Errorf("list the threads of the daemon: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return false, fmt.Errorf("thread %q: %w", t.Name(), err)
		}
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) { // it ended meanwhile
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read the scheduling policy of thread %d: %w", id, err)
		}
		if attr.Policy != unix.SCHED_NORMAL {
			continue
		}
		attr.Policy = unix.SCHED_BATCH // the nice value stays
		if err := unix.SchedSetAttr(id, attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, fmt.Errorf("schedule thread %d as SCHED_BATCH: %w", id, err)
		}
		changed = true
	}
	return changed, nil
}
