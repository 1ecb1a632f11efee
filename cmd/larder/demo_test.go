package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"larder/internal/demo"
	"larder/internal/testenv"
	"larder/internal/testenv/lane"
)

// TestDemo runs the built binary, since the demo starts itself again as its daemons and clients.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole demos; left out with -short")
	}
	bin, err := exec.LookPath("larder") // this test, under that name: testscript.Main runs main
	if err != nil {
		t.Fatal(err)
	}
	t.Run("whole", func(t *testing.T) { demoWhole(t, bin) })
	t.Run("interrupted", func(t *testing.T) { demoInterrupted(t, bin) })
	t.Run("closed pipe", func(t *testing.T) { demoIntoAClosedPipe(t, bin) })
	t.Run("killed", func(t *testing.T) { demoKilled(t, bin) })
}

// demoRun is a demo in a folder of its own that is its TMPDIR too.
type demoRun struct {
	t   *testing.T
	cmd *exec.Cmd
	tmp string // TMPDIR
	cwd string
	out bytes.Buffer
	log strings.Builder
}

func newDemoRun(t *testing.T, bin string, args ...string) *demoRun {
	t.Helper()
	d := &demoRun{t: t, cwd: t.TempDir()}
	tmp, err := os.MkdirTemp("", "dr") // short: sockets will lie in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	d.tmp = tmp
	d.cmd = exec.Command(bin, append([]string{"demo"}, args...)...)
	d.cmd.Dir = d.cwd
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp, "LARDER_TIERS__DECODED=nonsense", "LARDER_SOCKET=/nowhere")
	d.cmd.Stdout = &d.out
	return d
}

// run runs the demo and calls at with every line of its progress. It returns the exit code.
func (d *demoRun) run(at func(line string)) int {
	d.t.Helper()
	pipe, err := d.cmd.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	// A demo that hangs must not take the whole test run with it.
	timer := time.AfterFunc(10*time.Minute, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	for s := bufio.NewScanner(pipe); s.Scan(); {
		d.log.WriteString(s.Text() + "\n")
		if at != nil {
			at(s.Text())
		}
	}
	_ = d.cmd.Wait()
	return d.cmd.ProcessState.ExitCode()
}

// nothingLeft fails when a file, a process or a socket of the demo is still there. It looks at once: the demo must
// have waited for the end of everything itself.
func (d *demoRun) nothingLeft(files ...string) {
	d.t.Helper()
	for dir, want := range map[string][]string{d.tmp: nil, d.cwd: files} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			d.t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			d.t.Errorf("left in %s: %v, want %v", dir, got, want)
		}
	}
	for _, p := range d.processes() {
		d.t.Errorf("a process lives on: %s", p)
	}
	if sockets, err := os.ReadFile("/proc/net/unix"); err != nil || bytes.Contains(sockets, []byte(d.tmp)) {
		d.t.Errorf("a socket is still open (%v)", err)
	}
}

