package source

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"larder/internal/ident"
	"larder/internal/record"
)

// asEarlier writes the saved index of a dataset as one of an earlier version, with what that larder found.
func asEarlier(t *testing.T, index, uri string, version uint32, change func(s *snapshot)) {
	t.Helper()
	found, err := filepath.Glob(index + "/*" + indexSuffix)
	must(t, err)
	for _, path := range found {
		b, err := os.ReadFile(path)
		must(t, err)
		s, meta, err := decodeIndex(b)
		must(t, err)
		if s.uri != uri {
			continue
		}
		at, err := parseURI(uri)
		must(t, err)
		was := s.mark
		change(s)
		s.mark = recordMark(at.address, &s.schema, nil)
		for i := range meta {
			if !s.listed() {
				meta[i].dev ^= was ^ s.mark
			}
		}
		s.seal(meta)
		b = encodeIndex(s, meta)
		binary.LittleEndian.PutUint32(b[8:], version)
		binary.LittleEndian.PutUint64(b[len(b)-8:], xxhash.Sum64(b[:len(b)-8]))
		must(t, os.WriteFile(path, b, 0o600))
		return
	}
	t.Fatalf("%d indexes, none of %s", len(found), uri)
}

// asBefore writes the saved index of a dataset as an earlier larder did, with bytes in the place of all its fields but
// those that stay.
func asBefore(t *testing.T, index, uri string, stay ...string) {
	t.Helper()
	asEarlier(t, index, uri, bytesVersion, func(s *snapshot) {
		s.schema.Fields = slices.DeleteFunc(s.schema.Fields, func(f record.Field) bool {
			return strings.HasSuffix(f.Name, "_rate")
		})
		for i := range s.schema.Fields {
			if f := &s.schema.Fields[i]; !slices.Contains(stay, f.Name) {
				*f = record.Field{Name: f.Name, Kind: record.Bytes, DType: record.Uint8, Shape: []int64{record.Ragged}}
			}
		}
	})
}

// What was float64 and is a whole number now is one when the dataset is opened; an index that has no such field is used
// as it is.
func TestAnIndexOfFloats(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	write(t, root, "a.jsonl", `{"x": 18446744073709551615}`+"\n"+`{"x": 9007199254740993}`+"\n")
	write(t, root, "b.jsonl", `{"x": 1}`+"\n")
	large, small := "jsonl:"+root+"/a.jsonl", "jsonl:"+root+"/b.jsonl"
	c, _ := open(t, index)
	for _, uri := range []string{large, small} {
		_, err := c.Add(t.Context(), "", uri)
		must(t, err)
	}
	asEarlier(t, index, large, typesVersion, func(s *snapshot) { s.schema.Fields[0].DType = record.Float64 })
	asEarlier(t, index, small, typesVersion, func(*snapshot) {})
	for _, indexed := range []int{1, 0} {
		c, ev := open(t, index)
		_, err := c.Add(t.Context(), "", small)
		must(t, err)
		d, err := c.Add(t.Context(), "", large)
		must(t, err)
		if got := fieldOf(t, c, d, 1, "x"); ev.count("indexed") != indexed ||
			binary.LittleEndian.Uint64(got) != 9007199254740993 || d.Schema().Fields[0].DType != record.Uint64 {
			t.Errorf("%v: % x of %v", ev.n, got, d.Schema())
		}
	}
}

// tarOfMembers is a tar of names and contents by turns.
func tarOfMembers(t *testing.T, parts ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for m := range slices.Chunk(parts, 2) {
		must(t, w.WriteHeader(&tar.Header{Name: m[0], Size: int64(len(m[1])), Mode: 0o644}))
		_, err := w.Write([]byte(m[1]))
		must(t, err)
	}
	must(t, w.Close())
	return b.String()
}

// wavOf is a .wav of two samples.
func wavOf(value byte) string {
	return "RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x00\x00\x00\x00\x01\x00\x08\x00" +
		"data\x02\x00\x00\x00" + string([]byte{value, 128})
}

