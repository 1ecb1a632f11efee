package packed

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"larder/internal/record"
	"larder/internal/spool"
	"larder/internal/xrand"
)

// disk holds files by path.
type disk map[string][]byte

func (d disk) open(path string) (Other, error) {
	b, ok := d[path]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return other{bytes.NewReader(b)}, nil
}

// readAll indexes files and reads every sample, as the source does. A record that does not fit its schema is a misfit.
func readAll(f Records, a Address, d disk, files ...string) (record.Schema, [][]byte, []Sample, error) {
	ctx := context.Background()
	s, err := f.Schema(ctx, a, files, d.open)
	if err != nil {
		return s, nil, nil, fmt.Errorf("schema: %w", err)
	}
	if err := s.Check(); err != nil || len(s.Fields) == 0 {
		return s, nil, nil, fmt.Errorf("a schema of %d fields: %w", len(s.Fields), err)
	}
	var out [][]byte
	var all []Sample
	for _, path := range files {
		file := File{ReaderAt: bytes.NewReader(d[path]), Path: path, Size: int64(len(d[path])), Beside: d.open, Schema: &s,
			ID: path, Spool: spool.NewMemory(64 << 20)}
		var samples []Sample
		if _, err := f.Scan(ctx, a, file, func(s Sample) error {
			samples = append(samples, s)
			return nil
		}); err != nil {
			return s, nil, nil, fmt.Errorf("scan: %w", err)
		}
		rows, err := f.Open(ctx, a, file)
		if err != nil {
			return s, nil, nil, fmt.Errorf("open: %w", err)
		}
		for _, x := range samples {
			b, err := rows.Record(ctx, nil, x)
			if err != nil {
				return s, nil, nil, fmt.Errorf("record: %w", err)
			}
			if err := validStored(&s, b); err != nil {
				return s, nil, nil, misfit{fmt.Errorf("record %s does not fit: %w", x.Key, err)}
			}
			out, all = append(out, b), append(all, x)
		}
		if err := rows.Close(); err != nil {
			return s, nil, nil, err
		}
	}
	return s, out, all, nil
}

// validStored checks a record whose images are files.
func validStored(s *record.Schema, b []byte) error {
	v, err := record.Open(b)
	if err != nil {
		return err
	}
	images := make([]bool, v.Len())
	for i, x := range v.All {
		images[i] = x.Kind == record.Bytes
	}
	stored := Stored(s, images)
	return stored.Validate(b, 0)
}

// show describes a record for comparison.
func show(t *testing.T, s *record.Schema, b []byte) string {
	t.Helper()
	v, err := record.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, x := range v.All {
		f := s.Fields[i]
		switch {
		case f.Kind == record.Text || x.Kind == record.Bytes:
			out = append(out, fmt.Sprintf("%s=%q", f.Name, x.Data))
		case x.DType == record.Float64:
			var vs []float64
			for at := 0; at < len(x.Data); at += 8 {
				vs = append(vs, math.Float64frombits(binary.LittleEndian.Uint64(x.Data[at:])))
			}
			out = append(out, fmt.Sprintf("%s=%v%v", f.Name, x.Dims(), vs))
		case x.DType == record.Int64:
			var vs []int64
			for at := 0; at < len(x.Data); at += 8 {
				vs = append(vs, int64(binary.LittleEndian.Uint64(x.Data[at:])))
			}
			out = append(out, fmt.Sprintf("%s=%v%v", f.Name, x.Dims(), vs))
		default:
			out = append(out, fmt.Sprintf("%s=%v%s%x", f.Name, x.Dims(), x.DType, x.Data))
		}
	}
	return strings.Join(out, " ")
}

// npyOf writes an array as numpy.save does.
func npyOf(descr string, shape []int64, data []byte) []byte {
	dims := strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ", "), "[]")
	if len(shape) == 1 {
		dims += ","
	}
	head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, dims)
	for (10+len(head)+1)%64 != 0 {
		head += " "
	}
	head += "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(head)), byte(len(head)>>8))
	return append(append(b, head...), data...)
}

