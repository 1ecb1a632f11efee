package engine

import (
	"cmp"
	"slices"
	"sync"

	"larder/internal/engine/ring"
	"larder/internal/ident"
)

// memory is the settings in force, and what follows from them. It is safe for concurrent use.
type memory struct {
	limit, own int64 // see MemoryConfig
	rings      *ring.Budget
	mu         struct {
		sync.Mutex
		Settings
		total      int64                    // of the tiers; more than Settings has while they are about to grow
		stratified map[ident.DatasetID]bool // those whose first job has come
	}
}

func newMemory(cfg *MemoryConfig) *memory {
	m := &memory{limit: cfg.Limit, own: cfg.Own}
	m.rings = ring.NewBudget(m.ringLimit)
	first := cfg.Settings
	if first.TierSetting == nil {
		first.TierSetting = map[ident.Form]string{}
	}
	m.mu.stratified = map[ident.DatasetID]bool{}
	m.set(first)
	return m
}

func (m *memory) get() Settings {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.Settings
}

func (m *memory) set(s Settings) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.Settings, m.mu.total = s, s.Tiers.Total
}

// total is what the tiers may have together.
func (m *memory) total() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.total
}

// reserve keeps memory for tiers that are about to grow, so that no ring takes it; restore undoes that.
func (m *memory) reserve(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.total = max(m.mu.total, total)
}

func (m *memory) restore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.total = m.mu.Tiers.Total
}

// ringLimit is how many bytes all rings may have: what is configured, and no more than the tiers leave.
func (m *memory) ringLimit() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.limit - m.own - m.mu.total
	if m.mu.MaxRing > 0 {
		return min(left, m.mu.MaxRing)
	}
	return left
}

// shown is how the size of a tier is configured, for people.
func (m *memory) shown(f ident.Form) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.mu.TierSetting[f], "auto")
}

// maxLabelGroups bounds the strata of a dataset with classes: each cell is split by them.
const maxLabelGroups = 16

// strata are the sets that the samples of a job's dataset are to be kept mixed by: quartiles of stored bytes, or
// groups of classes in label order. The last one is left out: it is what is in none of the others. They are made for
// the first job of a dataset, and hold for good. Engine.registering is held.
func (m *memory) strata(j *job) [][]ident.ObjectID {
	m.mu.Lock()
	kind := "off"
	if m.mu.Strata != nil {
		kind = m.mu.Strata(j.Data.Name(), j.Data.URI())
	}
	done := m.mu.stratified[j.Data.ID()]
	m.mu.Unlock()
	if done || kind == "off" {
		return nil
	}
	var all []strataItem
	seen := map[ident.ObjectID]bool{} // a file may be there twice
	for s := range ident.SampleID(j.Data.Len()) {
		if x := j.Data.Object(s); j.Data.Live(s) && !seen[x] {
			seen[x] = true
			v := strataItem{x, j.Data.Label(s)}
			if kind == "size" {
				v.key = j.Data.Bytes(s)
			}
			all = append(all, v)
		}
	}
	if kind == "size" {
		return quartiles(all)
	}
	return labelGroups(all, len(j.Data.Classes()))
}

// stratified notes that a dataset has its strata, or is to have none.
func (m *memory) stratified(d ident.DatasetID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.stratified[d] = true
}

type strataItem struct {
	x   ident.ObjectID
	key int64
}

// quartiles cuts by key into four equal parts.
func quartiles(all []strataItem) [][]ident.ObjectID {
	slices.SortFunc(all, func(a, b strataItem) int { // ids break ties, so that a restart gives the same sets
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.x, b.x))
	})
	var sets [4][]ident.ObjectID
	for i, v := range all {
		q := i * len(sets) / len(all)
		sets[q] = append(sets[q], v.x)
	}
	return butLast(sets[:])
}

// labelGroups cuts classes in label order into groups of nearly equally many classes.
func labelGroups(all []strataItem, classes int) [][]ident.ObjectID {
	groups := max(1, min(classes, maxLabelGroups))
	sets := make([][]ident.ObjectID, groups)
	for _, v := range all {
		label := max(0, min(v.key, int64(classes)-1))
		g := label * int64(groups) / int64(max(1, classes))
		sets[g] = append(sets[g], v.x)
	}
	return butLast(sets)
}

func butLast(sets [][]ident.ObjectID) [][]ident.ObjectID {
	sets = slices.DeleteFunc(sets, func(s []ident.ObjectID) bool { return len(s) == 0 })
	return sets[:max(len(sets)-1, 0)]
}
