package coordinator

import (
	"slices"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// roster is who draws what: the live jobs, and the prefixes, share groups and datasets that they have in common. The
// other components look things up in it; it decides nothing.
type roster struct {
	streams  map[ident.JobID]*stream // lookups only; iteration goes through order
	order    []*stream               // live streams by job id
	prefixes []prefix                // recipe prefixes ever used, few; position is stable
	groups   []*group                // share groups that have members
	lastID   uint32                  // of a group
	datasets []dataset               // of all jobs that ever were; position is stable
	inOrder  bool                    // a job whose order is not exchangeable has drawn, for Check
}

// live returns the stream and the rank if the incarnation still holds it.
func (ro *roster) live(j ident.JobID, r int, inc ident.Incarnation) (*stream, *jobs.Rank) {
	s := ro.streams[j]
	if s == nil || r < 0 || r >= len(s.job.Ranks) {
		return nil, nil
	}
	k := &s.job.Ranks[r]
	if !k.Attached() || k.Incarnation != inc {
		return nil, nil
	}
	return s, k
}

func (ro *roster) prefixOf(id ident.RecipeID) int {
	for i := range ro.prefixes {
		if ro.prefixes[i].id == id {
			return i
		}
	}
	ro.prefixes = append(ro.prefixes, prefix{id: id})
	return len(ro.prefixes) - 1
}

// joinGroup puts a job into the share group of its recipe. Its first epoch meets the newest instance that the group
// works on (see nextInstance). A group that all jobs have left is gone: the next job begins its own, with its own
// seed, as if alone.
func (ro *roster) joinGroup(s *stream, key ident.RecipeID) {
	var g *group
	for _, h := range ro.groups {
		if h.key == key {
			g = h
		}
	}
	if g == nil {
		ro.lastID++
		g = &group{id: ro.lastID, key: key, suffix: s.suffix, seed: s.sample.Seed}
		ro.groups = append(ro.groups, g)
	}
	s.group, s.seed, s.job.Group = g, g.seed, g.id
	g.members = append(g.members, s)
}

// leaveGroup takes a job out of its share group.
func (ro *roster) leaveGroup(s *stream) {
	g := s.group
	if g == nil {
		return
	}
	g.members = slices.DeleteFunc(g.members, func(m *stream) bool { return m == s })
	if len(g.members) == 0 {
		ro.groups = slices.DeleteFunc(ro.groups, func(h *group) bool { return h == g })
	}
}

func (ro *roster) groupOf(id uint32) *group {
	for _, g := range ro.groups {
		if g.id == id {
			return g
		}
	}
	return nil // all jobs have left it
}

// stream is a job's part in the core.
type stream struct {
	job      *jobs.Job
	dataset  int // index in datasets
	since    mark
	sample   dsa.JobSpec
	prefix   int // index in prefixes
	suffix   ident.RecipeID
	group    *group // nil unless it shares augmented samples
	seed     uint64 // of its random parameters
	augBytes int64
	sampling sampling
	set      bits.JobSet      // it alone, when it is joined
	given    bool             // something of instance last was given to it
	last     uint32           // the newest instance of which it was given something
	turn     uint64           // of its last planned sample
	stored   meter            // bytes of the objects that were prepared for it
	deferred []deferredRow    // rows that wait for the sampler to be ready
	next     []ident.ObjectID // the subset of job.Next
	gone     *bits.Set        // objects that do not exist any more; nil = none
	tail     int              // positional orders: positions from here on were used as substitutes
	ranks    []rankQueue
	knownBad *bits.Set  // quarantined samples that the journal has for it
	rest     *Rest      // what the job is to begin with
	places   []uint32   // positional orders, in what is left of an epoch: its positions
	catching []catching // what the sampler must still know of it
	deal     bool       // its steps are to be looked at
	script   []Scripted // orders that were given; nil = none
}

// rankQueue is what is planned for a rank and not sent yet, in order of delivery.
type rankQueue struct {
	planned []*delivery
	resends []resend // restored; to be given again, oldest first
	// returned says that its client held the rank before it attached: it may continue where it was.
	returned bool
	recovery recovery
	sent     []*delivery // that the client has not released: it may not have got them
	lastEnd  EndEpoch    // the last that was sent
	lives    bool        // the process of the client that vanished does: it has not looked yet
	kept     *kept       // where its client was that vanished; nil = it is there, or nothing is kept
}

type prefix struct {
	id      ident.RecipeID
	decoded meter       // bytes of decoded samples of this prefix
	jobs    bits.JobSet // joined jobs that have it
}

// group is jobs that share augmented samples: equal dataset and recipe, one seed.
type group struct {
	id      uint32
	key     ident.RecipeID
	seed    uint64
	suffix  ident.RecipeID
	members []*stream // live
	// members that one augmentation served when it was measured last, without what the tier served; 0 = not measured
	degree float64
}

// meter keeps a mean of sizes.
type meter struct {
	n   int64
	sum int64
}

func (m *meter) add(v int64) { m.n++; m.sum += v }

func (m *meter) mean(fallback int64) int64 {
	if m.n == 0 {
		return fallback
	}
	return m.sum / m.n
}
