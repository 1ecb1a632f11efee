package shm

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/units"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of a Unix stream socket.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		n, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		c[i] = n.(*net.UnixConn)
		t.Cleanup(func() { _ = n.Close() })
	}
	return c[0], c[1]
}

func fds(t testing.TB) int {
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(ents)
}

func TestSegment(t *testing.T) {
	before := fds(t)
	n0, b0 := Live()
	s, err := Create("test", 3*step+5)
	if err != nil {
		t.Fatal(err)
	}
	if n, b := Live(); n != n0+1 || b != b0+s.Size() || s.Size() != 3*step+5 {
		t.Errorf("live %d segments, %d bytes; size %d", n, b, s.Size())
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.FD(), &st); err != nil || st.Blocks*512 < s.Size() {
		t.Errorf("%d bytes present of %d: %v", st.Blocks*512, s.Size(), err)
	}
	for i, b := range s.Bytes() {
		if b != 0 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	for _, size := range []int64{0, s.Size() - 1, s.Size() + 1} {
		if err := unix.Ftruncate(s.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(s.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("another seal: %v", err)
	}
	if fl, err := unix.FcntlInt(uintptr(s.FD()), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("not close-on-exec: %v", err)
	}
	dup, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Map(dup, s.Size())
	if err != nil {
		t.Fatal(err)
	}
	s.Bytes()[s.Size()-1] = 7
	m.Bytes()[0] = 9
	if m.Bytes()[s.Size()-1] != 7 || s.Bytes()[0] != 9 {
		t.Error("the two mappings are not one memory")
	}
	m.Retain()
	m.Release()
	s.Release()
	if m.Bytes()[0] != 9 {
		t.Error("a mapping ended with another one")
	}
	m.Release()
	if n, b := Live(); n != n0 || b != b0 {
		t.Errorf("%d segments, %d bytes left", n-n0, b-b0)
	}
	if n := fds(t); n != before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

// TestRefusals: what cannot be is an error, not a signal, and closes what it was given.
func TestRefusals(t *testing.T) {
	before := fds(t)
	for _, size := range []int64{0, -1, math.MaxInt64} {
		if _, err := Create("x", size); !errs.Is(err, errs.Invalid) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	free, _, ok := Available()
	if !ok {
		t.Skip("this machine does not report how much memory is free")
	}
	_, err := Create("huge", free*2)
	var f *errs.Error
	if !errors.As(err, &f) || f.Reason != errs.ResourceExceeded || !strings.Contains(f.Message, units.Size(free*2)) {
		t.Errorf("twice what is free: %v", err)
	}
	open := func(size int64, seal int) int {
		fd, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err == nil {
			err = unix.Ftruncate(fd, size)
		}
		if err == nil && seal != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		fd   int
		size int64
	}{
		"unsealed":  {open(4096, 0), 4096},
		"too small": {open(4096, unix.F_SEAL_SHRINK), 4097},
		"no size":   {open(4096, unix.F_SEAL_SHRINK), 0},
		"negative":  {open(4096, unix.F_SEAL_SHRINK), -1},
		"no memfd":  {null, 1},
		"closed":    {1 << 20, 1},
	} {
		if _, err := Map(c.fd, c.size); !errs.Is(err, errs.Protocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := fds(t); n != before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

// TestBugsPanic: use after release and double release are bugs of larder and never pass in silence.
func TestBugsPanic(t *testing.T) {
	s, err := Create("test", 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Release()
	for what, f := range map[string]func(){"Bytes": func() { s.Bytes() }, "Retain": s.Retain, "Release": s.Release} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a released segment passes", what)
				}
			}()
			s.refs.Store(0)
			f()
		}()
	}
}

// TestRefcount: a writer holds a reference, so memory is never unmapped under a writer.
func TestRefcount(t *testing.T) {
	s, err := Create("test", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		s.Retain()
		wg.Go(func() {
			defer s.Release()
			for n := range 1 << 13 {
				s.Bytes()[i<<13+n] = byte(i)
			}
		})
	}
	s.Release()
	wg.Wait()
	if s.refs.Load() != 0 {
		t.Errorf("%d references left", s.refs.Load())
	}
}

// TestDescriptorsRide: whatever the sizes of writes and reads, each descriptor arrives with the byte it rode on.
func TestDescriptorsRide(t *testing.T) {
	before := fds(t)
	rapid.Check(t, func(rt *rapid.T) {
		a, b := pair(t)
		defer a.Close()
		defer b.Close()
		type msg struct {
			n  int
			fd bool
		}
		msgs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) msg {
			return msg{rapid.IntRange(1, 3000).Draw(t, "n"), rapid.Bool().Draw(t, "fd")}
		}), 1, 12).Draw(rt, "msgs")
		read := rapid.IntRange(1, 5000).Draw(rt, "read")
		pipes := map[int64]uint64{} // position → inode
		pos := int64(0)
		for _, m := range msgs {
			if !m.fd {
				if _, err := a.Write(make([]byte, m.n)); err != nil {
					rt.Fatal(err)
				}
			} else {
				fd, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC)
				if err != nil {
					rt.Fatal(err)
				}
				pipes[pos] = inode(rt, fd)
				err = WriteWithFD(a, make([]byte, m.n), fd)
				_ = unix.Close(fd)
				if err != nil {
					rt.Fatal(err)
				}
			}
			pos += int64(m.n)
		}
		_ = a.CloseWrite()
		r := NewReceiver(b)
		defer r.Close()
		got, buf := int64(0), make([]byte, read)
		for {
			n, err := r.Read(buf)
			for p := got; p < got+int64(n); p++ {
				want, ok := pipes[p]
				if !ok {
					continue
				}
				if rapid.IntRange(0, 3).Draw(rt, "skip") == 0 {
					continue // no receiver takes it: it must not confuse the next one
				}
				fd, ok := r.Take(p)
				if !ok {
					rt.Fatalf("no descriptor at byte %d", p)
				}
				if inode(rt, fd) != want {
					rt.Fatalf("another descriptor at byte %d", p)
				}
				if fl, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); fl&unix.FD_CLOEXEC == 0 {
					rt.Fatal("a received descriptor is not close-on-exec")
				}
				_ = unix.Close(fd)
				if _, ok := r.Take(p); ok {
					rt.Fatalf("a second descriptor at byte %d", p)
				}
			}
			got += int64(n)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		if got != pos {
			rt.Fatalf("%d bytes of %d", got, pos)
		}
	})
	if n := fds(t); n != before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

func inode(t *rapid.T, fd int) uint64 {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestLargeWriteWithFD: a full socket splits the write; descriptor and bytes all arrive.
func TestLargeWriteWithFD(t *testing.T) {
	a, b := pair(t)
	msg := make([]byte, 1<<20)
	for i := range msg {
		msg[i] = byte(i * 7)
	}
	done := make(chan error, 1)
	go func() { done <- WriteWithFD(a, msg, 0) }()
	r := NewReceiver(b)
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(r, got); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !bytes.Equal(got, msg) {
		t.Errorf("the bytes differ; %v", err)
	}
	fd, ok := r.Take(0)
	if !ok || r.Waiting() != 0 {
		t.Fatalf("descriptor: %v, %d more", ok, r.Waiting())
	}
	_ = unix.Close(fd)
	if err := WriteWithFD(a, nil, 0); err == nil {
		t.Error("a descriptor on no byte")
	}
}

// TestFlood: a peer that pushes descriptors is cut off, and none stays open.
func TestFlood(t *testing.T) {
	a, b := pair(t)
	before := fds(t)
	many := make([]int, kernelMax)
	oob := unix.UnixRights(many...)
	if _, _, err := a.WriteMsgUnix([]byte("x"), oob, nil); err != nil {
		t.Fatal(err)
	}
	r := NewReceiver(b)
	if _, err := r.Read(make([]byte, 10)); !errs.Is(err, errs.Protocol) {
		t.Errorf("%d descriptors at once: %v", kernelMax, err)
	}
	for range maxWaiting {
		if err := WriteWithFD(a, []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteWithFD(a, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errs.Is(err, errs.Protocol) {
		t.Errorf("one descriptor too many: %v", err)
	}
	r.Close()
	if n := fds(t); n != before {
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

// TestDescriptorLimit: when this process has no descriptor left, the loss is reported rather than met later.
func TestDescriptorLimit(t *testing.T) {
	a, b := pair(t)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := WriteWithFD(a, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = 3 // all of these are taken
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Skip(err)
	}
	r := NewReceiver(b)
	_, err := r.Read(make([]byte, 1))
	_, cerr := Create("x", 4096)
	if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); rerr != nil {
		t.Fatal(rerr)
	}
	r.Close()
	if !errs.Is(err, errs.ResourceExceeded) {
		t.Errorf("a lost descriptor: %v", err)
	}
	if !errs.Is(cerr, errs.ResourceExceeded) {
		t.Errorf("a segment without descriptors: %v", cerr)
	}
}

func TestPeer(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	want := Peer{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	for _, c := range []*net.UnixConn{c, s} {
		if p, err := PeerOf(c); err != nil || p.PID != want.PID || p.UID != want.UID || p.GID != want.GID {
			t.Errorf("peer %+v, %v; want %+v", p, err, want)
		}
	}
	e, err := ExitOf(s)
	if err != nil {
		t.Skipf("no pidfd: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- e.Wait() }()
	select {
	case err := <-done:
		t.Fatalf("this process has ended: %v", err)
	default:
	}
	_ = e.Close()
	if err := <-done; err == nil {
		t.Error("Close looks like the end of the process")
	}
	_ = s.Close()
	if _, err := PeerOf(s); err == nil {
		t.Error("the peer of a closed socket")
	}
	if _, err := ExitOf(s); err == nil {
		t.Error("the exit of a closed socket's peer")
	}
}

// TestExit: the end of the process that connected is seen although another one holds its socket.
func TestExit(t *testing.T) {
	if os.Getenv("LARDER_TEST_DIAL") != "" {
		c, err := net.Dial("unix", os.Getenv("LARDER_TEST_DIAL"))
		if err != nil {
			os.Exit(1)
		}
		_, _ = c.Read(make([]byte, 1)) // until the test closes it
		os.Exit(0)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestExit$")
	cmd.Env = append(os.Environ(), "LARDER_TEST_DIAL="+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	e, err := ExitOf(c)
	if err != nil {
		_ = c.Close()
		_ = cmd.Wait()
		t.Skipf("no pidfd: %v", err)
	}
	if p, err := PeerOf(c); err != nil || int(p.PID) != cmd.Process.Pid {
		t.Errorf("peer %+v, %v; want process %d", p, err, cmd.Process.Pid)
	}
	done := make(chan error, 1)
	go func() { done <- e.Wait() }()
	_ = cmd.Process.Kill()
	if err := <-done; err != nil {
		t.Errorf("the end of the process was not seen: %v", err)
	}
	_ = e.Close()
	_ = c.Close()
	_ = cmd.Wait()
}

func TestAvailable(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	mem := file("MemTotal:       8000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n")
	for name, c := range map[string]struct {
		files fstest.MapFS
		free  int64
		where string
		ok    bool
	}{
		"nothing": {fstest.MapFS{}, math.MaxInt64, "", false},
		"machine": {fstest.MapFS{"proc/meminfo": mem}, 4000 * 1024, "MemAvailable of this machine", true},
		"v2, the parent binds": {fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max": file("max\n"), "sys/fs/cgroup/a/b/memory.current": file("5\n"),
			"sys/fs/cgroup/a/memory.max": file("1000\n"), "sys/fs/cgroup/a/memory.current": file("900\n"),
			"sys/fs/cgroup/a/memory.stat": file("anon 1\ninactive_file 50\n"),
		}, 150, "limit of the control group /a", true},
		"v2, inside a container": {fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/kube/pod7\n"),
			"sys/fs/cgroup/memory.max": file("2000\n"), "sys/fs/cgroup/memory.current": file("500\n"),
		}, 1500, "limit of the control group /", true},
		"v2, above its limit": {fstest.MapFS{
			"proc/meminfo": mem, "proc/self/cgroup": file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("100\n"), "sys/fs/cgroup/memory.current": file("500\n"),
		}, 0, "limit of the control group /", true},
		"v1": {fstest.MapFS{
			"proc/self/cgroup": file("7:cpu:/x\n4:hugetlb,memory:/x\n"),
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":   file("700\n"),
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes":   file("300\n"),
			"sys/fs/cgroup/memory/x/memory.stat":             file("total_inactive_file 11\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/memory.usage_in_bytes":     file("300\n"),
			"sys/fs/cgroup/memory/garbage/memory.unexpected": file("?"),
		}, 411, "limit of the control group /x", true},
		"garbage": {fstest.MapFS{
			"proc/meminfo": file("MemAvailable: lots\n"), "proc/self/cgroup": file("::\nx\n0::\n"),
			"sys/fs/cgroup/memory.max": file("-4"), "sys/fs/cgroup/memory.current": file("a"),
		}, math.MaxInt64, "", false},
	} {
		if free, where, ok := available(c.files); free != c.free || where != c.where || ok != c.ok {
			t.Errorf("%s: %d %q %v, want %d %q %v", name, free, where, ok, c.free, c.where, c.ok)
		}
	}
}

func TestAProcessIsWatchedAndNotTakenForAnother(t *testing.T) {
	sleeper := exec.Command("sleep", "3600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := ProcessOf(int32(sleeper.Process.Pid))
	if err != nil || p.PID != int32(sleeper.Process.Pid) || p.Start == 0 || p.Boot == "" {
		t.Fatalf("%+v, %v", p, err)
	}
	later := p
	later.Start++
	if _, err := later.Watch(); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that began later: %v", err)
	}
	elsewhere := p
	elsewhere.Boot = "another"
	if _, err := elsewhere.Watch(); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process of another boot: %v", err)
	}
	x, err := p.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ended := make(chan error, 1)
	go func() { ended <- x.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("it lives: %v", err)
	default:
	}
	if err := sleeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := p.Watch(); !errors.Is(err, unix.ESRCH) { // not reaped yet
		t.Errorf("a process that has ended: %v", err)
	}
	_ = sleeper.Wait()
	if _, err := ProcessOf(p.PID); err == nil {
		t.Error("a process that is gone has a name")
	}
}
