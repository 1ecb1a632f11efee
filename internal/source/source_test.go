package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/jpeg"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"larder/internal/fault"
	"larder/internal/ident"
	"larder/internal/xrand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write makes a file and its folders.
func write(t testing.TB, root, rel, content string) {
	t.Helper()
	path := filepath.Join(root, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func tree(t testing.TB, rels ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, r := range rels {
		write(t, root, r, "content of "+r)
	}
	return root
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// age makes every folder look unchanged for an hour, so that its modification time is trusted.
func age(t testing.TB, root string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	must(t, filepath.WalkDir(root, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			err = os.Chtimes(p, old, old)
		}
		return err
	}))
}

// events counts log lines by message.
type events struct {
	mu sync.Mutex
	n  map[string]int
}

func (e *events) Enabled(context.Context, slog.Level) bool { return true }
func (e *events) WithAttrs([]slog.Attr) slog.Handler       { return e }
func (e *events) WithGroup(string) slog.Handler            { return e }
func (e *events) Handle(_ context.Context, r slog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n[r.Message]++
	return nil
}

func (e *events) count(part string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for m, k := range e.n {
		if strings.Contains(m, part) {
			n += k
		}
	}
	return n
}

func open(t testing.TB, indexDir string) (*Catalog, *events) {
	t.Helper()
	e := &events{n: map[string]int{}}
	c, err := OpenCatalog(CatalogConfig{IndexDir: indexDir, Logger: slog.New(e)})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c, e
}

func add(t testing.TB, c *Catalog, name, root string) *Dataset {
	t.Helper()
	d, err := c.Add(t.Context(), name, "imagefolder:"+root)
	must(t, err)
	return d
}

func keys(d *Dataset) (out []string) {
	for i := range d.Len() {
		out = append(out, d.Key(ident.SampleID(i)))
	}
	return out
}

// check holds the invariants between the methods of a dataset.
func check(t testing.TB, c *Catalog, d *Dataset) {
	t.Helper()
	live, total := 0, int64(0)
	seen := map[ident.ObjectID]bool{}
	for i := range d.Len() {
		s := ident.SampleID(i)
		o := d.Object(s)
		if !d.Live(s) {
			if d.Bytes(s) != 0 {
				t.Errorf("tombstone %d has %d bytes", s, d.Bytes(s))
			}
			continue
		}
		live++
		total += d.Bytes(s)
		if seen[o] {
			t.Errorf("two samples have object %d", o)
		}
		seen[o] = true
		if back, ok := d.Sample(o); !ok || back != s {
			t.Errorf("sample %d has object %d, which is sample %d, %v", s, o, back, ok)
		}
		if d.Classes()[d.Label(s)] != d.Class(s) || !strings.HasPrefix(d.Key(s), d.Class(s)+"/") || d.Path(s) != filepath.Join(d.Root(), d.Key(s)) {
			t.Errorf("sample %d: label %d, class %q, key %q, path %q", s, d.Label(s), d.Class(s), d.Key(s), d.Path(s))
		}
		want, err := os.ReadFile(d.Path(s))
		got, rerr := c.Read(t.Context(), o, nil)
		if err != nil || rerr != nil || !bytes.Equal(want, got) || int64(len(got)) != d.Bytes(s) {
			t.Errorf("sample %d: read %d bytes %v, the file has %d, %v", s, len(got), rerr, len(want), err)
		}
	}
	if live != d.LiveCount() || total != d.TotalBytes() {
		t.Errorf("%d live samples of %d bytes, reported %d of %d", live, total, d.LiveCount(), d.TotalBytes())
	}
}

func TestTorchvisionOrder(t *testing.T) {
	root := tree(t,
		"b/2.JPG", "b/10.jpg", "b/a.txt", "b/.jpg", "b/x.jpeg.bak",
		"a/z.png", "a/sub/a.jpg", "a/sub.d/a.jpg", "a/sub/deep/0.webp", "a/sub-/q.bmp",
		"B/1.PpM", "a.b/1.tiff", "a b/1.pgm", "é/1.tif", ".hidden/1.jpeg",
		"stray.jpg", "README.md")
	must(t, os.Symlink(filepath.Join(root, "a"), filepath.Join(root, "link")))
	must(t, os.Symlink("../B/1.PpM", filepath.Join(root, "b", "3.jpg")))
	c, _ := open(t, "")
	d := add(t, c, "", root)
	want := []string{
		".hidden/1.jpeg", "B/1.PpM",
		"a/z.png", "a/sub/a.jpg", "a/sub-/q.bmp", "a/sub.d/a.jpg", "a/sub/deep/0.webp",
		"a b/1.pgm", "a.b/1.tiff",
		"b/.jpg", "b/10.jpg", "b/2.JPG", "b/3.jpg",
		"link/z.png", "link/sub/a.jpg", "link/sub-/q.bmp", "link/sub.d/a.jpg", "link/sub/deep/0.webp",
		"é/1.tif",
	}
	// Folders of one class are sorted as whole paths: a/sub < a/sub- < a/sub.d < a/sub/deep.
	if got := keys(d); !slices.Equal(got, want) {
		t.Errorf("keys\n%q\nwant\n%q", got, want)
	}
	if got := d.Classes(); !slices.Equal(got, []string{".hidden", "B", "a", "a b", "a.b", "b", "link", "é"}) {
		t.Errorf("classes %q", got)
	}
	if r := d.Report(); r.Ignored != 4 || r.Irregular != 0 || r.Loops != 0 {
		t.Errorf("%+v", r)
	}
	if d.Name() != "imagefolder:"+root || d.URI() != d.Name() || d.ID() != 0 || c.Objects() != len(want) {
		t.Errorf("%q %q %d, %d objects", d.Name(), d.URI(), d.ID(), c.Objects())
	}
	check(t, c, d)
}

// pythonList is make_dataset of torchvision 0.2x, with names as bytes in hexadecimal.
const pythonList = `
import os, sys
ext = ('.jpg','.jpeg','.png','.ppm','.bmp','.pgm','.tif','.tiff','.webp')
for directory in sys.argv[1:]:
    for i, target in enumerate(sorted(e.name for e in os.scandir(directory) if e.is_dir())):
        d = os.path.join(directory, target)
        for root, _, fnames in sorted(os.walk(d, followlinks=True)):
            for fname in sorted(fnames):
                if fname.lower().endswith(ext):
                    print(i, os.fsencode(os.path.relpath(os.path.join(root, fname), directory)).hex())
    print()
`

// TestAgainstPython compares ids, keys and labels with what Python lists, on trees with odd names.
func TestAgainstPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: the order is checked by TestTorchvisionOrder only")
	}
	r := xrand.New(41)
	part := func() string {
		alphabet := []string{"a", "b", "A", "-", ".", " ", "1", "é", "\xe9", "\xc3", "Z", "\U0001f600", "\uffee", "_"}
		s := "n"
		for range r.IntN(4) {
			s += alphabet[r.IntN(len(alphabet))]
		}
		return s
	}
	var roots []string
	for range 12 {
		root := t.TempDir()
		classes := []string{}
		for range 1 + r.IntN(4) {
			c := part()
			classes = append(classes, c)
			write(t, root, c+"/x.jpg", c)
		}
		for range 25 {
			rel := classes[r.IntN(len(classes))]
			for range r.IntN(3) {
				rel += "/d" + part()
			}
			write(t, root, rel+"/f"+part()+[]string{".jpg", ".PNG", ".txt", ".Jpeg", ""}[r.IntN(5)], "x")
		}
		roots = append(roots, root)
	}
	out, err := exec.Command(python, append([]string{"-c", pythonList}, roots...)...).Output()
	must(t, err)
	c, _ := open(t, "")
	var got strings.Builder
	for _, root := range roots {
		d := add(t, c, "", root)
		for i := range d.Len() {
			fmt.Fprintf(&got, "%d %x\n", d.Label(ident.SampleID(i)), d.Key(ident.SampleID(i)))
		}
		got.WriteByte('\n')
	}
	if got.String() != string(out) {
		a, b := strings.Split(got.String(), "\n"), strings.Split(string(out), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d: %q, Python says %q", i, a[i], b[i])
			}
		}
		t.Fatalf("%d lines, Python says %d", len(a), len(b))
	}
}

