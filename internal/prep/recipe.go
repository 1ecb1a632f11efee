package prep

import (
	"encoding/json"
	"sort"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
)

// OpSpec is one step of a recipe as it came over the wire. Args holds what JSON can: float64, string, bool, []any, nil
// (Go's integers and []int, []float64 are taken too).
type OpSpec struct {
	Kind string // "" or "builtin"; "python" is reserved
	Name string // as in torchvision.transforms.v2
	Args map[string]any
}

// Output describes what Finish writes for one sample.
type Output struct {
	DType       string // "uint8" or "float32"
	Layout      string // "CHW" or "HWC"
	Shape       []int  // of one sample; nil when ragged
	Ragged      bool   // samples differ in size; always uint8 HWC with three channels
	SampleBytes int    // bytes of one sample; 0 when ragged
}

// Values of Output and of ToDtype.
const (
	Uint8   = "uint8"
	Float32 = "float32"
	CHW     = "CHW"
	HWC     = "HWC"
)

// decodeVersion is part of every fingerprint; it is raised when the same file would decode to other pixels.
const decodeVersion = 1

// Recipe is a parsed list of ops. It is immutable and safe for concurrent use.
//
// Its canonical form is: image ops, which map a uint8 RGB image to another, then at most one ToDtype and any number of
// Normalize, which only say how values are written, with RandomErasing of what was written among them, then at most one
// MixUp or CutMix, which whoever hands batches out does. The deterministic image ops before the first random one are
// the prefix; their result is what the decoded tier holds.
type Recipe struct {
	ops      []op
	imageOps int // ops[:imageOps] are image ops
	cut      int // ops[:cut] are the prefix
	out      Output
	channels int              // of the output: 3, or 1 after Grayscale(1)
	lut      *[3][256]float32 // nil for uint8 output
	affine   affine           // the same by arithmetic
	erasings []erasing        // RandomErasing behind the cast
	id       ident.RecipeID
	prefix   ident.RecipeID
	suffix   ident.RecipeID
	outW     int // final width when fixed, else 0
	outH     int
	first    int  // number of the first op: op i draws as op first+i
	shown    int  // and its place in the list that a client gave, for messages
	free     bool // of the image of a record: it may keep a size of its own whatever its type
}

// affine is ((v/255)-mean)/std a channel, or ((v*(1/255))-mean)/std for a product; ok when the arithmetic of the
// kernels gives the bits of the table.
type affine struct {
	ok, product bool
	mean, std   [3]float32
}

// Ops returns the canonical form with every default filled in. The caller may change the result.
func (r *Recipe) Ops() []OpSpec {
	specs := make([]OpSpec, len(r.ops))
	for i := range r.ops {
		specs[i] = cloneSpec(r.ops[i].spec)
	}
	return specs
}

// ID is the fingerprint of the whole recipe, with the versions of its ops and the decoder.
func (r *Recipe) ID() ident.RecipeID { return r.id }

// Prefix is the fingerprint of decoding and the deterministic ops before the first random one: the decoded form.
func (r *Recipe) Prefix() ident.RecipeID { return r.prefix }

// SuffixID is the fingerprint of everything up to the last image op: the augmented form. How values are cast,
// normalised and laid out is not in it.
func (r *Recipe) SuffixID() ident.RecipeID { return r.suffix }

// Random reports whether any image op draws parameters, so that every instance is augmented for itself. A RandomErasing
// behind the cast is none: it is part of finishing, and draws for every instance all the same.
func (r *Recipe) Random() bool { return r.cut < r.imageOps }

// Output describes what Finish writes.
func (r *Recipe) Output() Output {
	o := r.out
	o.Shape = append([]int(nil), r.out.Shape...)
	return o
}

