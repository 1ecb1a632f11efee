package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/source/packed/arrow"
)

// columnReader gives the values of a column row by row.
type columnReader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one row group is read
	*leaf
	pages  pq.Pages
	page   pq.Page
	values pq.ValueReader
	buf    [256]pq.Value
	at, n  int // in buf

	data []byte
	open []bool  // of each list, whether it is there
	have []int64 // elements of each list so far
	dims []int64 // of lists that have ended; -1 = none has
}

func (r *columnReader) close() {
	if r.page != nil {
		pq.Release(r.page)
		r.page = nil
	}
	_ = r.pages.Close() // nothing was written, so nothing can be lost
}

// peek is the next value; nil = there is none.
func (r *columnReader) peek() (*pq.Value, error) {
	for r.at == r.n {
		if r.page == nil {
			page, err := r.pages.ReadPage()
			if errors.Is(err, io.EOF) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			r.page, r.values = page, page.Values()
		}
		n, err := r.values.ReadValues(r.buf[:])
		r.at, r.n = 0, n
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case n == 0 && err == nil:
			return nil, io.ErrNoProgress
		case n == 0:
			pq.Release(r.page)
			r.page = nil
		}
	}
	return &r.buf[r.at], nil
}

var errNullInside = errors.New("it has a null inside a list")

// row reads the values of one row.
func (r *columnReader) row(c *Cell) error {
	*c = Cell{}
	r.data = r.data[:0]
	v, err := r.peek()
	if err != nil {
		return err
	}
	if v == nil {
		return errors.New("its values end before its rows")
	}
	if v.RepetitionLevel() != 0 {
		return errors.New("its first value continues a row")
	}
	if len(r.lists) == 0 {
		c.Null = v.DefinitionLevel() < r.most
		if !c.Null {
			err = r.take(c, v)
		}
		r.at++
		c.Data = r.data
		return err
	}
	if r.field.Kind == arrow.Text {
		return r.texts(c, v)
	}
	return r.list(c, v)
}

// maxCell bounds the bytes, and the elements, of one row in one column. Tests lower it.
var maxCell = 1 << 30

// list reads the values of a row of lists.
func (r *columnReader) list(c *Cell, v *pq.Value) error {
	depth := len(r.lists)
	r.open, r.have, r.dims = grow(r.open, depth), grow(r.have, depth), grow(r.dims, depth)
	for k := range r.dims {
		r.open[k], r.have[k], r.dims[k] = false, 0, -1
	}
	c.Null = v.DefinitionLevel() < r.lists[0]-1
	n := 0
	for first := true; v != nil; first = false {
		if n++; n&(1<<16-1) == 0 && r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		if len(r.data) > maxCell || n > maxCell { // a page of a few bytes may repeat a value without end
			return fmt.Errorf("a value of more than %d bytes", maxCell)
		}
		rep := v.RepetitionLevel()
		if !first && rep == 0 {
			break
		}
		if rep > depth {
			return fmt.Errorf("repetition level %d of %d", rep, depth)
		}
		if bad := r.level(v.DefinitionLevel(), rep); bad != nil && !c.Null && c.Err == nil {
			c.Err = bad
		}
		if v.DefinitionLevel() == r.most {
			if err := r.take(c, v); err != nil {
				return err
			}
		}
		r.at++
		var err error
		if v, err = r.peek(); err != nil {
			return err
		}
	}
	if bad := r.end(0); bad != nil && c.Err == nil {
		c.Err = bad
	}
	for _, d := range r.dims {
		c.Dims = append(c.Dims, max(d, 0))
	}
	c.Data = r.data
	return nil
}

