package coordinator

import (
	"math"
	"slices"

	"larder/cachepolicy"
	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/units"
	"larder/internal/xrand"
	"larder/jobs"
)

// Quota bounds what the samples of one dataset take of all tiers together, in bytes. It holds in every tier in
// proportion to the tier's part of the total, so that it needs no accounts across tiers. What exceeds the cap is
// evicted first; for another dataset's sake nothing leaves below the floor, and a dataset below its floor takes room
// from the one that is furthest above its own. A sample that several datasets name counts for the one whose job wanted
// it first.
type Quota struct {
	Dataset string // a name of Register.Names
	Floor   int64
	Cap     int64 // negative = none
}

// dataset is what the core knows of a dataset.
type dataset struct {
	id    ident.DatasetID
	names []string
	// distinct objects that live jobs want and that count for this dataset, and what they weigh stored
	objects, bytes int64
	decoded        []meter   // bytes of decoded samples, by prefix
	seen           []meter   // of them, those that visible jobs decoded, or took over
	sharing        []sharing // how many jobs one read and one decode serve, by prefix
	stats          jobs.Stats
	storage        storage
	bad            *bits.Set // samples that a job left out because they cannot be prepared
}

// datasetOf finds or adds a dataset and returns its place, which is stable.
func (ti *tiering) datasetOf(id ident.DatasetID, names []string) int {
	for i := range ti.roster.datasets {
		if ti.roster.datasets[i].id == id {
			return i
		}
	}
	ti.roster.datasets = append(ti.roster.datasets, dataset{id: id, names: names, bad: new(bits.Set)})
	ti.apportion()
	return len(ti.roster.datasets) - 1
}

// quota is the floor and the cap of a dataset.
func (ti *tiering) quota(d int) (floor, limit int64) {
	for _, name := range ti.roster.datasets[d].names {
		for _, q := range ti.cfg.Tiers.Quotas {
			if q.Dataset == name {
				if q.Cap < 0 {
					return q.Floor, math.MaxInt64
				}
				return q.Floor, q.Cap
			}
		}
	}
	return 0, math.MaxInt64
}

// apportion gives every dataset its part of each tier.
func (ti *tiering) apportion() {
	if !ti.apportioned() {
		return
	}
	total := ti.cfg.Tiers.Total
	for _, f := range tierForms {
		s := ti.shares[f]
		part := 0.0
		if total > 0 {
			part = float64(ti.index.Budget(f)) / float64(total)
		}
		for d := range ti.roster.datasets {
			floor, limit := ti.quota(d)
			g := s.group(d)
			g.floor, g.limit = int64(float64(floor)*part), limit
			if limit != math.MaxInt64 {
				g.limit = int64(float64(limit) * part)
			}
		}
	}
}

func (ti *tiering) apportioned() bool { return ti.shares[ident.Encoded] != nil }

// checkQuotas refuses floors that no division can keep. They may also be set in a core that was made without any: not
// without a restart.
func (ti *tiering) checkQuotas(t TierConfig) error {
	floors := int64(0)
	for _, q := range t.Quotas {
		floors += q.Floor
		if q.Floor < 0 || q.Cap >= 0 && q.Floor > q.Cap {
			return errs.New(errs.ConfigInvalid, "datasets", "raise the cap or lower the floor",
				"dataset %s: floor %s exceeds cap %s", q.Dataset, units.Size(q.Floor), units.Size(q.Cap))
		}
	}
	if floors > t.Total {
		return errs.New(errs.ResourceExceeded, "datasets", "lower a floor or raise tiers.total",
			"the floors of datasets together, %s, exceed tiers.total %s", units.Size(floors), units.Size(t.Total))
	}
	if ti.index != nil && len(t.Quotas) > 0 && !ti.apportioned() {
		return errs.New(errs.Unsupported, "datasets", "restart the daemon with them",
			"floors and caps cannot be added to a daemon that was started without any")
	}
	return nil
}

// claim says which dataset an object counts for, unless that is known.
func (ti *tiering) claim(x ident.ObjectID, d int) {
	if ti.apportioned() && ti.wanted.owner(x) < 0 {
		ti.wanted.setOwner(x, d)
	}
}

// QuotaView is what one dataset has of the tiers.
type QuotaView struct {
	Dataset    string
	Floor, Cap int64 // as configured; Cap < 0 = none
	Used       int64
	Known      bool // some job drew from it since the start
}