func TestPyCompare(t *testing.T) {
	decode := func(s string) (out []rune) {
		for s != "" {
			r, n := pyRune(s)
			out, s = append(out, r), s[n:]
		}
		return out
	}
	name := rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'b', '.', 'é', '€', '\uffee', '😀'}), 0, 6, -1)
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(label string) string {
			b := []byte(name.Draw(rt, label))
			if len(b) > 0 && rapid.Bool().Draw(rt, "cut") {
				b = b[:rapid.IntRange(0, len(b)).Draw(rt, "at")]
			}
			return string(append(b, rapid.SampledFrom([]string{"", "a", "\xff", "\x80"}).Draw(rt, "end")...))
		}
		a, b := draw("a"), draw("b")
		if got, want := pyCompare(a, b), slices.Compare(decode(a), decode(b)); got != want {
			rt.Fatalf("%q against %q: %d, want %d", a, b, got, want)
		}
	})
}

func TestLinks(t *testing.T) {
	root := tree(t, "a/1.jpg", "b/x/1.jpg")
	must(t, os.Link(filepath.Join(root, "a/1.jpg"), filepath.Join(root, "a/2.jpg")))
	must(t, os.Symlink("1.jpg", filepath.Join(root, "a/3.jpg")))
	must(t, os.Symlink("..", filepath.Join(root, "a/up")))      // to the root
	must(t, os.Symlink(".", filepath.Join(root, "b/x/self")))   // to itself
	must(t, os.Symlink("../..", filepath.Join(root, "b/x/up"))) // two up
	must(t, os.Symlink("nowhere", filepath.Join(root, "b/gone.txt")))
	must(t, os.Symlink("../a", filepath.Join(root, "b/a"))) // no loop
	must(t, unix.Mkfifo(filepath.Join(root, "b/pipe.jpg"), 0o600))
	c, _ := open(t, "")
	d := add(t, c, "", root)
	want := []string{"a/1.jpg", "a/2.jpg", "a/3.jpg", "b/a/1.jpg", "b/a/2.jpg", "b/a/3.jpg", "b/x/1.jpg"}
	if got := keys(d); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if r := d.Report(); r.Loops != 4 || r.Irregular != 1 || r.Ignored != 1 { // a/up is met again by b/a/up
		t.Errorf("%+v", r)
	}
	check(t, c, d) // six samples of one file have six objects

	loop := tree(t, "a/1.jpg")
	must(t, os.Symlink(".", filepath.Join(loop, "self")))
	_, err := c.Add(t.Context(), "", "imagefolder:"+loop)
	if !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), `class folder "self" is a symbolic link`) {
		t.Error(err)
	}

	// 2^20 paths lead to the last folder.
	bomb := tree(t, "a/1.jpg")
	for i := range 20 {
		p := filepath.Join(bomb, fmt.Sprintf("d%02d", i))
		must(t, os.Mkdir(p, 0o755))
		write(t, bomb, fmt.Sprintf("d%02d/1.jpg", i), "x")
		for _, l := range []string{"l", "r"} {
			must(t, os.Symlink(fmt.Sprintf("../d%02d", i+1), filepath.Join(p, l)))
		}
	}
	must(t, os.Mkdir(filepath.Join(bomb, "d20"), 0o755))
	write(t, bomb, "d20/1.jpg", "x")
	_, err = c.Add(t.Context(), "", "imagefolder:"+bomb)
	if !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), "paths lead to the folder") {
		t.Error(err)
	}
}

