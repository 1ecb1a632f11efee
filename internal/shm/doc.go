// Package shm makes memory that two processes see: sealed memfd segments, the passing of their descriptors over a Unix
// socket, and the kernel's word on who sits at the other end of one.
//
// It does not know what lies in a segment, nor any protocol. A Segment belongs to all that hold a reference to it
// (Create and Map give the first one); the mapping ends when the last reference is released, never before, because a
// goroutine that touches unmapped memory takes the whole process down.
package shm
