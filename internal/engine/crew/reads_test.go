package crew

import (
	"fmt"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/testenv"
)

// readRig is a rig of a job whose items are read, and whose only other step is a worker's. Items come when the test
// says so, or why there is none.
func readRig(t *testing.T, change ...func(*Config)) (*rig, chan func(out []byte, ev coordinator.Prepared)) {
	t.Helper()
	reads := make(chan func([]byte, coordinator.Prepared), 1000)
	r := newRig(t, append(change, func(c *Config) {
		c.Read = func(_ *work.Job, _ work.Item, runs []work.Run, _ prep.RandKey,
			done func([]byte, coordinator.Prepared)) {
			if len(runs) != 0 {
				t.Errorf("runs %+v", runs)
			}
			reads <- done
		}
	})...)
	m := *r.job.Made
	m.Stored, m.Python, m.Steps, m.Cut = true, true, 2, 2
	r.job.Made = &m
	return r, reads
}

// An item is read for as many jobs as the coordinator says, also when there was no room for it and it is read again.
func TestItemsAreReadForTheirJobs(t *testing.T) {
	items := make(chan work.Item, 10)
	r, reads := readRig(t, func(c *Config) { c.Room = 500 })
	read := r.cfg.Read
	r.cfg.Read = func(j *work.Job, item work.Item, runs []work.Run, key prep.RandKey,
		done func([]byte, coordinator.Prepared)) {
		items <- item
		read(j, item, runs, key, done)
	}
	for id := range 2 {
		r.Add(coordinator.Prepare{Flight: coordinator.FlightID(id + 1), Job: 1, Turn: uint64(id + 1), Readers: 4 + id,
			Keep: true,
			Key:  ident.Key{Object: ident.ObjectID(id + 1), Form: ident.Decoded, Recipe: 2}}, r.job, nil)
	}
	begun(t, reads, 2) // both are read while their size is not known
	for range 2 {      // the second one finds no room
		nextRead(t, reads)(blobOf(t, 1000), coordinator.Prepared{Read: 1})
	}
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	if err := w.put(mem, blobOf(t, 8), h.take(t).Task); err != nil {
		t.Fatal(err)
	}
	nextRead(t, reads)(blobOf(t, 1000), coordinator.Prepared{Read: 1})
	if err := w.put(mem, blobOf(t, 8), h.take(t).Task); err != nil {
		t.Fatal(err)
	}
	for id := range 2 {
		if p := r.waitFor(coordinator.FlightID(id + 1)); p.Err != "" {
			t.Errorf("%+v", p)
		}
	}
	for i, want := range []work.Item{{Object: 1, Readers: 4}, {Object: 2, Readers: 5}, {Object: 2, Readers: 5}} {
		if got := <-items; got != want {
			t.Errorf("read %d is of %+v, want %+v", i, got, want)
		}
	}
}

// begun waits until so many items are to be read.
func begun(t *testing.T, reads chan func([]byte, coordinator.Prepared), n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d items are asked for", n), func() bool { return len(reads) >= n })
}

// nextRead is the next item that is to be read.
func nextRead(t *testing.T, reads chan func([]byte, coordinator.Prepared)) func([]byte, coordinator.Prepared) {
	t.Helper()
	select {
	case done := <-reads:
		return done
	case <-time.After(5 * time.Minute):
		t.Fatal("no item is asked for")
		return nil
	}
}

// An item is read, and a worker makes the rest of it; the answer says what was read. What cannot be read is answered as
// the daemon's own workers answer it.
func TestItemsAreReadBeforeWorkersGetThem(t *testing.T) {
	r, reads := readRig(t)
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	r.prepare(1, true)
	nextRead(t, reads)(blobOf(t, 10), coordinator.Prepared{Read: 77})
	k := h.take(t)
	if k.First != 1 || k.Last != 2 || k.Bytes != uint64(len(blobOf(t, 10))) {
		t.Errorf("%+v", k)
	}
	if err := w.put(mem, blobOf(t, 20), k.Task); err != nil {
		t.Fatal(err)
	}
	if p := r.waitFor(1); !p.Kept || p.Read != 77 || p.Err != "" || p.Bytes != int64(len(blobOf(t, 20))) {
		t.Errorf("%+v", p)
	}
	r.prepare(2, true)
	nextRead(t, reads)(nil, coordinator.Prepared{Err: "the disk is gone", Away: true, Read: 5})
	if p := r.waitFor(2); p.Err != "the disk is gone" || !p.Away || p.Tried || p.Read != 5 || p.Flight != 2 {
		t.Errorf("%+v", p)
	}
	r.prepare(3, true)
	nextRead(t, reads)([]byte("no record"), coordinator.Prepared{})
	if p := r.waitFor(3); p.Err == "" {
		t.Errorf("%+v", p)
	}
	if r.heldBytes() != 0 || r.Stats().Failed != 2 {
		t.Errorf("%d bytes are held, %+v", r.heldBytes(), r.Stats())
	}
}

