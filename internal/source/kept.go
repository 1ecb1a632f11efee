package source

import (
	"context"
	"strings"

	"larder/internal/ident"
	"larder/internal/store"
	"larder/tiers/disk"
)

// Kept is what keeps stored bytes of objects that lie behind a network: the disk tier. It may lose any of them.
type Kept interface {
	// Get fills buf with the bytes of a key, and reports whether it could. whom.Group is the uri of the dataset.
	Get(whom disk.Whom, k disk.Key, buf []byte) bool
	// Has reports whether Get most likely could. It reads nothing, and counts nothing.
	Has(k disk.Key) bool
	// Put offers bytes that were read. It copies them and does not wait.
	Put(whom disk.Whom, k disk.Key, b []byte)
}

// readers is the key of what ForReaders says.
type readers struct{}

// ForReaders says in a context for how many live jobs a sample is read with it: those whose subset has it. It decides
// what the disk tier keeps. 0 = not known.
func ForReaders(ctx context.Context, n int) context.Context {
	if n <= 0 {
		return ctx
	}
	return context.WithValue(ctx, readers{}, n)
}

// whom is for whom bytes of a root are read.
func (rs *rootState) whom(ctx context.Context) disk.Whom {
	return disk.Whom{Group: rs.uri, Jobs: Readers(ctx)}
}

// Readers is what ForReaders said; 0 = nothing.
func Readers(ctx context.Context) int {
	n, _ := ctx.Value(readers{}).(int)
	return n
}

// readWhole fills buf with an object that lies in a store, from the disk tier where that has it. What is read from the
// store counts against the storage limit, and is offered to the disk tier.
//
// The key has the version of the index, so bytes of another version are never found.
func (c *Catalog) readWhole(ctx context.Context, o ident.ObjectID, row object, buf []byte) error {
	rs := c.rootAt(row.root)
	var key disk.Key
	kept := c.cfg.Kept != nil && !rs.storedInfo(row).SizeAlone()
	if kept {
		key = disk.Key{Place: rs.placeName(), Object: rs.path(row.sample), Version: uint64(row.mtime), Off: row.off,
			Size: row.size}
		if c.indexedPieces(rs, row).get(rs.whom(ctx), buf, row.off) || c.cfg.Kept.Get(rs.whom(ctx), key, buf) {
			return nil
		}
	}
	if !c.fromBlock(ctx, o, buf) {
		if err := c.limit.wait(ctx, row.size); err != nil {
			return err
		}
		if err := c.readStored(ctx, o, row, 0, buf); err != nil {
			return err
		}
	}
	if kept {
		c.cfg.Kept.Put(rs.whom(ctx), key, buf)
	}
	return nil
}

// indexedPieces are what an index read of the packed file that holds an object; nil = there is none.
func (c *Catalog) indexedPieces(rs *rootState, row object) *keptPieces {
	if rs.format == nil {
		return nil
	}
	in := rs.storedInfo(row)
	in.Key = keyOf(strings.TrimPrefix(rs.path(row.sample), rs.address.Place))
	return rs.pieces(in)
}

// storedInfo is the size and the version of the file in a store that holds an object.
func (rs *rootState) storedInfo(row object) store.Info {
	return store.Info{Size: rs.state(row, row.sample).size, Version: uint64(row.mtime)}
}

// placeName names the server and the place of a root: equal names on two servers are two places.
func (rs *rootState) placeName() string {
	if p := rs.server.Load(); p != nil {
		return *p
	}
	name := rs.stores.Identity(rs.root)
	rs.server.Store(&name)
	return name
}

// placeOf is placeName, and "" for the file system.
func (c *Catalog) placeOf(rs *rootState) string {
	if rs.address.Place == "" {
		return ""
	}
	return rs.placeName()
}

var _ Kept = (*disk.Store)(nil)
