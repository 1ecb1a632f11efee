package packed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"larder/internal/record"
	"larder/internal/source/packed/arrow"
)

// hf is a folder that Dataset.save_to_disk of Hugging Face datasets wrote, or the Arrow files by themselves.
type hf struct{ identity }

func (hf) Scheme() string { return "hf" }

// hfState is the part of state.json that says which files there are.
type hfState struct {
	Data    []hfFile `json:"_data_files"`
	Indices []hfFile `json:"_indices_data_files"`
	Older   []hfFile `json:"_indices_files"`
}

type hfFile struct {
	Filename string `json:"filename"`
}

// hfFolder is the folder of one dataset: the split that ?split= names, where the folder holds several.
func hfFolder(a Address) (string, error) {
	b, err := a.readSmall(filepath.Join(a.Path, "dataset_dict.json"), maxIndex)
	split := a.Args["split"]
	if errors.Is(err, fs.ErrNotExist) {
		if split != "" {
			return "", fmt.Errorf("?split=%s: %q holds one dataset, not splits", split, a.Path)
		}
		return a.Path, nil
	}
	if err != nil {
		return "", err
	}
	var dict struct{ Splits []string }
	if err := json.Unmarshal(b, &dict); err != nil {
		return "", fmt.Errorf("dataset_dict.json of %q: %w", a.Path, err)
	}
	if !slices.Contains(dict.Splits, split) {
		return "", fmt.Errorf("%q has the splits %s: name one with ?split=", a.Path, strings.Join(dict.Splits, ", "))
	}
	if filepath.Base(split) != split || split == ".." {
		return "", fmt.Errorf("split %q is no folder of %q", split, a.Path)
	}
	return filepath.Join(a.Path, split), nil
}

// hfFiles are the data files of a folder, and the file of indices; "" = there is none.
func hfFiles(a Address) (data []string, indices, state string, err error) {
	if !a.isDir(a.Path) {
		data, err = filesOf(a, suffixesOf("hf")...)
		return data, "", "", err
	}
	dir, err := hfFolder(a)
	if err != nil {
		return nil, "", "", err
	}
	state = filepath.Join(dir, "state.json")
	b, err := a.readSmall(state, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", "", fmt.Errorf("%q has no state.json, as Dataset.save_to_disk writes; name its .arrow files", dir)
	}
	if err != nil {
		return nil, "", "", err
	}
	if err := validJSON(b); err != nil {
		return nil, "", "", fmt.Errorf("%s: %w", state, err)
	}
	var s hfState
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, "", "", fmt.Errorf("%s: %w", state, err)
	}
	index := slices.Concat(s.Indices, s.Older)
	for i, f := range slices.Concat(s.Data, index) {
		name := f.Filename
		if name == "" || filepath.Base(name) != name || name == ".." || strings.IndexByte(name, 0) >= 0 {
			return nil, "", "", fmt.Errorf("%s: file %d is named %q, which is no file of the folder", state, i, name)
		}
		data = append(data, filepath.Join(dir, name))
	}
	switch len(index) {
	case 0:
	case 1:
		indices, data = data[len(data)-1], data[:len(data)-1]
	default:
		return nil, "", "", fmt.Errorf("%s names %d files of indices; larder reads one", state, len(index))
	}
	if len(data) == 0 {
		return nil, "", "", errNoFiles
	}
	return data, indices, state, unique(data)
}

// Files are the data files, or the file of indices where rows were chosen or shuffled.
func (hf) Files(a Address) (files, beside []string, err error) {
	data, indices, state, err := hfFiles(a)
	switch {
	case err != nil:
		return nil, nil, err
	case indices != "":
		return []string{indices}, append(data, state), nil
	case state != "":
		return data, []string{state}, nil
	}
	return data, nil, nil
}

// Names are the classes of the label's column.
func (hf) Names(a Address) ([]string, error) {
	if !a.isDir(a.Path) {
		return arrowNames(a)
	}
	dir, err := hfFolder(a)
	if err != nil {
		return nil, err
	}
	b, err := a.readSmall(filepath.Join(dir, "dataset_info.json"), maxIndex)
	if names := hfClasses(`{"info":` + string(b) + "}"); err == nil && names != nil {
		return names, nil
	}
	return arrowNames(a) // the file is for people; the Arrow files describe themselves
}

// arrowNames are the classes of the label's column that files by themselves name: the first one with rows.
func arrowNames(a Address) ([]string, error) {
	files, _, _, err := hfFiles(a)
	if err != nil || a.At != nil { // an address reads small files only, of a place
		return nil, err
	}
	for _, path := range files {
		o, err := openPlain(path)
		if err != nil {
			return nil, err
		}
		f, err := arrow.Open(context.Background(), o, o.Len())
		_ = o.Close() // nothing was written, so nothing can be lost
		if err != nil || f.Rows() > 0 {
			if f == nil {
				return nil, nil // Schema refuses the file
			}
			return hfClasses(f.Schema.Meta["huggingface"]), nil
		}
	}
	return nil, nil
}

