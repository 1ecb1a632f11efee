package arena

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// madvPopulateWrite is MADV_POPULATE_WRITE (Linux 5.14): fault pages in for writing, without touching their content.
const madvPopulateWrite = 23

// memory is one sealed memfd and its mapping.
type memory struct {
	fd   int
	data []byte
}

// mapMemory makes a sparse memory of n bytes that can neither shrink nor grow, so that no reader of its descriptor
// can meet a SIGBUS.
func mapMemory(name string, n int64) (*memory, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	m := &memory{fd: fd}
	if err = unix.Ftruncate(fd, n); err != nil {
		err = os.NewSyscallError("ftruncate", err)
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		err = os.NewSyscallError("seal", err)
	} else if m.data, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		err = os.NewSyscallError("mmap", err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", n, err)
	}
	return m, nil
}

// commit gives the range its pages, and maps them, so that the writer pays no faults. It fails where a plain write
// would kill the process: when there is no memory. A kernel that cannot populate allocates, and leaves the faults.
func (m *memory) commit(off, n int64) error {
	for {
		err := unix.Madvise(m.data[off:off+n], madvPopulateWrite)
		if err == unix.EINVAL {
			err = unix.Fallocate(m.fd, 0, off, n)
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			return os.NewSyscallError("commit", err)
		}
	}
}

// decommit gives the pages of the range back to the kernel; what is read there afterwards is zero.
func (m *memory) decommit(off, n int64) error {
	for {
		err := unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err != unix.EINTR {
			return os.NewSyscallError("punch hole", err)
		}
	}
}

func (m *memory) unmap() error {
	err := unix.Munmap(m.data)
	if e := unix.Close(m.fd); err == nil {
		err = e
	}
	m.data = nil
	return os.NewSyscallError("munmap", err)
}
