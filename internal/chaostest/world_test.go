package chaostest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"larder/internal/audit"
	"larder/internal/audit/audittest"
	"larder/internal/shm"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

// patience is for what takes well under a second on a quiet machine: a busy one never reaches it.
const patience = 5 * time.Minute

// larder is the binary under test, with failpoints.
var larder string

func TestMain(m *testing.M) {
	if spec := os.Getenv(clientEnv); spec != "" {
		os.Exit(clientMain(spec))
	}
	dir, err := os.MkdirTemp("", "larder-faults")
	if err == nil {
		larder = filepath.Join(dir, "larder")
		tags := strings.TrimPrefix(testenv.Tags()+",failpoints", ",")
		build := exec.Command("go", "build", "-trimpath", "-tags", tags, "-o", larder, "larder/cmd/larder")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the binary under test cannot be built:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(audittest.M(cleaned{m, dir}, audit.Options{}))
}

// cleaned removes the binary, and looks for processes that were left.
type cleaned struct {
	*testing.M
	dir string
}

func (c cleaned) Run() int {
	code := c.M.Run()
	_ = os.RemoveAll(c.dir)
	if left := children(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes left:", left)
		return 1
	}
	return code
}

// seed is that of a test's choices; a failure names it.
func seed(t testing.TB) *xrand.Rand {
	n, _ := strconv.ParseUint(os.Getenv("LARDER_SEED"), 10, 64)
	t.Logf("LARDER_SEED=%d", n)
	return xrand.New(n, 7)
}

// figure prints a row's figures for the nightly table.
func figure(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf("nightly: "+format, args...)
}

// images draws n small JPEGs in three classes.
func images(t testing.TB, n, w, h int) string {
	t.Helper()
	dir := t.TempDir()
	r := xrand.New(1)
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range n {
		a, b := r.IntN(9)+1, r.IntN(9)+1
		for k := 0; k < len(m.Pix); k += 4 {
			x, y := k/4%w, k/4/w
			m.Pix[k], m.Pix[k+1], m.Pix[k+2], m.Pix[k+3] = uint8(x*a+y), uint8(y*b+i), uint8(x+i), 255
		}
		var buf bytes.Buffer
		if err := jpeg.Encode(&buf, m, nil); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, fmt.Sprintf("c%d", i%3), fmt.Sprintf("%05d.jpg", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, buf.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// daemon is `larder serve` in a folder, started as often as it dies.
type daemon struct {
	t      testing.TB
	dir    string
	socket string
	state  string
	wrap   []string // a command in front of it
	args   []string
	env    []string

	mu    sync.Mutex
	cmd   *exec.Cmd
	log   *safeBuffer
	ended chan struct{}
	born  time.Time // when it was ready
	lives int

	suspects int // lives that began with samples that may have ended the one before
}

// safeBuffer is what a process writes, read while it does.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newDaemon is not started yet. At the end of the test it is ended in order, and nothing may be left of it.
func newDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "lf-") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, socket: filepath.Join(dir, "s"), state: filepath.Join(dir, "state"), args: args}
	fds, shms := openFDs(t), shmFiles()
	t.Cleanup(func() {
		if t.Failed() && d.cmd != nil {
			if _, died := d.died(0); !died {
				_ = d.cmd.Process.Signal(syscall.SIGQUIT)
				_, _ = d.died(patience)
				t.Logf("what the daemon was at: %s", d.log.String())
			}
		}
		d.stop()
		_ = os.RemoveAll(dir)
		eventually(t, "segments are unmapped", func() bool { n, _ := shm.Live(); return n == 0 })
		if n := openFDs(t); n > fds {
			t.Errorf("%d descriptors before, %d after", fds, n)
		}
		if left := shmFiles(); left != shms {
			t.Errorf("files in /dev/shm: %q before, %q after", shms, left)
		}
	})
	return d
}

// start starts it; failpoint is for LARDER_FAILPOINT. False: it died before it was ready.
func (d *daemon) start(failpoint string) bool {
	d.t.Helper()
	args := append(slices.Clone(d.wrap), larder, "serve", "--socket", d.socket, "--set", "state.dir="+d.state)
	args = append(args, d.args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = d.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir, "XDG_CACHE_HOME=" + filepath.Join(d.dir, "cache"),
		"XDG_RUNTIME_DIR=" + d.dir}
	cmd.Env = append(cmd.Env, d.env...)
	if failpoint != "" {
		cmd.Env = append(cmd.Env, "LARDER_FAILPOINT="+failpoint)
	}
	log := new(safeBuffer)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	ended := make(chan struct{})
	ready := make(chan bool, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		ready <- json.Valid([]byte(line)) && line != ""
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		close(ended)
	}()
	ok := <-ready
	d.mu.Lock()
	d.cmd, d.log, d.ended, d.born = cmd, log, ended, time.Now()
	d.lives++
	d.mu.Unlock()
	if !ok {
		<-ended
	}
	return ok
}

func (d *daemon) must() {
	d.t.Helper()
	if !d.start("") {
		d.t.Fatalf("the daemon did not start: %s", d.log.String())
	}
}

// life is when the running daemon was ready, and the how manyth it is.
func (d *daemon) life() (time.Time, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.born, d.lives
}

// kill is SIGKILL, and waits.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	<-d.ended
	d.look()
}

