package journal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"

	"larder/internal/ident"
	"larder/internal/invariant"
)

// Limits bounds what a Memory keeps. Zero values stand for the defaults.
type Limits struct {
	OrderBytes int // of all orders together; default 64 MiB, about 20 epochs of 1.28 million samples
	Records    int // records other than orders; default 65,536
	// RecordBytes is of those records together; default 16 MiB, about 2,700 registrations
	RecordBytes int
}

// Memory is a Log in memory: durable for as long as the process lives. The oldest orders and records go first when a
// limit is reached, but the order of the newest job-epoch always stays.
type Memory struct {
	limits Limits
	id     uint64
	wake   chan struct{} // one token: something is in pending, or the log is closed
	idle   chan struct{} // closed when the goroutine has ended

	mu struct {
		sync.Mutex
		seq     uint64
		closed  bool
		pending []func(error)
		// A Sync waits until called reaches the number of callbacks handed over before it.
		queued, called uint64
		waiters        []waiter
		records        records
		orders         map[epochKey]*order
		ages           []epochKey // oldest first
		orderBytes     int
	}
}

type waiter struct {
	until uint64
	done  chan struct{}
}

// epochKey names an order: the newest of a job-epoch, or one that was started again since.
type epochKey struct {
	job      ident.JobID
	epoch    uint32
	replaced bool
	instance uint32 // when replaced
}

// order holds the batches of one job-epoch, ids as varints: about 3 bytes each below 2 million objects.
type order struct {
	instance  uint32
	remainder bool
	batches   []batch
	bytes     int
}

type batch struct {
	rank, step uint32
	n          int
	ids        []byte
}

// batchOverhead is what a batch takes beside its ids.
const batchOverhead = 48

// OpenMemory starts a log in memory; Close ends its goroutine.
func OpenMemory(limits Limits) *Memory {
	if limits.OrderBytes <= 0 {
		limits.OrderBytes = 64 << 20
	}
	if limits.Records <= 0 {
		limits.Records = 1 << 16
	}
	if limits.RecordBytes <= 0 {
		limits.RecordBytes = 16 << 20
	}
	m := &Memory{limits: limits, wake: make(chan struct{}, 1), idle: make(chan struct{})}
	m.mu.orders = map[epochKey]*order{}
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	m.id = binary.LittleEndian.Uint64(id[:])
	go m.run()
	return m
}

var _ Log = (*Memory)(nil)

// run calls back, in order and outside the lock, so that a callback may append.
func (m *Memory) run() {
	defer close(m.idle)
	var batch []func(error)
	for range m.wake {
		for {
			m.mu.Lock()
			batch, m.mu.pending = m.mu.pending, batch[:0]
			closed := m.mu.closed
			m.mu.Unlock()
			if len(batch) == 0 {
				if closed {
					return
				}
				break
			}
			for i, done := range batch {
				if done != nil {
					done(nil)
				}
				batch[i] = nil
			}
			m.mu.Lock()
			m.mu.called += uint64(len(batch))
			m.mu.waiters = slices.DeleteFunc(m.mu.waiters, func(w waiter) bool {
				if w.until > m.mu.called {
					return false
				}
				close(w.done)
				return true
			})
			m.mu.Unlock()
		}
	}
}

func (m *Memory) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Append adds a record; see Log.
func (m *Memory) Append(rec Record, done func(error)) uint64 {
	e := entry{row: rec.row()}
	if !e.Kind.known() {
		invariant.Violated("journal: a record of kind %d", e.Kind)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return 0
	}
	m.mu.seq++
	e.Seq = m.mu.seq
	m.keepLocked(e)
	m.mu.pending = append(m.mu.pending, done)
	m.mu.queued++
	m.signal()
	return e.Seq
}

func (m *Memory) keepLocked(rec entry) {
	key := epochKey{job: rec.Job, epoch: rec.Epoch}
	switch rec.Kind {
	case kindAssigned:
		o := m.orderLocked(key)
		b := batch{rank: rec.Rank, step: rec.Step, n: len(rec.Objects), ids: encode(rec.Objects)}
		o.batches = append(o.batches, b)
		m.growLocked(o, len(b.ids)+batchOverhead)
		m.trimLocked(key)
		return
	case kindReturned:
		if o := m.mu.orders[key]; o != nil {
			m.returnLocked(o, rec)
		}
		return
	case kindDealt:
		if o := m.mu.orders[key]; o != nil && len(rec.Objects) > 0 {
			m.dealLocked(o, rec)
		}
		return
	case kindEpochStarted:
		m.replaceLocked(key)
		o := m.orderLocked(key)
		start := rec.epochStarted()
		o.instance, o.remainder = start.Instance, start.Remainder
	default:
	}
	rec.Objects = slices.Clone(rec.Objects)
	m.mu.records.add(rec, m.limits)
}

// records are those other than orders, the oldest first.
type records struct {
	list  []entry // without what orders hold
	bytes int     // see weight
}

// add adds a record, and drops the oldest ones beyond the limits, in steps, so that a record costs O(1).
func (r *records) add(rec entry, limit Limits) {
	r.list = append(r.list, rec)
	r.bytes += rec.weight()
	if len(r.list) <= limit.Records+limit.Records/4 && r.bytes <= limit.RecordBytes+limit.RecordBytes/4 {
		return
	}
	drop := 0
	for ; drop < len(r.list)-1 && (len(r.list)-drop > limit.Records || r.bytes > limit.RecordBytes); drop++ {
		r.bytes -= r.list[drop].weight()
	}
	r.list = slices.Clone(r.list[drop:])
}

