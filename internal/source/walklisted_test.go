package source

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv/lane"
)

// labelled is every live sample without its content.
func labelled(d *Dataset) []string {
	var out []string
	for s := range ident.SampleID(d.Len()) {
		if d.Live(s) {
			out = append(out, fmt.Sprintf("%d %s %d %s", s, d.Key(s), d.Label(s), d.Class(s)))
		}
	}
	return out
}

// Lists of every kind name images in their order, with labels as numbers or as words.
func TestListsOfImages(t *testing.T) {
	root := tree(t, "img/a.jpg", "img/b.png", "c.jpg", "deep/er/d.jpg", "ü x.jpg")
	abs := filepath.Join(root, "deep/er/d.jpg")
	for name, c := range map[string]struct{ query, text, want string }{
		"words.csv": {"", "path,label,extra\nimg/b.png,dog,1\nimg/a.jpg,cat,2\n./c.jpg,dog,3\n\"" + abs + "\",,4\n",
			"0 img/b.png 1 dog|1 img/a.jpg 0 cat|2 c.jpg 1 dog|3 deep/er/d.jpg -1 "},
		"numbers.tsv": {"", "split\tfile_name\ttarget\ntrain\tc.jpg\t7\ntrain\tü x.jpg\t0\n", "0 c.jpg 7 7|1 ü x.jpg 0 0"},
		"named.csv": {"?label=klass&path=where", "where,path,klass,label\nc.jpg,no.jpg,x,1\nimg/a.jpg,no.jpg,y,1\n",
			"0 c.jpg 0 x|1 img/a.jpg 1 y"},
		"semicolon.csv": {"?delimiter=semicolon", "image;cls\nc.jpg;2\n", "0 c.jpg 2 2"},
		"none.csv":      {"", "filename\nc.jpg\n", "0 c.jpg -1 "},
		"lines.jsonl": {"", `{"path": "img/a.jpg", "label": "x", "more": {"path": 1}}` + "\n\n" +
			`{"label": 3, "path": "\u00fc x.jpg"}` + "\n" + `{"path": "c.jpg", "label": null}` + "\n" +
			`{"path": "img/b.png"}` + "\n", "0 img/a.jpg 1 x|1 ü x.jpg 0 3|2 c.jpg -1 |3 img/b.png -1 "},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, root, name, c.text)
			index := t.TempDir()
			cat, _ := open(t, index)
			d, err := cat.Add(t.Context(), "", "imagefiles:"+filepath.Join(root, name)+c.query)
			must(t, err)
			if got := strings.Join(labelled(d), "|"); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			for s := range ident.SampleID(d.Len()) {
				want, err := os.ReadFile(filepath.Join(root, d.Key(s)))
				must(t, err)
				b, err := cat.Read(t.Context(), d.Object(s), nil)
				if err != nil || string(b) != string(want) || d.Path(s) != filepath.Join(root, d.Key(s)) {
					t.Errorf("sample %d, %s: %q, %v; want %q", s, d.Path(s), b, err, want)
				}
			}
			again, ev := open(t, index) // the saved index
			d2, err := again.Add(t.Context(), "", d.URI())
			must(t, err)
			if got := labelled(d2); ev.count("indexed") != 0 || !slices.Equal(got, labelled(d)) ||
				d2.Fingerprint() != d.Fingerprint() || !slices.Equal(d2.Classes(), d.Classes()) {
				t.Errorf("after a restart: %q %v", got, ev.n)
			}
		})
	}
}

// A list and a folder of images that name the same files have the same objects.
func TestListsShareTheirImages(t *testing.T) {
	root := tree(t, "a/1.jpg", "b/2.jpg")
	write(t, root, "list.csv", "path,label\nb/2.jpg,5\na/1.jpg,6\n")
	c, _ := open(t, "")
	folder := add(t, c, "", root)
	d, err := c.Add(t.Context(), "", "imagefiles:"+root+"/list.csv")
	must(t, err)
	if d.Object(0) != folder.Object(1) || d.Object(1) != folder.Object(0) {
		t.Errorf("objects %d %d, and in the folder %d %d", d.Object(0), d.Object(1), folder.Object(0), folder.Object(1))
	}
	if ids, err := d.Select("label == 6"); err != nil || !slices.Equal(ids, []ident.SampleID{1}) {
		t.Errorf("%v %v", ids, err)
	}
}

// Several lists are one dataset; a list in a folder below names images from there.
func TestSeveralLists(t *testing.T) {
	root := tree(t, "x/1.jpg", "y/1.jpg", "y/z/2.jpg")
	write(t, root, "x/a.csv", "path,label\n1.jpg,1\n")
	write(t, root, "y/b.jsonl", `{"file": "z/2.jpg", "y": 0}`+"\n"+`{"file": "../x/../y/1.jpg", "y": 4}`+"\n")
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "imagefiles:"+root+"/x/a.csv::"+root+"/y/b.jsonl")
	must(t, err)
	if got := strings.Join(labelled(d), "|"); got != "0 x/1.jpg 1 1|1 y/z/2.jpg 0 0|2 y/1.jpg 4 4" {
		t.Errorf("got %q", got)
	}
}

