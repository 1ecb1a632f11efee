// Package sandbox decodes images in processes of their own, so that a memory error in a decoder cannot touch the
// daemon.
//
// A [Pool] is a prep.Outside: workers of the daemon ask it for pixels. Each of its children runs [Serve]:
//
//	Pool.Pixels ─→ a child: stored bytes in shared memory, a request of fixed size on a socket
//	child       ─→ it decodes into the same memory and answers: the part that it decoded, or what is wrong with the image
//	Pool.Pixels ─→ the answer is checked, the pixels are copied once
//	a child that dies, hangs or lies ─→ killed; another one tries; then the image is bad, with the reason
//
// Before its first image a child gives up what it does not need (guard.go, filter.go): its user where it is root, the
// network, opening files, starting programs, descriptors, core dumps, memory beyond a bound. What the kernel refuses is
// in Pool.State, in words. Nothing that a child answers is trusted. The memory is the daemon's and sealed against
// shrinking, so no child can make the daemon's reads fail; what a child writes there while it is copied are wrong
// pixels at worst.
//
// The children speak no protocol of sessions, unlike worker processes of clients: those make whole records, by recipes
// and turns of the coordinator. Here the seam lies inside one sample, between its header and its pixels. So planes,
// parts of images, working copies and rows stay as they are without children, and the daemon's own workers bound and
// measure the work.
//
// The package depends on no jobs, datasets or tiers. Headers are parsed in the daemon, in Go, and again by the child.
package sandbox
