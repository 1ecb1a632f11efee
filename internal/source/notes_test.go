package source

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
)

// TestWhatIsIgnoredIsTold: files that are no samples are counted by kind; what a user may take for samples is said in
// words, and all of it survives in the saved index.
func TestWhatIsIgnoredIsTold(t *testing.T) {
	root := tree(t, "a/1.jpg", "a/2.HEIC", "a/3.heic", "a/4.gif", "a/film.mp4", "a/noname", "a/.DS_Store", "a/labels.txt",
		"a/x.y~", "b/1.PNG", "top.jpg", "top.heic", "README.md")
	age(t, root)
	index := t.TempDir()
	for range 2 { // walked, then from the saved index
		c, _ := open(t, index)
		d := add(t, c, "", root)
		want := []Ignored{{".heic", 3}, {"", 1}, {".gif", 1}, {".md", 1}, {".mp4", 1}, {".txt", 1}, {"hidden", 1},
			{"others", 1}, {RootKind, 1}}
		if got := d.Ignored(); !slices.Equal(got, want) || d.Report().Ignored != 11 {
			t.Errorf("%v, %d in all; want %v", got, d.Report().Ignored, want)
		}
		notes := d.Notes()
		if len(notes) != 1 || !strings.HasPrefix(notes[0], "7 files are no samples: 3 .heic, 1 without a suffix, 1 .gif, "+
			"1 .mp4, 1 image in the root folder (samples lie in class folders") {
			t.Errorf("%q", notes)
		}
	}
	plain := tree(t, "a/1.jpg", "a/labels.txt", "a/.DS_Store", "README.md")
	c, _ := open(t, "")
	if d := add(t, c, "", plain); len(d.Notes()) > 0 || len(d.Ignored()) != 3 {
		t.Errorf("%q, %v", d.Notes(), d.Ignored())
	}
}

// TestKindsAreBounded: a folder of a thousand suffixes gives no thousand kinds, and every file is counted.
func TestKindsAreBounded(t *testing.T) {
	names := []string{"a/1.jpg"}
	for i := range 300 {
		names = append(names, fmt.Sprintf("a/f.s%d", i))
	}
	c, _ := open(t, "")
	d := add(t, c, "", tree(t, names...))
	n := 0
	for _, k := range d.Ignored() {
		n += k.Files
	}
	if n != 300 || len(d.Ignored()) > maxKinds+1 {
		t.Errorf("%d files of %d kinds", n, len(d.Ignored()))
	}
}

// TestAllProblemsAtOnce: one attempt reports everything that is wrong, and no list is endless.
func TestAllProblemsAtOnce(t *testing.T) {
	names := []string{"good/1.jpg"}
	for i := range 14 {
		names = append(names, fmt.Sprintf("empty%02d/readme.txt", i))
	}
	root := tree(t, names...)
	must(t, os.Symlink("nothing", filepath.Join(root, "good/2.jpg")))
	must(t, os.Symlink(".", filepath.Join(root, "self")))
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "imagefolder:"+root)
	for _, says := range []string{
		"16 problems", `good/2.jpg" cannot be read: symbolic link to nothing`, `self" cannot be read: it is a symbolic link`,
		`class folder "empty00"`,
		`class folder "empty09"`, "and 4 more class folders without an image", "repair or remove it", "remove the link",
		"--skip-empty",
	} {
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v\ndoes not say %q", err, says)
		}
	}
	if strings.Contains(err.Error(), "empty10") {
		t.Error(err)
	}
}

// TestSkipEmpty: with it empty class folders keep their label, as with torchvision's allow_empty, also from the saved
// index; what holds no image at all is refused all the same.
func TestSkipEmpty(t *testing.T) {
	root := tree(t, "a/x.txt", "b/1.jpg", "c/d/x.txt", "d/1.jpg")
	index := t.TempDir()
	c, _ := open(t, index)
	if _, err := c.Add(t.Context(), "", "imagefolder:"+root); !errs.Is(err, errs.DatasetEmpty) ||
		!strings.Contains(err.Error(), "2 problems") {
		t.Errorf("%v", err)
	}
	age(t, root)
	for range 2 {
		d, err := c.AddSkipEmpty(t.Context(), "", "imagefolder:"+root)
		must(t, err)
		if !slices.Equal(d.Classes(), []string{"a", "b", "c", "d"}) || d.LiveCount() != 2 || d.Label(0) != 1 ||
			d.Label(1) != 3 {
			t.Errorf("classes %q, labels %d %d", d.Classes(), d.Label(0), d.Label(1))
		}
		if n := d.Notes(); len(n) != 1 || n[0] != "2 class folders are without an image: a, c; labels stay as they are" {
			t.Errorf("%q", n)
		}
		check(t, c, d)
		c, _ = open(t, index)
	}
	if _, err := c.AddSkipEmpty(t.Context(), "", "imagefolder:"+tree(t, "a/x.txt", "b/y.txt")); !errs.Is(err,
		errs.DatasetEmpty) ||
		!strings.Contains(err.Error(), "none of the 2 class folders") {
		t.Errorf("%v", err)
	}
}

