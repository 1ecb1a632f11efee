package cachepolicy

import (
	"strings"

	"larder/internal/fault"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// Evictor orders the entries of one tier. Handles are small dense numbers chosen by the index; tables grow to the
// largest one seen. An entry is in the Evictor from Insert to Remove; every other use of a handle is a bug of the
// caller and panics through invariant.
type Evictor interface {
	// Name is the name that New took.
	Name() string
	// Insert takes an entry in. need is the number of active jobs that still need it.
	Insert(h uint32, need int)
	// Update tells that the need changed. With the need it already has it changes nothing, so that how often a caller
	// repeats itself has no influence.
	Update(h uint32, need int)
	// Hit tells that the entry was used once.
	Hit(h uint32)
	// Remove takes the entry out.
	Remove(h uint32)
	// Victim names the entry that should leave in favour of a newcomer with that need; false: do not admit the
	// newcomer. It removes nothing, and gives the same answer until something else is called.
	Victim(need int) (h uint32, ok bool)
	// Coldest names the entry that should leave when the tier shrinks; false when there is none.
	Coldest() (h uint32, ok bool)
	// Restore undoes the Remove of entries that were Victims but stay after all, because not enough of them would
	// leave. Call it in the reverse order of the removals, before anything else; need is what it was.
	Restore(h uint32, need int)
	// Len is the number of entries.
	Len() int
}

// A policy is one line of the registry. breaks says which order promise it breaks, in words.
type policy struct {
	name   string
	breaks string
	make   func(r *xrand.Rand) Evictor
}

// The registry, default first. None of these breaks a promise: they see need, time and chance, never what
// distinguishes two samples of a cell, so relabelling the samples of a cell relabels the outcome and nothing else
// (sampler-sim.md section 8). A policy that is handed sizes, costs or ids must say what it breaks.
var policies = []policy{
	{"need", "", func(r *xrand.Rand) Evictor { return newNeed(r) }},
	{"minio", "", func(r *xrand.Rand) Evictor { return &minio{newBag("minio", r)} }},
	{"lru", "", func(*xrand.Rand) Evictor { return newQueue("lru", true /* hits move to the end */) }},
	{"fifo", "", func(*xrand.Rand) Evictor { return newQueue("fifo", false) }},
	{"random", "", func(r *xrand.Rand) Evictor { return newBag("random", r) }},
}

// New returns an empty Evictor of that name; "" is the default, need. An unknown name is a fault.ConfigInvalid that
// names the nearest known one, if one is near. The Evictor owns r from now on.
func New(name string, r *xrand.Rand) (Evictor, error) {
	if r == nil {
		invariant.Violated("cachepolicy: New(%q) without a Rand", name)
	}
	if name == "" {
		name = policies[0].name
	}
	for _, p := range policies {
		if p.name == name {
			return p.make(r), nil
		}
	}
	hint := "the policies are " + strings.Join(Names(), ", ")
	if w := fault.Nearest(name, Names()); w != "" {
		hint = "did you mean " + w + "? " + hint
	}
	return nil, fault.New(fault.ConfigInvalid, "tiers.policy", hint, "unknown cache policy %.40q", name)
}

// Names lists the policies, the default first.
func Names() []string {
	names := make([]string, len(policies))
	for i, p := range policies {
		names[i] = p.name
	}
	return names
}

// Breaks says in words which order promise the policy breaks; "" when it breaks none (or is unknown).
func Breaks(name string) string {
	for _, p := range policies {
		if p.name == name {
			return p.breaks
		}
	}
	return ""
}
