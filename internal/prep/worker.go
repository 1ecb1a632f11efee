package prep

import (
	"larder/internal/fault"
)

// Image is uint8 RGB, HWC, tightly packed: W*H*3 bytes. C is always 3; grey images have three equal channels.
type Image struct {
	Pix     []byte
	W, H, C int
}

func newImage(pix []byte, w, h int) Image { return Image{Pix: pix[:w*h*3], W: w, H: h, C: 3} }

// Defaults of Limits.
const (
	defaultMaxPixels = 89_478_485 // Pillow's MAX_IMAGE_PIXELS
	defaultMaxBytes  = 1 << 30
)

// Limits bound what one image may cost. The zero value means the defaults.
type Limits struct {
	MaxPixels int64 // of an image, decoded or resized; default 89,478,485, as Pillow's
	MaxBytes  int64 // memory a decoder may take for one image beside its output; default 1 GiB (progressive JPEG needs most)
}

const hintBad = `replace the file, or go on without it by on_error="skip" or "substitute"`

// Worker decodes and runs ops. It owns its buffers and decoder; it belongs to one goroutine.
type Worker struct {
	limits Limits
	jpeg   jpegDecoder
	horiz  coeffCache
	vert   coeffCache
	steps  []step
	bufs   [numBufs][]byte
	kernel kernel
	level  int // instruction set of the kernels in C; 0 = the twin in Go
	tabX   []int32
	tabY   []int32
}

// Worker-owned buffers, one a purpose, so that steps cannot overwrite what they read.
const (
	bufDecoded = iota // an image before the prefix
	bufA              // results of steps, in turn
	bufB
	bufRows // between the passes of a resize
	bufPad  // two rows with a byte behind each
	bufWhole
	numBufs
)

// keepBytes is the largest buffer a worker keeps from image to image: a 16 Mpixel image. Rarer ones are given back.
const keepBytes = 48 << 20

