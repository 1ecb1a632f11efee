// Package prep turns stored images into samples: it parses recipes, decodes, and runs their ops, with the names,
// the parameters and the bits of Pillow and torchvision.transforms.v2 on PIL images.
//
// A Recipe is parsed once and is immutable; any number of goroutines may use it. A Worker belongs to one goroutine and
// owns every buffer it works in; in steady state it allocates nothing on the Go heap. Pixels are written into memory
// the caller hands over (a tier's slab, a ring's slot), and prep keeps no reference to it after the call.
//
// prep does not read files, does not know datasets, jobs, tiers or clocks, and starts no goroutine. It does not decide
// how a bad sample is treated: it returns a fault of reason SAMPLE_BAD without subject, and the caller, who knows the
// file, fills that in.
//
// # Where the bits come from
//
// Decoding follows Pillow's Image.convert("RGB") (EXIF orientation ignored, as torchvision's ImageFolder does).
// Resizing is Pillow's fixed-point scheme (libImaging/Resample.c): a horizontal, then a vertical pass, 22-bit
// coefficients, rounding to uint8 between them. Float output is ((v/255)-mean)/std in float32, one division after the
// other, as torch computes it. In builds with libjpeg-turbo (build tag "turbo") the result equals torchvision's bit for
// bit; in others JPEG decoding differs by a fraction of a grey level on average and Parity returns false. The rest is
// exact in both.
//
// # Kernels
//
// Builds with libjpeg-turbo also resize, adjust colours and finish in C (package kernel), with the instruction set
// that the processor has, one call and one pass an image, from the decoded pixels to the destination. The Go code
// beside it (resize.go, color.go, finish.go) is its twin: the same bits, what other builds run, and what the tests
// hold it to.
//
// DecodeInto, for samples that nothing keeps, decodes only the part of a JPEG image that the first op reads. The pixels
// are those of the whole image, and a damaged file is good or bad whatever the crop.
//
// Matrices, blurs and sharpness run in C too (kernel/kernel_more.h, beside affine.go and blur.go). Matrices follow
// Pillow's Geometry.c, in 16.16 bits or in float64; angles come through trig.go, rounded as Python's. GaussianBlur
// sums up fused products in the order of torch's convolution. What a table can do (table.go) stays in Go.
//
// # Erasing
//
// RandomErasing behind the cast writes into the finished sample (erase.go), by the key of the instance: it is part of
// Finish, and in no form that a tier keeps. MixUp and CutMix are checked here and done by whoever hands batches out.
//
// # Planes
//
// DecodeCompact gives the form that tiers keep. JPEG images with colour at half the width or at half of both sides,
// and grey ones, stay in planes (planes.go), with 1.5, 2 or 1 bytes a pixel. Augment converts the part that its first
// step reads (kernel/kernel_planes.h); every sample has the bytes that it has by way of RGB. The kernels are held to
// libjpeg's own RGB, and to a naive twin in the tests.
//
// # Randomness
//
// Op i of a recipe draws its parameters from a generator seeded by (seed, instance, sample, i): never by worker, rank
// or what a cache held. Arithmetic that a compiler may fuse is written so that it is not, so that all machines draw the
// same crops.
package prep