// A changed list keeps the ids of what stays; a changed image is an error of its reads until it is indexed again.
func TestListsChange(t *testing.T) {
	root, index := tree(t, "1.jpg", "2.jpg", "3.jpg"), t.TempDir()
	write(t, root, "l.csv", "path,label\n1.jpg,0\n2.jpg,1\n")
	c, ev := open(t, index)
	uri := "imagefiles:" + root + "/l.csv"
	_, err := c.Add(t.Context(), "", uri)
	must(t, err)
	write(t, root, "l.csv", "path,label\n3.jpg,1\n2.jpg,1\n1.jpg,1\n")
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	if got := strings.Join(labelled(d), "|"); got != "1 2.jpg 1 1|2 3.jpg 1 1|3 1.jpg 1 1" {
		t.Errorf("got %q", got)
	}
	write(t, root, "2.jpg", "another length")
	if _, err := c.Read(t.Context(), d.Object(1), nil); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("a changed image: %v", err)
	}
	n := ev.count("indexed")
	d, err = c.Add(t.Context(), "", uri)
	must(t, err)
	if b, err := c.Read(t.Context(), d.Object(1), nil); err != nil || string(b) != "another length" ||
		ev.count("indexed") != n+1 {
		t.Errorf("%q %v", b, err)
	}
}

// What is wrong with a list is named, with the line where it is.
func TestMistakesInLists(t *testing.T) {
	root := tree(t, "set/1.jpg", "other/2.jpg")
	must(t, os.Symlink("../other", filepath.Join(root, "set/link")))
	for text, want := range map[string]string{
		"path,label\n1.jpg,0\nno.jpg,1\n":             "line 3: no.jpg: no such file",
		"path,label\n../other/2.jpg,0\n":              `leads out of`,
		"path,label\n" + root + "/other/2.jpg,0\n":    `leads out of`,
		"path,label\n1.jpg,0\n./1.jpg,0\n":            `line 3: it names "1.jpg", as line 2`,
		"path,label\n,0\n":                            "the path is empty",
		"path,label\ns3://b/1.jpg,0\n":                "names another place",
		"picture,label\n1.jpg,0\n":                    "name the column with ?path=",
		"path,label\n1.jpg\n":                         "it has 1 cells, and the header 2",
		"path,label\n":                                "none of the 1 files",
		"path,label\nlink,0\n":                        "not a regular file",
		"path,label\n1.jpg,99999999999\n":             "labels are 0 to",
		"path,label\n\"1.jpg,0\n":                     "double quotes are not closed",
		"path\n" + strings.Repeat("gone.jpg\n", 1):    "gone.jpg",
		"path,label\n1.jpg/,0\nlink/2.jpg\x00/../1,2": "NUL byte",
	} {
		write(t, root, "set/l.csv", text)
		c, _ := open(t, "")
		_, err := c.Add(t.Context(), "", "imagefiles:"+root+"/set/l.csv")
		if _, ok := errors.AsType[*errs.Error](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	write(t, root, "set/l.csv", "path,label\nlink/2.jpg,0\n") // a link is followed, as in a folder of images
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "imagefiles:"+root+"/set/l.csv")
	must(t, err)
	if b, err := c.Read(t.Context(), d.Object(0), nil); err != nil || len(b) == 0 {
		t.Errorf("%q %v", b, err)
	}
	if _, err := c.Add(t.Context(), "", "imagefiles:"+root+"/set/l.csv?label=no"); err == nil ||
		!strings.Contains(err.Error(), `?label= names "no", and its columns are path, label`) {
		t.Errorf("%v", err)
	}
}

// A list in a bucket names objects of the bucket; they are found by one list of their prefix.
func TestListsInAStore(t *testing.T) {
	b := newBucket(t)
	var text strings.Builder
	text.WriteString("path,label\n")
	for i := range 40 {
		b.put(t, fmt.Sprintf("set/img/%02d.jpg", i), fmt.Sprint("image ", i))
		fmt.Fprintf(&text, "img/%02d.jpg,%d\n", 39-i, i%3)
	}
	b.put(t, "set/list.csv", text.String())
	c := b.open(t, "")
	lists, reads := b.lists.Load(), b.reads.Load()
	d, err := c.Add(t.Context(), "", "imagefiles:s3://data/set/list.csv")
	must(t, err)
	if l, r := b.lists.Load()-lists, b.reads.Load()-reads; l > 2 || r > 4 {
		t.Errorf("%d lists and %d reads", l, r)
	}
	got := listing(t, c, d)
	if len(got) != 40 || got[1] != "1 img/38.jpg 1 1 image 38" {
		t.Errorf("%q", got)
	}
	b.put(t, "set/list.csv", "path,label\nimg/99.jpg,0\n")
	if _, err := c.Reindex(t.Context(), d.URI()); err == nil || !strings.Contains(err.Error(), "img/99.jpg") {
		t.Errorf("a missing object: %v", err)
	}
}

// TestDamagedLists: a list cut or with a bit flipped at 200 places each is an error with words, or a list of images
// that are there; memory is bounded.
func TestDamagedLists(t *testing.T) {
	for _, name := range []string{"l.csv", "l.jsonl", "l.csv.gz"} {
		root := t.TempDir()
		text := "path,label,width\n"
		if name == "l.jsonl" {
			text = ""
		}
		for i := range 60 {
			write(t, root, fmt.Sprintf("i/%d.jpg", i), "x")
			if name == "l.jsonl" {
				text += fmt.Sprintf(`{"path": "i/%d.jpg", "label": "c%d"}`+"\n", i, i%7)
			} else {
				text += fmt.Sprintf("i/%d.jpg,%d,%d\n", i, i%7, 100+i)
			}
		}
		whole := []byte(text)
		if strings.HasSuffix(name, ".gz") {
			whole = gzipOf(t, whole)
		}
		var before, after runtime.MemStats
		for i := 0; i < 400; i += lane.Times(3, 1) {
			damaged := slices.Clone(whole)
			if i < 200 {
				damaged = damaged[:i*len(damaged)/200]
			} else {
				damaged[(i-200)*len(damaged)/200] ^= 1 << (i % 8)
			}
			write(t, root, name, string(damaged))
			runtime.ReadMemStats(&before)
			c, _ := open(t, "")
			d, err := c.Add(t.Context(), "", "imagefiles:"+root+"/"+name)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Fatalf("%s, damage %d: %d bytes were used", name, i, n)
			}
			if _, ok := errors.AsType[*errs.Error](err); err != nil && !ok {
				t.Fatalf("%s, damage %d: %v", name, i, err)
			}
			if err == nil && d.LiveCount() > 60 {
				t.Fatalf("%s, damage %d: %d samples", name, i, d.LiveCount())
			}
		}
	}
}

