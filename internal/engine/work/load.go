package work

import (
	"math"
	"time"

	"larder/jobs"
)

// lately is what workers and storage did over the last second or so: means that fade. One look at how many compute
// would mostly see chance.
type lately struct {
	at             time.Time // up to when it is known
	cores, storage float64
}

// fades is how long ago a moment is that counts a third of the present one.
const fades = time.Second

// pass moves to now; since then as many computed and were read as do now; m.mu is held.
func (m *Meters) pass(now time.Time) {
	l := &m.mu.lately
	if l.at.IsZero() {
		l.at = now
	}
	past := now.Sub(l.at)
	if past <= 0 {
		return
	}
	cores := float64(min(int(m.computing.Load()), m.cores)) / float64(m.cores)
	storage := min(float64(m.mu.reading), 1)
	w := 1 - math.Exp(-past.Seconds()/fades.Seconds())
	l.cores += w * (cores - l.cores)
	l.storage += w * (storage - l.storage)
	l.at = now
}

// Machine is what prepares samples, at this moment.
func (m *Meters) Machine() jobs.Machine {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pass(now)
	l := &m.mu.lately
	out := jobs.Machine{Busy: int(m.computing.Load()), Reads: m.mu.reading, Cores: l.cores, Storage: l.storage}
	for r := range m.mu.begun {
		out.Oldest = max(out.Oldest, now.Sub(r.begun))
	}
	return out
}

// busy is the part of the cores that workers use from which on a gap between two pieces of work is no idle core.
const busy = 0.9

// Idle reports whether a core has nothing to compute, now and for the last second or so, as far as workers are
// concerned.
func (m *Meters) Idle() bool {
	if int(m.computing.Load()) >= m.cores {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pass(time.Now())
	return m.mu.lately.cores < busy
}
