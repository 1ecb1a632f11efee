package prep

import (
	"maps"
	"slices"
	"strings"

	"larder/internal/errs"
	"larder/internal/nearest"
)

type opKind uint8

const (
	opResize opKind = iota
	opCenterCrop
	opRandomResizedCrop
	opHFlip
	opVFlip
	opColorJitter
	opGrayscale
	opGaussianBlur
	opRandomRotation
	opRandomAffine
	opAutocontrast
	opEqualize
	opInvert
	opSolarize
	opPosterize
	opSharpness
	opRandAugment
	opTrivialAugmentWide
	opAutoAugment
	opErasePixels // RandomErasing of uint8
	opToDtype
	opNormalize
	opRandomErasing // of floats
	opMixUp
	opCutMix
	numOpKinds
)

// opVersions are part of fingerprints: one is raised when its op gives other pixels or draws other parameters.
var opVersions = [numOpKinds]int{
	opResize: 1, opCenterCrop: 1, opRandomResizedCrop: 1, opHFlip: 1, opVFlip: 1, opColorJitter: 1, opGrayscale: 1,
	opGaussianBlur: 1, opRandomRotation: 1, opRandomAffine: 1, opAutocontrast: 1, opEqualize: 1, opInvert: 1,
	opSolarize: 1, opPosterize: 1, opSharpness: 1, opRandAugment: 1, opTrivialAugmentWide: 1, opAutoAugment: 1,
	opErasePixels: 1, opToDtype: 1, opNormalize: 1, opRandomErasing: 1, opMixUp: 1, opCutMix: 1,
}

// op is one parsed step. Only the fields of its kind are set.
type op struct {
	kind   opKind
	random bool
	spec   OpSpec // canonical

	w, h           int        // Resize to a fixed size, CenterCrop, RandomResizedCrop
	short, maxSide int        // Resize of the shorter side; maxSide 0 = none
	filter         filter     // Resize, RandomResizedCrop, and the ops that turn or shear
	scale          [2]float64 // RandomResizedCrop, RandomErasing: share of the area; RandomAffine: the factor
	ratio          [2]float64 // RandomResizedCrop: width / height; RandomErasing: height / width
	p              float64    // flips, and other ops with a probability
	jitter         [4]factor  // ColorJitter: brightness, contrast, saturation, hue
	channels       int        // Grayscale

	taps      [2]int      // GaussianBlur: sides of the kernel, x and y
	sigma     [2]float64  // GaussianBlur
	degrees   [2]float64  // RandomRotation, RandomAffine
	translate [2]float64  // RandomAffine: shares of the width and the height
	shear     [4]float64  // RandomAffine: degrees along x, then along y
	center    *[2]float64 // RandomRotation, RandomAffine; nil = the middle
	expand    bool        // RandomRotation
	fill      [3]uint8    // the ops that turn or shear, and RandomErasing of uint8
	amount    float64     // threshold, bits, or factor of sharpness

	count, level, bins int    // RandAugment: ops, magnitude; bins of magnitudes, also of TrivialAugmentWide
	policy             string // AutoAugment

	value []float32 // RandomErasing
	noise bool      // RandomErasing with random values

	dtype, layout string    // ToDtype
	scaled        bool      // ToDtype: divide by 255
	product       bool      // ToDtype: multiply by 1/255 instead
	mean, std     []float32 // Normalize
}

// factor is a range of random values. When it is off, no value is drawn and the step does nothing.
type factor struct {
	on     bool
	lo, hi float64
}

const maxOps = 64

// names in the order of error messages.
var opNames = []string{
	"Resize", "CenterCrop", "RandomResizedCrop", "RandomHorizontalFlip", "HFlip", "RandomVerticalFlip", "VFlip",
	"ColorJitter", "GaussianBlur", "RandomRotation", "RandomAffine", "RandomAutocontrast", "RandomEqualize",
	"RandomInvert", "RandomSolarize", "RandomPosterize", "RandomAdjustSharpness", "RandAugment", "TrivialAugmentWide",
	"AutoAugment", "RandomErasing", "MixUp", "CutMix",
	"Grayscale", "Normalize", "ToTensor", "ToDtype", "ToImage", "PILToTensor", "Compose",
}

