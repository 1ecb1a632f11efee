package source

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
)

// shard is what a tar of these samples holds: KEY=LABEL, with the key's bytes as the image.
func shard(t testing.TB, samples ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name, body string) {
		must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644}))
		_, err := io.WriteString(w, body)
		must(t, err)
	}
	for _, s := range samples {
		key, label, _ := strings.Cut(s, "=")
		add(key+".jpg", "image of "+key)
		add(key+".json", "{}")
		if label != "" {
			add(key+".cls", label)
		}
	}
	must(t, w.Close())
	return b.String()
}

// listing is every live sample: id, key, label, class and content.
func listing(t testing.TB, c *Catalog, d *Dataset) []string {
	t.Helper()
	var out []string
	for s := range ident.SampleID(d.Len()) {
		if !d.Live(s) {
			continue
		}
		b, err := c.Read(t.Context(), d.Object(s), nil)
		must(t, err)
		if int64(len(b)) != d.Bytes(s) {
			t.Errorf("sample %d has %d bytes, and %d were read", s, d.Bytes(s), len(b))
		}
		out = append(out, fmt.Sprintf("%d %s %d %s %s", s, d.Key(s), d.Label(s), d.Class(s), b))
	}
	return out
}

func TestPackedFilesAreADataset(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	write(t, root, "a-0.tar", shard(t, "1=2", "2=0"))
	write(t, root, "a-1.tar", shard(t, "1=1", "x/3="))
	uri := "wds:" + root + "/a-{0..1}.tar"
	c, _ := open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	want := []string{"0 a-0.tar/1 2 2 image of 1", "1 a-0.tar/2 0 0 image of 2", "2 a-1.tar/1 1 1 image of 1",
		"3 a-1.tar/x/3 -1  image of x/3"}
	if got := listing(t, c, d); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if d.URI() != uri || !slices.Equal(d.Classes(), []string{"0", "1", "2"}) {
		t.Errorf("%s has classes %q", d.URI(), d.Classes())
	}
	if n := d.Notes(); len(n) != 1 || !strings.Contains(n[0], "not delivered: 4 .json") {
		t.Errorf("notes %q", n)
	}
	if ids, err := d.Select("label == 1"); err != nil || !slices.Equal(ids, []ident.SampleID{2}) {
		t.Errorf("label == 1 selects %v, %v", ids, err)
	}

	again, _ := open(t, index) // the saved index
	d2, err := again.Add(t.Context(), "", uri)
	must(t, err)
	if got := listing(t, again, d2); !slices.Equal(got, want) || d2.Fingerprint() != d.Fingerprint() ||
		!slices.Equal(d2.Notes(), d.Notes()) {
		t.Errorf("after a restart: %q, notes %q", got, d2.Notes())
	}

	// One file changes, the other is not scanned again: its content would not be a tar any more.
	stat, err := os.Stat(filepath.Join(root, "a-0.tar"))
	must(t, err)
	noise := strings.Repeat("n", int(stat.Size()))
	must(t, os.WriteFile(filepath.Join(root, "a-0.tar"), []byte(noise), 0o644))
	must(t, os.Chtimes(filepath.Join(root, "a-0.tar"), stat.ModTime(), stat.ModTime()))
	write(t, root, "a-1.tar", shard(t, "x/3=5", "4=1"))
	for _, cat := range []*Catalog{again, c} {
		d, err = cat.Add(t.Context(), "", uri)
		must(t, err)
		var keys []string
		for s := range ident.SampleID(d.Len()) {
			keys = append(keys, fmt.Sprint(d.Key(s), " ", d.Label(s), " ", d.Live(s)))
		}
		if want := []string{"a-0.tar/1 2 true", "a-0.tar/2 0 true", "a-1.tar/1 1 false", "a-1.tar/x/3 -1 false",
			"a-1.tar/x/3 5 true", "a-1.tar/4 1 true"}; !slices.Equal(keys, want) {
			t.Errorf("after a change: %q", keys)
		}
	}
}

