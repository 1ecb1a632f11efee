package pack

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source"
	"larder/internal/xrand"
)

// lines writes n objects, and returns the dataset of them.
func lines(t testing.TB, n int) string {
	t.Helper()
	r, text := xrand.New(uint64(n)), []byte{}
	for i := range n {
		v := make([]float64, 1+r.IntN(9))
		for k := range v {
			v[k] = float64(r.IntN(1000)) / 8
		}
		b, err := json.Marshal(map[string]any{"id": i - 3, "x": float64(i) / 4, "text": strings.Repeat("é,", r.IntN(200)),
			"v": v, "m": [][]int{{i, 2}, {3, r.IntN(9)}}, "meta": map[string]int{"a": i}, "label": i % 5})
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, b...), '\n')
	}
	path := filepath.Join(t.TempDir(), "a.jsonl")
	put(t, path, text)
	return "jsonl:" + path
}

// fieldsOf is every sample of a dataset of records, each field by its name.
func fieldsOf(t testing.TB, uri string) (out []map[string]string) {
	t.Helper()
	c, err := source.OpenCatalog(source.CatalogConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Open(t.Context(), uri)
	if err != nil {
		t.Fatal(err)
	}
	for s := range ident.SampleID(d.Len()) {
		b, err := c.Read(t.Context(), d.Object(s), nil)
		if err != nil {
			t.Fatal(err)
		}
		v, err := record.Open(b)
		if err != nil {
			t.Fatal(err)
		}
		row := map[string]string{}
		for i, x := range v.All {
			name := strings.TrimSuffix(strings.TrimSuffix(d.Schema().Fields[i].Name, ".npy"), ".txt")
			row[name] = fmt.Sprintf("%s %s %v %x", x.Kind, x.DType, x.Dims(), x.Data)
		}
		out = append(out, row)
	}
	return out
}

// TestPacksOfRecords: every field of every record stays, in both formats, in any order, and packing again is a no-op.
func TestPacksOfRecords(t *testing.T) {
	uri := lines(t, 120)
	want := fieldsOf(t, uri)
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: uri, To: to(t, format), disk: disk{sync: unsynced}, ShardSize: 16 << 10, Verify: true}
		r := must(t, cfg)
		if got := fieldsOf(t, r.URI); !reflect.DeepEqual(got, want) || r.Verified != 120 || r.Shards < 2 {
			t.Errorf("%s: %d records: %+v", format, len(got), r)
		}
		before := tree(t, cfg.To.Dir)
		if again := must(t, cfg); again.Earlier != 120 || !reflect.DeepEqual(before, tree(t, cfg.To.Dir)) {
			t.Errorf("%s: packing again was no no-op: %+v", format, again)
		}
		cfg.To, cfg.Subset, cfg.Shuffle, cfg.URI = to(t, format), "label < 2", 5, r.URI
		if format == WDS {
			cfg.Subset = "label.npy < 2"
		}
		if part := must(t, cfg); part.Samples != 48 || part.Verified != 48 {
			t.Errorf("%s: a subset: %+v", format, part)
		}
	}
}

// continued makes a pack, then others that end wherever they may and are continued: they have the same bytes. It
// returns where the last one lies.
func continued(t *testing.T, cfg Config, times int) Target {
	t.Helper()
	format := cfg.To.Format
	must(t, cfg)
	want := tree(t, cfg.To.Dir)
	for n := range times {
		cfg.To = to(t, format)
		for ended, room := 0, 5_000*n; ; ended, room = ended+1, room+9_000 {
			cfg.disk.create, cfg.Workers = failAfter(room, syscall.ENOSPC), 1+ended%4
			_, err := Run(t.Context(), cfg)
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.ENOSPC) || ended > 100 {
				t.Fatalf("%s: %v", format, err)
			}
			damageWork(t, cfg.To.Dir, uint64(n+ended))
		}
		if !reflect.DeepEqual(tree(t, cfg.To.Dir), want) {
			t.Fatalf("%s: %d: the pack differs", format, n)
		}
	}
	return cfg.To
}

// TestInterruptedRunsOfRecords: a run that ends wherever it may is continued, to the very bytes.
func TestInterruptedRunsOfRecords(t *testing.T) {
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: lines(t, 90), To: to(t, format), disk: disk{sync: unsynced}, ShardSize: 16 << 10, Shuffle: 9}
		continued(t, cfg, 4)
	}
}