// quotas returns the datasets with floors or caps, in the order of the configuration.
func (ti *tiering) quotas() []QuotaView {
	var out []QuotaView
	for _, q := range ti.cfg.Tiers.Quotas {
		v := QuotaView{Dataset: q.Dataset, Floor: q.Floor, Cap: q.Cap}
		for d := range ti.roster.datasets {
			if !ti.apportioned() || !slices.Contains(ti.roster.datasets[d].names, q.Dataset) {
				continue
			}
			v.Known = true
			for _, f := range tierForms {
				v.Used += ti.shares[f].group(d).used
			}
		}
		out = append(out, v)
	}
	return out
}

// shares is the Evictor of a tier that datasets have floors and caps in: one Evictor of the tier's policy for each
// dataset. Which dataset gives way is decided by bytes and by the need of what each would give; inside a dataset its
// own Evictor decides, which sees nothing but its entries.
type shares struct {
	groups   []share
	slots    []weighed // by handle
	dataset  func(ident.ObjectID) int
	make     func(group int) cachepolicy.Evictor
	name     string
	key      ident.Key // of the newcomer
	newcomer int       // its dataset
	most     int64     // what its dataset may have
	tight    bool      // only its own dataset may give way
}

// share is one dataset's part of a tier.
type share struct {
	ev           cachepolicy.Evictor // nil until it is needed
	used         int64
	floor, limit int64
}

type weighed struct {
	group int32
	need  int32
	in    bool
	bytes int64
}

func newShares(name string, first cachepolicy.Evictor, dataset func(ident.ObjectID) int,
	make func(group int) cachepolicy.Evictor) *shares {
	return &shares{name: name, dataset: dataset, make: make, groups: []share{{ev: first, limit: math.MaxInt64}}}
}

// group is the part of a dataset; -1 stands for what is not known to be of any, in place 0.
func (s *shares) group(dataset int) *share {
	for dataset+1 >= len(s.groups) {
		s.groups = append(s.groups, share{limit: math.MaxInt64})
	}
	return &s.groups[dataset+1]
}

func (s *shares) at(i int) *share {
	g := &s.groups[i]
	if g.ev == nil {
		g.ev = s.make(i)
	}
	return g
}

func (s *shares) slot(h uint32) *weighed {
	if int(h) >= len(s.slots) || !s.slots[h].in {
		invariant.Violated("shares: entry %d is not in", h)
	}
	return &s.slots[h]
}

// Name implements cachepolicy.Evictor.
func (s *shares) Name() string { return s.name }

// Len implements cachepolicy.Evictor.
func (s *shares) Len() int {
	n := 0
	for i := range s.groups {
		if s.groups[i].ev != nil {
			n += s.groups[i].ev.Len()
		}
	}
	return n
}

// Weigh implements what the index asks of an Evictor that divides its tier.
func (s *shares) Weigh(h uint32, k ident.Key, bytes int64) {
	for int(h) >= len(s.slots) {
		s.slots = append(s.slots, weighed{})
	}
	w := &s.slots[h]
	if w.in {
		s.groups[w.group].used += bytes - w.bytes
	} else {
		d := s.dataset(k.Object)
		s.group(d)
		w.group = int32(d + 1)
	}
	w.bytes = bytes
}

// Admit implements cachepolicy.Sighted.
func (s *shares) Admit(k ident.Key, need int) bool {
	s.about(k)
	e, ok := s.at(s.newcomer).ev.(cachepolicy.Sighted)
	return !ok || e.Admit(k, need)
}

// Newcomer implements cachepolicy.Sighted.
func (s *shares) Newcomer(k ident.Key) {
	s.about(k)
	s.announce(s.newcomer)
}

func (s *shares) about(k ident.Key) {
	d := s.dataset(k.Object)
	g := s.group(d)
	// A dataset that exceeds a cap which was lowered must not grow; that it shrinks is for those who need the room, a few
	// entries at a time.
	s.key, s.newcomer, s.most, s.tight = k, d+1, max(g.limit, g.used), false
}

// announce says to a group's Evictor whom the next question is about.
func (s *shares) announce(i int) {
	if e, ok := s.at(i).ev.(cachepolicy.Sighted); ok {
		e.Newcomer(s.key)
	}
}

// Fits reports whether the newcomer's dataset may take so many bytes more.
func (s *shares) Fits(bytes int64) bool {
	s.tight = s.groups[s.newcomer].used > s.most-bytes
	return !s.tight
}

// Insert implements cachepolicy.Evictor.
func (s *shares) Insert(h uint32, need int) {
	s.enter(h, need)
	s.at(int(s.slots[h].group)).ev.Insert(h, need)
}

