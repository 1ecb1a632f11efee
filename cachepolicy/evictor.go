package cachepolicy

import (
	"strconv"
	"strings"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/nearest"
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
	// newcomer. It removes nothing, and gives the same answer until something else is called. It is asked only when the
	// tier is full, so Len is then what the tier holds of such entries.
	Victim(need int) (h uint32, ok bool)
	// Coldest names the entry that should leave when the tier shrinks; false when there is none.
	Coldest() (h uint32, ok bool)
	// Restore undoes the Remove of entries that were Victims but stay after all, because not enough of them would
	// leave. Call it in the reverse order of the removals, before anything else; need is what it was. The same Victims come
	// again then, unless they are drawn.
	Restore(h uint32, need int)
	// Len is the number of entries.
	Len() int
}

// Sighted is an Evictor that is told the keys of what asks to come in. Whoever drives one calls Admit for each miss, before
// Victim and Insert; those are about its key until the next Admit or Newcomer. One that is not Sighted cannot tell two
// samples apart but by what was done with them.
type Sighted interface {
	Evictor
	// Admit tells that k was asked for and is not in. False: it is not to come in, whatever room there is; nothing else
	// happens.
	Admit(k ident.Key, need int) bool
	// Newcomer tells that Victim and Insert are about k now, without a request for it: an entry grows, was removed and
	// is to be inserted again.
	Newcomer(k ident.Key)
}

// Given is what some policies need beside chance. The zero value knows no future, and of one machine.
type Given struct {
	Future      Future // for belady and clairvoyant-k
	Node, Nodes int    // for minio-partitioned: this machine's place among all, from 0; no Nodes are one
}

// A policy is one line of the registry. sees says what of a sample's identity it is told and why, breaks which order
// promise it breaks (design.md section 4), both in words.
type policy struct {
	name, sees, breaks string
	future             bool // it needs one
	make               func(r *xrand.Rand, g Given) Evictor
}

// The registry, default first. A policy breaks no promise when other names for the samples of a cell would lead to the same
// choices under those names, and nothing else (sampler-sim.md section 8): then no sample of a cell is favoured. That holds
// for all that see need, time and chance only, and for s3-fifo, which recognises what it evicted. A policy that is
// handed sizes or costs, or that computes with ids, does favour some, and must say what that breaks. So must one that keeps
// the same samples for ever: each epoch is fair, a training is not (docs/design/orders.md).
var policies = []policy{
	{name: "need", make: func(r *xrand.Rand, _ Given) Evictor { return newNeed(r) }},
	{name: "refcount", make: func(r *xrand.Rand, _ Given) Evictor { return newRefcount(r) }},
	{name: "minio",
		breaks: "epoch, stratified over a training: beside jobs that share, the samples that stay first stay for ever, and come earlier",
		make:   func(r *xrand.Rand, _ Given) Evictor { return &minio{newBag("minio", r)} }},
	{name: "minio-preselect", sees: "ids, to keep those of the smallest hashes",
		breaks: "epoch, stratified: a hash of the id says which samples stay, the same in all epochs and runs of a seed, and what stays comes earlier",
		make:   func(r *xrand.Rand, _ Given) Evictor { return newPreselect(r) }},
	{name: "minio-partitioned", sees: "ids, to tell which machine keeps a sample",
		breaks: "epoch, stratified: with several machines a hash of the id says which samples stay, for ever, and what stays comes earlier",
		make:   func(r *xrand.Rand, g Given) Evictor { return newPartitioned(r, g.Node, max(1, g.Nodes)) }},
	{name: "lru", make: func(*xrand.Rand, Given) Evictor { return newQueue("lru", true /* hits move to the end */) }},
	{name: "fifo", make: func(*xrand.Rand, Given) Evictor { return newQueue("fifo", false) }},
	{name: "random", make: func(r *xrand.Rand, _ Given) Evictor { return newBag("random", r) }},
	{name: "2-random", make: func(r *xrand.Rand, _ Given) Evictor { return newTwoRandom(r) }},
	{name: "w-tinylfu", sees: "keys, to count how often they are asked for",
		breaks: "epoch, stratified: samples whose ids share counters of the sketch look more popular than others of their cell, stay longer and come earlier",
		make:   func(*xrand.Rand, Given) Evictor { return newWTinyLFU() }},
	{name: "s3-fifo", sees: "keys, to recognise what it evicted", make: func(*xrand.Rand, Given) Evictor { return newS3FIFO() }},
	{name: "sieve", make: func(*xrand.Rand, Given) Evictor { return newSieve() }},
	{name: "belady", sees: "keys, to know when they are asked for next", future: true, breaks: foresightBreaks,
		make: func(_ *xrand.Rand, g Given) Evictor { return newForesight("belady", g.Future, 0) }},
	{name: clairvoyant + "k", sees: "keys, to know when they are asked for next", future: true, breaks: foresightBreaks,
		make: func(_ *xrand.Rand, g Given) Evictor { return newForesight(clairvoyant+"k", g.Future, 0) }},
}