// TestAClassMayBecomeEmpty: the last image of a class goes, and a folder without images comes: every refresh still
// works, labels stay, and the new folder is a class when it has an image.
func TestAClassMayBecomeEmpty(t *testing.T) {
	root := tree(t, "a/1.jpg", "b/1.jpg", "d/1.jpg")
	index := t.TempDir()
	c, _ := open(t, index)
	d := add(t, c, "set", root)
	must(t, os.Remove(filepath.Join(root, "b/1.jpg")))
	must(t, os.Mkdir(filepath.Join(root, "c"), 0o755))
	for i := range 3 {
		if i == 2 { // a daemon that starts again
			c, _ = open(t, index)
			d = add(t, c, "set", root)
		}
		e, err := c.Reindex(t.Context(), "set")
		if err != nil || e != d || !slices.Equal(d.Classes(), []string{"a", "b", "d"}) || d.LiveCount() != 2 ||
			d.Label(2) != 2 {
			t.Fatalf("%v; classes %q, %d samples", err, d.Classes(), d.LiveCount())
		}
		if n := d.Notes(); len(n) != 2 || n[0] != "1 class folder is without an image: b; labels stay as they are" ||
			n[1] != "1 class folder is new and without an image, so no class yet: c" {
			t.Errorf("%q", n)
		}
		check(t, c, d)
	}
	age(t, root) // the only folder whose time shows the image is no row
	write(t, root, "c/1.jpg", "new")
	e := add(t, c, "set", root)
	if !slices.Equal(e.Classes(), []string{"a", "b", "c", "d"}) || e.LiveCount() != 3 {
		t.Errorf("classes %q, %d samples", e.Classes(), e.LiveCount())
	}
	for _, f := range []string{"a/1.jpg", "c/1.jpg", "d/1.jpg"} {
		must(t, os.Remove(filepath.Join(root, f)))
	}
	// a disk that is not mounted is no empty dataset
	if _, err := c.Reindex(t.Context(), "set"); !errs.Is(err, errs.DatasetEmpty) {
		t.Errorf("%v", err)
	}
	if e.LiveCount() != 3 {
		t.Error("a refused walk changed the dataset")
	}
}

// TestAnIndexThatWasLost: what was accepted before is accepted again, with the labels that it had.
func TestAnIndexThatWasLost(t *testing.T) {
	root := tree(t, "a/1.jpg", "b/x.txt")
	c, _ := open(t, "")
	d, err := c.AddAgain(t.Context(), "set", "imagefolder:"+root)
	if err != nil || len(d.Classes()) != 2 || d.SkipEmpty() {
		t.Errorf("%v", err)
	}
}

// TestIndexOfVersion1: indexes that an older larder saved are read; ids of files that came later are nowhere else.
func TestIndexOfVersion1(t *testing.T) {
	root, index, d := versions(t)
	files, err := filepath.Glob(filepath.Join(index, "*"+indexSuffix))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	must(t, err)
	binary.LittleEndian.PutUint32(b[8:], 1)
	r := &indexReader{b: b[indexHeader : len(b)-8]}
	r.str()
	r.b = r.b[8:]
	for range 4 {
		r.uvarint()
	}
	at := len(b) - 8 - len(r.b)
	r.uvarint()
	for range r.uvarint() {
		r.str()
		r.uvarint()
	}
	b = slices.Delete(b, at, len(b)-8-len(r.b))
	b = b[:len(b)-8]
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-indexHeader))
	must(t, os.WriteFile(files[0], binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b)), 0o600))
	c, ev := open(t, index)
	e := add(t, c, "", root)
	if ev.count("") != 0 || e.Fingerprint() != d.Fingerprint() || !slices.Equal(keys(e), keys(d)) || e.Live(0) ||
		e.Object(0) != NoObject {
		t.Errorf("events %v, keys %q", ev.n, keys(e))
	}
	if n := e.Len(); n == 0 || e.Key(ident.SampleID(n-1)) != "b/0.jpg" {
		t.Errorf("%d samples", n)
	}
}

// TestOtherSchemes: the hint of what is not built names what works today, and no folder that does not exist.
func TestOtherSchemes(t *testing.T) {
	c, _ := open(t, "")
	for uri, x := range map[string]struct {
		reason errs.Reason
		says   string
	}{
		"s3://bucket/train":         {errs.Invalid, "did you mean imagefolder:s3://bucket/train?"},
		"hdfs://host/train":         {errs.Unsupported, "mount it as a folder (its NFS"},
		"https://host/train":        {errs.Unsupported, "a web server has no list of its files"},
		"imagefolder:https://h/x":   {errs.Unsupported, "a web server has no list of its files"},
		"imagefolder:abfss://c@a/x": {errs.Unsupported, "az://CONTAINER/PREFIX"},
		"imagefolder:s3://buc/x":    {errs.Unsupported, "let the daemon read it"},
		"imagefolder:s3://b/x":      {errs.Invalid, "a bucket has 3 to 222"},
		"imagefolder:s4://bucket/x": {errs.Invalid, "did you mean s3://?"},
		"imagefolder:file:///d/x":   {errs.Invalid, "did you mean imagefolder:///d/x?"},
		"imagefolder:foo://b/x":     {errs.Invalid, `unknown scheme "foo"`},
		"imagefolder:s3://k:s@b/x":  {errs.Invalid, "holds a user name or a secret"},
		"file:///data/train":        {errs.Invalid, "did you mean imagefolder:///data/train?"},
		"imagfolder:/data/train":    {errs.Invalid, "did you mean imagefolder:/data/train?"},
		"webdataset://host/{0..99}": {errs.Invalid, "write wds:DIR, wds:s3://BUCKET/DIR"},
	} {
		_, err := c.Add(t.Context(), "", uri)
		if !errs.Is(err, x.reason) || !strings.Contains(err.Error(), x.says) || x.reason == errs.Unsupported &&
			strings.Contains(err.Error(), "did you mean") {
			t.Errorf("%s: %v; want %s and %q", uri, err, x.reason, x.says)
		}
	}
}