// TestLinkKeepsItsObject: when one name of a file goes, the other names keep their objects.
func TestLinkKeepsItsObject(t *testing.T) {
	root := tree(t, "a/1.jpg")
	for _, n := range []string{"2", "3"} {
		must(t, os.Link(filepath.Join(root, "a/1.jpg"), filepath.Join(root, "a", n+".jpg")))
	}
	c, _ := open(t, "")
	d := add(t, c, "", root)
	second, third := d.Object(1), d.Object(2)
	must(t, os.Remove(filepath.Join(root, "a/1.jpg")))
	write(t, root, "a/0.jpg", "other")
	add(t, c, "", root)
	if d.Live(0) || d.Object(1) != second || d.Object(2) != third || d.Len() != 4 {
		t.Errorf("objects %d and %d, before %d and %d", d.Object(1), d.Object(2), second, third)
	}
	if got, err := c.Read(t.Context(), second, nil); err != nil || string(got) != "content of a/1.jpg" {
		t.Errorf("%q, %v", got, err)
	}
	must(t, os.Link(filepath.Join(root, "a/2.jpg"), filepath.Join(root, "a/1.jpg")))
	add(t, c, "", root)
	check(t, c, d)
	if !d.Live(0) || d.Object(1) != second || d.Object(2) != third {
		t.Error("a name that came back moved the others")
	}
}

