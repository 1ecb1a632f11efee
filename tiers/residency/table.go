package residency

import (
	"larder/internal/ident"
	"larder/internal/invariant"
)

// table leads from keys to entries. Encoded and decoded keys are an object and a recipe, so each recipe has a plane of
// pages indexed by object: two loads, no hashing, and 4 bytes a sample where a page is in use. Augmented keys are
// sparse (group, instance) and live in a map, from which no order is ever taken.
type table struct {
	planes    [ident.Augmented]map[ident.RecipeID]*plane // by form, below Augmented
	last      [ident.Augmented]*plane                    // the plane used last: jobs come in runs of one recipe
	augmented map[ident.Key]Handle
	len       int // keys in all of them
}

type plane struct {
	recipe ident.RecipeID
	pages  []*page
	count  int
}

const pageBits = 10

// page holds Handle+1 for 1024 consecutive objects, 0 = none. Objects of one dataset are neighbours.
type page [1 << pageBits]Handle

func (t *table) plane(k ident.Key) *plane {
	if k.Group != 0 || k.Instance != 0 || (k.Form == ident.Encoded && k.Recipe != 0) {
		invariant.Violated("residency: %s is not a key of its form", k)
	}
	if p := t.last[k.Form]; p != nil && p.recipe == k.Recipe {
		return p
	}
	p := t.planes[k.Form][k.Recipe]
	if p != nil {
		t.last[k.Form] = p
	}
	return p
}

func (t *table) get(k ident.Key) (Handle, bool) {
	if k.Form >= ident.Augmented {
		h, ok := t.augmented[k]
		return h, ok
	}
	p := t.plane(k)
	if p == nil {
		return 0, false
	}
	i := int(k.Object >> pageBits)
	if i >= len(p.pages) || p.pages[i] == nil {
		return 0, false
	}
	h := p.pages[i][k.Object&(1<<pageBits-1)]
	return h - 1, h != 0
}

// put adds a key that is not in.
func (t *table) put(k ident.Key, h Handle) {
	t.len++
	if k.Form >= ident.Augmented {
		if t.augmented == nil {
			t.augmented = make(map[ident.Key]Handle)
		}
		t.augmented[k] = h
		return
	}
	p := t.plane(k)
	if p == nil {
		if t.planes[k.Form] == nil {
			t.planes[k.Form] = make(map[ident.RecipeID]*plane)
		}
		p = &plane{recipe: k.Recipe}
		t.planes[k.Form][k.Recipe] = p
	}
	i := int(k.Object >> pageBits)
	if i >= len(p.pages) {
		p.pages = append(p.pages, make([]*page, i+1-len(p.pages))...)
	}
	if p.pages[i] == nil {
		p.pages[i] = new(page)
	}
	p.pages[i][k.Object&(1<<pageBits-1)] = h + 1
	p.count++
}

// del takes out a key that is in.
func (t *table) del(k ident.Key) {
	t.len--
	if k.Form >= ident.Augmented {
		delete(t.augmented, k)
		return
	}
	p := t.plane(k)
	p.pages[k.Object>>pageBits][k.Object&(1<<pageBits-1)] = 0
	p.count--
	if p.count == 0 { // the last job of the recipe may be gone
		delete(t.planes[k.Form], k.Recipe)
		t.last[k.Form] = nil
	}
}
