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
	// Name returns the name that New took.
	Name() string
	// Insert adds an entry. need is the number of active jobs that still need it.
	Insert(h uint32, need int)
	// Update sets the need. With the need that the entry already has it changes nothing, so repeated calls have no
	// influence.
	Update(h uint32, need int)
	// Hit records one use of the entry.
	Hit(h uint32)
	// Remove deletes the entry.
	Remove(h uint32)
	// Victim names the entry that should leave in favour of a newcomer with that need; false means that the newcomer
	// should not be admitted. It removes nothing, and returns the same answer until another method is called. Callers
	// use it only when the tier is full, so Len is then the number of such entries that the tier holds.
	Victim(need int) (h uint32, ok bool)
	// Coldest names the entry that should leave when the tier shrinks; false when there is none.
	Coldest() (h uint32, ok bool)
	// Restore undoes the Remove of a Victim that stays after all, because not enough entries would leave. Call it in the
	// reverse order of the removals, before any other method; need is what it was. The same Victims come again then,
	// unless the policy draws them.
	Restore(h uint32, need int)
	// Len returns the number of entries.
	Len() int
}

// Sighted is an Evictor that sees the keys of newcomers. Its caller calls Admit for each miss, before Victim and
// Insert; both are about that key until the next Admit or Newcomer. An Evictor that is not Sighted can tell two samples
// apart only by how they were used.
type Sighted interface {
	Evictor
	// Admit records a miss of k. It returns false if k must not be inserted, however much room there is; then no call
	// follows.
	Admit(k ident.Key, need int) bool
	// Newcomer says that the next Victim and Insert are about k, without a miss: an entry that grows was removed and is
	// to be inserted again.
	Newcomer(k ident.Key)
}

// Given is what some policies need besides chance. The zero value has no Future and stands for a single machine.
type Given struct {
	Future      Future // for belady and clairvoyant-k
	Node, Nodes int    // for minio-partitioned: this machine's place among all, from 0; no Nodes are one
}

// policy is one line of the registry.
type policy struct {
	name   string
	sees   string // which part of a sample's identity the policy sees, and why; "" = none
	breaks string // which order promise the policy breaks (docs/guarantees.md), and how; "" = none
	future bool   // whether it needs a Future
	make   func(r *xrand.Rand, g Given) Evictor
}

// policies is the registry, the default first. A policy breaks no promise if renaming the samples of a cell renames its
// choices and changes nothing else (docs/design/orders.md): then no sample of a cell is favoured. That holds for every
// policy that sees need, time and chance only, and for s3-fifo, which recognises what it evicted. A policy that sees
// sizes or costs, or computes with ids, favours some samples and must say what that breaks. So must a policy that keeps
// the same samples in all epochs: each epoch is fair, a training is not.
var policies = []policy{
	{name: "need", make: func(r *xrand.Rand, _ Given) Evictor { return newNeed(r) }},
	{name: "refcount", make: func(r *xrand.Rand, _ Given) Evictor { return newRefcount(r) }},
	{name: "minio",
		breaks: "epoch, stratified over a training: beside jobs that share, " +
			"the samples that stay first are never evicted, and come earlier",
		make: func(r *xrand.Rand, _ Given) Evictor { return &minio{newBag("minio", r)} }},
	{name: "minio-preselect", sees: "ids, to keep those of the smallest hashes",
		breaks: "epoch, stratified: a hash of the id says which samples stay, the same in all epochs and runs of a seed, " +
			"and what stays comes earlier",
		make: func(r *xrand.Rand, _ Given) Evictor { return newPreselect(r) }},
	{name: "minio-partitioned", sees: "ids, to tell which machine keeps a sample",
		breaks: "epoch, stratified: with several machines a hash of the id says which samples stay in all epochs, " +
			"and what stays comes earlier",
		make: func(r *xrand.Rand, g Given) Evictor { return newPartitioned(r, g.Node, max(1, g.Nodes)) }},
	{name: "lru", make: func(*xrand.Rand, Given) Evictor { return newQueue("lru", true /* hits move to the end */) }},
	{name: "fifo", make: func(*xrand.Rand, Given) Evictor { return newQueue("fifo", false) }},
	{name: "random", make: func(r *xrand.Rand, _ Given) Evictor { return newBag("random", r) }},
	{name: "2-random", make: func(r *xrand.Rand, _ Given) Evictor { return newTwoRandom(r) }},
	{name: "w-tinylfu", sees: "keys, to count how often they are asked for",
		breaks: "epoch, stratified: samples whose ids share counters of the sketch look more popular than others of " +
			"their cell, stay longer and come earlier",
		make: func(*xrand.Rand, Given) Evictor { return newWTinyLFU() }},
	{name: "s3-fifo", sees: "keys, to recognise what it evicted",
		make: func(*xrand.Rand, Given) Evictor { return newS3FIFO() }},
	{name: "sieve", make: func(*xrand.Rand, Given) Evictor { return newSieve() }},
	{name: "belady", sees: "keys, to know when they are asked for next", future: true, breaks: foresightBreaks,
		make: func(_ *xrand.Rand, g Given) Evictor { return newForesight("belady", g.Future, 0) }},
	{name: clairvoyant + "k", sees: "keys, to know when they are asked for next", future: true, breaks: foresightBreaks,
		make: func(_ *xrand.Rand, g Given) Evictor { return newForesight(clairvoyant+"k", g.Future, 0) }},
}

const foresightBreaks = "epoch, stratified: beside a job with shuffle=False what stays follows the order of the dataset"

// clairvoyant begins the names of policies with a limited foresight. clairvoyant-k uses all that its Future knows (the
// rest of each job's epoch), clairvoyant-100 only the next 100 units of the Future's time.
const clairvoyant = "clairvoyant-"

// find returns the line of a name, and the horizon that a name such as clairvoyant-100 carries.
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

// New returns an empty Evictor of that name; "" is the default, need. An unknown name, or one that needs a Future, is
// an errs.ConfigInvalid that suggests the nearest known one. The Evictor owns r from now on.
func New(name string, r *xrand.Rand) (Evictor, error) { return NewGiven(name, r, Given{}) }

// NewGiven is New for policies that need more than chance.
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
		return nil, errs.New(errs.ConfigInvalid, "tiers.policy",
			"choose need, which goes by what is known of it; larder bench sampler knows the future of jobs of order fixed",
			"cache policy %s needs to know what will be asked for", name)
	}
	if horizon > 0 {
		return newForesight(name, g.Future, horizon), nil
	}
	return p.make(r, g), nil
}

// Hint returns the hint for an unknown policy: the nearest of names, if one is near, and all of them.
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

// NeedsFuture reports whether the policy needs a Future; an unknown one does not.
func NeedsFuture(name string) bool {
	p, _ := find(name)
	return p != nil && p.future
}

// Sees returns, in words, which part of a sample's identity the policy sees and why; "" for none, or an unknown policy.
func Sees(name string) string {
	if p, _ := find(name); p != nil {
		return p.sees
	}
	return ""
}

// Breaks returns, in words, which order promise the policy breaks; "" for none, or an unknown policy.
func Breaks(name string) string {
	if p, _ := find(name); p != nil {
		return p.breaks
	}
	return ""
}
