package source

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source/subset"
)

// selects checks what expressions select, by the numbers of the samples.
func selects(t *testing.T, d *Dataset, n int, want map[string]func(i int) bool) {
	t.Helper()
	for expr, f := range want { // order-free: each by itself
		var ids []ident.SampleID
		for i := range n {
			if f(i) {
				ids = append(ids, ident.SampleID(i))
			}
		}
		if got, err := d.SelectContext(t.Context(), expr); err != nil || !slices.Equal(got, ids) {
			t.Errorf("%s: %s selects %v, %v; want %v", d.URI(), expr, got, err, ids)
		}
	}
}

func columnFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), columnSuffix) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files
}

const samplesOfTables = 83

// table writes the same table as CSV, as JSON lines, and as two files of a list.
func writeTable(t *testing.T, root string) {
	t.Helper()
	var csv, json, list strings.Builder
	csv.WriteString("name,width,ratio,ok,split\n")
	list.WriteString("path,label,width,split,ratio\n")
	for i := range samplesOfTables {
		split, ratio := []string{"train", "val", "te st"}[i%3], fmt.Sprint(float64(i)/4)
		if i%5 == 0 {
			ratio = ""
		}
		fmt.Fprintf(&csv, "n%d,%d,%s,%v,%s\n", i, i*10, ratio, i%2 == 0, split)
		write(t, root, fmt.Sprintf("img/%d.jpg", i), fmt.Sprint("x", i))
		fmt.Fprintf(&list, "img/%d.jpg,c%d,%d,%s,%s\n", i, i%4, i*10, split, ratio)
		nested := fmt.Sprintf(`{"h": %d, "t": "u%d", "deep": {"er": %v}}`, i, i%2, i%7 == 0)
		if i%4 == 0 {
			nested = `{"t": null}`
		}
		fmt.Fprintf(&json, `{"width": %d, "meta": %s, "ok": %v, "x": [%d]}`+"\n", i*10, nested, i%2 == 0, i)
	}
	write(t, root, "a.csv", csv.String())
	write(t, root, "a.jsonl", json.String())
	write(t, root, "a.jsonl.gz", string(gzipOf(t, []byte(json.String()))))
	write(t, root, "list.csv", list.String())
}

func TestPropertiesOfTables(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	writeTable(t, root)
	table := map[string]func(i int) bool{
		"width >= 400":                     func(i int) bool { return i >= 40 },
		"split == 'te st' and width < 300": func(i int) bool { return i%3 == 2 && i < 30 },
		"ratio > 5.5":                      func(i int) bool { return i%5 != 0 && i > 22 },
		"ratio != 1":                       func(i int) bool { return i != 4 },
		"split in ('val', 'zz') or width % 3 == 2": func(i int) bool { return i%3 == 1 || i*10%3 == 2 },
	}
	lines := map[string]func(i int) bool{
		"width >= 400 and ok == true": func(i int) bool { return i >= 40 && i%2 == 0 },
		"meta.h < 9":                  func(i int) bool { return i < 9 && i%4 != 0 },
		"meta.t == 'u1'":              func(i int) bool { return i%2 == 1 },
		"meta.deep.er == true":        func(i int) bool { return i%7 == 0 && i%4 != 0 },
	}
	for range 2 { // the second time columns are saved
		c, _ := open(t, index)
		for uri, want := range map[string]map[string]func(int) bool{"csv:" + root + "/a.csv": table,
			"csv:" + root + "/a.csv?fields=name": table, "imagefiles:" + root + "/list.csv": table,
			"jsonl:" + root + "/a.jsonl": lines, "jsonl:" + root + "/a.jsonl.gz?fields=x": lines} {
			d, err := c.Add(t.Context(), "", uri)
			must(t, err)
			selects(t, d, samplesOfTables, want)
		}
	}
	if got := len(columnFiles(t, index)); got != 3*3+2*5 {
		t.Errorf("%d columns are saved", got)
	}
	c, _ := open(t, index)
	d, err := c.Add(t.Context(), "", "csv:"+root+"/a.csv")
	must(t, err)
	_, _, err = c.Remove(t.Context(), d)
	must(t, err)
	if got := len(columnFiles(t, index)); got != 2*3+2*5 {
		t.Errorf("%d columns are saved after one dataset was removed", got)
	}
}

