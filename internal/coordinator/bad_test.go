package coordinator

import (
	"testing"

	"larder/internal/ident"
)

// TestABatchWaitsForTheRecordOfItsBadSamples: a daemon that comes next must not take a bad sample for one that was
// delivered.
func TestABatchWaitsForTheRecordOfItsBadSamples(t *testing.T) {
	r := newRig(t, [ident.NumForms]int64{})
	r.bad[2] = true
	writing := true
	r.hold = func(e Effect) bool {
		p, ok := e.(Persist)
		return ok && kindOf[RecordQuarantined](p) && writing
	}
	p := r.join("a", 0, 8, 4)
	r.run()
	if d := p.next(); d != nil {
		t.Fatalf("%+v leaves before it is known which of it is bad", d)
	}
	writing = false
	r.run()
	if d := p.must(); len(d.Rows) != 3 || len(d.Bad) != 1 || d.Bad[0].Object != 2 {
		t.Errorf("%+v", d)
	}
}
