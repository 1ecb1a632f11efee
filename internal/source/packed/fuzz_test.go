package packed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/encoding/protowire"
)

// tfRecordOf writes records as TensorFlow does.
func tfRecordOf(records ...[]byte) []byte {
	var out []byte
	le := binary.LittleEndian
	for _, r := range records {
		head := le.AppendUint64(nil, uint64(len(r)))
		out = append(le.AppendUint32(append(out, head...), maskedCRC(head)), r...)
		out = le.AppendUint32(out, maskedCRC(r))
	}
	return out
}

// exampleOf is a tf.Example of one feature: BYTES, one int64 7, one float.
func exampleOf(key string, list []byte) []byte {
	message := func(num protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
	}
	entry := append(message(1, []byte(key)), message(2, list)...)
	return message(1, message(1, entry))
}

// tableSeeds are small files, by scheme.
func tableSeeds(t testing.TB) map[string][]byte {
	var b bytes.Buffer
	type row struct {
		ID    int64
		Words []int32 `parquet:",list"`
		Text  *string
	}
	if err := pq.Write(&b, []row{{ID: 1, Words: []int32{1, 2}}, {ID: 2}}, pq.Compression(&pq.Zstd)); err != nil {
		t.Fatal(err)
	}
	seeds := map[string][]byte{
		"parquet": b.Bytes(),
		"fasta":   []byte(">a first\nACGT\nAC\n>b\nMKV\n"),
		"tfrecord": tfRecordOf(exampleOf("x", []byte{0x1a, 3, 0x0a, 1, 7}), exampleOf("x", []byte{0x1a, 2, 8, 9}),
			exampleOf("y", []byte{0x0a, 4, 0x0a, 2, 'h', 'i'}), exampleOf("z", []byte{0x12, 6, 0x0a, 4, 0, 0, 0x80, 0x3f})),
	}
	for scheme, name := range map[string]string{"hf": "rows.arrow", "lmdb": "data.mdb"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		seeds[scheme] = b
	}
	return seeds
}

// FuzzTables reads anything as each format of tables: an error, or records that fit their schema.
func FuzzTables(f *testing.F) {
	for _, b := range tableSeeds(f) {
		f.Add(b)
	}
	b, err := os.ReadFile(filepath.Join("testdata", "columns.arrow"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	suffix := map[string]string{"parquet": ".parquet", "fasta": ".fa", "tfrecord": ".tfrecord", "hf": ".arrow",
		"lmdb": ".mdb"}
	f.Fuzz(func(t *testing.T, b []byte) {
		for scheme, end := range suffix {
			path := "/d/x" + end
			s := fileSet{path: b}
			format, _ := ByScheme(scheme)
			d := dataset{Address: Address{Scheme: scheme, Path: path}, format: format.(Records), files: []string{path}}
			var err error
			if d.schema, err = d.format.Schema(context.Background(), d.Address, d.files, s.open); err != nil {
				continue
			}
			if d.schema.Check() != nil {
				continue
			}
			err = d.each(s, func(Sample, []byte, error) error { return nil })
			if bad, ok := errors.AsType[misfit](err); ok {
				t.Fatalf("%s: %v", scheme, bad)
			}
		}
	})
}

// TestSeedsAreRead: the files that the fuzzer begins with are good ones.
func TestSeedsAreRead(t *testing.T) {
	want := map[string]int{"parquet": 2, "fasta": 2, "tfrecord": 4, "hf": 3, "lmdb": 3}
	for scheme, b := range tableSeeds(t) {
		format, _ := ByScheme(scheme)
		path := "/d/x.arrow"
		if scheme == "fasta" {
			path = "/d/x.fa"
		}
		s := fileSet{path: b}
		d := dataset{Address: Address{Scheme: scheme, Path: path, Args: map[string]string{"nulls": "default"}},
			format: format.(Records), files: []string{path}}
		var err error
		if d.schema, err = d.format.Schema(context.Background(), d.Address, d.files, s.open); err != nil {
			t.Errorf("%s: %v", scheme, err)
			continue
		}
		n := 0
		if err := d.each(s, func(_ Sample, _ []byte, bad error) error { n++; return bad }); err != nil || n != want[scheme] {
			t.Errorf("%s: %d records, want %d: %v", scheme, n, want[scheme], err)
		}
	}
}