// openPlain opens a file of the file system.
func openPlain(path string) (Other, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("%q is no regular file", path)
	}
	return plainFile{f, fi.Size()}, nil
}

type plainFile struct {
	*os.File
	size int64
}

func (p plainFile) Len() int64 { return p.size }

// arrowTable are the rows of some Arrow files.
type arrowTable struct {
	files    []*arrow.File
	batches  [][]arrow.Batch // of each file
	first    []int64         // the number of each file's first row
	rows     int64
	closers  []io.Closer
	features map[string]hfFeature
	columns  []arrowColumn
	means    *meanings
}

func (t *arrowTable) close() {
	for _, c := range t.closers {
		_ = c.Close() // nothing was written, so nothing can be lost
	}
}

// openTable opens files whose rows follow each other.
func openTable(
	ctx context.Context, a Address, schema *record.Schema, paths []string, open func(string) (Other, error),
) (*arrowTable, error) {
	t := &arrowTable{means: &meanings{}}
	for _, path := range paths {
		f, err := open(path)
		if err != nil {
			t.close()
			return nil, named(path, err)
		}
		t.closers = append(t.closers, f)
		had := len(t.files)
		err = t.add(ctx, a, schema, f, f.Len())
		if err == nil && len(t.files) > had {
			err = t.means.agree(path, t.columns, t.files[len(t.files)-1].Schema.Fields, t.features)
		}
		if err != nil {
			t.close()
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), t.means.named(err))
		}
	}
	return t, nil
}

// add adds the rows of a file. One without rows is nothing, whatever its columns are.
func (t *arrowTable) add(ctx context.Context, a Address, schema *record.Schema, r io.ReaderAt, size int64) error {
	f, err := arrow.Open(ctx, r, size)
	if err != nil {
		return err
	}
	if f.Rows() == 0 {
		return nil
	}
	features := hfFeatures(f.Schema.Meta)
	one := arrowColumns{fields: f.Schema.Fields, features: features}
	one.isImage = func(c *arrowColumn) (bool, error) {
		v, err := t.value(f, c, 0)
		return err == nil && isImageFile(v.Data), nil // what is wrong with the value is said when it is read
	}
	one.isSound = func(c *arrowColumn) (bool, error) {
		v, err := t.value(f, c, 0)
		return err == nil && isSoundFile(v.Data), nil
	}
	if schema == nil && len(t.files) > 0 {
		first := schemaOf(t.columns)
		schema = &first
	}
	columns, err := one.like(a, schema)
	if err != nil {
		return err
	}
	t.columns, t.features = columns, features
	t.files, t.first, t.batches = append(t.files, f), append(t.first, t.rows), append(t.batches, f.Batches())
	t.rows += f.Rows()
	return nil
}

// fieldWords describe the fields of a schema.
func fieldWords(s *record.Schema) string {
	var out []string
	for i := range s.Fields {
		f := &s.Fields[i]
		out = append(out, fmt.Sprintf("%q (%s %s %v)", f.Name, f.Kind, f.DType, f.Shape))
	}
	return strings.Join(out, ", ")
}

// value reads one value of a file.
func (t *arrowTable) value(f *arrow.File, c *arrowColumn, row int64) (arrow.Value, error) {
	leaf, above := c.at(f.Schema.Fields)
	for _, s := range above {
		null, err := f.Null(s, row)
		if err != nil || null {
			return arrow.Value{Null: true}, err
		}
	}
	return f.Read(leaf, row, maxRecordBytes)
}

// find is the file of a row, and its number there.
func (t *arrowTable) find(row int64) (file int, in int64, err error) {
	if row < 0 || row >= t.rows {
		return 0, 0, fmt.Errorf("row %d of %d", row, t.rows)
	}
	k := sort.Search(len(t.first), func(i int) bool { return t.first[i] > row }) - 1
	return k, row - t.first[k], nil
}

// Schema looks at the columns of every file.
func (hf) Schema(
	ctx context.Context, a Address, _ []string, open func(string) (Other, error),
) (record.Schema, error) {
	data, _, _, err := hfFiles(a)
	if err != nil {
		return record.Schema{}, err
	}
	t, err := openTable(ctx, a, nil, data, open)
	if err != nil {
		return record.Schema{}, err
	}
	defer t.close()
	if t.rows == 0 {
		return record.Schema{}, errors.New("its files have no rows")
	}
	return schemaOf(t.columns), nil
}

