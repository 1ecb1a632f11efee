package source

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source/packed"
	"larder/internal/source/subset"
	"larder/internal/spool"
)

// Properties are columns of the files of a dataset that subset expressions name. Nothing is kept of them until an
// expression does; then one pass over the files reads the column, and it is saved beside the index.

const (
	// maxPropertyText bounds the distinct words of one property, bytes.
	maxPropertyText = 256 << 20
	// propertySpool is the memory for blocks while a property is read, bytes.
	propertySpool = 512 << 20
	// maxColumns is the memory for the columns that were used last, bytes.
	maxColumns = 64 << 20
)

// view is a version of a dataset, for one expression.
type view struct {
	*snapshot
	ctx context.Context //nolint:containedctx // it lives as long as one Select
	d   *Dataset
}

var _ subset.Properties = (*view)(nil)

// Property implements subset.Properties.
func (v *view) Property(name string) (*subset.Column, error) {
	if v.made != nil || v.d.rs.format == nil {
		return nil, subset.ErrNoProperty
	}
	return v.d.cat.property(v.ctx, v.d.rs, v.snapshot, name)
}

// PropertyNames implements subset.Properties. What cannot be read has none.
func (v *view) PropertyNames() []string {
	if v.made != nil || v.d.rs.format == nil {
		return nil
	}
	r := propertyReader{c: v.d.cat, rs: v.d.rs, snap: v.snapshot}
	if r.prepare(v.ctx) != nil {
		return nil
	}
	names, err := r.names(v.ctx)
	if err != nil {
		return nil
	}
	return names
}

// columnKey names a property of a version.
type columnKey struct {
	root uint32
	fp   uint64
	name string
}

// columnCache keeps the columns that were used last. The zero value is empty.
type columnCache struct {
	calls spool.Single

	mu    sync.Mutex // guards what follows
	last  []columnKey
	have  map[columnKey]*subset.Column
	bytes int64
}

func columnBytes(c *subset.Column) int64 {
	n := int64(8*len(c.Ints) + 8*len(c.Floats) + 4*len(c.Codes) + 8*len(c.None))
	for _, w := range c.Words {
		n += int64(len(w)) + 16
	}
	return n
}

func (k *columnCache) get(key columnKey) *subset.Column {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.have[key]
}

func (k *columnCache) put(key columnKey, c *subset.Column) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.have == nil {
		k.have = map[columnKey]*subset.Column{}
	}
	if k.have[key] != nil {
		return
	}
	k.have[key] = c
	k.last = append(k.last, key)
	k.bytes += columnBytes(c)
	for len(k.last) > 0 && k.bytes > maxColumns {
		old := k.last[0]
		k.last = k.last[1:]
		k.bytes -= columnBytes(k.have[old])
		delete(k.have, old)
	}
}

// property returns a column: one that was used lately, a saved one, or one that is read now.
func (c *Catalog) property(ctx context.Context, rs *rootState, snap *snapshot, name string) (*subset.Column, error) {
	key := columnKey{rs.index, snap.fp, name}
	if col := c.columns.get(key); col != nil {
		return col, nil
	}
	got, err := c.columns.calls.Do(ctx, fmt.Sprint(key), func() (any, error) {
		if col := c.loadColumn(rs, snap, name); col != nil {
			return col, nil
		}
		r := propertyReader{c: c, rs: rs, snap: snap}
		col, err := r.read(ctx, name)
		if err != nil {
			return nil, r.explain(ctx, name, err)
		}
		c.saveColumn(rs, snap, name, col)
		return col, nil
	})
	if err != nil {
		return nil, err
	}
	col := got.(*subset.Column)
	c.columns.put(key, col)
	return col, nil
}

// propertyReader reads a property of one version.
type propertyReader struct {
	c    *Catalog
	rs   *rootState
	snap *snapshot

	a     packed.Address
	at    *storePlace
	files []dirRow // that hold samples
}

func (r *propertyReader) explain(ctx context.Context, name string, err error) error {
	what := fmt.Sprintf("read the property %q of %s", name, printable(r.rs.uri))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, ctx.Err())
	case errors.Is(err, subset.ErrNoProperty):
		return err
	}
	if e := r.rs.storeError(what, err); e != nil {
		return e
	}
	return errs.New(errs.DatasetUnread, redactPacked(printable(r.rs.uri)),
		"repair that sample or file, or leave the condition out", "%s", what).Because(err)
}

