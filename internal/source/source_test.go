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

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv"
	"larder/internal/xrand"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(indexerDir); dir != "" {
		os.Exit(indexer(dir))
	}
	goleak.VerifyTestMain(m)
}

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
		if d.Classes()[d.Label(s)] != d.Class(s) || !strings.HasPrefix(d.Key(s), d.Class(s)+"/") ||
			d.Path(s) != filepath.Join(d.Root(), d.Key(s)) {
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
			fmt.Fprintf(&got, "%d %x\n", d.Label(ident.SampleID(i)), d.snap.Load().Key(ident.SampleID(i)))
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
	if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "changed since it was indexed") ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if _, err := c.Probe(t.Context(), o); !errs.Is(err, errs.DatasetUnread) {
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
	// Same size, only the modification time differs.
	must(t, os.Chtimes(d.Path(1), time.Time{}, time.Now().Add(time.Minute)))
	if _, err := c.Read(t.Context(), d.Object(1), nil); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("%v", err)
	}
	fp = d.Fingerprint()
	if add(t, c, "", root); d.Fingerprint() == fp {
		t.Error("the fingerprint does not show a new modification time")
	}
	must(t, os.Remove(path))
	if _, err := c.Read(t.Context(), d.Object(0), nil); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), "removed") {
		t.Errorf("%v", err)
	}
	must(t, unix.Mkfifo(path, 0o600))
	if _, err := c.Read(t.Context(), d.Object(0), nil); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
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
		reason    errs.Reason
		says      string
	}{
		{"", "", errs.Invalid, "has no scheme"},
		{"", "/data/train", errs.Invalid, "did you mean imagefolder:/data/train?"},
		{"", "imagfolder:/data", errs.Invalid, "did you mean imagefolder:/data?"},
		{"", "imagefolder:", errs.Invalid, "names no folder"},
		{"", "imagefolder://host/x", errs.Invalid, "names a host"},
		{"", "imagefolder:~/x", errs.Invalid, "~ is not expanded"},
		{"", "imagefolder:/a\x00b", errs.Invalid, "NUL"},
		{"", "imagefolder:" + empty + "/none", errs.DatasetUnread, "no such file"},
		{"", "imagefolder:" + file, errs.DatasetUnread, "is a file"},
		{"", "imagefolder:" + file + "/x", errs.DatasetUnread, "not a directory"},
		{"", "imagefolder:" + empty, errs.DatasetEmpty, "no class folders"},
		{"", "imagefolder:" + flat, errs.DatasetEmpty, "2 images of its own"},
		{"", "imagefolder:" + hollow, errs.DatasetEmpty, `class folder "b" of`},
		{"", "imagefolder:" + hollow, errs.DatasetEmpty, `class folder "c" of`},
		{"", "imagefolder:" + dangling, errs.DatasetUnread, "a/2.jpg"},
		{"bad\nname", "imagefolder:" + flat, errs.Invalid, "control character"},
		{"\xff", "imagefolder:" + flat, errs.Invalid, "not UTF-8"},
		{strings.Repeat("x", 257), "imagefolder:" + flat, errs.Invalid, "256"},
		{" x", "imagefolder:" + flat, errs.Invalid, "space"},
		{"imagefolder:/other", "imagefolder:" + flat, errs.Invalid, "uri of another"},
	} {
		_, err := c.Add(t.Context(), x.name, x.uri)
		if !errs.Is(err, x.reason) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("Add(%q, %q): %v; want %s and %q", x.name, x.uri, err, x.reason, x.says)
		}
	}
	if len(c.List()) != 0 || c.Objects() != 0 {
		t.Error("a failed Add left something behind")
	}
	if _, err := c.Open(t.Context(), "trian"); !errs.Is(err, errs.NotFound) ||
		!strings.Contains(err.Error(), "dataset add") {
		t.Errorf("%v", err)
	}
	if _, err := c.Open(t.Context(), "./x"); !errs.Is(err, errs.Invalid) ||
		!strings.Contains(err.Error(), "imagefolder:./x") {
		t.Errorf("%v", err)
	}
	if _, err := c.Reindex(t.Context(), "x"); !errs.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Read(t.Context(), 7, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Probe(t.Context(), 7); !errs.Is(err, errs.NotFound) {
		t.Errorf("%v", err)
	}
	if p, _ := c.ObjectPath(7); p != "" || c.ObjectBytes(7) != 0 {
		t.Errorf("%q", p)
	}
	for _, cfg := range []CatalogConfig{{StorageLimit: -1}, {MaxObject: -1}, {IndexDir: file + "/x"}} {
		if _, err := OpenCatalog(cfg); !errs.Is(err, errs.ConfigInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	wrongQueries(t, c)
}

// wrongQueries asks a dataset of two samples for what it does not have.
func wrongQueries(t *testing.T, c *Catalog) {
	t.Helper()
	d := add(t, c, "", tree(t, "a/1.jpg", "a/2.jpg"))
	if _, err := d.Select("label > 0"); !errs.Is(err, errs.SubsetEmpty) ||
		!strings.Contains(err.Error(), "none of the 2 samples") {
		t.Errorf("%v", err)
	}
	if _, err := d.Select("lable > 0"); !errs.Is(err, errs.SubsetSyntax) {
		t.Errorf("%v", err)
	}
	if _, err := d.Select("range(0, 3)"); !errs.Is(err, errs.Invalid) {
		t.Errorf("%v", err)
	}
	if ids, err := d.Select(`key ~ "a/2*"`); err != nil || !slices.Equal(ids, []ident.SampleID{1}) {
		t.Errorf("%v %v", ids, err)
	}
	if d.Live(2) || d.Object(2) != NoObject || d.Label(9) != -1 || d.Key(9) != "" || d.Path(9) != "" || d.Class(9) != "" ||
		d.Bytes(9) != 0 {
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
	if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), `b/y" cannot be read: permission denied`) ||
		!errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
}

// TestUnreadablePaths: every path that cannot be read is named.
func TestUnreadablePaths(t *testing.T) {
	root := tree(t, "a/1.jpg", "b/1.jpg", "b/ok.jpg")
	must(t, os.Symlink("loop.jpg", filepath.Join(root, "b/loop.jpg"))) // ELOOP
	must(t, os.Symlink("gone", filepath.Join(root, "b/gone.jpg")))
	must(t, os.Symlink("gone", filepath.Join(root, "a/gone.jpg")))
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "imagefolder:"+root)
	for _, says := range []string{"3 problems", `a/gone.jpg" cannot be read: symbolic link to nothing`,
		`b/gone.jpg" cannot be read`, `b/loop.jpg" cannot be read: too many`} {
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	w := &walker{root: "/r"}
	w.unreadable("/r/b", &os.PathError{Op: "open", Path: "/r/b", Err: unix.EIO})
	w.unreadable("/r/a", &os.PathError{Op: "open", Path: "/r/a", Err: unix.EACCES})
	if _, err := w.finish(); !errors.Is(err, unix.EACCES) ||
		!strings.Contains(err.Error(), "make the whole dataset readable") {
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
	rs := c.rootState(place{uri: "imagefolder:" + root, root: root})
	must(t, rs.lock(t.Context()))
	ctx = testenv.DeadlineOnWait(t.Context())
	if _, err := c.Add(ctx, "", "imagefolder:"+root); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	rs.unlock()
	if _, err := walkFolder(ctx, root, allowEmpty{}, nil); !errors.Is(err, context.DeadlineExceeded) {
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
		p, err := c.Probe(t.Context(), d.Object(s))
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