// TestManyLinks: thousands of links to one file cost one table probe each, not one per earlier link.
func TestManyLinks(t *testing.T) {
	root := tree(t, "a/0.jpg")
	for i := range 1500 {
		must(t, os.Symlink("0.jpg", filepath.Join(root, fmt.Sprintf("a/l%d.jpg", i))))
	}
	c, _ := open(t, "")
	d := add(t, c, "", root)
	if d.Len() != 1501 || c.Objects() != 1501 || len(d.snap.Load().rev) != 1 {
		t.Errorf("%d samples, %d objects, %d runs", d.Len(), c.Objects(), len(d.snap.Load().rev))
	}
}

func TestOverlap(t *testing.T) {
	root := tree(t, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
	other := tree(t, "z/own.jpg")
	must(t, os.Link(filepath.Join(root, "b/1.jpg"), filepath.Join(other, "z/hard.jpg")))
	must(t, os.Symlink(filepath.Join(root, "a/2.jpg"), filepath.Join(other, "z/soft.jpg")))
	c, _ := open(t, "")
	d, e := add(t, c, "train", root), add(t, c, "part", other)
	if c.SharedSamples(d) != 2 || c.SharedSamples(e) != 2 || c.Objects() != 5 {
		t.Errorf("%d and %d shared, %d objects", c.SharedSamples(d), c.SharedSamples(e), c.Objects())
	}
	if e.Object(0) != d.Object(2) || e.Object(2) != d.Object(1) || e.Label(0) != 0 || d.Label(2) != 1 {
		t.Errorf("objects %d %d %d", e.Object(0), e.Object(1), e.Object(2))
	}
	check(t, c, d)
	check(t, c, e)

	// The file was found first as b/1.jpg. When that name goes, the other dataset still reads it.
	must(t, os.Remove(filepath.Join(root, "b/1.jpg")))
	got, err := c.Read(t.Context(), e.Object(0), nil)
	if err != nil || string(got) != "content of b/1.jpg" {
		t.Errorf("%q, %v", got, err)
	}
	again := add(t, c, "train", root)
	if again != d || d.Live(2) || c.SharedSamples(e) != 1 {
		t.Errorf("same dataset %v, live %v, %d shared", again == d, d.Live(2), c.SharedSamples(e))
	}
	check(t, c, e)

	// One folder under two names is one set of ids and objects.
	alias := add(t, c, "alias", root)
	if alias == d || alias.Object(1) != d.Object(1) || c.SharedSamples(alias) != 3 {
		t.Errorf("%d shared", c.SharedSamples(alias))
	}
	if _, err := c.Add(t.Context(), "train", "imagefolder:"+other); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("%v", err)
	}
	if l := c.List(); len(l) != 3 || l[0] != d || l[1] != e || l[2] != alias {
		t.Errorf("%v", l)
	}
	for _, name := range []string{"part", "imagefolder:" + other, "imagefolder://" + other + "/"} {
		g, ok := c.Get(name)
		o, err := c.Open(t.Context(), name)
		if !ok || g != e || err != nil || o != e {
			t.Errorf("Get(%q) = %v; Open: %v", name, ok, err)
		}
	}
	if b, ok := c.ByID(e.ID()); !ok || b != e {
		t.Error("ByID")
	}
	if _, ok := c.ByID(99); ok {
		t.Error("ByID(99)")
	}
}

