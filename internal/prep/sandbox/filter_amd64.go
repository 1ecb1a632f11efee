package sandbox

import "golang.org/x/sys/unix"

const auditArch = uint32(unix.AUDIT_ARCH_X86_64)

// Calls of the x32 interface have the same architecture and numbers from 0x40000000 on: none of these.
var onlyHere = []uintptr{unix.SYS_EPOLL_WAIT, unix.SYS_ARCH_PRCTL, unix.SYS_TIME}
