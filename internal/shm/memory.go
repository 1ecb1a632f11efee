package shm

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Available estimates how many bytes this process can still take before the kernel kills a process, and says which
// limit that is: the machine's MemAvailable, or the room left in one of its control groups (v2, or the memory
// controller of v1; page cache that can be dropped counts as room). ok is false when neither can be read.
func Available() (free int64, where string, ok bool) { return available(os.DirFS("/")) }

func available(root fs.FS) (free int64, where string, ok bool) {
	free = math.MaxInt64
	if v, found := keyed(root, "proc/meminfo", "MemAvailable:"); found {
		free, where, ok = v*1024, "MemAvailable of this machine", true
	}
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return free, where, ok
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var base, limit, used, cache string
		switch {
		case parts[0] == "0" && parts[1] == "": // v2
			base, limit, used, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
		case hasWord(parts[1], "memory"): // v1
			base, limit, used, cache = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
				"total_inactive_file"
		default:
			continue
		}
		// Inside a container the path may name a group that is mounted as the root: then only the root answers.
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			at := path.Join(base, dir)
			lim, okLim := number(root, path.Join(at, limit))
			use, okUse := number(root, path.Join(at, used))
			if okLim && okUse {
				drop, _ := keyed(root, path.Join(at, "memory.stat"), cache)
				if room := max(0, lim-use+min(drop, use)); room < free {
					free, where, ok = room, "limit of the control group "+dir, true
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return free, where, ok
}

// number reads a file that holds one number; "max" is no limit.
func number(root fs.FS, name string) (int64, bool) {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return v, err == nil && v >= 0
}

// keyed reads the number after a key at the start of a line.
func keyed(root fs.FS, name, key string) (int64, bool) {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) >= 2 && f[0] == key {
			v, err := strconv.ParseInt(f[1], 10, 64)
			return v, err == nil && v >= 0 && v < math.MaxInt64/1024
		}
	}
	return 0, false
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