const foresightBreaks = "epoch, stratified: beside a job with shuffle=False what stays follows the order of the dataset"

// clairvoyant-k knows what its Future does, the rest of each job's epoch; clairvoyant-100 no more of it than the next 100
// units of its time.
const clairvoyant = "clairvoyant-"

// find is the line of a name, and the horizon that a name of clairvoyant-k carries.
func find(name string) (p *policy, horizon uint64) {
	if n, ok := strings.CutPrefix(name, clairvoyant); ok && n != "" && n[0] >= '1' && n[0] <= '9' {
		k, err := strconv.ParseUint(n, 10, 63)
		if err != nil {
			return nil, 0
		}
		name, horizon = clairvoyant+"k", k
	}
	for i := range policies {
		if policies[i].name == name {
			return &policies[i], horizon
		}
	}
	return nil, 0
}

// New returns an empty Evictor of that name; "" is the default, need. An unknown name, or one that needs a Future, is a
// errs.ConfigInvalid that names the nearest known one, if one is near. The Evictor owns r from now on.
func New(name string, r *xrand.Rand) (Evictor, error) { return NewGiven(name, r, Given{}) }

// NewGiven is New with what more is known.
func NewGiven(name string, r *xrand.Rand, g Given) (Evictor, error) {
	if r == nil {
		invariant.Violated("cachepolicy: New(%q) without a Rand", name)
	}
	if g.Node < 0 || g.Node >= max(1, g.Nodes) {
		invariant.Violated("cachepolicy: machine %d of %d", g.Node, g.Nodes)
	}
	if name == "" {
		name = policies[0].name
	}
	p, horizon := find(name)
	if p == nil {
		return nil, errs.New(errs.ConfigInvalid, "tiers.policy", Hint(name, Names()), "unknown cache policy %.40q", name)
	}
	if p.future && g.Future == nil {
		return nil, errs.New(errs.ConfigInvalid, "tiers.policy", "choose need, which goes by what is known of it; larder bench sampler knows the future of jobs of order fixed",
			"cache policy %s needs to know what will be asked for", name)
	}
	if horizon > 0 {
		return newForesight(name, g.Future, horizon), nil
	}
	return p.make(r, g), nil
}

// Hint says what could have been meant by an unknown policy: the nearest of names, if one is near, and all of them.
func Hint(name string, names []string) string {
	hint := "the policies are " + strings.Join(names, ", ")
	if w := nearest.Word(name, names); w != "" {
		hint = "did you mean " + w + "? " + hint
	}
	return hint
}

// Names lists the policies, the default first. clairvoyant-k stands for clairvoyant-1, clairvoyant-2 and so on too.
func Names() []string { return namesWhere(func(*policy) bool { return true }) }

// Unforeseeing lists the policies that need no Future: those that a daemon can run.
func Unforeseeing() []string { return namesWhere(func(p *policy) bool { return !p.future }) }

func namesWhere(want func(*policy) bool) []string {
	var names []string
	for i := range policies {
		if want(&policies[i]) {
			names = append(names, policies[i].name)
		}
	}
	return names
}

// NeedsFuture tells whether the policy needs to be Given a Future; an unknown one does not.
func NeedsFuture(name string) bool {
	p, _ := find(name)
	return p != nil && p.future
}

// Sees says in words what of a sample's identity the policy is told, and why; "" when nothing, or when it is unknown.
func Sees(name string) string {
	if p, _ := find(name); p != nil {
		return p.sees
	}
	return ""
}

// Breaks says in words which order promise the policy breaks; "" when it breaks none (or is unknown).
func Breaks(name string) string {
	if p, _ := find(name); p != nil {
		return p.breaks
	}
	return ""
}
