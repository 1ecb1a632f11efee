package packed

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"larder/internal/source/packed/arrow"
)

// withFooter is a Parquet file whose footer says something else.
func withFooter(t *testing.T, b []byte, change func(*format.FileMetaData)) []byte {
	t.Helper()
	n := int(binary.LittleEndian.Uint32(b[len(b)-8:]))
	var meta format.FileMetaData
	var protocol thrift.CompactProtocol
	if err := thrift.Unmarshal(&protocol, b[len(b)-8-n:len(b)-8], &meta); err != nil {
		t.Fatal(err)
	}
	change(&meta)
	footer, err := thrift.Marshal(&protocol, meta)
	if err != nil {
		t.Fatal(err)
	}
	out := append(bytes.Clone(b[:len(b)-8-n]), footer...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(footer)))
	return append(out, "PAR1"...)
}

// What a Parquet file says of its rows is compared with its size and its columns before anything is made for them.
func TestParquetRowsAreBoundedByTheFile(t *testing.T) {
	type row struct{ X int64 }
	var b bytes.Buffer
	if err := pq.Write(&b, []row{{1}, {2}, {3}}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		rows, values int64
		want         string
	}{{3, 3, ""}, {1 << 33, 1 << 33, "8589934592 rows in"}, {4, 3, "3 values for 4 rows"}, {2, 3, "3 values for 2 rows"}} {
		file := withFooter(t, b.Bytes(), func(m *format.FileMetaData) {
			m.NumRows, m.RowGroups[0].NumRows = x.rows, x.rows
			m.RowGroups[0].Columns[0].MetaData.NumValues = x.values
		})
		d, err := describe("parquet:/d/a.parquet", fileSet{"/d/a.parquet": file})
		if err == nil {
			_, err = d.format.Scan(context.Background(), d.Address, File{ReaderAt: bytes.NewReader(file), Path: d.files[0],
				Size: int64(len(file)), Schema: &d.schema}, func(Sample) error { return nil })
		}
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%d rows, %d values: %v", x.rows, x.values, err)
		}
	}
}

// A batch of Arrow has no more rows than its buffers hold.
func TestArrowRowsAreBoundedByTheirBuffers(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "rows.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	open := func(b []byte) error {
		_, err := arrow.Open(context.Background(), bytes.NewReader(b), int64(len(b)))
		return err
	}
	was := binary.LittleEndian.AppendUint64(nil, 2) // the rows of its first batch
	for _, rows := range []uint64{1 << 12, 1 << 39} {
		now, many := binary.LittleEndian.AppendUint64(nil, rows), bytes.Clone(b)
		for at := range len(b) - 8 { // the numbers of rows: what is the size of a buffer says so
			if one := bytes.Clone(b); bytes.Equal(b[at:at+8], was) {
				copy(one[at:], now)
				if err := open(one); err != nil && strings.Contains(err.Error(), "values") {
					copy(many[at:], now)
				}
			}
		}
		if err := open(many); err == nil || !strings.Contains(err.Error(), "says more than it has") {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
}
