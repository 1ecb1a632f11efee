package source

import (
	"archive/zip"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/source/packed"
)

// oneFile is a dataset whose files are all alike: the uri with the folder, the suffix of a file, and a whole one.
type oneFile struct{ uri, ext, good string }

// oneFiles are a file of each format and packing that lists a folder.
func oneFiles(t *testing.T) map[string]oneFile {
	t.Helper()
	data := func(name string) string {
		b, err := os.ReadFile(filepath.Join("packed", "testdata", name))
		must(t, err)
		return string(b)
	}
	gz := func(s string) string { return string(gzipOf(t, []byte(s))) }
	zst := func(s string) string { return string(zstdOf(t, []byte(s))) }
	tar, lines, rows, text := tarOfTexts(t, 3), "{\"x\": 1}\n{\"x\": 2}\n", "x,y\n1,2\n3,4\n", "one\ntwo\nthree\n"
	mds := mdsFile(t, "a", "bc", "def")
	return map[string]oneFile{
		"tar":        {"wds:%s?fields=txt", ".tar", tar},
		"tar.gz":     {"wds:%s?fields=txt", ".tar.gz", gz(tar)},
		"tgz":        {"wds:%s?fields=txt", ".tgz", gz(tar)},
		"tar.zst":    {"wds:%s?fields=txt", ".tar.zst", zst(tar)},
		"tar images": {"wds:%s", ".tar", shard(t, "1=1", "2=0")},
		"mds":        {"mds:%s?fields=text", ".mds", mds},
		"mds.gz":     {"mds:%s?fields=text", ".mds.gz", gz(mds)},
		"mds.zstd":   {"mds:%s?fields=text", ".mds.zstd", zst(mds)},
		"npy":        {"npy:%s", ".npy", npyFile(9)},
		"npz":        {"npz:%s", ".npz", zipOf(t, zip.Store, "x.npy", npyFile(5))},
		"tokens":     {"tokens:%s?seq_len=3", ".npy", ids("<u2", 40)},
		"tokens bin": {"tokens:%s?seq_len=3", ".bin", "\x01\x00\x02\x00\x03\x00\x04\x00\x05\x00"},
		"jsonl":      {"jsonl:%s", ".jsonl", lines},
		"jsonl.gz":   {"jsonl:%s", ".jsonl.gz", gz(lines)},
		"jsonl.zst":  {"jsonl:%s", ".jsonl.zst", zst(lines)},
		"csv":        {"csv:%s", ".csv", rows},
		"csv.gz":     {"csv:%s", ".csv.gz", gz(rows)},
		"csv.zst":    {"csv:%s", ".csv.zst", zst(rows)},
		"text":       {"text:%s", ".txt", text},
		"text.gz":    {"text:%s", ".txt.gz", gz(text)},
		"text.zst":   {"text:%s", ".txt.zst", zst(text)},
		"fasta":      {"fasta:%s", ".fa", ">a\nACGT\n>b\nMKV\n"},
		"fasta.bgz":  {"fasta:%s", ".fa.bgz", bgzipped(t, ">a\nACGT\n>b\nMKV\n")},
		"lmdb":       {"lmdb:%s/{a,b}.mdb", ".mdb", data("data.mdb")},
		"arrow":      {"hf:%s/{a,b}.arrow", ".arrow", data("rows.arrow")},
		"parquet":    {"parquet:%s", ".parquet", parquetFile(t, 10)},
		"tfrecord":   {"tfrecord:%s", ".tfrecord", data("examples.tfrecord")},
		"tf of gzip": {"tfrecord:%s", ".tfrecord", gz(data("examples.tfrecord"))},
		"beton":      {"beton:%s?fields=label,blob,x,a", ".beton", data("five.beton")},
		"imagefiles": {"imagefiles:%s", ".csv", "path,label\nx/1.jpg,1\n"},
		"list.gz":    {"imagefiles:%s", ".csv.gz", gz("path,label\nx/1.jpg,1\n")},
	}
}

// lay writes a whole file a, and a file b that holds something else, and returns the uri of both.
func (f *oneFile) lay(t *testing.T, root, b string) string {
	t.Helper()
	write(t, root, "x/1.jpg", "image")
	write(t, root, "x/2.jpg", "image")
	write(t, root, "a"+f.ext, f.good)
	write(t, root, "b"+f.ext, b)
	if strings.HasPrefix(f.uri, "mds:") {
		write(t, root, "index.json", mdsIndexOf(f.ext, len(mdsFile(t, "a", "bc", "def"))))
	}
	return fmt.Sprintf(f.uri, root)
}

