package coordinator

import (
	"larder/dsa"
	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/jobs"
	"larder/tiers/residency"
)

// flights are the preparations under way: the rows that wait for each, its turn, and where it starts from. It decides
// what a row of a batch is filled from, and what is kept of what was prepared. Batches are the planner's, which learns
// through failRow and settle when a row cannot be filled, or is.
type flights struct {
	cfg     *Config
	step    *step
	roster  *roster
	needs   *needs
	tiering *tiering
	sampler *dsa.Sampler
	index   *residency.Index

	flying      *flying // under way, by what they make
	flightByID  map[FlightID]*flight
	nextFlight  FlightID
	queue       turns                  // not yet handed out
	onCopies    turns                  // the same, of those that start from a working copy
	foreign     turns                  // the same, of those that workers of clients make: they are not bounded here
	copies      int                    // working copies that are there, but for foreign ones
	turn        uint64                 // the latest turn served
	foreignTurn uint64                 // the same among foreign work
	outages     []*outage              // of places that do not answer, in the order in which they began
	running     int                    // handed out, but for foreign ones
	quarantine  map[ident.Key]jobs.Bad // decoded forms that cannot be made; lookups only
	counted     []*stream              // of a flight in place whose rows are being sourced again
	rng         *xrand.Rand            // of what idle workers augment ahead

	// What flights need of the planner, which is above them.
	failRow func(d *delivery, row int, bad jobs.Bad) // leaves a sample out of its batch
	settle  func(d *delivery)                        // sends a batch if it is complete
}

// pin is a hold on an entry of the index.
type pin struct {
	h    residency.Handle
	held bool
}

// flight is one preparation under way: single flight, for however many rows want its result. It begins when a pick is
// committed; from then on the sample counts as available (docs/design/orders.md).
type flight struct {
	id       FlightID
	key      ident.Key      // what it makes: Decoded or Augmented
	base     ident.RecipeID // prefix of the decoded form it makes or starts from
	job      ident.JobID    // whose work it is: of one that waits for it, see passOn
	dataset  int            // index in datasets, of the job
	turn     uint64         // the earliest turn of those who wait
	rows     []waiter
	first    [1]waiter // of rows: most have one
	augments []*flight // augmented flights that start from its result
	next     *flight   // of the same object, see flying
	place    int       // in its queue, from 1; 0 = it is in none

	entry    pin // its entry in the index, when the tier will keep it
	encoded  pin // the entry of the original bytes: to be made, or the source
	from     ident.Form
	instance uint32
	seed     uint64
	source   pin     // Augmented: the decoded entry it starts from
	parent   *flight // Augmented: the flight it waits for, or whose copy it uses

	phase   flightPhase
	outage  *outage // that it waits for, or is to try; nil = none
	visible bool    // a visible job has asked for it: it counts for the sampler
	later   later   // what its result cannot fill any more
	foreign bool    // workers of clients make it, see Making
	bare    bool    // its result is the sample's number alone, see Making
	// alone says that no other job wanted the sample in this form when its pick was committed, and that no tier will
	// keep it. It is prepared in place, straight into its row, and does not count as cached. A second job that wants
	// the sample before work starts shares the flight, which is then not alone.
	alone    bool
	refill   bool // idle workers make it ahead, because no row had asked for it when it began: a fact for all its phases
	users    int  // fills and augments that still read the working copy
	attempts int

	counted []*stream // that counted the sample when they came to the flight in place, see countStored
}

// moveForward moves a flight forward in the queue when a later waiter's turn is earlier.
func (fl *flights) moveForward(f *flight, turn uint64) {
	for ; f != nil; f = f.parent {
		if turn >= f.turn {
			continue
		}
		f.turn = turn
		if f.phase == flightQueued || f.phase == flightAway {
			fl.queueOf(f).put(f)
		}
	}
}