// prepare finds the files.
func (r *propertyReader) prepare(ctx context.Context) (err error) {
	if r.a, r.at, err = r.rs.look(ctx); err != nil {
		return err
	}
	if r.snap.listed() {
		r.files = r.snap.lists
		return nil
	}
	files, _, err := r.rs.format.Files(r.a)
	if err != nil {
		return err
	}
	rows := make(map[string]*dirRow, len(r.snap.dirs))
	for i := range r.snap.dirs {
		if d := &r.snap.dirs[i]; d.live {
			rows[r.rs.inPlace(d.rel)] = d
		}
	}
	for _, f := range files {
		if d := rows[f]; d != nil {
			r.files = append(r.files, *d)
		}
	}
	return nil
}

func (r *propertyReader) paths() []string {
	out := make([]string, len(r.files))
	for i := range r.files {
		out[i] = r.rs.inPlace(r.files[i].rel)
	}
	return out
}

func (r *propertyReader) opener() func(string) (packed.Other, error) {
	if r.at != nil {
		return r.at.openBeside
	}
	return openOther
}

// names are those of the properties that there are.
func (r *propertyReader) names(ctx context.Context) ([]string, error) {
	if l, ok := r.rs.format.(packed.Listing); ok {
		file, closer, err := r.open(ctx, &r.files[0])
		if err != nil {
			return nil, err
		}
		defer closer()
		return l.Columns(ctx, r.a, file)
	}
	f, ok := packed.PropertiesOf(r.rs.format)
	if !ok {
		return nil, nil
	}
	if n, ok := f.(packed.Named); ok {
		return n.PropertyNames(ctx, r.a, r.paths(), r.opener())
	}
	if !packed.TakesFields(r.a.Scheme) {
		return nil, nil
	}
	if r.a.Fields() == nil {
		return packed.PropertyNamesOf(&r.snap.schema), nil
	}
	all := packed.ForProperty(r.a)
	delete(all.Args, "fields")
	s, err := f.Schema(ctx, all, r.paths(), r.opener())
	return packed.PropertyNamesOf(&s), err
}

// same reports a file that is not as it was indexed; reads of stores compare versions by themselves.
func (r *propertyReader) same(d *dirRow) error {
	if r.at != nil {
		return nil
	}
	now, err := r.rs.statFile(d.rel, nil)
	if err != nil {
		return err
	}
	if !d.is(now) {
		return fmt.Errorf("%s changed since it was indexed; index it again", printable(d.rel))
	}
	return nil
}

// open opens a file that is as it was indexed.
func (r *propertyReader) open(ctx context.Context, d *dirRow) (packed.File, func(), error) {
	was := fileMeta{dev: d.dev, ino: d.ino, size: d.size, mtime: d.mtime}
	if err := r.same(d); err != nil {
		return packed.File{}, nil, err
	}
	file, closer, err := r.rs.openFile(ctx, d.rel, was)
	if err != nil {
		return packed.File{}, nil, err
	}
	return file, func() { _ = closer.Close() }, nil // nothing was written, so nothing can be lost
}

// read reads a property of all samples.
func (r *propertyReader) read(ctx context.Context, name string) (*subset.Column, error) {
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	for i := range r.files {
		if err := r.same(&r.files[i]); err != nil {
			return nil, err
		}
	}
	field, keys, ok := name, []string(nil), r.snap.schema.Has(name)
	if !ok {
		names, err := r.names(ctx)
		if err != nil {
			return nil, err
		}
		if field, keys, ok = packed.PropertyField(name, names); !ok {
			return nil, subset.ErrNoProperty
		}
	}
	col := newCollector(r.snap.Len())
	read := r.columnOf
	if r.snap.listed() {
		read = r.columnOfLists
	}
	if err := read(ctx, col, field, keys); err != nil {
		return nil, err
	}
	if !col.any {
		return nil, subset.ErrNoProperty
	}
	return col.column(), nil
}

