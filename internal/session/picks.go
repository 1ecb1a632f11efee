package session

import "larder/internal/session/wire"

// picks hands the next batches of an index stream on. The reader waits until they are taken, so that a client which
// floods the daemon waits for itself. What is wrong with them ends the session: they are not answered.
func (s *conn) picks(p []byte) error {
	f, err := wire.ParsePicks(p)
	if err != nil {
		return err
	}
	s.rel.Lock()
	defer s.rel.Unlock()
	if s.rel.att == nil {
		return wire.Violation("PICKS came without an attachment")
	}
	return s.guard("PICKS", func() error {
		if err := s.rel.att.Picks(s.ctx, f); err != nil {
			return toFault(err)
		}
		return nil
	})
}
