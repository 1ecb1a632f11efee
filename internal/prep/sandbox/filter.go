package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allowed are the system calls of a child that decodes: those of Go's runtime, of the C library's memory and threads,
// and reading and writing what is open. Opening, sockets, programs, mounts and signals to others are not among them.
// onlyHere has those of one architecture.
var allowed = []uintptr{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_BRK,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_NANOSLEEP,
	unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM, unix.SYS_GETPID,
	unix.SYS_GETTID, unix.SYS_GETRUSAGE, unix.SYS_RESTART_SYSCALL, unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST,
	unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT,
}

// Offsets of struct seccomp_data. Arguments have 8 bytes each; only their lower halves are looked at.
const (
	offNumber   = 0
	offArch     = 4
	offArgument = 16
)

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// jump goes on n instructions further if it does not hold that what was loaded is k, or has its bits.
func jump(how uint16, k uint32, n uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jf: n, K: k}
}

func ret(what uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
}

const (
	allow  = uint32(unix.SECCOMP_RET_ALLOW)
	refuse = uint32(unix.SECCOMP_RET_ERRNO | unix.EPERM)
)

// program is the filter of a child: what is not allowed fails with EPERM. Each call has its own two answers, so no
// path of the filter compares an argument with the number of a call.
func program(arch uint32, pid int) []unix.SockFilter {
	p := []unix.SockFilter{
		load(offArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: arch},
		ret(uint32(unix.SECCOMP_RET_KILL_PROCESS)), // calls of another architecture have other numbers
		load(offNumber),
	}
	for _, n := range slices.Concat(allowed, onlyHere) {
		p = append(p, jump(unix.BPF_JEQ, uint32(n), 1), ret(allow))
	}
	// one call whose argument decides
	check := func(call uint32, argument uint32, how uint16, k, yes, no uint32) {
		p = append(p, jump(unix.BPF_JEQ, call, 4), load(offArgument+8*argument), jump(how, k, 1), ret(yes), ret(no))
	}
	check(unix.SYS_MMAP, 2, unix.BPF_JSET, unix.PROT_EXEC, refuse, allow) // memory that holds no code
	check(unix.SYS_MPROTECT, 2, unix.BPF_JSET, unix.PROT_EXEC, refuse, allow)
	check(unix.SYS_CLONE, 0, unix.BPF_JSET, unix.CLONE_THREAD, allow, refuse) // threads, no processes
	check(unix.SYS_TGKILL, 0, unix.BPF_JEQ, uint32(pid), allow, refuse)       // how the runtime ends after a crash
	// clone3 has its flags in memory, which no filter sees: without it the C library takes clone
	p = append(p, jump(unix.BPF_JEQ, unix.SYS_CLONE3, 1), ret(uint32(unix.SECCOMP_RET_ERRNO|unix.ENOSYS)))
	return append(p, ret(refuse))
}

// lockCalls puts the filter on every thread, for good. No thread can gain rights by starting a program then.
func lockCalls() error {
	if auditArch == 0 {
		return fmt.Errorf("no filter is written for %s", runtime.GOARCH)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	p := program(auditArch, os.Getpid())
	f := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	// #nosec G103: the call takes a pointer
	stuck, _, err := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&f)))
	runtime.KeepAlive(p)
	switch {
	case err != 0:
		return fmt.Errorf("seccomp: %w", err)
	case stuck != 0:
		return errors.New("seccomp: a thread did not take the filter")
	}
	return nil
}
