package config

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what the configuration needs to know about where it runs.
type Machine struct {
	CPUs       int    // cores this process may use
	RAM        int64  // bytes, 0 = unknown
	Cgroup     int64  // memory limit of the control group in bytes, 0 = none
	CgroupFile string // where the limit was read
	IndexDir   string // default folder of saved indexes, "" = none can be saved
	StateDir   string // default folder of what survives the daemon, "" = there is none
}

// Memory returns the bytes that percentages refer to: the cgroup limit where it is below RAM, else RAM.
func (m Machine) Memory() int64 {
	if m.Cgroup > 0 && (m.RAM == 0 || m.Cgroup < m.RAM) {
		return m.Cgroup
	}
	return m.RAM
}

// Source says where Memory comes from, for messages.
func (m Machine) Source() string {
	if m.Cgroup > 0 && m.Memory() == m.Cgroup {
		return "cgroup limit, " + m.CgroupFile
	}
	return "RAM"
}

// cpus follows affinity and cgroup quota. It is read before the daemon asks the runtime for more.
var cpus = runtime.GOMAXPROCS(0)

// DetectMachine looks at the machine this process runs on. What cannot be read stays 0.
func DetectMachine() Machine {
	m := detect(os.DirFS("/"))
	m.CPUs = cpus
	if dir, err := os.UserCacheDir(); err == nil {
		m.IndexDir = filepath.Join(dir, "larder", "index")
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		m.StateDir = filepath.Join(dir, "larder")
	} else if home, err := os.UserHomeDir(); err == nil {
		m.StateDir = filepath.Join(home, ".local", "state", "larder")
	}
	return m
}

// detect reads /proc and /sys below root.
func detect(root fs.FS) Machine {
	var m Machine
	m.RAM = memTotal(root)
	m.Cgroup, m.CgroupFile = cgroupLimit(root)
	return m
}

func memTotal(root fs.FS) int64 {
	data, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) >= 2 && f[0] == "MemTotal:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil || kb < 0 || kb > maxBytes>>10 {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}

// cgroupLimit finds the smallest limit on the way from the process's own group to the root: a parent's limit binds
// too. Inside a container the path in /proc/self/cgroup may not exist below /sys; then the mounted root is the group.
func cgroupLimit(root fs.FS) (limit int64, file string) {
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, ""
	}
	consider := func(name string) {
		raw, err := fs.ReadFile(root, name)
		if err != nil {
			return
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil || n <= 0 || n > 1<<60 { // "max", or v1's "no limit" near 2^63
			return
		}
		if limit == 0 || n < limit {
			limit, file = n, "/"+name
		}
	}
	walk := func(mount, group, leaf string) {
		group = path.Clean("/" + group)
		for {
			consider(path.Join(mount, group, leaf))
			if group == "/" {
				return
			}
			group = path.Dir(group)
		}
	}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), ":", 3) // id:controllers:path
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			walk("sys/fs/cgroup", f[2], "memory.max")
		case hasController(f[1], "memory"):
			walk("sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes")
		}
	}
	return limit, file
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}