func TestChangedFile(t *testing.T) {
	root := tree(t, "a/1.jpg", "a/2.jpg")
	age(t, root)
	c, ev := open(t, "")
	d := add(t, c, "", root)
	o, fp := d.Object(0), d.Fingerprint()
	path := d.Path(0)
	must(t, os.WriteFile(path, []byte("something else that is longer"), 0o644)) // in place: the folder does not change
	if add(t, c, "", root); ev.count("indexed") != 1 {
		t.Fatalf("the folder's time changed; the test proves nothing")
	}
	_, err := c.Read(t.Context(), o, nil)
	if !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), "changed since it was indexed") || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if _, err := c.Probe(o); !fault.Is(err, fault.DatasetUnread) {
		t.Errorf("%v", err)
	}
	if add(t, c, "", root) != d || ev.count("indexed") != 2 {
		t.Error("Add did not walk after a read found a change")
	}
	if d.Object(0) == o || d.Object(1) == o || d.Len() != 2 || d.Fingerprint() == fp {
		t.Errorf("the changed file has object %d, it was %d", d.Object(0), o)
	}
	if s, ok := d.Sample(o); !ok || s != 0 {
		t.Errorf("the old object leads to sample %d, %v", s, ok)
	}
	check(t, c, d)
	// A read of the superseded object fails for good, but does not make every Add walk.
	if _, err := c.Read(t.Context(), o, nil); err == nil {
		t.Error("the old object was read")
	}
	if add(t, c, "", root); ev.count("indexed") != 2 {
		t.Error("walked again")
	}
	// Same size, only the modification time tells.
	must(t, os.Chtimes(d.Path(1), time.Time{}, time.Now().Add(time.Minute)))
	if _, err := c.Read(t.Context(), d.Object(1), nil); !fault.Is(err, fault.DatasetUnread) {
		t.Errorf("%v", err)
	}
	fp = d.Fingerprint()
	if add(t, c, "", root); d.Fingerprint() == fp {
		t.Error("the fingerprint does not show a new modification time")
	}
	must(t, os.Remove(path))
	if _, err := c.Read(t.Context(), d.Object(0), nil); !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), "removed") {
		t.Errorf("%v", err)
	}
	must(t, unix.Mkfifo(path, 0o600))
	if _, err := c.Read(t.Context(), d.Object(0), nil); !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}

// TestLabelsNeverMove: when class folders change so that numbers shift, a new dataset takes the name.
func TestLabelsNeverMove(t *testing.T) {
	root := tree(t, "b/1.jpg", "c/1.jpg")
	c, _ := open(t, "")
	d := add(t, c, "x", root)
	write(t, root, "d/1.jpg", "last") // sorts last: nothing shifts
	if add(t, c, "x", root) != d || d.Len() != 3 || !slices.Equal(d.Classes(), []string{"b", "c", "d"}) {
		t.Errorf("%q", d.Classes())
	}
	write(t, root, "a/1.jpg", "first")
	e := add(t, c, "x", root)
	if e == d || e.ID() != 1 || d.Len() != 3 || d.Label(0) != 0 || e.Label(0) != 1 || e.Key(0) != "b/1.jpg" || e.Key(3) != "a/1.jpg" || e.Label(3) != 0 {
		t.Errorf("%v: %q %v: %q", d.Classes(), keys(d), e.Classes(), keys(e))
	}
	if e.Object(1) != d.Object(1) {
		t.Error("the versions do not share objects")
	}
	if g, _ := c.Get("x"); g != e || len(c.List()) != 1 {
		t.Error("the old one is still listed")
	}
	if b, _ := c.ByID(0); b != d {
		t.Error("the old one is gone")
	}
	must(t, os.RemoveAll(filepath.Join(root, "b")))
	f := add(t, c, "x", root)
	if f == e || f.Live(0) || f.Label(0) != -1 || f.Class(0) != "b" || f.Label(1) != 1 || e.Label(0) != 1 {
		t.Errorf("%v: live %v label %d", f.Classes(), f.Live(0), f.Label(0))
	}
	check(t, c, f)
}

