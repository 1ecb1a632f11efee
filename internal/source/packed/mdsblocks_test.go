package packed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"larder/internal/record"
	"larder/internal/spool"
	"larder/internal/xrand"
)

// packers compress as MosaicML's streaming does. The standard library has no writer of bzip2: of that there is a file.
var packers = map[string]func(t testing.TB, b []byte) []byte{
	"zstd": func(t testing.TB, b []byte) []byte {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(b, nil)
	},
	"gz": func(t testing.TB, b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(b); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	},
	"br": func(t testing.TB, b []byte) []byte {
		var out bytes.Buffer
		w := brotli.NewWriter(&out)
		if _, err := w.Write(b); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	},
	"snappy": func(_ testing.TB, b []byte) []byte { return snappy.Encode(nil, b) },
}

// readShard indexes a compressed shard and reads its samples: images, or records of a schema.
func readShard(t testing.TB, codec string, b []byte, raw int64, s *record.Schema) ([]Sample, []string, error) {
	path := "/d/shard.00000.mds." + codec
	f := File{ReaderAt: bytes.NewReader(b), Path: path, Size: int64(len(b)), Schema: s, ID: path,
		Spool: spool.NewMemory(64 << 20)}
	m, a := mds{raw: map[string]int64{path: raw}}, Address{Scheme: "mds", Path: "/d"}
	var all []Sample
	if _, err := m.Scan(t.Context(), a, f, func(x Sample) error {
		all = append(all, x)
		return nil
	}); err != nil {
		return nil, nil, fmt.Errorf("scan: %w", err)
	}
	rows, err := m.Open(t.Context(), a, f)
	if err != nil {
		return nil, nil, fmt.Errorf("open: %w", err)
	}
	var out []string
	for _, x := range all {
		b, err := rows.Record(t.Context(), nil, x)
		if err != nil {
			return nil, nil, fmt.Errorf("sample %d: %w", x.Off, err)
		}
		out = append(out, string(b))
	}
	return all, out, rows.Close()
}

// someShard has n samples, some of them empty texts.
func someShard(n int) (b []byte, images []string) {
	r, rows, labels := xrand.New(7), [][]byte{}, []int64{}
	for i := range n {
		image := make([]byte, 1+r.IntN(300))
		for k := range image {
			image[k] = byte(r.Uint64() & 15)
		}
		rows, labels, images = append(rows, image), append(labels, int64(i%9)), append(images, string(image))
	}
	return mdsOf(rows, labels, "caption"), images
}

// Compressed shards give the images and labels of the shard, and the records that it gives uncompressed.
func TestCompressedShards(t *testing.T) {
	b, images := someShard(40)
	d := disk{"/d/a.mds": b}
	a := Address{Scheme: "mds", Path: "/d", Args: map[string]string{"fields": "label,image,text"}}
	schema, want, _, err := readAll(mds{}, a, d, "/d/a.mds")
	if err != nil {
		t.Fatal(err)
	}
	for codec, pack := range packers { // order-free: each by itself
		packed := pack(t, b)
		all, got, err := readShard(t, codec, packed, int64(len(b)), nil)
		if err != nil || !slices.Equal(got, images) {
			t.Fatalf("%s: %d images: %v", codec, len(got), err)
		}
		for i, x := range all {
			if x.Off != int64(i) || x.Label != int64(i%9) || x.Size != int64(len(images[i])) || x.Key != rowKey(int64(i)) {
				t.Fatalf("%s: sample %d is %+v", codec, i, x)
			}
		}
		path := "/d/shard.00000.mds." + codec
		s, err := mds{}.Schema(t.Context(), a, []string{path}, disk{path: packed}.open)
		if err != nil || !s.Equal(&schema) {
			t.Fatalf("%s: %+v, %v", codec, s, err)
		}
		if _, got, err = readShard(t, codec, packed, int64(len(b)), &s); err != nil || len(got) != len(want) {
			t.Fatalf("%s: %d records: %v", codec, len(got), err)
		}
		for i := range want {
			if got[i] != string(want[i]) {
				t.Fatalf("%s: record %d differs", codec, i)
			}
		}
	}
}

// TestShardsOfBzip2 reads a file of MosaicML's own writer: 30 numbers and texts.
func TestShardsOfBzip2(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "shard.00000.mds.bz2"))
	if err != nil {
		t.Fatal(err)
	}
	path := "/d/shard.00000.mds.bz2"
	s, err := mds{}.Schema(t.Context(), Address{Scheme: "mds"}, []string{path}, disk{path: b}.open)
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := readShard(t, "bz2", b, 0, &s)
	if err != nil || len(got) != 30 {
		t.Fatalf("%d records: %v", len(got), err)
	}
	for i, x := range got {
		want := fmt.Sprintf(`number=[][%d] text=%q`, i-3, strings.Repeat(fmt.Sprint("row ", i), i%4))
		if text := show(t, &s, []byte(x)); text != want {
			t.Errorf("record %d is %s, not %s", i, text, want)
		}
	}
	damageShard(t, "bz2", b, &s, func(i int, read []string) bool { return slices.Equal(read, got) })
}

