package source

import (
	"cmp"
	"context"
	"errors"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source/packed"
)

// SummedFiles is a sample of each file of a dataset that has checksums which reads of samples do not compare.
func (c *Catalog) SummedFiles(d *Dataset) (first []ident.SampleID) {
	if d.rs.format == nil || !packed.HasSums(d.rs.format.Scheme()) {
		return nil
	}
	snap := d.snap.Load()
	seen := make([]bool, len(snap.dirs))
	for s := range ident.SampleID(snap.Len()) {
		if dir := snap.dir(s); snap.Live(s) && !seen[dir] {
			seen[dir] = true
			first = append(first, s)
		}
	}
	return first
}

// CheckSums compares the checksums of the file of a sample. bad is what it says of each part that has changed; an error
// is that the file cannot be read, or not as it was indexed.
func (c *Catalog) CheckSums(ctx context.Context, d *Dataset, s ident.SampleID) (bad []string, err error) {
	snap := d.snap.Load()
	row, ok := c.objects.get(snap.object(s))
	if !ok || !snap.has(s) {
		return nil, nil
	}
	dir := snap.dir(s)
	of := &snap.dirs[dir]
	f, err := c.openOnce(ctx, d.rs, snap, openKey{keyOfFile(d.rs.index, dir, of, row.mtime), snap.mark}, of)
	if err != nil {
		return nil, sumsError(ctx, d.Path(s), err)
	}
	err = packed.CheckSums(ctx, f.rows, func(what string) { bad = append(bad, what) })
	same := f.same()
	c.files.done(f, same != nil)
	return bad, sumsError(ctx, d.Path(s), cmp.Or(same, err))
}

// sumsError is the error of a file that cannot be read.
func sumsError(ctx context.Context, path string, err error) error {
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	return readError(path, err)
}