// TestReindexModel: random changes, restarts and damage-free saves against a map from key to id.
func TestReindexModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		base, err := os.MkdirTemp("", "larder-source-")
		must(t, err)
		defer os.RemoveAll(base)
		root, index := filepath.Join(base, "data"), filepath.Join(base, "index")
		write(t, root, "a/keep.jpg", "a")
		write(t, root, "b/keep.jpg", "b")
		c, err := OpenCatalog(CatalogConfig{IndexDir: index, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		content := map[string]string{"a/keep.jpg": "a", "b/keep.jpg": "b"}
		model := map[string]ident.SampleID{} // every key ever seen
		objects := map[string]ident.ObjectID{}
		was := map[string]string{} // content at the last indexing
		step := 0
		for range rapid.IntRange(2, 4).Draw(rt, "rounds") {
			for range rapid.IntRange(0, 8).Draw(rt, "changes") {
				step++
				key := rapid.SampledFrom([]string{"a", "b", "b/sub"}).Draw(rt, "dir") + "/" + rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(rt, "file") + ".jpg"
				if _, ok := content[key]; ok && rapid.Bool().Draw(rt, "remove") {
					must(t, os.Remove(filepath.Join(root, key)))
					delete(content, key)
					continue
				}
				content[key] = strings.Repeat("x", 1+step) // another length: a change is a change at any clock
				write(t, root, key, content[key])
			}
			if rapid.Bool().Draw(rt, "restart") {
				must(t, c.Close())
				c, err = OpenCatalog(CatalogConfig{IndexDir: index, Logger: slog.New(slog.DiscardHandler)})
				must(t, err)
				clear(objects)
			}
			d, err := c.Add(context.Background(), "", "imagefolder:"+root)
			must(t, err)
			var fresh []string
			for k := range content {
				if _, ok := model[k]; !ok {
					fresh = append(fresh, k)
				}
			}
			slices.SortFunc(fresh, func(a, b string) int {
				return pyCompare(filepath.Dir(a)+"\x00"+filepath.Base(a), filepath.Dir(b)+"\x00"+filepath.Base(b))
			})
			for _, k := range fresh {
				model[k] = ident.SampleID(len(model))
			}
			if d.Len() != len(model) || d.LiveCount() != len(content) {
				rt.Fatalf("%d ids, %d live; want %d, %d", d.Len(), d.LiveCount(), len(model), len(content))
			}
			for k, id := range model {
				_, live := content[k]
				if d.Key(id) != k || d.Live(id) != live {
					rt.Fatalf("id %d is %q (live %v), want %q (live %v)", id, d.Key(id), d.Live(id), k, live)
				}
				if !live {
					delete(objects, k)
					continue
				}
				o := d.Object(id)
				if before, ok := objects[k]; ok && (before == o) != (was[k] == content[k]) {
					rt.Fatalf("%q: object %d, before %d; content changed: %v", k, o, before, was[k] != content[k])
				}
				objects[k], was[k] = o, content[k]
			}
			check(t, c, d)
		}
		must(t, c.Close())
	})
}