// tableOf opens what the rows of a file are read from: itself, or the data files where it holds indices.
func (h hf) tableOf(ctx context.Context, a Address, f File) (t *arrowTable, indices *arrow.File, err error) {
	data, index, _, err := hfFiles(a)
	if err != nil {
		return nil, nil, err
	}
	if index == "" || filepath.Base(index) != filepath.Base(f.Path) {
		t = &arrowTable{}
		err = t.add(ctx, a, f.Schema, f, f.Size)
		return t, nil, err
	}
	if indices, err = arrow.Open(ctx, f, f.Size); err != nil {
		return nil, nil, err
	}
	s := indices.Schema.Fields
	if len(s) != 1 || s[0].Kind != arrow.Int || s[0].Bits != 64 {
		return nil, nil, errors.New("it is no file of indices: it should have one column of 64-bit integers")
	}
	t, err = openTable(ctx, a, f.Schema, data, f.Beside)
	return t, indices, err
}

// Scan lists the rows in their order; Off is the number of the row in the table.
func (h hf) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	t, indices, err := h.tableOf(ctx, a, f)
	if err != nil {
		return Found{}, err
	}
	defer t.close()
	n := t.rows
	if indices != nil {
		n = indices.Rows()
	}
	s := schemaOf(t.columns)
	label := tableLabel(&s, t.features)
	for i := range n {
		if i&255 == 255 && ctx.Err() != nil {
			return Found{}, ctx.Err()
		}
		row := i
		if indices != nil {
			v, err := indices.Read(&indices.Schema.Fields[0], i, 8)
			if err != nil || v.Null {
				return Found{}, fmt.Errorf("index %d: %w", i, cmpErr(err, "it is null"))
			}
			row = int64(leUint(v.Data))
		}
		x, err := t.sample(row, label)
		if err != nil {
			return Found{}, fmt.Errorf("row %d: %w", i, err)
		}
		x.Key = rowKey(i)
		if err := emit(x); err != nil {
			return Found{}, err
		}
	}
	return Found{}, nil
}

// sample describes a row; label is the column of its label, -1 = none.
func (t *arrowTable) sample(row int64, label int) (Sample, error) {
	k, in, err := t.find(row)
	if err != nil {
		return Sample{}, err
	}
	f := t.files[k]
	x := Sample{Off: row, Size: f.RowBytes(in) + 64*int64(len(t.columns)), Label: -1}
	if label < 0 {
		return x, nil
	}
	v, err := t.value(f, &t.columns[label], in)
	if err == nil && !v.Null {
		x.Label = labelValue(t.columns[label].field.DType, v.Data)
	}
	return x, err
}

// cmpErr is err, or an error of words.
func cmpErr(err error, words string) error {
	if err != nil {
		return err
	}
	return errors.New(words)
}

type hfRows struct {
	*arrowTable
	a       Address
	stored  *record.Schema
	sources []tableSource
	hear    hearing
}

func (h hf) Open(ctx context.Context, a Address, f File) (Rows, error) {
	if f.Schema == nil {
		return nil, errNoSchema
	}
	t, _, err := h.tableOf(ctx, a, f)
	if err != nil {
		return nil, err
	}
	stored := storedColumns(f.Schema, t.columns, t.files[0].Schema.Fields)
	return &hfRows{t, a, stored, sourcesOf(t.columns), hear}, nil
}

func (r *hfRows) Close() error {
	r.close()
	return nil
}

// Record reads the values of one row.
func (r *hfRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	k, in, err := r.find(s.Off)
	if err != nil {
		return nil, err
	}
	f := r.files[k]
	batch, end, err := r.batchIn(ctx, k, in)
	if err != nil {
		return nil, fmt.Errorf("row %d: %w", s.Off, err)
	}
	defer end()
	var g *gather
	if batch == nil {
		batch = within(ctx, f.Reader())
		if all, ok := rangesReader(f.Reader()); ok {
			g = &gather{ctx: ctx, in: all}
			batch = g
		}
	}
	f = f.From(batch)
	values := make([]record.Content, len(r.columns))
	err = gathered(g, len(r.sources), func(i int) error {
		c := r.sources[i].column
		v, err := r.value(f, c, in)
		if err != nil {
			return err
		}
		err = r.sources[i].put(values, r.columns, record.Content{Dims: v.Dims, Data: v.Data}, v.Null, r.a, r.hear)
		if err != nil {
			return fmt.Errorf("column %q %w", c.field.Name, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("row %d: %w", s.Off, err)
	}
	out, err := record.Append(dst, r.stored, values)
	if err != nil {
		return nil, fmt.Errorf("row %d: %w", s.Off, err)
	}
	return out, nil
}
