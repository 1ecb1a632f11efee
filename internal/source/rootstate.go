package source

import (
	"context"

	"larder/internal/ident"
)

func (c *Catalog) rootAt(i uint32) *rootState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.roots[i]
}

// path of a sample in the newest version; "" while the first one is still being put together.
func (rs *rootState) path(s ident.SampleID) string {
	if snap := rs.snap.Load(); snap != nil {
		return snap.path(s)
	}
	return ""
}

func (c *Catalog) rootState(at place) *rootState {
	c.mu.Lock()
	defer c.mu.Unlock()
	rs, ok := c.byRoot[at.uri]
	if !ok {
		rs = &rootState{place: at, index: uint32(len(c.roots)), sem: make(chan struct{}, 1), stores: c.cfg.Stores,
			kept: c.cfg.Kept}
		c.roots = append(c.roots, rs)
		c.byRoot[at.uri] = rs
	}
	return rs
}

func (rs *rootState) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case rs.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (rs *rootState) unlock() { <-rs.sem }