// fingerprint hashes the decoder and the canonical ops given. It is never zero, which means "no recipe".
func fingerprint(cut string, ops []op) ident.RecipeID {
	b := make([]byte, 0, 512)
	b = append(b, "larder recipe 1\n"...)
	b = append(b, cut...)
	b = append(b, "\ndecode "...)
	b = append(b, DecoderName()...)
	b = strconv.AppendInt(append(b, ' '), decodeVersion, 10)
	h := xxhash.Sum64(appendOps(b, ops))
	if h == 0 {
		h = 1
	}
	return ident.RecipeID(h)
}

// appendOps appends the names, versions and arguments of canonical ops.
func appendOps(b []byte, ops []op) []byte {
	for i := range ops {
		b = append(b, '\n')
		b = append(b, ops[i].spec.Name...)
		b = strconv.AppendInt(append(b, ' '), int64(opVersions[ops[i].kind]), 10)
		names := make([]string, 0, len(ops[i].spec.Args))
		for name := range ops[i].spec.Args {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			v, err := json.Marshal(ops[i].spec.Args[name])
			if err != nil { // canonical arguments are finite numbers, strings, bools, nil and lists of them
				panic("larder: prep: canonical argument does not marshal: " + err.Error())
			}
			b = append(append(append(append(b, ' '), name...), '='), v...)
		}
	}
	return b
}

// finalize derives everything from r.ops: cuts, output, lookup table, fingerprints.
func (r *Recipe) finalize(layoutSet bool, layoutFrom string) error {
	r.cut = r.imageOps
	for i := range r.ops[:r.imageOps] {
		if r.ops[i].random {
			r.cut = i
			break
		}
	}
	r.channels = 3
	for i := range r.ops[:r.imageOps] {
		o := &r.ops[i]
		switch o.kind {
		case opResize:
			if o.short == 0 {
				r.outW, r.outH = o.w, o.h
			} else if r.outW > 0 {
				r.outW, r.outH = o.resized(r.outW, r.outH)
			}
		case opCenterCrop, opRandomResizedCrop:
			r.outW, r.outH = o.w, o.h
		case opGrayscale:
			if o.channels == 1 {
				r.channels = 1
			}
		case opRandomRotation:
			if o.expand {
				r.outW, r.outH = 0, 0
			}
		default:
		}
		if f := o.fill; r.channels == 1 && (f[0] != f[1] || f[1] != f[2]) {
			return opError(i, o.spec.Name, "give one number", "fills with a colour, and the image has one channel there")
		}
		if int64(r.outW)*int64(r.outH) > defaultMaxPixels {
			return opError(i, o.spec.Name, "choose a smaller size",
				"gives images of %d x %d pixels, more than the %d that are allowed", r.outW, r.outH, int64(defaultMaxPixels))
		}
	}
	return r.finalizeOutput(layoutSet, layoutFrom)
}

