//go:build cgo && turbo

package prep

import "testing"

// TestSmallImagesReadNoClock: the clock of a thread is a system call. An image of less than a million pixels is decoded
// without one, however it is asked for; a larger one reads it once for so many pixels, and still ends in time.
func TestSmallImagesReadNoClock(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	r := trainRecipe(t)
	dst := make([]byte, r.Output().SampleBytes)
	alloc := func(n int) ([]byte, error) { return make([]byte, n), nil }
	for _, c := range []struct{ width, height, most int }{
		{500, 375, 0}, {2000, 1500, 3}, {3000, 100, 0}, {100, 3000, 0},
	} {
		enc := drawnJPEG(t, c.width, c.height, 1)
		for i := range 20 {
			if err := w.DecodeInto(r, enc, RandKey{Seed: uint64(i)}, dst); err != nil {
				t.Fatal(err)
			}
			if n := int(w.jpeg.c.j.clocks); n > c.most {
				t.Errorf("a part of %d x %d pixels: the clock was read %d times", c.width, c.height, n)
			}
		}
		for name, decode := range map[string]func(*Recipe, []byte, func(int) ([]byte, error)) (Image, error){
			"packed": w.Decode, "planes": w.DecodeCompact,
		} {
			if _, err := decode(r, enc, alloc); err != nil {
				t.Fatal(err)
			}
			if n := int(w.jpeg.c.j.clocks); n > c.most || c.most > 0 && n < c.most-1 {
				t.Errorf("%s, %d x %d pixels: the clock was read %d times", name, c.width, c.height, n)
			}
		}
	}
}
