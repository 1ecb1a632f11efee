package chaostest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// cli is the larder command on a daemon: what it printed, and its exit code.
func (d *daemon) cli(args ...string) (string, int) {
	d.t.Helper()
	cmd := exec.Command(larder, append([]string{"--socket", d.socket}, args...)...)
	cmd.Dir, cmd.Env = d.dir, []string{"HOME=" + d.dir, "XDG_RUNTIME_DIR=" + d.dir}
	out, err := cmd.CombinedOutput()
	if e := (*exec.ExitError)(nil); err != nil && !errors.As(err, &e) {
		d.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestAFullDiskIsReported: while the disk of the state directory is full, every status says what jobs wait for.
func TestAFullDiskIsReported(t *testing.T) {
	dir := images(t, 60, 24, 20)
	d := newDaemon(t)
	if !d.start("write:log:ENOSPC:30") {
		t.Fatal(d.log.String())
	}
	c := train(d, specs(dir, "full-")[:1], 0)
	eventually(t, "the disk is full", func() bool { return strings.Contains(d.log.String(), "failpoint reached") })
	eventually(t, "the job waits", func() bool {
		out, _ := d.cli("jobs", "ls")
		return strings.Contains(out, " disk")
	})
	words := "the disk of the state directory " + d.state + " is full"
	for _, x := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"jobs", "describe", "full-tape"}, "room on a disk: " + words, 0},
		{[]string{"explain", "full-tape"}, "Now it waits for room on a disk: " + words, 0},
		{[]string{"explain"}, "Nothing can be recorded, and jobs wait: " + words, 0},
		{[]string{"explain"}, "Waiting for room on the disk of the state directory: full-tape.", 0},
		{[]string{"doctor"}, words, 1},
		{[]string{"doctor"}, "make room on that disk", 1},
		{[]string{"stats", "-o", "json"}, `"state_full": {`, 0},
	} {
		out, code := d.cli(x.args...)
		if oneLine := strings.Join(strings.Fields(out), " "); code != x.code || !strings.Contains(oneLine, x.want) {
			t.Errorf("larder %s ended with %d, want %d with %q:\n%s", strings.Join(x.args, " "), code, x.code, x.want, out)
		}
	}
	c.cancel()
	d.kill() // in order it ends with the code of a state directory that cannot be written
}
