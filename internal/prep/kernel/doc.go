// Package kernel is the C code of package prep: resizing, colours, planar images, matrices, blurs and the output of a
// sample, each with the bits of its twin in Go and with the instruction set that the processor has. It is a package of
// its own because compiling it takes longer than all of prep: builds that differ in prep alone take it from Go's cache.
// Without libjpeg-turbo it is empty.
package kernel
