// Package subset is the one grammar in which a job, a scenario or a test says which samples of a dataset it wants:
// "label < 600 and not sample(0.1, seed=3)".
//
// It parses and evaluates; it does not read storage, know what a label means, or decide what an empty result is. The
// dataset behind View owns ids, labels and keys. Parsing never panics and is bounded in length and depth; a
// parsed expression is immutable and safe for concurrent use. docs/subsets.md is the user's page.
package subset

import "larder/internal/ident"

// MaxLength is the length limit of an expression in bytes.
const MaxLength = 64 << 10

// MaxDepth is how deep parentheses and nots may nest, so that neither parsing nor evaluation can exhaust the stack.
const MaxDepth = 200

// View is what an expression can know of a dataset. It must not change during Select; the ids are 0..Len()-1.
type View interface {
	Len() int
	Live(id ident.SampleID) bool    // false: a tombstone, which no expression selects
	Label(id ident.SampleID) int64  // class number, -1 = none: it has no label, or one that is no class number
	Key(id ident.SampleID) string   // path relative to the dataset's root, '/' between segments
	Class(id ident.SampleID) string // class name, "" = it has no label
}
