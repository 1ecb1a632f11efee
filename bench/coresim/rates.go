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
	recipes map[recipe]*rates // lookups only; order below
	order   []recipe
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

func (m *meters) of(s *sim, j ident.JobID) *rates {
	c := s.clients[j]
	if c == nil {
		return &rates{}
	}
	if c.rates != nil {
		return c.rates
	}
	k := recipe{c.c.Data, c.c.Prefix, c.c.Suffix}
	r := m.recipes[k]
	if r == nil {
		r = &rates{}
		m.recipes[k] = r
		m.order = append(m.order, k)
	}
	c.rates = r
	return r
}

func (m *meters) decode(s *sim, j ident.JobID, d time.Duration) {
	if s.m.Measure > 0 {
		m.of(s, j).decode.add(d)
	}
}

func (m *meters) augment(s *sim, j ident.JobID, d time.Duration) {
	if s.m.Measure > 0 {
		m.of(s, j).augment.add(d)
	}
}

func (m *meters) finish(s *sim, j ident.JobID, d time.Duration) {
	if s.m.Measure > 0 {
		m.of(s, j).finish.add(d)
	}
}

// measure reports rates to the coordinator every now and then.
func (s *sim) measure() {
	m := &s.meter
	out := coordinator.Rates{Cache: s.m.Memory}
	if out.Cache == 0 {
		out.Cache = 10e9 * float64(s.m.Cores)
	}
	if busy := m.busy - max(0, m.until-s.now); m.reads >= minSeen && busy > 0 {
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
		s.step(coordinator.Measured{Rates: out})
	}
	s.after(s.m.Measure, s.measure)
}