// Restore implements cachepolicy.Evictor.
func (s *shares) Restore(h uint32, need int) {
	s.enter(h, need)
	s.at(int(s.slots[h].group)).ev.Restore(h, need)
}

func (s *shares) enter(h uint32, need int) {
	w := &s.slots[h]
	if w.in {
		invariant.Violated("shares: entry %d is in already", h)
	}
	w.in, w.need = true, int32(need)
	s.groups[w.group].used += w.bytes
}

// Update implements cachepolicy.Evictor.
func (s *shares) Update(h uint32, need int) {
	w := s.slot(h)
	w.need = int32(need)
	s.groups[w.group].ev.Update(h, need)
}

// Hit implements cachepolicy.Evictor.
func (s *shares) Hit(h uint32) { s.groups[s.slot(h).group].ev.Hit(h) }

// Remove implements cachepolicy.Evictor.
func (s *shares) Remove(h uint32) {
	w := s.slot(h)
	w.in = false
	s.groups[w.group].used -= w.bytes
	s.groups[w.group].ev.Remove(h)
}

// Victim implements cachepolicy.Evictor. Shares are by bytes, so they do not ask how much a newcomer is needed: only
// what came with a job without an exchangeable order (a negative need) displaces nothing.
func (s *shares) Victim(need int) (uint32, bool) {
	own := s.at(s.newcomer)
	if s.tight {
		return own.ev.Victim(need)
	}
	if i := s.furthest(func(g *share) int64 { return g.used - g.limit }); i >= 0 && need >= 0 {
		return s.groups[i].ev.Coldest()
	}
	if need >= 0 && own.used < own.floor {
		if i := s.furthest(func(g *share) int64 { return g.used - g.floor }); i >= 0 && i != s.newcomer {
			if v, ok := s.groups[i].ev.Coldest(); ok && s.groups[i].used-s.slots[v].bytes >= s.groups[i].floor {
				return v, true
			}
		}
	}
	best, found := uint32(0), false
	for i := range s.groups {
		g := &s.groups[i]
		if g.ev == nil || g.ev.Len() == 0 {
			continue
		}
		if i != s.newcomer {
			if g.used <= g.floor {
				continue
			}
			s.announce(i)
		}
		v, ok := g.ev.Victim(need)
		if !ok || i != s.newcomer && g.used-s.slots[v].bytes < g.floor {
			continue
		}
		if !found || s.before(v, best) {
			best, found = v, true
		}
	}
	return best, found
}

// before orders victims of two datasets: by need, then by how far their datasets are above their floors.
func (s *shares) before(v, w uint32) bool {
	a, b := &s.slots[v], &s.slots[w]
	if a.need != b.need {
		return a.need < b.need
	}
	g, h := &s.groups[a.group], &s.groups[b.group]
	return g.used-g.floor > h.used-h.floor
}

// furthest is the group with entries that has most of something, if that is above 0.
func (s *shares) furthest(above func(*share) int64) int {
	best, most := -1, int64(0)
	for i := range s.groups {
		g := &s.groups[i]
		if g.ev == nil || g.ev.Len() == 0 || g.used == 0 {
			continue
		}
		if n := above(g); n > most {
			best, most = i, n
		}
	}
	return best
}

// Coldest implements cachepolicy.Evictor.
func (s *shares) Coldest() (uint32, bool) {
	for _, above := range []func(*share) int64{
		func(g *share) int64 { return g.used - g.limit },
		func(g *share) int64 { return g.used - g.floor },
		func(g *share) int64 { return g.used },
	} {
		if i := s.furthest(above); i >= 0 {
			return s.groups[i].ev.Coldest()
		}
	}
	return 0, false
}

// evictor makes the policy of a tier: with quotas, one that divides the tier among datasets.
func (ti *tiering) evictor(f ident.Form, policy string) (cachepolicy.Evictor, error) {
	first, err := ti.cfg.Evictor(f, policy, xrand.New(ti.cfg.Seed, 3, uint64(f)))
	if err != nil || len(ti.cfg.Tiers.Quotas) == 0 {
		return first, err
	}
	ti.shares[f] = newShares(policy, first, func(x ident.ObjectID) int { return ti.wanted.owner(x) },
		func(group int) cachepolicy.Evictor {
			e, err := ti.cfg.Evictor(f, policy, xrand.New(ti.cfg.Seed, 3, uint64(f), uint64(group)))
			if err != nil {
				invariant.Violated("coordinator: policy %s of tier %s was there and is not: %v", policy, f, err)
			}
			return e
		})
	return ti.shares[f], nil
}
