package chaostest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/testenv"
)

// points are the calls to the state directory that a process can die before, in the middle of, or after, or that can
// fail.
func points() (out []string) {
	for _, p := range []string{
		"create:log", "reserve:log", "write:log", "sync:log", "sync:dir", "create:mark", "writeat:mark", "truncate:mark",
		"sync:mark",
		"create:snapshot", "write:snapshot", "sync:snapshot", "rename:snapshot", "remove:log", "remove:snapshot",
		"create:orders", "write:orders", "sync:orders", "rename:orders",
	} {
		out = append(out, p+":before", p+":after")
	}
	return out
}

// inALife is how many batches are taken in a life that is to reach a failpoint. It ends then: not every life writes a
// snapshot.
const inALife = 120

// TestDaemonIsKilled (R2): SIGKILL at random moments and at every failpoint, while four jobs train. A random moment is
// when a random number of batches has been taken. All jobs continue; the auditor finds every epoch whole; a fixed order
// is that of a daemon that was not killed. LARDER_KILLS is how many.
func TestDaemonIsKilled(t *testing.T) {
	kills := testenv.Count(t, "LARDER_KILLS", 6)
	r := seed(t)
	dir := images(t, 90, 24, 20)
	d := newDaemon(t)
	d.must()
	_, empty := d.holds()
	c := train(d, specs(dir, "kill-"), 0)
	at := points()
	reached, moments := map[string]int{}, 0
	for kill := range kills {
		c.check()
		if kill%2 == 0 { // at a random moment
			eventually(t, "some batches are taken", c.took(r.IntN(40)))
			d.kill()
			moments++
			d.must()
			continue
		}
		// The daemon runs on to the failpoint, which it may reach while it starts.
		p := at[kill/2%len(at)]
		n := 1
		if op, _, _ := strings.Cut(p, ":"); op == "write" || op == "sync" || op == "writeat" {
			n += r.IntN(40)
		}
		d.kill()
		if ok := d.start(fmt.Sprintf("%s:%d", p, n)); ok {
			if _, died := d.diesBy("the jobs train", c.took(inALife)); !died {
				d.kill()
			}
		}
		if strings.Contains(d.log.String(), "failpoint reached") {
			reached[p]++
		} else {
			moments++
		}
		d.must()
		if kill%20 == 19 {
			c.more(1)
		}
	}
	c.more(3)
	c.finish()
	for _, tr := range c.all {
		if len(tr.reasons) > 0 {
			t.Errorf("job %s got bad samples: %v", tr.spec.GetName(), tr.reasons)
		}
	}
	eventually(t, "the daemon holds nothing for any client", func() bool { _, n := d.holds(); return n <= empty })

	// R28: what is fixed is what it is without any of this.
	quiet := newDaemon(t)
	quiet.must()
	fixed := train(quiet, specs(dir, "kill-")[2:3], 0)
	most := uint32(min(c.all[2].epochs.Load(), 12))
	eventually(t, "epochs to compare", func() bool { fixed.check(); return fixed.epochs() >= int64(most) })
	fixed.finish()
	for e := range most {
		if !slices.Equal(c.all[2].orders[e], fixed.all[0].orders[e]) {
			t.Errorf("epoch %d of a fixed order: %v, undisturbed %v", e, c.all[2].orders[e], fixed.all[0].orders[e])
		}
	}
	var waits []time.Duration
	for _, tr := range c.all {
		waits = append(waits, tr.waits...)
	}
	slices.Sort(waits)
	figure(t, "%d kills (%d at random moments, %d at %d failpoints, %d while samples were prepared, all of them "+
		"innocent), %d epochs read to their end, first batch after the daemon is ready p50 %v p99 %v", kills, moments,
		kills-moments, len(reached), d.suspects, c.epochs(), percentile(waits, 50), percentile(waits, 99))
	if len(reached) < min(len(at), kills/2)/3 {
		t.Errorf("only %d of %d failpoints were reached: %v", len(reached), len(at), reached)
	}
	if c.epochs() == 0 {
		t.Error("no client got to the end of an epoch")
	}
}

func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Round(time.Millisecond)
}

// TestDiskFails (R4): the n-th call of every kind that changes the state directory fails with EIO, on the real binary,
// for all n up to where nothing is called any more: the daemon stops with its exit code for that, promises nothing
// after it, and the next one continues. LARDER_DISK_FAILS is how many n of a kind are tried.
func TestDiskFails(t *testing.T) {
	most := testenv.Count(t, "LARDER_DISK_FAILS", 1)
	dir := images(t, 60, 24, 20)
	d := newDaemon(t)
	d.must()
	c := train(d, specs(dir, "disk-"), 0)
	failed, tried := 0, 0
	for _, p := range points() {
		p, ok := strings.CutSuffix(p, ":before")
		if !ok {
			continue
		}
		for n := 1; n <= most; n++ {
			tried++
			d.kill()
			started := d.start(fmt.Sprintf("%s:EIO:%d", p, n))
			code, died := 0, !started
			if started {
				code, died = d.diesBy("the jobs train", c.took(inALife))
			} else {
				code = d.cmd.ProcessState.ExitCode()
			}
			hit := strings.Contains(d.log.String(), "failpoint reached")
			if hit && !died {
				if code, died = d.died(patience); !died {
					t.Fatalf("%s:%d: the daemon lives on after an error of its disk", p, n)
				}
			}
			switch {
			case hit && code != 8:
				t.Errorf("%s:%d: exit code %d: %s", p, n, code, d.log.String())
			case hit:
				failed++
			case died:
				t.Errorf("%s:%d: it ended with %d, and nothing failed: %s", p, n, code, d.log.String())
			default:
				d.kill()
			}
			d.must()
			if !hit {
				break // there is no n-th call in so short a life
			}
		}
		c.more(1)
	}
	c.finish()
	figure(t, "%d calls of the disk failed on the real binary (of %d tried), each ended it with code 8; %d epochs read "+
		"to their end", failed, tried, c.epochs())
	if failed < 8 {
		t.Errorf("only %d failed", failed)
	}
}
