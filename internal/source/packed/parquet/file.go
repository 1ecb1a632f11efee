package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"larder/internal/source/packed/arrow"
)

// File is an open Parquet file. Its methods may be called from any goroutine.
type File struct {
	Fields []arrow.Field
	Meta   map[string]string
	Groups []Group

	r      io.ReaderAt
	size   int64
	footer int64 // bytes
	file   *pq.File
	meta   *format.FileMetaData
	leaves []leaf
}

// Group is a row group.
type Group struct {
	First int64 // the number of its first row in the file
	Rows  int64
	Bytes int64 // of its values, decompressed, as the file says
}

const (
	maxFooter = 64 << 20
	maxRows   = 1 << 40
	tailBytes = 8
)

// guard makes an error of a panic of the library.
func guard(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the file is damaged: %.200s", fmt.Sprint(p))
	}
}

// Open reads the footer of a file of size bytes.
func Open(r io.ReaderAt, size int64) (f *File, err error) {
	defer guard(&err)
	var tail [tailBytes]byte
	if size < 12 {
		return nil, fmt.Errorf("%d bytes are no Parquet file", size)
	}
	if err := readAt(r, tail[:], size-tailBytes); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	switch {
	case string(tail[4:]) == "PARE":
		return nil, errEncrypted
	case string(tail[4:]) != "PAR1":
		return nil, errors.New("it does not end as a Parquet file: it is cut, or no Parquet file")
	case n > size-12 || n > maxFooter:
		return nil, fmt.Errorf("its footer has %d bytes of %d", n, size)
	}
	footer := make([]byte, n)
	if err := readAt(r, footer, size-tailBytes-n); err != nil {
		return nil, err
	}
	if err := checkFooter(footer); err != nil {
		return nil, err
	}
	file, err := pq.OpenFile(r, size, &pq.FileConfig{SkipPageIndex: true, SkipBloomFilters: true,
		ReadBufferSize: 64 << 10})
	if err != nil {
		return nil, whyNotOpened(footer, err)
	}
	f = &File{r: r, size: size, footer: n, file: file, meta: file.Metadata(), Meta: map[string]string{}}
	for _, pair := range f.meta.KeyValueMetadata {
		f.Meta[pair.Key] = pair.Value
	}
	if err := f.groups(); err != nil {
		return nil, err
	}
	b := builder{logical: logicalTypes(f.meta.Schema)}
	for _, node := range file.Schema().Fields() {
		field, err := b.field(node, node.Name(), 0, nil)
		if err != nil {
			return nil, err
		}
		f.Fields = append(f.Fields, field)
	}
	f.leaves = b.leaves
	if err := f.checkRows(); err != nil {
		return nil, err
	}
	fixLists(f.Fields, f.Meta["ARROW:schema"])
	return f, nil
}

// perChunk is about what the library keeps of a column of a row group.
const perChunk = 1 << 10

// InMemory is about how many bytes the file's footer has in memory.
func (f *File) InMemory() int64 {
	return f.footer + perChunk*int64(len(f.Groups))*int64(len(f.leaves))
}

// From is the same file, read through another reader of it.
func (f *File) From(r io.ReaderAt) *File {
	other := *f
	other.r = r
	return &other
}

// Reader is what the file is read through.
func (f *File) Reader() io.ReaderAt { return f.r }

func readAt(r io.ReaderAt, b []byte, off int64) error {
	if n, err := r.ReadAt(b, off); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read %d bytes at %d: %w", len(b), off, err)
	}
	return nil
}

// groups checks what the footer says of row groups. One without rows may have no pages, and columns without a place.
func (f *File) groups() error {
	at := int64(0)
	for i := range f.meta.RowGroups {
		g := &f.meta.RowGroups[i]
		if g.NumRows < 0 || g.NumRows > maxRows || at > maxRows {
			return fmt.Errorf("row group %d says %d rows behind %d", i, g.NumRows, at)
		}
		total := int64(0)
		for k := range g.Columns {
			c := &g.Columns[k].MetaData
			from, n := chunkAt(c)
			if g.NumRows == 0 && c.NumValues == 0 {
				continue // no page of it is read
			}
			if from < 4 || n < 0 || from > f.size || n > f.size-from || c.TotalUncompressedSize < 0 || c.NumValues < 0 ||
				c.TotalUncompressedSize > maxRows {
				return fmt.Errorf("row group %d: column %d says %d bytes at %d of %d", i, k, n, from, f.size)
			}
			total += c.TotalUncompressedSize
		}
		f.Groups = append(f.Groups, Group{First: at, Rows: g.NumRows, Bytes: total})
		at += g.NumRows
	}
	if at != f.meta.NumRows {
		return fmt.Errorf("its row groups have %d rows, and it says %d", at, f.meta.NumRows)
	}
	return nil
}