// launch begins the flight of a decoded sample: whether its result and its original bytes will be kept is decided now,
// at the commit of the pick, never by how long the work takes. When the entry was evicted but is still being read, it
// is kept instead: then there is no flight, and the ready entry is returned. alone = no other job wants it.
//
// For a visible job what is neutral does not exist: all that is decided here is what it would be without. Then what is
// there is used (takeOver).
func (fl *flights) launch(key ident.Key, s *stream, turn uint64, alone bool) (*flight, residency.Handle) {
	x := key.Object
	h, found := fl.index.Lookup(key)
	neutral := found && fl.needs.neutral(h) // else it waits for a flight in place: later has it
	entry, admitted := fl.admitDecoded(key, s, alone)
	if admitted && fl.index.Ready(entry) {
		if neutral {
			fl.countStored(s, x)
			fl.tiering.saw(s, s.prefix, fl.index.Bytes(entry))
			fl.bringOriginal(key, s)
		}
		fl.needs.relevel(x)
		return nil, entry
	}
	if g := fl.flying.get(key); g != nil {
		fl.countStored(s, x)
		fl.takeOver(g, s, entry, admitted, alone)
		return g, 0
	}
	if neutral && fl.index.Budget(ident.Encoded) == 0 { // its bytes are there, and no tier takes them over
		fl.countStored(s, x)
		return nil, h
	}
	f := fl.newFlight(key, s, fl.startTurn(s, x, turn))
	fl.countStored(s, x)
	f.alone = alone && !admitted
	if admitted {
		fl.index.Pin(entry)
		f.entry = pin{entry, true}
	}
	fl.holdStored(f, s)
	fl.enqueue(f)
	fl.needs.relevel(x)
	return f, 0
}

// admitDecoded asks the decoded tier to keep a sample, if its job may: see mayKeep for one that no other job wants.
func (fl *flights) admitDecoded(key ident.Key, s *stream, alone bool) (h residency.Handle, admitted bool) {
	x := key.Object
	may, price, why := !s.making.Bare, 0.0, paced
	if alone = alone && !s.making.Workers; alone {
		may, price, why = fl.mayKeep(s, x)
	}
	if may {
		need := fl.needs.needOf(s, x, fl.roster.prefixes[s.prefix].jobs)
		guess := fl.cfg.Granule(ident.Decoded, fl.tiering.expectedBytes(s, fl.cfg.Bytes(x)*6))
		h, admitted = fl.index.Admit(key, guess, need, fl.needs.evicted)
	}
	if alone {
		s.keeping.count(may, admitted, price, why)
	}
	return h, admitted
}

// admitStored asks the encoded tier to keep the original bytes of a sample.
func (fl *flights) admitStored(x ident.ObjectID, need int) (residency.Handle, bool) {
	size := fl.cfg.Granule(ident.Encoded, fl.cfg.Bytes(x))
	return fl.index.Admit(ident.Key{Object: x, Form: ident.Encoded}, size, need, fl.needs.evicted)
}

// storedStays reports whether the encoded tier has the original bytes of a sample, or takes them; they are admitted
// then, for the flight that follows.
func (fl *flights) storedStays(s *stream, x ident.ObjectID) bool {
	if _, there := fl.needs.find(s, ident.Key{Object: x, Form: ident.Encoded}); there {
		return true
	}
	_, admitted := fl.admitStored(x, fl.needs.needOf(s, x, allJobs))
	return admitted
}

// holdStored finds the original bytes for a flight in the encoded tier, or decides whether the tier will keep them.
func (fl *flights) holdStored(f *flight, s *stream) {
	x := f.key.Object
	f.from = ident.Stored
	if s.making.Workers {
		return
	}
	h, there := fl.needs.find(s, ident.Key{Object: x, Form: ident.Encoded})
	if there && fl.index.Ready(h) {
		fl.countHit(s, ident.Encoded)
		fl.index.Hit(h)
		fl.index.Pin(h)
		f.encoded, f.from = pin{h, true}, ident.Encoded
		return
	}
	if !there {
		if h, there = fl.keepStored(x, s, f.entry.held); !there {
			fl.fromNeutral(f)
			return
		}
	}
	ready := fl.index.Ready(h)
	if ready { // it was about to leave, and is kept after all
		f.from = ident.Encoded
	}
	if ready || fl.index.Pins(h) == 0 { // else a flight of another recipe is bringing it already
		fl.index.Pin(h)
		f.encoded = pin{h, true}
	}
}

// keepStored asks the encoded tier to keep the original bytes of a sample that the decoded tier will keep, or not.
func (fl *flights) keepStored(x ident.ObjectID, s *stream, decoded bool) (residency.Handle, bool) {
	serves := allJobs
	if decoded { // a sample is kept in one form, the later one if it fits; but that serves no job of another prefix
		if serves = fl.needs.unserved(x); fl.needs.need(x, serves) == 0 {
			return 0, false
		}
	}
	return fl.admitStored(x, fl.needs.needOf(s, x, serves))
}

