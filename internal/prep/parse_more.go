package prep

import (
	"fmt"
	"math"
	"strings"
)

// parseMore reads the ops that torchvision's classification scripts use beside the usual ones, by their names in lower
// case; known is false for a name that is none of them.
func (p *parser) parseMore(a *args) (o op, tail, known bool) {
	switch strings.ToLower(a.name) {
	case "gaussianblur":
		return a.gaussianBlur(), false, true
	case "randomrotation":
		return a.randomRotation(), false, true
	case "randomaffine":
		return a.randomAffine(), false, true
	case "randomautocontrast":
		return a.chance(opAutocontrast, "RandomAutocontrast"), false, true
	case "randomequalize":
		return a.chance(opEqualize, "RandomEqualize"), false, true
	case "randominvert":
		return a.chance(opInvert, "RandomInvert"), false, true
	case "randomsolarize":
		o = a.chance(opSolarize, "RandomSolarize", "threshold")
		o.amount = a.needed("threshold", 0, 256)
	case "randomposterize":
		o = a.chance(opPosterize, "RandomPosterize", "bits")
		o.amount = float64(a.whole("bits", 0, 0, 8, true))
	case "randomadjustsharpness":
		o = a.chance(opSharpness, "RandomAdjustSharpness", "sharpness_factor")
		o.amount = a.needed("sharpness_factor", 0, 1e6)
	case "randaugment":
		return a.randAugment(), false, true
	case "trivialaugmentwide":
		a.known("num_magnitude_bins", "interpolation", "fill")
		o = op{kind: opTrivialAugmentWide, random: true, spec: OpSpec{Name: "TrivialAugmentWide"}, count: 1}
		o.bins = a.whole("num_magnitude_bins", 31, 2, 1000, false)
		a.looks(&o)
	case "autoaugment":
		a.known("policy", "interpolation", "fill")
		o = op{kind: opAutoAugment, random: true, spec: OpSpec{Name: "AutoAugment"}}
		o.policy = a.word("policy", "imagenet", []string{"imagenet", "cifar10", "svhn"}, nil)
		a.looks(&o)
	case "randomerasing":
		o = a.randomErasing(len(p.tail) > 0 && p.tail[0].dtype == Float32)
		if o.kind == opRandomErasing && a.err == nil {
			o.spec.Args = a.out
			p.tail = append(p.tail, o)
		}
		return o, o.kind == opRandomErasing, true
	case "fields":
		a.fail("leave it out", "is for records: the samples of this dataset have one image")
		return op{}, false, true
	case "mixup", "cutmix":
		p.mix(a)
		return op{}, true, true
	default:
		return op{}, false, false
	}
	return o, false, true
}

// needed reads a number that has no default.
func (a *args) needed(name string, lo, hi float64) float64 {
	if !a.has(name) {
		a.fail(fmt.Sprintf("write %s(%s=…), a number from %g to %g", a.name, name, lo, hi), "needs the argument %s", name)
	}
	return a.float(name, lo, lo, hi)
}

// whole reads a whole number in [lo, hi].
func (a *args) whole(name string, def, lo, hi int, needed bool) int {
	f := float64(def)
	if needed {
		f = a.needed(name, float64(lo), float64(hi))
	} else {
		f = a.float(name, f, float64(lo), float64(hi))
	}
	if f != math.Trunc(f) {
		a.fail(fmt.Sprintf("give a whole number from %d to %d", lo, hi), "%s is %g, not a whole number", name, f)
	}
	return int(f)
}

// numbers reads a list of n numbers in [lo, hi]; nil when there is none.
func (a *args) numbers(name string, n int, lo, hi float64) []float64 {
	a.out[name] = nil
	if !a.has(name) {
		return nil
	}
	l, ok := list(a.in[name])
	vals := make([]float64, len(l))
	canon := make([]any, len(l))
	for i := range l {
		var isNumber bool
		vals[i], isNumber = number(l[i])
		ok = ok && isNumber && vals[i] >= lo && vals[i] <= hi
		canon[i] = vals[i]
	}
	if !ok || len(l) != n {
		a.fail(fmt.Sprintf("give %d numbers from %g to %g", n, lo, hi), "%s is %s, not a list of %d numbers from %g to %g",
			name, show(a.in[name]), n, lo, hi)
		return nil
	}
	a.out[name] = canon
	return vals
}

