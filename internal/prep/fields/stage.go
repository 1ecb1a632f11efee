package fields

import (
	"slices"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/units"
)

// Stage is a part of a run that is done at once.
type Stage struct {
	ops  *Ops
	part prep.Part
	out  record.Schema
}

// Stage is the part p of the run.
func (o *Ops) Stage(p prep.Part) *Stage { return &Stage{ops: o, part: p, out: o.Out(p)} }

// Out is what records look like behind the stage.
func (s *Stage) Out() record.Schema { return s.out }

// Describe names the stage for a fingerprint.
func (s *Stage) Describe() string { return s.ops.Describe(s.part) }

// Worker runs stages. It belongs to one goroutine and keeps its buffers.
type Worker struct {
	prep   *prep.Worker
	values []record.Value
	dims   [][]int64
	moves  []prep.Move
	masks  masks
	f32    []float32
	f64    []float64
	i32    []int32
	i64    []int64
	ints   []float32 // integers on their way through float32
}

// NewWorker returns a worker that does what concerns images with p.
func NewWorker(p *prep.Worker) *Worker { return &Worker{prep: p} }

const hintFits = `make the samples alike, or continue without this one by on_error="skip"`

func bad(format string, args ...any) error {
	return errs.New(errs.SampleBad, "", hintFits, format, args...)
}

// Run makes the record behind a stage of the one before it, under key. The result lies in memory from alloc, which is
// called once with its bytes; its error is returned as it is. v is only read. Errors about the sample are faults of
// reason SAMPLE_BAD.
func (w *Worker) Run(
	s *Stage, v record.View, key prep.RandKey, alloc func(n int) ([]byte, error),
) (blob []byte, err error) {
	height, width, err := w.open(s.ops, v)
	if err != nil {
		return nil, err
	}
	img := prep.Image{Pix: w.values[s.ops.bound.image].Data, W: width, H: height, C: 3}
	return w.make(s, key, [2]int{width, height}, alloc, func(dst []byte) error {
		return w.prep.FieldInto(s.ops.recipe, s.part, img, key, dst)
	})
}

// RunFile is Run of all the work of a run on a stored record whose image is a file, with the same bytes, where the
// image is its only file: of a JPEG image only the part is decoded that the ops look at. item is the bytes of the
// record that Run would have had. false = it has to be done by Run, which also says what is wrong.
func (w *Worker) RunFile(
	s *Stage, stored []byte, key prep.RandKey, alloc func(n int) ([]byte, error),
) (blob []byte, item int64, ok bool) {
	v, err := record.Open(stored)
	if err != nil || s.part != s.ops.Whole() || v.Len() != len(s.ops.in.Fields) {
		return nil, 0, false
	}
	image := s.ops.bound.image
	w.values, w.dims = w.values[:0], w.dims[:0]
	var width, height int
	for i, x := range v.All {
		f, dims := &s.ops.in.Fields[i], x.Dims()
		if i != image {
			err = f.Check(&x)
		} else if _, width, height, err = w.prep.Header(x.Data); x.Kind == record.Bytes && prep.IsImageFile(f) {
			dims = []int64{int64(height), int64(width), 3}
		} else {
			return nil, 0, false
		}
		if err != nil {
			return nil, 0, false
		}
		w.values, w.dims = append(w.values, x), append(w.dims, dims)
	}
	if item, err = s.ops.in.Size(w.dims); err != nil || item > w.prep.MaxBytes() || w.fits(s.ops) != nil {
		return nil, 0, false
	}
	file := w.values[image].Data
	blob, err = w.make(s, key, [2]int{width, height}, alloc, func(dst []byte) error {
		return w.prep.FieldFileInto(s.ops.recipe, file, key, dst)
	})
	return blob, item, err == nil
}

