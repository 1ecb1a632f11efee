package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// scheduled POLICY FILE: every thread of the daemon whose status (-o json) is in FILE has this scheduling policy.
func cmdScheduled(ts *testscript.TestScript, neg bool, args []string) {
	policies := map[string]uint32{"other": unix.SCHED_NORMAL, "batch": unix.SCHED_BATCH, "idle": unix.SCHED_IDLE}
	if neg || len(args) != 2 {
		ts.Fatalf("usage: scheduled POLICY FILE")
	}
	want, known := policies[args[0]]
	if !known {
		ts.Fatalf("no policy %q", args[0])
	}
	var status struct{ PID int }
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &status))
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", status.PID))
	ts.Check(err)
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		ts.Check(err)
		attr, err := unix.SchedGetAttr(id, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		ts.Check(err)
		if attr.Policy != want {
			ts.Fatalf("thread %d of daemon %d has policy %d, want %d (%s)", id, status.PID, attr.Policy, want, args[0])
		}
	}
	if len(threads) < 2 {
		ts.Fatalf("daemon %d has %d threads", status.PID, len(threads))
	}
}
