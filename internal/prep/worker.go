package prep

import (
	"time"

	"larder/internal/errs"
)

// Image is uint8 RGB, HWC, tightly packed: W*H*3 bytes. C is always 3; grey images have three equal channels. One from
// DecodeCompact may be planar instead: Planes.Bytes(W, H) bytes, from which the same RGB follows.
type Image struct {
	Pix     []byte
	W, H, C int
	Planes  Planes
}

func newImage(pix []byte, w, h int) Image { return Image{Pix: pix[:w*h*3], W: w, H: h, C: 3} }

// Defaults of Limits.
const (
	defaultMaxPixels = 89_478_485 // Pillow's MAX_IMAGE_PIXELS
	mostPixels       = 1<<31 - 1  // that Limits may allow: no size in bytes that follows from it overflows
	defaultMaxBytes  = 1 << 30
	defaultMaxScans  = 500
	defaultTimeout   = 10 * time.Second
)

// Limits bound what one image may cost. The zero value means the defaults.
type Limits struct {
	MaxPixels int64 // of an image, decoded or resized; default 89,478,485, as Pillow's; at most 2^31-1
	// memory that decoding one image may take, with the image itself; default 1 GiB (16-bit PNG and progressive JPEG need
	// most)
	MaxBytes int64
	MaxScans int // of a JPEG image; default 500. Large images may have fewer, see scans
	// Timeout is the processor time that decoding one image may take, default 10 s. It is no wall-clock time, so that a
	// busy or stopped machine makes no image bad. Negative = none. The portable build bounds JPEG images by their pixels
	// and scans alone.
	Timeout time.Duration

	// RefuseCorrupt refuses JPEG images that libjpeg warns about, with an error that IsCorrupt recognises. Without it
	// they decode as far as they go, as in Pillow; truncated ones are refused always, as there.
	RefuseCorrupt bool
}

const hintBad = `replace the file, or continue without it by on_error="skip" or "substitute"`

// Worker decodes and runs ops. It owns its buffers and decoder; it belongs to one goroutine.
type Worker struct {
	limits  Limits
	jpeg    jpegDecoder
	horiz   coeffCache
	vert    coeffCache
	steps   []step
	bufs    [numBufs][]byte
	kernels kernels
	level   int // instruction set of the kernels in C; 0 = the twin in Go
	tabX    []int32
	tabY    []int32
	floats  []float32 // weights of a blur
	tables  tables

	outside Outside // decodes in the place of this worker; nil = it decodes itself
}

// Worker-owned buffers, one a purpose, so that steps cannot overwrite what they read.
const (
	bufDecoded = iota // an image before the prefix
	bufA              // results of steps, in turn
	bufB
	bufRows  // between the passes of a resize
	bufPad   // two rows with a byte behind each
	bufWhole // an image, or the part of it that is needed, on its way through DecodeInto
	numBufs
)

// keepBytes is the largest buffer a worker keeps from image to image: a 16 Mpixel image. Larger ones are released.
const keepBytes = 48 << 20

