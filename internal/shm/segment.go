package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/invariant"
	"larder/internal/units"
)

// seals are put on every segment that Create makes: no process can truncate it under a reader (which would be SIGBUS)
// and none can add a seal that stops us from writing.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// step is how much is allocated or touched per system call. Both calls can be interrupted by a signal, and shmem's
// fallocate then takes back all it had done in that call.
const step = 16 << 20

// maxName is what memfd_create accepts (249 bytes), less a margin.
const maxName = 200

var live struct {
	segments atomic.Int64
	bytes    atomic.Int64
}

// Live returns how many segments this process has mapped, and their total size in bytes.
func Live() (segments int, bytes int64) {
	return int(live.segments.Load()), live.bytes.Load()
}

// Segment is mapped shared memory with a reference count. Safe for concurrent use; what is written into Bytes is the
// business of its users.
type Segment struct {
	mem  []byte
	fd   int
	refs atomic.Int64
}

// Create makes a segment of size bytes, all zero, every page present and charged to this process, sealed against
// resizing. The name shows in /proc/PID/maps. A size that the machine or the control group cannot hold is a
// RESOURCE_EXCEEDED that states both numbers: the alternative is to be killed while filling it.
func Create(name string, size int64) (*Segment, error) {
	if size <= 0 || size > math.MaxInt64-step || int64(int(size)) != size {
		return nil, errs.New(errs.Invalid, name, "ask for at least one byte and less than the address space",
			"a shared segment of %d bytes cannot exist", size)
	}
	if free, where, ok := Available(); ok && size > free {
		return nil, shortage(name, size, free, where, nil)
	}
	if len(name) > maxName {
		name = name[:maxName]
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return nil, tooManyFiles(name, err)
		}
		return nil, errs.New(errs.Internal, name, "larder needs memfd_create (Linux 3.17 or later)",
			"create a shared segment of %d bytes", size).Because(err)
	}
	s, err := fill(name, fd, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// fill gives the new file its size and pages, maps and seals it. The caller closes fd on an error.
func fill(name string, fd int, size int64) (*Segment, error) {
	if err := retry(func() error { return unix.Ftruncate(fd, size) }); err != nil {
		return nil, shortage(name, size, 0, "", err)
	}
	for off := int64(0); off < size; off += step {
		n := min(step, size-off)
		if err := retry(func() error { return unix.Fallocate(fd, 0, off, n) }); err != nil {
			free, where, _ := Available()
			return nil, shortage(name, size, free, where, err)
		}
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, shortage(name, size, 0, "", err)
	}
	if err := populate(mem); err != nil {
		_ = unix.Munmap(mem)
		free, where, _ := Available()
		return nil, shortage(name, size, free, where, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(mem)
		return nil, errs.New(errs.Internal, name, "larder needs memfd seals (Linux 3.17 or later)",
			"seal a shared segment of %d bytes", size).Because(err)
	}
	return adopt(fd, mem), nil
}

// populate enters every page into the page table, writable, so that no fill pays for a first touch.
func populate(mem []byte) error {
	for off := 0; off < len(mem); off += step {
		part := mem[off:min(off+step, len(mem))]
		err := retry(func() error { return unix.Madvise(part, unix.MADV_POPULATE_WRITE) })
		if errors.Is(err, unix.EINVAL) { // before Linux 5.14; fallocate has the pages, so touching cannot fail
			for i := 0; i < len(part); i += os.Getpagesize() {
				part[i] = 0
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Map maps a segment that another process made, shared and writable. It takes ownership of fd in every case. The file
// must be at least size bytes and sealed against shrinking: otherwise its owner could kill us with SIGBUS.
func Map(fd int, size int64) (*Segment, error) {
	unix.CloseOnExec(fd)
	s, err := mapFD(fd, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func mapFD(fd int, size int64) (*Segment, error) {
	const hint = "daemon and client of one version speak to each other; restart the older one"
	if size <= 0 || int64(int(size)) != size {
		return nil, errs.New(errs.Protocol, "segment", hint, "a shared segment of %d bytes cannot exist", size)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errs.New(errs.Protocol, "segment", hint, "look at the descriptor of a shared segment").Because(err)
	}
	if st.Size < size {
		return nil, errs.New(errs.Protocol, "segment", hint, "the shared segment has %d bytes, announced were %d", st.Size,
			size)
	}
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&unix.F_SEAL_SHRINK == 0 {
		return nil, errs.New(errs.Protocol, "segment", hint, "the shared segment is not sealed against shrinking")
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errs.New(errs.ResourceExceeded, "segment",
			"raise the limit of address space (ulimit -v) or of mappings (vm.max_map_count)", "map a shared segment of %d bytes",
			size).Because(err)
	}
	return adopt(fd, mem), nil
}

// MapForeign maps memory of an untrusted process, for reading only. It takes ownership of fd in every case.
// The file must be a memfd of at least size bytes and at most limit, sealed against shrinking, growing and other seals:
// otherwise its owner could kill us with SIGBUS. Its content may change at any time.
func MapForeign(fd int, size, limit int64) (*Segment, error) {
	unix.CloseOnExec(fd)
	s, err := mapForeign(fd, size, limit)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func mapForeign(fd int, size, limit int64) (*Segment, error) {
	const hint = "make it with memfd_create, give it its size, and seal it with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"
	if size <= 0 || size > limit || int64(int(size)) != size {
		return nil, errs.New(errs.Invalid, "memory", fmt.Sprintf("announce 1 to %d bytes", limit),
			"a worker's memory of %d bytes cannot be used", size)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return nil, errs.New(errs.Invalid, "memory", hint, "look at the descriptor of a worker's memory").Because(err)
	}
	if fs.Type != unix.TMPFS_MAGIC { // huge pages have a fault of their own, files may be cut off
		return nil, errs.New(errs.Invalid, "memory", hint, "a worker's memory is no memfd of ordinary pages")
	}
	if st.Size < size {
		return nil, errs.New(errs.Invalid, "memory", hint, "a worker's memory has %d bytes, announced were %d", st.Size, size)
	}
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&seals != seals {
		return nil, errs.New(errs.Invalid, "memory", hint, "a worker's memory is not sealed")
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, errs.New(errs.ResourceExceeded, "memory",
			"raise the limit of address space (ulimit -v) or of mappings (vm.max_map_count)",
			"map a worker's memory of %d bytes", size).Because(err)
	}
	return adopt(fd, mem), nil
}

// CreateSparse makes a segment whose pages come with Reserve, for which address space is reserved alone. Processes that
// get its descriptor can map it for reading only.
func CreateSparse(name string, size int64) (*Segment, error) { return createSparse(name, size, true) }

// CreateScratch makes a segment whose pages come as they are touched, and go with Punch. Processes that get its
// descriptor may write to it too: what it holds may change at any time.
func CreateScratch(name string, size int64) (*Segment, error) { return createSparse(name, size, false) }

func createSparse(name string, size int64, mine bool) (*Segment, error) {
	if size <= 0 || int64(int(size)) != size {
		return nil, errs.New(errs.Invalid, name, "ask for at least one byte",
			"a shared segment of %d bytes cannot exist", size)
	}
	fd, err := unix.MemfdCreate(name[:min(len(name), maxName)], unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, tooManyFiles(name, err)
	}
	fail := func(err error) (*Segment, error) {
		_ = unix.Close(fd)
		return nil, shortage(name, size, 0, "", err)
	}
	if err := retry(func() error { return unix.Ftruncate(fd, size) }); err != nil {
		return fail(err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fail(err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals&^unix.F_SEAL_SEAL)
	if err == nil {
		if mine { // before Linux 5.1 a reader could write, into a copy that is its own: no other process has it
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Munmap(mem)
		return fail(err)
	}
	return adopt(fd, mem), nil
}

// Reserve makes the pages of a part of a sparse segment present, so that writing to them cannot fail.
func (s *Segment) Reserve(off, n int64) error {
	if err := retry(func() error { return unix.Fallocate(s.fd, unix.FALLOC_FL_KEEP_SIZE, off, n) }); err != nil {
		free, where, _ := Available()
		return shortage("input", n, free, where, err)
	}
	return nil
}

// Punch gives the pages of a part of the segment back; the part reads as zeros.
func (s *Segment) Punch(off, n int64) error {
	return retry(func() error {
		return unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
}

func adopt(fd int, mem []byte) *Segment {
	s := &Segment{mem: mem, fd: fd}
	s.refs.Store(1)
	live.segments.Add(1)
	live.bytes.Add(int64(len(mem)))
	return s
}

// Bytes is the memory. It may be used only while the caller holds a reference.
func (s *Segment) Bytes() []byte {
	if s.refs.Load() <= 0 {
		invariant.Violated("shm: a released segment is used")
	}
	return s.mem
}

// Size in bytes.
func (s *Segment) Size() int64 { return int64(len(s.mem)) }

// FD is the descriptor, which stays the segment's: valid while the caller holds a reference, not to be closed.
func (s *Segment) FD() int { return s.fd }

// Retain adds a reference. The caller must hold one already.
func (s *Segment) Retain() {
	if s.refs.Add(1) <= 1 {
		invariant.Violated("shm: a released segment is retained")
	}
}

// Release releases a reference; the last one unmaps the memory and closes the descriptor.
func (s *Segment) Release() {
	switch n := s.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		invariant.Violated("shm: a segment is released more often than retained")
	}
	live.segments.Add(-1)
	live.bytes.Add(-int64(len(s.mem)))
	if err := unix.Munmap(s.mem); err != nil {
		invariant.Violated("shm: unmap %d bytes: %v", len(s.mem), err)
	}
	if err := unix.Close(s.fd); err != nil && !errors.Is(err, unix.EINTR) {
		invariant.Violated("shm: close descriptor %d: %v", s.fd, err)
	}
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func shortage(name string, size, free int64, where string, err error) error {
	have := ""
	if where != "" {
		have = fmt.Sprintf(", %s are free (%s)", units.Size(free), where)
	}
	return &errs.Error{
		Reason: errs.ResourceExceeded, Subject: name, Err: err,
		Message: fmt.Sprintf("a shared segment needs %s%s", units.Size(size), have),
		Hint:    "lower batch_size or prefetch, make the tiers smaller, or give the daemon more memory",
	}
}

func tooManyFiles(name string, err error) error {
	var lim unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
	return errs.New(errs.ResourceExceeded, name, "raise the limit with: ulimit -n 65536",
		"one more file descriptor is needed and the limit is %d", lim.Cur).Because(err)
}
