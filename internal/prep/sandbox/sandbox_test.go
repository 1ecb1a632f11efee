package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"larder/internal/prep"
	"larder/internal/proc"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

// childEnv makes this test binary a child. It decodes as Serve does, unless the image holds a word of misbehave.
const childEnv = "LARDER_TEST_SANDBOX"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "old kernel" {
		fmt.Fprintln(os.Stderr, withoutSeccomp())
		os.Exit(1)
	}
	if os.Getenv(childEnv) != "" {
		err := serve(func(l prep.Limits) Decoder {
			w := prep.NewWorker(l)
			return func(enc []byte, want prep.Want, dst []byte) (prep.Area, error) {
				if _, word, found := bytes.Cut(enc, []byte("sandbox-")); found {
					return misbehave(w, string(word), enc, want, dst)
				}
				return w.Pixels(enc, want, dst)
			}
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// withoutSeccomp becomes a child to which the kernel says that it knows no seccomp.
func withoutSeccomp() error {
	runtime.LockOSThread()
	p := []unix.SockFilter{load(offNumber), jump(unix.BPF_JEQ, unix.SYS_SECCOMP, 1),
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)), ret(allow)}
	f := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, err := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
		uintptr(unsafe.Pointer(&f))); err != 0 {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(environment(), childEnv+"=1"))
}

// Where the kernel has no seccomp, that is said, and what does not need it still holds: no descriptor can be opened.
func TestWithoutSeccomp(t *testing.T) {
	p, err := Open(Config{Command: []string{"/proc/self/exe"}, Env: []string{childEnv + "=old kernel"},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if s := p.State(); !strings.Contains(s.String(), "programs or signals to others (seccomp: function not implemented)") {
		t.Errorf("it says %s", s.String())
	}
	enc := photo(t, 40, 30, 1)
	if err := whole(p, enc); err != nil {
		t.Error(err)
	}
	if err := whole(p, with(enc, "open")); err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("opening a file: %v", err)
	}
}

// says is an answer about the image: how a test learns what its child met.
func says(format string, args ...any) (prep.Area, error) {
	f := prep.Failure{Message: fmt.Sprintf(format, args...), At: -1}
	return prep.Area{}, f.Err()
}

// misbehave does what a decoder would that somebody has taken over.
func misbehave(w *prep.Worker, word string, enc []byte, want prep.Want, dst []byte) (prep.Area, error) {
	switch word {
	case "segv": // as C code does
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV) // refused
		var p *int
		*p = 1
	case "exit":
		os.Exit(7)
	case "panic":
		panic("planned")
	case "spin":
		for n := 0; ; n++ {
			_ = n
		}
	case "memory":
		var all [][]byte
		for {
			b := make([]byte, 16<<20)
			for i := 0; i < len(b); i += page {
				b[i] = 1
			}
			all = append(all, b)
			_ = all
		}
	case "mute":
		time.Sleep(time.Hour)
	case "open":
		_, err := os.Open("/etc/passwd")
		return says("open: %v, %v", errors.Is(err, unix.EPERM), err)
	case "escape":
		return says("open ways: %s", strings.Join(escapes(), "; "))
	case "hole": // the daemon must read what is gone as zeros
		_ = unix.Madvise(dst[:len(dst)&^(page-1)], unix.MADV_REMOVE)
		return prep.Area{W: want.W, H: want.H}, nil
	}
	if lie, ok := lies[word]; ok {
		lie(w, enc, want, dst)
		time.Sleep(time.Hour)
	}
	return says("unknown word %q", word)
}

// escapes are the ways out that were open.
func escapes() (open []string) {
	try := func(what string, err error) {
		if err == nil || !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			open = append(open, fmt.Sprintf("%s: %v", what, err))
		}
	}
	_, err := os.ReadFile("/etc/passwd")
	try("read a file", err)
	try("write a file", os.WriteFile("/tmp/larder-sandbox-test", nil, 0o600))
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	try("make a socket", err)
	_, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("make a pair of sockets", err)
	try("start a program", syscall.Exec("/bin/true", []string{"true"}, nil))
	_, _, errno := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
	try("make a process", errno)
	try("send a signal to the daemon", unix.Kill(os.Getppid(), 0))
	try("send a signal to all", unix.Kill(-1, 0))
	_, err = unix.MemfdCreate("more", 0)
	try("make a file in memory", err)
	_, err = unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
	try("make code", err)
	try("trace the daemon", unix.PtraceAttach(os.Getppid()))
	try("change its limits", unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 9, Max: 9}))
	try("mount", unix.Mount("/", "/mnt", "", unix.MS_BIND, ""))
	_, err = unix.Dup(linkFD)
	try("copy a descriptor", err)
	for fd := range 64 {
		if fd == 2 || fd == linkFD {
			continue
		}
		var b [1]byte
		if n, err := unix.Write(fd, b[:0]); err == nil {
			open = append(open, fmt.Sprintf("descriptor %d takes %d bytes", fd, n))
		}
	}
	return open
}

