// Package store reads ranges of objects from where they are kept: files, S3 and what speaks like it, Azure, web
// servers. It also writes objects whole, to those of them that take any (write.go).
//
// A Store lists objects and reads parts of them, and knows nothing else: no format, no sample, no cache, no job. What
// lies in an object is for internal/source. Stores hands out one Store for each place, and counts what they cost.
//
// Everything that goes over a network has the same manners, whatever the scheme (remote.go): so many requests at once,
// again after a failure that may pass, a second request beside one that is slow, and an error that names the object,
// the cause and the fix for a failure that stays. A scheme of its own is a backend: one request, once (backend.go).
// CONTRIBUTING.md says how to add one.
//
// Bytes of two versions of an object never meet: every read names the version that was listed, and an object that has
// changed since is an error that errors.Is(err, ErrChanged) finds.
//
// Secrets come from the usual places of a scheme (credentials.go) and go into requests alone. No error, log line or
// counter of this package holds one, and a URI that does is refused without repeating it.
package store
