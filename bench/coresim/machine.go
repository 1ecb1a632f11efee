package coresim

import (
	"fmt"
	"time"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
)

// machine does the work that the coordinator hands out: its disk reads, its workers decode, augment and copy, its
// memory keeps. It reports each result to the coordinator as an event.
type machine struct {
	m      *Model
	clock  *clock
	checks *checks
	report func(coordinator.Event)
	after  func(time.Duration, func()) // as sim.ofDaemon

	memory  memory
	rows    rows
	disk    disk
	workers workers
	bus     bucket // bytes that all workers together copy
	meters  meters
	jobs    map[ident.JobID]*machineJob
	gone    map[ident.ObjectID]bool // removed files, which cannot be read any more
	blocks  map[uint32]int          // blocks in memory, by how many jobs hold them

	// The event that is being reported, so that a sample costs no allocation.
	filled coordinator.Filled
	made   coordinator.Prepared
}

// machineJob is what the machine knows of a job.
type machineJob struct {
	rowBytes int64
	recipe   recipe
	block    func(ident.ObjectID) uint32 // of a job of mode Blocks; nil = it has another one
	rates    *rates                      // of that recipe; nil until something of it was measured
}

// workers run tasks, the earliest turn first. Each worker is spare or has one task.
type workers struct {
	all   int
	spare int
	fresh tasks // that make a working copy
	tasks tasks // others
}

// mostCopies is how many working copies there are at most for each worker when a worker begins another one.
const mostCopies = 4

func newMachine(m *Model, clock *clock, c *checks, report func(coordinator.Event),
	after func(time.Duration, func())) machine {
	return machine{m: m, clock: clock, checks: c, report: report, after: after, memory: newMemory(m, c),
		rows: rows{written: map[coordinator.DeliveryID]*batchRows{}}, disk: newDisk(m.Storage),
		workers: workers{all: m.Workers, spare: m.Workers}, bus: bucket{rate: m.Memory},
		meters: meters{on: m.Measure > 0, recipes: map[recipe]*rates{}},
		jobs:   map[ident.JobID]*machineJob{}, gone: map[ident.ObjectID]bool{}, blocks: map[uint32]int{}}
}

// join adds a job.
func (s *machine) join(id ident.JobID, c *Client) {
	j := &machineJob{rowBytes: s.m.Augment, recipe: recipe{c.Data, c.Prefix, c.Suffix}}
	if c.Augmented > 0 {
		j.rowBytes = c.Augmented
	}
	if c.Sample.Mode == dsa.Blocks {
		j.block = c.Sample.Block
	}
	s.jobs[id] = j
}

// add queues a task: for the readers, or for the workers.
func (s *machine) add(t task) {
	t.seq = s.clock.next()
	if t.read && s.disk.isSlow() {
		if n := s.m.Bytes(t.object); n <= aheadBytes {
			t.size = n
			s.disk.unread.Push(t)
			s.readAhead()
			return
		}
	}
	s.workers.add(t)
	s.serve()
}

// readAhead starts readers on what must be read.
func (s *machine) readAhead() {
	for {
		t, ok := s.disk.take()
		if !ok {
			return
		}
		s.clock.readAt(s.fetch(t.object), t)
	}
}

// fetch takes an object from storage and returns when it is there.
func (s *machine) fetch(x ident.ObjectID) time.Duration {
	n := s.m.Bytes(x)
	done := s.disk.fetch(s.clock.now, n)
	s.meters.readUntil(s.clock.now, done, n)
	return done
}

// haveRead ends a read ahead.
func (s *machine) haveRead(t task) {
	s.disk.reading--
	t.read = false
	s.workers.add(t)
	s.serve()
	s.readAhead()
}

// serve gives tasks to idle workers.
func (s *machine) serve() {
	for {
		// Else the memory of working copies must be freed first.
		room := s.m.Ahead == 0 || len(s.memory.copies) < mostCopies*s.workers.all
		t, ok := s.workers.take(room)
		if !ok {
			return
		}
		s.begin(t)
	}
}

// begin runs a task on a worker.
func (s *machine) begin(t task) {
	from := s.clock.now
	if t.read && s.m.Storage != nil {
		from = s.fetch(t.object)
	}
	done := from + s.workers.slowed(s.cost(&t), s.m.Cores)
	if s.m.Memory > 0 {
		if n := s.copied(&t); n > 0 {
			done = max(done, s.bus.take(from, float64(n)))
		}
	}
	s.clock.workedAt(done, t)
}

// cost is the processor time of a task; without Storage also its read.
func (s *machine) cost(t *task) time.Duration {
	m := s.m
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
			// Now and then the daemon takes both steps, to know what they cost.
			s.meters.augment(s.jobs[x.Into.Job], suffix())
		}
		s.meters.decode(s.jobs[x.Job], m.Decode(t.object))
		if m.Storage == nil && !t.held {
			d += m.Read
		}
		return d
	case coordinator.Augment:
		d := suffix()
		s.meters.augment(s.jobs[x.Job], d)
		return d
	case *coordinator.Fill:
		if x.From.Key.Form == ident.Augmented {
			if m.Suffix != nil {
				s.meters.finish(s.jobs[x.Job], m.Finish)
				return m.Finish
			}
			return m.Fill
		}
		d := suffix()
		s.meters.augment(s.jobs[x.Job], d)
		return d
	}
	return 0
}