// NewWorker returns a worker. Close gives back what the decoder holds outside of Go's heap.
func NewWorker(cfg Limits) *Worker {
	if cfg.MaxPixels <= 0 {
		cfg.MaxPixels = defaultMaxPixels
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	return &Worker{limits: cfg, level: bestLevel}
}

// Close frees the worker's memory; a closed worker may be used again.
func (w *Worker) Close() {
	w.jpeg.close()
	*w = Worker{limits: w.limits, level: w.level}
}

func (w *Worker) buffer(which, n int) []byte {
	w.bufs[which] = grow(w.bufs[which], n)
	return w.bufs[which]
}

// trim drops buffers that a rare large image left behind.
func (w *Worker) trim() {
	for i, b := range w.bufs {
		if cap(b) > keepBytes {
			w.bufs[i] = nil
		}
	}
}

// DecodedShape returns the size of the image after decoding and the prefix of r. It reads the header only.
func (w *Worker) DecodedShape(r *Recipe, enc []byte) (width, height int, err error) {
	h, err := w.header(enc)
	if err != nil {
		return 0, 0, err
	}
	_, width, height, err = w.plan(r, 0, r.cut, RandKey{}, h.w, h.h)
	return width, height, err
}

// Decode decodes enc and runs the deterministic prefix of r. The result lies in memory from alloc, which is called once with
// exactly W*H*3, after the header was found good; its error is returned as it is. When decoding fails afterwards the memory
// stays the caller's and its content is undefined. Errors about the image are faults of reason SAMPLE_BAD.
func (w *Worker) Decode(r *Recipe, enc []byte, alloc func(n int) ([]byte, error)) (Image, error) {
	defer w.trim()
	h, err := w.header(enc)
	if err != nil {
		return Image{}, err
	}
	steps, ow, oh, err := w.plan(r, 0, r.cut, RandKey{}, h.w, h.h)
	if err != nil {
		return Image{}, err
	}
	dst, err := allocate(alloc, ow, oh)
	if err != nil {
		return Image{}, err
	}
	if len(steps) == 0 {
		return newImage(dst, ow, oh), w.decode(h, enc, dst)
	}
	img := newImage(w.buffer(bufDecoded, h.w*h.h*3), h.w, h.h)
	if err := w.decode(h, enc, img.Pix); err != nil {
		return Image{}, err
	}
	return w.run(steps, img, dst, ow, oh), nil
}

// Augment runs the random suffix of r on an image that Decode made. img is only read. alloc as for Decode.
func (w *Worker) Augment(r *Recipe, img Image, key RandKey, alloc func(n int) ([]byte, error)) (Image, error) {
	defer w.trim()
	if err := checkImage(img); err != nil {
		return Image{}, err
	}
	steps, ow, oh, err := w.plan(r, r.cut, r.imageOps, key, img.W, img.H)
	if err != nil {
		return Image{}, err
	}
	dst, err := allocate(alloc, ow, oh)
	if err != nil {
		return Image{}, err
	}
	return w.run(steps, img, dst, ow, oh), nil
}

// AugmentInto is Augment and Finish in one, through the worker's own memory. dst holds one sample (Output().SampleBytes), or
// W*H*3 bytes when ragged.
func (w *Worker) AugmentInto(r *Recipe, img Image, key RandKey, dst []byte) error {
	defer w.trim()
	if err := checkImage(img); err != nil {
		return err
	}
	steps, ow, oh, err := w.plan(r, r.cut, r.imageOps, key, img.W, img.H)
	if err != nil {
		return err
	}
	if len(steps) > 0 {
		if r.out.Ragged {
			if len(dst) < ow*oh*3 {
				return badDst(len(dst), ow*oh*3)
			}
			w.run(steps, img, dst, ow, oh)
			return nil
		}
		last := len(steps) - 1
		if w.finishes(&steps[last]) && len(dst) >= r.out.SampleBytes {
			// The last step writes what is wanted, straight to where it is wanted.
			if last > 0 {
				img = w.run(steps[:last], img, nil, 0, 0)
			}
			w.geoC(&steps[last], img, dst[:r.out.SampleBytes], r)
			return nil
		}
		img = w.run(steps, img, nil, ow, oh)
	}
	return w.Finish(r, img, dst)
}

// DecodeInto goes from the file to the finished sample: what is done for a sample that no tier will keep. dst as for AugmentInto.
func (w *Worker) DecodeInto(r *Recipe, enc []byte, key RandKey, dst []byte) error {
	img, err := w.Decode(r, enc, w.allocWhole)
	if err != nil {
		return err
	}
	return w.AugmentInto(r, img, key, dst)
}

func (w *Worker) allocWhole(n int) ([]byte, error) { return w.buffer(bufWhole, n), nil }

func allocate(alloc func(n int) ([]byte, error), width, height int) ([]byte, error) {
	n := width * height * 3
	dst, err := alloc(n)
	if err != nil {
		return nil, err
	}
	if len(dst) < n {
		return nil, badDst(len(dst), n)
	}
	return dst[:n], nil
}

func checkImage(img Image) error {
	if img.W < 1 || img.H < 1 || img.C != 3 || len(img.Pix) < img.W*img.H*3 {
		return fault.New(fault.Internal, "", "this is a bug of larder",
			"an image of %d x %d x %d has %d bytes", img.H, img.W, img.C, len(img.Pix))
	}
	return nil
}

func badDst(have, want int) error {
	return fault.New(fault.Internal, "", "this is a bug of larder", "a sample of %d bytes was to be written to %d bytes", want, have)
}

// run executes steps on img. The result lies in dst, or in a buffer of the worker when dst is nil. img is not changed.
func (w *Worker) run(steps []step, img Image, dst []byte, ow, oh int) Image {
	if len(steps) == 0 {
		copy(dst, img.Pix[:ow*oh*3])
		return newImage(dst, ow, oh)
	}
	lastMove := -1 // colour steps work in place, so the last step that moves pixels writes to dst
	for i := range steps {
		if !steps[i].isColor() {
			lastMove = i
		}
	}
	owned := false // img is ours to change
	turn := bufA
	for i := 0; i < len(steps); i++ {
		s := &steps[i]
		if s.isColor() && owned {
			n := colors(steps[i:])
			w.color(steps[i:i+n], img.Pix)
			i += n - 1
			continue
		}
		nw, nh := img.W, img.H
		switch s.kind {
		case stepGeo:
			nw, nh = s.win.w, s.win.h
		case stepPad:
			nw, nh = s.src.w, s.src.h
		case stepBrightness, stepContrast, stepSaturation, stepHue, stepGray:
		}
		out := dst
		if out == nil || i < lastMove {
			out = w.buffer(turn, nw*nh*3)
			turn = bufA + bufB - turn
		}
		next := newImage(out, nw, nh)
		switch s.kind {
		case stepGeo:
			w.geo(s, img, next.Pix)
		case stepPad:
			pad(s.src, img, next.Pix)
		case stepBrightness, stepContrast, stepSaturation, stepHue, stepGray:
			copy(next.Pix, img.Pix)
			n := colors(steps[i:])
			w.color(steps[i:i+n], next.Pix)
			i += n - 1
		}
		img, owned = next, true
	}
	return img
}

// finishes tells whether geoC can run a step and finish in one.
func (w *Worker) finishes(s *step) bool {
	return w.level > 0 && s.kind == stepGeo && s.filter != nearest
}

// colors counts the colour steps that steps begins with.
func colors(steps []step) int {
	n := 0
	for n < len(steps) && steps[n].isColor() {
		n++
	}
	return n
}

// color runs colour steps in place.
func (w *Worker) color(steps []step, pix []byte) {
	if w.colorC(steps, pix) {
		return
	}
	for i := range steps {
		s := &steps[i]
		switch s.kind {
		case stepBrightness:
			blendTowards(pix, 0, s.f)
		case stepContrast:
			blendTowards(pix, meanLuma(pix), s.f)
		case stepSaturation:
			saturate(pix, s.f)
		case stepHue:
			shiftHue(pix, s.hue)
		case stepGray:
			gray(pix)
		case stepGeo, stepPad:
		}
	}
}

// Finish casts, normalises and lays out an augmented image. dst as for AugmentInto.
func (w *Worker) Finish(r *Recipe, img Image, dst []byte) error {
	if err := checkImage(img); err != nil {
		return err
	}
	n := img.W * img.H
	if r.out.Ragged {
		if len(dst) < n*3 {
			return badDst(len(dst), n*3)
		}
		copy(dst, img.Pix[:n*3])
		return nil
	}
	if img.W != r.outW || img.H != r.outH {
		return fault.New(fault.Internal, "", "this is a bug of larder",
			"an image of %d x %d came where the recipe gives %d x %d", img.H, img.W, r.outH, r.outW)
	}
	if len(dst) < r.out.SampleBytes {
		return badDst(len(dst), r.out.SampleBytes)
	}
	if !w.finishC(r, img, dst[:r.out.SampleBytes]) {
		finish(r, img.Pix[:n*3], dst[:r.out.SampleBytes])
	}
	return nil
}
