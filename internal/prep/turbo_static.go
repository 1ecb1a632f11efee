//go:build cgo && turbo && !turbo_shared

package prep

// The static library keeps the binary free of a run-time dependency; the dev package ships it.

// #cgo LDFLAGS: -l:libjpeg.a
import "C"