// lines reports whether a file is read from its first line on and has no head, so that any part of it is a whole one.
func (f *oneFile) lines() bool {
	return slices.Contains([]string{".jsonl", ".csv", ".txt", ".fa", ".bin"}, f.ext)
}

// A file that is cut in its head is damaged, and the error names it: it is not taken for an empty one.
func TestFilesThatAreCutInTheirHeads(t *testing.T) {
	for name, f := range oneFiles(t) { // order-free: each by itself
		if f.lines() {
			continue
		}
		for _, n := range []int{1, 2, 3, 4, 6, 7, 8, 9, 11, 17, len(f.good)/2 + 1, len(f.good) - 1} {
			c, _ := open(t, "")
			_, err := c.Add(t.Context(), "", f.lay(t, t.TempDir(), f.good[:n]))
			if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "b"+f.ext) ||
				strings.Contains(err.Error(), "a"+f.ext) {
				t.Errorf("%s of %d of %d bytes: %v", name, n, len(f.good), err)
			}
		}
	}
}

// pointer lies where Git LFS fetched no file.
const pointer = "version https://git-lfs.github.com/spec/v1\n" +
	"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

// Text that stands for another file is refused in every format, with what to do; also where it is the first file.
func TestTextThatStandsForAFile(t *testing.T) {
	page, xml := "download it again", `<?xml version="1.0" encoding="UTF-8"?>`+"\n<Error><Code>NoSuchKey</Code></Error>"
	read := []string{".jsonl", ".csv", ".txt", ".fa", ".bin"} // formats that would read it as data
	for name, f := range oneFiles(t) {                        // order-free: each by itself
		for text, says := range map[string]string{pointer: "`git lfs pull`", xml: page,
			"<!DOCTYPE html>\n<html lang=\"en\">\n": page, "\r\n<html>\r\n<head><title>404": page,
			"\xef\xbb\xbf<HTML LANG=en>": page} { // order-free: each by itself
			if says == page && !slices.Contains(read, f.ext) {
				says = ""
			}
			for _, odd := range []string{"a", "b"} {
				root := t.TempDir()
				uri := f.lay(t, root, f.good)
				write(t, root, odd+f.ext, text)
				c, _ := open(t, "")
				_, err := c.Add(t.Context(), "", uri)
				if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), odd+f.ext) ||
					!strings.Contains(err.Error(), says) {
					t.Errorf("%s, %.20q as %s: %v", name, text, odd, err)
				}
			}
		}
	}
}