func TestErrors(t *testing.T) {
	empty := t.TempDir()
	file := filepath.Join(tree(t, "a/1.jpg"), "a/1.jpg")
	flat := tree(t, "1.jpg", "2.jpg")
	hollow := tree(t, "a/1.jpg", "b/readme.txt", "c/x.md")
	dangling := tree(t, "a/1.jpg")
	must(t, os.Symlink("nothing", filepath.Join(dangling, "a/2.jpg")))
	c, _ := open(t, "")
	for _, x := range []struct {
		name, uri string
		reason    fault.Reason
		says      string
	}{
		{"", "", fault.Invalid, "has no scheme"},
		{"", "/data/train", fault.Invalid, "did you mean imagefolder:/data/train?"},
		{"", "imagfolder:/data", fault.Invalid, "did you mean imagefolder:/data?"},
		{"", "imagefolder:", fault.Invalid, "names no folder"},
		{"", "imagefolder://host/x", fault.Invalid, "names a host"},
		{"", "imagefolder:~/x", fault.Invalid, "~ is not expanded"},
		{"", "imagefolder:/a\x00b", fault.Invalid, "NUL"},
		{"", "imagefolder:" + empty + "/none", fault.DatasetUnread, "no such file"},
		{"", "imagefolder:" + file, fault.DatasetUnread, "is a file"},
		{"", "imagefolder:" + file + "/x", fault.DatasetUnread, "not a directory"},
		{"", "imagefolder:" + empty, fault.DatasetEmpty, "no class folders"},
		{"", "imagefolder:" + flat, fault.DatasetEmpty, "2 images of its own"},
		{"", "imagefolder:" + hollow, fault.DatasetEmpty, `class folder "b" of`},
		{"", "imagefolder:" + hollow, fault.DatasetEmpty, "and 1 more"},
		{"", "imagefolder:" + dangling, fault.DatasetUnread, "a/2.jpg"},
		{"bad\nname", "imagefolder:" + flat, fault.Invalid, "control character"},
		{"\xff", "imagefolder:" + flat, fault.Invalid, "not UTF-8"},
		{strings.Repeat("x", 257), "imagefolder:" + flat, fault.Invalid, "256"},
		{" x", "imagefolder:" + flat, fault.Invalid, "space"},
		{"imagefolder:/other", "imagefolder:" + flat, fault.Invalid, "uri of another"},
	} {
		_, err := c.Add(t.Context(), x.name, x.uri)
		if !fault.Is(err, x.reason) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("Add(%q, %q): %v; want %s and %q", x.name, x.uri, err, x.reason, x.says)
		}
	}
	if len(c.List()) != 0 || c.Objects() != 0 {
		t.Error("a failed Add left something behind")
	}
	if _, err := c.Open(t.Context(), "trian"); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "dataset add") {
		t.Errorf("%v", err)
	}
	if _, err := c.Open(t.Context(), "./x"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "imagefolder:./x") {
		t.Errorf("%v", err)
	}
	if _, err := c.Reindex(t.Context(), "x"); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Read(t.Context(), 7, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Probe(7); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if p, _ := c.ObjectPath(7); p != "" || c.ObjectBytes(7) != 0 {
		t.Errorf("%q", p)
	}
	for _, cfg := range []CatalogConfig{{ReadLimit: -1}, {MaxObject: -1}, {IndexDir: file + "/x"}} {
		if _, err := OpenCatalog(cfg); !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	d := add(t, c, "", tree(t, "a/1.jpg", "a/2.jpg"))
	if _, err := d.Select("label > 0"); !fault.Is(err, fault.SubsetEmpty) || !strings.Contains(err.Error(), "none of the 2 samples") {
		t.Errorf("%v", err)
	}
	if _, err := d.Select("lable > 0"); !fault.Is(err, fault.SubsetSyntax) {
		t.Errorf("%v", err)
	}
	if _, err := d.Select("range(0, 3)"); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
	if ids, err := d.Select(`key ~ "a/2*"`); err != nil || !slices.Equal(ids, []ident.SampleID{1}) {
		t.Errorf("%v %v", ids, err)
	}
	if d.Live(2) || d.Object(2) != NoObject || d.Label(9) != -1 || d.Key(9) != "" || d.Path(9) != "" || d.Class(9) != "" || d.Bytes(9) != 0 {
		t.Error("out of range")
	}
	if _, ok := d.Sample(NoObject); ok {
		t.Error("NoObject is a sample")
	}
}

func TestPermissions(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything; TestUnreadablePaths covers the errors")
	}
	root := tree(t, "a/1.jpg", "a/x/1.jpg", "b/y/1.jpg")
	for _, p := range []string{"a/x", "b/y"} {
		must(t, os.Chmod(filepath.Join(root, p), 0))
		defer os.Chmod(filepath.Join(root, p), 0o755)
	}
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "imagefolder:"+root)
	if !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), `a/x" cannot be read (the first of 2`) || !errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
}

// TestUnreadablePaths: every path that cannot be read is counted, and the first in order is named.
func TestUnreadablePaths(t *testing.T) {
	root := tree(t, "a/1.jpg", "b/1.jpg", "b/ok.jpg")
	must(t, os.Symlink("loop.jpg", filepath.Join(root, "b/loop.jpg"))) // ELOOP
	must(t, os.Symlink("gone", filepath.Join(root, "b/gone.jpg")))
	must(t, os.Symlink("gone", filepath.Join(root, "a/gone.jpg")))
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "imagefolder:"+root)
	if !fault.Is(err, fault.DatasetUnread) || !strings.Contains(err.Error(), `a/gone.jpg" cannot be read (the first of 3`) {
		t.Error(err)
	}
	w := &walker{root: "/r"}
	w.unreadable("/r/b", &os.PathError{Op: "open", Path: "/r/b", Err: unix.EIO})
	w.unreadable("/r/a", &os.PathError{Op: "open", Path: "/r/a", Err: unix.EACCES})
	if _, err := w.finish(); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "make the whole dataset readable") {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	root := tree(t, "a/1.jpg")
	c, _ := open(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Add(ctx, "", "imagefolder:"+root); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// Someone else walks the root: a waiter gives up with its context.
	rs := c.rootState(root)
	must(t, rs.lock(t.Context()))
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.Add(ctx, "", "imagefolder:"+root); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	rs.unlock()
	if _, err := walkFolder(ctx, root); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := unchangedDirs(ctx, root, make([]dirRow, 3)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	d := add(t, c, "", root)
	if _, err := c.Read(ctx, d.Object(0), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestConcurrent: many datasets, re-indexing and reading at once; the race detector is the judge.
func TestConcurrent(t *testing.T) {
	root := tree(t, "a/1.jpg", "a/2.jpg", "b/1.jpg")
	other := tree(t, "z/1.jpg")
	must(t, os.Symlink(filepath.Join(root, "a"), filepath.Join(other, "a")))
	c, _ := open(t, t.TempDir())
	add(t, c, "", root)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				name, uri := fmt.Sprintf("n%d", g), "imagefolder:"+[]string{root, other}[(g+i)%2]
				d, err := c.Add(context.Background(), name+uri[len(uri)-3:], uri)
				if err != nil {
					t.Error(err)
					return
				}
				if g == 0 {
					if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("b/n%d.jpg", i)), []byte("new"), 0o644); err != nil {
						t.Error(err)
					}
				}
				for s := range ident.SampleID(d.Len()) {
					if o := d.Object(s); s < 3 {
						if _, err := c.Read(context.Background(), o, nil); err != nil {
							t.Error(err)
						}
					}
				}
				c.SharedSamples(d)
				c.List()
				c.ObjectPath(ident.ObjectID(c.Objects() - 1))
			}
		})
	}
	wg.Wait()
	for _, d := range c.List() {
		d, err := c.Open(t.Context(), d.Name())
		must(t, err)
		check(t, c, d)
	}
}