// A saved column is used again without a look at the files, and never for another version of the dataset; a damaged one
// is read anew.
func TestSavedColumns(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	writeTable(t, root)
	uri := "csv:" + root + "/a.csv"
	c, _ := open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	want := map[string]func(int) bool{"width >= 400": func(i int) bool { return i >= 40 }}
	selects(t, d, samplesOfTables, want)
	saved := columnFiles(t, index)
	if len(saved) != 1 {
		t.Fatalf("%q", saved)
	}
	content, err := os.ReadFile(saved[0])
	must(t, err)
	for i := range 200 {
		damaged := bytes.Clone(content)
		if i%2 == 0 {
			damaged = damaged[:i*len(damaged)/200]
		} else {
			damaged[i*len(damaged)/200] ^= 1 << (i % 8)
		}
		if _, err := decodeColumn(damaged, uri, "width", d.Fingerprint(), d.Len()); err == nil {
			t.Errorf("damage %d was not found", i)
		}
	}
	earlier := bytes.Clone(content)
	binary.LittleEndian.PutUint32(earlier[8:], columnVersion-1)
	earlier = binary.LittleEndian.AppendUint64(earlier[:len(earlier)-8], xxhash.Sum64(earlier[:len(earlier)-8]))
	if _, err := decodeColumn(earlier, uri, "width", d.Fingerprint(), d.Len()); err == nil {
		t.Error("a column of an earlier larder, whose numbers may be rounded, is used")
	}
	must(t, os.WriteFile(saved[0], content[:100], 0o600))
	again, _ := open(t, index)
	d, err = again.Add(t.Context(), "", uri)
	must(t, err)
	selects(t, d, samplesOfTables, want)

	text, err := os.ReadFile(root + "/a.csv")
	must(t, err)
	write(t, root, "a.csv", string(text)+"more,5000,1,true,train\n")
	d, err = again.Add(t.Context(), "", uri)
	must(t, err)
	selects(t, d, samplesOfTables+1, want)

	kept, err := again.property(t.Context(), d.rs, d.snap.Load(), "width")
	must(t, err)
	write(t, root, "a.csv", "gone") // the column is known
	third, _ := open(t, index)
	if col := third.loadColumn(d.rs, d.snap.Load(), "width"); col == nil || !slices.Equal(col.Ints, kept.Ints) {
		t.Errorf("saved %v, kept %v", col, kept)
	}
	if _, err := again.property(t.Context(), d.rs, d.snap.Load(), "ratio"); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), "changed since it was indexed") {
		t.Errorf("of a file that changed: %v", err)
	}
}

// Images of tars have properties, too: .cls, .txt and the keys of .json, compressed or not, in a folder or a bucket.
func TestPropertiesOfTars(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range 40 {
		add := func(ext, body string) {
			must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%03d.%s", i, ext), Size: int64(len(body)), Mode: 0o644}))
			_, err := io.WriteString(w, body)
			must(t, err)
		}
		add("jpg", strings.Repeat(fmt.Sprint("image ", i), 10_000))
		add("cls", fmt.Sprint(i%5))
		if i%9 != 4 {
			add("json", fmt.Sprintf(`{"width": %d, "who": {"name": "n%d"}, "list": [1]}`, i*10, i%3))
		}
	}
	must(t, w.Close())
	root, bucket := t.TempDir(), newBucket(t)
	write(t, root, "a.tar", b.String())
	write(t, root, "b.tar.gz", string(gzipOf(t, b.Bytes())))
	bucket.put(t, "a.tar", b.String())
	c := bucket.open(t, t.TempDir())
	for _, uri := range []string{"wds:" + root + "/a.tar", "wds:" + root + "/b.tar.gz", "wds:s3://data/a.tar",
		"wds:" + root + "/a.tar?fields=jpg"} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		has := func(f func(i int) bool) func(int) bool { return func(i int) bool { return i%9 != 4 && f(i) } }
		selects(t, d, 40, map[string]func(int) bool{
			"json.width >= 200":                    has(func(i int) bool { return i >= 20 }),
			"json.who.name == 'n1' and cls in (0)": has(func(i int) bool { return i%3 == 1 && i%5 == 0 }),
			"cls % 2 == 1":                         func(i int) bool { return i%5%2 == 1 },
		})
		_, err = d.Select("json.nothing == 1")
		if err == nil || !strings.Contains(err.Error(), "has the properties cls, json, json.width") {
			t.Errorf("%v", err)
		}
	}
}

