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
	CPUs       int     // cores this process may use
	Quota      float64 // cores whose time the control group gives, 0 = no limit
	RAM        int64   // bytes, 0 = unknown
	Cgroup     int64   // memory limit of the control group in bytes, 0 = none
	CgroupFile string  // where the limit was read
	IndexDir   string  // default folder of saved indexes, "" = none can be saved
	StateDir   string  // default folder of what survives the daemon, "" = there is none
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
	m.Quota = cpuQuota(root)
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

// cgroupLimit finds the smallest limit on memory.
func cgroupLimit(root fs.FS) (limit int64, file string) {
	groups(root, "memory", func(dir string, v2 bool) {
		name := path.Join(dir, "memory.limit_in_bytes")
		if v2 {
			name = path.Join(dir, "memory.max")
		}
		n, ok := number(root, name)
		if !ok || n <= 0 || n > 1<<60 { // "max", or v1's "no limit" near 2^63
			return
		}
		if limit == 0 || n < limit {
			limit, file = n, "/"+name
		}
	})
	return limit, file
}

// cpuQuota finds the smallest limit on processor time, in cores; 0 = there is none.
func cpuQuota(root fs.FS) (least float64) {
	groups(root, "cpu", func(dir string, v2 bool) {
		var quota, period int64
		var ok1, ok2 bool
		if v2 {
			raw, _ := fs.ReadFile(root, path.Join(dir, "cpu.max"))
			if f := strings.Fields(string(raw)); len(f) == 2 {
				quota, ok1 = parsed(f[0])
				period, ok2 = parsed(f[1])
			}
		} else {
			quota, ok1 = number(root, path.Join(dir, "cpu.cfs_quota_us"))
			period, ok2 = number(root, path.Join(dir, "cpu.cfs_period_us"))
		}
		if !ok1 || !ok2 || quota <= 0 || period <= 0 { // "max", or -1
			return
		}
		if q := float64(quota) / float64(period); least == 0 || q < least {
			least = q
		}
	})
	return least
}

func number(root fs.FS, name string) (int64, bool) {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	return parsed(string(raw))
}

func parsed(s string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return n, err == nil
}

// groups visits the folders from the process's own group to the root: a parent's limit binds too. Inside a container
// the path in /proc/self/cgroup may not exist below /sys; then the mounted root is the group.
func groups(root fs.FS, controller string, visit func(dir string, v2 bool)) {
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return
	}
	walk := func(mount, group string, v2 bool) {
		group = path.Clean("/" + group)
		for {
			visit(path.Join(mount, group), v2)
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
			walk("sys/fs/cgroup", f[2], true)
		case hasController(f[1], controller):
			walk("sys/fs/cgroup/"+controller, f[2], false)
		}
	}
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}
