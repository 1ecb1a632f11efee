package packed

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"larder/internal/record"
	"larder/internal/source/packed/arrow"
	"larder/internal/source/packed/parquet"
	"larder/internal/spool"
)

// parquetFiles are Parquet files of one schema. A row group is a block: it is decoded once, and its records are kept in
// a spool.
type parquetFiles struct{ identity }

func (parquetFiles) Scheme() string { return "parquet" }

// Files expands braces, lists and *; a folder stands for its *.parquet.
func (parquetFiles) Files(a Address) (files, beside []string, err error) {
	var parts []string
	for part := range strings.SplitSeq(a.Path, "::") {
		if !strings.Contains(part, "*") {
			parts = append(parts, part)
			continue
		}
		if a.At != nil {
			return nil, nil, fmt.Errorf("%q: * is for folders only; in a store name the folder, or write {0..9}", part)
		}
		some, err := a.Left.globbed(part)
		if err != nil {
			return nil, nil, fmt.Errorf("%q: %w", part, err)
		}
		if len(some) == 0 {
			return nil, nil, fmt.Errorf("no file fits %q", part)
		}
		parts = append(parts, some...)
	}
	a.Path = strings.Join(parts, "::")
	files, err = filesOf(a, suffixesOf("parquet")...)
	return files, nil, err
}

// Names are the classes of the label's column, where Hugging Face datasets wrote the file.
func (p parquetFiles) Names(a Address) ([]string, error) {
	files, _, err := p.Files(a)
	if err != nil || len(files) == 0 || a.At != nil { // an address reads small files only, of a place
		return nil, err
	}
	for _, path := range files {
		names, rows, err := p.namesIn(a, path)
		if err != nil || rows {
			return names, err
		}
	}
	return nil, nil
}

// namesIn are the classes that one file names; rows = it has some, so that no other file is asked.
func (parquetFiles) namesIn(a Address, path string) (names []string, rows bool, err error) {
	o, err := openPlain(path)
	if err != nil {
		return nil, false, err
	}
	defer o.Close()
	t, err := openParquet(a, o, o.Len(), nil)
	if err != nil {
		return nil, true, nil // Schema refuses the file
	}
	return classesOf(t.columns, t.features), !t.noRows(), nil
}

// parquetTable is an open file and its records' columns.
type parquetTable struct {
	*parquet.File
	arrowColumns
	columns []arrowColumn
}

// openParquet opens a file. schema is that of the dataset; nil = it is to be found. One without rows has no columns.
func openParquet(a Address, r interface {
	ReadAt([]byte, int64) (int, error)
}, size int64, schema *record.Schema) (*parquetTable, error) {
	f, err := parquet.Open(r, size)
	if err != nil {
		return nil, err
	}
	t := &parquetTable{File: f, arrowColumns: arrowColumns{fields: f.Fields, features: hfFeatures(f.Meta)}}
	if t.noRows() {
		return t, nil
	}
	t.isImage = func(c *arrowColumn) (bool, error) { return t.first(c, isImageFile) }
	t.isSound = func(c *arrowColumn) (bool, error) { return t.first(c, isSoundFile) }
	if t.columns, err = t.like(a, schema); err != nil {
		return t, err
	}
	err = t.Readable(t.leaves())
	return t, err
}

// leaves are the columns of the file that the records are made of.
func (t *parquetTable) leaves() []*arrow.Field {
	sources := sourcesOf(t.columns)
	out := make([]*arrow.Field, len(sources))
	for i := range sources {
		out[i], _ = sources[i].column.at(t.Fields)
	}
	return out
}

// noRows reports whether a file has no row. Such a file is nothing, whatever its columns are.
func (t *parquetTable) noRows() bool {
	return !slices.ContainsFunc(t.Groups, func(g parquet.Group) bool { return g.Rows > 0 })
}

// first looks at the first value of a column.
func (t *parquetTable) first(c *arrowColumn, is func([]byte) bool) (bool, error) {
	group := slices.IndexFunc(t.Groups, func(g parquet.Group) bool { return g.Rows > 0 })
	leaf, _ := c.at(t.Fields)
	if group < 0 || t.Readable([]*arrow.Field{leaf}) != nil {
		return false, nil // openParquet refuses a column that is asked for
	}
	fits := false
	err := t.Each(context.Background(), group, []*arrow.Field{leaf}, func(_ int64, cells []parquet.Cell) error {
		fits = is(cells[0].Data)
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return fits, err
}

func (parquetFiles) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (record.Schema, error) {
	var s *record.Schema
	rows := int64(0)
	errs := make([]error, len(files))
	means := &meanings{}
	for i, path := range files {
		if ctx.Err() != nil {
			break
		}
		f, err := open(path)
		if err != nil {
			errs[i] = named(path, err)
			continue
		}
		t, err := openParquet(a, f, f.Len(), s)
		_ = f.Close() // nothing was written, so nothing can be lost
		if err == nil {
			err = means.agree(path, t.columns, t.Fields, t.features)
		}
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", filepath.Base(path), means.named(err))
			continue
		}
		for _, g := range t.Groups {
			rows += g.Rows
		}
		if s == nil && !t.noRows() {
			first := schemaOf(t.columns)
			s = &first
		}
	}
	if err := damagedFiles(ctx, errs); err != nil {
		return record.Schema{}, err
	}
	if rows == 0 {
		return record.Schema{}, errors.New("its files have no rows")
	}
	return *s, nil
}

// rowHead is about how many bytes the header of a record has for each field.
const rowHead = 64

// Scan lists the rows; Off is the number of the row in the file.
func (parquetFiles) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	if f.Schema == nil {
		return Found{}, errNoSchema
	}
	t, err := openParquet(a, f, f.Size, f.Schema)
	if err != nil {
		return Found{}, err
	}
	if t.noRows() {
		return Found{}, nil
	}
	label := tableLabel(f.Schema, t.features)
	for i, g := range t.Groups {
		if g.Rows == 0 {
			continue
		}
		size := g.Bytes/max(g.Rows, 1) + rowHead*int64(len(t.columns)+1)
		labels, err := t.labels(ctx, i, label)
		if err != nil {
			return Found{}, err
		}
		for k := range g.Rows {
			s := Sample{Key: rowKey(g.First + k), Off: g.First + k, Size: size, Label: -1}
			if labels != nil {
				s.Label = labels[k]
			}
			if k&1023 == 1023 && ctx.Err() != nil {
				return Found{}, ctx.Err()
			}
			if err := emit(s); err != nil {
				return Found{}, err
			}
		}
	}
	return Found{}, nil
}

