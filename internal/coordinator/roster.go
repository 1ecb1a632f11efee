package coordinator

import (
	"slices"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// roster lists the live jobs, and the prefixes, share groups and datasets that they have in common. The other
// components look things up in it; it decides nothing.
type roster struct {
	streams  map[ident.JobID]*stream // lookups only; iteration goes through order
	order    []*stream               // live streams by job id
	prefixes []prefix                // recipe prefixes ever used, few; position is stable
	groups   []*group                // share groups that have members
	lastID   uint32                  // the newest id of a share group
	datasets []dataset               // every dataset that a job has drawn from; position is stable
	blocks   map[uint32]*heldBy      // that jobs of mode Blocks hold; lookups only
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

// joinPrefix enters a job that begins to draw among those that decoded samples of its prefix serve; set is its set.
func (ro *roster) joinPrefix(s *stream, set bits.JobSet) {
	s.set = set
	ro.prefixes[s.prefix].jobs |= set
}

// leavePrefix takes a job out of those that decoded samples of its prefix serve.
func (ro *roster) leavePrefix(s *stream) {
	ro.prefixes[s.prefix].jobs &^= s.set
	s.set = 0
}

// joinGroup puts a job into the share group of its recipe; those that are not visible have groups of their own. Its
// first epoch meets the newest instance that the group works on (see nextInstance). A group that all jobs have left is
// gone: the next job begins its own, with its own seed, as if alone.
func (ro *roster) joinGroup(s *stream, key ident.RecipeID) {
	var g *group
	for _, h := range ro.groups {
		if h.key == key && h.members[0].visible() == s.visible() {
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
	dataset  int // its index in roster.datasets
	since    mark
	sample   dsa.JobSpec
	prefix   int // its index in roster.prefixes
	suffix   ident.RecipeID
	group    *group // nil when it shares no augmented samples
	seed     uint64 // of its random parameters
	augBytes int64  // size of one augmented sample; 0 = it is not fixed
	making   Making
	sampling sampling
	set      bits.JobSet // the set of this job alone; empty while the sampler does not know it
	// last is the newest instance of which a sample was delivered to the job; it holds only when given is set.
	given    bool
	last     uint32
	picked   picks            // of the running epoch, of order given
	turn     uint64           // the turn of its last planned sample
	beside   uint64           // the last one among the executor's own work, of a stream that has another clock
	stored   meter            // stored bytes of the objects that were prepared for it
	deferred []deferredRow    // rows that wait until the sampler is ready
	next     []ident.ObjectID // the objects of job.Next
	gone     *bits.Set        // objects that were removed from the dataset; nil = none
	tail     int              // positional orders: positions from here on were used as substitutes
	ranks    []rankQueue
	knownBad *bits.Set  // quarantined samples that the journal has for it
	rest     *Rest      // the remainder that the job will begin with; nil = none
	places   []uint32   // positional orders, in the remainder of an epoch: its positions
	catching []catching // what must be withdrawn from the sampler before the job draws
	deal     bool       // deal looks at its steps at the end of this Step, independently of all phases
	keeping  keeping    // what the decoded tier keeps for it alone
	leaving  []leaving  // blocks that its order has left and its batches may still need
	script   []Scripted // the orders that were given with it; nil = none
}

// rankQueue is what a rank is to get, in order of delivery, and what its client had when it was last seen.
type rankQueue struct {
	planned  []*delivery // batches that are planned and not sent
	resends  []resend    // batches that must be sent again, the oldest first
	sent     []*delivery // batches that were sent and not released: the client may not have got them
	lastEnd  EndEpoch    // the newest end of an epoch that was sent
	kept     *kept       // where the client was that vanished; nil = nothing is kept
	recovery recovery
	// Two facts that hold in several phases of the rank. returned: the attached client held the rank before, and may
	// continue where it was. lives: the process of the client that vanished is alive, and may not know of its loss yet.
	returned, lives bool
}

type prefix struct {
	id      ident.RecipeID
	decoded meter       // bytes of decoded samples of this prefix
	seen    meter       // of them, those that visible jobs decoded, or took over
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