// around reads a range as torchvision does: a number d for [-d, d], or two bounds.
func (a *args) around(name string, limit float64) [2]float64 {
	if !a.has(name) {
		a.fail("write "+a.name+"("+name+"=10)", "needs the argument %s", name)
		return [2]float64{}
	}
	if _, single := number(a.in[name]); single {
		d := a.float(name, 0, 0, limit)
		a.out[name] = []any{-d, d}
		return [2]float64{-d, d}
	}
	return a.pair(name, [2]float64{}, -limit, limit)
}

// chance is an op that is done with a probability.
func (a *args) chance(kind opKind, name string, others ...string) op {
	a.known(append(others, "p")...)
	p := a.float("p", 0.5, 0, 1)
	return op{kind: kind, random: p > 0 && p < 1, spec: OpSpec{Name: name}, p: p}
}

// looks reads the interpolation, nearest by default, and the fill of an op that moves pixels.
func (a *args) looks(o *op) {
	if !a.has("interpolation") {
		a.in["interpolation"] = "nearest"
	}
	o.filter = a.interpolation()
	if !a.has("fill") {
		a.in["fill"] = 0.0
	}
	l, ok := list(a.in["fill"])
	if !ok {
		l = []any{a.in["fill"], a.in["fill"], a.in["fill"]}
	}
	canon := make([]any, 3)
	for i := range canon {
		f, ok := 0.0, len(l) == 3
		if ok {
			f, ok = number(l[i])
		}
		if !ok || f < 0 || f > 255 || f != math.Trunc(f) {
			a.fail("give a whole number from 0 to 255, or three of them", "fill is %s, not a colour", show(a.in["fill"]))
			return
		}
		o.fill[i], canon[i] = uint8(f), f
	}
	a.out["fill"] = canon
}

func (a *args) gaussianBlur() op {
	a.known("kernel_size", "sigma")
	o := op{kind: opGaussianBlur, spec: OpSpec{Name: "GaussianBlur"}}
	v := a.in["kernel_size"]
	l, ok := list(v)
	if !ok {
		l = []any{v}
	}
	if len(l) == 1 {
		l = []any{l[0], l[0]}
	}
	for i := range o.taps {
		f, ok := 0.0, len(l) == 2
		if ok {
			f, ok = number(l[i])
		}
		if !ok || f < 1 || f > maxTaps || f != math.Trunc(f) || int(f)%2 == 0 {
			a.fail("write "+a.name+"(kernel_size=5)", "kernel_size is %s, not an odd number from 1 to %d, or two of them",
				show(v), maxTaps)
			return o
		}
		o.taps[i] = int(f)
	}
	a.out["kernel_size"] = []any{float64(o.taps[0]), float64(o.taps[1])}
	if s, single := number(a.in["sigma"]); single {
		a.in["sigma"] = []any{s, s}
	}
	o.sigma = a.pair("sigma", [2]float64{0.1, 2}, 1e-3, 1e3)
	o.random = o.sigma[0] < o.sigma[1]
	return o
}

// mostTurn bounds angles: ten turns.
const mostTurn = 3600

func (a *args) randomRotation() op {
	a.known("degrees", "interpolation", "expand", "center", "fill")
	o := op{kind: opRandomRotation, spec: OpSpec{Name: "RandomRotation"}}
	o.degrees = a.around("degrees", mostTurn)
	o.expand = a.bool("expand", false)
	a.middle(&o)
	a.looks(&o)
	o.random = o.degrees[0] < o.degrees[1]
	return o
}

func (a *args) middle(o *op) {
	if c := a.numbers("center", 2, -1e6, 1e6); c != nil {
		o.center = &[2]float64{c[0], c[1]}
	}
}