// fromNeutral makes a flight start from original bytes that are neutral, if there are any.
func (fl *flights) fromNeutral(f *flight) {
	h, there := fl.index.Lookup(ident.Key{Object: f.key.Object, Form: ident.Encoded})
	if there && fl.index.Ready(h) {
		fl.index.Pin(h)
		f.encoded, f.from = pin{h, true}, ident.Encoded
	}
}

func (fl *flights) newFlight(key ident.Key, s *stream, turn uint64) *flight {
	fl.nextFlight++
	f := &flight{id: fl.nextFlight, key: key, job: s.job.ID, dataset: s.dataset, base: fl.roster.prefixes[s.prefix].id,
		visible: s.visible(), turn: turn, foreign: s.making.Workers, bare: s.making.Bare && key.Form == ident.Decoded}
	f.rows = f.first[:0]
	fl.flying.add(f)
	fl.flightByID[f.id] = f
	return f
}

// enqueue and dequeue: flights that are to start from a working copy wait apart, because they free memory.
func (fl *flights) enqueue(f *flight) {
	if f.phase != flightQueued {
		f.become(flightQueued)
	}
	fl.queueOf(f).put(f)
}

func (fl *flights) dequeue(f *flight) { fl.queueOf(f).remove(f) }

func (fl *flights) queueOf(f *flight) *turns {
	switch {
	case f.phase == flightAway:
		return &f.outage.away
	case f.foreign:
		return &fl.foreign
	case f.parent != nil:
		return &fl.onCopies
	}
	return &fl.queue
}

// nextFlightInTurn takes the flight whose turn it is. While there are as many working copies as may be, those that read
// one come first.
func (fl *flights) nextFlightInTurn() (*flight, bool) {
	f, ok := fl.onCopies.first()
	busy := fl.running + fl.copies                   // what runs may become a copy
	ok = ok && busy < 3*fl.cfg.InFlight+fl.cfg.Ahead // its copy has only fills to wait for, which need nothing: room comes
	if fl.running < fl.cfg.InFlight+fl.cfg.Ahead && busy < 2*fl.cfg.InFlight+fl.cfg.Ahead {
		if g, fresh := fl.queue.first(); fresh && (!ok || g.before(f)) {
			f, ok = g, true
		}
	}
	if ok {
		fl.dequeue(f)
	}
	return f, ok
}

// mostRunning bounds what is handed out. With some ahead, what frees memory is handed out also while they wait for it.
func (fl *flights) mostRunning() int {
	if fl.cfg.Ahead == 0 {
		return fl.cfg.InFlight
	}
	return 2*fl.cfg.InFlight + fl.cfg.Ahead
}

// dispatch hands out preparations in turn, a bounded number at a time: what is handed out occupies working
// memory, what waits here costs none. Working copies that wait for their readers are bounded with them (guarantee G4):
// the rows of a large batch may come to their turn late.
func (fl *flights) dispatch() {
	for f, ok := fl.foreign.first(); ok; f, ok = fl.foreign.first() {
		fl.dequeue(f)
		if fl.keepBack(f) {
			continue
		}
		fl.handOut(f)
	}
	for fl.running < fl.mostRunning() {
		f, ok := fl.nextFlightInTurn()
		if !ok {
			return
		}
		if fl.keepBack(f) {
			continue
		}
		fl.running++
		fl.turn = max(fl.turn, f.turn)
		fl.handOut(f)
	}
}

// handOut has the executor make what a flight is for.
func (fl *flights) handOut(f *flight) {
	if f.key.Form == ident.Decoded {
		p := Prepare{Flight: f.id, Job: f.job, Key: f.key, From: f.from, Keep: f.entry.held,
			KeepEncoded: f.encoded.held && f.from == ident.Stored, Turn: f.turn,
			Probe: f.outage != nil && f.outage.probe == f}
		if f.from == ident.Stored {
			p.Readers = fl.sampler.Readers(f.key.Object)
		}
		// what failed is tried again in two steps, which distinguish a bad image from one that this recipe cannot take
		if f.alone && !f.entry.held && f.attempts == 0 && len(f.rows) == 1 && len(f.augments) == 0 {
			f.become(flightInPlace)
			p.Into = fl.filling(f.rows[0].d, f.rows[0].row, Source{Key: f.key})
		}
		if p.Into == nil {
			f.become(flightRunning)
		}
		fl.step.emit(p)
		return
	}
	f.become(flightRunning)
	from := Source{Key: ident.Key{Object: f.key.Object, Form: ident.Decoded, Recipe: f.base}}
	if f.parent != nil {
		from.Flight = f.parent.id
	}
	beside := f.turn
	if s := fl.roster.streams[f.job]; f.foreign && s != nil {
		beside = fl.besideTurn(s)
	}
	fl.step.emit(Augment{Flight: f.id, Job: f.job, Key: f.key, From: from, Keep: f.entry.held, Seed: f.seed,
		Instance: f.instance, Turn: f.turn, Beside: beside})
}