// A folder of images of which none was fetched is refused, in a store as well; a single pointer is one bad image.
func TestImagesThatArePointers(t *testing.T) {
	b, root := newBucket(t), t.TempDir()
	for _, name := range []string{"x/1.jpg", "x/2.jpg", "y/3.png"} {
		write(t, root, name, pointer)
		b.put(t, "set/"+name, pointer)
	}
	stored, err := OpenCatalog(CatalogConfig{Stores: b.stores, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, stored.Close()) })
	local, _ := open(t, "")
	for uri, c := range map[string]*Catalog{"imagefolder:" + root: local,
		"imagefolder:s3://data/set": stored} { // order-free: each by itself
		if _, err := c.Add(t.Context(), "", uri); !errs.Is(err, errs.DatasetUnread) ||
			!strings.Contains(err.Error(), "`git lfs pull`") || !strings.Contains(err.Error(), "x/1.jpg") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	write(t, root, "list.csv", "path\nx/1.jpg\ny/3.png\n")
	b.put(t, "set/list.csv", "path\nx/1.jpg\ny/3.png\n")
	for uri, c := range map[string]*Catalog{"imagefiles:" + root + "/list.csv": local,
		"imagefiles:s3://data/set/list.csv": stored} { // order-free: each by itself
		if _, err := c.Add(t.Context(), "", uri); !errs.Is(err, errs.DatasetUnread) ||
			!strings.Contains(err.Error(), "`git lfs pull`") || !strings.Contains(err.Error(), "x/1.jpg") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	write(t, root, "y/4.png", strings.Repeat("x", 4000))
	d, err := local.Add(t.Context(), "", "imagefolder:"+root)
	must(t, err)
	if _, err := local.Probe(t.Context(), d.Object(0)); !errs.Is(err, errs.SampleBad) ||
		!strings.Contains(err.Error(), "`git lfs pull`") {
		t.Errorf("one of them: %v", err)
	}
}

// Files that other programs leave in a folder are left out in every format, with a note; a uri that names one reads it.
func TestFilesOfOtherPrograms(t *testing.T) {
	for name, f := range oneFiles(t) { // order-free: each by itself
		if strings.Contains(f.uri, "{") || strings.HasPrefix(f.uri, "mds:") { // they list no folder
			continue
		}
		root := t.TempDir()
		uri := f.lay(t, root, f.good)
		if strings.HasPrefix(uri, "imagefiles:") {
			must(t, os.Remove(root+"/b"+f.ext))
		}
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		want, notes := keys(d), d.Notes()
		odd := []string{"_tmp", "._a", ".~lock.a", "~$a", "_temporary/0/a", "_SUCCESS.x/a"}
		for _, o := range odd {
			write(t, root, o+f.ext, f.good)
		}
		for _, o := range []string{"_SUCCESS", ".a" + f.ext + ".crc", "a" + f.ext + ".tmp", "a" + f.ext + "._COPYING_"} {
			write(t, root, o, f.good)
		}
		c, _ = open(t, "")
		d, err = c.Add(t.Context(), "", uri)
		must(t, err)
		if !slices.Equal(keys(d), want) {
			t.Errorf("%s: %q, and %q without them", name, keys(d), want)
		}
		told := d.Notes()
		if len(told) != len(notes)+1 || !strings.Contains(strings.Join(told, "|"), " files of the folder left out by name") ||
			!strings.Contains(strings.Join(told, "|"), "the first ._a"+f.ext) {
			t.Errorf("%s: %q", name, told)
		}
		path, query, has := strings.Cut(f.uri, "?")
		path = fmt.Sprintf(path, root) + "/_tmp" + f.ext
		if has {
			path += "?" + query
		}
		d, err = c.Add(t.Context(), "", path)
		if err != nil || d.Len() == 0 {
			t.Errorf("%s named itself: %v", name, err)
		}
	}
}

// What a folder leaves out is told of the folder as it is now, with a saved index as well, and is the same in a store.
func TestLeftOutFilesFollowTheFolder(t *testing.T) {
	root, index, b := t.TempDir(), t.TempDir(), newBucket(t)
	put := func(name, content string) {
		write(t, root, name, content)
		b.put(t, "set/"+name, content)
	}
	put("a.jsonl", "{\"x\": 1}\n")
	put("_b.jsonl", "{\"x\": 2}\n")
	put("_temporary/c.jsonl", "{\"x\": 3}\n")
	note := "1 file of the folder left out by name (_ or . first, or that of a copy), the first _b.jsonl; a uri that " +
		"names such a file reads it"
	for range 2 { // the index is saved
		c, _ := open(t, index)
		d, err := c.Add(t.Context(), "", "jsonl:"+root)
		must(t, err)
		if n := d.Notes(); d.Len() != 1 || !slices.Equal(n, []string{note}) {
			t.Errorf("%d samples, %q", d.Len(), n)
		}
		must(t, c.Close())
	}
	stored, err := OpenCatalog(CatalogConfig{Stores: b.stores, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, stored.Close()) })
	d, err := stored.Add(t.Context(), "", "jsonl:s3://data/set")
	must(t, err)
	if n := d.Notes(); d.Len() != 1 || !slices.Equal(n, []string{note}) {
		t.Errorf("in a store: %d samples, %q", d.Len(), n)
	}
	must(t, os.Remove(root+"/_b.jsonl"))
	write(t, root, "c.jsonl", "{\"x\": 4}\n")
	c, _ := open(t, index)
	d, err = c.Add(t.Context(), "", "jsonl:"+root)
	must(t, err)
	if n := d.Notes(); d.Len() != 2 || len(n) != 0 {
		t.Errorf("afterwards %d samples, %q", d.Len(), n)
	}
	must(t, os.Remove(root+"/a.jsonl"))
	must(t, os.Rename(root+"/c.jsonl", root+"/_c.jsonl"))
	c, _ = open(t, "")
	_, err = c.Add(t.Context(), "", "jsonl:"+root)
	if err == nil || !strings.Contains(err.Error(), `such as "_c.jsonl"`) {
		t.Errorf("none but such files: %v", err)
	}
}