func npzOf(t testing.TB, method uint16, arrays map[string][]byte, order ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range order {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(arrays[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func random(r *xrand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint64())
	}
	return b
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

// megatronOf writes a .bin of uint16 and its .idx; documents are the lengths of sequences, each a document.
func megatronOf(documents ...[]uint16) (bin, idx []byte) {
	le := binary.LittleEndian
	var sizes, pointers, docs []byte
	docs = le.AppendUint64(docs, 0)
	for i, d := range documents {
		sizes = le.AppendUint32(sizes, uint32(len(d)))
		pointers = le.AppendUint64(pointers, uint64(len(bin)))
		docs = le.AppendUint64(docs, uint64(i+1))
		for _, id := range d {
			bin = le.AppendUint16(bin, id)
		}
	}
	idx = append([]byte(megatronMagic), 1, 0, 0, 0, 0, 0, 0, 0, 8)
	idx = le.AppendUint64(idx, uint64(len(documents)))
	idx = le.AppendUint64(idx, uint64(len(documents)+1))
	return bin, slices.Concat(idx, sizes, pointers, docs)
}

const jsonLines = `{"id": 1, "text": "a\"b\u00e9", "v": [1, 2.5], "m": [[1, 2], [3, 4]], "ok": true, "o":{"a":[1, "x"]}}

{"ok": false, "id": -7, "text": "", "v": [], "m": [[5, 6], [7, 8]], "o": ["x", null]}
`

const csvRowsText = "id,name,x,ok\n1,\"a, \"\"b\"\"\nc\",0.5,true\n-2,d,,False\n"

// moreRows is n rows behind those of jsonLines, csvRowsText and a text; compressed, 113 of them are more than 2 KiB.
func moreRows(n int) (jsonl, csv, text string) {
	r := xrand.New(3)
	for i := range n {
		word := fmt.Sprintf("éßü%x", random(r, 25))
		jsonl += fmt.Sprintf(`{"id": %d, "text": "%s", "v": [%d.5], "m": [[1, %d], [3, 4]], "ok": true, "o": {"a": [%d]}}`,
			i, word, i, i, i) + "\n"
		csv += fmt.Sprintf("%d,%s,%d.25,True\n", i, word, i)
		text += "\n" + word
	}
	return jsonl, csv, text
}

// corpus is a small dataset of each format of records, of files of at least 2 KiB.
func corpus(t testing.TB) map[string]disk {
	t.Helper()
	r := xrand.New(4)
	documents := [][]uint16{{1, 2, 3}, {4, 5, 6, 7, 8}, {9, 10, 11}}
	for i := range 120 {
		documents = append(documents, make([]uint16, 5+i%13))
		for k := range documents[i+3] {
			documents[i+3][k] = uint16(r.Uint64())
		}
	}
	bin, idx := megatronOf(documents...)
	member3 := npyOf("|u1", []int64{3}, []byte{1, 2, 3})
	whether := random(r, 300)
	for i := range whether {
		whether[i] &= 1
	}
	arrays := map[string][]byte{
		"a":  npyOf("<f4", []int64{300, 2}, slices.Concat(make([]byte, 16), random(r, 298*8))),
		"b":  npyOf("|u1", []int64{300}, slices.Concat([]byte{1, 2, 3}, random(r, 297))),
		"ok": npyOf("|b1", []int64{300}, whether)}
	members := []member{{"1.txt", "one"}, {"1.cls", "3"}, {"1.npy", string(member3)},
		{"2.txt", strings.Repeat("x", 700)}, {"2.cls", "4"}, {"2.npy", string(member3)}}
	images, labels := [][]byte{[]byte("first"), bytes.Repeat([]byte("x"), 900)}, []int64{7, 0}
	for i := range int64(9) {
		key := fmt.Sprint(30 + i)
		members = append(members, member{key + ".txt", fmt.Sprintf("%x", random(r, 300))}, member{key + ".cls", "5"},
			member{key + ".npy", string(member3)})
		images, labels = append(images, random(r, 150)), append(labels, i)
	}
	someTar := tarOf(t, members...)
	moreJSON, moreCSV, moreText := moreRows(113)
	jsonl, csv := []byte(jsonLines+moreJSON), []byte(csvRowsText+moreCSV)
	all := map[string]disk{
		"npy:":                                   {"/d/a.npy": npyOf("<i4", []int64{305, 3}, random(xrand.New(1), 305*12))},
		"npz:":                                   {"/d/a.npz": npzOf(t, zip.Store, arrays, "a", "b")},
		"npz:bools":                              {"/d/a.npz": npzOf(t, zip.Store, arrays, "a", "ok")},
		"npz:deflated":                           {"/d/a.npz": npzOf(t, zip.Deflate, arrays, "a", "b")},
		"tokens:?seq_len=4":                      {"/d/a.bin": random(xrand.New(2), 2402)},
		"tokens:?seq_len=4&doc=idx":              {"/d/a.bin": bin, "/d/a.idx": idx},
		"tokens:?seq_len=4&doc=3&borders=stop":   {"/d/a.bin": []byte(strings.Repeat("abcdefgh\x03\x00c.", 250)[:2402])},
		"tokens:?seq_len=4&doc=idx&borders=drop": {"/d/a.bin": bin, "/d/a.idx": idx},
		"tokens:?seq_len=4&doc=idx&borders=pack": {"/d/a.bin": bin, "/d/a.idx": idx},
		"jsonl:":                                 {"/d/a.jsonl": jsonl},
		"jsonl:gz":                               {"/d/a.jsonl.gz": gzipped(t, jsonl)},
		"csv:":                                   {"/d/a.csv": csv},
		"csv:zst":                                {"/d/a.csv.zst": zstded(t, csv)},
		"text:":                                  {"/d/a.txt": []byte("one\n\ntwé\r\nthree" + moreText)},
		"wds:":                                   {"/d/a.tar": someTar},
		"beton:?fields=image,label,blob,meta,x,a": {"/d/a.beton": betonOf(12)},
		"wds:gz":                       {"/d/a.tar.gz": gzipped(t, someTar)},
		"wds:zst":                      {"/d/a.tar.zst": zstded(t, someTar)},
		"mds:?fields=label,image,text": {"/d/a.mds": mdsOf(images, labels, "caption")},
	}
	maps.Copy(all, soundSets(t))
	return all
}

// address reads the name of a dataset of the corpus.
func address(t testing.TB, name string) (Records, Address) {
	t.Helper()
	scheme, rest, _ := strings.Cut(name, ":")
	f, ok := ByScheme(scheme)
	if !ok {
		t.Fatal(name)
	}
	_, query, _ := strings.Cut(rest, "?")
	if query != "" {
		query = "?" + query
	}
	a, err := ParseAddress(scheme, "/d"+query)
	if err != nil {
		t.Fatal(err)
	}
	return f.(Records), a
}

// main is the file of a dataset that holds samples.
func (d disk) main() string {
	for path := range d { // order-free: one of them
		if !strings.HasSuffix(path, ".idx") {
			return path
		}
	}
	return ""
}

func TestRecordsOfEachFormat(t *testing.T) {
	zeros := strings.Repeat("00000000", 2)
	want := map[string][]string{
		"npz:":         {"a=[2]float32" + zeros + " b=[]uint801", "a=[2]float32" + zeros + " b=[]uint802"},
		"npz:deflated": {"a=[2]float32" + zeros + " b=[]uint801", "a=[2]float32" + zeros + " b=[]uint802"},
		"tokens:?seq_len=4&doc=idx": {
			"tokens=[5]uint1601000200030004000500 doc=[5]int320000000000000000000000000100000001000000",
			"tokens=[5]uint1605000600070008000900 doc=[5]int320000000000000000000000000000000001000000"},
		"jsonl:": {`id=[][1] text="a\"bé" v=[2][1 2.5] m=[2 2][1 2 3 4] ok=[]bool01 o="{\"a\":[1,\"x\"]}"`,
			`id=[][-7] text="" v=[0][] m=[2 2][5 6 7 8] ok=[]bool00 o="[\"x\",null]"`},
		"csv:": {`id=[][1] name="a, \"b\"` + `\nc" x=[][0.5] ok=[]bool01`, `id=[][-2] name="d" x=[][NaN] ok=[]bool00`},
		"beton:?fields=image,label,blob,meta,x,a": {
			"image=\"\\xff\\xd8\\xff" + strings.Repeat(`\x00`, 10) + `" label=[][0] blob="" meta="{\"i\": 0}" x=[][1] ` +
				`a=[2]int160000ffff`,
			`image="P6\n2 1\n255\nrgbRGB" label=[][2] blob="\x01" meta="{\"i\": 1}" x=[][1] a=[2]int160100ffff`},
		"text:": {`text="one"`, `text=""`, `text="twé"`, `text="three"`},
		"wds:": {`txt="one" cls=[][3] npy=[3]uint8010203`,
			`txt="` + strings.Repeat("x", 700) + `" cls=[][4] npy=[3]uint8010203`},
		"mds:?fields=label,image,text": {`label=[][7] image="first" text="caption"`,
			`label=[][0] image="` + strings.Repeat("x", 900) + `" text="caption"`},
	}
	want["jsonl:gz"], want["csv:zst"] = want["jsonl:"], want["csv:"]
	want["wds:gz"], want["wds:zst"] = want["wds:"], want["wds:"]
	for name, d := range corpus(t) { // order-free: each by itself
		f, a := address(t, name)
		s, got, samples, err := readAll(f, a, d, d.main())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, w := range want[name] {
			if i >= len(got) || show(t, &s, got[i]) != w {
				t.Errorf("%s: sample %d is %s, not %s", name, i, show(t, &s, got[min(i, len(got)-1)]), w)
			}
		}
		for i, x := range samples {
			if x.Size < 1 || x.Off < 0 || i > 0 && x.Key <= samples[i-1].Key {
				t.Errorf("%s: sample %d is %+v", name, i, x)
			}
		}
	}
}

// FuzzRecords reads whatever it is given as each format: an error, or records that fit their schema.
func FuzzRecords(f *testing.F) {
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range corpus(f) {
			if !yield(name) {
				return
			}
		}
	})
	for i, name := range names {
		d := corpus(f)[name]
		f.Add(uint(i), d[d.main()])
	}
	f.Fuzz(func(t *testing.T, which uint, b []byte) {
		name := names[which%uint(len(names))]
		format, a := address(t, name)
		d := corpus(t)[name]
		path := d.main()
		d[path] = b
		_, _, _, err := readAll(format, a, d, path)
		if bad, ok := errors.AsType[misfit](err); ok {
			t.Fatalf("%s: %v", name, bad)
		}
	})
}

func TestRefusalsSayWhat(t *testing.T) {
	long := strings.Repeat("9", 400)
	fortran := bytes.Replace(npyOf("<f4", []int64{1, 1}, make([]byte, 4)), []byte("False"), []byte("True "), 1)
	uneven := map[string][]byte{"a": npyOf("|u1", []int64{2}, []byte{1, 2}), "b": npyOf("|u1", []int64{1}, []byte{1})}
	for name, c := range map[string]struct {
		uri  string
		d    disk
		want string
	}{
		"pickle":  {"npy:", disk{"/d/a.npy": npyOf("|O", []int64{1}, make([]byte, 8))}, "larder never reads"},
		"complex": {"npy:", disk{"/d/a.npy": npyOf("<c8", []int64{1}, make([]byte, 8))}, "dtype <c8 is not one"},
		"fortran": {"npy:", disk{"/d/a.npy": fortran}, "Fortran order"},
		"cut":     {"npy:", disk{"/d/a.npy": npyOf("<f8", []int64{9, 9}, make([]byte, 100))}, "it is cut"},
		"lengths": {"npz:", disk{"/d/a.npz": npzOf(t, zip.Store, uneven, "a", "b")}, "has 1 rows"},
		"odd":     {"tokens:", disk{"/d/a.bin": make([]byte, 33)}, "no whole ids of uint16"},
		"no idx":  {"tokens:?doc=idx", disk{"/d/a.bin": make([]byte, 32)}, "no .idx of Megatron"},
		"json":    {"jsonl:", disk{"/d/a.jsonl": []byte("{\"a\": 1}\n{\"a\": }\n")}, "line 2, at byte 9"},
		"type": {"jsonl:", disk{"/d/a.jsonl": []byte("{\"a\": 1}\n{\"a\": \"x\"}\n")},
			`line 2, at byte 9: "a" is text, and whole numbers`},
		"missing":  {"jsonl:", disk{"/d/a.jsonl": []byte("{\"a\": 1}\n{}\n")}, `it has no "a"`},
		"null":     {"jsonl:", disk{"/d/a.jsonl": []byte("{\"a\": null}\n")}, "no missing values"},
		"number":   {"jsonl:", disk{"/d/a.jsonl": []byte("{\"a\": " + long + ".5}\n")}, "value out of range"},
		"cells":    {"csv:", disk{"/d/a.csv": []byte("a,b\n1,2\n3\n")}, "row 3, at byte 8: it has 1 cells"},
		"header":   {"csv:", disk{"/d/a.csv": []byte("a,a\n1,2\n")}, "each needs one of its own"},
		"utf8":     {"text:", disk{"/d/a.txt": []byte("ok\n\xff\n")}, "line 2, at byte 3"},
		"unpickle": {"wds:?fields=pkl", disk{"/d/a.tar": tarOf(t, member{"1.pkl", "x"})}, "larder never unpickles"},
		"extension": {"wds:?fields=jpg,NOPE", disk{"/d/a.tar": tarOf(t, member{"1.jpg", "x"}, member{"1.cls", "1"})},
			`names "nope", and the first 4096 members of each file have the extensions "cls", "jpg"`},
		"together": {"wds:?fields=txt,cls", disk{"/d/a.tar": tarOf(t, member{"1.txt", "x"}, member{"2.cls", "1"})},
			`none of the first samples of a file has them all; they have "cls", "txt"`},
		"bomb": {"text:", disk{"/d/a.txt.gz": gzipped(t, make([]byte, maxUnpacked+9))}, "it has more than"},
	} {
		f, a := address(t, c.uri)
		if _, _, _, err := readAll(f, a, c.d, c.d.main()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestWave(t *testing.T) {
	le := binary.LittleEndian
	b := append([]byte("RIFF\x00\x00\x00\x00WAVEfmt "), 16, 0, 0, 0, 1, 0, 2, 0)
	b = le.AppendUint32(b, 16000)
	b = append(b, 0, 0, 0, 0, 4, 0, 16, 0)
	b = append(b, "data\x08\x00\x00\x00"...)
	for _, v := range []int16{-32768, 16384, 0, -1} {
		b = le.AppendUint16(b, uint16(v))
	}
	got, rate, err := wave(b, false)
	if err != nil || !slices.Equal(got.Dims, []int64{2, 2}) || le.Uint64(rate.Data) != 16000 {
		t.Fatal(got.Dims, rate, err)
	}
	for i, want := range []float32{-1, 0, 0.5, -1.0 / 32768} {
		if v := math.Float32frombits(le.Uint32(got.Data[4*i:])); v != want {
			t.Errorf("sample %d is %v, not %v", i, v, want)
		}
	}
	for cut := range len(b) {
		if _, _, err := wave(b[:cut], false); err == nil {
			t.Errorf("a file cut at byte %d of %d was accepted", cut, len(b))
		}
	}
}