func TestPackedFileChangedUnderReads(t *testing.T) {
	root := t.TempDir()
	write(t, root, "0.tar", shard(t, "1=2", "2=0"))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	write(t, root, "0.tar", shard(t, "1=2", "2=0", "3=1"))
	if b, err := c.Read(t.Context(), d.Object(0), nil); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("read %q, %v", b, err)
	}
	must(t, os.Remove(filepath.Join(root, "0.tar")))
	if _, err := c.Read(t.Context(), d.Object(0), nil); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("a removed file: %v", err)
	}
	if _, err := c.Add(t.Context(), "", "wds:"+root+"/{0..2}.tar"); !errs.Is(err, errs.DatasetUnread) ||
		strings.Count(err.Error(), "no such file") != 3 {
		t.Errorf("missing shards: %v", err)
	}
}

func TestPackedFilesOfOneFolderShareObjects(t *testing.T) {
	root := t.TempDir()
	write(t, root, "0.tar", shard(t, "1=2", "2=0"))
	write(t, root, "1.tar", shard(t, "3=1"))
	c, _ := open(t, "")
	all, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	one, err := c.Add(t.Context(), "one", "wds:"+root+"/1.tar")
	must(t, err)
	if all.Object(2) != one.Object(0) || c.SharedSamples(one) != 1 {
		t.Errorf("objects %d and %d", all.Object(2), one.Object(0))
	}
	// The path that named it first is gone; the other dataset's is not.
	must(t, os.Link(filepath.Join(root, "1.tar"), filepath.Join(root, "2.tar")))
	other, err := c.Add(t.Context(), "other", "wds:"+root+"/2.tar")
	must(t, err)
	must(t, os.Remove(filepath.Join(root, "1.tar")))
	if b, err := c.Read(t.Context(), other.Object(0), nil); err != nil || string(b) != "image of 3" {
		t.Errorf("read %q, %v", b, err)
	}
}

func TestClassesByWordAreAppended(t *testing.T) {
	root := t.TempDir()
	write(t, root, "0.tar", shard(t, "1=dog", "2=cat", "3=7"))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	if !slices.Equal(d.Classes(), []string{"7", "cat", "dog"}) || d.Label(0) != 2 {
		t.Errorf("classes %q", d.Classes())
	}
	write(t, root, "1.tar", shard(t, "1=ape"))
	d, err = c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	if !slices.Equal(d.Classes(), []string{"7", "cat", "dog", "ape"}) || d.Label(3) != 3 || d.Label(0) != 2 {
		t.Errorf("classes %q", d.Classes())
	}
}

func TestWordsStayWords(t *testing.T) {
	root := t.TempDir()
	write(t, root, "0.tar", shard(t, "1=0", "2=cat"))
	write(t, root, "1.tar", shard(t, "3=5"))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	write(t, root, "1.tar", shard(t, "3=5", "4=0"))
	d, err = c.Add(t.Context(), "", "wds:"+d.Root())
	must(t, err)
	if !slices.Equal(d.Classes(), []string{"0", "5", "cat"}) || d.Class(1) != "cat" || d.Label(3) != 0 {
		t.Errorf("classes %q, sample 1 is %s", d.Classes(), d.Class(1))
	}
}

// fashion writes an idx dataset of n grey images of 4 x 4 pixels.
func fashion(t testing.TB, root string, n int) {
	images := []byte{0, 0, 8, 3}
	for _, d := range []int{n, 4, 4} {
		images = binary.BigEndian.AppendUint32(images, uint32(d))
	}
	labels := binary.BigEndian.AppendUint32([]byte{0, 0, 8, 1}, uint32(n))
	for i := range n {
		for p := range 16 {
			images = append(images, byte(16*i+p))
		}
		labels = append(labels, byte(i%10))
	}
	write(t, root, "raw/train-images-idx3-ubyte", string(images))
	write(t, root, "raw/train-labels-idx1-ubyte", string(labels))
}

