package coordinator

import (
	"slices"

	"larder/internal/ident"
)

// clockOf is the clock of the turns of a stream: what workers of clients do is queued apart from the executor's work.
func (fl *flights) clockOf(s *stream) *uint64 {
	if s.making.Workers {
		return &fl.foreignTurn
	}
	return &fl.turn
}

// served moves the clock of the turns.
func (fl *flights) served(s *stream, turn uint64) {
	c := fl.clockOf(s)
	*c = max(*c, turn)
}

// count adds to a number of flights what does not count for foreign ones.
func (f *flight) count(to *int, n int) {
	if !f.foreign {
		*to += n
	}
}

// besideTurn is the turn among the executor's own work of something that its workers make for a stream whose samples
// workers of clients make: with a clock of its own, so that such jobs and others have equal shares.
func (fl *flights) besideTurn(s *stream) uint64 {
	if !s.making.Native {
		return fl.turn + 1 // as of a job that is not behind: copying a record takes little
	}
	s.beside = max(s.beside, fl.turn) + 1
	return s.beside
}

// servedBeside moves the clock of the executor's own work.
func (fl *flights) servedBeside(s *stream, turn uint64) {
	if s.making.Native {
		fl.turn = max(fl.turn, turn)
	}
}

// countStored counts what a sample weighs that is prepared for a job, or would be without jobs that are not visible.
// What a job counted when it came to a flight in place is not counted again when its row is sourced again.
func (fl *flights) countStored(s *stream, x ident.ObjectID) {
	if i := slices.Index(fl.counted, s); i >= 0 {
		fl.counted = slices.Delete(fl.counted, i, i+1)
		return
	}
	if !s.making.Workers { // nothing of theirs is stored
		s.stored.add(fl.cfg.Bytes(x))
	}
}
