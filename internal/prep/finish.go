package prep

import (
	"encoding/binary"
	"math"
)

// streamBytes is the least size of a sample that the kernels in C write past the caches. Of samples as large as that no
// batch fits the cache of a core, and the batches of a ring hardly the last one, so the client would not find them
// there anyway.
const streamBytes = 64 << 10

// finish writes pix, tightly packed RGB of the recipe's size, as the recipe's output says. Floats are little-endian
// float32.
func finish(r *Recipe, pix, dst []byte) {
	n := len(pix) / 3
	switch {
	case r.lut == nil && r.channels == 1:
		for i := range dst {
			dst[i] = pix[3*i]
		}
	case r.lut == nil && r.out.Layout == HWC:
		copy(dst, pix)
	case r.lut == nil:
		d0, d1, d2 := dst[:n], dst[n:2*n], dst[2*n:3*n]
		for i := range d0 {
			p := pix[3*i : 3*i+3 : 3*i+3]
			d0[i], d1[i], d2[i] = p[0], p[1], p[2]
		}
	case r.channels == 1:
		for i := range n {
			putFloat(dst[4*i:], r.lut[0][pix[3*i]])
		}
	case r.out.Layout == HWC:
		for i := 0; i+3 <= len(pix); i += 3 {
			p, d := pix[i:i+3:i+3], dst[4*i:4*i+12:4*i+12]
			putFloat(d, r.lut[0][p[0]])
			putFloat(d[4:], r.lut[1][p[1]])
			putFloat(d[8:], r.lut[2][p[2]])
		}
	default:
		for c := range 3 {
			lut := &r.lut[c]
			plane := dst[4*c*n : 4*(c+1)*n]
			for i, at := 0, c; i+4 <= len(plane); i, at = i+4, at+3 {
				putFloat(plane[i:i+4:i+4], lut[pix[at]])
			}
		}
	}
}

func floatAt(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

func putFloat(b []byte, f float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(f)) }
