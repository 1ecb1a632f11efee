// Package imagegen draws datasets of JPEG photographs for the demo, for benchmarks and for tests. A dataset is a
// function of its Spec alone: the same seed, count and shrink give the same bytes on every machine.
//
// The pictures weigh what photographs of a few hundred pixels weigh and cost as much to decode; the class of a picture
// decides its shapes and hues, so that a network can learn it. The package knows nothing of daemons or datasets beyond
// the files.
package imagegen