func gzipOf(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

// FuzzListedIndex: no content of a saved index of lists leads outside of the root, or is not what it is written as.
func FuzzListedIndex(f *testing.F) {
	root := tree(f, "a/1.jpg", "2.jpg")
	write(f, root, "l.csv", "path,label\na/1.jpg,x\n2.jpg,y\n")
	c, _ := open(f, "")
	d, err := c.Add(f.Context(), "", "imagefiles:"+root+"/l.csv")
	must(f, err)
	snap := d.snap.Load()
	var meta []fileMeta
	for s := range ident.SampleID(snap.Len()) {
		m, _ := c.objects.meta(snap.object(s))
		meta = append(meta, m)
	}
	good := encodeIndex(snap, meta)
	f.Add(good[indexHeader : len(good)-8])
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := sealed(payload)
		b[8] = listedVersion
		binary.LittleEndian.PutUint64(b[len(b)-8:], xxhash.Sum64(b[:len(b)-8]))
		s, meta, err := decodeIndex(b)
		if err != nil {
			return
		}
		for i := range s.Len() {
			p := s.path(ident.SampleID(i))
			if !strings.HasPrefix(p, s.root) || !isStored(s.root) && filepath.Clean(p) != p {
				t.Fatalf("sample %d lies at %q", i, p)
			}
		}
		again, meta2, err := decodeIndex(encodeIndex(s, meta))
		if err != nil || !reflect.DeepEqual(meta, meta2) || !reflect.DeepEqual(s, again) {
			t.Fatalf("not the same after encoding: %v", err)
		}
	})
}

// A list of which only a property changed is another dataset: what was read of the old one is not taken for it.
func TestAPropertyThatChangesIsReadAgain(t *testing.T) {
	root := t.TempDir()
	write(t, root, "x.jpg", "xx")
	write(t, root, "y.jpg", "yyy")
	write(t, root, "l.csv", "path,label,split\nx.jpg,0,train\ny.jpg,1,val\n")
	c, _ := open(t, "")
	train := func() []ident.SampleID {
		d, err := c.Add(t.Context(), "", "imagefiles:"+root+"/l.csv")
		must(t, err)
		ids, err := d.Select("split == 'train'")
		must(t, err)
		return ids
	}
	if ids := train(); !slices.Equal(ids, []ident.SampleID{0}) {
		t.Fatal(ids)
	}
	write(t, root, "l.csv", "path,label,split\nx.jpg,0,validation\ny.jpg,1,train\n")
	if ids := train(); !slices.Equal(ids, []ident.SampleID{1}) {
		t.Errorf("samples %d are of train; the list says 1", ids)
	}
}