// TestAnIndexOfAnEarlierLarder: what was bytes and is sound now is sound when the dataset is opened, without --force,
// and the samples keep their ids. An index that has no such field is used as it is.
func TestAnIndexOfAnEarlierLarder(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	write(t, root, "a.tar", tarOfMembers(t, "y.wav", wavOf(1), "z.wav", wavOf(2)))
	write(t, root, "b/t.tar", tarOfMembers(t, "1.txt", "some", "2.txt", "text"))
	uri, texts := "wds:"+root, "wds:"+root+"/b"
	c, _ := open(t, index)
	_, err := c.Add(t.Context(), "", texts)
	must(t, err)
	_, err = c.Add(t.Context(), "", uri)
	must(t, err)
	write(t, root, "a.tar", tarOfMembers(t, "x.wav", wavOf(3), "y.wav", wavOf(1), "z.wav", wavOf(2)))
	d, err := c.Add(t.Context(), "", uri) // the id of x is 2, although it lies first
	must(t, err)
	want := []string{"a.tar/y", "a.tar/z", "a.tar/x"}
	if !slices.Equal(keys(d), want) || fieldsText(d.Schema()) != "wav, wav_rate" {
		t.Fatalf("%q of %s", keys(d), fieldsText(d.Schema()))
	}
	asBefore(t, index, uri)
	asBefore(t, index, texts, "txt")

	c, ev := open(t, index)
	d, err = c.Add(t.Context(), "", uri)
	must(t, err)
	if ev.count("indexed") != 1 || !slices.Equal(keys(d), want) || fieldsText(d.Schema()) != "wav, wav_rate" {
		t.Errorf("%v: %q of %s", ev.n, keys(d), fieldsText(d.Schema()))
	}
	for i, value := range []float32{1, 2, 3} {
		got := fieldOf(t, c, d, sampleID(i), "wav")
		if len(got) != 8 || math.Float32frombits(binary.LittleEndian.Uint32(got)) != (value-128)/128 {
			t.Errorf("sample %d is % x", i, got)
		}
	}
	e, err := c.Add(t.Context(), "", texts)
	must(t, err)
	if ev.count("indexed") != 1 || string(fieldOf(t, c, e, 0, "txt")) != "some" {
		t.Errorf("%v: an index without bytes was not used", ev.n)
	}
	c, ev = open(t, index)
	_, err = c.Add(t.Context(), "", uri)
	must(t, err)
	if ev.count("indexed") != 0 {
		t.Errorf("%v: the index that was written then was not used", ev.n)
	}
}

// An earlier larder read pointers of Git LFS as lines and tokens, and took compressed lines that are cut for none. Such
// files are scanned again when the dataset is opened; others are not.
func TestFilesThatAnEarlierLarderMisread(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("4d", 32) + "\nsize 12345\n"
	lines := strings.Repeat("a line\n", len(pointer))[:len(pointer)]
	long := strings.Repeat(strings.Repeat("a line ", 36)+"\n", 1<<13) // larger than a page
	none, some := string(gzipOf(t, nil)), string(gzipOf(t, []byte("{\"x\": 1}\n{\"x\": 2}\n")))
	cut := "\x1f\x8b\x08\x08" + strings.Repeat("n", len(none)-4) // in the name of the file
	for name, x := range map[string]struct {
		uri, file, was, is, says string
		indexed                  int
	}{
		"lines":            {"text:%s", "b.txt", lines, pointer, "git lfs pull", 0},
		"tokens":           {"tokens:%s?seq_len=30", "b.bin", lines, pointer, "git lfs pull", 0},
		"cut":              {"jsonl:%s", "b.jsonl.gz", none, cut, "it is cut", 0},
		"long lines":       {"text:%s", "b.txt", long, long, "", 0},
		"short lines":      {"text:%s", "b.txt", lines, lines, "", 1},
		"compressed lines": {"jsonl:%s", "b.jsonl.gz", some, some, "", 0},
		"long tokens":      {"tokens:%s?seq_len=30", "b.bin", long, long, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			root, index := t.TempDir(), t.TempDir()
			a := long
			if strings.HasPrefix(x.uri, "jsonl") {
				a = some
			}
			write(t, root, "a"+x.file[1:], a)
			write(t, root, x.file, x.was)
			uri := fmt.Sprintf(x.uri, root)
			c, _ := open(t, index)
			d, err := c.Add(t.Context(), "", uri)
			must(t, err)
			asEarlier(t, index, d.URI(), typesVersion, func(*snapshot) {})
			st, err := os.Stat(filepath.Join(root, x.file))
			must(t, err)
			write(t, root, x.file, x.is)
			must(t, os.Chtimes(filepath.Join(root, x.file), st.ModTime(), st.ModTime()))
			c, ev := open(t, index)
			again, err := c.Add(t.Context(), "", uri)
			if x.says != "" {
				if err == nil || !strings.Contains(err.Error(), x.says) || !strings.Contains(err.Error(), x.file) {
					t.Errorf("%v", err)
				}
				return
			}
			must(t, err)
			if ev.count("indexed") != x.indexed || !slices.Equal(keys(again), keys(d)) {
				t.Errorf("%v: %d samples, and %d before", ev.n, again.Len(), d.Len())
			}
		})
	}
}