func TestPackedPixelsBecomeImages(t *testing.T) {
	root := t.TempDir()
	fashion(t, root, 12)
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "idx:"+root)
	must(t, err)
	b, err := c.Read(t.Context(), d.Object(11), make([]byte, 0, 1))
	must(t, err)
	if want := "P5\n    4     4\n255\n"; string(b[:len(want)]) != want || b[len(want)] != 16*11 || len(b) != len(want)+16 {
		t.Errorf("read %q", b)
	}
	p, err := c.Probe(t.Context(), d.Object(3))
	if err != nil || p.Width != 4 || p.Format != "netpbm" {
		t.Errorf("probe %+v, %v", p, err)
	}
	fashion(t, root, 12)
	later := time.Now().Add(time.Hour) // labels alone change
	must(t, os.Chtimes(filepath.Join(root, "raw/train-labels-idx1-ubyte"), later, later))
	d2, err := c.Add(t.Context(), "", "idx:"+root)
	must(t, err)
	if d2.LiveCount() != 12 || d2.Len() != 12 {
		t.Errorf("%d of %d samples", d2.LiveCount(), d2.Len())
	}
}

func TestPackedServesTheDaemonsUserOnly(t *testing.T) {
	root := t.TempDir()
	write(t, root, "0.tar", shard(t, "1=2"))
	c, _ := open(t, "")
	if _, err := c.OpenFor(t.Context(), "wds:"+root, false, Reader{UID: 4242}); !errs.Is(err, errs.Unsupported) {
		t.Errorf("another user: %v", err)
	}
	if _, err := c.Add(context.Background(), "mine", "wsd:"+root); err == nil || !strings.Contains(err.Error(), "wds") {
		t.Errorf("a misspelt scheme: %v", err)
	}
}

func TestForgedPackedIndex(t *testing.T) {
	make := func(change func(s *snapshot, meta []fileMeta)) []byte {
		s := &snapshot{uri: "wds:/r", root: "/r", classes: []string{"0", "1"}, names: "ab", nameEnd: []uint32{1, 2},
			dirOf: []uint32{0, 0}, dead: []uint64{0}, labels: []int32{1, 0},
			dirs: []dirRow{{rel: "x.tar", live: true, dev: 1, ino: 2, mtime: 3, size: 4096}}}
		meta := []fileMeta{{1, 2, 10, 3, 512}, {1, 2, 20, 3, 2048}}
		if change != nil {
			change(s, meta)
		}
		s.seal(meta)
		return encodeIndex(s, meta)
	}
	s, meta, err := decodeIndex(make(nil))
	if err != nil || s.Key(1) != "x.tar/b" || s.Label(0) != 1 || meta[1].off != 2048 || meta[1].size != 20 {
		t.Fatalf("%+v %+v %v", s, meta, err)
	}
	for name, change := range map[string]func(s *snapshot, meta []fileMeta){
		"beyond the file": func(_ *snapshot, m []fileMeta) { m[1].off = 4090 },
		"before the file": func(_ *snapshot, m []fileMeta) { m[0].off = -5 },
		"other file":      func(s *snapshot, _ []fileMeta) { s.dirOf[1] = 7 },
		"outside":         func(s *snapshot, _ []fileMeta) { s.dirs[0].rel = "../x.tar" },
		"root":            func(s *snapshot, _ []fileMeta) { s.root = "r" },
		"label":           func(s *snapshot, _ []fileMeta) { s.labels[0] = -2 },
		"name":            func(s *snapshot, _ []fileMeta) { s.names = "a\x00" },
	} {
		func() {
			defer func() { _ = recover() }() // sealing what contradicts itself may panic; reading must not
			b := make(change)
			if _, _, err := decodeIndex(b); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}()
	}
	b := make(nil)
	for i := range b {
		for _, flip := range []byte{1, 0x80} {
			c := bytes.Clone(b)
			c[i] ^= flip
			if _, _, err := decodeIndex(c); err == nil {
				t.Fatalf("a flipped bit in byte %d was accepted", i)
			}
		}
	}
}