// make makes the record behind a stage of the fields that were opened. draw makes the image.
func (w *Worker) make(
	s *Stage, key prep.RandKey, size [2]int, alloc func(n int) ([]byte, error), draw func(dst []byte) error,
) (blob []byte, err error) {
	o, b, width, height := s.ops, &s.ops.bound, size[0], size[1]
	nw, nh, bytes, err := w.prep.FieldSize(o.recipe, s.part, key, width, height)
	if err != nil {
		return nil, err
	}
	shape, _ := o.recipe.FieldShape(prep.Part{Finish: s.part.Finish}, nw, nh)
	w.dims[b.image] = shape[:]
	for _, i := range b.masks {
		d := w.dims[i]
		d[len(d)-2], d[len(d)-1] = int64(nh), int64(nw)
	}
	total, err := s.out.Size(w.dims)
	if err != nil {
		return nil, bad("%v", err)
	}
	if most := w.prep.MaxBytes(); total > most {
		return nil, bad("a record of %s behind the ops, and %s are the most", units.Size(total), units.Size(most))
	}
	if blob, err = alloc(int(total)); err != nil {
		return nil, err
	}
	blob = blob[:total]
	places := s.out.Frame(blob, w.dims)
	if err := draw(places[b.image][:bytes]); err != nil {
		return nil, err
	}
	w.others(s, key, places, width, height)
	return blob, nil
}

// open reads the fields of a record and checks that they fit the ops.
func (w *Worker) open(o *Ops, v record.View) (height, width int, err error) {
	if v.Len() != len(o.in.Fields) {
		return 0, 0, bad("a record of %d fields, and the ops are for %d", v.Len(), len(o.in.Fields))
	}
	w.values, w.dims = w.values[:0], w.dims[:0]
	for i, x := range v.All {
		if err := o.in.Fields[i].Fits(&x); err != nil {
			return 0, 0, bad("%v", err)
		}
		w.values, w.dims = append(w.values, x), append(w.dims, x.Dims())
	}
	image := w.dims[o.bound.image]
	return int(image[0]), int(image[1]), w.fits(o)
}

// fits checks the sizes of fields that were opened.
func (w *Worker) fits(o *Ops) error {
	image := w.dims[o.bound.image]
	if image[2] != 3 || image[0] < 1 || image[1] < 1 || image[0] > maxSide || image[1] > maxSide {
		return bad("field %s: an image of shape %v; ops take [H, W, 3] with sides of 1 to %d pixels",
			o.names[o.bound.image], image, maxSide)
	}
	for _, i := range o.bound.masks {
		if d := w.dims[i]; d[len(d)-2] != image[0] || d[len(d)-1] != image[1] {
			return bad("field %s: a mask of shape %v for an image of shape %v", o.names[i], d, image)
		}
	}
	for _, g := range []struct {
		fields []int
		last   int64
	}{{o.bound.boxes, 4}, {o.bound.keypoints, 2}} {
		for _, i := range g.fields {
			d := w.dims[i]
			if n := len(d) - 1; slices.Contains(d[:n], 0) { // formats of nested lists do not know the last one of none
				d[n] = g.last
			}
			if d[len(d)-1] != g.last {
				return bad("field %s: shape %v, and its last dimension must be %d", o.names[i], d, g.last)
			}
		}
	}
	return nil
}

// maxSide bounds the sides of images, as for files.
const maxSide = 65500

// others makes the fields other than the image.
func (w *Worker) others(s *Stage, key prep.RandKey, places [][]byte, width, height int) {
	b := &s.ops.bound
	if b.joint() {
		w.moves = s.ops.recipe.Moves(w.moves[:0], s.part, key, width, height)
	} else {
		w.moves = w.moves[:0]
	}
	for i := range places {
		if i != b.image && (len(w.moves) == 0 || !b.moved(i)) {
			copy(places[i], w.values[i].Data)
		}
	}
	if len(w.moves) == 0 {
		return
	}
	for _, i := range b.masks {
		w.masks.move(w.prep, w.moves, &w.values[i], places[i])
	}
	for _, i := range b.boxes {
		w.points(w.values[i].DType, w.values[i].Data, places[i], b.format)
	}
	for _, i := range b.keypoints {
		w.points(w.values[i].DType, w.values[i].Data, places[i], keypoints)
	}
}

// moved reports whether a field moves with the image.
func (b *binding) moved(i int) bool {
	return slices.Contains(b.masks, i) || slices.Contains(b.boxes, i) || slices.Contains(b.keypoints, i)
}