// weight counts the bytes of a record in memory.
func (e *entry) weight() int { return entryBytes + len(e.Text) + len(e.packed) + 4*len(e.Objects) }

// entryBytes is an entry without what it points to.
const entryBytes = 128

// replaceLocked sets aside an order that is started again.
func (m *Memory) replaceLocked(key epochKey) {
	o := m.mu.orders[key]
	if o == nil {
		return
	}
	delete(m.mu.orders, key)
	i := slices.Index(m.mu.ages, key)
	m.mu.ages = slices.Delete(m.mu.ages, i, i+1)
	key.replaced, key.instance = true, o.instance
	if len(o.batches) == 0 {
		m.mu.orderBytes -= o.bytes
		return
	}
	if old := m.mu.orders[key]; old != nil {
		m.mu.orderBytes -= old.bytes
		k := slices.Index(m.mu.ages, key)
		m.mu.ages = slices.Delete(m.mu.ages, k, k+1)
		if k < i {
			i--
		}
	}
	m.mu.orders[key] = o
	m.mu.ages = slices.Insert(m.mu.ages, i, key)
}

func (m *Memory) orderLocked(key epochKey) *order {
	o := m.mu.orders[key]
	if o == nil {
		o = &order{}
		m.mu.orders[key] = o
		m.mu.ages = append(m.mu.ages, key)
	}
	return o
}

func (m *Memory) growLocked(o *order, n int) {
	o.bytes += n
	m.mu.orderBytes += n
}

// trimLocked forgets the oldest orders, never the one just written.
func (m *Memory) trimLocked(now epochKey) {
	for i := 0; m.mu.orderBytes > m.limits.OrderBytes && i < len(m.mu.ages); {
		k := m.mu.ages[i]
		if k == now {
			i++
			continue
		}
		m.mu.orderBytes -= m.mu.orders[k].bytes
		delete(m.mu.orders, k)
		m.mu.ages = slices.Delete(m.mu.ages, i, i+1)
	}
}

// dealLocked takes what went back to the epoch out of the batches of a step.
func (m *Memory) dealLocked(o *order, rec entry) {
	for i := range o.batches {
		b := &o.batches[i]
		if b.step != rec.Step || b.rank == Earlier {
			continue
		}
		kept := slices.DeleteFunc(decode(b.ids, b.n), func(x ident.ObjectID) bool { return slices.Contains(rec.Objects, x) })
		ids := encode(kept)
		m.growLocked(o, len(ids)-len(b.ids))
		b.ids, b.n = ids, len(kept)
	}
}

// returnLocked takes what was never delivered out of the batches of that rank and step.
func (m *Memory) returnLocked(o *order, rec entry) {
	o.batches = slices.DeleteFunc(o.batches, func(b batch) bool {
		if b.rank != rec.Rank || b.step != rec.Step || len(rec.Objects) > 0 && slices.ContainsFunc(decode(b.ids, b.n),
			func(x ident.ObjectID) bool { return !slices.Contains(rec.Objects, x) }) {
			return false
		}
		m.growLocked(o, -len(b.ids)-batchOverhead)
		return true
	})
	for i := range o.batches {
		b := &o.batches[i]
		if b.rank != rec.Rank || b.step != rec.Step {
			continue
		}
		kept := slices.DeleteFunc(decode(b.ids, b.n), func(x ident.ObjectID) bool { return slices.Contains(rec.Objects, x) })
		ids := encode(kept)
		m.growLocked(o, len(ids)-len(b.ids))
		b.ids, b.n = ids, len(kept)
	}
}

// Room is always nil.
func (m *Memory) Room() error { return nil }

// Sync waits for the callbacks of everything appended so far; see Log. It must not be called from a callback.
func (m *Memory) Sync(ctx context.Context) error {
	m.mu.Lock()
	if m.mu.called >= m.mu.queued {
		m.mu.Unlock()
		return nil
	}
	w := waiter{until: m.mu.queued, done: make(chan struct{})}
	m.mu.waiters = append(m.mu.waiters, w)
	m.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		m.mu.Lock()
		m.mu.waiters = slices.DeleteFunc(m.mu.waiters, func(x waiter) bool { return x.done == w.done })
		m.mu.Unlock()
		return context.Cause(ctx)
	}
}

// Close calls back everything and ends the log's goroutine; see Log. It must not be called from a callback.
func (m *Memory) Close() error {
	m.mu.Lock()
	m.mu.closed = true
	m.signal()
	m.mu.Unlock()
	<-m.idle
	return nil
}

func encode(ids []ident.ObjectID) []byte {
	out := make([]byte, 0, 3*len(ids))
	for _, x := range ids {
		out = binary.AppendUvarint(out, uint64(x))
	}
	return slices.Clip(out)
}

func decode(b []byte, n int) []ident.ObjectID {
	out := make([]ident.ObjectID, 0, n)
	for len(b) > 0 {
		x, k := binary.Uvarint(b)
		if k <= 0 {
			invariant.Violated("journal: a damaged order")
		}
		out = append(out, ident.ObjectID(x))
		b = b[k:]
	}
	return out
}
