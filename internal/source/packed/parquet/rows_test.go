package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"

	"larder/internal/source/packed/arrow"
)

// One row of lists has a bound, however few bytes its pages have.
func TestRowsOfListsAreBounded(t *testing.T) {
	type row struct {
		X []int64 `parquet:",list,dict"`
	}
	before := maxCell
	t.Cleanup(func() { maxCell = before })
	maxCell = 1 << 16
	for n, ok := range map[int]bool{8000: true, 1 << 17: false} {
		var b bytes.Buffer
		if err := pq.Write(&b, []row{{make([]int64, n)}, {make([]int64, 2)}}); err != nil {
			t.Fatal(err)
		}
		f, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		err = f.Each(context.Background(), 0, []*arrow.Field{&f.Fields[0]}, func(int64, []Cell) error {
			rows++
			return nil
		})
		if ok && (err != nil || rows != 2) || !ok && (err == nil || !strings.Contains(err.Error(), "more than 65536 bytes")) {
			t.Errorf("%d elements in %d bytes: %d rows, %v", n, b.Len(), rows, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err = f.Each(ctx, 0, []*arrow.Field{&f.Fields[0]}, func(int64, []Cell) error { return nil })
		if err == nil {
			t.Error("it goes on without its context")
		}
	}
}

// An INT96 reaches further than nanoseconds in an int64: such a row is bad, and the others are not.
func TestInt96OutsideOfNanoseconds(t *testing.T) {
	type row struct {
		At   deprecated.Int96
		List []deprecated.Int96 `parquet:",list"`
	}
	at := func(day uint32, nanos int64) deprecated.Int96 {
		return deprecated.Int96{uint32(nanos), uint32(nanos >> 32), day}
	}
	tests := []struct {
		at   deprecated.Int96
		want int64
		err  string
	}{
		{at(unixDay, 5), 5, ""},
		{at(unixDay-1, dayNanos-1), -1, ""},
		{at(unixDay, -1), -1, ""},
		{at(unixDay-106751, -85636_854_775_808), math.MinInt64, ""},
		{at(unixDay-106751, -85636_854_775_809), 0, "the INT96 time 1677-09-21T00:12:43Z"},
		{at(unixDay+106751, 85636_854_775_807), math.MaxInt64, ""},
		{at(unixDay+106751, 85636_854_775_808), 0, "the INT96 time 2262-04-11T23:47:16Z"},
		{at(unixDay-106752, 763_145_224_192), math.MinInt64, ""},
		{at(unixDay-106752, 763_145_224_191), 0, "the INT96 time 1677-09-21T00:12:43Z"},
		{at(5373484, 0), 0, "the INT96 time 9999-12-31T00:00:00Z"},
		{at(1721426, 0), 0, "the INT96 time 0001-01-01T00:00:00Z"},
		{at(unixDay, dayNanos), 0, "nanosecond 86400000000000 of a day"},
		{at(unixDay, -dayNanos), 0, "nanosecond -86400000000000 of a day"},
		{at(unixDay, math.MinInt64), 0, "nanosecond -9223372036854775808 of a day"},
		{at(math.MaxUint32, 0), 0, "the INT96 time 11754508-"},
	}
	rows := make([]row, len(tests))
	for i, x := range tests {
		rows[i] = row{x.at, []deprecated.Int96{at(unixDay, 1), x.at}}
	}
	var b bytes.Buffer
	if err := pq.Write(&b, rows); err != nil {
		t.Fatal(err)
	}
	f, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	check := func(x int64, c *Cell) {
		n++
		want, data := tests[x].err, binary.LittleEndian.AppendUint64(nil, uint64(tests[x].want))
		switch {
		case want == "" && (c.Err != nil || !bytes.HasSuffix(c.Data, data)):
			t.Errorf("row %d: % x, %v, want % x", x, c.Data, c.Err, data)
		case want != "" && (c.Err == nil || !strings.Contains(c.Err.Error(), want)):
			t.Errorf("row %d: %v, want %q", x, c.Err, want)
		}
	}
	list := &f.Fields[1]
	for list.Kind == arrow.Struct {
		list = &list.Inner[0]
	}
	err = f.Each(t.Context(), 0, []*arrow.Field{&f.Fields[0], list}, func(x int64, cells []Cell) error {
		check(x, &cells[0])
		check(x, &cells[1])
		return nil
	})
	if err != nil || n != 2*len(tests) {
		t.Errorf("%d cells: %v", n, err)
	}
}