// A part without samples is nothing, and no damage: the samples are those of the other files, wherever it lies.
func TestEmptyParts(t *testing.T) {
	odd := func(name string) string {
		b, err := os.ReadFile(filepath.Join("packed", "testdata", "odd", name))
		must(t, err)
		return string(b)
	}
	gz, zst := string(gzipOf(t, nil)), string(zstdOf(t, nil))
	zeros := strings.Repeat("\x00", 10240)
	empty := map[string][]string{ // whole files without a sample
		"tar": {zeros, zeros[:1024]}, "tar.gz": {string(gzipOf(t, []byte(zeros)))},
		"tar.zst": {string(zstdOf(t, []byte(zeros)))}, "tar images": {zeros},
		"jsonl": {"", "\n"}, "jsonl.gz": {gz}, "jsonl.zst": {zst, ""}, "csv": {"", "x,y\n"}, "csv.gz": {gz},
		"csv.zst": {zst, ""}, "text": {""}, "text.gz": {gz}, "text.zst": {zst, ""}, "tfrecord": {"", gz},
		"parquet": {odd("none.parquet"), odd("none-null.parquet")}, "arrow": {odd("none.arrow")},
		"npy": {strings.Replace(npyFile(0), "(9,", "(0,", 1)}, "tokens": {ids("<u2", 0)}, "tokens bin": {""},
		"imagefiles": {"", "path,label\n"}, "list.gz": {gz},
	}
	files := oneFiles(t)
	for name, parts := range empty { // order-free: each by itself
		f := files[name]
		for i, part := range parts {
			for _, at := range []string{"a", "b"} {
				root := t.TempDir()
				uri := f.lay(t, root, f.good)
				write(t, root, map[string]string{"a": "b", "b": "a"}[at]+f.ext, f.good)
				write(t, root, at+f.ext, part)
				c, _ := open(t, "")
				d, err := c.Add(t.Context(), "", uri)
				if err != nil {
					t.Errorf("%s, %d, as %s: %v", name, i, at, err)
					continue
				}
				if d.Len() == 0 || len(recordsOf(t, c, d)) != d.Len() {
					t.Errorf("%s, %d, as %s: %d samples", name, i, at, d.Len())
				}
			}
		}
	}
}

// Row groups of Parquet and batches of Arrow without rows are nothing, wherever they lie. pyarrow wrote the files: the
// rows (1, a, an image), (2, b, "2"), (3, c, "3"), once or twice.
func TestEmptyRowGroupsAndBatches(t *testing.T) {
	for name, want := range map[string]string{"groups-first.parquet": "123", "groups-mid.parquet": "123123",
		"groups-last.parquet": "123", "groups-two.parquet": "123", "batches-first.arrow": "123",
		"batches-mid.arrow": "123123"} { // order-free: each by itself
		scheme := map[string]string{".parquet": "parquet:", ".arrow": "hf:"}[filepath.Ext(name)]
		path, err := filepath.Abs(filepath.Join("packed", "testdata", "odd", name))
		must(t, err)
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", scheme+path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		for i := range d.Len() {
			got += fmt.Sprint(fieldOf(t, c, d, sampleID(i), "x")[0])
		}
		if got != want || !packed.IsImage(&d.Schema().Fields[2]) {
			t.Errorf("%s: %s of %v", name, got, d.Schema())
		}
	}
}

// What a file is compressed, encoded or encrypted with is told when it is indexed, with its name, and not of each row.
// A column that is not asked for does not count.
func TestPropertiesOfAFileAreToldAtItsIndex(t *testing.T) {
	for name, says := range map[string]string{
		"parquet:lz4.parquet":                    `column "x" is compressed with the codec LZ4_RAW`,
		"parquet:lz4-text.parquet":               `column "s" is compressed with the codec LZ4_RAW`,
		"parquet:lz4-text.parquet?fields=s,x":    `column "s" is compressed with the codec LZ4_RAW`,
		"parquet:lz4-text.parquet?fields=x":      "",
		"parquet:encrypted.parquet":              "it is encrypted",
		"parquet:encrypted-column.parquet":       "it is encrypted",
		"parquet:encrypted-column.parquet?raw=s": "it is encrypted",
		"parquet:split.parquet":                  "",
		"hf:lz4.arrow":                           "its values are compressed; save it without compression",
	} { // order-free: each by itself
		scheme, file, _ := strings.Cut(name, ":")
		path, err := filepath.Abs(filepath.Join("packed", "testdata", "odd"))
		must(t, err)
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", scheme+":"+path+"/"+file)
		if says == "" {
			if err != nil || len(recordsOf(t, c, d)) != 3 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		file, _, _ = strings.Cut(file, "?")
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// mdsIndexOf is the index of two shards of so many bytes, a and b.
func mdsIndexOf(ext string, size int) string {
	one := func(name string) string {
		packed := ""
		if ext != ".mds" {
			packed = fmt.Sprintf(`,"zip_data":{"basename":%q,"bytes":1}`, name+ext)
		}
		codec := map[string]string{".mds": `null`, ".mds.gz": `"gz"`, ".mds.zstd": `"zstd"`}[ext]
		return fmt.Sprintf(`{"format":"mds","compression":%s,"samples":3,"raw_data":{"basename":%q,"bytes":%d}%s}`,
			codec, name+".mds", size, packed)
	}
	return `{"version":2,"shards":[` + one("a") + "," + one("b") + `]}`
}