// Items are not read beyond the room for records that no tier holds while no worker takes them; when one comes, all
// are.
func TestReadingAheadOfWorkersIsBounded(t *testing.T) {
	const n, size = 200, 64 << 10
	r, reads := readRig(t, func(c *Config) { c.Room = 1 << 20 })
	for id := range coordinator.FlightID(n) {
		r.prepare(id+1, true)
	}
	read := serve(t, r, reads, func(int) int { return size })
	if held := r.heldBytes(); held > 1<<20 || held < 1<<19 || read > 16+mostReads {
		t.Errorf("%d items are read, and %d bytes are held", read, held)
	}
	if _, waiting := r.Attached(); waiting != n {
		t.Errorf("%d tasks wait", waiting)
	}
	w, h, mem := r.attach(1<<17, "c")
	defer w.Close(true)
	for answered := 0; answered < n; {
		select {
		case done := <-reads:
			done(blobOf(t, size), coordinator.Prepared{Read: 1})
		case <-h.came:
			h.mu.Lock()
			k := h.tasks[0]
			h.tasks = h.tasks[1:]
			h.mu.Unlock()
			if err := w.put(mem, blobOf(t, 8), k.Task); err != nil {
				t.Fatal(err)
			}
			answered++
		case <-time.After(5 * time.Minute):
			t.Fatalf("%d are answered", answered)
		}
	}
	for id := range coordinator.FlightID(n) {
		if p := r.waitFor(id + 1); p.Err != "" || p.Read < 1 || p.Read > 2 {
			t.Fatalf("%+v", p)
		}
	}
	if r.heldBytes() != 0 {
		t.Errorf("%d bytes are held", r.heldBytes())
	}
}

// settled reports whether nothing is being read, and nothing will be before something else happens.
func (r *rig) settled() bool {
	r.Crew.mu.Lock()
	defer r.Crew.mu.Unlock()
	m := &r.Crew.mu
	return len(m.coming)+len(m.added)+len(m.dropped)+m.reads.running == 0 && !m.reads.due()
}

// serve answers reads with records of the size that size says, until nothing is to be read any more.
func serve(t *testing.T, r *rig, reads chan func([]byte, coordinator.Prepared), size func(n int) int) (read int) {
	t.Helper()
	testenv.Eventually(t, "nothing is to be read any more", func() bool {
		for {
			select {
			case done := <-reads:
				read++
				done(blobOf(t, size(read)), coordinator.Prepared{Read: 1})
				if held := r.heldBytes(); held > 1<<20 {
					t.Fatalf("%d bytes are held after %d items", held, read)
				}
				continue
			default:
			}
			return r.settled()
		}
	})
	return read
}

// However large the records become that are being read, those that wait for a worker have their room and no more: what
// has none is read again. Each is answered once.
func TestRecordsThatGrowHaveNoMoreRoom(t *testing.T) {
	const n = 150
	r, reads := readRig(t, func(c *Config) { c.Room = 1 << 20 })
	for id := range coordinator.FlightID(n) {
		r.prepare(id+1, true)
	}
	begun(t, reads, mostReads) // all that are read at first, of unknown size
	read := serve(t, r, reads, func(n int) int { return min(1000*n, 200_000) })
	if read < mostReads || read > 2*mostReads {
		t.Errorf("%d items were read without a worker", read)
	}
	if _, waiting := r.Attached(); waiting != n {
		t.Errorf("%d tasks wait", waiting)
	}
	w, h, mem := r.attach(1<<19, "c")
	defer w.Close(true)
	for answered := 0; answered < n; {
		select {
		case done := <-reads:
			done(blobOf(t, 200_000), coordinator.Prepared{Read: 1})
		case <-h.came:
			h.mu.Lock()
			k := h.tasks[0]
			h.tasks = h.tasks[1:]
			h.mu.Unlock()
			if err := w.put(mem, blobOf(t, 8), k.Task); err != nil {
				t.Fatal(err)
			}
			answered++
		case <-time.After(5 * time.Minute):
			t.Fatalf("%d are answered", answered)
		}
		if held := r.heldBytes(); held > 1<<20 {
			t.Fatalf("%d bytes are held", held)
		}
	}
	for id := range coordinator.FlightID(n) {
		if p := r.waitFor(id + 1); p.Err != "" || p.Read < 1 {
			t.Fatalf("%+v", p)
		}
	}
}

