package engine_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"larder/internal/engine"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// TestPreparedInPlaceItIsTheSameByteForByte: what no tier keeps is decoded straight into the batch, only the part
// that the crop looks at; the bytes are those of a decoded tier that keeps everything, and a damaged image is as bad.
func TestPreparedInPlaceItIsTheSameByteForByte(t *testing.T) {
	const n, epochs, broken = 90, 2, 30
	dir := t.TempDir()
	for i := range n {
		ext := []string{"jpg", "jpg", "jpg", "png"}[i%4]
		draw(t, filepath.Join(dir, fmt.Sprint("c", i*3/n), fmt.Sprintf("%04d.%s", i, ext)), 150+i, 210-i, uint64(i))
	}
	name := filepath.Join(dir, fmt.Sprint("c", broken*3/n), fmt.Sprintf("%04d.png", broken))
	if _, err := os.Stat(name); err != nil {
		name = name[:len(name)-3] + "jpg"
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b[:len(b)*3/4], 0o600); err != nil {
		t.Fatal(err)
	}
	ops := map[string][]*larderv1.Op{
		"crop": {op("RandomResizedCrop", map[string]any{"size": 48.0, "scale": []any{0.02, 0.6}}), op("RandomHorizontalFlip",
			nil), op("Normalize", map[string]any{"mean": []any{0.4, 0.5, 0.6}, "std": []any{0.2, 0.2, 0.2}})},
		"eval": {op("Resize", map[string]any{"size": 100.0}), op("CenterCrop", map[string]any{"size": 64.0})},
	}
	for what, recipeOf := range ops {
		t.Run(what, func(t *testing.T) {
			want := map[uint32]map[int64][]byte{}
			for _, sizes := range [][ident.NumForms]int64{{ident.Decoded: 32 * mib}, {}, {ident.Encoded: 32 * mib},
				{ident.Decoded: 1 * mib}} {
				t.Run(fmt.Sprint(sizes), func(t *testing.T) {
					w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes = sizes })
					tr := w.train(spec("a", dir, 8, recipe(recipeOf...), func(s *larderv1.JobSpec) { s.Seed, s.OnError = 5, "skip" }),
						0)
					for e := range uint32(epochs) {
						got := tr.must(e)
						if len(got.ids) != n-1 || len(got.bad) != 1 || got.labels[broken] != 0 {
							t.Errorf("%v, epoch %d: %d samples, %d bad", sizes, e, len(got.ids), len(got.bad))
						}
						for id, label := range got.labels {
							if label != id*3/n {
								t.Errorf("sample %d has label %d", id, label)
							}
						}
						if want[e] == nil {
							want[e] = got.pixels
						} else if !maps.EqualFunc(want[e], got.pixels, bytes.Equal) {
							t.Errorf("%v, epoch %d: other bytes", sizes, e)
						}
					}
					tr.detach()
					in, decodes, err := w.engine.InPlace(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					total := w.stats().GetTotals()
					t.Logf("%v: %d of %d decodes in place", sizes, in, decodes)
					switch sizes[ident.Decoded] {
					case 32 * mib: // the meters know enough before there is anything to do in place
						if in != 0 {
							t.Errorf("%d were prepared in place, with room for all", in)
						}
					case 0:
						if in != decodes || in < epochs*(n-1) || total.GetQuarantined() != 1 {
							t.Errorf("%v: %d of %d decodes in place, %d quarantined", sizes, in, decodes, total.GetQuarantined())
						}
					default:
						if in == 0 || in >= decodes {
							t.Errorf("%d of %d decodes in place, with room for some", in, decodes)
						}
					}
					if a := total.GetAugments(); what == "crop" && a < epochs*(n-1) || what == "eval" && a != 0 {
						t.Errorf("%d augments", a)
					}
				})
			}
		})
	}
}

// TestJobsThatMeetInPlaceGetTheirOwn: two jobs of one recipe whose needs do not show, because they read in order, and
// one that reads with them.
func TestJobsThatMeetInPlaceGetTheirOwn(t *testing.T) {
	const n = 120
	dir := folder(t, n)
	w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes = [ident.NumForms]int64{ident.Encoded: 1 * mib} })
	var wg sync.WaitGroup
	for i := range 3 {
		tr := w.train(spec(fmt.Sprint("j", i), dir, 4+uint32(i), recipe(crops...),
			func(s *larderv1.JobSpec) { s.Shuffle = i == 2 }), 0)
		wg.Go(func() {
			defer tr.detach()
			for e := range uint32(3) {
				got, err := tr.epoch(e)
				if err != nil {
					t.Error(err)
					return
				}
				exactly(t, fmt.Sprintf("job %d epoch %d", i, e), got.ids, all(n))
			}
		})
	}
	wg.Wait()
	if reads := w.stats().GetTotals().GetSourceReads(); reads != n {
		t.Errorf("%d reads of %d objects", reads, n)
	}
}
