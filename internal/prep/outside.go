package prep

import (
	"errors"

	"larder/internal/errs"
)

// Outside decodes stored images in the place of a Worker's own decoders: in another process, which a crash may end. It
// is safe for concurrent use.
type Outside interface {
	// Pixels does what Worker.Pixels does. An error that is no fault of the image is ErrStopped.
	Pixels(enc []byte, want Want, dst []byte) (Area, error)
}

// ErrStopped says that an Outside has ended. It says nothing about the image.
var ErrStopped = errors.New("the daemon is stopping")

// Area is a part of an image, in pixels.
type Area struct{ X, Y, W, H int }

// Want says which pixels of a stored image are wanted.
type Want struct {
	W, H int    // the size of the image, by its header
	As   Planes // how a whole image is to lie in memory; a part is RGB
	Part Area   // what is needed of a JPEG image; zero = the whole image
}

// Whole reports whether the whole image is wanted.
func (x *Want) Whole() bool { return x.Part == Area{} }

// Fits reports whether got can be the answer: an Area that holds the wanted part, in dst of n bytes, or none, because
// the image must be decoded whole.
func (x *Want) Fits(got Area, n int) bool {
	if x.Whole() {
		return got == Area{W: x.W, H: x.H} && x.As.Bytes(x.W, x.H) <= n
	}
	if got == (Area{}) {
		return true
	}
	p := x.Part
	return got.X >= 0 && got.Y >= 0 && got.W > 0 && got.H > 0 && got.W <= x.W && got.H <= x.H &&
		got.X <= p.X && got.Y <= p.Y && got.X <= x.W-got.W && got.Y <= x.H-got.H &&
		got.X+got.W >= p.X+p.W && got.Y+got.H >= p.Y+p.H && got.W*got.H*3 <= n
}

// Bytes is how many bytes of dst an answer that Fits takes.
func (x *Want) Bytes(got Area) int {
	if x.Whole() {
		return x.As.Bytes(x.W, x.H)
	}
	return got.W * got.H * 3
}

// DecodeBy has every image decoded by o from now on. The worker reads headers, and does all that comes after decoding.
func (w *Worker) DecodeBy(o Outside) { w.outside = o }

// Pixels decodes what is wanted of a stored image to dst, and returns which part of the image that is. It is the end
// of an Outside at which the decoders are: it trusts neither enc nor want. Errors about the image are faults of reason
// SAMPLE_BAD.
func (w *Worker) Pixels(enc []byte, want Want, dst []byte) (Area, error) {
	defer w.trim()
	h, err := w.header(enc)
	if err != nil {
		return Area{}, err
	}
	wrong := func(what string) (Area, error) {
		return Area{}, errs.New(errs.Internal, "", "this is a bug of larder", "pixels were asked for %s", what)
	}
	if h.w != want.W || h.h != want.H {
		return wrong("of an image of another size")
	}
	if want.Whole() {
		switch {
		case want.As != Packed && want.As != h.planes:
			return wrong("in planes that the image does not have")
		case len(dst) < want.As.Bytes(h.w, h.h):
			return wrong("in too little memory")
		}
		return Area{W: h.w, H: h.h}, w.decode(h, enc, want.As, dst)
	}
	need := box{x: want.Part.X, y: want.Part.Y, w: want.Part.W, h: want.Part.H}
	in := need.x >= 0 && need.y >= 0 && need.w > 0 && need.h > 0 && need.w <= h.w && need.h <= h.h &&
		need.x <= h.w-need.w && need.y <= h.h-need.h
	if n := 0; in && h.format == "jpeg" {
		if n = w.jpeg.room(h, need); n > 0 && n <= len(dst) {
			got, err := w.region(h, enc, need, dst)
			return Area{X: got.x, Y: got.y, W: got.w, H: got.h}, err
		}
	}
	return wrong("of a part that cannot be decoded")
}

// Failure is a fault of an image in a form that crosses processes.
type Failure struct {
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Cause   string `json:"cause,omitempty"`   // what the decoder said
	Corrupt bool   `json:"corrupt,omitempty"` // see IsCorrupt
	At      int64  `json:"at"`                // see DamagedAt; below 0 it is not known
}

// FailureOf returns the form of an error of Worker.Pixels; false = it is no fault of the image.
func FailureOf(err error) (Failure, bool) {
	e, ok := errors.AsType[*errs.Error](err)
	if !ok || e.Reason != errs.SampleBad {
		return Failure{}, false
	}
	f := Failure{Message: e.Message, Hint: e.Hint, Corrupt: IsCorrupt(err), At: -1}
	if e.Err != nil {
		f.Cause = e.Err.Error()
	}
	if at, ok := DamagedAt(err); ok {
		f.At = at
	}
	return f, true
}

// Err is the error again.
func (f *Failure) Err() error {
	e := errs.New(errs.SampleBad, "", f.Hint, "%s", f.Message)
	switch {
	case f.Corrupt:
		e = e.Because(&corruptError{f.Cause})
	case f.Cause != "":
		e = e.Because(errors.New(f.Cause))
	}
	return locate(e, f.At)
}
