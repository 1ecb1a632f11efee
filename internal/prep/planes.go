package prep

// Planes is how the pixels of an image lie in memory.
type Planes uint8

// The kinds of images in memory. JPEG files mostly hold chroma at half of the width. Kept so, until a sample is made of
// it, an image takes half or two thirds of the bytes of RGB, and a grey one a third. The numbers are those of kernel.h.
const (
	Packed    Planes = iota // RGB
	PlaneGrey               // luma alone
	Planes420               // luma, then Cr and Cb in turn at half of the width and of the height, rounded up
	Planes422               // luma, then Cr and Cb in turn at half of the width, rounded up
)

// planesSlack is how many bytes the kernels may write behind a part of a planar image, and how many values of scratch
// they may read behind a row of it.
const planesSlack = 64

// Bytes is the size of an image of width x height pixels.
func (p Planes) Bytes(width, height int) int {
	switch p {
	case PlaneGrey:
		return width * height
	case Planes420:
		return width*height + 2*((width+1)/2)*((height+1)/2)
	case Planes422:
		return width*height + 2*((width+1)/2)*height
	case Packed:
	}
	return width * height * 3
}

// compact is what an image becomes that is decoded, goes through steps and is kept. The ops of a prefix make RGB.
func (w *Worker) compact(h header, steps []step) Planes {
	if len(steps) > 0 || w.level < planesLevel {
		return Packed
	}
	return h.planes
}

// packed returns img as RGB. Of a planar image it makes that part that steps look at, in memory of the worker, and
// places the first step in it.
func (w *Worker) packed(steps []step, img Image) Image {
	if img.Planes == Packed {
		return img
	}
	need := box{w: img.W, h: img.H}
	if len(steps) > 0 && steps[0].kind == stepGeo {
		need = w.looksAt(&steps[0])
		need.x, need.w = need.x&^1, need.w+need.x&1
		steps[0].moveTo(need)
	}
	pix := w.buffer(bufWhole, need.w*need.h*3+planesSlack)
	w.planesC(img, need, pix)
	return newImage(pix, need.w, need.h)
}
