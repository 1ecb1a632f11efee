package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// planted are tests with waits; a comment "// N" says how many findings a line has, and all other lines have none.
const planted = `package plant

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	clock "time"

	"example.com/foreign"
)

const short = 2 * clock.Second

var patience = clock.Minute / 2 // 1

type plan struct{ wait, long clock.Duration }

func TestSleeps(t *testing.T) {
	clock.Sleep(clock.Millisecond) // 1
	clock.Sleep(short)             // 1
	clock.Sleep(clock.Minute)      // 1
	clock.Sleep(clock.Hour)
	nap := clock.Duration(len(t.Name()))
	clock.Sleep(nap) // 1
}

func TestBounds(t *testing.T) {
	select {
	case <-clock.After(short): // 1
	case <-clock.After(clock.Minute):
	case <-clock.After(patience):
	}
	_, _ = context.WithTimeout(t.Context(), 20*clock.Second) // 1
	_, _ = context.WithTimeout(t.Context(), 2*clock.Minute)
	end := clock.Now().Add(5 * clock.Second)          // 1
	_, _ = context.WithDeadline(t.Context(), end)
	var c net.Conn
	_ = c.SetDeadline(clock.Now().Add(clock.Second)) // 1
	_ = c.SetDeadline(clock.Now())
	_ = c.SetDeadline(clock.Time{})
	_ = foreign.Conn().SetReadDeadline(clock.Now().Add(short)) // 1
	tick := clock.NewTicker(clock.Millisecond) // 1
	tick.Reset(short) // 1
	_, _ = net.DialTimeout("tcp", "", clock.Second) // 1
	_ = http.Client{Timeout: clock.Second} // 1
	cmd := exec.Command("true")
	cmd.WaitDelay = clock.Second // 1
	for begun := clock.Now(); clock.Since(begun) < 3*clock.Second; { // 1
	}
	for clock.Now().Before(clock.Now().Add(3 * clock.Second)) { // 1
	}
	if begun := clock.Now(); clock.Since(begun) < -1 || clock.Until(begun) > clock.Hour {
		t.Fail()
	}
}

func TestFlow(t *testing.T) {
	p := plan{wait: 3 * clock.Second, long: clock.Hour} // 1
	<-clock.After(p.wait)
	<-clock.After(p.long)
	<-clock.After(max(p.long, clock.Duration(len(t.Name()))))
	<-clock.After(clock.Duration(len(t.Name()))) // 1
	within(t, 10*clock.Second) // 1
	within(t, 20*clock.Second) // 1
	<-clock.After(2*clock.Minute - 90*clock.Second) // 1
	within(t, 10*clock.Minute)
	local := func(d clock.Duration) { clock.AfterFunc(d, func() {}) }
	local(30 * clock.Millisecond) // 1
	for _, d := range []clock.Duration{1, 2} {
		<-clock.After(d) // 1
	}
}

func within(t *testing.T, d clock.Duration) {
	_, _ = context.WithTimeout(t.Context(), d)
}

func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock.Sleep(short)
		helper()
		both()
		within(t, clock.Second)
	})
	both()
}

func TestNamedBubble(t *testing.T) { synctest.Test(t, inside) }

func inside(t *testing.T) { <-clock.After(short) }

func helper() { clock.Sleep(short); helperOfHelper() }

func helperOfHelper() { clock.Sleep(short) }

func both() { clock.Sleep(short) } // 1

func TestWords(t *testing.T) {
	serve(t, "--set", "jobs.lease=3s") // 1
	serve(t, "--set", "jobs.lease=3s", "--clock", "unix:clock")
	serve(t, "--set", "jobs.lease=90s", "--drain-timeout", "2m")
	serve(t, "--drain-timeout", "300ms") // 1
	serve(t, "stop", "--timeout=1m30s")
	config(t, "jobs: {lease: 1s}\nstores: {s3: {timeout: 60s, retry_for: 0s}}") // 1
	config(t, "source:\n  outage_timeout: \"1.5s\"\n") // 1
	_ = map[string]string{"jobs.lease": "1s", "LARDER_JOBS__LEASE": "1s", "uptime": "1s"} // 2
	_ = []string{"larder", "trace", "record", "--for", "10s"} // 1
	t.Log("it has not ended after 300ms", "no answer in 2s")
	_ = exec.Command("sleep", "1") // 1
	_ = exec.Command("sleep", "3600")
	_ = exec.Command("sh", "-c", "until larder status; do sleep 0.05; done") // 1
	_ = exec.Command("sh", "-c", "sleep 1h; sleep $LONG") // 1
	t.Log("the client sleeps 5 times; oversleep 5")
}

func TestOtherNames(t *testing.T) {
	nap := clock.Sleep // 1
	nap(clock.Second)
	_ = syscall.Nanosleep(nil, nil) // 1
	both := func(sleep func(clock.Duration)) { sleep(1) }
	both(clock.Sleep) // 1
}
`

