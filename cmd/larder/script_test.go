package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"larder/client"
	larderv1 "larder/proto/larder/v1"
)

// TestMain makes this test binary be larder, and a client of it, inside the scripts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"larder": main,
		"consume": func() {
			if err := consume(context.Background(), os.Args[1], len(os.Args) > 2 && os.Args[2] == "hold"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		},
	})
}

// consume attaches to a job by name, receives all its epochs and prints a line for each. With hold it gives no batch
// back, so that it ends only with the daemon.
func consume(ctx context.Context, job string, hold bool) error {
	c, err := client.Dial(ctx, os.Getenv("LARDER_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Attach(ctx, &larderv1.AttachRequest{Job: job, Pid: int32(os.Getpid())})
	if err != nil {
		return err
	}
	for e := s.Info().GetNextEpoch(); ; e++ {
		if err := s.StartEpoch(ctx, e); err != nil {
			return err
		}
		seen := map[int64]int{}
		for {
			b, err := s.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for _, id := range b.Index() {
				seen[id]++
			}
			if !hold {
				b.Release()
			}
		}
		twice := 0
		for _, n := range seen {
			if n > 1 {
				twice++
			}
		}
		fmt.Printf("epoch %d: %d samples, %d twice\n", e, len(seen), twice)
		if s.End().GetFinal() {
			return s.Detach(ctx)
		}
	}
}

// TestScript runs testdata/script/*.txtar against the real binary and the real daemon.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(cond string) (bool, error) {
			if cond != "root" {
				return false, fmt.Errorf("no condition is named %q", cond)
			}
			return os.Getuid() == 0, nil // only root can be other users
		},
		Setup: func(env *testscript.Env) error {
			// Socket paths are short, the scripts' own folder is not.
			dir, err := os.MkdirTemp("", "ls-") // short: a socket's path has at most 107 bytes
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(dir) })
			env.Setenv("S", dir)
			env.Setenv("LARDER_SOCKET", filepath.Join(dir, "l.sock"))
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("TMPDIR", dir)
			for _, k := range []string{"LARDER_CONFIG", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"} {
				env.Setenv(k, "")
			}
			env.Values["daemons"] = map[string]*background{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon": cmdDaemon, "signal": cmdSignal, "ended": cmdEnded, "images": cmdImages, "code": cmdCode, "get": cmdGet,
			"certs": cmdCerts, "as": cmdAs, "scheduled": cmdScheduled,
		},
	})
}

// background is a daemon that a script started.
type background struct {
	cmd   *exec.Cmd
	ready readyLine
	log   lockedBuffer
	ended chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

// daemon NAME ARGS...: runs "larder serve ARGS..." until the script ends, waits for its ready line, sets $NAME_pid and
// $NAME_http.
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: daemon NAME ARGS...")
	}
	b := &background{ended: make(chan struct{})}
	larder, err := lookPath(ts, "larder")
	ts.Check(err)
	b.cmd = exec.Command(larder, append([]string{"serve"}, args[1:]...)...)
	b.cmd.Dir = ts.MkAbs(".")
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "LARDER_SOCKET", "XDG_CACHE_HOME", "XDG_STATE_HOME",
		"XDG_RUNTIME_DIR", "GOCOVERDIR"} {
		if v := ts.Getenv(k); v != "" {
			b.cmd.Env = append(b.cmd.Env, k+"="+v)
		}
	}
	b.cmd.Stderr = &b.log
	out, err := b.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(b.cmd.Start())
	lines := make(chan string, 1)
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n')
		lines <- line
		_, _ = io.Copy(io.Discard, r)
		_ = b.cmd.Wait()
		close(b.ended)
	}()
	ts.Defer(func() {
		_ = b.cmd.Process.Kill()
		<-b.ended
	})
	line := <-lines
	if err := json.Unmarshal([]byte(line), &b.ready); err != nil {
		ts.Fatalf("no ready line but %q\n%s", line, b.log.String())
	}
	if b.ready.PID != b.cmd.Process.Pid {
		ts.Fatalf("the ready line names process %d, it is %d", b.ready.PID, b.cmd.Process.Pid)
	}
	ts.Setenv(args[0]+"_pid", strconv.Itoa(b.ready.PID))
	ts.Setenv(args[0]+"_http", b.ready.HTTP)
	ts.Setenv(args[0]+"_grpc", b.ready.GRPC)
	ts.Value("daemons").(map[string]*background)[args[0]] = b
}

func lookPath(ts *testscript.TestScript, name string) (string, error) {
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), string(os.PathListSeparator)) {
		if p := filepath.Join(dir, name); exec.Command(p).Path != "" {
			if _, err := os.Stat(p); err == nil {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not in the PATH", name)
}

func named(ts *testscript.TestScript, name string) *background {
	b := ts.Value("daemons").(map[string]*background)[name]
	if b == nil {
		ts.Fatalf("no daemon %q", name)
	}
	return b
}

// signal NAME SIGNAL: sends a signal to a background process.
func cmdSignal(ts *testscript.TestScript, _ bool, args []string) {
	sig := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP,
		"KILL": syscall.SIGKILL}[args[1]]
	ts.Check(named(ts, args[0]).cmd.Process.Signal(sig))
}

// ended NAME CODE: waits for the daemon's end; its log becomes stderr for the script's next stderr command, through a
// file.
func cmdEnded(ts *testscript.TestScript, _ bool, args []string) {
	b := named(ts, args[0])
	select {
	case <-b.ended:
	case <-time.After(5 * time.Minute):
		ts.Fatalf("the daemon runs on\n%s", b.log.String())
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".log"), []byte(b.log.String()), 0o600))
	if got := strconv.Itoa(b.cmd.ProcessState.ExitCode()); got != args[1] {
		ts.Fatalf("exit code %s, want %s\n%s", got, args[1], b.log.String())
	}
}

// images DIR CLASSES EACH: draws small JPEGs, DIR/cNN/iNNN.jpg.
func cmdImages(ts *testscript.TestScript, _ bool, args []string) {
	classes, err := strconv.Atoi(args[1])
	ts.Check(err)
	each, err := strconv.Atoi(args[2])
	ts.Check(err)
	for c := range classes {
		dir := ts.MkAbs(filepath.Join(args[0], fmt.Sprintf("c%02d", c)))
		ts.Check(os.MkdirAll(dir, 0o755))
		for i := range each {
			m := image.NewRGBA(image.Rect(0, 0, 40+i%7, 32+c%5))
			for p := range m.Bounds().Dx() * m.Bounds().Dy() {
				m.Set(p%m.Bounds().Dx(), p/m.Bounds().Dx(), color.RGBA{uint8(p + 31*i), uint8(p/3 + 57*c), uint8(i * c), 255})
			}
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("i%03d.jpg", i)))
			ts.Check(err)
			ts.Check(jpeg.Encode(f, m, nil))
			ts.Check(f.Close())
		}
	}
}

// code N CMD ARGS...: runs the command, which must exit with N; its output goes to the files out and err.
func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v: %v", args, err)
	}
	ts.Check(os.WriteFile(ts.MkAbs("out"), []byte(ts.ReadFile("stdout")), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("err"), []byte(ts.ReadFile("stderr")), 0o600))
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%v: exit code %d, want %s", args[1:], got, args[0])
	}
}

// get URL FILE: writes the answer to a file.
func cmdGet(ts *testscript.TestScript, _ bool, args []string) {
	c := newHTTPClient()
	r, err := c.Get(args[0])
	ts.Check(err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), fmt.Appendf(nil, "%d\n%s", r.StatusCode, body), 0o600))
}
