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