// copied is the bytes that a task moves through memory.
func (s *machine) copied(t *task) int64 {
	switch x := t.what.(type) {
	case *coordinator.Fill:
		return s.rowBytes(x.Job)
	case coordinator.Prepare:
		if x.Into != nil {
			return s.rowBytes(x.Into.Job)
		}
		return s.m.Decoded(t.object)
	case coordinator.Augment:
		return s.rowBytes(x.Job)
	}
	return 0
}

// rowBytes is the size of a job's augmented sample.
func (s *machine) rowBytes(id ident.JobID) int64 {
	if j := s.jobs[id]; j != nil {
		return j.rowBytes
	}
	return s.m.Augment
}

// worked ends a task.
func (s *machine) worked(t task) {
	s.workers.spare++
	if t.size > 0 {
		s.disk.ahead -= t.size
		s.readAhead()
	}
	switch x := t.what.(type) {
	case coordinator.Prepare:
		s.prepared(x, t.held)
	case coordinator.Augment:
		s.augmented(x)
	case *coordinator.Fill:
		s.fill(x)
	}
	s.serve()
}

// prepared ends a preparation; held: its bytes were taken from a block in memory.
func (s *machine) prepared(x coordinator.Prepare, held bool) {
	o := x.Key.Object
	ev := coordinator.Prepared{Flight: x.Flight, Bytes: s.m.Decoded(o)}
	encoded := ident.Key{Object: o, Form: ident.Encoded}
	if x.From == ident.Encoded {
		if !s.memory.has(encoded) || s.memory.lose(encoded) {
			ev.Lost = true
			s.reportMade(ev)
			return
		}
	} else {
		ev.Read = s.m.Bytes(o)
		if x.KeepEncoded {
			ev.Encoded = s.memory.put(encoded, ev.Read)
		}
		if ev.Held = held; held {
			ev.Read = 0
		}
	}
	if why, bad := s.m.Bad[o]; bad {
		ev.Err = why
	} else if len(s.gone) > 0 && s.gone[o] && x.From == ident.Stored {
		ev.Err, ev.Read = "no such file", 0
		if ev.Encoded {
			s.memory.free(encoded)
		}
		ev.Encoded = false
	} else if x.Into != nil {
		if x.Keep {
			s.checks.fail("%s is prepared in place, and to be kept", x.Key)
		}
		s.rows.write(x.Into)
		ev.Augments = 1
	} else if ev.Kept = x.Keep && s.memory.put(x.Key, ev.Bytes); !ev.Kept {
		s.memory.copy(x.Flight)
	}
	s.reportMade(ev)
}

func (s *machine) augmented(x coordinator.Augment) {
	ev := coordinator.Prepared{Flight: x.Flight, Bytes: s.rowBytes(x.Job)}
	if !s.read(x.From) {
		ev.Lost = true
	} else if ev.Kept = x.Keep && s.memory.put(x.Key, ev.Bytes); !ev.Kept {
		s.memory.copy(x.Flight)
	}
	s.reportMade(ev)
}

func (s *machine) fill(x *coordinator.Fill) {
	ev := coordinator.Filled{Delivery: x.Delivery, Row: x.Row}
	if !s.read(x.From) {
		ev.Lost = true
	} else {
		s.rows.write(x)
		if x.From.Key.Form == ident.Decoded {
			ev.Augments = 1
		} else if x.From.Key.Instance != x.Instance {
			s.checks.fail("instance %d was put where %d belongs", x.From.Key.Instance, x.Instance)
		}
	}
	s.filled = ev
	s.report(&s.filled)
}

// read uses a source, and reports whether it is there. A source that should be there and is not is a failure.
func (s *machine) read(from coordinator.Source) (ok bool) {
	if from.Flight != 0 {
		if !s.memory.copies[from.Flight] {
			s.checks.fail("working copy %d is read but does not exist", from.Flight)
		}
		return true
	}
	if !s.memory.has(from.Key) {
		// Else a job knows that the file is gone, and this one does not yet.
		if s.m.Lose == 0 && !s.gone[from.Key.Object] {
			s.checks.fail("%s is read but not stored", from.Key)
		}
		return false
	}
	return !s.memory.lose(from.Key)
}

func (s *machine) reportMade(ev coordinator.Prepared) {
	s.made = ev
	s.report(&s.made)
}

// check returns an invariant of the machine that is broken.
func (s *machine) check() error {
	if w := &s.workers; w.spare < 0 || w.spare > w.all {
		return fmt.Errorf("%d of %d workers are spare", w.spare, w.all)
	}
	return s.disk.check()
}

func (w *workers) add(t task) {
	if t.fresh {
		w.fresh.Push(t)
	} else {
		w.tasks.Push(t)
	}
}

// take gives a spare worker the next task; false if all workers are busy or nothing may begin. Tasks that make a
// working copy begin only while there is room for one.
func (w *workers) take(room bool) (task, bool) {
	if w.spare == 0 {
		return task{}, false
	}
	var t task
	switch {
	case room && len(w.fresh) > 0 && (len(w.tasks) == 0 || w.fresh[0].Before(&w.tasks[0])):
		t = w.fresh.Pop()
	case len(w.tasks) > 0:
		t = w.tasks.Pop()
	default:
		return task{}, false
	}
	w.spare--
	return t, true
}

// slowed is the time that processor time takes while the workers that are not spare share the cores.
func (w *workers) slowed(cost time.Duration, cores int) time.Duration {
	if computing := w.all - w.spare; computing > cores {
		return cost * time.Duration(computing) / time.Duration(cores)
	}
	return cost
}
