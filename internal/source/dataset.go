package source

import (
	"context"
	"os"
	"strings"
	"sync/atomic"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source/packed"
	"larder/internal/source/subset"
)

// Dataset is an ordered list of samples with labels. It shows the newest version of its root that keeps every label:
// ids are only ever appended, samples whose file is gone become tombstones, and the label of an id never changes. When
// the class folders change so that labels would, the catalogue makes a new Dataset of the same name, and this one stays
// as it is for the jobs that use it. Safe for concurrent use; a change may come between two calls.
//
// Names of files are bytes; what goes to people and into messages must be UTF-8. So Name, URI, Classes, Class and Key
// are text, in which U+FFFD stands for what is no UTF-8; order, subsets and reading go by the bytes.
type Dataset struct {
	id   ident.DatasetID
	name string
	uri  string
	rs   *rootState
	cat  *Catalog
	snap atomic.Pointer[snapshot]
}

// ID is dense in this run of the daemon.
func (d *Dataset) ID() ident.DatasetID { return d.id }

// Name is the name given at Add, or the uri.
func (d *Dataset) Name() string { return printable(d.name) }

// URI is the canonical uri: imagefolder: and the absolute folder.
func (d *Dataset) URI() string { return printable(d.uri) }

// Root is the absolute folder, in the bytes of the file system.
func (d *Dataset) Root() string { return d.rs.root }

// Includes reports whether files that are made in a folder may become samples: whether the uri names it or a folder
// above it, and not files alone. A folder in a store is written as Root writes it.
func (d *Dataset) Includes(dir string) bool {
	below := func(root string) bool { return strings.HasPrefix(dir+"/", strings.TrimSuffix(root, "/")+"/") }
	if d.rs.format == nil || d.rs.address.Place != "" {
		return below(d.rs.root)
	}
	for part := range strings.SplitSeq(d.rs.address.Path, "::") {
		if info, err := os.Stat(part); err == nil && !info.IsDir() {
			continue
		}
		if below(packed.Root(packed.Address{Scheme: d.rs.address.Scheme, Path: part})) {
			return true
		}
	}
	return false
}

// Classes are the class names in label order. The caller must not change them.
func (d *Dataset) Classes() []string { return d.snap.Load().shown }

// Len is the number of sample ids, tombstones included: ids are 0 to Len-1.
func (d *Dataset) Len() int { return d.snap.Load().Len() }

// Live is false for a sample whose file was removed, and for ids out of range.
func (d *Dataset) Live(s ident.SampleID) bool { return d.snap.Load().Live(s) }

// LiveCount is the number of samples that exist.
func (d *Dataset) LiveCount() int { return d.snap.Load().live }

// Object is what holds the sample, NoObject out of range and for tombstones older than this daemon.
func (d *Dataset) Object(s ident.SampleID) ident.ObjectID { return d.snap.Load().object(s) }

// Sample is the sample that an object is, or was before its file changed.
func (d *Dataset) Sample(o ident.ObjectID) (ident.SampleID, bool) { return d.snap.Load().rev.find(o) }

// Label is the class number of a sample, -1 out of range.
func (d *Dataset) Label(s ident.SampleID) int64 { return d.snap.Load().Label(s) }

// Class is the class name of a sample.
func (d *Dataset) Class(s ident.SampleID) string { return printable(d.snap.Load().Class(s)) }

// Key is the path of a sample below the root.
func (d *Dataset) Key(s ident.SampleID) string { return printable(d.snap.Load().Key(s)) }

// Path is the absolute path of a sample, in the bytes of the file system.
func (d *Dataset) Path(s ident.SampleID) string { return d.snap.Load().path(s) }

// Bytes is the stored size of a sample, 0 for tombstones.
func (d *Dataset) Bytes(s ident.SampleID) int64 {
	snap := d.snap.Load()
	if !snap.Live(s) {
		return 0
	}
	return d.cat.ObjectBytes(snap.object(s))
}

// File returns what is known of the file of an object, as it was when the object was met: its key in the bytes of the
// file system, its size in bytes, and when it was modified, in ns.
func (d *Dataset) File(o ident.ObjectID) (key string, size, mtime int64) {
	snap := d.snap.Load()
	if s, ok := snap.rev.find(o); ok {
		key = snap.Key(s)
	}
	if snap.made != nil {
		return key, 0, snap.made.mtime
	}
	m, _ := d.cat.objects.meta(o)
	return key, m.size, m.mtime
}

// TotalBytes is the stored size of the samples that exist.
func (d *Dataset) TotalBytes() int64 { return d.snap.Load().total }

// Fingerprint changes with any key, id, label, size or modification time.
func (d *Dataset) Fingerprint() uint64 { return d.snap.Load().fp }

// SkipEmpty reports whether class folders without images are accepted.
func (d *Dataset) SkipEmpty() bool { return d.rs.empty.Load() }

// Report says what the last walk found beside samples.
func (d *Dataset) Report() Report { return d.snap.Load().report }

// Select is SelectContext without an end.
func (d *Dataset) Select(expr string) ([]ident.SampleID, error) {
	return d.SelectContext(context.Background(), expr)
}

// SelectContext evaluates a subset expression: ascending, distinct ids of samples that exist, never none. Errors are
// *errs.Error: SUBSET_SYNTAX, SUBSET_EMPTY, INVALID_ARGUMENT for a range the dataset does not have or a property that
// cannot be compared so, DATASET_UNREADABLE or those of a store where a property cannot be read; or the context's. Time
// is bounded by the length of the expression times the number of samples, milliseconds for all but absurd ones; a
// property that was not used before is read from the files first.
func (d *Dataset) SelectContext(ctx context.Context, expr string) ([]ident.SampleID, error) {
	e, err := subset.Parse(expr)
	if err != nil {
		return nil, err
	}
	snap := d.snap.Load()
	ids, err := e.Select(&view{snap, ctx, d})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errs.New(errs.SubsetEmpty, d.Name(), "`larder dataset inspect` shows classes and keys",
			"subset: %s selects none of the %d samples of %s (ids 0 to %d, labels 0 to %d)", printable(e.String()), snap.live,
			d.Name(), snap.Len()-1, len(snap.classes)-1)
	}
	return ids, nil
}

var _ subset.View = (*snapshot)(nil)