// NewWorker returns a worker. Close releases what the decoder holds outside of Go's heap.
func NewWorker(cfg Limits) *Worker {
	if cfg.MaxPixels <= 0 {
		cfg.MaxPixels = defaultMaxPixels
	}
	cfg.MaxPixels = min(cfg.MaxPixels, mostPixels)
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	if cfg.MaxScans <= 0 {
		cfg.MaxScans = defaultMaxScans
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	cfg.Timeout = max(cfg.Timeout, 0)
	return &Worker{limits: cfg, level: bestLevel}
}

// Close frees the worker's memory; a closed worker may be used again.
func (w *Worker) Close() {
	w.jpeg.close()
	*w = Worker{limits: w.limits, level: w.level, outside: w.outside}
}

func (w *Worker) buffer(which, n int) []byte {
	if cap(w.bufs[which]) < n { // some more, so that slightly larger images do not each take new memory
		w.bufs[which] = make([]byte, n, n+n/8)
	}
	w.bufs[which] = w.bufs[which][:n]
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

// DecodedShape returns the size of the image after decoding and the prefix of r, in pixels, and in bytes as
// DecodeCompact makes it. It reads the header only.
func (w *Worker) DecodedShape(r *Recipe, enc []byte) (width, height, bytes int, err error) {
	h, err := w.header(enc)
	if err != nil {
		return 0, 0, 0, err
	}
	p, err := w.plan(r, r.prefixOps(), RandKey{}, h.w, h.h)
	return p.w, p.h, w.compact(h, p.steps).Bytes(p.w, p.h), err
}

// SampleSize returns the size of the image after all ops of r under key. It reads the header only.
func (w *Worker) SampleSize(r *Recipe, enc []byte, key RandKey) (width, height int, err error) {
	h, err := w.header(enc)
	if err != nil {
		return 0, 0, err
	}
	p, err := w.plan(r, r.allOps(), key, h.w, h.h)
	return p.w, p.h, err
}

// Decode decodes enc and runs the deterministic prefix of r. The result lies in memory from alloc, which is called once
// with exactly W*H*3, after the header was found good; its error is returned as it is. When decoding fails afterwards
// the memory stays the caller's and its content is undefined. Errors about the image are faults of reason SAMPLE_BAD.
func (w *Worker) Decode(r *Recipe, enc []byte, alloc func(n int) ([]byte, error)) (Image, error) {
	return w.decodePrefix(r, enc, alloc, false)
}

// DecodeCompact is Decode for an image that is kept: one that is stored in planes stays in planes, which take fewer
// bytes and cost Augment no more. alloc is called with the bytes that DecodedShape says. Samples made of the image are
// those made of Decode's.
func (w *Worker) DecodeCompact(r *Recipe, enc []byte, alloc func(n int) ([]byte, error)) (Image, error) {
	return w.decodePrefix(r, enc, alloc, true)
}

func (w *Worker) decodePrefix(r *Recipe, enc []byte, alloc func(n int) ([]byte, error), compact bool) (Image, error) {
	defer w.trim()
	h, err := w.header(enc)
	if err != nil {
		return Image{}, err
	}
	p, err := w.plan(r, r.prefixOps(), RandKey{}, h.w, h.h)
	if err != nil {
		return Image{}, err
	}
	planes := Packed
	if compact {
		planes = w.compact(h, p.steps)
	}
	dst, err := allocate(alloc, planes.Bytes(p.w, p.h))
	if err != nil {
		return Image{}, err
	}
	if len(p.steps) == 0 {
		return Image{Pix: dst, W: p.w, H: p.h, C: 3, Planes: planes}, w.decode(h, enc, planes, dst)
	}
	img := newImage(w.buffer(bufDecoded, h.w*h.h*3), h.w, h.h)
	if err := w.decode(h, enc, Packed, img.Pix); err != nil {
		return Image{}, err
	}
	return w.run(p.steps, img, dst, p.w, p.h), nil
}

// Augment runs the random suffix of r on an image that Decode or DecodeCompact made. img is only read, the result is
// RGB. alloc as for Decode.
func (w *Worker) Augment(r *Recipe, img Image, key RandKey, alloc func(n int) ([]byte, error)) (Image, error) {
	defer w.trim()
	if err := checkImage(img); err != nil {
		return Image{}, err
	}
	p, err := w.plan(r, r.suffixOps(), key, img.W, img.H)
	if err != nil {
		return Image{}, err
	}
	dst, err := allocate(alloc, Packed.Bytes(p.w, p.h))
	if err != nil {
		return Image{}, err
	}
	return w.run(p.steps, w.packed(p.steps, img), dst, p.w, p.h), nil
}

// AugmentInto is Augment and Finish in one, through the worker's own memory. dst holds one sample
// (Output().SampleBytes), or W*H*3 bytes when ragged.
func (w *Worker) AugmentInto(r *Recipe, img Image, key RandKey, dst []byte) error {
	defer w.trim()
	if err := checkImage(img); err != nil {
		return err
	}
	p, err := w.plan(r, r.suffixOps(), key, img.W, img.H)
	if err != nil {
		return err
	}
	return w.complete(r, &p, w.packed(p.steps, img), key, dst)
}

// complete runs the last steps of r, as planned, and finishes. img is only read.
func (w *Worker) complete(r *Recipe, p *planner, img Image, key RandKey, dst []byte) error {
	steps := p.steps
	if len(steps) > 0 {
		if r.out.Ragged {
			if len(dst) < p.w*p.h*3 {
				return badDst(len(dst), p.w*p.h*3)
			}
			w.run(steps, img, dst, p.w, p.h)
			return nil
		}
		last := len(steps) - 1
		if w.finishes(&steps[last]) && len(dst) >= r.out.SampleBytes {
			// The last step writes what is wanted, straight to where it is wanted.
			if last > 0 {
				img = w.run(steps[:last], img, nil, 0, 0)
			}
			w.geoC(&steps[last], img, dst[:r.out.SampleBytes], r)
			r.eraseFinished(key, dst)
			return nil
		}
		img = w.run(steps, img, nil, p.w, p.h)
	}
	return w.Finish(r, img, key, dst)
}

// DecodeInto goes from the file to the finished sample, with the bytes that Decode and AugmentInto would give. Use it
// for a sample that no tier keeps and no other job shares: of a JPEG image only the part is decoded that the recipe
// looks at, and the last step writes to dst. dst is as for AugmentInto.
func (w *Worker) DecodeInto(r *Recipe, enc []byte, key RandKey, dst []byte) error {
	defer w.trim()
	h, err := w.header(enc)
	if err != nil {
		return err
	}
	p, err := w.plan(r, r.allOps(), key, h.w, h.h)
	if err != nil {
		return err
	}
	img, done, err := w.decodeRegion(h, enc, p.steps)
	if err != nil {
		return err
	}
	if !done {
		img = newImage(w.buffer(bufWhole, h.w*h.h*3), h.w, h.h)
		if err := w.decode(h, enc, Packed, img.Pix); err != nil {
			return err
		}
	}
	return w.complete(r, &p, img, key, dst)
}

// decodeRegion decodes the part of a JPEG image that steps look at, and moves the first step to it. done is false, and
// nothing has happened, if that part is nearly everything or the image must be decoded whole.
func (w *Worker) decodeRegion(h header, enc []byte, steps []step) (img Image, done bool, err error) {
	if h.format != "jpeg" || len(steps) == 0 || steps[0].kind != stepGeo {
		return Image{}, false, nil
	}
	s := &steps[0]
	need := w.looksAt(s)
	if need.w*need.h*16 > h.w*h.h*15 {
		return Image{}, false, nil
	}
	n := w.jpeg.room(h, need)
	if n == 0 {
		return Image{}, false, nil
	}
	pix := w.buffer(bufWhole, n)
	got, err := w.region(h, enc, need, pix)
	if err != nil || got.w == 0 {
		return Image{}, false, err
	}
	s.moveTo(got)
	return newImage(pix, got.w, got.h), true, nil
}

// region decodes the part of a JPEG image that holds need into pix, of jpeg.room bytes. got is that part; it is empty
// when this image must be decoded whole.
func (w *Worker) region(h header, enc []byte, need box, pix []byte) (got box, err error) {
	if w.outside != nil {
		want := Want{W: h.w, H: h.h, Part: Area{X: need.x, Y: need.y, W: need.w, H: need.h}}
		a, err := w.outside.Pixels(enc, want, pix)
		return box{x: a.X, y: a.Y, w: a.W, h: a.H}, err
	}
	poison(enc)
	if got, err = w.jpeg.region(h, enc, need, w.limits, pix); err != nil {
		return box{}, w.decodeError(h, enc, err)
	}
	return got, nil
}

// looksAt is the part of the image that a stepGeo reads.
func (w *Worker) looksAt(s *step) box {
	if s.rw == s.src.w && s.rh == s.src.h { // the rest of src is not needed to place win
		s.src = box{x: s.src.x + s.win.x, y: s.src.y + s.win.y, w: s.win.w, h: s.win.h}
		s.rw, s.rh = s.src.w, s.src.h
		s.win.x, s.win.y = 0, 0
		return s.src
	}
	if !w.finishes(s) { // the twin in Go wants the whole of src
		return s.src
	}
	need := box{x: s.win.x, y: s.win.y, w: s.win.w, h: s.win.h}
	if s.rw != s.src.w {
		first, end := w.horiz.get(s.src.w, s.rw, s.filter).span(s.win.x, s.win.w)
		need.x, need.w = first, end-first
	}
	if s.rh != s.src.h {
		first, end := w.vert.get(s.src.h, s.rh, s.filter).span(s.win.y, s.win.h)
		need.y, need.h = first, end-first
	}
	need.x += s.src.x
	need.y += s.src.y
	return need
}

func allocate(alloc func(n int) ([]byte, error), n int) ([]byte, error) {
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
	readable := img.Planes == Packed || img.Planes <= Planes422 && bestLevel >= planesLevel
	if img.W < 1 || img.H < 1 || img.C != 3 || !readable || len(img.Pix) < img.Planes.Bytes(img.W, img.H) {
		return errs.New(errs.Internal, "", "this is a bug of larder",
			"an image of %d x %d x %d has %d bytes", img.H, img.W, img.C, len(img.Pix))
	}
	return nil
}

func badDst(have, want int) error {
	return errs.New(errs.Internal, "", "this is a bug of larder", "a sample of %d bytes was to be written to %d bytes",
		want, have)
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
		nw, nh := s.resultSize(img)
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
		case stepAffine:
			w.affine(s, img, next.Pix)
		case stepTurn:
			quarterTurn(s.quarters, img, next.Pix)
		case stepBlur:
			w.blur(s, img, next.Pix)
		case stepSharpness:
			w.sharpen(s, img, next.Pix)
		case stepErase:
			erase(s, img, next.Pix)
		default:
			copy(next.Pix, img.Pix)
			n := colors(steps[i:])
			w.color(steps[i:i+n], next.Pix)
			i += n - 1
		}
		img, owned = next, true
	}
	return img
}

