package proc

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

func TestDying(t *testing.T) {
	if Dying(os.Getpid()) || Dying(0) || Dying(-1) {
		t.Error("who lives is dying")
	}
	c := exec.Command("sleep", "3600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if Dying(c.Process.Pid) {
		t.Error("a process that lives is dying")
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !Dying(c.Process.Pid) { // at once: killed, on its way, or a zombie
		t.Error("a process that was killed lives")
	}
	_ = c.Wait()
	if !Dying(c.Process.Pid) {
		t.Error("a process that is gone lives")
	}
}

func TestUntil(t *testing.T) {
	wrong := errors.New("wrong")
	n := 0
	if err := Until(func() error { n++; return wrong }, func() bool { return false }); !errors.Is(err, wrong) || n != 1 {
		t.Errorf("%v after %d tries", err, n)
	}
	n = 0
	err := Until(func() error {
		if n++; n < 4 {
			return wrong
		}
		return nil
	}, func() bool { return true })
	if err != nil || n != 4 {
		t.Errorf("%v after %d tries", err, n)
	}
}