// counted returns how many findings each line of a planted file is to have.
func counted(text, mark string) map[int]int {
	out, line := map[int]int{}, 0
	for s := range strings.Lines(text) {
		line++
		if _, n, ok := strings.Cut(strings.TrimSpace(s), mark); ok {
			out[line], _ = strconv.Atoi(n)
		}
	}
	return out
}

func plant(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func compare(t *testing.T, got []finding, text, mark string) {
	t.Helper()
	want := counted(text, mark)
	lines := map[int][]finding{}
	for _, f := range got {
		lines[f.line] = append(lines[f.line], f)
	}
	for i, s := range slices.Collect(strings.Lines(text)) {
		if len(lines[i+1]) != want[i+1] {
			t.Errorf("line %d: %d findings, want %d: %s%v", i+1, len(lines[i+1]), want[i+1], s, lines[i+1])
		}
	}
}

func TestArchWaitsInGoAreSeen(t *testing.T) {
	all, err := readTree(plant(t, "plant_test.go", planted))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, all.waits(), planted, "// ")
}

func TestArchWaitsInScriptsAreSeen(t *testing.T) {
	const text = "set -e\nsleep 1 # 1\n# a sleep 1 in words\ntimeout=3; sleep 3600\nwait; sleep $n # 1\n"
	for name, want := range map[string]int{"run.sh": 2, "run": 2, "other": 0} {
		got, err := shellWaits(plant(t, name, text), "run")
		if err != nil || len(got) != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if want > 0 {
			compare(t, got, text, "# ")
		}
	}
}

