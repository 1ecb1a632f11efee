package ring

import (
	"encoding/json"
	"os"

	"larder/internal/shm"
)

// A client that loses its connection, or its daemon, notices with its next call: a Loader has no thread. So the lease
// of its job does not run out while its process lives. The journal knows the process of every rank's client, for the
// next daemon.

// ProcessOf names the process at the other end of a session; empty where it cannot be distinguished from a later
// process of that number, or is this one.
func ProcessOf(peer shm.Peer) string {
	if peer.PID <= 0 || int(peer.PID) == os.Getpid() {
		return ""
	}
	p, err := shm.ProcessOf(peer.PID)
	if err != nil {
		return ""
	}
	text, err := json.Marshal(p)
	if err != nil {
		return ""
	}
	return string(text)
}

// Living watches the process that ProcessOf named; nil = it has ended, or it cannot be watched.
func Living(process string) *shm.Exit {
	var p shm.Process
	if process == "" || json.Unmarshal([]byte(process), &p) != nil {
		return nil
	}
	x, err := p.Watch()
	if err != nil {
		return nil
	}
	return x
}
