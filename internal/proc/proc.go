// Package proc reports whether processes of this machine are about to end, and what a process of this program died of.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// Patience is how long a start waits for a process that is dying: giving tens of GiB back takes the kernel seconds.
const Patience = 10 * time.Second

const (
	exiting = 0x4    // PF_EXITING of the kernel
	sigkill = 1 << 8 // bit of SIGKILL in a mask of signals
	look    = 10 * time.Millisecond
)

// Dying reports whether a process has ended, is being torn down, or has a SIGKILL that it cannot escape. It may still
// hold locks and sockets for as long as the kernel takes to free its memory. What cannot be seen is taken to live.
func Dying(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	// state, ppid, pgrp, session, tty, tpgid, flags
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	if flags, err := strconv.ParseUint(fields[6], 10, 64); fields[0] == "Z" || fields[0] == "X" || err == nil &&
		flags&exiting != 0 {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	for line := range strings.Lines(string(status)) {
		name, mask, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && bits&sigkill != 0 {
			return true
		}
	}
	return false
}

// Stopped reports whether a process is stopped, by a signal or a debugger. What cannot be seen is taken to run.
func Stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// Until tries something until it succeeds, while wait reports that another try makes sense and for Patience at most.
func Until(try func() error, wait func() bool) error {
	for end := time.Now().Add(Patience); ; time.Sleep(look) {
		err := try()
		if err == nil || time.Now().After(end) || !wait() {
			return err
		}
	}
}
