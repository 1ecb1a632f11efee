package source

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
)

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
	if !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(),
			`self" cannot be read: it is a symbolic link to a folder that holds it (remove the link)`) {
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
	if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "paths lead to the folder") {
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
	if _, err := c.Add(t.Context(), "train", "imagefolder:"+other); !errs.Is(err, errs.AlreadyExists) {
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
	if e == d || e.ID() != 1 || d.Len() != 3 || d.Label(0) != 0 || e.Label(0) != 1 || e.Key(0) != "b/1.jpg" ||
		e.Key(3) != "a/1.jpg" || e.Label(3) != 0 {
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
				key := rapid.SampledFrom([]string{"a", "b", "b/sub"}).Draw(rt, "dir") + "/" +
					rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(rt, "file") + ".jpg"
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
			k := key{fileMeta{dev: uint64(r.IntN(3)), ino: uint64(r.IntN(20)), size: int64(r.IntN(3)), mtime: int64(r.IntN(3))},
				uint32(r.IntN(3))}
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
