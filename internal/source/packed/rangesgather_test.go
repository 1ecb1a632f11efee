package packed

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manyRanges is a file in a store: it counts how often it is asked, and for how many ranges.
type manyRanges struct {
	countedReads

	size          int64
	times, ranges int
	fails         error
}

func (m *manyRanges) Len() int64 { return m.size }

func (m *manyRanges) ReadAtContext(_ context.Context, p []byte, off int64) (int, error) {
	return m.ReadAt(p, off)
}

func (m *manyRanges) ReadRanges(_ context.Context, ranges []Range) error {
	m.times, m.ranges = m.times+1, m.ranges+len(ranges)
	if m.fails != nil {
		return m.fails
	}
	for _, r := range ranges {
		if _, err := m.r.ReadAt(r.Buf, r.Off); err != nil {
			return err
		}
	}
	return nil
}

// The ranges of one record are asked for together where that is better: once for arrays, and for a table once for each
// step that another one's bytes say. The record is the same, and so are errors.
func TestRangesOfARecordAreGathered(t *testing.T) {
	rows, err := os.ReadFile(filepath.Join("testdata", "rows.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	arrays := map[string][]byte{"a": npyOf("<f4", []int64{5, 3}, bytes.Repeat([]byte("abc"), 20)),
		"b": npyOf(">i2", []int64{5}, []byte("0123456789")), "c": npyOf("|u1", []int64{5, 0}, nil)}
	for _, c := range []struct {
		uri   string
		file  []byte
		times int // that it is asked for a record
	}{
		{"npz:/d/a.npz", npzOf(t, zip.Store, arrays, "a", "b", "c"), 1},
		{"hf:/d/rows.arrow", rows, 3},
	} {
		_, path, _ := strings.Cut(c.uri, ":")
		set := fileSet{path: c.file}
		d, err := describe(c.uri, set)
		if err != nil {
			t.Fatal(err)
		}
		file, err := set.file(path, &d.schema)
		if err != nil {
			t.Fatal(err)
		}
		open := func(in io.ReaderAt) Rows {
			t.Helper()
			file := file
			file.ReaderAt = in
			r, err := d.format.Open(t.Context(), d.Address, file)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		in := &manyRanges{countedReads: countedReads{r: bytes.NewReader(c.file)}, size: int64(len(c.file))}
		one := &countedReads{r: bytes.NewReader(c.file)}
		together, alone := open(in), open(one)
		var first Sample
		if err := d.each(set, func(s Sample, want []byte, bad error) error {
			first = s
			in.reads, in.times, in.ranges, one.reads = 0, 0, 0, 0
			got, err := together.Record(t.Context(), nil, s)
			if err = errors.Join(bad, err); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s row %d: %q, not %q: %v", c.uri, s.Off, got, want, err)
			}
			if _, err := alone.Record(t.Context(), nil, s); err != nil {
				t.Fatal(err)
			}
			if in.reads != 0 || in.times < 1 || in.times > c.times || in.ranges > one.reads || one.reads < 2*in.times {
				t.Errorf("%s row %d: %d reads, and %d times %d ranges; %d reads one by one", c.uri, s.Off, in.reads, in.times,
					in.ranges, one.reads)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		in.fails = errStore
		if _, err := together.Record(t.Context(), nil, first); !errors.Is(err, errStore) {
			t.Errorf("%s of a store that fails: %v", c.uri, err)
		}
	}
}