// ParseRecipe checks ops and brings them into canonical form. Errors are faults of reason RECIPE_INVALID.
//
// Equal meaning gives equal fingerprints: HFlip is RandomHorizontalFlip, ToTensor is ToDtype(float32, scale), defaults
// are filled in. Normalize before any cast gets ToDtype(float32, scale) in front of it. Flips and crops that come after
// the cast are moved in front of it, where they give the same values; other image ops there are refused, because
// torchvision would run them on tensors, with other pixels. ToImage and PILToTensor change no value, wherever they
// stand: image ops behind them still have the bits of PIL images. RandomErasing works where it stands, on uint8 or on
// floats. MixUp and CutMix end a recipe.
//
// Two defaults are not torchvision's: ToDtype scales (scale=true), and Grayscale gives three channels. A pair of casts
// that goes back to uint8 must agree in scale. ToDtype with by="mul" has the last bits of v2's.
func ParseRecipe(ops []OpSpec) (*Recipe, error) { return parseRecipe(ops, &Recipe{}) }

// parseRecipe fills in r.
func parseRecipe(ops []OpSpec, r *Recipe) (*Recipe, error) {
	if len(ops) > maxOps {
		return nil, errs.New(errs.RecipeInvalid, "transform", "join ops", "a recipe of %d ops is longer than the %d that "+
			"are allowed", len(ops), maxOps)
	}
	p := parser{}
	for i, spec := range ops {
		if err := p.add(r.shown+i, spec); err != nil {
			return nil, err
		}
	}
	r.imageOps = len(p.image)
	r.ops = slices.Concat(p.image, p.tail)
	if err := r.finalize(p.layoutFrom != "", p.layoutFrom); err != nil {
		return nil, err
	}
	return r, nil
}

type parser struct {
	image, tail []op
	layoutFrom  string // op that asked for a layout
	layout      string
}

func (p *parser) add(i int, spec OpSpec) error {
	switch spec.Kind {
	case "", "builtin":
	case "python":
		return opError(i, spec.Name, "use the built-in ops, and run Python functions on the batch after next()",
			"ops of kind python run on datasets in Python alone")
	default:
		return opError(i, spec.Name, "leave kind out", "the kind %s does not exist", show(spec.Kind))
	}
	a := &args{i: i, name: spec.Name, in: maps.Clone(spec.Args), out: map[string]any{}}
	if a.in == nil {
		a.in = map[string]any{}
	}
	if n := len(p.tail); n > 0 && (p.tail[n-1].kind == opMixUp || p.tail[n-1].kind == opCutMix) {
		return opError(i, spec.Name, "put "+p.tail[n-1].spec.Name+" last, and use one of MixUp and CutMix",
			"comes after %s, which mixes whole batches", p.tail[n-1].spec.Name)
	}
	o, tail := p.parse(a)
	if a.err != nil {
		return a.err
	}
	if tail {
		return nil
	}
	o.spec.Args = a.out
	if len(p.tail) > 0 {
		if err := p.commutes(i, &o); err != nil {
			return err
		}
	}
	p.image = append(p.image, o)
	return nil
}

// commutes refuses image ops after a cast that would not give the same values in front of it.
func (p *parser) commutes(i int, o *op) error {
	last := &p.tail[len(p.tail)-1]
	erased := false
	for k := range p.tail {
		erased = erased || p.tail[k].kind == opRandomErasing
	}
	switch {
	case (o.kind == opHFlip || o.kind == opVFlip) && !erased:
		return nil
	case o.kind == opCenterCrop && last.kind == opToDtype: // it pads with 0, which Normalize would have moved
		return nil
	case last.kind == opToDtype && last.dtype == Uint8:
		return nil
	}
	return opError(i, o.spec.Name, "put it before "+last.spec.Name,
		"comes after %s; there torchvision works on float tensors, larder on uint8 images", last.spec.Name)
}

