package source

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	pq "github.com/parquet-go/parquet-go"
)

// TestARowGroupOfAStoreIsOneRead: the pages of all columns are fetched by one request and once, and not for each page;
// with ?fields= one request for each part, and nothing of the other columns.
func TestARowGroupOfAStoreIsOneRead(t *testing.T) {
	type row struct {
		A    int64
		Text string
		X    float64
	}
	rows := make([]row, 40)
	for i := range rows {
		rows[i] = row{int64(i), strings.Repeat(fmt.Sprint("text of ", i, " "), 90), float64(i) / 2}
	}
	var content bytes.Buffer
	must(t, pq.Write(&content, rows, pq.MaxRowsPerRowGroup(10), pq.Compression(&pq.Snappy), pq.PageBufferSize(512)))
	footer := int64(binary.LittleEndian.Uint32(content.Bytes()[content.Len()-8:]))
	root, b := t.TempDir(), newBucket(t)
	write(t, root, "p.parquet", content.String())
	b.put(t, "p.parquet", content.String())
	var fetched atomic.Int64
	count := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var from, to int64
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
			fetched.Add(to + 1 - from)
		}
		b.next.ServeHTTP(w, r)
	})
	for fields, most := range map[string]int64{"": 4 * 1, "?fields=Text": 4 * 1, "?fields=A,X": 4 * 2} { // order-free
		local, _ := open(t, "")
		here, err := local.Add(t.Context(), "", "parquet:"+root+"/p.parquet"+fields)
		must(t, err)
		c := b.open(t, "")
		d, err := c.Add(t.Context(), "", "parquet:s3://data/p.parquet"+fields)
		must(t, err)
		b.before.Store(&count)
		reads := b.reads.Load()
		fetched.Store(0)
		if got := recordsOf(t, c, d); !slices.Equal(got, recordsOf(t, local, here)) {
			t.Errorf("%q: records of a store are others", fields)
		}
		reads = b.reads.Load() - reads
		b.before.Store(nil)
		if reads < 4 || reads > most+5 { // beside the groups, the file's ends
			t.Errorf("%q: %d requests", fields, reads)
		}
		if n := fetched.Load(); n > int64(content.Len())+2*footer+64 { // the footer is read for us and for the library
			t.Errorf("%q: %d bytes of a file of %d", fields, n, content.Len())
		}
	}
}