// damageShard cuts and flips a shard at 200 places each. good says whether what a damaged one gave may be.
func damageShard(t *testing.T, codec string, whole []byte, s *record.Schema, good func(i int, read []string) bool) {
	t.Helper()
	var before, after runtime.MemStats
	refused := 0
	for i := range 400 {
		b := bytes.Clone(whole)
		if i < 200 {
			b = b[:i*len(whole)/200]
		} else {
			b[(i-200)*len(b)/200] ^= 1 << (i % 8)
		}
		runtime.ReadMemStats(&before)
		_, got, err := readShard(t, codec, b, 0, s)
		runtime.ReadMemStats(&after)
		switch {
		case err != nil:
			refused++
		case i < 200:
			t.Errorf("%s, cut to %d of %d bytes: %d samples", codec, len(b), len(whole), len(got))
		case !good(i, got):
			t.Errorf("%s, flip %d gave other samples", codec, i-200)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 256<<20 {
			t.Errorf("%s, damage %d: %d bytes were used", codec, i, used)
		}
	}
	if refused < 200 {
		t.Errorf("%s: %d of 400 were refused", codec, refused)
	}
}

// Damaged shards are errors; where a codec has a checksum, they never give other samples.
func TestDamagedCompressedShards(t *testing.T) {
	b, images := someShard(40)
	for codec, pack := range packers { // order-free: each by itself
		damageShard(t, codec, pack(t, b), nil, func(_ int, read []string) bool {
			return slices.Equal(read, images) || codec == "br" || codec == "snappy"
		})
	}
}

// counts is how much of a file was read.
type counts struct {
	*bytes.Reader
	most int64
}

func (c *counts) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.Reader.ReadAt(p, off)
	c.most = max(c.most, off+int64(n))
	return n, err
}

