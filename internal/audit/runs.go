package audit

import (
	"fmt"
	"slices"
	"time"
)

// The kinds of findings. Each of them makes an audit fail.
const (
	Lost     = "lost"     // a sample of the subset that the epoch should have given and did not; a step that never came
	Repeated = "repeated" // a sample, or a step, that came twice in one epoch
	Foreign  = "foreign"  // a sample that is not of the subset
	Altered  = "altered"  // a batch whose bytes changed while it was held, or came again with others
	Damaged  = "damaged"  // a log that does not hold what a client wrote
	Disputed = "disputed" // the daemon's own account says something else
)

// Finding is one thing that is wrong.
type Finding struct {
	Kind  string   `json:"kind"`
	Job   string   `json:"job,omitempty"`
	Epoch uint32   `json:"epoch"`
	Rank  uint32   `json:"rank"`
	Step  uint32   `json:"step"`
	IDs   []uint32 `json:"ids,omitempty"` // the first ones
	Text  string   `json:"text"`
	Where string   `json:"where,omitempty"` // file and line
}

// run is an epoch of a rank as one process saw it.
type run struct {
	Start
	file    string
	line    int
	boot    int64
	batches []batch // steps next-len(batches) to next-1
	again   []batch // received, and given up when it continued at an earlier step
	next    uint32
	done    int // how many of batches are over
	unsure  bool
	ended   *Record
	left    string
	saved   []saved
}

type batch struct {
	step uint32
	ids  []uint32
	bad  []uint32
	rows int
	hash uint32
	line int
}

// saved is a checkpoint: what the run had received before step counts for the run that loads it.
type saved struct {
	token string
	step  uint32
}

func (r *run) at(line int) string { return fmt.Sprintf("%s:%d", r.file, line) }

// place is where in a run something was found.
type place struct {
	step uint32
	ids  []uint32 // nil = it is not about samples
	line int
}

func (r *run) find(kind string, at place, format string, args ...any) Finding {
	return Finding{Kind: kind, Job: r.Job, Epoch: r.Epoch, Rank: r.Rank, Step: at.step, IDs: firstIDs(at.ids),
		Text: fmt.Sprintf(format, args...), Where: r.at(at.line)}
}

// firstIDs keeps reports short.
func firstIDs(ids []uint32) []uint32 {
	return slices.Clone(ids[:min(len(ids), 8)])
}

// parser makes runs of one file's records.
type parser struct {
	options Options
	file    string
	head    *Record
	runs    map[uint64]*run
	out     []*run
	found   []Finding
}

func (p *parser) report(f Finding) { p.found = append(p.found, f) }

func (p *parser) odd(line int, format string, args ...any) {
	p.report(Finding{Kind: Damaged, Text: fmt.Sprintf(format, args...), Where: fmt.Sprintf("%s:%d", p.file, line)})
}

// take takes one record. Kinds that are not known are of a later larder, which says more than this one can use.
func (p *parser) take(line int, r *Record) {
	if r.Kind == KindEpoch {
		p.begin(line, r)
		return
	}
	u := p.runs[r.Run]
	if u == nil {
		p.odd(line, "a record %q of run %d, which has not begun", r.Kind, r.Run)
		return
	}
	if u.ended != nil && r.Kind != KindDone && r.Kind != KindSaved {
		p.odd(line, "a record %q after the end of run %d", r.Kind, r.Run)
		return
	}
	switch r.Kind {
	case KindOn:
		p.on(u, line, r)
	case KindBatch:
		p.batch(u, line, r)
	case KindDone:
		p.done(u, line, r)
	case KindMissed:
		if r.Step != u.next || r.To <= r.Step {
			p.odd(line, "steps %d to %d were missed where step %d is next", r.Step, r.To, u.next)
			return
		}
		u.unsure, u.next = true, r.To
		u.batches, u.done = nil, 0
	case KindEnd:
		u.ended = r
		if r.Batches != uint64(u.next) && !u.unsure {
			p.report(u.find(Lost, place{u.next, nil, line},
				"the epoch ended after %d batches, of which %d came", r.Batches, u.next))
		}
	case KindLeft:
		u.left = r.Why
	case KindSaved:
		if r.Token == "" || r.Step > u.next {
			p.odd(line, "a checkpoint at step %d of %d", r.Step, u.next)
			return
		}
		u.saved = append(u.saved, saved{r.Token, r.Step})
	}
}

