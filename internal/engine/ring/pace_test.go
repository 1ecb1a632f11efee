package ring

import (
	"testing"
	"time"
)

// run has a client use batches of step each, whose slots are filled again after fill, and returns the last margin.
// The client tells when margin unread batches are left, as the board says.
func run(p *pace, from time.Time, batches int, step, fill time.Duration) (margin int, now time.Time) {
	now = from
	unread := p.slots - 1
	var given []Given
	slot := 0
	for n := range batches {
		now = now.Add(step)
		given = append(given, Given{Slot: slot % p.slots, Ago: 0})
		slot++
		if unread <= p.margin() {
			for i := range given {
				given[i].Ago = time.Duration(len(given)-1-i) * step
			}
			p.told(now, given)
			for _, g := range given {
				p.sent(now.Add(fill), g.Slot, 100+n, false)
				unread++
			}
			given = given[:0]
		}
		unread--
	}
	return p.margin(), now
}

func TestGroupsFollowTheClientsPace(t *testing.T) {
	start := time.Now()
	for _, c := range []struct {
		name       string
		slots      int
		step, fill time.Duration
		margin     int
	}{
		{"filled at once", 4, 50 * time.Millisecond, time.Millisecond, 1},
		{"filled in time for the one after the next", 4, 10 * time.Millisecond, 9 * time.Millisecond, 2},
		{"filled as fast as it is used", 4, time.Millisecond, 2 * time.Millisecond, 3},
		{"two slots", 2, time.Second, time.Microsecond, 1},
		{"one slot", 1, time.Second, time.Microsecond, 0},
		{"a large ring keeps half", 18, time.Second, time.Microsecond, 9},
	} {
		p := newPace(c.slots)
		if m := p.margin(); m != c.slots-1 {
			t.Errorf("%s: %d at first, when nothing is known", c.name, m)
		}
		if m, _ := run(&p, start, 200, c.step, c.fill); m != c.margin {
			t.Errorf("%s: %d, want %d", c.name, m, c.margin)
		}
	}
}

// TestNoGroupsAfterAWait: a client that waited because of a group tells of each slot for a while. The first batches
// of an epoch, a wait without groups, and one that no haste would have prevented say nothing.
func TestNoGroupsAfterAWait(t *testing.T) {
	const step = 50 * time.Millisecond
	p := newPace(4)
	_, now := run(&p, time.Now(), 100, step, time.Millisecond)
	sent := func(number int, after time.Duration) int {
		p.told(now, []Given{{Slot: 1}})
		p.sent(now.Add(after), 1, number, true)
		now = now.Add(step)
		return p.eager
	}
	if sent(2, step) != 0 {
		t.Error("it waited for the beginning of an epoch")
	}
	if sent(50, 9*step) != 0 {
		t.Error("it would have waited in any case")
	}
	if _, now = run(&p, now, 100, step, time.Millisecond); p.margin() != 1 {
		t.Fatalf("%d", p.margin())
	}
	if sent(51, 2*step) != wary || p.margin() != 3 {
		t.Error("it waited because of a group")
	}
	for i := range wary - 1 {
		if p.sent(now, 0, 52+i, true); p.margin() != 3 {
			t.Fatalf("groups again after %d batches", i)
		}
	}
	if _, now = run(&p, now, 100, step, time.Millisecond); p.margin() != 1 {
		t.Error("no groups any more")
	}
}

// TestPausesDoNotCount: what a script does between two epochs, and slots that wait for an epoch, change nothing for
// long.
func TestPausesDoNotCount(t *testing.T) {
	p := newPace(4)
	_, now := run(&p, time.Now(), 100, 50*time.Millisecond, time.Millisecond)
	p.told(now, []Given{{Slot: 1}})
	now = now.Add(time.Hour)
	p.sent(now, 1, 2, false)
	if p.margin() != 1 {
		t.Error("the slot waited for the epoch")
	}
	p.told(now, []Given{{Slot: 2}})
	if p.step > time.Second {
		t.Errorf("a step takes %v", p.step)
	}
}