// processes finds living processes that were started with the demo's TMPDIR, or one below it.
func (d *demoRun) processes() (found []string) {
	envs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, env := range envs {
		// gone or another user's: not ours
		if b, err := os.ReadFile(env); err == nil && bytes.Contains(b, []byte("TMPDIR="+d.tmp)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(env), "cmdline"))
			found = append(found, filepath.Base(filepath.Dir(env))+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// The demo as a user sees it: the answer is yes, sharing does the least possible work, and nothing but the report
// stays.
func demoWhole(t *testing.T, bin string) {
	d := newDemoRun(t, bin, "--samples", "200", "--epochs", "2", "--json")
	code := d.run(nil)
	var res demo.Result
	if err := json.Unmarshal(d.out.Bytes(), &res); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%s\n%s", code, err, d.log.String(), d.out.String())
	}
	if !res.OK || res.Audit.JobEpochs != 16 || res.Audit.Good != 16 || res.Audit.Repeats != 0 {
		t.Errorf("%+v", res.Audit)
	}
	if most := uint64(res.Unique) * 102 / 100; res.Shared.Decodes > most || res.Shared.SourceReads > most {
		t.Errorf("shared: %d reads and %d decodes for %d samples that fit the cache", res.Shared.SourceReads,
			res.Shared.Decodes, res.Unique)
	}
	for _, run := range []*demo.RunStats{&res.Unshared, &res.Shared} {
		if run.Delivered != uint64(res.Deliveries) {
			t.Errorf("the daemons delivered %d samples, the jobs need %d", run.Delivered, res.Deliveries)
		}
	}
	d.nothingLeft("larder-demo.html")
}

// Whenever and however it is interrupted, nothing stays.
func demoInterrupted(t *testing.T, bin string) {
	jobs := strconv.Itoa(lane.Times(2, 4))
	for _, c := range []struct {
		name, at string
		signals  []syscall.Signal
		code     int
	}{
		{"drawing", "drawing", []syscall.Signal{syscall.SIGINT}, 130},
		{"daemons start", "drew", []syscall.Signal{syscall.SIGTERM}, 143},
		{"unshared", "unshared: " + jobs + " jobs", []syscall.Signal{syscall.SIGINT}, 130},
		{"unshared, twice", "epoch 1 of", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130},
		{"between", "unshared: ", []syscall.Signal{syscall.SIGHUP}, 129},
		{"shared", "shared: " + jobs + " jobs, one", []syscall.Signal{syscall.SIGINT}, 130},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDemoRun(t, bin, "--jobs", jobs, "--samples", "60", "--epochs", "3")
			done, matches := false, 0
			code := d.run(func(line string) {
				if done || !strings.Contains(line, c.at) {
					return
				}
				if matches++; c.name == "between" && matches < 2 {
					return // the second line is the summary of the run
				}
				done = true
				for _, s := range c.signals {
					if err := d.cmd.Process.Signal(s); err != nil {
						t.Error(err)
					}
				}
			})
			if !done || code != c.code {
				t.Errorf("exit code %d, want %d; log:\n%s", code, c.code, d.log.String())
			}
			d.nothingLeft()
		})
	}
}

// When the reader of its output goes away, the demo goes too, and cleans up.
func demoIntoAClosedPipe(t *testing.T, bin string) {
	d := newDemoRun(t, bin, "--jobs", "2", "--samples", "60", "--epochs", "1")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	d.cmd.Stdout = w
	code := d.run(func(string) {})
	w.Close()
	if code == 0 {
		t.Errorf("exit code 0 though the result could not be written; log:\n%s", d.log.String())
	}
	d.nothingLeft("larder-demo.html")
}

// A demo that is killed cannot clean up its folder; its children die all the same, and the next demo takes the folder
// away.
func demoKilled(t *testing.T, bin string) {
	d := newDemoRun(t, bin, "--jobs", "2", "--samples", "60", "--epochs", "3")
	d.run(func(line string) {
		if strings.Contains(line, "epoch 1 of") {
			_ = d.cmd.Process.Kill()
		}
	})
	testenv.Eventually(t, "the children of a killed demo end", func() bool { return len(d.processes()) == 0 })
	left, err := os.ReadDir(d.tmp)
	if err != nil || len(left) != 1 {
		t.Fatalf("left: %v, %v; a killed demo leaves its folder", left, err)
	}
	next := newDemoRun(t, bin, "--jobs", "2", "--samples", "60", "--epochs", "1", "--report", "")
	next.tmp = d.tmp
	next.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp)
	if code := next.run(nil); code != 0 {
		t.Fatalf("exit code %d\n%s", code, next.log.String())
	}
	next.nothingLeft()
}

func TestDemoMistakes(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--jobs 1", "--jobs must be 2 to 16, not 1"},
		{"--samples 3", "--samples must be 40"},
		{"--memory lots", "lots"},
		{"--report /no/such/folder/r.html", "/no/such/folder"},
		{"--share everything", "none or augmented"},
		{"--epoch 3", "did you mean --epochs?"},
		{"surprise", "takes no argument"},
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), append([]string{"demo"}, strings.Fields(c.args)...), nil, &out, &errOut)
		if code != exitUsage || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("demo %s: exit code %d, %s", c.args, code, errOut.String())
		}
	}
}
