package packed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"larder/internal/record"
)

// npy is NumPy's format (numpy.lib.format): a header, and an array in C order. Its rows are the samples.
type npy struct{ identity }

func (npy) Scheme() string { return "npy" }

func (npy) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("npy")...)
	return files, nil, err
}

// array is what a header says.
type array struct {
	dtype record.DType
	swap  bool // its values are big-endian
	shape []int64
	at    int64 // of its first value in the file
}

// maxArrayHeader bounds the text of a header, bytes.
const maxArrayHeader = 1 << 16

// bytes of the whole array; -1 = more than can be counted.
func (x *array) bytes() int64 {
	n := x.dtype.Size()
	for _, d := range x.shape {
		if d > 0 && n > math.MaxInt64/d {
			return -1
		}
		n *= d
	}
	return n
}

// row is the shape of one row, and its bytes.
func (x *array) row() (shape []int64, bytes int64) {
	y := array{dtype: x.dtype, shape: x.shape[1:]}
	return y.shape, y.bytes()
}

// field describes a row.
func (x *array) field(name string) record.Field {
	if len(x.shape) == 1 {
		return scalarField(name, x.dtype)
	}
	return arrayField(name, x.dtype, slices.Clone(x.shape[1:])...)
}

// readArray reads the header of an array of which there are size bytes, beginning at the reader's first one.
func readArray(r io.ReaderAt, size int64) (array, error) {
	x, err := readArrayHeader(r, size)
	if err != nil {
		return x, err
	}
	switch n := x.bytes(); {
	case len(x.shape) == 0:
		return x, errors.New("it has no dimensions, so it has no rows; save it with shape (1,)")
	case len(x.shape) > 1+record.MaxDims:
		return x, fmt.Errorf("it has %d dimensions, and %d are the most", len(x.shape), 1+record.MaxDims)
	case n < 0 || n > size-x.at:
		return x, fmt.Errorf("its header says shape %v of %s, which does not fit its %d bytes: it is cut", x.shape, x.dtype,
			size)
	case n < size-x.at:
		err := x.more(size)
		return x, err
	}
	if _, n := x.row(); n < 0 || n > maxRow {
		return x, fmt.Errorf("its rows have the shape %v of %s, more than %d bytes", x.shape[1:], x.dtype, int64(maxRow))
	}
	return x, nil
}

// more refuses a file of so many bytes, which has some behind its array.
func (x *array) more(size int64) error {
	end := x.at + x.bytes()
	return fmt.Errorf("its array of shape %v and %s ends at byte %d, and the file has %d: NumPy reads the first array "+
		"alone; save each array in a file of its own", x.shape, x.dtype, end, size)
}

// maxRow bounds the bytes of a row.
const maxRow = 1 << 40

func readArrayHeader(r io.ReaderAt, size int64) (x array, err error) {
	var head [12]byte
	if size < 10 {
		return x, fmt.Errorf("%d bytes are no .npy file", size)
	}
	if _, err := r.ReadAt(head[:min(size, 12)], 0); err != nil && !errors.Is(err, io.EOF) {
		return x, fmt.Errorf("read its header: %w", err)
	}
	if string(head[:6]) != "\x93NUMPY" {
		return x, errors.New(`it does not begin with \x93NUMPY, as numpy.save writes`)
	}
	n := int64(binary.LittleEndian.Uint16(head[8:]))
	x.at = 10
	switch head[6] {
	case 1:
	case 2, 3:
		n, x.at = int64(binary.LittleEndian.Uint32(head[8:])), 12
	default:
		return x, fmt.Errorf("version %d.%d of the format, and 1 to 3 are known", head[6], head[7])
	}
	if n > maxArrayHeader || n > size-x.at {
		return x, fmt.Errorf("its header should have %d bytes, and the file has %d", n, size)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, x.at); err != nil && !errors.Is(err, io.EOF) {
		return x, fmt.Errorf("read its header: %w", err)
	}
	x.at += n
	err = x.parse(string(text))
	return x, err
}

