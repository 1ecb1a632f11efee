package cachepolicy

import (
	"github.com/google/btree"

	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

// minio keeps what came first and never evicts (MinIO of Mohan et al.: "Analyzing and Mitigating Data Stalls in DNN
// Training", VLDB 2021, section 4.1). Only a shrinking tier takes entries away, at random.
type minio struct{ *bag }

func (minio) Victim(int) (uint32, bool) { return 0, false }

// preselect is MinIO as CoorDL's code has it (file_loader.cc): a seeded random choice of samples is kept, in any order
// of requests, so that every machine with the seed knows what every other keeps. CoorDL gets the number of samples that
// fit as an argument; here those with the smallest hashes stay, which in the end is the same set without knowing the
// sizes. Until everything was offered once, an entry may leave for one with a smaller hash; after that nothing moves.
type preselect struct {
	seed     uint64
	tree     *btree.BTreeG[rankItem]
	hash     []rankSlot // by handle
	newcomer uint64     // hash
}

type rankItem struct {
	hash uint64
	h    uint32
}

type rankSlot struct {
	hash uint64
	in   bool
}

func newPreselect(r *xrand.Rand) *preselect {
	return &preselect{seed: r.Uint64(), tree: btree.NewG(32, func(a, b rankItem) bool {
		if a.hash != b.hash {
			return a.hash < b.hash
		}
		return a.h < b.h
	})}
}

func (p *preselect) Name() string { return "minio-preselect" }
func (p *preselect) Len() int     { return p.tree.Len() }

func (p *preselect) Newcomer(k ident.Key) { p.newcomer = xrand.Hash(p.seed, uint64(k.Object)) }

func (p *preselect) Admit(k ident.Key, _ int) bool {
	p.Newcomer(k)
	return true
}

func (p *preselect) Insert(h uint32, _ int) { p.put(h, p.newcomer) }

func (p *preselect) Restore(h uint32, _ int) {
	if int(h) >= len(p.hash) {
		invariant.Violated("minio-preselect: Restore(%d) of an entry that never was in", h)
	}
	p.put(h, p.hash[h].hash)
}

func (p *preselect) put(h uint32, hash uint64) {
	for int(h) >= len(p.hash) {
		p.hash = append(p.hash, rankSlot{})
	}
	if p.hash[h].in {
		invariant.Violated("minio-preselect: entry %d is in already", h)
	}
	p.hash[h] = rankSlot{hash, true}
	p.tree.ReplaceOrInsert(rankItem{hash, h})
}

func (p *preselect) Update(h uint32, _ int) { p.slot(h) }
func (p *preselect) Hit(h uint32)           { p.slot(h) }

func (p *preselect) Remove(h uint32) {
	s := p.slot(h)
	s.in = false
	p.tree.Delete(rankItem{s.hash, h})
}

func (p *preselect) slot(h uint32) *rankSlot {
	if int(h) >= len(p.hash) || !p.hash[h].in {
		invariant.Violated("minio-preselect: entry %d is not in", h)
	}
	return &p.hash[h]
}

func (p *preselect) Victim(int) (uint32, bool) {
	v, ok := p.tree.Max()
	return v.h, ok && p.newcomer < v.hash
}

func (p *preselect) Coldest() (uint32, bool) {
	v, ok := p.tree.Max()
	return v.h, ok
}

// partitioned is MinIO over several machines (CoorDL, section 4.2): each keeps the samples that a hash of the id gives
// to it and never evicts those; the room that they do not fill takes what comes of the others' samples, which leave, in
// random order, when an own one wants in. On one machine all samples are its own, and it is minio.
type partitioned struct {
	own, guests *bag
	node, nodes uint64
	mine        bool   // whether the newcomer is
	guest       []bool // by handle
}

func newPartitioned(r *xrand.Rand, node, nodes int) *partitioned {
	return &partitioned{own: newBag("minio-partitioned", r), guests: newBag("minio-partitioned", r.Split()),
		node: uint64(node), nodes: uint64(nodes)}
}

func (p *partitioned) Name() string { return "minio-partitioned" }
func (p *partitioned) Len() int     { return p.own.Len() + p.guests.Len() }

// Newcomer uses no seed: every machine must come to the same owner.
func (p *partitioned) Newcomer(k ident.Key) { p.mine = xrand.Hash(uint64(k.Object))%p.nodes == p.node }

func (p *partitioned) Admit(k ident.Key, _ int) bool {
	p.Newcomer(k)
	return true
}

// of is the bag of a handle that is or was in.
func (p *partitioned) of(h uint32) *bag {
	if int(h) < len(p.guest) && p.guest[h] {
		return p.guests
	}
	return p.own
}

func (p *partitioned) Insert(h uint32, need int) {
	for int(h) >= len(p.guest) {
		p.guest = append(p.guest, false)
	}
	if b := p.of(h); int(h) < len(b.pos) && b.pos[h] != 0 {
		invariant.Violated("minio-partitioned: entry %d is in already", h)
	}
	p.guest[h] = !p.mine
	p.of(h).Insert(h, need)
}

func (p *partitioned) Restore(h uint32, need int) { p.of(h).Restore(h, need) }
func (p *partitioned) Update(h uint32, _ int)     { p.of(h).at(h) }
func (p *partitioned) Hit(h uint32)               { p.of(h).at(h) }
func (p *partitioned) Remove(h uint32)            { p.of(h).Remove(h) }

func (p *partitioned) Victim(int) (uint32, bool) {
	if !p.mine {
		return 0, false
	}
	return p.guests.Coldest()
}

func (p *partitioned) Coldest() (uint32, bool) {
	if h, ok := p.guests.Coldest(); ok {
		return h, true
	}
	return p.own.Coldest()
}
