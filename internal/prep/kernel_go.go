//go:build !(cgo && turbo)

package prep

// This build has no C: every step runs in Go, with the same bits.

const bestLevel = 0

// KernelName says which code resizes and adjusts colours: the same bits come from all of them.
func KernelName() string { return "go" }

// planesLevel is out of reach: images stay packed in this build.
const planesLevel = 1

type kernels struct{}

func (w *Worker) geoC(*step, Image, []byte, *Recipe) bool    { return false }
func (w *Worker) finishC(*Recipe, Image, []byte) bool        { return false }
func (w *Worker) planesC(Image, box, []byte)                 {}
func (w *Worker) colorC([]step, []byte) bool                 { return false }
func (w *Worker) affineC(*step, Image, []byte) bool          { return false }
func (w *Worker) blurC(*step, []float32, Image, []byte) bool { return false }
func (w *Worker) sharpenC(*step, Image, []byte) bool         { return false }
func (r *Recipe) tryAffine(affine)                           {}
