// Package ident names the things larder counts: objects, samples, jobs, recipes and the forms a sample can have.
//
// It holds identifiers only. The package that hands out an identifier (source for objects and samples, jobs for jobs,
// prep for recipes) owns its meaning.
package ident

import "fmt"

// ObjectID is a dense ordinal of one stored thing (a file, or a byte range of a shard) in one daemon state.
// Two datasets that name the same file hold the same ObjectID; that is how their work is shared.
type ObjectID uint32

// Place is what objects are read from and fails as a whole: a device of a folder, or a store. Places are compared, and
// mean nothing else.
type Place struct {
	Root   uint32
	Device uint64
}

// SampleID is a dense ordinal within one dataset: sorted by key at first indexing, append-only afterwards.
type SampleID uint32

// DatasetID is a dense ordinal of a dataset in one daemon state.
type DatasetID uint32

// JobID is a dense ordinal of a job in one daemon state; it is never used twice.
type JobID uint32

// Incarnation counts how often a (job, rank) was taken over, from 1. An older one is fenced.
type Incarnation uint64

// RecipeID is the xxhash64 of the canonical form of a recipe up to a cut point, op versions and decoder included.
// Zero is "no recipe": the stored bytes themselves.
type RecipeID uint64

// String prints the fingerprint as 16 hexadecimal digits.
func (r RecipeID) String() string { return fmt.Sprintf("%016x", uint64(r)) }

// Form is what has been done to a sample already. A later form needs less work to deliver.
type Form uint8

// The forms in the order of work done.
const (
	Stored    Form = iota // in storage, not in memory
	Encoded               // original bytes in memory
	Decoded               // uint8 HWC after the deterministic prefix of the recipe
	Augmented             // uint8 HWC after the random suffix
	NumForms
)

// String returns the word used in configuration, metrics and docs.
func (f Form) String() string {
	switch f {
	case Stored:
		return "stored"
	case Encoded:
		return "encoded"
	case Decoded:
		return "decoded"
	case Augmented:
		return "augmented"
	default:
		return fmt.Sprintf("form(%d)", uint8(f))
	}
}

// Key names one cached thing. Recipe is zero for Encoded, the prefix fingerprint for Decoded, the fingerprint of the
// recipe's random part for Augmented. Instance and Group are zero but for Augmented.
type Key struct {
	Object   ObjectID
	Form     Form
	Recipe   RecipeID
	Group    uint32 // share group
	Instance uint32 // augmentation instance (design.md G3)
}

// String prints the key for logs and errors.
func (k Key) String() string {
	return fmt.Sprintf("%s:%d/%s.%d.%d", k.Form, k.Object, k.Recipe, k.Group, k.Instance)
}