// A bucket stands for what was indexed until a read finds a change; files that a folder does not stand for any more are
// left out without one.
func TestLeftOutFilesOfAnEarlierLarder(t *testing.T) {
	index, b := t.TempDir(), newBucket(t)
	b.put(t, "set/_b.jsonl", "{\"x\": 2}\n")
	b.put(t, "set/a.jsonl", "{\"x\": 1}\n")
	const uri = "jsonl:s3://data/set"
	for was, want := range map[string]string{"_b.jsonl": "a.jsonl", "a.jsonl": "a.jsonl"} { // order-free
		_, err := b.open(t, index).Add(t.Context(), "", uri)
		must(t, err)
		asEarlier(t, index, uri, typesVersion, func(s *snapshot) { s.dirs[0].rel = was })
		d, err := b.open(t, index).Add(t.Context(), "", uri)
		must(t, err)
		if s := d.snap.Load(); s.live != 1 || !s.dirs[len(s.dirs)-1].live || s.dirs[len(s.dirs)-1].rel != want {
			t.Errorf("%s: %d samples of %+v", was, s.live, s.dirs)
		}
	}
}

// TestValuesOfAnIndexOfAnEarlierLarder: what an earlier larder took for words, or for floats, is found again when the
// dataset is opened; an index that says what this larder finds is used as it is.
func TestValuesOfAnIndexOfAnEarlierLarder(t *testing.T) {
	words := func(s *snapshot) { s.classes, s.labels = []string{"10", "7", "\ufeff3"}, []int32{1, 0, 1, 2} }
	floats := func(s *snapshot) { s.schema.Fields[0].DType = record.Float64 }
	nothing := func(*snapshot) {}
	two := map[string]string{"a.parquet": parquetOf(t, optionals(1.)...), "b.parquet": parquetOf(t, optionals(2.)...)}
	for name, x := range map[string]struct {
		labelledSet

		version uint32
		was     func(s *snapshot)
		indexed int
		labels  []int64
	}{
		"wds": {labelledSet{"wds:%s", map[string]string{"a.tar": shard(t, "1=7", "2=10", "3=7", "4=\ufeff3")}},
			wordsVersion, words, 1, []int64{7, 10, 7, 3}},
		"list": {labelledSet{"imagefiles:%s/a.csv", imageList("a.csv",
			"path,label\n1.jpg,7\n2.jpg,10\n3.jpg,7\n4.jpg,3.0\n")}, listedWordVersion, words, 1, []int64{7, 10, 7, 3}},
		"words": {labelledSet{"wds:%s", map[string]string{"a.tar": shard(t, "1=dog", "2=cat", "3=")}}, wordsVersion, nothing,
			0, []int64{1, 0, -1}},
		"numbers": {labelledSet{"wds:%s", map[string]string{"a.tar": shard(t, "1=7", "2=10")}}, wordsVersion, nothing, 0,
			[]int64{7, 10}},
		"csv": {labelledSet{"csv:%s", map[string]string{"a.csv": "id\n18446744073709551615\n"}}, typesVersion, floats, 1,
			[]int64{-1}},
		"csv of labels": {labelledSet{"csv:%s", map[string]string{"a.csv": "label\n3.0\n"}}, typesVersion,
			func(s *snapshot) { s.labels[0] = -1 }, 1, []int64{3}},
		"lines": {labelledSet{"text:%s", map[string]string{"a.txt": "one\n"}}, typesVersion, nothing, 0, []int64{-1}},
		"text of JSON": {labelledSet{"jsonl:%s", map[string]string{"a.jsonl": "{\"x\": \"a\"}\n{\"x\": \"b\"}\n"}},
			typesVersion, nothing, 0, []int64{-1, -1}},
		"packed text of JSON": {labelledSet{"jsonl:%s", map[string]string{"a.jsonl.gz": string(gzipOf(t,
			[]byte("{\"x\": \"a\"}\n{\"x\": \"b\"}\n")))}}, typesVersion, nothing, 1, []int64{-1, -1}},
		"two parquet": {labelledSet{"parquet:%s", two}, typesVersion, nothing, 1, []int64{1, -1, 2, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			root, index := t.TempDir(), t.TempDir()
			for file, text := range x.files { // order-free
				write(t, root, file, text)
			}
			uri := fmt.Sprintf(x.uri, root)
			c, _ := open(t, index)
			d, err := c.Add(t.Context(), "", uri)
			must(t, err)
			asEarlier(t, index, d.URI(), x.version, x.was)
			for i, want := range []int{x.indexed, 0} {
				c, ev := open(t, index)
				d, err := c.Add(t.Context(), "", uri)
				must(t, err)
				var got []int64
				for s := range ident.SampleID(d.Len()) {
					if d.Live(s) {
						got = append(got, d.Label(s))
					}
				}
				slices.Sort(got)
				slices.Sort(x.labels)
				if ev.count("indexed") != want || !slices.Equal(got, x.labels) {
					t.Errorf("start %d: %v, labels %v; want %d walks, labels %v", i, ev.n, got, want, x.labels)
				}
				if name == "csv" && valueText(t, c, d, 0, "id") != "uint64 18446744073709551615" {
					t.Errorf("start %d: id is %s", i, valueText(t, c, d, 0, "id"))
				}
			}
		})
	}
}
