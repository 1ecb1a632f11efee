package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/tiers/arena"
)

// TestTheTierKeepsPlanes: photographs of every chroma sampling come out of the decoded tier as decoding gives them, and
// take there what prep says, not three bytes a pixel each.
func TestTheTierKeepsPlanes(t *testing.T) {
	files, err := filepath.Glob("../prep/testdata/region/*.jpg")
	if err != nil || len(files) < 16 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	r, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	worker := prep.NewWorker(prep.Limits{})
	defer worker.Close()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o750); err != nil {
		t.Fatal(err)
	}
	var kept, rgb, n int64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		width, height, size, err := worker.DecodedShape(r, b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := worker.Decode(r, b, func(n int) ([]byte, error) { return make([]byte, n), nil }); err != nil {
			continue // arithmetic coding, without libjpeg-turbo
		}
		kept += (int64(size) + arena.Granule - 1) / arena.Granule * arena.Granule
		rgb += int64(3 * width * height)
		if err := os.WriteFile(filepath.Join(dir, "c", fmt.Sprintf("%04d.jpg", n)), b, 0o600); err != nil {
			t.Fatal(err)
		}
		n++
	}
	w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes[ident.Decoded] = 32 * mib })
	tr := w.train(spec("a", dir, 4), 0)
	for e := range uint32(3) {
		got := tr.must(e)
		if int64(len(got.pixels)) != n {
			t.Errorf("epoch %d: %d of %d samples", e, len(got.pixels), n)
		}
		for id, pix := range got.pixels {
			want, size := decode(t, filepath.Join(dir, "c", fmt.Sprintf("%04d.jpg", id)))
			if !bytes.Equal(pix, want) || size != got.sizes[id] {
				t.Errorf("epoch %d: sample %d is not what decoding gives", e, id)
			}
		}
	}
	tr.detach()
	if used := w.store.Used(ident.Decoded); used != kept {
		t.Errorf("%d bytes in the tier, want %d", used, kept)
	}
	if c := w.stats().GetTotals(); c.GetDecodes() != uint64(n) {
		t.Errorf("%d decodes of %d images in 3 epochs", c.GetDecodes(), n)
	}
	t.Logf("%d images: %d bytes, as RGB %d", n, kept, rgb)
}
