package source

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/ident"
)

// versions makes a root with a tombstone, an appended key and a changed class list, indexed and saved.
func versions(t testing.TB) (root, index string, d *Dataset) {
	t.Helper()
	root, index = tree(t, "b/1.jpg", "b/2.jpg", "c/sub/1.png", "c/1.jpg", "c/x.txt"), t.TempDir()
	c, _ := open(t, index)
	add(t, c, "", root)
	must(t, os.Remove(filepath.Join(root, "b/1.jpg")))
	write(t, root, "b/0.jpg", "new")
	age(t, root)
	d, err := c.Reindex(t.Context(), "imagefolder:"+root) // its times are trusted now
	must(t, err)
	return root, index, d
}

func indexFile(t testing.TB, index string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(index, "*"))
	must(t, err)
	if len(paths) != 1 || !strings.HasSuffix(paths[0], indexSuffix) {
		t.Fatalf("the index folder holds %q", paths)
	}
	return paths[0]
}

func TestIndexIsUsed(t *testing.T) {
	root, index, d := versions(t)
	c, ev := open(t, index)
	e := add(t, c, "", root)
	if ev.count("") != 0 {
		t.Errorf("events %v: the saved index was not used", ev.n)
	}
	if want := []string{"b/1.jpg", "b/2.jpg", "c/1.jpg", "c/sub/1.png", "b/0.jpg"}; !slices.Equal(keys(e), want) ||
		e.Live(0) || e.Object(0) != NoObject {
		t.Errorf("%q, live %v", keys(e), e.Live(0))
	}
	if e.Fingerprint() != d.Fingerprint() || !reflect.DeepEqual(e.Report(), d.Report()) ||
		e.TotalBytes() != d.TotalBytes() || !slices.Equal(e.Classes(), d.Classes()) {
		t.Errorf("%016x %+v, saved %016x %+v", e.Fingerprint(), e.Report(), d.Fingerprint(), d.Report())
	}
	check(t, c, e)

	// Any change of a folder while the daemon was away makes the next start walk, with the ids of before.
	write(t, root, "b/00.jpg", "newer")
	must(t, os.WriteFile(filepath.Join(root, "b/1.jpg"), []byte("back"), 0o644))
	c, ev = open(t, index)
	e = add(t, c, "", root)
	if ev.count("indexed") != 1 || e.Key(5) != "b/00.jpg" || !e.Live(0) || e.Key(0) != "b/1.jpg" {
		t.Errorf("%v %q", ev.n, keys(e))
	}
	check(t, c, e)

	// The folder has just been written: its time is not to be trusted, so the next start walks again, without harm.
	fp := e.Fingerprint()
	c, ev = open(t, index)
	if e = add(t, c, "", root); ev.count("indexed") != 1 || e.Fingerprint() != fp {
		t.Errorf("%v", ev.n)
	}
	c, ev = open(t, index)
	age(t, root)
	if e = add(t, c, "", root); ev.count("indexed") != 1 || e.Fingerprint() != fp {
		t.Errorf("%v", ev.n)
	}
	c, ev = open(t, index)
	if e = add(t, c, "", root); ev.count("indexed") != 0 || e.Fingerprint() != fp {
		t.Errorf("%v", ev.n)
	}
}

// TestFolderChangesAreNoticed: what a check of the folders finds, one at a time.
func TestFolderChangesAreNoticed(t *testing.T) {
	for name, change := range map[string]func(root string) error{
		"nothing":     nil,
		"added":       func(r string) error { return os.WriteFile(filepath.Join(r, "a/x/new.jpg"), nil, 0o644) },
		"removed":     func(r string) error { return os.Remove(filepath.Join(r, "a/2.jpg")) },
		"renamed":     func(r string) error { return os.Rename(filepath.Join(r, "a/2.jpg"), filepath.Join(r, "a/3.jpg")) },
		"replaced":    func(r string) error { return os.Rename(filepath.Join(r, "b/1.jpg"), filepath.Join(r, "a/1.jpg")) },
		"new folder":  func(r string) error { return os.Mkdir(filepath.Join(r, "a/x/y"), 0o755) },
		"empty class": func(r string) error { return os.RemoveAll(filepath.Join(r, "b")) },
		"link moved": func(r string) error {
			if err := os.Remove(filepath.Join(r, "link")); err != nil {
				return err
			}
			return os.Symlink("b", filepath.Join(r, "link"))
		},
		"folder swapped": func(r string) error { // only the inode differs
			target, err := os.Readlink(filepath.Join(r, "outside"))
			if err != nil {
				return err
			}
			fi, err := os.Stat(target)
			if err != nil {
				return err
			}
			if err := os.Rename(target, target+".old"); err != nil {
				return err
			}
			write(t, target, "other.jpg", "x")
			return os.Chtimes(target, time.Time{}, fi.ModTime())
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, index := tree(t, "a/1.jpg", "a/2.jpg", "a/x/1.jpg", "b/1.jpg", "b/2.jpg"), t.TempDir()
			outside := filepath.Join(tree(t, "v1/1.jpg"), "v1")
			must(t, os.Symlink("a", filepath.Join(root, "link")))
			must(t, os.Symlink(outside, filepath.Join(root, "outside")))
			age(t, outside)
			age(t, root)
			c, _ := open(t, index)
			add(t, c, "", root)
			if change != nil {
				must(t, change(root))
			}
			for what, c := range map[string]*Catalog{"same": c, "next": nil} {
				next, ev := open(t, index)
				if c == nil {
					c = next
				} else {
					ev = &events{n: map[string]int{}}
					c.log = newLogger(ev)
				}
				_, err := c.Add(t.Context(), "", "imagefolder:"+root)
				if err != nil {
					t.Fatalf("%s daemon: %v", what, err)
				}
				if walked := ev.count("indexed") == 1; walked != (change != nil) && (what == "same" || change == nil) {
					t.Errorf("%s daemon: walked %v", what, walked)
				}
			}
		})
	}
}