// parse reads {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.
func (x *array) parse(text string) error {
	value := func(key string) (string, error) {
		_, rest, ok := strings.Cut(text, "'"+key+"':")
		if !ok {
			return "", fmt.Errorf("its header has no %s: %.100q", key, text)
		}
		return strings.TrimSpace(rest), nil
	}
	descr, err := value("descr")
	if err != nil {
		return err
	}
	order, err := value("fortran_order")
	if err != nil {
		return err
	}
	shape, err := value("shape")
	if err != nil {
		return err
	}
	if strings.HasPrefix(descr, "[") {
		return fmt.Errorf("it is a structured array: %.100s; save each of its fields as an array of its own (numpy.savez)",
			descr)
	}
	if descr, _, _ = strings.Cut(strings.TrimPrefix(descr, "'"), "'"); len(descr) < 2 {
		return fmt.Errorf("its dtype is %.100q", descr)
	}
	if x.dtype, x.swap, err = dtypeOf(descr); err != nil {
		return err
	}
	if !strings.HasPrefix(order, "False") {
		return errors.New("it is in Fortran order, so that its rows do not lie together; " +
			"save numpy.ascontiguousarray of it")
	}
	inner, _, ok := strings.Cut(strings.TrimPrefix(shape, "("), ")")
	if !ok || !strings.HasPrefix(shape, "(") {
		return fmt.Errorf("its shape is %.100q", shape)
	}
	for part := range strings.SplitSeq(inner, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		d, err := strconv.ParseInt(strings.TrimSuffix(part, "L"), 10, 64)
		if err != nil || d < 0 {
			return fmt.Errorf("its shape is (%.100s)", inner)
		}
		x.shape = append(x.shape, d)
	}
	return nil
}

// dtypes by NumPy's letters and sizes.
var dtypes = map[string]record.DType{"b1": record.Bool, "u1": record.Uint8, "i1": record.Int8, "u2": record.Uint16,
	"i2": record.Int16, "u4": record.Uint32, "i4": record.Int32, "u8": record.Uint64, "i8": record.Int64,
	"f2": record.Float16, "f4": record.Float32, "f8": record.Float64}

// dtypeOf reads a dtype such as <f4. swap says that values are big-endian.
func dtypeOf(descr string) (d record.DType, swap bool, err error) {
	d, ok := dtypes[descr[1:]]
	switch {
	case descr[1] == 'O':
		return 0, false, errors.New("its dtype is object, so its values are pickles, which larder never reads, " +
			"because they run code; save numbers: one .npy for each field, or one long array and the lengths of its rows")
	case !ok || strings.IndexByte("<>|=", descr[0]) < 0:
		return 0, false, fmt.Errorf("its dtype %s is not one that records have; save bool, integers or floats", descr)
	}
	return d, descr[0] == '>' && d.Size() > 1, nil
}

// swapBytes turns big-endian values into little-endian ones.
func swapBytes(b []byte, size int64) {
	for ; int64(len(b)) >= size; b = b[size:] {
		slices.Reverse(b[:size])
	}
}

// valueName is the field of formats that have one, without a name.
const valueName = "value"

func (npy) Schema(
	ctx context.Context, _ Address, files []string, open func(string) (Other, error),
) (s record.Schema, err error) {
	first := ""
	for i, path := range files {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		x, err := arrayAt(path, open)
		if err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
		f := x.field(valueName)
		if i == 0 {
			first, s.Fields = path, []record.Field{f}
			continue
		}
		if was := &s.Fields[0]; f.DType != was.DType || !slices.Equal(f.Shape, was.Shape) {
			return s, fmt.Errorf("rows of %s have the shape %v of %s, and those of %s the shape %v of %s", path, f.Shape,
				f.DType, first, was.Shape, was.DType)
		}
	}
	return s, nil
}

func arrayAt(path string, open func(string) (Other, error)) (array, error) {
	f, err := open(path)
	if err != nil {
		return array{}, err
	}
	defer f.Close()
	return readArray(f, f.Len())
}

func (npy) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	x, err := readArray(f, f.Size)
	if err != nil {
		return Found{}, err
	}
	return Found{}, emitRows(ctx, f.Schema, [][]int64{x.shape[1:]}, x.shape[0], emit)
}

