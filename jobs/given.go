package jobs

import (
	"fmt"

	"larder/internal/errs"
	"larder/internal/ident"
)

// Advance is when the next epoch of a job begins.
type Advance uint8

// The two answers. OnRequest is for a client whose samples may change between two epochs.
const (
	Early     Advance = iota // as soon as all of the running epoch is planned, so that it is ready when it is asked for
	OnRequest                // when the clients ask for it
)

// Stream is what is known of an index stream (Spec.Given), in the epoch that the client of its rank asked for.
//
//	open ─Append with end─▶ ended
//
// A client that attaches, or asks for an epoch, begins with one that is open and empty.
type Stream struct {
	Ahead [][]ident.ObjectID // batches that are not planned, the next one first
	phase streamPhase
	steps int // batches of the epoch, once it has ended
}

type streamPhase uint8

const (
	streamOpen  streamPhase = iota // more batches may come
	streamEnded                    // the client has said which batch is the last
)

// StreamAhead is how many batches of an index stream a client may send before they are planned: as many again as the
// slots that they are planned into.
func (s Spec) StreamAhead() int { return 2 * s.Slots }

// Append adds batches to the stream, of which planned batches are planned. Those that are known already are skipped: a
// client that comes back sends them again.
func (t *Stream) Append(s Spec, planned, first int, batches [][]ident.ObjectID, end bool) error {
	bad := func(hint, format string, args ...any) error {
		return errs.New(errs.Protocol, s.Name, hint, "the index stream of job %s: "+format, append([]any{s.Name}, args...)...)
	}
	known := planned + len(t.Ahead)
	after := first + len(batches)
	switch {
	case first > known:
		return bad("send the batches in their order", "batches from step %d on, where step %d is next", first, known)
	case t.phase == streamEnded && (after > t.steps || end && after != t.steps), end && after < known:
		return bad("say once which batch is the last", "%d batches, where %s", after, t.length(known))
	case after-planned > s.StreamAhead():
		return bad("send more when a batch has come", "%d batches before they are planned, more than %d", after-planned,
			s.StreamAhead())
	}
	if n := known - first; n < len(batches) {
		t.Ahead = append(t.Ahead, batches[n:]...)
	}
	if end {
		t.phase, t.steps = streamEnded, after
	}
	return nil
}

// length says how many batches the stream has.
func (t *Stream) length(known int) string {
	if t.phase == streamEnded {
		return fmt.Sprintf("the epoch has %d", t.steps)
	}
	return fmt.Sprintf("%d are known already", known)
}

// take removes the next batch.
// REQUIRES: there is one.
func (t *Stream) take() []ident.ObjectID {
	next := t.Ahead[0]
	t.Ahead[0] = nil
	t.Ahead = t.Ahead[1:]
	return next
}

// Over reports whether a rank that has planned so many batches has planned all of the stream.
func (t *Stream) Over(planned int) bool { return t.phase == streamEnded && planned >= t.steps }

// NextGiven takes the next batch out of the index stream of rank r, and counts it as planned.
// REQUIRES: HasBatch.
func (j *Job) NextGiven(r int) []ident.ObjectID {
	k := &j.Ranks[r]
	k.Step++
	return k.Stream.take()
}

// HasBatch reports whether there is a batch of its epoch to plan for rank r.
func (j *Job) HasBatch(r int) bool {
	k := &j.Ranks[r]
	if j.Spec.Given {
		return len(k.Stream.Ahead) > 0
	}
	return k.Step < j.Spec.Batches(r)
}
