package client_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"larder/client"
	"larder/internal/session/sessiontest"
	larderv1 "larder/proto/larder/v1"
)

// child is the test binary as a training process of its own: it attaches, takes two batches, says so, and waits to be
// killed. With "fork" it first leaves a process behind that has a copy of its socket.
func child() {
	ctx := context.Background()
	c, err := client.Dial(ctx, os.Getenv("LARDER_TEST_CHILD"))
	if err == nil {
		var s *client.Stream
		if s, err = c.Attach(ctx, &larderv1.AttachRequest{Job: "a"}); err == nil {
			if err = s.StartEpoch(ctx, 0); err == nil {
				for range 2 {
					if _, err = s.Next(ctx); err != nil {
						break
					}
				}
			}
		}
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	left := 0
	if os.Getenv("LARDER_TEST_FORK") != "" {
		cmd := exec.Command("sleep", "3600")
		cmd.ExtraFiles = sockets()
		if err := cmd.Start(); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		left = cmd.Process.Pid
	}
	fmt.Println("ready", left)
	select {}
}

// sockets are this process's, to be inherited.
func sockets() (f []*os.File) {
	for fd := 3; fd < 64; fd++ {
		name := "/proc/self/fd/" + strconv.Itoa(fd)
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, "socket:") {
			f = append(f, os.NewFile(uintptr(fd), to))
		}
	}
	return f
}

// TestKilledClient: a training process that is killed is seen to be gone, also when a child of it lives on with a copy
// of its socket; what it held is free for the next one, and other clients do not notice.
func TestKilledClient(t *testing.T) {
	for _, fork := range []string{"", "yes"} {
		t.Run("fork="+fork, func(t *testing.T) {
			j := sessiontest.Job{Batches: 20}
			d := start(t, map[string]sessiontest.Job{"a": j, "b": j})
			other := d.attach("b", 0)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "LARDER_TEST_CHILD="+d.socket, "LARDER_TEST_FORK="+fork)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, _ := bufio.NewReader(out).ReadString('\n')
			left, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
			if !ok {
				t.Fatalf("the child says %q", line)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			d.await(func(n sessiontest.Counts) bool { return n.Torn == 1 })
			if pid, _ := strconv.Atoi(left); pid > 0 {
				p, err := os.FindProcess(pid)
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Kill(); err != nil { // it was alive all the time
					t.Error(err)
				}
				_ = p.Release()
			}
			if err := epoch(t.Context(), other, j, "b", 0, 1); err != nil {
				t.Errorf("another client: %v", err)
			}
			if err := epoch(t.Context(), d.attach("a", 0), j, "a", 0, 1); err != nil {
				t.Errorf("the next client of the same rank: %v", err)
			}
		})
	}
}