func TestObjectTableModel(t *testing.T) {
	type key struct {
		f   fileMeta
		ord uint32
	}
	rapid.Check(t, func(rt *rapid.T) {
		var table objectTable
		model := map[key]ident.ObjectID{}
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		for range rapid.IntRange(0, 3000).Draw(rt, "n") {
			k := key{fileMeta{dev: uint64(r.IntN(3)), ino: uint64(r.IntN(20)), size: int64(r.IntN(3)), mtime: int64(r.IntN(3))}, uint32(r.IntN(3))}
			got := table.internLocked(k.f, k.ord, 0, 0)
			want, ok := model[k]
			if !ok {
				want = ident.ObjectID(len(model))
				model[k] = want
			}
			if m, _ := table.meta(got); got != want || m != k.f {
				rt.Fatalf("%+v is %d (%+v), want %d", k, got, m, want)
			}
		}
		if table.len() != len(model) {
			rt.Fatalf("%d rows, want %d", table.len(), len(model))
		}
	})
}

func TestReverseModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		best := map[ident.ObjectID]named{}
		var all []named
		for range rapid.IntRange(0, 60).Draw(rt, "n") {
			o := ident.ObjectID(r.IntN(50))
			x := named{o, ident.SampleID(uint32(o) + uint32(r.IntN(2))*100), uint8(r.IntN(3))}
			all = append(all, x)
			if b, ok := best[o]; !ok || x.rank < b.rank {
				best[o] = x
			}
		}
		rev := makeReverse(all)
		for o := range ident.ObjectID(55) {
			got, ok := rev.find(o)
			if want, has := best[o]; ok != has || ok && got != want.sample {
				rt.Fatalf("object %d: sample %d, %v; want %+v, %v", o, got, ok, want, has)
			}
		}
	})
}

// TestPhotographs indexes the test photographs, if they are there.
func TestPhotographs(t *testing.T) {
	base := os.Getenv("LARDER_TESTDATA")
	if base == "" {
		base = filepath.Join("..", "..", "..", "shared", "data")
	}
	root, err := filepath.Abs(filepath.Join(base, "imagenet-700"))
	must(t, err)
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no photographs at %s; set LARDER_TESTDATA", base)
	}
	c, _ := open(t, "")
	d := add(t, c, "", root)
	if d.LiveCount() != 700 || len(d.Classes()) != 70 {
		t.Fatalf("%d samples in %d classes", d.LiveCount(), len(d.Classes()))
	}
	for s := range ident.SampleID(d.Len()) {
		p, err := c.Probe(d.Object(s))
		f, ferr := os.Open(d.Path(s))
		must(t, ferr)
		want, derr := jpeg.DecodeConfig(f)
		must(t, f.Close())
		if err != nil || derr != nil || p != (Probe{"jpeg", want.Width, want.Height}) {
			t.Errorf("%s: %+v, %v; image/jpeg says %d x %d, %v", d.Key(s), p, err, want.Width, want.Height, derr)
		}
	}
	check(t, c, d)
}