// parse reads one op. tail means that it was a cast or normalisation, which parse has put in place itself.
func (p *parser) parse(a *args) (o op, tail bool) {
	switch strings.ToLower(a.name) {
	case "resize":
		return a.resize(), false
	case "centercrop":
		a.known("size")
		h, w, _ := a.size("size")
		a.out["size"] = []any{float64(h), float64(w)}
		return op{kind: opCenterCrop, spec: OpSpec{Name: "CenterCrop"}, w: w, h: h}, false
	case "randomresizedcrop":
		return a.randomResizedCrop(), false
	case "randomhorizontalflip", "hflip":
		return a.flip(opHFlip, "RandomHorizontalFlip"), false
	case "randomverticalflip", "vflip":
		return a.flip(opVFlip, "RandomVerticalFlip"), false
	case "colorjitter":
		return a.colorJitter(), false
	case "grayscale":
		a.known("num_output_channels")
		n := a.float("num_output_channels", 3, 1, 3)
		if n == 2 || n != float64(int(n)) {
			a.fail("give 1 or 3", "num_output_channels is %g, not 1 or 3", n)
		}
		return op{kind: opGrayscale, spec: OpSpec{Name: "Grayscale"}, channels: int(n)}, false
	case "totensor":
		a.known()
		p.cast(a, newToDtype(Float32, true, CHW), true)
	case "toimage", "piltotensor":
		a.known()
		if len(p.tail) == 0 || p.tail[0].dtype == Uint8 {
			p.cast(a, newToDtype(Uint8, false, CHW), true)
		}
	case "todtype":
		a.known("dtype", "scale", "layout", "by")
		dtype := a.word("dtype", Float32, []string{Float32, Uint8},
			map[string]string{"torch.float32": Float32, "torch.float": Float32, "float": Float32, "torch.uint8": Uint8})
		scaled := a.bool("scale", true)
		o := newToDtype(dtype, scaled, a.word("layout", CHW, []string{CHW, HWC}, nil))
		if a.word("by", byDivision, []string{byDivision, byProduct}, nil) == byProduct {
			o = o.multiplied()
		}
		p.cast(a, o, a.has("layout"))
	case "normalize":
		p.normalize(a)
	case "compose":
		a.fail("list the ops themselves",
			"larder.ops.Compose is flattened by the client; on the wire a recipe is a plain list")
		return op{}, false
	default:
		if o, tail, known := p.parseMore(a); known {
			return o, tail
		}
		a.err = opError(a.i, a.name, nearest.DidYouMean(a.name, opNames), "there is no such op")
		return op{}, false
	}
	return op{}, true
}

func (a *args) resize() op {
	a.known("size", "interpolation", "max_size", "antialias")
	o := op{kind: opResize, spec: OpSpec{Name: "Resize"}}
	h, w, single := a.size("size")
	a.out["max_size"] = nil
	if single {
		o.short = h
		a.out["size"] = float64(h)
		if a.has("max_size") {
			o.maxSide = a.side("max_size", a.in["max_size"])
			a.out["max_size"] = float64(o.maxSide)
			if a.err == nil && o.maxSide <= o.short {
				a.fail("make max_size larger", "max_size %d must be larger than size %d", o.maxSide, o.short)
			}
		}
	} else {
		o.h, o.w = h, w
		a.out["size"] = []any{float64(h), float64(w)}
		if a.has("max_size") {
			a.fail("leave max_size out, or give size as one number", "max_size goes with a size of one number only")
		}
	}
	o.filter = a.interpolation()
	a.antialias()
	return o
}

func (a *args) randomResizedCrop() op {
	a.known("size", "scale", "ratio", "interpolation", "antialias")
	o := op{kind: opRandomResizedCrop, random: true, spec: OpSpec{Name: "RandomResizedCrop"}}
	o.h, o.w, _ = a.size("size")
	a.out["size"] = []any{float64(o.h), float64(o.w)}
	o.scale = a.pair("scale", [2]float64{0.08, 1}, 0, 1e6)
	o.ratio = a.pair("ratio", [2]float64{3.0 / 4, 4.0 / 3}, 1e-6, 1e6)
	o.filter = a.interpolation()
	a.antialias()
	return o
}

func (a *args) flip(kind opKind, name string) op {
	a.known("p")
	p := a.float("p", 0.5, 0, 1)
	return op{kind: kind, random: p > 0 && p < 1, spec: OpSpec{Name: name}, p: p}
}

func (a *args) colorJitter() op {
	a.known("brightness", "contrast", "saturation", "hue")
	o := op{kind: opColorJitter, spec: OpSpec{Name: "ColorJitter"}}
	some := false
	for k, name := range [...]string{"brightness", "contrast", "saturation", "hue"} {
		center, lo, hi := 1.0, 0.0, 1e6
		if name == "hue" {
			center, lo, hi = 0, -0.5, 0.5
		}
		f := factor{lo: center, hi: center}
		if _, single := number(a.in[name]); single {
			d := a.float(name, 0, 0, hi)
			f.lo, f.hi = max(center-d, lo), center+d
		} else if a.has(name) {
			p := a.pair(name, [2]float64{center, center}, lo, hi)
			f.lo, f.hi = p[0], p[1]
		}
		f.on = f.lo != center || f.hi != center
		o.jitter[k] = f
		o.random = o.random || f.lo != f.hi || f.on && some // two fixed adjustments come in random order
		some = some || f.on
		a.out[name] = []any{f.lo, f.hi}
	}
	return o
}

func newToDtype(dtype string, scaled bool, layout string) op {
	return op{kind: opToDtype, dtype: dtype, scaled: scaled, layout: layout,
		spec: OpSpec{Name: "ToDtype", Args: map[string]any{"dtype": dtype, "scale": scaled, "layout": layout}}}
}

