package prep

import (
	"strconv"

	"larder/internal/errs"
)

// ParseFields is ParseRecipe for ops on the image of a record, in the middle of a longer recipe: first is the number of
// the first of them, by which they draw. The image comes as uint8 HWC and stays so unless an op says otherwise, and it
// may keep a size of its own whatever its type. shown is its place in the list that a client gave, for messages. MixUp
// and CutMix are refused: ParseMixing reads the one that ends a recipe.
func ParseFields(ops []OpSpec, first, shown int) (*Recipe, error) {
	r := &Recipe{first: first, shown: shown, free: true}
	for i := range ops {
		if name := ops[i].Name; IsMixing(name) {
			return nil, opError(r.at(i), name, "put it last, and use one of MixUp and CutMix",
				"mixes whole batches, and steps come behind it")
		}
	}
	return parseRecipe(ops, r)
}

// FieldsOp is the op that says which fields the ops behind it touch, see package prep/fields.
const FieldsOp = "Fields"

// ParseRuns is what a recipe on records does with an image: ParseFields of each run of its ops, in order. A recipe
// without a Fields op draws as one that begins with it.
func ParseRuns(ops []OpSpec) (out []*Recipe, err error) {
	head := 1
	if len(ops) > 0 && ops[0].Name == FieldsOp {
		head = 0
	}
	for i := 0; i < len(ops); {
		if ops[i].Name == FieldsOp {
			i++
		}
		end := i
		for end < len(ops) && ops[end].Name != FieldsOp {
			end++
		}
		r, err := ParseFields(ops[i:end], i+1+head, i)
		if err != nil {
			return nil, err
		}
		out, i = append(out, r), end
	}
	return out, nil
}

// Part is some of the work of a recipe of ParseFields: image ops From up to To, then the casts behind them if Finish.
type Part struct {
	From, To int
	Finish   bool
}

// CheckJoint refuses ops that cannot act on masks, boxes and points together with the image.
func (r *Recipe) CheckJoint(masks bool) error {
	for i := range r.ops {
		o := &r.ops[i]
		switch {
		case o.kind == opRandAugment || o.kind == opTrivialAugmentWide || o.kind == opAutoAugment:
			return opError(r.at(i), o.spec.Name, "use RandomAffine and the colour ops, or name no masks, boxes or keypoints",
				"moves pixels of the image alone, and the record has fields that would have to move with it; torchvision "+
					"refuses that, too")
		case masks && o.fill != [3]uint8{o.fill[0], o.fill[0], o.fill[0]} && o.kind != opErasePixels:
			return opError(r.at(i), o.spec.Name, "give one number, which masks are filled with too",
				"fills with the colour %v, and a mask has no colours", o.fill)
		}
	}
	return nil
}

// at is the place of an op among all ops of the recipe that a client gave, about: casts may have been added.
func (r *Recipe) at(i int) int { return r.shown + i }

// Whole is all the work of a recipe.
func (r *Recipe) Whole() Part { return Part{0, r.imageOps, true} }

// Cut is how many image ops come before the first random one, and ImageOps how many there are.
func (r *Recipe) Cut() int { return r.cut }

// ImageOps counts the ops that work on pixels.
func (r *Recipe) ImageOps() int { return r.imageOps }

// Draws reports whether any op draws parameters, those behind the cast among them.
func (r *Recipe) Draws() bool { return r.Random() || len(r.erasings) > 0 }

// Describe names the ops of a part with their versions and arguments, for a fingerprint.
func (r *Recipe) Describe(p Part) string {
	b := append([]byte("decoder "), DecoderName()...)
	b = strconv.AppendInt(append(b, " from "...), int64(r.first), 10)
	b = appendOps(b, r.ops[p.From:p.To])
	if p.Finish {
		b = appendOps(b, r.ops[r.imageOps:])
	}
	return string(b)
}

// FieldShape is the shape of what a part makes of an image of width x height, -1 where that is not known, and its
// dtype. -1 may be given too.
func (r *Recipe) FieldShape(p Part, width, height int) (shape [3]int64, dtype string) {
	for i := p.From; i < p.To; i++ {
		width, height = r.ops[i].sizeAfter(width, height)
	}
	w, h := int64(width), int64(height)
	switch c := int64(r.channels); {
	case !p.Finish:
		return [3]int64{h, w, 3}, Uint8
	case r.out.Layout == HWC:
		return [3]int64{h, w, c}, r.out.DType
	default:
		return [3]int64{c, h, w}, r.out.DType
	}
}

// sizeAfter is the size of an image after an op, -1 where that differs from sample to sample.
func (o *op) sizeAfter(w, h int) (int, int) {
	switch {
	case o.kind == opCenterCrop || o.kind == opRandomResizedCrop || o.kind == opResize && o.short == 0:
		return o.w, o.h
	case o.kind == opResize && w > 0 && h > 0:
		return o.resized(w, h)
	case o.kind == opResize || o.kind == opRandomRotation && o.expand:
		return -1, -1
	}
	return w, h
}

// FieldSize is the size that a part makes of an image of width x height under key, and its bytes. An image that would
// become too large is a fault of reason SAMPLE_BAD.
func (w *Worker) FieldSize(r *Recipe, p Part, key RandKey, width, height int) (nw, nh, bytes int, err error) {
	if err := w.checkSize(width, height, "its image"); err != nil {
		return 0, 0, 0, err
	}
	q, err := w.plan(r, opRange{p.From, p.To}, key, width, height)
	if err != nil {
		return 0, 0, 0, err
	}
	if !p.Finish {
		return q.w, q.h, q.w * q.h * 3, nil
	}
	c := r.sized(q.w, q.h)
	return q.w, q.h, c.out.SampleBytes, nil
}

// FieldInto runs a part on an image, which is only read, and writes the bytes that FieldSize says to dst.
func (w *Worker) FieldInto(r *Recipe, p Part, img Image, key RandKey, dst []byte) error {
	defer w.trim()
	if img.Planes != Packed {
		return errs.New(errs.Internal, "", "this is a bug of larder", "the image of a record is in planes")
	}
	if err := checkImage(img); err != nil {
		return err
	}
	q, err := w.plan(r, opRange{p.From, p.To}, key, img.W, img.H)
	if err != nil {
		return err
	}
	if p.Finish {
		c := r.sized(q.w, q.h)
		return w.complete(&c, &q, img, key, dst)
	}
	if len(dst) < q.w*q.h*3 {
		return badDst(len(dst), q.w*q.h*3)
	}
	w.run(q.steps, img, dst[:q.w*q.h*3], q.w, q.h)
	return nil
}

// FieldFileInto is FieldInto of all the work of a recipe on an image file, with the same bytes: of a JPEG image only
// the part is decoded that the recipe looks at.
func (w *Worker) FieldFileInto(r *Recipe, enc []byte, key RandKey, dst []byte) error {
	h, err := w.header(enc)
	if err != nil {
		return err
	}
	q, err := w.plan(r, r.allOps(), key, h.w, h.h)
	if err != nil {
		return err
	}
	c := r.sized(q.w, q.h)
	return w.DecodeInto(&c, enc, key, dst)
}

// sized is a recipe whose results have one size.
func (r *Recipe) sized(width, height int) Recipe {
	c := *r
	c.outW, c.outH, c.out.Ragged = width, height, false
	c.out.SampleBytes = width * height * r.channels
	if r.out.DType == Float32 {
		c.out.SampleBytes *= 4
	}
	return c
}

// MaxBytes is what one sample may take, see Limits.
func (w *Worker) MaxBytes() int64 { return w.limits.MaxBytes }