// prepared takes the result of a flight.
func (fl *flights) prepared(e Prepared) {
	f := fl.flightByID[e.Flight]
	if f == nil {
		return
	}
	f.count(&fl.running, -1)
	if f.foreign {
		fl.foreignTurn = max(fl.foreignTurn, f.turn)
	}
	if e.Read > 0 {
		fl.step.stats.SourceReads++
		fl.step.stats.SourceBytes += uint64(e.Read)
		fl.countWork(f, func(j *jobs.Stats) { j.SourceReads++; j.SourceBytes += uint64(e.Read) })
	}
	if e.Held {
		fl.countHeld(f)
	}
	fl.answered(f, e)
	if e.Err != "" || e.Lost {
		if f.phase == flightInPlace {
			defer fl.settle(fl.leavePlace(f)) // if it was canceled
		}
		fl.failed(f, e)
		return
	}
	if f.key.Form == ident.Decoded {
		fl.step.stats.Decodes++
		fl.countWork(f, func(j *jobs.Stats) { j.Decodes++ })
		if !f.bare {
			fl.tiering.decoded(f, e.Bytes)
		}
		fl.settleEncoded(f, e)
		if f.phase == flightInPlace {
			fl.preparedInPlace(f, e)
			return
		}
	} else {
		fl.step.stats.Augments++
		fl.countWork(f, func(j *jobs.Stats) { j.Augments++ })
		fl.leaveSource(f)
	}
	kept := f.entry.held && e.Kept
	if f.entry.held && !e.Kept { // the tier had no room for the real size
		fl.needs.drop(f.entry)
		f.entry = pin{}
	}
	if kept {
		fl.index.SetReady(f.entry.h)
		// if it does not fit, it leaves when the rows below are filled
		fl.index.Resize(f.entry.h, fl.cfg.Granule(f.key.Form, e.Bytes), fl.needs.evicted)
	}
	rows, augments := f.rows, f.augments
	f.rows, f.augments = nil, nil
	if kept {
		fl.forgetFlight(f)
		for _, w := range rows {
			w.d.rows[w.row].flight = nil
			fl.index.Pin(f.entry.h)
			w.d.rows[w.row].pin = pin{f.entry.h, true}
			fl.fill(w.d, w.row, Source{Key: f.key})
		}
		for _, a := range augments {
			a.parent = nil
			fl.index.Pin(f.entry.h)
			a.source = pin{f.entry.h, true}
			fl.enqueue(a)
		}
		fl.needs.unpin(f.entry)
		fl.needs.relevel(f.key.Object) // now that the flight is over: the entry may have been evicted while it was made
		fl.needs.rerankShared(f.key)
		return
	}
	f.become(flightCopied)
	f.count(&fl.copies, 1)
	for _, w := range rows {
		f.users++
		fl.fill(w.d, w.row, Source{Key: f.key, Flight: f.id})
	}
	for _, a := range augments {
		f.users++
		fl.enqueue(a)
	}
	fl.retire(f)
}

// settleEncoded enters in the index what became of the original bytes.
func (fl *flights) settleEncoded(f *flight, e Prepared) {
	if !f.encoded.held {
		return
	}
	if f.from == ident.Stored {
		if e.Encoded {
			fl.index.SetReady(f.encoded.h)
		} else {
			fl.needs.drop(f.encoded)
			f.encoded = pin{}
			return
		}
	}
	fl.needs.unpin(f.encoded)
	f.encoded = pin{}
}

// leaveSource drops an augmented flight's hold on what it started from.
func (fl *flights) leaveSource(f *flight) {
	fl.needs.unpin(f.source)
	f.source = pin{}
	if p := f.parent; p != nil {
		f.parent = nil
		p.users--
		fl.retire(p)
	}
}

// retire drops a working copy without readers.
func (fl *flights) retire(f *flight) {
	if f.phase != flightCopied || f.users > 0 {
		return
	}
	f.count(&fl.copies, -1)
	fl.step.emit(Discard{Flight: f.id})
	fl.forgetFlight(f)
	fl.needs.relevel(f.key.Object)
}