// How ToDtype scales: v / 255, as torchvision.transforms does, or v * (1 / 255), as torchvision.transforms.v2 does.
const (
	byDivision = "div"
	byProduct  = "mul"
)

// multiplied is a ToDtype that scales by a product. The argument is named only where it counts: equal meaning gives
// equal fingerprints.
func (o op) multiplied() op {
	if o.scaled && o.dtype == Float32 {
		o.product = true
		o.spec.Args["by"] = byProduct
	}
	return o
}

// with is a ToDtype of another layout.
func (o op) with(layout string) op {
	o.layout = layout
	o.spec = cloneSpec(o.spec)
	o.spec.Args["layout"] = layout
	return o
}

// cast puts a cast in place. A recipe has one: casting back and forth with one scale is the identity and leaves the
// last.
func (p *parser) cast(a *args, o op, layoutSet bool) {
	if o.dtype == Uint8 && (len(p.tail) == 0 || !p.tail[0].scaled) {
		o = newToDtype(Uint8, false, o.layout) // uint8 to uint8 changes no value with scale or without
	}
	if layoutSet {
		p.layout, p.layoutFrom = o.layout, a.name
	} else if p.layout != "" {
		o = o.with(p.layout)
	}
	if len(p.tail) == 0 {
		p.tail = append(p.tail, o)
		return
	}
	last := &p.tail[len(p.tail)-1]
	old := &p.tail[0]
	switch {
	case last.kind == opNormalize && o.dtype == Uint8:
		a.fail("leave one of them out", "cannot bring normalised values back to uint8")
		return
	case last.kind == opRandomErasing && o.dtype == Uint8:
		a.fail("put RandomErasing before ToTensor", "cannot bring what RandomErasing wrote as floats back to uint8")
		return
	case old.dtype == Float32 && o.dtype == Uint8:
		if old.scaled != o.scaled {
			a.fail("use the same scale in both", "goes back to uint8 with another scale than it left it")
			return
		}
		o = newToDtype(Uint8, false, o.layout)
	case old.dtype == Float32: // float32 to float32: torchvision changes nothing
		o = old.with(o.layout)
	}
	*old = o
}

func (p *parser) normalize(a *args) {
	a.known("mean", "std", "inplace")
	o := op{kind: opNormalize, spec: OpSpec{Name: "Normalize", Args: a.out}}
	if s, ok := a.in["mean"].(string); ok {
		if s != "imagenet" {
			a.fail(nearest.DidYouMean(s, []string{"imagenet"}), "mean is %s, not a list of numbers and not \"imagenet\"",
				show(s))
		}
		if a.has("std") {
			a.fail("leave std out", "mean \"imagenet\" brings its own std")
		}
		a.in["mean"] = []any{0.485, 0.456, 0.406}
		a.in["std"] = []any{0.229, 0.224, 0.225}
	}
	o.mean = a.channelValues("mean")
	o.std = a.channelValues("std")
	if a.err != nil {
		return
	}
	if len(o.mean) != len(o.std) {
		a.fail("give both alike", "has %d means and %d stds", len(o.mean), len(o.std))
	}
	for _, s := range o.std {
		if s == 0 {
			a.fail("give positive numbers; imagenet's are 0.229, 0.224, 0.225", "a std is 0, by which nothing can be divided")
		}
	}
	if len(p.tail) == 0 {
		p.tail = append(p.tail, newToDtype(Float32, true, CHW))
	} else if p.tail[0].dtype == Uint8 {
		p.tail[0] = newToDtype(Float32, true, p.tail[0].layout)
	}
	p.tail = append(p.tail, o)
}

// channelValues reads a number or a list of one or three of them, as float32, which is what torch computes with.
func (a *args) channelValues(name string) []float32 {
	l, ok := list(a.in[name])
	if !ok {
		if _, single := number(a.in[name]); !single {
			a.fail(`write Normalize("imagenet") or Normalize(mean=[…], std=[…])`, "%s is %s, not a list of numbers", name,
				show(a.in[name]))
			return nil
		}
		l = []any{a.in[name]}
	}
	if len(l) != 1 && len(l) != 3 {
		a.fail("give one number for all channels, or one for each of the three", "%s has %d numbers, not 1 or 3", name,
			len(l))
		return nil
	}
	vals := make([]float32, len(l))
	canon := make([]any, len(l))
	for i, v := range l {
		f, ok := number(v)
		if !ok || f < -1e9 || f > 1e9 {
			a.fail("give numbers, from -1e9 to 1e9", "%s is %s, not a list of numbers", name, show(a.in[name]))
			return nil
		}
		vals[i], canon[i] = float32(f), f
	}
	a.out[name] = canon
	return vals
}