const (
	// A file has at most rowsEach rows for each of its bytes: half a bit of each row. The first fewRows need none.
	rowsEach = 16
	fewRows  = 1 << 20
)

// checkRows compares the rows that the footer says with the file and with the values of its columns: what lists them
// makes room for each.
func (f *File) checkRows() error {
	if n := f.meta.NumRows; n > fewRows && n/rowsEach > f.size {
		return fmt.Errorf("it says %d rows in %d bytes", n, f.size)
	}
	for i := range f.meta.RowGroups {
		g := &f.meta.RowGroups[i]
		for k := range min(len(g.Columns), len(f.leaves)) {
			n, flat := g.Columns[k].MetaData.NumValues, len(f.leaves[k].lists) == 0
			if flat && n != g.NumRows || n < g.NumRows {
				return fmt.Errorf("row group %d: column %d says %d values for %d rows", i, k, n, g.NumRows)
			}
		}
	}
	return nil
}

// chunkAt is where the pages of a column of a row group lie.
func chunkAt(c *format.ColumnMetaData) (from, n int64) {
	from = c.DataPageOffset
	if c.DictionaryPageOffset > 0 && c.DictionaryPageOffset < from {
		from = c.DictionaryPageOffset
	}
	return from, c.TotalCompressedSize
}

// Cell is the value of a row in one column.
type Cell struct {
	Null bool
	Err  error   // why the value can be no field; the row's other values are good
	Dims []int64 // of lists, from the outermost
	Data []byte  // little-endian; bools are bytes. Valid during the call
}

// pages are those of a column of a row group, read through the file's reader, once they are checked.
func (f *File) pages(ctx context.Context, c pq.ColumnChunk, group, column int) (pq.Pages, error) {
	chunk, ok := c.(*pq.FileColumnChunk)
	if !ok {
		return nil, fmt.Errorf("a column's pages are %T", c)
	}
	field := &f.leaves[column].field
	codes, err := f.check(ctx, &f.meta.RowGroups[group].Columns[column].MetaData, field.Kind == arrow.Bool)
	if err != nil {
		return nil, fmt.Errorf("row group %d, column %q: %w", group, field.Name, err)
	}
	if len(codes) > 0 {
		return chunk.PagesFrom(recoded{f.r, codes}), nil
	}
	return chunk.PagesFrom(f.r), nil
}

// Each calls row for every row of a row group in order, with the cells of the columns.
func (f *File) Each(
	ctx context.Context, group int, columns []*arrow.Field, row func(n int64, cells []Cell) error,
) (err error) {
	defer guard(&err)
	g := f.Groups[group]
	if g.Rows == 0 {
		return ctx.Err()
	}
	chunks := f.file.RowGroups()[group].ColumnChunks()
	readers := make([]*columnReader, 0, len(columns))
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	for _, c := range columns {
		if c.Column >= len(chunks) {
			return fmt.Errorf("row group %d has %d columns", group, len(chunks))
		}
		pages, err := f.pages(ctx, chunks[c.Column], group, c.Column)
		if err != nil {
			return err
		}
		readers = append(readers, &columnReader{ctx: ctx, leaf: &f.leaves[c.Column], pages: pages})
	}
	cells := make([]Cell, len(columns))
	for n := range g.Rows {
		if n&255 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		for i, r := range readers {
			if err := r.row(&cells[i]); err != nil {
				return fmt.Errorf("row %d, column %q: %w", g.First+n, r.field.Name, err)
			}
		}
		if err := row(n, cells); err != nil {
			return err
		}
	}
	return nil
}