func (a *args) randomAffine() op {
	a.known("degrees", "translate", "scale", "shear", "interpolation", "fill", "center")
	o := op{kind: opRandomAffine, spec: OpSpec{Name: "RandomAffine"}, scale: [2]float64{1, 1}}
	o.degrees = a.around("degrees", mostTurn)
	if t := a.numbers("translate", 2, 0, 1); t != nil {
		o.translate = [2]float64{t[0], t[1]}
	}
	if a.has("scale") {
		o.scale = a.pair("scale", o.scale, 1e-3, 1e3)
	} else {
		a.out["scale"] = nil
	}
	a.out["shear"] = nil
	if l, ok := list(a.in["shear"]); ok && len(l) == 4 {
		if s := a.numbers("shear", 4, -89, 89); s != nil {
			o.shear = [4]float64(s)
			if s[0] > s[1] || s[2] > s[3] {
				a.fail("swap them", "shear is %s: the first number of a pair is the larger one", show(l))
			}
		}
	} else if a.has("shear") {
		s := a.around("shear", 89)
		o.shear[0], o.shear[1] = s[0], s[1]
	}
	a.middle(&o)
	a.looks(&o)
	for _, r := range [...][2]float64{o.degrees, o.scale, {o.shear[0], o.shear[1]}, {o.shear[2], o.shear[3]}} {
		o.random = o.random || r[0] < r[1]
	}
	o.random = o.random || o.translate != [2]float64{}
	return o
}

func (a *args) randAugment() op {
	a.known("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill")
	o := op{kind: opRandAugment, random: true, spec: OpSpec{Name: "RandAugment"}}
	o.count = a.whole("num_ops", 2, 0, maxAuto, false)
	o.bins = a.whole("num_magnitude_bins", 31, 2, 1000, false)
	o.level = a.whole("magnitude", 9, 0, o.bins-1, false)
	o.random = o.count > 0
	a.looks(&o)
	return o
}

// randomErasing is an op on the finished sample where that is float32, else one on uint8.
func (a *args) randomErasing(floats bool) op {
	a.known("p", "scale", "ratio", "value", "inplace")
	p := a.float("p", 0.5, 0, 1)
	o := op{kind: opRandomErasing, random: p > 0, p: p, spec: OpSpec{Name: "RandomErasing"}}
	o.scale = a.pair("scale", [2]float64{0.02, 0.33}, 0, 1)
	o.ratio = a.pair("ratio", [2]float64{0.3, 3.3}, 1e-6, 1e6)
	a.bool("inplace", false)
	delete(a.out, "inplace") // changes no value
	if !floats {
		o.kind = opErasePixels
	}
	if s, ok := a.in["value"].(string); ok {
		if o.noise = strings.EqualFold(s, "random"); !o.noise {
			a.fail(`give a number, one a channel, or "random"`, "value is %s", show(s))
		} else if !floats {
			a.fail("put it behind ToTensor or Normalize, or give a number", "random values are normal floats, and the image "+
				"is uint8 there")
		}
		a.out["value"] = "random"
		return o
	}
	if !a.has("value") {
		a.in["value"] = 0.0
	}
	o.value = a.channelValues("value")
	if floats || a.err != nil {
		return o
	}
	for i := range o.fill {
		v := o.value[i%len(o.value)]
		if v < 0 || v > 255 || v != float32(math.Trunc(float64(v))) {
			a.fail("give whole numbers from 0 to 255, or put it behind ToTensor or Normalize",
				"value is %s, but the image is uint8 there", show(a.in["value"]))
			return o
		}
		o.fill[i] = uint8(v)
	}
	return o
}

// mix reads MixUp or CutMix, which works on batches and ends a recipe.
func (p *parser) mix(a *args) {
	a.known("alpha", "num_classes")
	o := op{kind: opMixUp, spec: OpSpec{Name: "MixUp", Args: a.out}}
	if strings.EqualFold(a.name, "cutmix") {
		o.kind, o.spec.Name = opCutMix, "CutMix"
	}
	a.float("alpha", 1, 1e-3, 1e3)
	a.whole("num_classes", 1, 1, 1<<20, true)
	if a.err != nil {
		return
	}
	if len(p.tail) == 0 {
		p.tail = append(p.tail, newToDtype(Uint8, false, CHW))
	}
	if o.kind == opMixUp && p.tail[0].dtype != Float32 {
		a.fail(`put ToTensor or Normalize before it, or mix on the device, behind larder.normalize`,
			"mixes float32 values, and the recipe gives uint8")
	}
	p.tail = append(p.tail, o)
}
