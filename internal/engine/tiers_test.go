package engine_test

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"testing"

	"larder/cachepolicy"
	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers/tinylfu"
)

// TestTheTiersChangeNoByte: whatever the sizes of the tiers, their policies, and however they are resized meanwhile,
// every job gets in each epoch each sample once, with the bytes that it gets without any cache. Two jobs share a
// prefix, a third has another one.
func TestTheTiersChangeNoByte(t *testing.T) {
	const n, epochs = 30, 2
	dir := folder(t, n)
	jobs := func() []*larderv1.JobSpec {
		return []*larderv1.JobSpec{spec("plain", dir, 7), spec("crops", dir, 5, recipe(crops...),
			func(s *larderv1.JobSpec) { s.Seed = 3 }),
			spec("resized", dir, 4, recipe(op("Resize", map[string]any{"size": []any{12.0, 12.0}}), op("RandomHorizontalFlip",
				nil)), func(s *larderv1.JobSpec) { s.Seed = 9 })}
	}
	// play returns the bytes by job and epoch.
	play := func(t *testing.T, r *xrand.Rand, change func(*engine.Config)) map[string]map[int64][]byte {
		w := serve(t, change)
		out, mu := map[string]map[int64][]byte{}, sync.Mutex{}
		var wg, resizer sync.WaitGroup
		for _, s := range jobs() {
			tr := w.train(s, 0)
			wg.Go(func() {
				defer tr.detach()
				for e := range uint32(epochs) {
					got, err := tr.epoch(e)
					if err != nil {
						t.Errorf("%s: %v", s.GetName(), err)
						return
					}
					exactly(t, fmt.Sprint(s.GetName(), " epoch ", e), got.ids, all(n))
					mu.Lock()
					out[fmt.Sprint(s.GetName(), " ", e)] = got.pixels
					mu.Unlock()
				}
			})
		}
		done := make(chan struct{})
		if r != nil {
			resizer.Go(func() {
				resizeTiers(t, w, r, done)
			})
		}
		wg.Wait()
		close(done)
		resizer.Wait()
		return out
	}
	var want map[string]map[int64][]byte
	t.Run("none", func(t *testing.T) { // its memory is gone at the end of it
		want = play(t, nil, func(c *engine.Config) {
			c.Memory.Tiers.Total, c.Memory.Tiers.Sizes = 0, [ident.NumForms]int64{}
		})
	})
	if len(want) != 3*epochs {
		t.Fatalf("%d epochs", len(want))
	}
	for i, policy := range append(cachepolicy.Unforeseeing(), tinylfu.Name) {
		t.Run(policy, func(t *testing.T) {
			var ends []func()
			got := play(t, xrand.New(uint64(i), 4), func(c *engine.Config) {
				c.Memory.Tiers.Total, c.Memory.Tiers.Sizes = 1<<20, [ident.NumForms]int64{0, -1, -1, -1}
				c.Memory.Tiers.Policy = [ident.NumForms]string{"", policy, policy, policy}
				c.Memory.Evictor = func(_ ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error) {
					e, err := tinylfu.Make(policy, r, cachepolicy.Given{}, 1024)
					if x, ok := e.(interface{ Close() }); ok && err == nil {
						ends = append(ends, x.Close)
					}
					return e, err
				}
				t.Cleanup(func() {
					for _, end := range ends {
						end()
					}
				})
			})
			for k, pixels := range want {
				if !maps.EqualFunc(pixels, got[k], bytes.Equal) {
					t.Errorf("%s has other bytes", k)
				}
			}
		})
	}
}

// resizeTiers gives the tiers other sizes again and again until done is closed.
func resizeTiers(t *testing.T, w *world, r *xrand.Rand, done <-chan struct{}) {
	size := func() string { return []string{"auto", "0", fmt.Sprint(4096 + r.IntN(1<<18))}[r.IntN(3)] }
	for {
		select {
		case <-done:
			return
		default:
		}
		req := &larderv1.SetTiersRequest{Encoded: size(), Decoded: size(), Augmented: size(),
			Total: fmt.Sprint(1<<20 + r.IntN(1<<20))}
		if _, err := w.engine.SetTiers(t.Context(), req); err != nil {
			t.Error(err)
			return
		}
	}
}