// What a shard unpacks to is bounded by its own offsets, and these by index.json, before memory is made for it.
func TestBombsInShards(t *testing.T) {
	good, _ := someShard(3)
	zeros := make([]byte, 80<<20)
	le := binary.LittleEndian
	many := append(le.AppendUint32(nil, math.MaxUint32), zeros...)
	table := append(le.AppendUint32(nil, 40<<20), zeros...)
	far := bytes.Clone(good)
	le.PutUint32(far[4+4*3:], math.MaxUint32-1) // where the last sample ends
	far = append(far, zeros...)
	tail := append(bytes.Clone(good), zeros...)
	for codec, pack := range packers { // order-free: each by itself
		for name, x := range map[string]struct {
			b    []byte
			raw  int64
			want string
		}{
			"more than the index says":  {good, int64(len(good)) - 1, " "},
			"less than the index says":  {good, int64(len(good)) + 9, "index.json says"},
			"samples without end":       {many, 0, " "},
			"offsets without end":       {table, 0, " "},
			"a sample of 4 GiB":         {far, 0, " "},
			"gigabytes behind the last": {tail, 0, " "},
		} {
			packed := pack(t, x.b)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := readShard(t, codec, packed, x.raw, nil)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%s: %s: %v", codec, name, err)
			}
			limit := uint64(96 << 20)
			if codec == "snappy" { // as a whole, up to maxUnpacked
				limit = 300 << 20
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > limit {
				t.Errorf("%s: %s: %d bytes were used", codec, name, used)
			}
		}
	}
	packed := packers["gz"](t, tail)
	in := &counts{Reader: bytes.NewReader(packed)}
	u, err := openUnpacked("x.mds.gz", in, int64(len(packed)), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.rest(); err == nil || in.most > 1<<18 && in.most == int64(len(packed)) && len(packed) > 1<<20 {
		t.Errorf("%v after %d of %d bytes", err, in.most, len(packed))
	}
	long := binary.AppendUvarint(nil, 1<<31)
	if _, _, err := readShard(t, "snappy", append(long, 1, 2, 3), 0, nil); err == nil ||
		!strings.Contains(err.Error(), "2147483648 bytes") {
		t.Errorf("a block of snappy that says 2 GiB: %v", err)
	}
}

// index.json names compressed shards; one that is there unpacked is read so.
func TestIndexOfCompressedShards(t *testing.T) {
	const shard = `{"version":2,"shards":[{"format":"mds","compression":%q,"raw_data":{"basename":"shard.00000.mds",` +
		`"bytes":%d},"zip_data":%s}]}`
	file := func(name string) string { return fmt.Sprintf(`{"basename":%q,"bytes":7}`, name) }
	list := func(index string, there ...string) ([]string, map[string]int64, error) {
		dir := t.TempDir()
		for _, name := range append(there, "index.json") {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(index), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, files, beside, err := Prepare(mds{}, Address{Path: dir})
		if err != nil {
			return nil, nil, err
		}
		if len(beside) != 1 || filepath.Base(beside[0]) != "index.json" {
			t.Errorf("beside %q", beside)
		}
		return []string{filepath.Base(files[0])}, f.(mds).raw, nil
	}
	for _, codec := range mdsPackings {
		name := "shard.00000.mds." + codec
		files, raw, err := list(fmt.Sprintf(shard, codec+":3", 900, file(name)), name)
		if err != nil || files[0] != name || len(raw) != 1 {
			t.Errorf("%s: %q, %v, %v", codec, files, raw, err)
		}
		files, raw, err = list(fmt.Sprintf(shard, codec, 900, file(name)), name, "shard.00000.mds")
		if err != nil || files[0] != "shard.00000.mds" || len(raw) != 0 {
			t.Errorf("%s, unpacked: %q, %v, %v", codec, files, raw, err)
		}
	}
	for want, index := range map[string]string{ // order-free: each by itself
		`compressed with "lz4:1", and larder unpacks zstd, gz`: fmt.Sprintf(shard, "lz4:1", 9, file("shard.00000.mds.lz4")),
		"names no file for that":                               fmt.Sprintf(shard, "zstd", 9, "null"),
		"not *.mds.zstd":                                       fmt.Sprintf(shard, "zstd", 9, file("shard.00000.mds.gz")),
		"no file of the folder":                                fmt.Sprintf(shard, "zstd", 9, file("../x.mds.zstd")),
		"unpacks to -1 bytes":                                  fmt.Sprintf(shard, "zstd", -1, file("a.mds.zstd")),
		"unpacks to 5000000000 bytes":                          fmt.Sprintf(shard, "zstd", 5_000_000_000, file("a.mds.zstd")),
	} {
		if _, _, err := list(index); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// The index that merge_index of streaming writes names shards in folders below it; each folder is looked into for those
// that are there unpacked.
func TestAMergedIndex(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shard := func(raw, zip string) string {
		return fmt.Sprintf(`{"column_encodings":["str"],"column_names":["x"],"column_sizes":[null],"compression":"zstd:3",`+
			`"format":"mds","hashes":[],"raw_data":{"basename":%q,"bytes":90,"hashes":{}},"samples":3,"size_limit":67108864,`+
			`"version":2,"zip_data":{"basename":%q,"bytes":50,"hashes":{}}}`, raw, zip)
	}
	put("index.json", `{"shards":[`+shard("0/shard.00000.mds", "0/shard.00000.mds.zstd")+","+
		shard("b/1/shard.00000.mds", "b/1/shard.00000.mds.zstd")+`],"version":2}`)
	put("0/shard.00000.mds.zstd", "")
	put("b/1/shard.00000.mds", "")
	_, files, _, err := Prepare(mds{}, Address{Path: dir})
	want := []string{dir + "/0/shard.00000.mds.zstd", dir + "/b/1/shard.00000.mds"}
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("%q, %v", files, err)
	}
	for _, name := range []string{"../x.mds", "/etc/x.mds", "0/../../x.mds", "", ".", "0//x.mds", "x\x00.mds"} {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		put("index.json", `{"shards":[{"format":"mds","compression":null,"samples":3,"raw_data":{"basename":`+
			string(quoted)+`,"bytes":90}}],"version":2}`)
		if _, _, _, err := Prepare(mds{}, Address{Path: dir}); err == nil ||
			!strings.Contains(err.Error(), "no file of the folder or below it") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// FuzzCompressedShards reads anything as a shard of each codec: an error, or images.
func FuzzCompressedShards(f *testing.F) {
	b, _ := someShard(3)
	for i, codec := range mdsPackings {
		if pack := packers[codec]; pack != nil {
			f.Add(uint8(i), pack(f, b))
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, b []byte) {
		codec := mdsPackings[int(i)%len(mdsPackings)]
		all, images, err := readShard(t, codec, b, 0, nil)
		for k := range images {
			if err == nil && int64(len(images[k])) != all[k].Size {
				t.Fatalf("image %d has %d bytes of %d", k, len(images[k]), all[k].Size)
			}
		}
	})
}