// The coarse label of CIFAR-100 is a property beside the class; CIFAR-10 has none.
func TestPropertyOfCIFAR(t *testing.T) {
	root, bucket := t.TempDir(), newBucket(t)
	var rows, ten []byte
	for i := range 23 {
		rows = append(append(rows, byte(i%20), byte(i*3)), make([]byte, 3072)...)
		ten = append(append(ten, byte(i%10)), make([]byte, 3072)...)
	}
	write(t, root, "train.bin", string(rows))
	write(t, root, "test_batch.bin", string(ten))
	bucket.put(t, "train.bin", string(rows))
	c := bucket.open(t, t.TempDir())
	for _, uri := range []string{"cifar100:" + root, "cifar100:s3://data"} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		selects(t, d, 23, map[string]func(int) bool{
			"coarse == 2":                   func(i int) bool { return i%20 == 2 },
			"coarse in (0, 19)":             func(i int) bool { return i%20 == 0 || i == 19 },
			"coarse < 3 and not label < 60": func(i int) bool { return i >= 20 && i%20 < 3 },
		})
		if _, err := d.Select("fine == 1"); err == nil || !strings.Contains(err.Error(), "has the properties coarse") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	d, err := c.Add(t.Context(), "", "cifar10:"+root+"?split=test")
	must(t, err)
	if _, err := d.Select("coarse == 1"); err == nil || !strings.Contains(err.Error(), "has no properties") {
		t.Errorf("of CIFAR-10: %v", err)
	}
	rows[3074*4] = 20
	write(t, root, "more/train.bin", string(rows))
	d, err = c.Add(t.Context(), "", "cifar100:"+root+"/more")
	must(t, err)
	if _, err := d.Select("coarse == 1"); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), "at byte 12296 it has the coarse label 20 of 20") {
		t.Errorf("of a wrong label: %v", err)
	}
}

func TestErrorsOfProperties(t *testing.T) {
	root := t.TempDir()
	writeTable(t, root)
	write(t, root, "bad.csv", "path,width\nimg/1.jpg,1\nimg/2.jpg,2\n")
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "csv:"+root+"/a.csv")
	must(t, err)
	for expr, want := range map[string]string{
		"widht > 1":         `did you mean "width"? the words are`,
		"height > 1":        "the dataset has the properties name, width, ratio, ok, split",
		"width == 'a'":      "holds whole numbers",
		"name.first == 'a'": "unknown word",
	} {
		_, err := d.Select(expr)
		if f := (*errs.Error)(nil); !errors.As(err, &f) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", expr, err, want)
		}
	}
	folder := add(t, c, "", tree(t, "a/1.jpg"))
	if _, err := folder.Select("width > 1"); err == nil || !strings.Contains(err.Error(), "has no properties") {
		t.Errorf("of a folder: %v", err)
	}
	if _, err := d.Select("x > 1"); err == nil || errors.Is(err, subset.ErrNoProperty) {
		t.Errorf("%v", err)
	}
	list, err := c.Add(t.Context(), "", "imagefiles:"+root+"/bad.csv")
	must(t, err)
	if _, err := list.Select("heigth > 1"); err == nil || !strings.Contains(err.Error(), "has the properties width") {
		t.Errorf("of a list: %v", err)
	}
}
