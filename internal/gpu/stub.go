//go:build !(cgo && linux)

package gpu

// Open returns a probe that finds nothing: this build cannot load NVML.
func Open() Probe { return None("this build has no NVML (it was made without cgo)") }