// level counts a value: it begins an element of the list rep (from 1; 0 = the row), and of all lists inside of it.
func (r *columnReader) level(def, rep int) error {
	depth := len(r.lists)
	bad := error(nil)
	if rep > 0 {
		bad = r.end(rep)
		r.have[rep-1]++
	}
	for k := rep; k < depth; k++ {
		if def < r.lists[k]-1 { // the list itself is null
			if k > 0 {
				return errNullInside
			}
			return nil
		}
		r.open[k], r.have[k] = true, 0
		if def < r.lists[k] {
			return bad // it is empty
		}
		r.have[k] = 1
	}
	if def < r.most {
		return errNullInside
	}
	return bad
}

// end ends the lists inside of list n.
func (r *columnReader) end(n int) error {
	for k := len(r.lists) - 1; k >= n; k-- {
		if !r.open[k] {
			continue
		}
		r.open[k] = false
		if r.dims[k] >= 0 && r.dims[k] != r.have[k] {
			return fmt.Errorf("lists in one value have %d and %d elements, so it is no array", r.dims[k], r.have[k])
		}
		r.dims[k] = r.have[k]
	}
	return nil
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

const (
	unixDay    = 2440588 // the Julian day of 1970-01-01
	daySeconds = 24 * 60 * 60
	dayNanos   = daySeconds * 1_000_000_000
)

// moment are the nanoseconds since 1970 of an INT96: a Julian day, and nanoseconds of it, which Arrow writes as
// negative ones before 1970.
func moment(day uint32, nanos int64) (int64, error) {
	if nanos >= dayNanos || nanos <= -dayNanos {
		return 0, fmt.Errorf("has an INT96 with nanosecond %d of a day: it is damaged, or no time", nanos)
	}
	t := time.Unix((int64(day)-unixDay)*daySeconds, nanos).UTC()
	if t.Before(time.Unix(0, math.MinInt64)) || t.After(time.Unix(0, math.MaxInt64)) {
		return 0, fmt.Errorf("has the INT96 time %s, and nanoseconds in an int64 reach from 1677 to 2262: write the column "+
			"as a timestamp in microseconds, or leave it out with ?fields=", t.Format(time.RFC3339))
	}
	return t.UnixNano(), nil
}

// decimal appends a decimal, which is big-endian.
func (r *columnReader) decimal(b []byte) (err error) {
	r.data, err = r.field.AppendDecimal(r.data, b)
	return err
}

// take appends a value, little-endian. One that no field can hold is the cell's error.
func (r *columnReader) take(c *Cell, v *pq.Value) error {
	le := binary.LittleEndian
	f := &r.field
	switch v.Kind() {
	case pq.Boolean:
		b := byte(0)
		if v.Boolean() {
			b = 1
		}
		r.data = append(r.data, b)
	case pq.Int32:
		if f.Kind == arrow.Decimal {
			return r.decimal(binary.BigEndian.AppendUint32(nil, uint32(v.Int32())))
		}
		r.data = le.AppendUint32(r.data, uint32(v.Int32()))[:len(r.data)+f.Bits/8]
	case pq.Int64:
		if f.Kind == arrow.Decimal {
			return r.decimal(binary.BigEndian.AppendUint64(nil, uint64(v.Int64())))
		}
		r.data = le.AppendUint64(r.data, uint64(v.Int64()))[:len(r.data)+f.Bits/8]
	case pq.Float:
		r.data = le.AppendUint32(r.data, v.Uint32())
	case pq.Double:
		r.data = le.AppendUint64(r.data, v.Uint64())
	case pq.Int96:
		x := v.Int96()
		n, err := moment(x[2], int64(uint64(x[1])<<32|uint64(x[0])))
		if err != nil && c.Err == nil {
			c.Err = err
		}
		r.data = le.AppendUint64(r.data, uint64(n))
	case pq.ByteArray, pq.FixedLenByteArray:
		b := v.ByteArray()
		if f.Kind == arrow.Decimal {
			return r.decimal(b)
		}
		if f.Kind == arrow.Float && len(b) != 2 {
			return fmt.Errorf("a value of %d bytes", len(b))
		}
		r.data = append(r.data, b...)
	default:
		return fmt.Errorf("a value of type %s", v.Kind())
	}
	return nil
}
