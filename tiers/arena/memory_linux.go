package arena

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// madvPopulateWrite is MADV_POPULATE_WRITE (Linux 5.14): fault pages in for writing, without touching their content.
const madvPopulateWrite = 23

// memory is one anonymous mapping.
type memory struct {
	data  []byte
	whole []byte // data, and what was mapped beside it to place it on a boundary
}

// mapMemory reserves n bytes of address space; pages come with commit. Nobody but this process reads them, so they need
// no file: a page of a memfd costs the kernel 1.6 to 2.1 times as much to provide (docs/measurements/daemon.md). Huge
// pages are off unless asked for, where a huge one would hold what the budget does not count. Address space is all that
// a boundary costs: what lies beside it is never touched.
func mapMemory(name string, n int64, huge bool) (*memory, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	room, advice := n, unix.MADV_NOHUGEPAGE
	if huge {
		room, advice = n+hugeBytes, unix.MADV_HUGEPAGE
	}
	whole, err := unix.Mmap(-1, 0, int(room), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", n, os.NewSyscallError("mmap", err))
	}
	m := &memory{data: whole, whole: whole}
	if huge {
		skip := -int64(uintptr(unsafe.Pointer(&whole[0]))) & (hugeBytes - 1)
		m.data = whole[skip : skip+n : skip+n]
	}
	if err := unix.Madvise(m.data, advice); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it has none
		_ = unix.Munmap(whole)
		return nil, fmt.Errorf("choose the size of pages: %w", os.NewSyscallError("madvise", err))
	}
	nameMemory(m.data, name)
	return m, nil
}

// usualPages makes the kernel give the range small pages from now on. When it cannot, the range only may take more
// memory than the budget counts, up to a huge page.
func (m *memory) usualPages(off, n int64) {
	_ = unix.Madvise(m.data[off:off+n], unix.MADV_NOHUGEPAGE)
}

// nameMemory gives a mapping its name in /proc/PID/maps, [anon:NAME] (Linux 5.17). A kernel that has no names has none.
func nameMemory(data []byte, name string) {
	if text, err := unix.BytePtrFromString(name); err == nil {
		// Not unix.Prctl: that is a Go function, during which text could move or be freed before the kernel reads it.
		_, _, _ = unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME,
			uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(unsafe.Pointer(text)), 0)
	}
}

// commit gives the range its pages, and maps them, so that the writer pays no faults. It fails where a plain write
// would kill the process: when there is no memory. A kernel that cannot populate gives the pages to plain writes.
func (m *memory) commit(off, n int64) error {
	for {
		err := unix.Madvise(m.data[off:off+n], madvPopulateWrite)
		if err == unix.EINVAL {
			for i := off; i < off+n; i += Granule {
				m.data[i] = 0
			}
			return nil
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			return os.NewSyscallError("commit", err)
		}
	}
}

// decommit gives the pages of the range back to the kernel; what is read there afterwards is zero.
func (m *memory) decommit(off, n int64) error {
	for {
		err := unix.Madvise(m.data[off:off+n], unix.MADV_DONTNEED)
		if err == unix.ENOMEM { // a part has no mapping; the rest was returned
			return nil
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			return os.NewSyscallError("decommit", err)
		}
	}
}

func (m *memory) unmap() error {
	err := unix.Munmap(m.whole)
	m.data, m.whole = nil, nil
	return os.NewSyscallError("munmap", err)
}
