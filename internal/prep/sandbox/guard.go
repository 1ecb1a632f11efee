package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/prep"
	"larder/internal/units"
)

// guard gives up everything that decoding does not need. It runs before the first image; the shared memory is mapped.
// What cannot be given up is in Lacks, with the reason.
func guard(x *setup) (s State) {
	give := func(what string, err error) {
		if err != nil {
			s.Lacks = append(s.Lacks, what+" ("+printable(err.Error())+")")
			return
		}
		s.In = append(s.In, what)
	}
	time.AfterFunc(time.Hour, func() {}).Stop() // the runtime opens what its timers need
	// rather this process than the daemon
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	closing := closeOthers() // while /proc can be read
	bound, size := errors.Join(limitMemory(x.Limits), limitRest()), memoryOf(x.Limits)
	if x.Drop {
		give("user "+strconv.Itoa(User), dropUser())
	} else {
		s.Lacks = append(s.Lacks, "a user of its own (the daemon is not root)")
	}
	if x.NoNet {
		s.In = append(s.In, "a network of its own")
	}
	give("no descriptors but its own", closing)
	give("memory up to "+units.Size(size), bound)
	give("not to be traced", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	give("it ends with the daemon", diesWith(x.Parent))
	give("seccomp: no files, sockets, programs or signals to others", lockCalls())
	return s
}

// closeOthers closes every descriptor but those that the daemon gave, and those that the runtime has for itself.
func closeOthers() error {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd == 2 || fd == linkFD {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || strings.HasPrefix(to, "anon_inode:") {
			continue // it is gone, or an epoll instance and its like, by which nothing can be reached
		}
		_ = unix.Close(fd)
	}
	return nil
}

// overhead is what a child may take beside what it has at its start and what one image takes: the heap of the runtime
// between two collections, stacks, memory that the C library keeps.
const overhead = 256 << 20

// memoryOf is how much private memory a child may take beyond what it has at its start. An image may take
// Limits.MaxBytes; the garbage of the one before may lie beside it.
func memoryOf(l prep.Limits) int64 { return 2*imageBytes(l) + overhead }

func imageBytes(l prep.Limits) int64 {
	if l.MaxBytes <= 0 {
		return 1 << 30
	}
	return min(l.MaxBytes, math.MaxInt64/8)
}

// limitMemory bounds private memory and address space. What a child allocates beyond fails, and it ends.
func limitMemory(l prep.Limits) error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	has := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "VmData:" || f[0] == "VmSize:") {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return err
			}
			has[f[0]] = kib << 10
		}
	}
	more := memoryOf(l)
	// The runtime and the C library reserve address space that they do not use: 64 MiB a thread, and more.
	const reserve = 4 << 30
	data, all := uint64(has["VmData:"]+more), uint64(has["VmSize:"]+more+reserve)
	return errors.Join(
		unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: data, Max: data}),
		unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: all, Max: all}))
}

// limitRest forbids core dumps, writing files and opening descriptors: where there is no seccomp, the last is what
// keeps a child from files and sockets.
func limitRest() error {
	var problems []error
	for _, what := range []int{unix.RLIMIT_CORE, unix.RLIMIT_FSIZE, unix.RLIMIT_NOFILE} {
		problems = append(problems, unix.Setrlimit(what, &unix.Rlimit{}))
	}
	return errors.Join(problems...)
}

// dropUser becomes nobody, on every thread, with no group and no capability left.
func dropUser() error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(User, User, User); err != nil {
		return fmt.Errorf("setgid: %w", err)
	}
	if err := syscall.Setresuid(User, User, User); err != nil {
		return fmt.Errorf("setuid: %w", err)
	}
	return nil
}

// diesWith has the kernel end this process when the daemon ends. It follows dropUser, which would undo it.
func diesWith(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != parent {
		return errors.New("the daemon has ended")
	}
	return nil
}
