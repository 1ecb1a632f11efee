package coresim

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// minSeen is how many samples count as measured, as in internal/engine.
const minSeen = 16

// recipe is what rates are of.
type recipe struct {
	data           ident.DatasetID
	prefix, suffix ident.RecipeID
}

type total struct {
	n       int
	seconds float64
}

func (t *total) add(d time.Duration) { t.n++; t.seconds += d.Seconds() }

type rates struct{ decode, augment, finish total }

// meters measures as internal/engine does, but nothing fades: what costs here does not drift by itself.
type meters struct {
	on      bool              // else processor times are not measured
	recipes map[recipe]*rates // for look-up only
	order   []recipe          // in which they were first measured
	bytes   float64
	busy    time.Duration // in which at least one read was under way
	until   time.Duration // the last of them ends
	reads   int
}

// readUntil notes a read of n bytes.
func (m *meters) readUntil(now, done time.Duration, n int64) {
	m.reads++
	m.bytes += float64(n)
	m.busy += max(0, done-max(now, m.until))
	m.until = max(m.until, done)
}

// of returns the rates of a job's recipe.
func (m *meters) of(j *machineJob) *rates {
	if j == nil {
		return &rates{}
	}
	if j.rates == nil {
		r := m.recipes[j.recipe]
		if r == nil {
			r = &rates{}
			m.recipes[j.recipe] = r
			m.order = append(m.order, j.recipe)
		}
		j.rates = r
	}
	return j.rates
}

func (m *meters) decode(j *machineJob, d time.Duration) {
	if m.on {
		m.of(j).decode.add(d)
	}
}

func (m *meters) augment(j *machineJob, d time.Duration) {
	if m.on {
		m.of(j).augment.add(d)
	}
}

func (m *meters) finish(j *machineJob, d time.Duration) {
	if m.on {
		m.of(j).finish.add(d)
	}
}

// measure reports rates to the coordinator every Model.Measure.
func (s *machine) measure() {
	m := &s.meters
	out := coordinator.Rates{Cache: s.m.Memory}
	if out.Cache == 0 {
		out.Cache = 10e9 * float64(s.m.Cores)
	}
	if busy := m.busy - max(0, m.until-s.clock.now); m.reads >= minSeen && busy > 0 {
		out.Storage = m.bytes / busy.Seconds()
	}
	cores := float64(min(s.m.Workers, s.m.Cores))
	rate := func(t total) float64 {
		if t.n < minSeen || t.seconds <= 0 {
			return 0
		}
		return float64(t.n) / t.seconds * cores
	}
	for _, k := range m.order {
		r := m.recipes[k]
		out.Recipes = append(out.Recipes, coordinator.RecipeRates{Dataset: k.data, Prefix: k.prefix, Suffix: k.suffix,
			Decode: rate(r.decode), Augment: rate(r.augment), Finish: rate(r.finish)})
	}
	if len(out.Recipes) > 0 {
		s.report(coordinator.Measured{Rates: out})
	}
	s.clock.after(s.m.Measure, s.measure)
}
