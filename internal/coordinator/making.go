package coordinator

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