// maxEmptyRows is how many rows may have no bytes: a file says their number, and nothing in it bounds that.
const maxEmptyRows = 1 << 20

// empty reports whether a row has no value in any field.
func empty(dims [][]int64) bool {
	for _, d := range dims {
		if !slices.Contains(d, 0) {
			return false
		}
	}
	return true
}

// emitRows emits rows that all have the same record.
func emitRows(ctx context.Context, s *record.Schema, dims [][]int64, n int64, emit func(Sample) error) error {
	size, err := s.Size(dims)
	if err != nil {
		return err
	}
	if n > maxEmptyRows && empty(dims) {
		return fmt.Errorf("%d rows without a value", n)
	}
	for i := range n {
		if i&1023 == 1023 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := emit(Sample{Key: rowKey(i), Off: i, Size: size, Label: -1}); err != nil {
			return err
		}
	}
	return nil
}

// arrayRows are the rows of some arrays of equal length.
type arrayRows struct {
	schema *record.Schema
	arrays []openArray
	dims   [][]int64
	size   int64 // of a record
	// sums compares the checksums of the arrays; nil = they have none.
	sums func(ctx context.Context, bad func(what string)) error
}

// openArray is an array that can be read; values begin at its at.
type openArray struct {
	array
	io.ReaderAt
	row int64 // bytes of a row
	// rows gives a row of an array that is unpacked elsewhere; nil = it is read.
	rows func(ctx context.Context, dst []byte, row int64) ([]byte, error)
}

// read reads row i to dst, which has its size.
func (x *openArray) read(ctx context.Context, dst []byte, i int64) error {
	if x.rows != nil {
		b, err := x.rows(ctx, dst[:0], i)
		if err == nil && len(b) != len(dst) {
			err = fmt.Errorf("row %d has %d bytes, not %d", i, len(b), len(dst))
		}
		if err == nil && len(b) > 0 && &b[0] != &dst[0] {
			copy(dst, b)
		}
		return err
	}
	at := x.at + i*x.row
	if n, err := within(ctx, x.ReaderAt).ReadAt(dst, at); n < len(dst) {
		return fmt.Errorf("row %d, at byte %d: %w", i, at, err)
	}
	return nil
}

func newArrayRows(schema *record.Schema, arrays []openArray) (*arrayRows, error) {
	r := &arrayRows{schema: schema, arrays: arrays}
	for i := range arrays {
		shape, n := arrays[i].array.row()
		arrays[i].row = n
		r.dims = append(r.dims, shape)
	}
	var err error
	r.size, err = schema.Size(r.dims)
	return r, err
}

func (npy) Open(_ context.Context, _ Address, f File) (Rows, error) {
	x, err := readArray(f, f.Size)
	if err != nil {
		return nil, err
	}
	return newArrayRows(f.Schema, []openArray{{array: x, ReaderAt: f}})
}

func (r *arrayRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	from := len(dst)
	dst = slices.Grow(dst, int(r.size))[:from+int(r.size)]
	rooms := r.schema.Frame(dst[from:], r.dims)
	done, err := r.readTogether(ctx, rooms, s.Off)
	if err != nil {
		return dst[:from], fmt.Errorf("row %d: %w", s.Off, err)
	}
	for i, room := range rooms {
		x := &r.arrays[i]
		if s.Off >= x.shape[0] {
			return dst[:from], fmt.Errorf("row %d of %d", s.Off, x.shape[0])
		}
		if !done {
			err = x.read(ctx, room, s.Off)
		}
		if err != nil {
			return dst[:from], fmt.Errorf("field %s: %w", r.schema.Fields[i].Name, err)
		}
		if x.swap {
			swapBytes(room, x.dtype.Size())
		}
		if x.dtype == record.Bool && !record.AllBool(room) {
			return dst[:from], fmt.Errorf("field %s: row %d has a bool that is neither 0 nor 1: the file is damaged; "+
				"write it again", r.schema.Fields[i].Name, s.Off)
		}
	}
	return dst, nil
}

func (*arrayRows) Close() error { return nil }
