package source

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"larder/internal/errs"
)

// private is a folder of the daemon's user: class folders and another file, or nothing.
func private(t *testing.T, full bool) string {
	t.Helper()
	dir := t.TempDir()
	if full {
		err := errors.Join(os.Mkdir(dir+"/secret", 0o755), os.WriteFile(dir+"/secret/1.jpg", []byte("x"), 0o600),
			os.WriteFile(dir+"/secret/report.docx", nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	chmod(t, dir, 0o700)
	return dir
}

// A refused user learns nothing of what lies behind what he may not read: the answer is the same whether anything does,
// and no dataset is made.
func TestIndexForLeavesNothing(t *testing.T) {
	full, empty := private(t, true), private(t, false)
	for name, x := range map[string]struct {
		make_ func(dir, target string) error
		want  string
	}{
		"class":  {func(dir, target string) error { return os.Symlink(target, dir+"/c") }, "/c: it is a symbolic link"},
		"deeper": {func(dir, target string) error { return os.Symlink(target, dir+"/a/c") }, "/a/c: it is a symbolic link"},
		"image": {func(dir, target string) error { return os.Symlink(target+"/secret/1.jpg", dir+"/a/x.jpg") },
			"/a/x.jpg: it is a symbolic link"},
		"closed": {func(dir, target string) error {
			return errors.Join(os.Mkdir(dir+"/z", 0o755), os.CopyFS(dir+"/z", os.DirFS(target)),
				os.Chmod(dir+"/z", 0o700)) //nolint:gosec // a folder
		}, "/z: its owner, mode"},
		"file": {func(dir, _ string) error { return os.Chmod(dir+"/b/2.jpg", 0o600) }, "/b/2.jpg: its owner, mode"},
	} {
		t.Run(name, func(t *testing.T) {
			said := map[string]bool{}
			for _, target := range []string{full, empty, "/nowhere"} {
				if name == "closed" && target == "/nowhere" {
					continue
				}
				dir, _, _ := readable(t)
				c, err := OpenCatalog(CatalogConfig{IndexDir: t.TempDir()})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := x.make_(dir, target); err != nil {
					t.Fatal(err)
				}
				_, err = c.OpenFor(t.Context(), "imagefolder:"+dir, false, reader)
				if !errs.Is(err, errs.Denied) || !strings.Contains(err.Error(), x.want) {
					t.Errorf("%s: %v; want %q", target, err, x.want)
				}
				said[strings.ReplaceAll(err.Error(), dir, "")] = true
				if left := c.List(); len(left) != 0 || c.Objects() != 0 {
					t.Errorf("%s: %d datasets and %d objects are left", target, len(left), c.Objects())
				}
			}
			if len(said) != 1 {
				t.Errorf("the answers differ: %v", said)
			}
		})
	}
}

// What is indexed already, for another user or before a restart, is shown to those who may read it; an index on disk
// makes no exception.
func TestSeeingAnIndexedDataset(t *testing.T) {
	dir, _, _ := readable(t)
	uri, indexes := "imagefolder:"+dir, t.TempDir()
	open := func() *Catalog {
		c, err := OpenCatalog(CatalogConfig{IndexDir: indexes})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	c := open()
	d, err := c.OpenFor(t.Context(), uri, false, reader)
	if err != nil || d.Len() != 4 {
		t.Fatalf("%v, %v", d, err)
	}
	if err := c.MaySee(t.Context(), d, reader); err != nil || d.rs.guarded.Load() {
		t.Errorf("%v; seeing changes how it is read: %v", err, d.rs.guarded.Load())
	}
	chmod(t, dir+"/b", 0o700)
	if err := c.MaySee(t.Context(), d, reader); !errs.Is(err, errs.Denied) {
		t.Errorf("its folders are listable, but for one: %v", err)
	}
	if err := c.MayList(uri, reader); err != nil {
		t.Errorf("the root alone: %v", err)
	}
	if _, err := c.ReindexFor(t.Context(), d, reader); !errs.Is(err, errs.Denied) || d.LiveCount() != 4 {
		t.Errorf("indexed again for a user who may not read it: %v, %d samples", err, d.LiveCount())
	}
	next := open()
	if _, err := next.OpenFor(t.Context(), uri, false, reader); !errs.Is(err, errs.Denied) || len(next.List()) != 0 {
		t.Errorf("from the saved index: %v, %d datasets", err, len(next.List()))
	}
	chmod(t, dir+"/b", 0o755)
	other := Reader{UID: 61002, GID: 61002}
	chmod(t, dir+"/b/2.jpg", 0o600)
	if err := c.MaySee(t.Context(), d, other); !errs.Is(err, errs.Denied) {
		t.Errorf("another user, of a file that is closed: %v", err)
	}
}

// A walk for another user ends where his folder is larger than any dataset.
func TestIndexForIsBounded(t *testing.T) {
	dir, _, _ := readable(t)
	w := &walker{root: dir, as: rightsOf(reader), maxNames: 5}
	w.wake = sync.NewCond(&w.mu)
	if !w.asked(5) || w.stopped != nil {
		t.Error("refused within the bound")
	}
	if w.asked(1) || !errs.Is(w.stopped, errs.ResourceExceeded) || !strings.Contains(w.stopped.Error(),
		"more than 5 files and folders") {
		t.Errorf("above the bound: %v", w.stopped)
	}
	w = &walker{root: dir}
	if !w.asked(maxAsked + 1) {
		t.Error("the daemon's own user is bound too")
	}
}
