//go:build cgo && turbo && turbo_shared

package prep

// For systems whose libjpeg-turbo has no static library, or whose packagers want none.

// #cgo LDFLAGS: -ljpeg
import "C"
