package source

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/errs"
	"larder/internal/ident"
)

// llmFile is a file of llm.c whose header says a number of ids of uint16, and has others.
func llmFile(says, has int) string {
	b := make([]byte, 1024+2*has)
	binary.LittleEndian.PutUint32(b, 20240520)
	binary.LittleEndian.PutUint32(b[4:], 1)
	binary.LittleEndian.PutUint32(b[8:], uint32(says))
	return string(b)
}

// What readers of a format leave out behind the end of its data is refused with where it ends: two files were joined,
// or one was written over a longer one.
func TestWhatFollowsTheDataIsRefused(t *testing.T) {
	tarred := tarOfMembers(t, "1.jpg", "image", "1.cls", "3")
	arrow, err := os.ReadFile("packed/testdata/units/us.arrow")
	must(t, err)
	for name, x := range map[string]struct{ uri, file, text, says string }{
		"tars":        {"wds:%s", "a.tar", tarred + tarOfMembers(t, "2.jpg", "image"), "ends at byte 3072, and more follows"},
		"tars, gzip":  {"wds:%s", "a.tar.gz", string(gzipOf(t, []byte(tarred+tarred))), "byte 3072, and more follows"},
		"tar, rest":   {"wds:%s", "a.tar", tarred + strings.Repeat("\x00", 70<<10) + "x", "and more follows"},
		"npy":         {"npy:%s", "a.npy", npyFile(3) + npyFile(3), "ends at byte 140, and the file has 280"},
		"npy, tokens": {"tokens:%s?seq_len=4", "a.npy", npyFile(3) + "x", "ends at byte"},
		"llm.c":       {"tokens:%s?seq_len=4", "a.bin", llmFile(40, 80), "its header says 40 ids of uint16, and 160"},
		"arrow":       {"hf:%s/a.arrow", "a.arrow", string(arrow) + string(arrow), "its stream ends at byte"},
		"two labels":  {"wds:%s", "a.tar", tarOfMembers(t, "1.jpg", "i", "1.cls", "3", "1.x.cls", "4"), "the second label"},
		"two keys": {"imagefiles:%s/a.jsonl", "a.jsonl", `{"path": "a.jpg", "label": 1, "label": 2}` + "\n",
			`it has the key "label" twice`},
		"empty label": {"wds:%s?fields=cls", "a.tar", tarOfMembers(t, "1.cls", "", "2.cls", "3"), "member .cls is empty"},
		"annex":       {"text:%s", "a.txt", "/annex/objects/SHA256E-s9--1.txt\n", "git annex get"},
		"link":        {"text:%s", "a.txt", "../../blobs/0123456789abcdef", "the text of a symbolic link"},
		"answer":      {"text:%s", "a.txt", "404: Not Found", "the answer of a server"},
		"xhtml":       {"csv:%s", "a.csv", "<?xml version=\"1.0\"?>\n<!DOCTYPE html PUBLIC \"x\">\n<html></html>", "(HTML)"},
		"comment":     {"jsonl:%s", "a.jsonl", "<!-- x -->\n<html lang=\"en\">", "(HTML)"},
		"store":       {"text:%s", "a.txt", "<Error><Code>NoSuchKey</Code></Error>", "(XML)"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, x.file, x.text)
			if x.file == "a.jsonl" {
				write(t, root, "a.jpg", "image")
			}
			c, _ := open(t, "")
			_, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root))
			if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(fullText(err)+err.Error(), x.says) {
				t.Errorf("%v\nwants %q", err, x.says)
			}
		})
	}
	for name, x := range map[string]struct{ uri, file, text string }{
		"rounded":   {"wds:%s", "a.tar", tarred + strings.Repeat("\x00", 10240-len(tarred))},
		"one":       {"wds:%s", "a.tar", tarred},
		"a comment": {"text:%s", "a.txt", "<!-- not a page\n"},
		"a path":    {"text:%s", "a.txt", "../blobs\n"},
		"of errors": {"text:%s", "a.txt", "<error> is what it says\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, x.file, x.text)
			c, _ := open(t, "")
			if d, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root)); err != nil || d.Len() != 1 {
				t.Errorf("%v", err)
			}
		})
	}
}

// An index.json that says another number of samples than a shard has is of another version.
func TestIndexOfOtherSamples(t *testing.T) {
	root := t.TempDir()
	set := mdsLabelled(t, "int8", 1, []byte{1}, []byte{2})
	set["index.json"] = strings.Replace(set["index.json"], `"samples":2`, `"samples":1`, 1)
	for name, text := range maps.All(set) { // order-free
		write(t, root, name, text)
	}
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "mds:"+root)
	if err == nil || !strings.Contains(fullText(err)+err.Error(), "it has 2 samples, and index.json says 1") {
		t.Error(err)
	}
}

// The label is the best-named column, whatever other columns of labels are beside it.
func TestLabelsBesideOthers(t *testing.T) {
	for name, x := range map[string]struct {
		text, expr string
		want       []ident.SampleID // nil = refused
	}{
		"parts":  {"label,class\n0.5,3\n0.1,0\n", "label < 1", []ident.SampleID{0, 1}},
		"floats": {"label,y\n1.0,100\n0.0,0\n", "label == 1", []ident.SampleID{0}},
		"words":  {"label,y\ncat,0\ndog,1\n", "label < 1", nil},
		"names":  {"class,y\ncat,0\ndog,1\n", "label < 1", []ident.SampleID{0}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, "a.csv", x.text)
			c, _ := open(t, "")
			d, err := c.Add(t.Context(), "", "csv:"+root)
			must(t, err)
			got, err := d.SelectContext(t.Context(), x.expr)
			if x.want == nil && err == nil || x.want != nil && (err != nil || !slices.Equal(got, x.want)) {
				t.Errorf("%v, %v; want %v", got, err, x.want)
			}
		})
	}
}

// Numbers of classes stand for names: files whose names differ, or are missing, are no one dataset.
func TestClassesOfOtherNames(t *testing.T) {
	type row struct {
		Label int64 `parquet:"label"`
	}
	of := func(names ...string) string {
		var b strings.Builder
		w := pq.NewGenericWriter[row](&b)
		if names != nil {
			w.SetKeyValueMetadata("huggingface", fmt.Sprintf(`{"info": {"features": {"label": {"_type": "ClassLabel", "names": `+
				`["%s"]}}}}`, strings.Join(names, `", "`)))
		}
		_, err := w.Write([]row{{0}, {1}})
		must(t, err)
		must(t, w.Close())
		return b.String()
	}
	for name, second := range map[string]string{"other": of("cat", "dog"), "none": of(), "same": of("dog", "cat")} {
		root := t.TempDir()
		write(t, root, "a.parquet", of("dog", "cat"))
		write(t, root, "b.parquet", second)
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", "parquet:"+root)
		if name == "same" {
			must(t, err)
			got, err := d.SelectContext(t.Context(), `class == "dog"`)
			if err != nil || !slices.Equal(got, []ident.SampleID{0, 2}) {
				t.Error(got, err)
			}
		} else if err == nil || !strings.Contains(fullText(err)+err.Error(), `ClassLabel with the names ["dog" "cat"] in`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
