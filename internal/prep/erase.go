package prep

import (
	"math"

	"larder/internal/xrand"
)

// erasing is a RandomErasing behind the cast: it writes into the finished sample.
type erasing struct {
	at    int        // of the recipe's ops
	value [3]float32 // after the Normalize ops behind it; not used for random values
	after []int      // the Normalize ops behind it
}

// eraseBox draws RandomErasing's box as torchvision's get_params does: up to ten tries, each smaller than the image in
// both sides. ok is false when nothing is erased.
func (o *op) eraseBox(r *xrand.Rand, width, height int) (b box, ok bool) {
	if !o.flips(r) {
		return box{}, false
	}
	area := float64(width) * float64(height)
	for range 10 {
		target := area * r.Uniform(o.scale[0], o.scale[1])
		ratio := r.LogUniform(o.ratio[0], o.ratio[1])
		fh := math.RoundToEven(math.Sqrt(target * ratio))
		fw := math.RoundToEven(math.Sqrt(target / ratio))
		if fw < float64(width) && fh < float64(height) {
			b = box{w: int(fw), h: int(fh)}
			b.y = r.IntN(height - b.h + 1)
			b.x = r.IntN(width - b.w + 1)
			return b, true
		}
	}
	return box{}, false
}

// erase runs a stepErase on uint8.
func erase(s *step, img Image, dst []byte) {
	copy(dst, img.Pix[:len(dst)])
	for y := s.src.y; y < s.src.y+s.src.h; y++ {
		fillWith(dst[3*(y*img.W+s.src.x):][:3*s.src.w], s.fill)
	}
}

// eraseFinished runs the RandomErasing ops behind the cast on a finished sample.
func (r *Recipe) eraseFinished(key RandKey, dst []byte) {
	for i := range r.erasings {
		e := &r.erasings[i]
		o, rnd := &r.ops[e.at], key.rand(r.first+e.at)
		b, ok := o.eraseBox(&rnd, r.outW, r.outH)
		if !ok {
			continue
		}
		for c := range r.channels {
			for y := b.y; y < b.y+b.h; y++ {
				for x := b.x; x < b.x+b.w; x++ {
					v := e.value[c]
					if o.noise {
						v = r.normalised(e, c, float32(rnd.Normal()))
					}
					at := (c*r.outH+y)*r.outW + x
					if r.out.Layout == HWC {
						at = (y*r.outW+x)*r.channels + c
					}
					putFloat(dst[4*at:4*at+4], v)
				}
			}
		}
	}
}

// normalised is a value of channel c after the Normalize ops behind e.
func (r *Recipe) normalised(e *erasing, c int, v float32) float32 {
	for _, i := range e.after {
		o := &r.ops[i]
		v = float32(v-o.mean[c%len(o.mean)]) / o.std[c%len(o.std)]
	}
	return v
}

// buildErasings finds the RandomErasing ops behind the cast, and what their values become.
func (r *Recipe) buildErasings() error {
	for i := r.imageOps; i < len(r.ops); i++ {
		o := &r.ops[i]
		if o.kind != opRandomErasing {
			continue
		}
		if n := len(o.value); !o.noise && n != 1 && n != r.channels {
			return opError(i, o.spec.Name, "give one number, or one a channel",
				"has %d values for images of %d channels", n, r.channels)
		}
		e := erasing{at: i}
		for k := i + 1; k < len(r.ops); k++ {
			if r.ops[k].kind == opNormalize {
				e.after = append(e.after, k)
			}
		}
		for c := range r.channels {
			if !o.noise {
				e.value[c] = r.normalised(&e, c, o.value[c%len(o.value)])
			}
		}
		if o.p > 0 {
			r.erasings = append(r.erasings, e)
		}
	}
	return nil
}
