package packed

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func packTF(t *testing.T, packing string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var err error
	if packing == "gzip" {
		w := gzip.NewWriter(&out)
		_, err = w.Write(b)
		err = cmp.Or(err, w.Close())
	} else {
		w := zlib.NewWriter(&out)
		_, err = w.Write(b)
		err = cmp.Or(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestPackedTFRecords: damaged compressed files are errors that say what is wrong, and so is one that unpacks to far
// more than it has.
func TestPackedTFRecords(t *testing.T) {
	var messages [][]byte
	for i := range 200 {
		messages = append(messages, exampleOf("x", []byte{0x1a, 2, 8, byte(i & 127)}))
	}
	plain := tfRecordOf(messages...)
	const path = "/d/x.tfrecord"
	schema := func(b []byte) error {
		s := fileSet{path: b}
		d := dataset{Address: Address{Scheme: "tfrecord", Path: path}, format: tfrecord{}, files: []string{path}}
		_, err := d.format.Schema(context.Background(), d.Address, d.files, s.open)
		return err
	}
	for _, packing := range []string{"gzip", "zlib"} {
		whole := packTF(t, packing, plain)
		if got, err := tfPacking(bytes.NewReader(whole), int64(len(whole))); got != packing || err != nil {
			t.Errorf("a file of %s is one of %q: %v", packing, got, err)
		}
		if err := schema(whole); err != nil {
			t.Errorf("%s: %v", packing, err)
		}
		flipped := bytes.Clone(whole)
		at := len(flipped) - 1 // of the checksum at its end
		if packing == "gzip" {
			at -= 4 // the length is behind it
		}
		flipped[at] ^= 1
		changed := bytes.Clone(plain)
		changed[tfHead+1] ^= 1
		for what, x := range map[string]struct {
			b     []byte
			words string
		}{
			"cut":             {whole[:len(whole)/2], "of what its " + packing + " unpacks to: unpack it: it is cut"},
			"without its end": {whole[:len(whole)-2], "unpack it: it is cut"},
			"flipped":         {flipped, "unpack it: " + packing + ": invalid checksum"},
			"inside": {packTF(t, packing, changed),
				"record 0, at byte 0 of what its " + packing + " unpacks to: the checksum"},
			"cut inside":    {packTF(t, packing, plain[:len(plain)-7]), "record 199, at byte"},
			"followed":      {append(bytes.Clone(whole), "garbage"...), "unpack it"},
			"only its head": {whole[:11], "record 0, at byte 0 of what its " + packing + " unpacks to: unpack it: it is cut"},
		} {
			err := schema(x.b)
			if err == nil || !strings.Contains(err.Error(), x.words) {
				t.Errorf("%s %s: %v, want %q", packing, what, err, x.words)
			}
		}
	}
	var bomb bytes.Buffer
	record := tfRecordOf(make([]byte, 1<<20))
	for range 300 {
		bomb.Write(record)
	}
	if err := schema(packTF(t, "gzip", bomb.Bytes())); err == nil || !strings.Contains(err.Error(), "no tf.Example") {
		t.Errorf("records of zeros: %v", err)
	}
	bomb.Reset()
	field := func(n protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
	}
	value := field(2, field(1, field(1, make([]byte, 1<<20)))) // of an entry: a list of bytes
	record = tfRecordOf(field(1, field(1, append(field(1, []byte("x")), value...))))
	for range 300 {
		bomb.Write(record)
	}
	err := schema(packTF(t, "gzip", bomb.Bytes()))
	if err == nil || !strings.Contains(err.Error(), "unpacks to more than") {
		t.Errorf("300 MiB in few bytes: %v", err)
	}
}

// TestPackedTFRecordsOfNoRecords: a shard that a writer closed without a record is read as one, beside others.
func TestPackedTFRecordsOfNoRecords(t *testing.T) {
	const path, other = "/d/x.tfrecord", "/d/y.tfrecord"
	for _, x := range []struct {
		b       []byte
		packing string
		words   string
	}{
		{[]byte{0x78, 0x9c, 3, 0, 0, 0, 0, 1}, "zlib", ""},
		{packTF(t, "gzip", nil), "gzip", ""},
		{nil, "", ""},
		{[]byte{0x78}, "", "1 bytes are left"},
		{[]byte{0x1f, 0x8b}, "", "2 bytes are left"},
		{[]byte{5, 0, 0, 0, 0, 0, 0, 0}, "", "8 bytes are left"},
		{[]byte{0x78, 0x9c, 3, 0}, "zlib", "it is cut"},
		{[]byte{0x1f, 0x8b, 8, 0}, "gzip", "it is cut"},
	} {
		if got, err := tfPacking(bytes.NewReader(x.b), int64(len(x.b))); got != x.packing || err != nil {
			t.Errorf("% x is of %q: %v", x.b, got, err)
		}
		s := fileSet{path: x.b, other: tfRecordOf(exampleOf("x", []byte{0x1a, 2, 8, 7}))}
		d := dataset{Address: Address{Scheme: "tfrecord", Path: path + "::" + other}, format: tfrecord{},
			files: []string{path, other}}
		var err error
		d.schema, err = d.format.Schema(t.Context(), d.Address, d.files, s.open)
		if x.words != "" {
			if err == nil || !strings.Contains(err.Error(), x.words) {
				t.Errorf("% x: %v, want %q", x.b, err, x.words)
			}
			continue
		}
		n := 0
		err = cmp.Or(err, d.each(s, func(_ Sample, _ []byte, bad error) error {
			n++
			return bad
		}))
		if n != 1 || err != nil {
			t.Errorf("% x: %d records: %v", x.b, n, err)
		}
	}
}

// TestPackedTFRecordsAreBounded: a few bytes may unpack to records without end, of which each has a place in the index.
func TestPackedTFRecordsAreBounded(t *testing.T) {
	plain := bytes.Repeat(tfRecordOf(nil), leastRecords+1)
	for n, words := range map[int]string{leastRecords: "", leastRecords + 1: "more than 1048576 records"} {
		b := packTF(t, "gzip", plain[:n*(tfHead+tfTail)])
		got := 0
		err := tfRecords(t.Context(), bytes.NewReader(b), int64(len(b)), func(_, _ int64, _ bool, b []byte) error {
			got++
			return nil
		})
		if got != leastRecords || (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%d records in %d bytes: %d came, %v", n, len(b), got, err)
		}
	}
}

// TestAPlainTFRecordMayBeginAsGzip: 35,615 is 1f 8b, and the checksum of the length decides.
func TestAPlainTFRecordMayBeginAsGzip(t *testing.T) {
	var b [tfHead]byte
	binary.LittleEndian.PutUint64(b[:], 0x088b1f)
	binary.LittleEndian.PutUint32(b[8:], maskedCRC(b[:8]))
	if got, err := tfPacking(bytes.NewReader(b[:]), int64(len(b))); got != "" || err != nil {
		t.Errorf("it is %q: %v", got, err)
	}
	b[9] ^= 1
	if got, _ := tfPacking(bytes.NewReader(b[:]), int64(len(b))); got != "gzip" {
		t.Errorf("without that checksum it is %q", got)
	}
}

// Whole floats are labels of tf.Examples, as int64 are.
func TestLabelsOfTFRecords(t *testing.T) {
	float := func(bits uint32) []byte { // a list of one float
		return append([]byte{0x12, 6, 0x0a, 4}, binary.LittleEndian.AppendUint32(nil, bits)...)
	}
	files := disk{"/d/a.tfrecord": tfRecordOf(exampleOf("label", float(0x40e00000)), exampleOf("label", float(0x41200000)),
		exampleOf("label", float(0x3f000000)))} // 7, 10, 0.5
	f, a := address(t, "tfrecord:/d/a.tfrecord")
	_, _, samples, err := readAll(f, a, files, "/d/a.tfrecord")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{7, 10, -1} {
		if samples[i].Label != want {
			t.Errorf("record %d has the label %d, not %d", i, samples[i].Label, want)
		}
	}
}
