package chaostest

import (
	"syscall"
	"testing"

	"larder/internal/testenv"
)

// TestStartsRightAfterAKill: the kernel takes its time to free the memory of a daemon that was killed, and its locks
// and its socket live as long. The next one, started in that very moment, waits for it and serves.
func TestStartsRightAfterAKill(t *testing.T) {
	dir := images(t, 60, 24, 20)
	d := newDaemon(t)
	d.must()
	c := train(d, specs(dir, "again-"), 0)
	for range testenv.Count(t, "LARDER_KILLS", 2) {
		c.more(2)
		if err := d.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		old := d.ended
		if !d.start("") { // before the old one was waited for
			t.Fatalf("the next daemon does not start: %s", d.log.String())
		}
		<-old
	}
	c.more(2)
	c.finish()
}
