package source

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// TestProgressCountsWhatIsIndexed: every sample of a first index is reported, and none of one that is there.
func TestProgressCountsWhatIsIndexed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/1.jpg", "a/2.jpg", "a/note.txt", "b/3.png"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := OpenCatalog(CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var n atomic.Int64
	ctx := WithProgress(t.Context(), func(samples int) { n.Add(int64(samples)) })
	d, err := c.Open(ctx, "imagefolder:"+dir)
	if err != nil || n.Load() != 3 || d.LiveCount() != 3 {
		t.Fatalf("%d samples were reported of 3: %v", n.Load(), err)
	}
	if _, err := c.Reindex(ctx, "imagefolder:"+dir); err != nil || n.Load() != 6 {
		t.Errorf("a second index reported %d, %v", n.Load()-3, err)
	}
}