// resultSize is the size of what a step makes of img.
func (s *step) resultSize(img Image) (w, h int) {
	switch s.kind {
	case stepGeo:
		return s.win.w, s.win.h
	case stepPad:
		return s.src.w, s.src.h
	case stepAffine:
		return s.rw, s.rh
	case stepTurn:
		return img.H, img.W
	default:
		return img.W, img.H
	}
}

// finishes reports whether geoC can run a step and finish in one.
func (w *Worker) finishes(s *step) bool {
	return w.level > 0 && s.kind == stepGeo && s.filter != nearestSample
}

// colors counts the colour steps that steps begins with.
func colors(steps []step) int {
	n := 0
	for n < len(steps) && steps[n].isColor() {
		n++
	}
	return n
}

// color runs colour steps in place: those of tables one by one, those between them together.
func (w *Worker) color(steps []step, pix []byte) {
	for len(steps) > 0 {
		if steps[0].isTable() {
			w.applyTables(&steps[0], pix)
			steps = steps[1:]
			continue
		}
		n := 1
		for n < len(steps) && !steps[n].isTable() {
			n++
		}
		w.blends(steps[:n], pix)
		steps = steps[n:]
	}
}

// blends runs colour steps without tables.
func (w *Worker) blends(steps []step, pix []byte) {
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
		default:
		}
	}
}

// Finish casts, normalises and lays out an augmented image, and erases what RandomErasing behind the cast draws under
// key. dst as for AugmentInto.
func (w *Worker) Finish(r *Recipe, img Image, key RandKey, dst []byte) error {
	if err := checkImage(img); err != nil {
		return err
	}
	img = w.packed(nil, img)
	n := img.W * img.H
	if r.out.Ragged {
		if len(dst) < n*3 {
			return badDst(len(dst), n*3)
		}
		copy(dst, img.Pix[:n*3])
		return nil
	}
	if img.W != r.outW || img.H != r.outH {
		return errs.New(errs.Internal, "", "this is a bug of larder",
			"an image of %d x %d came where the recipe gives %d x %d", img.H, img.W, r.outH, r.outW)
	}
	if len(dst) < r.out.SampleBytes {
		return badDst(len(dst), r.out.SampleBytes)
	}
	if !w.finishC(r, img, dst[:r.out.SampleBytes]) {
		finish(r, img.Pix[:n*3], dst[:r.out.SampleBytes])
	}
	r.eraseFinished(key, dst)
	return nil
}