func (p *parser) begin(line int, r *Record) {
	s := r.Start
	if s == nil || s.World < 1 || s.World > 1<<20 || s.Rank >= s.World || s.Batch < 1 || p.runs[r.Run] != nil ||
		r.Run == 0 {
		p.odd(line, "an epoch that cannot be")
		return
	}
	if t, err := time.Parse(time.RFC3339Nano, s.Registered); err == nil {
		s.Registered = t.UTC().Format(time.RFC3339Nano) // clients write it with more or fewer zeros
	}
	u := &run{Start: *s, file: p.file, line: line, boot: p.head.Boot, next: s.From}
	p.runs[r.Run] = u
	p.out = append(p.out, u)
}

// on continues a run in the same process: what was received from that step on, and not used, comes again.
func (p *parser) on(u *run, line int, r *Record) {
	switch first := u.next - uint32(len(u.batches)); {
	case r.Step > u.next:
		p.report(u.find(Lost, place{u.next, nil, line}, "it continued at step %d, and step %d is next", r.Step, u.next))
		u.batches, u.done, u.unsure = nil, 0, true
	case r.Step < first+uint32(u.done):
		p.report(u.find(Repeated, place{r.Step, nil, line}, "it continued at step %d, which was used", r.Step))
		return
	default:
		k := int(r.Step - first)
		u.again = append(u.again, u.batches[k:]...)
		u.batches = u.batches[:k:k]
	}
	u.next = r.Step
}

func (p *parser) batch(u *run, line int, r *Record) {
	b := batch{step: r.Step, rows: len(r.IDs), line: line}
	if r.Hash == nil || r.IDs == nil && r.Rows > 0 {
		u.unsure = true // of a client that has no ids, or no sum
		b.rows = max(r.Rows, 0)
	}
	if r.Hash != nil {
		b.hash = *r.Hash
	}
	var ok1, ok2 bool
	b.ids, ok1 = narrow(r.IDs)
	b.bad, ok2 = narrow(r.Bad)
	if !ok1 || !ok2 {
		p.report(u.find(Foreign, place{r.Step, nil, line}, "ids beyond 0 to 4,294,967,295"))
	}
	if uint64(b.rows) > uint64(u.Batch) {
		p.report(u.find(Foreign, place{r.Step, b.ids, line}, "%d samples in a batch of %d", b.rows, u.Batch))
	}
	switch {
	case r.Step+1 == u.next && len(u.batches) > 0 && u.done < len(u.batches):
		// Noted and not handed out, because a signal came; it may be noted again.
		last := u.batches[len(u.batches)-1]
		if !same(last, b) {
			p.report(u.find(Altered, place{r.Step, b.ids, line},
				"it was received twice, with other samples or bytes than in line %d",
				last.line))
		}
		return
	case r.Step < u.next:
		p.report(u.find(Repeated, place{r.Step, b.ids, line}, "step %d came again, and step %d is next", r.Step, u.next))
		return
	case r.Step > u.next:
		p.report(u.find(Lost, place{u.next, nil, line}, "step %d came, and step %d is next", r.Step, u.next))
		u.batches, u.done, u.unsure = nil, 0, true
	}
	for _, old := range u.again {
		if old.step == b.step && !same(old, b) {
			p.report(u.find(Altered, place{r.Step, b.ids, line},
				"it came again with other samples or bytes than in line %d", old.line))
		}
	}
	u.batches = append(u.batches, b)
	u.next = r.Step + 1
	if u.next == 0 {
		p.odd(line, "the number of a step is too large")
		u.ended = r
	}
}

// done ends a step; steps end in any order where several batches are held.
func (p *parser) done(u *run, line int, r *Record) {
	i, ok := slices.BinarySearchFunc(u.batches, r.Step, func(b batch, step uint32) int {
		return int(int64(b.step) - int64(step))
	})
	if !ok {
		if !u.unsure && !slices.ContainsFunc(u.again, func(b batch) bool { return b.step == r.Step }) {
			p.odd(line, "the end of step %d, which did not come", r.Step)
		}
		return
	}
	u.done = max(u.done, i+1)
	if b := u.batches[i]; r.Hash != nil && *r.Hash != b.hash && !p.options.InPlace {
		p.report(u.find(Altered, place{r.Step, b.ids, line},
			"its bytes changed while it was held (CRC-32 %08x, received as %08x)",
			*r.Hash, b.hash))
	}
}

// same reports whether two receipts are of one batch.
func same(a, b batch) bool { return a.hash == b.hash && slices.Equal(a.ids, b.ids) }

func narrow(ids []int64) ([]uint32, bool) {
	out, ok := make([]uint32, 0, len(ids)), true
	for _, id := range ids {
		if id < 0 || id >= 1<<32 {
			ok = false
			continue
		}
		out = append(out, uint32(id))
	}
	return out, ok
}