// labels are those of a row group; nil = there is no column of labels.
func (t *parquetTable) labels(ctx context.Context, group, label int) ([]int64, error) {
	if label < 0 {
		return nil, nil
	}
	c := &t.columns[label]
	leaf, _ := c.at(t.Fields)
	var out []int64
	err := t.Each(ctx, group, []*arrow.Field{leaf}, func(_ int64, cells []parquet.Cell) error {
		x := int64(-1)
		if !cells[0].Null && cells[0].Err == nil {
			x = labelValue(c.field.DType, cells[0].Data)
		}
		out = append(out, x)
		return nil
	})
	return out, err
}

type parquetRows struct {
	*parquetTable
	a      Address
	stored *record.Schema
	spool  spool.Spool
	key    string
	hear   hearing
}

func (parquetFiles) Open(_ context.Context, a Address, f File) (Rows, error) {
	if f.Schema == nil {
		return nil, errNoSchema
	}
	t, err := openParquet(a, f, f.Size, f.Schema)
	if err != nil {
		return nil, err
	}
	return &parquetRows{t, a, storedColumns(f.Schema, t.columns, t.Fields), f.Spool, f.blockKey(a),
		hear}, nil
}

func (*parquetRows) Close() error { return nil }

// Blocks are the row groups.
func (r *parquetRows) Blocks() []Block {
	var out []Block
	for _, g := range r.Groups {
		if g.Rows > 0 {
			out = append(out, Block{g.First, g.Bytes + g.Rows*rowHead*int64(len(r.columns)+1)})
		}
	}
	return out
}

// Record takes the record of a row from its row group's block.
func (r *parquetRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	g := sort.Search(len(r.Groups), func(i int) bool { return r.Groups[i].First > s.Off }) - 1
	if s.Off < 0 || g < 0 || s.Off-r.Groups[g].First >= r.Groups[g].Rows {
		return nil, fmt.Errorf("row %d is not in the file", s.Off)
	}
	return blockRecord(ctx, r.spool, fmt.Sprintf("%s#%d", r.key, g), dst, int(s.Off-r.Groups[g].First),
		func(ctx context.Context, w spool.Writer) error { return r.make(ctx, g, w) })
}

// make adds the records of a row group.
func (r *parquetRows) make(ctx context.Context, group int, w spool.Writer) error {
	sources, leaves := sourcesOf(r.columns), r.leaves()
	values := make([]record.Content, len(r.columns))
	first := r.Groups[group].First
	var blob []byte
	f := r.From(within(ctx, r.Reader()))
	if r.a.At != nil { // every read is a request
		in, done, err := f.Held(group, leaves)
		if err != nil {
			return err
		}
		defer done()
		f = in
	}
	return f.Each(ctx, group, leaves, func(n int64, cells []parquet.Cell) error {
		for i := range cells {
			err := cells[i].Err
			if cells[i].Null || err == nil {
				v := record.Content{Dims: cells[i].Dims, Data: cells[i].Data}
				err = sources[i].put(values, r.columns, v, cells[i].Null, r.a, r.hear)
			}
			if errors.Is(err, ErrNoValue) {
				return w.Add([]byte(noRecord))
			}
			if err != nil {
				return w.Add(badRecord("row %d: column %q %v", first+n, sources[i].column.field.Name, err))
			}
		}
		var err error
		if blob, err = record.Append(blob[:0], r.stored, values); err != nil {
			return w.Add(badRecord("row %d: %v", first+n, err))
		}
		return w.Add(blob)
	})
}

// like are the columns of a table as a schema has them, which an earlier file of the dataset gave; nil = by themselves.
func (t *arrowColumns) like(a Address, schema *record.Schema) ([]arrowColumn, error) {
	if schema == nil {
		return t.columns(a)
	}
	t.isImage = func(c *arrowColumn) (bool, error) {
		return slices.ContainsFunc(schema.Fields, func(f record.Field) bool {
			return f.Name == c.field.Name && IsImage(&f)
		}), nil
	}
	t.isSound = func(c *arrowColumn) (bool, error) {
		_, is := soundOf(schema, c.field.Name)
		return is, nil
	}
	columns, err := t.columns(a)
	if err != nil {
		return nil, err
	}
	if now := schemaOf(columns); !now.Equal(schema) {
		return nil, fmt.Errorf("%w %s, and those of the files before %s", errColumns, fieldWords(&now), fieldWords(schema))
	}
	return columns, nil
}
