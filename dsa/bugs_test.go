package dsa

// planted is which bugs a test plants in the sampler. Only the patched copy of this package has them: see
// planted_test.go and testdata/planted/bugs.go, which says what each does.
type planted struct {
	oneCell        bool
	tiesByID       bool
	keepTape       bool
	preferAll      bool
	countSlow      bool
	seqVisible     bool
	ownOrder       bool
	firstBit       bool
	biased         bool
	followPrevious bool
}
