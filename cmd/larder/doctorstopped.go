package main

import (
	"net"

	"larder/internal/proc"
	"larder/internal/shm"
)

// suspended is the process that listens on a socket, if somebody has stopped it (SIGSTOP, a debugger): the kernel still
// takes connections for it. 0 = there is none, it works, or its process cannot be seen.
func suspended(socket string) int {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0
	}
	defer c.Close()
	if p, err := shm.PeerOf(c); err == nil && p.PID > 0 && proc.Stopped(int(p.PID)) {
		return int(p.PID)
	}
	return 0
}