// TestDamage flips every byte and cuts at every length. The index is refused each time; for some of them a whole
// start is run: it warns, walks, and gives right data.
func TestDamage(t *testing.T) {
	root, index, _ := versions(t)
	path := indexFile(t, index)
	good, err := os.ReadFile(path)
	must(t, err)
	if _, _, err := decodeIndex(good); err != nil {
		t.Fatal(err)
	}
	start := func(b []byte) {
		must(t, os.WriteFile(path, b, 0o600))
		c, ev := open(t, index)
		d := add(t, c, "", root)
		if ev.count("damaged") != 1 || ev.count("indexed") != 1 || d.LiveCount() != 4 ||
			!slices.Equal(keys(d), []string{"b/0.jpg", "b/2.jpg", "c/1.jpg", "c/sub/1.png"}) {
			t.Errorf("%v %q", ev.n, keys(d))
		}
		check(t, c, d)
		kept, err := os.ReadFile(path + ".damaged")
		if err != nil || !bytes.Equal(kept, b) {
			t.Errorf("the damaged file was not kept: %v", err)
		}
		fresh, err := os.ReadFile(path)
		must(t, err)
		if _, _, err := decodeIndex(fresh); err != nil {
			t.Errorf("the new index: %v", err)
		}
	}
	for i := range good {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			b := slices.Clone(good)
			b[i] ^= flip
			if _, _, err := decodeIndex(b); err == nil {
				t.Errorf("byte %d changed by %#x: accepted", i, flip)
			}
		}
		if _, _, err := decodeIndex(good[:i]); err == nil {
			t.Errorf("cut to %d bytes: accepted", i)
		}
		if i%40 == 0 {
			b := slices.Clone(good)
			b[i] ^= 0x10
			start(b)
			start(good[:i])
		}
	}
	start(append(slices.Clone(good), 0))
}

