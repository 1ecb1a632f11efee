package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	larderv1 "larder/proto/larder/v1"
)

// damage changes bytes of a JPEG image until libjpeg would warn, and not refuse it.
func damage(t *testing.T, path string) {
	t.Helper()
	r, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	loose, strict := prep.NewWorker(prep.Limits{}), prep.NewWorker(prep.Limits{RefuseCorrupt: true})
	defer loose.Close()
	defer strict.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	memory := func(n int) ([]byte, error) { return make([]byte, n), nil }
	for at := len(whole) / 2; at < len(whole)-8; at++ {
		for _, v := range []byte{0x00, 0x7f, 0xfe} {
			b := bytes.Clone(whole)
			b[at], b[at+1], b[at+2] = v, v, v
			_, refused := strict.Decode(r, b, memory)
			if _, err := loose.Decode(r, b, memory); err == nil && prep.IsCorrupt(refused) {
				if err := os.WriteFile(path, b, 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatal("no damage makes the decoder warn")
}

// TestDamagedImages: what libjpeg warns about is delivered, a bad sample, or left out without a word.
func TestDamagedImages(t *testing.T) {
	const n, damaged = 30, 7
	dir := folder(t, n)
	damage(t, file(dir, n, damaged))
	for _, decoded := range []int64{0, 16 * mib} { // in place and not
		for _, c := range []struct {
			answer       string
			refuse, skip bool
			samples, bad int
		}{{"accept", false, false, n, 0}, {"error", true, false, n - 1, 1}, {"skip", true, true, n - 1, 0}} {
			t.Run(fmt.Sprint(c.answer, decoded), func(t *testing.T) {
				w := serve(t, func(cfg *engine.Config) {
					cfg.Memory.Tiers.Sizes = [ident.NumForms]int64{ident.Decoded: decoded}
					cfg.Work.Limits.RefuseCorrupt, cfg.Work.SkipCorrupt = c.refuse, c.skip
				})
				tr := w.train(spec("silent", dir, 4, recipe(crops...), func(s *larderv1.JobSpec) { s.OnError = "skip" }), 0)
				for e := range uint32(2) {
					got := tr.must(e)
					_, delivered := got.labels[damaged]
					if len(got.ids) != c.samples || len(got.bad) != c.bad || delivered != (c.samples == n) {
						t.Errorf("epoch %d: %d samples, %d bad, delivered: %v", e, len(got.ids), len(got.bad), delivered)
					}
					if a := got.end.GetAccount(); a.GetState() != "complete" || a.GetQuarantined() != uint64(n-c.samples) {
						t.Errorf("epoch %d: %v", e, a)
					}
				}
				tr.detach()
				if q := w.stats().GetTotals().GetQuarantined(); q != uint64(n-c.samples) {
					t.Errorf("%d are quarantined", q)
				}
			})
		}
	}
}

// TestDamagedImagesAfterARestart: a daemon that is started again with another answer goes by that one.
func TestDamagedImagesAfterARestart(t *testing.T) {
	const n, damaged = 30, 7
	dir := folder(t, n)
	damage(t, file(dir, n, damaged))
	fs := journal.NewMemFS()
	for e, c := range []struct {
		refuse, skip bool
		samples, bad int
	}{{true, false, n - 1, 1}, {true, true, n - 1, 0}, {true, false, n - 1, 1}, {false, false, n, 0}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w := onDisk(t, fs, func(cfg *engine.Config) {
				cfg.Work.Limits.RefuseCorrupt, cfg.Work.SkipCorrupt = c.refuse, c.skip
			})
			tr := w.train(spec("silent", dir, 4, recipe(crops...), func(s *larderv1.JobSpec) {
				s.OnError, s.Prefetch = "skip",
					1
			}), 0)
			got := tr.must(uint32(e))
			if len(got.ids) != c.samples || len(got.bad) != c.bad {
				t.Errorf("%d samples, %d bad", len(got.ids), len(got.bad))
			}
			fs = fs.Clone() // as a killed process leaves it
		})
	}
}
