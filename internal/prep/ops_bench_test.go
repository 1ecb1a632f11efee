package prep

import "testing"

// opsToTime are the ops of docs/measurements/ops.md, which speed.py runs in torchvision with the same arguments. Those
// with a probability always happen.
var opsToTime = []struct {
	name string
	ops  []OpSpec
}{
	{"GaussianBlur(5)", []OpSpec{spec("GaussianBlur", "kernel_size", 5.0)}},
	{"GaussianBlur(23)", []OpSpec{spec("GaussianBlur", "kernel_size", 23.0)}},
	{"RandomRotation(30)", []OpSpec{spec("RandomRotation", "degrees", 30.0)}},
	{"RandomRotation(30), bilinear", []OpSpec{spec("RandomRotation", "degrees", 30.0, "interpolation", "bilinear")}},
	{"RandomAffine, bilinear", []OpSpec{spec("RandomAffine", "degrees", 15.0, "translate", []any{0.1, 0.1}, "scale",
		[]any{0.8, 1.2}, "shear", 10.0, "interpolation", "bilinear")}},
	{"RandomAffine, bicubic", []OpSpec{spec("RandomAffine", "degrees", 15.0, "translate", []any{0.1, 0.1}, "scale",
		[]any{0.8, 1.2}, "shear", 10.0, "interpolation", "bicubic")}},
	{"RandomAutocontrast", []OpSpec{spec("RandomAutocontrast", "p", 1.0)}},
	{"RandomEqualize", []OpSpec{spec("RandomEqualize", "p", 1.0)}},
	{"RandomInvert", []OpSpec{spec("RandomInvert", "p", 1.0)}},
	{"RandomSolarize(128)", []OpSpec{spec("RandomSolarize", "threshold", 128.0, "p", 1.0)}},
	{"RandomPosterize(4)", []OpSpec{spec("RandomPosterize", "bits", 4.0, "p", 1.0)}},
	{"RandomAdjustSharpness(2)", []OpSpec{spec("RandomAdjustSharpness", "sharpness_factor", 2.0, "p", 1.0)}},
	{"RandAugment", []OpSpec{spec("RandAugment")}},
	{"RandAugment, bilinear", []OpSpec{spec("RandAugment", "interpolation", "bilinear")}},
	{"TrivialAugmentWide", []OpSpec{spec("TrivialAugmentWide")}},
	{"AutoAugment", []OpSpec{spec("AutoAugment")}},
	{"Normalize, RandomErasing", []OpSpec{spec("CenterCrop", "size", 224.0), imagenet, spec("RandomErasing", "p", 1.0)}},
}

// BenchmarkOps times single ops on crops of 224 x 224 of photographs.
func BenchmarkOps(b *testing.B) {
	w := NewWorker(Limits{})
	defer w.Close()
	eval := parse(b, spec("Resize", "size", 256.0), spec("CenterCrop", "size", 224.0))
	var imgs []Image
	for _, enc := range benchFiles(b) {
		img, err := w.Decode(eval, enc, heap)
		if err != nil {
			b.Fatal(err)
		}
		imgs = append(imgs, img)
	}
	for _, o := range opsToTime {
		r := parse(b, o.ops...)
		b.Run(o.name, func(b *testing.B) {
			dst := make([]byte, 4*3*224*224)
			b.ReportAllocs()
			cpu := cpuSeconds(b)
			for i := 0; b.Loop(); i++ {
				whole := Recipe{ops: r.ops, imageOps: r.imageOps, channels: 3, out: r.out, lut: r.lut, affine: r.affine,
					erasings: r.erasings, outW: r.outW, outH: r.outH} // nothing in the prefix
				if err := w.AugmentInto(&whole, imgs[i%len(imgs)], RandKey{Seed: 1, Sample: uint64(i)}, dst); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpuSeconds(b)-cpu)*1e6/float64(b.N), "us-cpu/op")
		})
	}
}