// TestPacksOfRecordsInStores: the bucket has the bytes of the folder.
func TestPacksOfRecordsInStores(t *testing.T) {
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: lines(t, 90), To: to(t, format), disk: disk{sync: unsynced}, ShardSize: 16 << 10}
		must(t, cfg)
		want := tree(t, cfg.To.Dir)
		b := newBucket(t)
		cfg.To, cfg.Stores, cfg.Verify = Target{format, "s3://data/a/b"}, b.stores(t, nil), true
		if r := must(t, cfg); r.Verified != 90 || !reflect.DeepEqual(b.objects(t, "a/b"), want) {
			t.Errorf("%s: %+v", format, r)
		}
	}
}

// TestDamagedPacksOfRecords: --verify names the shard that is not what was packed.
func TestDamagedPacksOfRecords(t *testing.T) {
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: lines(t, 60), To: to(t, format), disk: disk{sync: unsynced}, ShardSize: 16 << 10}
		must(t, cfg)
		cfg.Verify = true
		path := filepath.Join(cfg.To.Dir, shardName(format, 1))
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)*2/3] ^= 1
		put(t, path, b)
		r, err := Run(t.Context(), cfg)
		if err != nil || len(r.Bad) != 1 || r.Bad[0].Shard != shardName(format, 1) {
			t.Errorf("%s: %+v, %v", format, r, err)
		}
	}
}

// TestRecordsThatCannotBePacked: what no value can be is refused before anything is written; what one value cannot be
// costs that sample.
func TestRecordsThatCannotBePacked(t *testing.T) {
	for _, x := range []struct{ text, format, want string }{
		{`{"ok": true}`, MDS, `field "ok" is of bool`},
		{`{"a/b": 1}`, WDS, `field "a/b" has '/'`},
		{`{"a;b": 1}`, WDS, `field "a;b" has one of`},
		{`{"b": 1, "B": 2}`, WDS, "would be named"},
		{`{"é": 1}`, WDS, "has 'é' in its name"},
	} {
		path := filepath.Join(t.TempDir(), "a.jsonl")
		put(t, path, []byte(x.text+"\n"))
		cfg := Config{URI: "jsonl:" + path, To: to(t, x.format), disk: disk{sync: unsynced}}
		_, err := Run(t.Context(), cfg)
		if !errs.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.text, err)
		}
		if _, err := os.Stat(cfg.To.Dir); err == nil {
			t.Errorf("%s: something was written", x.text)
		}
	}
	path := filepath.Join(t.TempDir(), "a.jsonl")
	put(t, path, []byte(`{"v": [1]}`+"\n"+`{"v": []}`+"\n"+`{"v": [1, 2]}`+"\n"))
	cfg := Config{URI: "jsonl:" + path, To: to(t, MDS), disk: disk{sync: unsynced}, Verify: true}
	if _, err := Run(t.Context(), cfg); !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), `field "v"`) {
		t.Errorf("an array without values: %v", err)
	}
	cfg.SkipBad = true
	if r := must(t, cfg); r.Samples != 2 || len(r.Skipped) != 1 ||
		!strings.Contains(r.Skipped[0].Reason, "pack into wds") {
		t.Errorf("%+v", r)
	}
	cfg.To = to(t, WDS)
	if r := must(t, cfg); r.Samples != 3 || r.Verified != 3 {
		t.Errorf("%+v", r)
	}
}

// TestPacksBesideTheirFile packs into a folder below that of the source. A uri that names files does not grow by it;
// one that names their folder might.
func TestPacksBesideTheirFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.jsonl")
	put(t, path, []byte("{\"a\": 1}\n{\"a\": 2}\n"))
	for _, name := range []string{"0.jsonl", "1.jsonl"} {
		put(t, filepath.Join(dir, name), []byte("{\"a\": 1}\n"))
	}
	below := Target{MDS, filepath.Join(dir, "packed")}
	for _, uri := range []string{"jsonl:" + dir, "jsonl:" + dir + "/{0..1}.jsonl::" + path} {
		_, err := Run(t.Context(), Config{URI: uri, To: below, disk: disk{sync: unsynced}})
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "it lies in the source") {
			t.Errorf("%s: got %v", uri, err)
		}
		if _, err := os.Stat(below.Dir); err == nil {
			t.Errorf("%s: a refused pack left its folder", uri)
		}
	}
	if got := must(t, Config{URI: "jsonl:" + path, To: below, disk: disk{sync: unsynced}}); got.Samples != 2 {
		t.Errorf("packed %d samples, not 2", got.Samples)
	}
}