// died waits for its end and returns the exit code; false when it lives on.
func (d *daemon) died(wait time.Duration) (int, bool) {
	select {
	case <-d.ended:
	case <-time.After(wait):
		select { // both at once: it has died
		case <-d.ended:
		default:
			return 0, false
		}
	}
	d.look()
	return d.cmd.ProcessState.ExitCode(), true
}

// diesBy waits until the daemon has ended, or something else has happened. It returns the exit code; false when the
// daemon lives on.
func (d *daemon) diesBy(what string, happened func() bool) (int, bool) {
	d.t.Helper()
	code, died := 0, false
	eventually(d.t, "the daemon ends, or "+what, func() bool {
		happens := happened() // before it is looked at: what happened later does not hide its end
		code, died = d.died(0)
		return died || happens
	})
	return code, died
}

// look finds what a daemon must never say.
func (d *daemon) look() {
	d.t.Helper()
	if strings.Contains(d.log.String(), "samples were being prepared when the last daemon died") {
		d.suspects++
	}
	if line := testenv.Bug(d.log.String()); line != "" {
		d.t.Errorf("the daemon's log has %q: %s", line, d.log.String())
	}
}

// stop ends it in order.
func (d *daemon) stop() {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	if _, over := d.died(0); over {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGCONT)
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	code, ok := d.died(patience)
	if !ok {
		_ = d.cmd.Process.Signal(syscall.SIGQUIT)
		<-d.ended
		d.t.Fatalf("the daemon did not end after SIGTERM: %s", d.log.String())
	}
	if code != 0 {
		d.t.Errorf("the daemon ended with %d: %s", code, d.log.String())
	}
}

// holds counts what a daemon has open for clients: descriptors, and segments that it maps.
func (d *daemon) holds() (fds, memfds int) {
	ents, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.cmd.Process.Pid))
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:") && strings.Contains(line, "ring") {
			memfds++
		}
	}
	return len(ents), memfds
}

// withStacks is a test whose failure shows the stacks of all goroutines.
type withStacks struct{ testing.TB }

func (w withStacks) Fatalf(format string, args ...any) {
	w.Helper()
	w.TB.Fatalf("%s\n%s", fmt.Sprintf(format, args...), stacks())
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	testenv.Eventually(withStacks{t}, what, f)
}

// steadily is eventually for what takes long: it fails only when nothing has moved for as long as that waits.
func steadily(t testing.TB, what string, moved func() int64, f func() bool) {
	t.Helper()
	for over := false; !over; {
		last := moved()
		eventually(t, what, func() bool { over = f(); return over || moved() != last })
	}
}

func openFDs(t testing.TB) int {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range ents { // the runtime opens its poller once, and a pidfd to see whether it can
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	return n
}

// shmFiles lists /dev/shm, where other users of the machine have files, too; larder's would have its name.
func shmFiles() string {
	ents, _ := os.ReadDir("/dev/shm")
	var out []string
	for _, e := range ents {
		if strings.Contains(e.Name(), "larder") {
			out = append(out, e.Name())
		}
	}
	return strings.Join(out, " ")
}

// children lists processes whose parent this one is.
func children() []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range dirs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			out = append(out, string(b[:min(40, len(b))]))
		}
	}
	return out
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	b := make([]byte, 1<<16)
	return string(b[:runtime.Stack(b, true)])
}
