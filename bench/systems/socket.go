package systems

// tensorSocket is a producer that sends slices of one order to all consumers, in step. Offsets are samples of the
// running epoch of the loader; an epoch begins when the loader's is over, for all jobs.
type tensorSocket struct {
	w        *World
	upstream bool
	loader   int // samples of a loader batch
	window   int // samples of a producer batch
	keep     int // samples that the buffer holds
	order    []uint32
	ready    []float64 // by loader batch
	hits     []bool    // by sample of the order: it cost no read
	loaded   int       // samples loaded of this epoch
	from, to int       // the producer batch that is being sent
	page     *box
	cons     []consumer
	until    float64 // a stall for an acknowledgement that does not come
}

type consumer struct {
	live   bool
	waits  bool // for the next epoch
	offset int  // next sample of the epoch
	queue  []Batch
	ends   int // epochs whose end was queued
}

// takesPart reports whether a consumer listens in this epoch.
func (s *tensorSocket) takesPart(i int) bool {
	c := &s.cons[i]
	return c.live && !c.waits && c.ends < s.w.Jobs[i].Epochs
}

const (
	socketPack  = 8    // loader batches in a producer batch
	socketQueue = 10   // batches that a consumer holds
	socketBand  = .005 // of the loader's batches
	socketAck   = 10.0 // seconds
	socketDelay = 1e-6 // seconds from a join to the first message
)

func newTensorSocket(w *World, upstream bool) (System, string) {
	if why := w.alike(false, false); why != "" {
		return nil, why
	}
	s := &tensorSocket{w: w, upstream: upstream, loader: w.Jobs[0].Batch, cons: make([]consumer, len(w.Jobs)),
		page: newBox("lru", w.Samples, w.Cache, w.rng.Split())}
	for i := range w.Jobs {
		s.loader = min(s.loader, w.Jobs[i].Batch)
	}
	s.window = socketPack * s.loader
	for i := range w.Jobs {
		if w.Jobs[i].Batch > s.window {
			return nil, "a consumer's batch fits a producer batch of 8 loader batches"
		}
	}
	n := len(w.Jobs[0].Subset)
	s.keep = int(socketBand*float64((n+s.loader-1)/s.loader)) * s.loader
	if !upstream {
		s.keep = max(s.keep, s.window)
	}
	s.begin()
	return s, ""
}

// begin starts an epoch of the loader.
func (s *tensorSocket) begin() {
	s.order = s.w.shuffled(s.w.Jobs[0].Subset)
	s.ready, s.hits, s.loaded, s.from, s.to = nil, make([]bool, len(s.order)), 0, 0, 0
	for i := range s.cons {
		c := &s.cons[i]
		c.offset, c.waits = 0, false
	}
}

func (s *tensorSocket) Join(job int, now float64) {
	c := &s.cons[job]
	c.live = true
	c.waits = s.loaded > s.keep             // the first batch has left the buffer
	s.until = max(s.until, now+socketDelay) // who starts at the same moment is there before anything is sent
}

func (s *tensorSocket) Gone(job int, now float64, _ bool) {
	c := &s.cons[job]
	if s.takesPart(job) {
		s.until = now + socketAck
	}
	c.live, c.queue = false, nil
}

func (s *tensorSocket) Done(_ int, now float64) { s.send(now) }

// listening reports whether any consumer takes part in this epoch, and the least offset of those.
func (s *tensorSocket) listening() (least int, any bool) {
	for i := range s.cons {
		if c := &s.cons[i]; s.takesPart(i) {
			if !any || c.offset < least {
				least = c.offset
			}
			any = true
		}
	}
	return least, any
}

// send continues for as long as every consumer can queue what comes.
func (s *tensorSocket) send(now float64) {
	for now >= s.until {
		_, any := s.listening()
		if !any {
			return
		}
		if s.upstream && s.keep < s.window {
			return // the buffer never holds a producer batch
		}
		if sent, more := s.round(); more {
			if !sent {
				return // a job's queue is full: all wait
			}
			continue
		}
		if !s.produce(now) {
			s.endEpoch()
		}
	}
}

// round sends each consumer that has one its next slice of the producer batch; all must have room.
func (s *tensorSocket) round() (sent, more bool) {
	for pass := range 2 {
		for i := range s.cons {
			c := &s.cons[i]
			b := s.w.Jobs[i].Batch
			end := c.offset + b
			if !s.upstream && s.to == len(s.order) {
				end = min(end, s.to) // the tail
			}
			if !s.takesPart(i) || c.offset < s.from || c.offset >= s.to || end > s.to {
				continue
			}
			more = true
			if pass == 0 {
				if len(c.queue) >= socketQueue {
					return false, true
				}
				continue
			}
			out := Batch{IDs: s.order[c.offset:end], Ready: s.ready[(end-1)/s.loader]}
			for k := c.offset; k < end; k++ {
				if s.hits[k] {
					out.Hits++
				}
				s.hits[k] = true // for the next consumer it cost nothing
			}
			c.offset = end
			c.queue = append(c.queue, out)
			sent = true
		}
	}
	return sent, more
}

// produce makes the next producer batch, from the least offset on; false: the loader is at its end.
func (s *tensorSocket) produce(now float64) bool {
	least, _ := s.listening()
	from := least / s.loader * s.loader
	to := from + s.window
	if to > len(s.order) {
		if s.upstream || least >= len(s.order) {
			return false
		}
		to = len(s.order)
	}
	if from == s.from && to == s.to && s.to > 0 {
		return false // what is left fits no consumer's batch
	}
	for s.loaded < to {
		n := min(s.loader, len(s.order)-s.loaded)
		reads := 0
		for _, x := range s.order[s.loaded : s.loaded+n] {
			if s.page.take(x, 1) {
				s.hits[s.loaded] = true
			} else {
				reads++
			}
			s.loaded++
		}
		s.ready = append(s.ready, s.w.work(now, reads, n))
	}
	s.from, s.to = from, to
	return true
}

func (s *tensorSocket) endEpoch() {
	for i := range s.cons {
		if s.takesPart(i) {
			c := &s.cons[i]
			c.ends++
			c.queue = append(c.queue, Batch{}) // the end, after what is queued
		}
	}
	s.begin()
}

func (s *tensorSocket) Next(job int, now float64) (Batch, Status) {
	c := &s.cons[job]
	if len(c.queue) == 0 {
		s.send(now)
	}
	if len(c.queue) == 0 {
		return Batch{Ready: s.until}, Wait
	}
	b := c.queue[0]
	c.queue = c.queue[1:]
	if b.IDs == nil {
		s.send(now)
		return b, EpochOver
	}
	return b, Got
}
