package prep

import (
	"bytes"
	"testing"

	"larder/internal/xrand"
)

// TestFinishEqualsTwin: what writes a sample without resampling, past the caches or not, gives the bytes of the Go code
// and touches no other byte: sides around the width of vectors and lines, places that are aligned and such that are
// not, samples around streamBytes.
func TestFinishEqualsTwin(t *testing.T) {
	if bestLevel == 0 {
		t.Skip("this build has no kernels in C")
	}
	const most = 1 << 20
	src, out := newFence(t, most), newFence(t, 4*most)
	rnd := xrand.New(3, 0x66696e69)
	for i := range src.mem {
		src.mem[i] = byte(rnd.IntN(256))
	}
	w := NewWorker(Limits{})
	want := make([]byte, 4*most)
	streamed := 0
	n := kernelCases(t, 60)
	for i := range n {
		width, height := 1+rnd.IntN(300), 1+rnd.IntN(300)
		if rnd.IntN(2) == 0 {
			width, height = 64*(1+rnd.IntN(4)), 16*(1+rnd.IntN(16))
		}
		img := newImage(src.last(width*height*3), width, height)
		for _, r := range outputs(t, width, height) {
			at := len(out.mem) - r.out.SampleBytes
			if rnd.IntN(4) > 0 { // as rows of a slot lie
				at &^= 63
			}
			got := out.mem[at : at+r.out.SampleBytes]
			finish(r, img.Pix, want[:r.out.SampleBytes])
			for level := 1; level <= bestLevel; level++ {
				w.level = level
				around := out.mem[at-64:]
				for k := range around {
					around[k] = 0xa5
				}
				if err := w.Finish(r, img, RandKey{}, got); err != nil {
					t.Fatal(err)
				}
				for k, v := range around {
					if v != 0xa5 && (k < 64 || k >= 64+len(got)) {
						t.Fatalf("case %d, level %d: %d x %d, %+v writes byte %d of %d", i, level, width, height, r.out, k-64, len(got))
					}
				}
				if !bytes.Equal(got, want[:len(got)]) {
					t.Fatalf("case %d, level %d: %d x %d, %+v differs", i, level, width, height, r.out)
				}
				if len(got) >= streamBytes {
					streamed++
				}
			}
		}
	}
	if streamed == 0 {
		t.Error("nothing was large enough to go past the caches")
	}
}
