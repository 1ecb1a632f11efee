//go:build !failpoints

package prep

// poison is for tests, see poison.go: images that crash decoders are compiled in with -tags failpoints only.
func poison([]byte) {}
