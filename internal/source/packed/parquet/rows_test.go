package parquet

import (
	"bytes"
	"context"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"

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
