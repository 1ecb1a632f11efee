package coresim

import (
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// world is the machine: storage, workers, memory.
type world struct {
	used   [ident.NumForms]int64
	budget [ident.NumForms]int64
	store  map[ident.Key]int64 // bytes really held; only when nothing is believed
	copies map[coordinator.FlightID]bool
	rows   map[coordinator.DeliveryID]*batchRows
	spare  []*batchRows
	uses   int

	spareWorkers int
	computing    int // of those that are not
	fresh        tasks
	tasks        tasks
	unread       tasks
	reading      int // readers
	ahead        int64
	bytes        bucket
	ops          bucket
	memory       bucket
	latency      time.Duration // of reads, smoothed as exec does

	joined, left, pending int // clients that came, that left, that are to come
	meter                 meters
}

// batchRows is what was written into the slot of a batch.
type batchRows struct {
	object   []ident.ObjectID
	instance []uint32
	filled   []bool
}

// bucket is a token bucket in the form of internal/source: the time at which all that was taken will have been paid
// for.
type bucket struct {
	rate  float64
	burst time.Duration
	next  time.Duration
}

func (b *bucket) take(now time.Duration, n float64) time.Duration {
	if b.rate == 0 || n == 0 {
		return now
	}
	b.next = max(b.next, now-b.burst) + time.Duration(min(n/b.rate*float64(time.Second), 1e17))
	return max(now, b.next)
}

const (
	storageBurst = 100 * time.Millisecond // as of internal/source
	slowRead     = 300 * time.Microsecond // as of internal/engine: from which on readers read ahead
	aheadBytes   = 64 << 20
	mostCopies   = 4 // working copies of a worker when it begins another one
)

func (s *sim) open() {
	m := &s.m
	m.Workers = max(m.Workers, 1)
	if m.Cores < 1 {
		m.Cores = m.Workers
	}
	s.spareWorkers = m.Workers
	s.copies, s.rows = map[coordinator.FlightID]bool{}, map[coordinator.DeliveryID]*batchRows{}
	if s.strict {
		s.store = map[ident.Key]int64{}
	}
	if d := m.Storage; d != nil {
		s.bytes, s.ops = bucket{d.Bandwidth, storageBurst, -storageBurst}, bucket{d.IOPS, storageBurst, -storageBurst}
	}
	s.memory.rate = m.Memory
	s.meter.recipes = map[recipe]*rates{}
}

func (s *sim) granules(n int64) int64 {
	if g := s.m.Granule; g > 1 {
		return (n + g - 1) / g * g
	}
	return n
}

// work queues a task: for the readers, or for the workers.
func (s *sim) work(t task) {
	s.seq++
	t.seq = s.seq
	if d := s.m.Storage; d != nil && t.read && d.Readers > 0 && s.latency > slowRead {
		if t.size = s.m.Bytes(t.object); t.size <= aheadBytes {
			s.unread.Push(t)
			s.read()
			return
		}
	}
	s.ready(t)
	s.serve()
}

func (s *sim) ready(t task) {
	if t.fresh {
		s.fresh.Push(t)
	} else {
		s.tasks.Push(t)
	}
}

// read lets readers take what must be read.
func (s *sim) read() {
	for len(s.unread) > 0 && s.reading < s.m.Storage.Readers && s.ahead+s.unread[0].size <= aheadBytes {
		t := s.unread.Pop()
		s.reading++
		s.ahead += t.size
		done := s.fetch(t.object)
		s.seq++
		s.agenda.Push(action{at: done, seq: s.seq, task: t, read: true})
	}
}

// fetch takes an object from storage and returns when it is there.
func (s *sim) fetch(x ident.ObjectID) time.Duration {
	d, n := s.m.Storage, s.m.Bytes(x)
	done := max(s.bytes.take(s.now, float64(n)), s.ops.take(s.now, 1)) + d.Latency
	took := done - s.now
	s.latency += (took - s.latency) / minSeen
	s.meter.readUntil(s.now, done, n)
	return done
}

// haveRead ends a read ahead.
func (s *sim) haveRead(t task) {
	s.reading--
	t.read = false
	s.ready(t)
	s.serve()
	s.read()
}

// serve gives tasks to idle workers, by turn.
func (s *sim) serve() {
	for s.spareWorkers > 0 {
		// else their memory must be freed first
		fresh := len(s.fresh) > 0 && (s.m.Ahead == 0 || len(s.copies) < mostCopies*s.m.Workers)
		var t task
		switch {
		case fresh && (len(s.tasks) == 0 || s.fresh[0].Before(&s.tasks[0])):
			t = s.fresh.Pop()
		case len(s.tasks) > 0:
			t = s.tasks.Pop()
		default:
			return
		}
		s.spareWorkers--
		s.begin(t)
	}
}

// begin starts a worker on a task.
func (s *sim) begin(t task) {
	from := s.now
	s.computing++
	if t.read && s.m.Storage != nil {
		from = s.fetch(t.object)
	}
	cost := s.cost(&t)
	if s.computing > s.m.Cores {
		cost = cost * time.Duration(s.computing) / time.Duration(s.m.Cores)
	}
	done := from + cost
	if s.m.Memory > 0 {
		if n := s.copied(&t); n > 0 {
			done = max(done, s.memory.take(from, float64(n)))
		}
	}
	s.seq++
	s.agenda.Push(action{at: done, seq: s.seq, task: t})
}

// cost is the processor time of a task; without Storage also its read.
func (s *sim) cost(t *task) time.Duration {
	m := &s.m
	suffix := func() time.Duration {
		if m.Suffix != nil {
			return m.Suffix(t.object)
		}
		return m.Fill
	}
	switch x := t.what.(type) {
	case coordinator.Prepare:
		d := m.Decode(t.object)
		if x.Into != nil {
			if m.InPlace != nil {
				d = m.InPlace(t.object)
			} else {
				d += suffix()
			}
			s.meter.augment(s, x.Into.Job, suffix()) // now and then the daemon takes both steps, to know what they cost
		}
		s.meter.decode(s, x.Job, m.Decode(t.object))
		if m.Storage == nil {
			d += m.Read
		}
		return d
	case coordinator.Augment:
		d := suffix()
		s.meter.augment(s, x.Job, d)
		return d
	case *coordinator.Fill:
		if x.From.Key.Form == ident.Augmented {
			if m.Suffix != nil {
				s.meter.finish(s, x.Job, m.Finish)
				return m.Finish
			}
			return m.Fill
		}
		d := suffix()
		s.meter.augment(s, x.Job, d)
		return d
	}
	return 0
}

// copied is the bytes that a task moves through memory.
func (s *sim) copied(t *task) int64 {
	switch x := t.what.(type) {
	case *coordinator.Fill:
		return s.augmentedBytes(x.Job)
	case coordinator.Prepare:
		if x.Into != nil {
			return s.augmentedBytes(x.Into.Job)
		}
		return s.m.Decoded(t.object)
	case coordinator.Augment:
		return s.augmentedBytes(x.Job)
	}
	return 0
}

func (s *sim) augmentedBytes(j ident.JobID) int64 {
	if c := s.clients[j]; c != nil && c.c.Augmented > 0 {
		return c.c.Augmented
	}
	return s.m.Augment
}

// worked ends a task.
func (s *sim) worked(t task) {
	s.spareWorkers++
	s.computing--
	if t.size > 0 {
		s.ahead -= t.size
		s.read()
	}
	switch x := t.what.(type) {
	case coordinator.Prepare:
		s.prepared(x)
	case coordinator.Augment:
		s.augmented(x)
	case *coordinator.Fill:
		s.fill(x)
	}
	s.serve()
}

// put is the store: it refuses what exceeds the budget.
func (s *sim) put(k ident.Key, n int64) bool {
	n = s.granules(n)
	if s.used[k.Form]+n > s.budget[k.Form] {
		return false
	}
	if s.strict {
		if _, there := s.store[k]; there {
			s.fail("%s is stored twice", k)
		}
		s.store[k] = n
	}
	s.used[k.Form] += n
	s.res.Peak[k.Form] = max(s.res.Peak[k.Form], s.used[k.Form])
	return true
}

func (s *sim) free(k ident.Key) {
	n := s.store[k]
	if !s.strict {
		n = s.granules(s.size(k))
	}
	s.used[k.Form] -= n
	delete(s.store, k)
}

// size is what an entry weighs.
func (s *sim) size(k ident.Key) int64 {
	switch k.Form {
	case ident.Encoded:
		return s.m.Bytes(k.Object)
	case ident.Decoded:
		return s.m.Decoded(k.Object)
	case ident.Augmented, ident.Stored, ident.NumForms:
		for _, a := range s.augments {
			if a.suffix == k.Recipe {
				return a.bytes
			}
		}
	}
	return s.m.Augment
}

// there reports whether an entry is stored: always, when the coordinator is believed.
func (s *sim) there(k ident.Key) bool {
	if !s.strict {
		return true
	}
	_, ok := s.store[k]
	return ok
}

func (s *sim) copy(id coordinator.FlightID) {
	s.copies[id] = true
	s.res.Copies = max(s.res.Copies, len(s.copies))
}

// lost makes a cache lose an entry now and then.
func (s *sim) lost(k ident.Key) bool {
	if s.m.Lose == 0 {
		return false
	}
	if s.uses++; s.uses%s.m.Lose == 0 {
		s.free(k)
		return true
	}
	return false
}

func (s *sim) prepared(x coordinator.Prepare) {
	o := x.Key.Object
	ev := coordinator.Prepared{Flight: x.Flight, Bytes: s.m.Decoded(o)}
	ekey := ident.Key{Object: o, Form: ident.Encoded}
	if x.From == ident.Encoded {
		if !s.there(ekey) || s.lost(ekey) {
			ev.Lost = true
			s.made = ev
			s.step(&s.made)
			return
		}
	} else {
		ev.Read = s.m.Bytes(o)
		if x.KeepEncoded {
			ev.Encoded = s.put(ekey, ev.Read)
		}
	}
	if why, bad := s.m.Bad[o]; bad {
		ev.Err = why
	} else if len(s.gone) > 0 && s.gone[o] && x.From == ident.Stored {
		ev.Err, ev.Read = "no such file", 0
		if ev.Encoded {
			s.free(ekey)
		}
		ev.Encoded = false
	} else if x.Into != nil {
		if x.Keep {
			s.fail("%s is prepared in place, and to be kept", x.Key)
		}
		s.row(x.Into)
		ev.Augments = 1
	} else if ev.Kept = x.Keep && s.put(x.Key, ev.Bytes); !ev.Kept {
		s.copy(x.Flight)
	}
	s.made = ev
	s.step(&s.made)
}

func (s *sim) row(x *coordinator.Fill) {
	r := s.rows[x.Delivery]
	if r == nil {
		if n := len(s.spare); n > 0 {
			r, s.spare = s.spare[n-1], s.spare[:n-1]
			clear(r.filled)
		} else {
			r = &batchRows{}
		}
		s.rows[x.Delivery] = r
	}
	for x.Row >= len(r.object) {
		r.object, r.instance, r.filled = append(r.object, 0), append(r.instance, 0), append(r.filled, false)
	}
	r.object[x.Row], r.instance[x.Row], r.filled[x.Row] = x.Object, x.Instance, true
}

// taken ends the use of a batch's rows.
func (s *sim) taken(id coordinator.DeliveryID) {
	if r := s.rows[id]; r != nil {
		s.spare = append(s.spare, r)
		delete(s.rows, id)
	}
}

// source checks that what the coordinator points to is really there.
func (s *sim) source(from coordinator.Source) (ok bool) {
	if from.Flight != 0 {
		if !s.copies[from.Flight] {
			s.fail("working copy %d is read but does not exist", from.Flight)
		}
		return true
	}
	if !s.there(from.Key) {
		if s.m.Lose == 0 && !s.gone[from.Key.Object] { // else a job knows that it is gone, and this one does not yet
			s.fail("%s is read but not stored", from.Key)
		}
		return false
	}
	return !s.lost(from.Key)
}

func (s *sim) augmented(x coordinator.Augment) {
	ev := coordinator.Prepared{Flight: x.Flight, Bytes: s.augmentedBytes(x.Job)}
	if !s.source(x.From) {
		ev.Lost = true
	} else if ev.Kept = x.Keep && s.put(x.Key, ev.Bytes); !ev.Kept {
		s.copy(x.Flight)
	}
	s.made = ev
	s.step(&s.made)
}

func (s *sim) fill(x *coordinator.Fill) {
	ev := coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	if !s.source(x.From) {
		ev.Lost = true
	} else {
		s.row(x)
		if x.From.Key.Form == ident.Decoded {
			ev.Augments = 1
		} else if x.From.Key.Instance != x.Instance {
			s.fail("instance %d was put where %d belongs", x.From.Key.Instance, x.Instance)
		}
	}
	s.filled = ev
	s.step(&s.filled)
}