// A job whose workers are away fills its share of the room and no more of it than that keeps from others: a job that
// has a worker goes on.
func TestJobsWithoutWorkersLeaveRoomToOthers(t *testing.T) {
	const n = 100
	r, reads := readRig(t, func(c *Config) { c.Room = 1 << 20 })
	away := *r.job
	away.ID, away.Recipe = 7, prep.Foreign(11, 12, 11, false)
	for id := range coordinator.FlightID(n) {
		r.Add(coordinator.Prepare{Flight: 1000 + id, Job: away.ID, Turn: 1,
			Key: ident.Key{Object: ident.ObjectID(id), Form: ident.Decoded, Recipe: 12}}, &away, nil)
	}
	serve(t, r, reads, func(int) int { return 64 << 10 })
	full := r.heldBytes()
	w, h, mem := r.attach(1<<17, "c")
	defer w.Close(true)
	for id := range coordinator.FlightID(n) {
		r.prepare(id+1, true)
	}
	most := int64(0)
	for answered := 0; answered < n; {
		select {
		case done := <-reads:
			done(blobOf(t, 64<<10), coordinator.Prepared{Read: 1})
			most = max(most, r.heldBytes()-full)
		case <-h.came:
			h.mu.Lock()
			k := h.tasks[0]
			h.tasks = h.tasks[1:]
			h.mu.Unlock()
			if err := w.put(mem, blobOf(t, 8), k.Task); err != nil {
				t.Fatal(err)
			}
			answered++
		case <-time.After(5 * time.Minute):
			t.Fatalf("%d are answered", answered)
		}
	}
	if most < 2*64<<10 || most > 1<<19 || r.heldBytes() != full || full < 1<<19 {
		t.Errorf("at most %d bytes were held beside the %d of the job without workers", most, full)
	}
}

// What a job that ended was to have read is answered, whether or not it is being read.
func TestEndedJobsLeaveNoReads(t *testing.T) {
	r, reads := readRig(t)
	for id := range coordinator.FlightID(100) {
		r.prepare(id+1, false)
	}
	begun(t, reads, mostReads)
	r.end(1)
	for range mostReads {
		nextRead(t, reads)(blobOf(t, 10), coordinator.Prepared{})
	}
	for id := range coordinator.FlightID(100) {
		if p := r.waitFor(id + 1); !p.Lost {
			t.Fatalf("%+v", p)
		}
	}
	if _, waiting := r.Attached(); waiting != 0 || r.heldBytes() != 0 || len(reads) != 0 {
		t.Errorf("%d tasks wait, %d bytes are held", waiting, r.heldBytes())
	}
}

// What tries a place that failed is read although there is no room, and it is said that it was read before a worker
// does its part: there is none here.
func TestProbesAreReadAtOnce(t *testing.T) {
	came := make(chan coordinator.ItemRead, 10)
	r, reads := readRig(t, func(c *Config) {
		c.Room = 1
		send := c.Send
		c.Send = func(ev coordinator.Event) bool {
			if x, ok := ev.(coordinator.ItemRead); ok {
				came <- x
				return true
			}
			return send(ev)
		}
	})
	r.prepare(1, true)
	nextRead(t, reads)(blobOf(t, 1000), coordinator.Prepared{Read: 1})
	r.prepare(2, true)
	r.Add(coordinator.Prepare{Flight: 3, Job: 1, Turn: 3, Probe: true,
		Key: ident.Key{Object: 3, Form: ident.Decoded, Recipe: 2}}, r.job, nil)
	nextRead(t, reads)(blobOf(t, 10), coordinator.Prepared{Read: 1})
	select {
	case x := <-came:
		if x.Flight != 3 {
			t.Errorf("flight %d is said to be read", x.Flight)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("nobody says that it was read")
	}
	if len(reads) != 0 || len(came) != 0 {
		t.Errorf("%d more are read, %d more are said to be", len(reads), len(came))
	}
}

// The answer of an item that came from a block in memory says so.
func TestItemsOfBlocksCountAsHeld(t *testing.T) {
	r, reads := readRig(t)
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	r.prepare(1, true)
	nextRead(t, reads)(blobOf(t, 10), coordinator.Prepared{Held: true})
	if err := w.put(mem, blobOf(t, 20), h.take(t).Task); err != nil {
		t.Fatal(err)
	}
	if p := r.waitFor(1); !p.Held || p.Read != 0 || p.Err != "" {
		t.Errorf("%+v", p)
	}
}

// What is not read because the daemon stops is not answered: it would be read again at once.
func TestReadsThatStopAreNotAnswered(t *testing.T) {
	r, reads := readRig(t)
	r.prepare(1, true)
	nextRead(t, reads)(nil, coordinator.Prepared{Lost: true, Err: work.ErrStopped.Error()})
	if p, ok := r.answer(1); ok || r.Stats().Failed != 0 {
		t.Errorf("%+v, %+v", p, r.Stats())
	}
}
