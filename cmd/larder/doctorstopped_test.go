package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"larder/internal/config"
)

// TestListensAndIsStopped is the process of the next test.
func TestListensAndIsStopped(t *testing.T) {
	path := os.Getenv("LARDER_TEST_LISTEN")
	if path == "" {
		t.Skip("it is the process of another test")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fmt.Println("listening")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

// Of a daemon that is stopped, larder doctor names the process and what lets it go on.
func TestDoctorSeesAStoppedDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0], "-test.run=^TestListensAndIsStopped$")
	cmd.Env = append(os.Environ(), "LARDER_TEST_LISTEN="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		t.Fatal(line, err)
	}
	pid := cmd.Process.Pid
	if got := suspended(path); got != 0 {
		t.Errorf("%d is stopped", got)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatal(ws, err)
	}
	f := checkSocket(t.Context(), &globals{socket: path})
	if f.Status != "fail" || f.Fix != fmt.Sprintf("kill -CONT %d", pid) || !strings.Contains(f.Detail, "is stopped") {
		t.Errorf("%+v", f)
	}
}

func TestDoctorSaysTheQuota(t *testing.T) {
	for _, c := range []struct {
		m      config.Machine
		status string
		says   string
	}{
		{config.Machine{CPUs: 8}, "ok", "8 for preparing samples"},
		{config.Machine{CPUs: 8, Quota: 8}, "ok", "8 for preparing samples"},
		{config.Machine{CPUs: 2, Quota: 0.5}, "warn", "the time of 0.5"},
		{config.Machine{CPUs: 2, Quota: 1.5}, "ok", "the time of 1.5"},
		{config.Machine{CPUs: 1}, "warn", "1 for preparing samples"},
	} {
		f := checkCores(c.m)
		if f.Status != c.status || !strings.Contains(f.Detail, c.says) || (f.Fix == "") != (c.status == "ok") {
			t.Errorf("%+v: %+v", c.m, f)
		}
	}
}