// columnOf reads a field, and the value of some keys in there, out of files of records.
func (r *propertyReader) columnOf(ctx context.Context, col *collector, field string, keys []string) error {
	f, ok := packed.PropertiesOf(r.rs.format)
	if !ok {
		return subset.ErrNoProperty
	}
	a := packed.ForProperty(r.a, field)
	schema, err := f.Schema(ctx, a, r.paths(), r.opener())
	if err != nil {
		return err
	}
	if len(schema.Fields) == 0 || !packed.IsProperty(&schema.Fields[0]) {
		return subset.ErrNoProperty
	}
	byDir := r.snap.byDir()
	row := map[string]int{}
	for i := range r.snap.dirs {
		row[r.snap.dirs[i].rel] = i
	}
	blocks := spool.NewMemory(propertySpool)
	return inParallel(ctx, min(runtime.GOMAXPROCS(0), 4), len(r.files), func(i int) error {
		d := &r.files[i]
		ids := make(map[string]ident.SampleID, len(byDir[row[d.rel]]))
		for _, id := range byDir[row[d.rel]] { // of a key whose label changed, the live one counts
			if r.snap.Live(id) {
				ids[r.snap.name(id)] = id
			}
		}
		err := r.eachRecord(ctx, f, a, d, tableOf{&schema, blocks}, func(s packed.Sample, v record.View) error {
			id, ok := ids[s.Key]
			if !ok {
				return nil
			}
			return col.take(id, first(v), keys)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", printable(d.rel), err)
		}
		return nil
	})
}

// tableOf is what records of a file are read with.
type tableOf struct {
	schema *record.Schema
	blocks spool.Spool
}

func first(v record.View) record.Value { return nth(v, 0) }

func nth(v record.View, n int) (out record.Value) {
	for i, x := range v.All {
		if i == n {
			return x
		}
	}
	return out
}

// eachRecord calls take for every record of a file, in order. Records of a sample without a value are left out.
func (r *propertyReader) eachRecord(
	ctx context.Context, f packed.Records, a packed.Address, d *dirRow, t tableOf,
	take func(packed.Sample, record.View) error,
) error {
	file, done, err := r.open(ctx, d)
	if err != nil {
		return err
	}
	defer done()
	file.Schema, file.Spool, file.ID = t.schema, t.blocks, fmt.Sprintf("%s\x00%d", file.Path, d.mtime)
	var samples []packed.Sample
	if _, err := f.Scan(ctx, a, file, func(s packed.Sample) error {
		samples = append(samples, s)
		return nil
	}); err != nil {
		return err
	}
	if r.at != nil { // from the front again
		again, closer, err := r.open(ctx, d)
		if err != nil {
			return err
		}
		defer closer()
		file.ReaderAt = again.ReaderAt
	}
	rows, err := f.Open(ctx, a, file)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // nothing was written, so nothing can be lost
	var b []byte
	for i, s := range samples {
		if i&255 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		b, err = rows.Record(ctx, b[:0], s)
		if errors.Is(err, packed.ErrNoValue) {
			continue
		}
		var v record.View
		if err == nil {
			v, err = record.Open(b)
		}
		if err == nil {
			err = take(s, v)
		}
		if err != nil {
			return fmt.Errorf("sample %s: %w", printable(s.Key), err)
		}
	}
	return nil
}

// columnOfLists reads a column of lists of images.
func (r *propertyReader) columnOfLists(ctx context.Context, col *collector, field string, keys []string) error {
	l := r.rs.format.(packed.Listing)
	ids := make(map[string]ident.SampleID, r.snap.live)
	for id := range ident.SampleID(r.snap.Len()) {
		if r.snap.Live(id) {
			ids[r.snap.fileKey(id)] = id
		}
	}
	root := path.Clean(r.rs.inPlace(""))
	blocks := spool.NewMemory(propertySpool)
	for i := range r.files {
		d := &r.files[i]
		file, done, err := r.open(ctx, d)
		if err != nil {
			return err
		}
		named, err := l.PathColumn(ctx, r.a, file)
		done()
		if err != nil {
			return fmt.Errorf("%s: %w", printable(d.rel), err)
		}
		table, _ := packed.ByScheme(l.Table(d.rel))
		f := table.(packed.Records)
		fields := slices.Compact([]string{named, field})
		a := r.a
		a.Scheme = table.Scheme()
		a = packed.ForProperty(a, fields...)
		schema, err := f.Schema(ctx, a, []string{file.Path}, r.opener())
		if err == nil && !packed.IsProperty(&schema.Fields[len(fields)-1]) {
			return subset.ErrNoProperty
		}
		if err == nil {
			err = r.eachRecord(ctx, f, a, d, tableOf{&schema, blocks}, func(_ packed.Sample, v record.View) error {
				x := first(v)
				below, err := packed.ImagePath(root, path.Dir(d.rel), string(x.Data))
				if err != nil {
					return err
				}
				id, ok := ids[below]
				if !ok {
					return nil
				}
				return col.take(id, nth(v, len(fields)-1), keys)
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", printable(d.rel), err)
		}
	}
	return nil
}

// collector makes a column of values that come in any order. Safe for concurrent use.
type collector struct {
	mu    sync.Mutex
	n     int
	any   bool
	col   subset.Column
	codes map[string]uint32
	words int64 // bytes
}

func newCollector(n int) *collector {
	c := &collector{n: n, codes: map[string]uint32{}}
	c.col.None = make([]uint64, (n+63)/64)
	for i := range c.col.None {
		c.col.None[i] = math.MaxUint64
	}
	return c
}

func (c *collector) column() *subset.Column { return &c.col }

var propertyKinds = map[packed.ValueKind]subset.Kind{packed.ValueInt: subset.Int, packed.ValueFloat: subset.Float,
	packed.ValueBool: subset.Bool, packed.ValueText: subset.Text}

// take adds the value of a sample, or what its JSON has at some keys.
func (c *collector) take(id ident.SampleID, x record.Value, keys []string) error {
	v, err := packed.ValueOf(&x)
	if err == nil && keys != nil {
		if v.Kind != packed.ValueText {
			return subset.ErrNoProperty
		}
		v, err = packed.JSONValue(v.Text, keys)
	}
	if errors.Is(err, packed.ErrNoValue) {
		return nil
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := propertyKinds[v.Kind]
	if !c.any {
		c.begin(kind, v.Single)
	}
	switch {
	case kind == c.col.Kind:
	case kind == subset.Int && c.col.Kind == subset.Float:
		if v.Float = float64(v.Int); !inFloat(v.Int) {
			return fmt.Errorf("its value is %d, which is not exact beside %s", v.Int, c.col.Kind)
		}
	case kind == subset.Float && c.col.Kind == subset.Int:
		c.col.Kind, c.col.Floats = subset.Float, make([]float64, c.n)
		for i, x := range c.col.Ints {
			if c.col.Floats[i] = float64(x); !inFloat(x) {
				return fmt.Errorf("its value is %v, and another one is %d, which is not exact beside it", v.Float, x)
			}
		}
		c.col.Ints = nil
	default:
		return fmt.Errorf("its value is %s, and others are %s", kind, c.col.Kind)
	}
	c.col.None[id>>6] &^= 1 << (id & 63)
	switch c.col.Kind {
	case subset.Int, subset.Bool:
		c.col.Ints[id] = v.Int
	case subset.Float:
		c.col.Floats[id] = v.Float
	case subset.Text:
		return c.word(id, v.Text)
	}
	return nil
}

// inFloat reports whether a float64 has the value of a whole number.
func inFloat(x int64) bool {
	const most = 1 << 53
	return x >= -most && x <= most || float64(x) < math.MaxInt64 && int64(float64(x)) == x
}

func (c *collector) begin(kind subset.Kind, single bool) {
	c.any, c.col.Kind, c.col.Single = true, kind, single
	switch kind {
	case subset.Int, subset.Bool:
		c.col.Ints = make([]int64, c.n)
	case subset.Float:
		c.col.Floats = make([]float64, c.n)
	case subset.Text:
		c.col.Codes = make([]uint32, c.n)
	}
}

func (c *collector) word(id ident.SampleID, text []byte) error {
	code, ok := c.codes[string(text)]
	if !ok {
		if c.words += int64(len(text)); c.words > maxPropertyText {
			return fmt.Errorf("the text of all samples has more than %d bytes that differ", int64(maxPropertyText))
		}
		code = uint32(len(c.col.Words))
		word := strings.Clone(string(text))
		c.col.Words = append(c.col.Words, word)
		c.codes[word] = code
	}
	c.col.Codes[id] = code
	return nil
}