// lies are answers that make no sense.
var lies = map[string]func(w *prep.Worker, enc []byte, want prep.Want, dst []byte){
	"lie-short": func(*prep.Worker, []byte, prep.Want, []byte) { _ = write([]byte("no")) },
	"lie-long":  func(*prep.Worker, []byte, prep.Want, []byte) { _ = write(make([]byte, maxAnswer+1)) },
	"lie-seq": func(_ *prep.Worker, _ []byte, want prep.Want, _ []byte) {
		lie(answer{seq: 1 << 40, got: prep.Area{W: want.W, H: want.H}})
	},
	"lie-json": func(*prep.Worker, []byte, prep.Want, []byte) {
		b, _ := (&answer{seq: 1, bad: &prep.Failure{Message: "x"}}).append(nil)
		_ = write(b[:len(b)-2])
	},
}

func lie(a answer) {
	b, _ := a.append(nil)
	_ = write(b)
}

// newPool returns a Pool whose children are this test binary.
func newPool(t testing.TB, children int, l prep.Limits) *Pool {
	t.Helper()
	p, err := Open(Config{Children: children, Command: []string{"/proc/self/exe"}, Env: []string{childEnv + "=1"},
		Limits: l, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func photo(t testing.TB, w, h, seed int) []byte {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			m.Set(x, y, color.RGBA{uint8(x*seed + y), uint8(x ^ y*3), uint8(x*y/7 + seed), 255})
		}
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, &jpeg.Options{Quality: 90}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func with(enc []byte, word string) []byte { return append(bytes.Clone(enc), "sandbox-"+word...) }

// whole asks for a whole image of 40 x 30 pixels.
func whole(o prep.Outside, enc []byte) error {
	_, err := o.Pixels(enc, prep.Want{W: 40, H: 30}, make([]byte, 40*30*3))
	return err
}

// A child that decodes has no way out: every call that would open one is refused by the kernel.
func TestNoEscape(t *testing.T) {
	p := newPool(t, 1, prep.Limits{})
	enc := photo(t, 40, 30, 1)
	if err := whole(p, enc); err != nil {
		t.Fatal(err)
	}
	state := p.State()
	if !slices.ContainsFunc(state.In, func(s string) bool { return strings.HasPrefix(s, "seccomp") }) {
		t.Skipf("this kernel has no seccomp: %s", state.String())
	}
	if err := whole(p, with(enc, "open")); err == nil || !strings.Contains(err.Error(), "open: true") {
		t.Errorf("opening a file: %v", err)
	}
	if err := whole(p, with(enc, "escape")); err == nil || err.Error() != "open ways: " {
		t.Errorf("%v", err)
	}
	want := fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", User)
	if slices.Contains(state.In, fmt.Sprintf("user %d", User)) {
		about, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.mu.idle[0].cmd.Process.Pid))
		for _, line := range []string{want, "NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n"} {
			if err != nil || !strings.Contains(string(about), line) {
				t.Errorf("%q is not in %s (%v)", line, about, err)
			}
		}
	} else if os.Geteuid() == 0 && !strings.Contains(state.String(), fmt.Sprintf("; user %d (", User)) &&
		!strings.Contains(state.String(), fmt.Sprintf(": user %d (", User)) {
		t.Errorf("the daemon is root and a child is, too: %s", state.String())
	}
	if c := p.Counts(); c.Crashed+c.Ended > 0 || c.Started != 1 {
		t.Errorf("%+v", c)
	}
}

// A child that crashes, exits, takes all memory, hangs up or lies costs two children, and the image is bad with the
// reason. The next image is decoded as ever.
func TestBadChildren(t *testing.T) {
	p := newPool(t, 2, prep.Limits{MaxBytes: 32 << 20})
	enc := photo(t, 40, 30, 1)
	lost := uint64(0)
	for word, why := range map[string]string{
		"segv": "SIGSEGV", "exit": "exit 7", "panic": "exit 2", "lie-short": "2 bytes", "lie-long": "answered with",
		"lie-seq": "another request", "lie-json": "",
	} {
		err := whole(p, with(enc, word))
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "again in another one") {
			t.Errorf("%s: %v", word, err)
		}
		if _, ok := prep.FailureOf(err); !ok {
			t.Errorf("%s is no fault of the image: %v", word, err)
		}
		if again := whole(p, with(enc, word)); again == nil || again.Error() != err.Error() {
			t.Errorf("%s again: %v", word, again)
		}
		if lost += 2; p.Counts().Crashed != lost {
			t.Errorf("%s: %+v, not %d lost: it is known", word, p.Counts(), lost)
		}
		if err := whole(p, enc); err != nil {
			t.Errorf("after %s: %v", word, err)
		}
	}
}

// A child that takes all memory meets its bound, and the daemon's machine does not.
func TestMemoryIsBounded(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector ends in a way of its own when it has no memory")
	}
	p := newPool(t, 1, prep.Limits{MaxBytes: 8 << 20})
	enc := photo(t, 40, 30, 1)
	err := whole(p, with(enc, "memory"))
	if err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("%v", err)
	}
	if err := whole(p, enc); err != nil {
		t.Error(err)
	}
}

