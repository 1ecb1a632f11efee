package source

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"larder/internal/errs"
)

func madeCatalog(t *testing.T, cfg CatalogConfig) *Catalog {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	c, err := OpenCatalog(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func addMade(t *testing.T, c *Catalog, m Made) *Dataset {
	t.Helper()
	d, added, err := c.AddMade(t.Context(), m)
	if err != nil || !added {
		t.Fatalf("declare %s: %v, %v", m.URI(), added, err)
	}
	return d
}

func removeMade(t *testing.T, c *Catalog, d *Dataset) {
	t.Helper()
	own, _, err := c.Remove(t.Context(), d)
	if err != nil || own.Len() != d.Len() {
		t.Fatalf("remove %s: %d objects are its own, %v", d.Name(), own.Len(), err)
	}
}

func TestAllMadeDatasetsTogetherAreBounded(t *testing.T) {
	c := madeCatalog(t, CatalogConfig{MaxMade: 1000})
	a := addMade(t, c, Made{Name: "a", Length: 600})
	if _, added, err := c.AddMade(t.Context(), Made{Name: "a", Length: 600}); added || err != nil {
		t.Errorf("the same again: %v, %v", added, err)
	}
	addMade(t, c, Made{Name: "b", Length: 300})
	for range 2 { // what is refused takes nothing
		_, _, err := c.AddMade(t.Context(), Made{Name: "c", Length: 101})
		const says = "it has 101 samples, the other datasets made by workers have 900, and 1000 in all are the most"
		if !errs.Is(err, errs.ResourceExceeded) || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%v", err)
		}
	}
	addMade(t, c, Made{Name: "d", Length: 100})
	removeMade(t, c, a)
	addMade(t, c, Made{Name: "e", Length: 600})
}

func TestObjectsOfPrivateDatasetsAreUsedAgain(t *testing.T) {
	c := madeCatalog(t, CatalogConfig{})
	const sets, n = 1000, 1000
	private := func(i int) Made { return Made{Name: fmt.Sprintf("PID-1/%d", i), Length: n, Private: true} }
	for i := range sets {
		d := addMade(t, c, private(i))
		path, _ := c.ObjectPath(d.Object(7))
		if want := fmt.Sprintf("python:PID-1/%d@#7", i); path != want {
			t.Fatalf("sample 7 of %s is %q", d.Name(), path)
		}
		_, _, mtime := d.File(d.Object(7))
		removeMade(t, c, d)
		if _, _, again := d.File(d.Object(7)); again != mtime || d.Len() != n {
			t.Fatalf("a holder reads %d samples, of %d and then %d", d.Len(), mtime, again)
		}
		if s, ok := d.Sample(d.Object(7)); !ok || s != 7 {
			t.Fatalf("a holder finds sample %d, %v", s, ok)
		}
		if _, ok := c.ByID(d.ID()); ok || d.rs.snap.Load().objs != nil {
			t.Fatal("the catalogue keeps a removed dataset")
		}
	}
	if got := c.Objects(); got != n {
		t.Errorf("%d objects after %d sets of %d, one at a time", got, sets, n)
	}
	held := []*Dataset{addMade(t, c, private(sets)), addMade(t, c, private(sets+1)), addMade(t, c, private(sets+2))}
	seen := map[uint32]bool{}
	for _, d := range held {
		for i := range n {
			if o := uint32(d.Object(sampleID(i))); seen[o] {
				t.Fatalf("object %d is of two datasets", o)
			} else {
				seen[o] = true
			}
		}
	}
	if got := c.Objects(); got != 3*n {
		t.Errorf("%d objects for three at once", got)
	}
	if len(c.List()) != 3 {
		t.Errorf("%d datasets", len(c.List()))
	}
	named := addMade(t, c, Made{Name: "named", Length: n})
	was := named.Object(3)
	removeMade(t, c, named)
	if again := addMade(t, c, Made{Name: "named", Length: n}); again.Object(3) != was {
		t.Error("a named one came back with other objects")
	}
}