// failed tries again once; a second failure quarantines the sample for every job with that prefix of the recipe
// (another one may ask for less than what failed). A lost cache entry is no failure of the sample: it is prepared again
// from storage. Nor is a place that does not answer one of its samples: they wait for it.
func (fl *flights) failed(f *flight, e Prepared) {
	x := f.key.Object
	unwanted := len(f.rows) == 0 && len(f.augments) == 0 // all that waited have left
	switch {
	case f.key.Form == ident.Augmented && (e.Lost || unwanted):
		if e.Lost {
			fl.needs.drop(f.source) // what it was to start from is gone
			f.source = pin{}
		}
		fl.abandonFlight(f, func(w waiter) { fl.source(w.d, w.row) })
		return
	case unwanted:
		fl.abandonFlight(f, nil)
		return
	case e.Away:
		fl.placeFailed(f, e.Err)
		return
	case e.Lost || f.attempts == 0 && !e.Tried: // from storage: the copy in memory is gone, or may be what is bad
		if !e.Lost {
			f.attempts++
		}
		fl.needs.drop(f.encoded)
		f.encoded, f.from = pin{}, ident.Stored
		if o := f.outage; o != nil { // it was to try the place
			fl.goAway(f, o)
			return
		}
		fl.enqueue(f)
		return
	}
	bad := jobs.Bad{Object: x, At: e.At, Reason: e.Err, Kind: e.Kind}
	if f.key.Form == ident.Decoded && !fl.goneFor(f) {
		if !fl.quarantined(x) {
			fl.step.stats.Quarantined++
		}
		fl.quarantineSample(f.key, bad)
	}
	if f.entry.held { // it keeps its place, see reservePlace
		fl.index.SetReady(f.entry.h)
		fl.needs.unpin(f.entry)
		f.entry = pin{}
	} else if f.key.Form == ident.Decoded && len(f.rows) > 0 && !f.foreign { // so does one that was to be kept encoded
		fl.reserveStored(f.asker(), x, allJobs)
	}
	fl.giveUpLater(f)
	fl.abandonFlight(f, func(w waiter) {
		if w.d.s.isGone(x) {
			fl.failRow(w.d, w.row, removed(x))
			return
		}
		fl.failRow(w.d, w.row, bad)
	})
}

// quarantineSample records that a decoded form cannot be made.
func (fl *flights) quarantineSample(k ident.Key, bad jobs.Bad) { fl.quarantine[k] = bad }

// isQuarantined reports whether a decoded form cannot be made.
func (fl *flights) isQuarantined(k ident.Key) bool {
	_, bad := fl.quarantine[k]
	return bad
}

// quarantined reports whether the object could not be prepared for some prefix.
func (fl *flights) quarantined(x ident.ObjectID) bool {
	for i := range fl.roster.prefixes {
		if fl.isQuarantined(ident.Key{Object: x, Form: ident.Decoded, Recipe: fl.roster.prefixes[i].id}) {
			return true
		}
	}
	return false
}

// forgetFlight takes a flight out of the tables.
func (fl *flights) forgetFlight(f *flight) {
	f.become(flightOver)
	fl.flying.remove(f)
	delete(fl.flightByID, f.id)
	fl.makeLater(f)
}

// filled takes the result of a fill into a batch.
func (fl *flights) filled(d *delivery, e Filled) {
	w := &d.rows[e.Row]
	fl.served(d.s, w.turn)
	fl.servedBeside(d.s, d.fills[e.Row].Beside)
	hold, f := w.pin, w.flight
	w.pin, w.flight = pin{}, nil
	if e.Augments > 0 {
		fl.step.stats.Augments += uint64(e.Augments)
		d.s.job.Stats.Augments += uint64(e.Augments)
		fl.roster.datasets[d.s.dataset].stats.Augments += uint64(e.Augments)
	}
	w.state = rowDone
	switch {
	case d.phase == deliveryCanceled:
	case e.Lost:
		w.state = rowWaiting
		if hold.held {
			fl.needs.drop(hold)
			hold = pin{}
		}
		fl.source(d, e.Row)
	case e.Err != "":
		bad := jobs.Bad{Object: w.object, Reason: e.Err}
		w.state = rowWaiting
		fl.failRow(d, e.Row, bad)
	default:
		d.pending--
	}
	fl.needs.unpin(hold)
	if f != nil {
		f.users--
		fl.retire(f)
	}
	if w.state == rowDone {
		fl.settle(d)
	}
}

// filled takes the result of a fill.
func (pl *planner) filled(e Filled) {
	if d := pl.deliveries[e.Delivery]; d != nil {
		pl.flights.filled(d, e)
	}
}