// plantedPython is as planted; "#" stands before the number.
const plantedPython = `import signal, subprocess, threading, time
from signal import setitimer
from time import sleep as nap
from beside import LONG, SHORT

PATIENCE = 20.0  # 1
FINE = 120


def test_sleeps():
    time.sleep(0.1)  # 1
    nap(1)  # 1
    time.sleep(60)  # 1
    time.sleep(3600)
    time.sleep(FINE / 10)  # 1
    time.sleep(some())  # 1


def test_bounds(p, t, q, wait=5):
    p.wait(10)  # 1
    p.wait(timeout=SHORT)  # 1
    p.wait(timeout=LONG)
    p.wait(FINE)
    p.wait(wait)  # 1
    t.join(2 * 5)  # 1
    q.get(True, 1)  # 1
    q.get("key", 1)
    p.acquire(timeout=3)  # 1
    p.acquire(False)
    ",".join(["5"])
    eventually(lambda: True, 5)  # 1
    subprocess.run("x", timeout=30 if p else 600)  # 1
    threading.Timer(0.2, print).start()  # 1
    kw = {"timeout": 5}  # 1
    assert t.settimeout(0) or t.settimeout(None)
    end = time.monotonic() + 20  # 1
    assert time.monotonic() - end < 5  # 1
    assert time.monotonic() - end < 500


def helper(patience=20):  # 1
    return patience


class Items:
    def __getitem__(self, i):
        time.sleep(0.01)  # 1


SCRIPT = "import time\nwhile True:\n    time.sleep(0.1)\n"  # 1
PIECE = "loader(timeout=2 if rank else 60,"  # 1
GOOD = "time.sleep(3600); x = loader(timeout=60)"
CONFIG = "jobs: {lease: 1s, max: 3}"  # 1


def test_settings(private, clock, lives, world, what):
    private("source: {outage_timeout: 1500ms}\\n")  # 1
    private("jobs: {lease: 1s}", "--clock", clock.address)
    lives(more="jobs: {lease: 1s}", clock=clock)
    lives(more="jobs: {lease: 1s}", clock=None)  # 1
    lives(more="jobs: {lease: 30m}")
    world.daemon(timeout="700ms" if what else "5s", retry_for="1h", uptime="2s")  # 2
    world.daemon(stores={"s3": {"retry_for": "1s"}}, env={"LARDER_JOBS__LEASE": "2s"})  # 2
    short = "3s"  # 1
    world.daemon(timeout=short)
    private("", "--drain-timeout", "60s")
    subprocess.run(["larder", "stop", "--drain", "--timeout", "200ms"])  # 1
    words = ["it was not there after 3s", "failed in 1s", "no timeout in 5 s"]


def test_shells():
    subprocess.run("until larder status; do sleep 0.05; done", shell=True)  # 1
    subprocess.Popen(["sleep", "60"])  # 1
    subprocess.Popen(["sleep", "3600"])
    f"sleep {nap.__name__}"  # 1


def test_timers(delay):
    signal.setitimer(signal.ITIMER_REAL, 0.1)  # 1
    setitimer(signal.ITIMER_REAL, delay)  # 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.alarm(1)  # 1
    signal.alarm(delay)  # 1
    _clock.alarm(0)


def test_other_names(monkeypatch, p):
    rest = time.sleep  # 1
    rest(5)
    other(time.sleep)  # 1
    other(nap)  # 1
    getattr(time, "sleep")(5)  # 1
    assert _clock.sleep is time.sleep
    monkeypatch.setattr(time, "sleep", print)


def test_unseen(delay, event, loader, length=None):
    time.sleep(delay)  # 1
    event.wait(delay)  # 1
    event.wait(length)
    subprocess.run("x", timeout=delay)  # 1
    subprocess.run("x", timeout=told(120))  # 1
    " ".join(loader)
    either = FINE if delay else measured()
    event.wait(either)  # 1


def told(seconds):
    subprocess.run("x", timeout=seconds)
    return seconds
`

func TestArchWaitsInPythonAreSeen(t *testing.T) {
	dir := plant(t, "test_plant.py", plantedPython)
	if err := os.WriteFile(filepath.Join(dir, "beside.py"), []byte("SHORT = 2\nLONG = 30 * 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compare(t, pythonWaits(t, dir, []string{"test_plant.py"}), plantedPython, "# ")
	before, _, _ := strings.Cut(plantedPython, "time.sleep(0.01)")
	for _, f := range pythonWaits(t, dir, []string{"test_plant.py"}) {
		if f.line == 1+strings.Count(before, "\n") && f.place != "test_plant.py:Items.__getitem__" {
			t.Errorf("%v: not the name of a method", f)
		}
	}
}

func TestArchListOfWaits(t *testing.T) {
	at := func(place string) finding { return finding{place, 3, "time.Sleep"} }
	list, err := entries("# why\n\na_test.go:TestA  a worker that decodes\nb.py:B.c the step of a job\n")
	if err != nil || len(list) != 2 || list["b.py:B.c"] != "the step of a job" {
		t.Fatalf("%v, %v", list, err)
	}
	for _, bad := range []string{"a_test.go:TestA", "a_test.go:TestA short", "TestA it has no file",
		"a.go:A a worker that decodes\na.go:A a worker that decodes"} {
		if _, err := entries(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if got := unlisted([]finding{at("a_test.go:TestA"), at("a_test.go:TestA"), at("b.py:B.c")}, list); len(got) > 0 {
		t.Error(got)
	}
	got := unlisted([]finding{at("a_test.go:TestA"), at("c_test.go:TestC")}, list)
	if len(got) != 2 || !strings.Contains(got[0], "b.py:B.c: the entry is not used") ||
		got[1] != "c_test.go:3: TestC: time.Sleep" {
		t.Errorf("%q", got)
	}
	many, found := map[string]string{}, []finding{}
	for i := range mostEntries + 1 {
		f := at("a_test.go:Test" + strconv.Itoa(i))
		many[f.place], found = "a reason in words", append(found, f)
	}
	if got := unlisted(found, many); len(got) != 1 || !strings.HasPrefix(got[0], "31 entries") {
		t.Error(got)
	}
}
