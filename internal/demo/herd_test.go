package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"larder/internal/testenv"
)

// The test binary plays the children: this variable says which.
const roleEnv = "LARDER_DEMO_TEST_ROLE"

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "fake" {
		playFake(os.Args[2:])
		os.Exit(0)
	}
	switch os.Getenv(roleEnv) {
	case "polite": // ends when asked
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Println("up")
		<-term
		fmt.Println("bye")
		os.Exit(0)
	case "stubborn": // does not hear
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Println("up")
		select {}
	case "parent": // has a stubborn child of a herd and dies without a word
		h := newHerd(nil)
		c, err := h.start("grandchild", os.DevNull, roleOf("stubborn"), os.Args[0])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if _, err := bufio.NewReader(c.out).ReadString('\n'); err != nil {
			os.Exit(1)
		}
		fmt.Println(c.cmd.Process.Pid)
		select {}
	}
	goleak.VerifyTestMain(m)
}

func roleOf(role string) []string { return append(os.Environ(), roleEnv+"="+role) }

func startRole(t *testing.T, h *herd, role string) *child {
	t.Helper()
	c, err := h.start(role, filepath.Join(t.TempDir(), "log"), roleOf(role), os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.out.Close() })
	if _, err := io.ReadFull(c.out, make([]byte, len("up\n"))); err != nil {
		t.Fatalf("%s did not start: %v", role, err)
	}
	return c
}

// alive reports whether the process exists and is not a zombie.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestHerdStopsPolitelyThenByForce(t *testing.T) {
	h := newHerd(nil)
	defer h.close()
	polite, stubborn := startRole(t, h, "polite"), startRole(t, h, "stubborn")
	h.stop(time.Hour, polite)
	h.stop(50*time.Millisecond, stubborn)
	if polite.err != nil {
		t.Errorf("the polite one ended with %v, want its own exit", polite.err)
	}
	if rest, err := io.ReadAll(polite.out); err != nil || string(rest) != "bye\n" {
		t.Errorf("its last words: %q, %v", rest, err)
	}
	if stubborn.err == nil || !strings.Contains(stubborn.err.Error(), "killed") {
		t.Errorf("the stubborn one ended with %v, want killed", stubborn.err)
	}
	if len(h.kids) != 0 {
		t.Errorf("%d children are still counted", len(h.kids))
	}
}

func TestHerdInAHurryDoesNotWait(t *testing.T) {
	hurry := make(chan struct{})
	h := newHerd(hurry)
	defer h.close()
	c := startRole(t, h, "stubborn")
	close(hurry)
	h.stop(time.Hour, c) // the test's own deadline is the assertion
}

func TestHerdCloseKillsAllAndStaysClosed(t *testing.T) {
	h := newHerd(nil)
	a, b := startRole(t, h, "stubborn"), startRole(t, h, "polite")
	h.close()
	for _, c := range []*child{a, b} {
		if alive(c.cmd.Process.Pid) {
			t.Errorf("%s lives on", c.name)
		}
	}
	if _, err := h.start("late", os.DevNull, nil, os.Args[0]); !errors.Is(err, errClosed) {
		t.Errorf("a start after close: %v", err)
	}
	h.close()
}

func TestHerdNamesAProgramThatIsNotThere(t *testing.T) {
	h := newHerd(nil)
	defer h.close()
	if _, err := h.start("ghost", os.DevNull, nil, "/no/such/program"); err == nil ||
		!strings.Contains(err.Error(), "ghost") {
		t.Fatalf("got %v", err)
	}
}

// Children die with their parent even when no process can signal them.
func TestHerdChildrenDieWithAKilledParent(t *testing.T) {
	h := newHerd(nil)
	defer h.close()
	c, err := h.start("parent", filepath.Join(t.TempDir(), "log"), roleOf("parent"), os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.out.Close()
	text, err := bufio.NewReader(c.out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(text)
	}
	if !alive(pid) {
		t.Fatal("the grandchild never lived")
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-c.done
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	testenv.Eventually(t, "the grandchild ends with its parent", func() bool { return !alive(pid) })
}