// sealed makes a file with these payload bytes and a right checksum.
func sealed(payload []byte) []byte {
	b := make([]byte, indexHeader, indexHeader+len(payload)+8)
	copy(b, indexMagic)
	binary.LittleEndian.PutUint32(b[8:], indexVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(len(payload)))
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// sample is an encoded index without a file system.
func sampleIndex(change func(s *snapshot)) []byte {
	s := &snapshot{root: "/r", classes: []string{"a", "b"}, names: "1.jpg2.jpg3.jpg", nameEnd: []uint32{5, 10, 15},
		dirOf: []uint32{1, 1, 2}, dead: []uint64{2},
		dirs: []dirRow{{rel: "", live: true}, {rel: "a", class: "a", live: true, dev: 7, ino: 8, mtime: -9},
			{rel: "b/x", class: "b", live: true}}}
	meta := []fileMeta{{7, 1 << 63, 3, -4, 0}, {}, {9, 2, 1 << 40, 1 << 60, 0}}
	if change != nil {
		change(s)
	}
	s.seal(meta)
	return encodeIndex(s, meta)
}

// TestForgedIndex: with a right checksum, too, an index cannot lead outside its root or contradict itself.
func TestForgedIndex(t *testing.T) {
	s, meta, err := decodeIndex(sampleIndex(nil))
	if err != nil || s.live != 2 || s.Key(2) != "b/x/3.jpg" || meta[0] != (fileMeta{7, 1 << 63, 3, -4, 0}) ||
		meta[2] != (fileMeta{9, 2, 1 << 40, 1 << 60, 0}) || s.dirs[1].mtime != -9 {
		t.Fatalf("%+v %+v %v", s, meta, err)
	}
	for name, change := range map[string]func(s *snapshot){
		"relative root":    func(s *snapshot) { s.root = "r" },
		"root with dots":   func(s *snapshot) { s.root = "/r/.." },
		"folder outside":   func(s *snapshot) { s.dirs[2].rel = "b/../../x" },
		"absolute folder":  func(s *snapshot) { s.dirs[2].rel = "/b" },
		"folder with NUL":  func(s *snapshot) { s.dirs[2].rel = "b/\x00" },
		"folder is a dot":  func(s *snapshot) { s.dirs[2].rel = "." },
		"folder twice":     func(s *snapshot) { s.dirs[2].rel = "a" },
		"class unknown":    func(s *snapshot) { s.dirs[2].rel = "c/x" },
		"classes unsorted": func(s *snapshot) { s.classes = []string{"b", "a"} },
		"class twice":      func(s *snapshot) { s.classes = []string{"a", "a"} },
		"name with slash":  func(s *snapshot) { s.names = "1/jpg2.jpg3.jpg" },
		"name is dots":     func(s *snapshot) { s.names, s.nameEnd = "..2.jpg3.jpg", []uint32{2, 7, 12} },
		"empty name":       func(s *snapshot) { s.names, s.nameEnd = "2.jpg3.jpg", []uint32{0, 5, 10} },
		"in the root":      func(s *snapshot) { s.dirOf[0] = 0 },
		"folder gone":      func(s *snapshot) { s.dirs[2].live = false },
		"nothing lives":    func(s *snapshot) { s.dead[0] = 7 },
	} {
		if _, _, err := decodeIndex(sampleIndex(change)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// A number of samples that would need more memory than the file has bytes.
	for _, n := range []uint64{4, 1 << 20, 1 << 62} {
		payload := append([]byte("\x02/r"), make([]byte, 8)...)
		payload = append(payload, 0, 0, 0, 0)
		if _, _, err := decodeIndex(sealed(binary.AppendUvarint(payload, n))); err == nil {
			t.Errorf("%d classes in no bytes: accepted", n)
		}
	}
}

// TestNameCollision: when the file name of one root is taken by another root, neither loses its index.
func TestNameCollision(t *testing.T) {
	root, index := tree(t, "a/1.jpg"), t.TempDir()
	taken := filepath.Join(index, indexName(root, 0))
	must(t, os.WriteFile(taken, sampleIndex(nil), 0o600))
	age(t, root)
	c, _ := open(t, index)
	add(t, c, "", root)
	if got, err := os.ReadFile(taken); err != nil || !bytes.Equal(got, sampleIndex(nil)) {
		t.Errorf("the other root's index was overwritten: %v", err)
	}
	c, ev := open(t, index)
	if d := add(t, c, "", root); ev.count("") != 0 || d.LiveCount() != 1 {
		t.Errorf("%v", ev.n)
	}
	check(t, c, mustGet(t, c, "imagefolder:"+root))
}

func mustGet(t testing.TB, c *Catalog, name string) *Dataset {
	t.Helper()
	d, ok := c.Get(name)
	if !ok {
		t.Fatalf("no dataset %q", name)
	}
	return d
}

// TestSaveFails: the dataset works, and the log says what it costs. A leftover of a crash goes at a later start.
func TestSaveFails(t *testing.T) {
	root, index := tree(t, "a/1.jpg"), filepath.Join(t.TempDir(), "index")
	c, ev := open(t, index)
	must(t, os.RemoveAll(index))
	d := add(t, c, "", root)
	if ev.count("not saved") != 1 || d.LiveCount() != 1 {
		t.Errorf("%v", ev.n)
	}
	must(t, os.Mkdir(index, 0o700))
	old, young, other := filepath.Join(index, "x"+indexSuffix+".1.tmp"), filepath.Join(index, "x"+indexSuffix+".2.tmp"),
		filepath.Join(index, "notes.tmp")
	for _, p := range []string{old, young, other} {
		must(t, os.WriteFile(p, nil, 0o600))
		if p != young {
			must(t, os.Chtimes(p, time.Time{}, time.Now().Add(-2*time.Hour)))
		}
	}
	open(t, index)
	for p, want := range map[string]bool{old: false, young: true, other: true} {
		if _, err := os.Stat(p); (err == nil) != want {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	good := sampleIndex(nil)
	f.Add(good[indexHeader : len(good)-8])
	f.Add(sampleIndex(func(s *snapshot) { s.names = "\xff.jpg2.jpg3.jpg" })[indexHeader:])
	f.Add([]byte("\x02/r"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		_, _, _ = decodeIndex(payload) // as a whole file
		s, meta, err := decodeIndex(sealed(payload))
		if err != nil {
			return
		}
		for i := range s.Len() {
			p := s.path(ident.SampleID(i))
			if !strings.HasPrefix(p, s.root) || filepath.Clean(p) != p {
				t.Fatalf("sample %d lies at %q", i, p)
			}
		}
		again, meta2, err := decodeIndex(encodeIndex(s, meta))
		if err != nil || !reflect.DeepEqual(meta, meta2) || !reflect.DeepEqual(s, again) {
			t.Fatalf("not the same after encoding: %v", err)
		}
		var table objectTable
		s.assignObjects(&table, 0, nil, meta)
	})
}

func newLogger(e *events) *slog.Logger { return slog.New(e) }