// A decoder that does not end is ended: by its processor time.
func TestSpinning(t *testing.T) {
	p := newPool(t, 1, prep.Limits{Timeout: 10 * time.Millisecond})
	enc := photo(t, 40, 30, 1)
	if err := whole(p, with(enc, "spin")); err == nil || !strings.Contains(err.Error(), "of processor time") {
		t.Errorf("%v", err)
	}
	if err := whole(p, enc); err != nil {
		t.Error(err)
	}
}

// children are the processes that this one has started.
func children(t testing.TB) (pids []int) {
	t.Helper()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, name := range lists {
		b, _ := os.ReadFile(name) // a thread may end
		for word := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// A child that does nothing is ended, too.
func TestStuck(t *testing.T) {
	p, err := Open(Config{Command: []string{"/proc/self/exe"}, Env: []string{childEnv + "=1"}, stuckLooks: 3,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	enc := photo(t, 40, 30, 1)
	if err := whole(p, with(enc, "mute")); err == nil || !strings.Contains(err.Error(), "it did nothing for 300ms") {
		t.Errorf("%v", err)
	}
}

// Children that are killed at random moments cost no image. A moment is a number of calls that have begun or ended.
func TestKilledAtRandom(t *testing.T) {
	const workers, each = 3, 60
	p := newPool(t, workers, prep.Limits{})
	enc := photo(t, 400, 300, 3)
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	ask := prep.Want{W: 400, H: 300}
	want := make([]byte, 400*300*3)
	if _, err := w.Pixels(enc, ask, want); err != nil {
		t.Fatal(err)
	}
	var decoding, killing sync.WaitGroup
	calls := make(chan struct{}, 2*workers) // begun or ended; the killer is late by some
	var killed atomic.Int32
	r := xrand.New(1)
	killing.Go(func() {
		left := r.IntN(20)
		for range calls {
			if left--; left >= 0 {
				continue
			}
			if pids := children(t); len(pids) > 0 {
				_ = unix.Kill(pids[r.IntN(len(pids))], unix.SIGKILL)
				killed.Add(1)
			}
			left = 1 + r.IntN(20)
		}
	})
	for range workers {
		decoding.Go(func() {
			dst := make([]byte, len(want))
			for i := 0; i < each || killed.Load() < 5; i++ {
				clear(dst)
				calls <- struct{}{}
				_, err := p.Pixels(enc, ask, dst)
				calls <- struct{}{}
				if err != nil || !bytes.Equal(dst, want) {
					t.Errorf("equal %v, %v", bytes.Equal(dst, want), err)
				}
			}
		})
	}
	decoding.Wait()
	close(calls)
	killing.Wait()
	if c := p.Counts(); c.Crashed > 0 {
		t.Errorf("%+v after %d kills", c, killed.Load())
	}
	t.Logf("%d kills, %+v", killed.Load(), p.Counts())
}

// What a child takes away from under the daemon reads as zeros, and ends nothing.
func TestMemoryTakenAway(t *testing.T) {
	p := newPool(t, 1, prep.Limits{})
	if err := whole(p, with(photo(t, 40, 30, 1), "hole")); err != nil {
		t.Error(err)
	}
	if c := p.Counts(); c.Crashed > 0 {
		t.Errorf("%+v", c)
	}
}

// Stop ends what would wait, and a stopped Pool decodes nothing.
func TestStopped(t *testing.T) {
	p := newPool(t, 1, prep.Limits{})
	enc := photo(t, 40, 30, 1)
	p.Close()
	if err := whole(p, enc); !errors.Is(err, prep.ErrStopped) {
		t.Errorf("%v", err)
	}
}

// A program that is no child is said to be none, at once.
func TestNotStarted(t *testing.T) {
	for _, command := range [][]string{nil, {"/nonexistent/larder"}, {"/bin/true"}, {"/bin/sh", "-c", "exit 3"}} {
		_, err := Open(Config{Children: 1, Command: command, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "prep.isolation") {
			t.Errorf("%q: %v", command, err)
		}
	}
}

// Nothing of the test's child is left when the daemon is killed.
func TestEndsWithTheDaemon(t *testing.T) {
	if os.Getenv("LARDER_TEST_DAEMON") != "" {
		p := newPool(t, 1, prep.Limits{})
		fmt.Printf("child %d\n", p.mu.idle[0].cmd.Process.Pid)
		_ = whole(p, with(photo(t, 40, 30, 1), "spin"))
		return
	}
	cmd := osexec.Command("/proc/self/exe", "-test.run=^TestEndsWithTheDaemon$")
	cmd.Env = append(os.Environ(), "LARDER_TEST_DAEMON=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "child %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if err := proc.Until(func() error {
		if proc.Dying(pid) {
			return nil
		}
		return errors.New("it lives")
	}, func() bool { return true }); err != nil {
		t.Error(err)
	}
}