func (r *Recipe) finalizeOutput(layoutSet bool, layoutFrom string) error {
	ragged := r.outW == 0
	o := Output{DType: Uint8, Layout: CHW, Ragged: ragged}
	var cast *op
	for i := r.imageOps; i < len(r.ops); i++ {
		if r.ops[i].kind == opToDtype {
			cast = &r.ops[i]
			o.DType, o.Layout = cast.dtype, cast.layout
		}
	}
	if ragged && !r.free {
		const hint = "end the size-changing ops with a fixed size: RandomResizedCrop(224), CenterCrop(224) or " +
			"Resize([224, 224])"
		switch {
		case o.DType == Float32:
			return errs.New(errs.RecipeInvalid, "transform", hint,
				"float32 output needs images of one size, but the recipe leaves images at sizes of their own")
		case len(r.ops) > 0 && r.ops[len(r.ops)-1].kind == opCutMix:
			return errs.New(errs.RecipeInvalid, "transform", hint,
				"CutMix needs images of one size, but the recipe leaves images at sizes of their own")
		case r.channels == 1:
			return errs.New(errs.RecipeInvalid, "transform", hint+", or use Grayscale(num_output_channels=3)",
				"one-channel output needs images of one size, but the recipe leaves images at sizes of their own")
		case layoutSet && o.Layout == CHW:
			return errs.New(errs.RecipeInvalid, "transform", hint+", or leave "+layoutFrom+" out",
				"%s asks for layout CHW, but images of unlike sizes are delivered as uint8 HWC", layoutFrom)
		}
		o.Layout = HWC
	}
	if cast == nil && r.free {
		o.Layout = HWC // as it came
	}
	if cast == nil {
		r.ops = append(r.ops, newToDtype(Uint8, false, o.Layout))
	} else {
		cast.layout = o.Layout
		cast.spec.Args["layout"] = o.Layout
	}
	if !ragged {
		elem := 1
		if o.DType == Float32 {
			elem = 4
		}
		o.SampleBytes = r.channels * r.outH * r.outW * elem
		o.Shape = []int{r.channels, r.outH, r.outW}
		if o.Layout == HWC {
			o.Shape = []int{r.outH, r.outW, r.channels}
		}
	}
	r.out = o
	if err := r.buildLUT(); err != nil {
		return err
	}
	if err := r.buildErasings(); err != nil {
		return err
	}
	r.prefix = fingerprint("decoded", r.ops[:r.cut])
	r.suffix = fingerprint("augmented", r.ops[:r.imageOps])
	r.id = fingerprint("whole", r.ops)
	return nil
}

// buildLUT tabulates cast and normalisation per channel: all of them map one uint8 to one float32, so the table has
// exactly the bits of torch's sequence div(255) or mul(1/255), sub_(mean), div_(std), each rounded to float32.
func (r *Recipe) buildLUT() error {
	if r.out.DType != Float32 {
		return nil
	}
	lut := new([3][256]float32)
	by, normalised, scaled := affine{std: [3]float32{1, 1, 1}}, 0, false
	for i := r.imageOps; i < len(r.ops); i++ {
		o := &r.ops[i]
		for c := range lut {
			switch o.kind {
			case opToDtype:
				scaled, by.product = o.scaled, o.product
				for v := range lut[c] {
					lut[c][v] = o.castOf(v)
				}
			case opNormalize:
				if n := len(o.mean); n != 1 && n != r.channels {
					return opError(i, o.spec.Name, "give one number, or one a channel",
						"has %d means for images of %d channels", n, r.channels)
				}
				if c == 0 {
					normalised++
				}
				by.mean[c], by.std[c] = o.mean[c%len(o.mean)], o.std[c%len(o.std)]
				for v := range lut[c] {
					d := float32(lut[c][v] - by.mean[c])
					lut[c][v] = d / by.std[c]
				}
			default:
			}
		}
	}
	r.lut = lut
	if scaled && normalised <= 1 && r.channels == 3 && r.out.Layout == CHW {
		r.tryAffine(by)
	}
	return nil
}

// castOf is what a ToDtype to float32 makes of a value.
func (o *op) castOf(v int) float32 {
	const inverse float32 = 1.0 / 255
	switch {
	case o.product:
		return float32(float32(v) * inverse) // rounded here, wherever it is inlined
	case o.scaled:
		return float32(v) / 255
	}
	return float32(v)
}

func cloneSpec(s OpSpec) OpSpec {
	args := make(map[string]any, len(s.Args))
	for k, v := range s.Args {
		if l, ok := v.([]any); ok {
			v = append([]any(nil), l...)
		}
		args[k] = v
	}
	return OpSpec{Kind: s.Kind, Name: s.Name, Args: args}
}

// Foreign is a recipe whose ops run elsewhere: this package has only its name. random says that
// its suffix draws.
func Foreign(id, prefix, suffix ident.RecipeID, random bool) *Recipe {
	r := &Recipe{id: id, prefix: prefix, suffix: suffix, out: Output{Ragged: true, Layout: HWC, DType: Uint8}}
	if random {
		r.imageOps = 1
	}
	return r
}
