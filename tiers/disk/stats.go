package disk

// Stats are figures of one moment, and counts since the Store was opened.
type Stats struct {
	Dir     string
	Size    int64  // bytes that it may have
	Used    int64  // bytes of disk that its files take
	Entries int    // that a read can find
	Blocks  int    // files of blocks
	State   string // in words; "" = it works

	Hits, Misses uint64 // of reads of entries
	HitBytes     uint64
	Written      uint64 // entries
	WrittenBytes uint64
	Evictions    uint64 // entries and blocks that left for others
	Refused      uint64 // entries that were needed no more than what was there
	Skipped      uint64 // entries that came faster than the disk writes, or while it rested
	Damaged      uint64 // entries and files that were not what was written
	Errors       uint64 // of the disk
	BlockHits    uint64 // blocks that were there
	BlockMakes   uint64 // blocks that had to be made
	Foreign      int    // files in the directory that are not of the tier, at the start
	ForeignName  string // one of them
}

// Stats returns the figures of this moment.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.held
	out := h.counts
	out.Dir, out.Size, out.Used, out.Entries = s.cfg.Dir, h.size, h.used, len(h.index)
	if h.phase == off {
		out.Used = 0
	}
	for _, b := range h.blocks { // order-free: they are counted
		if b.stage == finished {
			out.Blocks++
		}
	}
	out.State = h.why
	if t := h.fault.words(s.cfg.now()); t != "" && out.State == "" {
		out.State = t
	}
	return out
}
