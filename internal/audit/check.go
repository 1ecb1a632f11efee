package audit

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"larder/internal/errs"
)

// Options of a check.
type Options struct {
	// InPlace: the training scripts write into their batches, so bytes may change while a batch is held.
	InPlace bool
	// Expect is by job: the ids of its subset, ascending, as an independent source knows them. A job that is not there is
	// held to the number that the daemon named, and to what its other epochs had.
	Expect map[string][]uint32
	// Silent are jobs of daemons that leave damaged samples out without a word (prep.on_corrupt: skip): the daemon is
	// believed how many.
	Silent map[string]bool
}

// The states of an epoch.
const (
	Whole     = "whole"      // every rank has all of it: exactly once was checked, and held
	BrokenOff = "broken off" // a rank left it, or its client died: nothing came twice, what is lacking is not judged
	Partial   = "partial"    // logs of ranks, or steps, are missing: only what is there was checked
	Continued = "continued"  // a checkpoint of it was loaded elsewhere, which is where it is judged
	Violated  = "violated"
)

// Epoch is what was found of one job-epoch.
type Epoch struct {
	Job         string `json:"job"`
	ID          uint32 `json:"id"`
	Epoch       uint32 `json:"epoch"`
	State       string `json:"state"`
	Ranks       int    `json:"ranks"`
	Runs        int    `json:"runs"` // more than ranks: processes or daemons died
	Subset      uint64 `json:"subset"`
	Delivered   uint64 `json:"delivered"`
	Quarantined uint64 `json:"quarantined"`
	Removed     uint64 `json:"removed"` // from the dataset while it ran, as the daemon said
	Silent      uint64 `json:"silent"`  // left out without a word, as the daemon said
	Dropped     uint64 `json:"dropped"`
	Again       int    `json:"again"` // batches that came again under their number, equal
}

// Report is the result of a check.
type Report struct {
	Files    int            `json:"files"`
	Records  int            `json:"records"`
	Torn     []string       `json:"torn,omitempty"` // logs whose last record was cut off: no error
	Epochs   []Epoch        `json:"epochs"`
	States   map[string]int `json:"states"`
	Samples  uint64         `json:"samples"` // received
	Batches  int            `json:"batches"`
	Compared int            `json:"compared"` // batches of which the bytes at the end of the step were seen, too
	Findings []Finding      `json:"findings"`
}

// Check reads the logs. The error is that of reading; what is wrong with samples is in the report.
func Check(names []string, o Options) (*Report, error) {
	c := newChecker(o)
	for _, name := range names {
		if err := c.file(name); err != nil {
			return nil, err
		}
	}
	c.judge()
	return c.report, nil
}

type checker struct {
	options Options
	report  *Report
	runs    []*run
	gens    map[genKey]*gen
	byToken map[string]*run // that saved it
}

// genKey names a generation: an epoch of a job, from its beginning or from one checkpoint on.
type genKey struct {
	job, registered string
	id, epoch       uint32
	base            string
}

type gen struct {
	key   genKey
	ranks map[uint32][]*run // in the order in which they began
	world uint32
	batch uint32
	parts []part
	root  *run
	deep  bool // being walked
}

func newChecker(o Options) *checker {
	return &checker{options: o, report: &Report{States: map[string]int{}, Epochs: []Epoch{}, Findings: []Finding{}}}
}

func (c *checker) file(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return errs.New(errs.Invalid, name, "check its rights", "open the audit log %s", name).Because(err)
	}
	defer in.Close()
	if err := c.log(name, in); err != nil {
		return errs.New(errs.Invalid, name, "check the disk", "read the audit log %s", name).Because(err)
	}
	return nil
}

// log reads one log.
func (c *checker) log(name string, in io.Reader) error {
	c.report.Files++
	p := &parser{options: c.options, file: name, runs: map[uint64]*run{}}
	f, err := readLog(name, in, func(line int, r *Record) {
		if r.Kind == KindDone && r.Hash != nil {
			c.report.Compared++
		}
		p.take(line, r)
	}, func(head *Record) { p.head = head })
	if err != nil {
		return err
	}
	c.report.Records += f.records
	if f.torn {
		c.report.Torn = append(c.report.Torn, name)
	}
	if f.damage != "" {
		p.report(Finding{Kind: Damaged, Text: f.damage, Where: name})
	}
	c.runs = append(c.runs, p.out...)
	c.report.Findings = append(c.report.Findings, p.found...)
	return nil
}

// judge looks at every epoch, and then at all of them together.
func (c *checker) judge() {
	c.gens, c.byToken = map[genKey]*gen{}, map[string]*run{}
	for _, u := range c.runs {
		k := u.gen()
		g := c.gens[k]
		if g == nil {
			g = &gen{key: k, ranks: map[uint32][]*run{}, world: u.World}
			c.gens[k] = g
		}
		g.batch = u.Batch
		g.ranks[u.Rank] = append(g.ranks[u.Rank], u)
		g.world = max(g.world, u.World)
		for _, s := range u.saved {
			c.byToken[s.token] = u // equal on every rank
		}
		c.report.Batches += len(u.batches)
		for _, b := range u.batches {
			c.report.Samples += uint64(b.rows)
		}
	}
	loaded := map[genKey]bool{}
	for k := range c.gens {
		if u := c.byToken[k.base]; u != nil {
			loaded[u.gen()] = true
		}
	}
	sets := newSets(c.options.Expect)
	keys := slices.SortedFunc(maps.Keys(c.gens), func(a, b genKey) int {
		return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.registered, b.registered), cmp.Compare(a.id, b.id),
			cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.base, b.base))
	})
	for _, k := range keys {
		g := c.gens[k]
		for _, rank := range slices.Sorted(maps.Keys(g.ranks)) {
			g.parts = append(g.parts, c.rank(g, rank))
			if g.root == nil {
				g.root = g.ranks[rank][0]
			}
		}
	}
	for _, k := range keys {
		c.epoch(c.gens[k], loaded[k], sets)
	}
	c.report.Findings = append(c.report.Findings, sets.judge()...)
	c.states()
}

// states marks the epochs that findings are about.
func (c *checker) states() {
	for i := range c.report.Epochs {
		e := &c.report.Epochs[i]
		if slices.ContainsFunc(c.report.Findings, func(f Finding) bool {
			return f.Kind != Damaged && f.Job == e.Job &&
				f.Epoch == e.Epoch
		}) {
			e.State = Violated
		}
		c.report.States[e.State]++
	}
}

func (r *run) gen() genKey { return genKey{r.Job, r.Registered, r.ID, r.Epoch, r.Base} }

// part is what counts of a rank.
type part struct {
	batches []batch
	of      []*run // by batch
	whole   bool   // to the end of the epoch
	unsure  bool   // something cannot be known
	broken  bool   // a client died, or took the epoch over from its start
	again   int
	earlier []attempt // what a run that started again replaced, oldest first
	runs    []*run    // of the attempt that counts
}

// attempt is what a rank received until the epoch was started again. A checkpoint that was taken in it counts it,
// however the epoch continued.
type attempt struct {
	batches []batch
	of      []*run
	runs    []*run
}

// asOf goes back to the attempt in which a checkpoint was taken: by the rank itself, or else the newest that got as
// far.
func (p part) asOf(token string, step uint32) attempt {
	all := append(slices.Clone(p.earlier), attempt{p.batches, p.of, p.runs})
	slices.Reverse(all)
	at := slices.IndexFunc(all, func(a attempt) bool {
		return slices.ContainsFunc(a.runs,
			func(u *run) bool { return slices.ContainsFunc(u.saved, func(s saved) bool { return s.token == token }) })
	})
	if at < 0 {
		at = slices.IndexFunc(all, func(a attempt) bool {
			n := len(a.batches)
			return n > 0 &&
				a.batches[n-1].step+1 >= step
		})
	}
	return all[max(at, 0)]
}

// afresh starts an attempt.
func (p *part) afresh() {
	p.earlier, p.runs = append(p.earlier, attempt{p.batches, p.of, p.runs}), nil
}

// rank puts the runs of a rank together: a continued run replaces what was received from that step on, and must
// be equal to it.
func (c *checker) rank(g *gen, rank uint32) part {
	var p part
	runs := g.ranks[rank]
	slices.SortStableFunc(runs, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.Inc, b.Inc), cmp.Compare(a.boot, b.boot), cmp.Compare(a.line, b.line))
	})
	next := uint32(0)
	for i, u := range runs {
		keep := slices.IndexFunc(p.batches, func(b batch) bool { return b.step >= u.From })
		if keep < 0 {
			keep = len(p.batches)
		}
		cut, cutOf := p.batches[keep:], p.of[keep:]
		switch {
		case u.On && u.From > next && u.Base == "":
			if !p.unsure {
				c.add(u.find(Lost, place{next, nil, u.line},
					"it continued at step %d, and step %d is the one after the last that was "+
						"received", u.From, next))
			}
			p.unsure = true
		case u.On, len(p.batches) == 0:
			p.unsure = p.unsure || u.On && u.From > next
		case u.Base != "":
			p.afresh()
			cut, keep = nil, 0 // the checkpoint was loaded again: what came after it does not count
		case u.Inc == runs[i-1].Inc:
			c.add(u.find(Repeated, place{u.From, nil, u.line},
				"epoch %d was begun again, and %d of its batches had been given out (%s)", u.Epoch, len(p.batches),
				runs[i-1].at(runs[i-1].line)))
			p.broken = true
			p.afresh()
			cut, keep = nil, 0
		default:
			p.afresh()
			p.broken = g.world > 1 // the successor of a dead client starts again; what other ranks had is not dealt again
			cut, keep = nil, 0
		}
		p.batches, p.of = p.batches[:keep:keep], p.of[:keep:keep]
		p.unsure = p.unsure || u.unsure
		for _, b := range u.batches {
			for j, old := range cut {
				if old.step == b.step {
					p.again++
					if !same(old, b) {
						c.add(u.find(Altered, place{b.step, b.ids, b.line}, "it came again with other samples or bytes than in %s",
							cutOf[j].at(old.line)))
					}
				}
			}
			p.batches, p.of = append(p.batches, b), append(p.of, u)
		}
		p.runs = append(p.runs, u)
		next = u.next
		p.again += len(u.again)
		p.whole = u.ended != nil
		p.broken = p.broken || i == len(runs)-1 && u.ended == nil
	}
	return p
}

func (c *checker) add(f Finding) { c.report.Findings = append(c.report.Findings, f) }

// history is what a generation builds on: everything received before its checkpoint. With a token it is that of one
// taken at a step in it.
func (c *checker) history(g *gen, token string, upTo uint32) (parts []part, root *run, known bool) {
	if g.deep {
		return nil, nil, false // checkpoints that name each other
	}
	g.deep = true
	defer func() { g.deep = false }()
	known = true
	for _, p := range g.parts {
		if token != "" {
			a, k := p.asOf(token, upTo), 0
			p.batches, p.of = a.batches, a.of
			for k < len(p.batches) && p.batches[k].step < upTo {
				k++
			}
			p.batches, p.of, p.whole = p.batches[:k], p.of[:k], true
			p.broken = false
		}
		parts = append(parts, p)
	}
	root = g.root
	if uint32(len(g.ranks)) < g.world {
		known = false
	}
	if g.key.base != "" {
		u := c.byToken[g.key.base]
		if u == nil {
			return parts, root, false
		}
		i := slices.IndexFunc(u.saved, func(s saved) bool { return s.token == g.key.base })
		before, first, ok := c.history(c.gens[u.gen()], g.key.base, u.saved[i].step)
		parts, known = append(before, parts...), known && ok
		if first != nil {
			root = first
		}
	}
	return parts, root, known
}

// epoch judges one generation.
func (c *checker) epoch(g *gen, loaded bool, sets *sets) {
	mark := len(c.report.Findings)
	parts, root, known := c.history(g, "", 0)
	e := Epoch{Job: root.Job, ID: g.key.id, Epoch: g.key.epoch, Ranks: int(g.world), Subset: root.N}
	var account *Account
	for _, runs := range g.ranks { // order-free: they are counted, and one account is the daemon's
		e.Runs += len(runs)
		for _, u := range runs {
			if u.ended != nil && u.ended.Account != nil {
				account = u.ended.Account
			}
		}
	}
	whole, unsure, broken := true, !known, false
	var got, bad []seen
	for _, p := range parts {
		whole, unsure, broken = whole && p.whole, unsure || p.unsure, broken || p.broken
		e.Again += p.again
		for i, b := range p.batches {
			for _, id := range b.ids {
				got = append(got, seen{id, b.step, p.of[i], b.line})
			}
			for _, id := range b.bad {
				bad = append(bad, seen{id, b.step, p.of[i], b.line})
			}
			e.Delivered += uint64(b.rows)
		}
	}
	if root.Stream {
		e.Quarantined = uint64(len(bad))
	} else {
		c.repeats(got, bad)
		e.Quarantined = distinct(bad)
	}
	if account != nil {
		e.Removed = account.Removed
		if reported := e.Quarantined + e.Removed; c.options.Silent[root.Job] && account.Quarantined > reported {
			e.Silent = account.Quarantined - reported
		}
	}
	if !root.Stream {
		sets.add(root, got, bad)
	}
	switch {
	case whole && !unsure && !broken:
		e.State = Whole
		if root.Stream {
			c.streamed(&e, root, account)
			break
		}
		c.sum(g, &e, root, heard{account, got, bad}, sets)
	case loaded && !whole:
		e.State = Continued
	case broken || !whole:
		e.State = BrokenOff
	default:
		e.State = Partial
	}
	if len(c.report.Findings) > mark {
		e.State = Violated
	}
	c.report.Epochs = append(c.report.Epochs, e)
}

// seen is a sample in a batch.
type seen struct {
	id, step uint32
	run      *run
	line     int
}

func (s seen) where() string {
	return fmt.Sprintf("rank %d step %d, %s", s.run.Rank, s.step, s.run.at(s.line))
}

func byID(a, b seen) int { return cmp.Compare(a.id, b.id) }

// repeats sorts, and finds what came twice, or came and was said to be bad.
func (c *checker) repeats(got, bad []seen) {
	slices.SortStableFunc(got, byID)
	slices.SortStableFunc(bad, byID)
	for i := 1; i < len(got); i++ {
		if a, b := got[i-1], got[i]; a.id == b.id {
			c.add(b.run.find(Repeated, place{b.step, []uint32{b.id}, b.line}, "sample %d came before, in %s", b.id, a.where()))
		}
	}
	for i, b := range bad {
		if i > 0 && bad[i-1].id == b.id {
			continue
		}
		if k, ok := slices.BinarySearchFunc(got, b, byID); ok {
			c.add(b.run.find(Repeated, place{b.step, []uint32{b.id}, b.line},
				"sample %d was delivered (%s) and is said to be bad",
				b.id, got[k].where()))
		}
	}
}

func distinct(s []seen) (n uint64) {
	for i := range s {
		if i == 0 || s[i].id != s[i-1].id {
			n++
		}
	}
	return n
}

// tail is how many samples drop_last and even take off an epoch of n.
func (s *Start) tail(n uint64) uint64 {
	w, b := uint64(s.World), uint64(s.Batch)
	var dealt uint64
	for r := range w {
		q := n / w
		if s.Even != "drop" && r < n%w {
			q++
		}
		if s.DropLast {
			q -= q % b
		}
		dealt += q
	}
	return n - dealt
}

// inStep reports whether all ranks get as many batches with samples, also where bad samples leave too little for all.
func (s *Start) inStep() bool { return s.World > 1 && s.Even == "drop" && s.OnError == "substitute" }

// shares is, by step, how many ranks got samples.
func (g *gen) shares() map[uint32]int {
	out := map[uint32]int{}
	for _, p := range g.parts {
		for _, b := range p.batches {
			out[b.step] += min(b.rows, 1)
		}
	}
	return out
}

// uneven are the steps that have samples for some ranks and none for others.
func (g *gen) uneven() []uint32 {
	var out []uint32
	shares := g.shares()
	for _, step := range slices.Sorted(maps.Keys(shares)) {
		if n := shares[step]; n > 0 && n < len(g.parts) {
			out = append(out, step)
		}
	}
	return out
}

// empty counts the steps in which no rank has a sample.
func (g *gen) empty() int {
	n := 0
	for _, ranks := range g.shares() { // order-free: they are counted
		if ranks == 0 {
			n++
		}
	}
	return n
}

// heard is what clients and the daemon say of an epoch.
type heard struct {
	account  *Account // of the daemon; nil = it was not heard
	got, bad []seen
}

// streamed holds a whole epoch of an index stream to the daemon's own account: how long it should be, only its client
// knows, and its audit log has the steps without a gap.
func (c *checker) streamed(e *Epoch, root *run, account *Account) {
	if e.Subset = e.Delivered + e.Quarantined; account == nil {
		return
	}
	if e.Delivered != account.Delivered || account.Subset != account.Delivered+account.Quarantined {
		c.add(Finding{Kind: Disputed, Job: e.Job, Epoch: e.Epoch, Where: root.at(root.line), Text: fmt.Sprintf(
			"%d samples were received of an index stream, and the daemon says %d of %d", e.Delivered, account.Delivered,
			account.Subset)})
	}
}

// sum holds a whole epoch to the number of its samples.
func (c *checker) sum(g *gen, e *Epoch, root *run, of heard, sets *sets) {
	n := root.N
	gone := e.Quarantined + e.Removed + e.Silent
	have := distinct(of.got) + gone
	find := func(kind, format string, args ...any) {
		c.add(Finding{Kind: kind, Job: e.Job, Epoch: e.Epoch, Text: fmt.Sprintf(format, args...), Where: root.at(root.line)})
	}
	if have > n {
		find(Foreign, "%d delivered and %d bad or removed samples are more than the subset's %d", e.Delivered, gone, n)
		return
	}
	e.Dropped = n - have
	most, least := root.tail(n), root.tail(n)
	if gone > 0 {
		least = 0 // others take their place, if so asked
	}
	if root.inStep() {
		for _, step := range g.uneven() {
			find(Lost, "step %d has samples for some ranks, and none for others", step)
		}
		most += uint64(g.world-1) * uint64(g.empty()) // less than one for every rank was left of such a step
	}
	if g.key.base != "" && (root.DropLast || root.Even == "drop") {
		// what is left when a checkpoint is loaded is dealt again, to other ranks in other batches
		least, most = 0, uint64(g.world)*uint64(g.batch)
	}
	if e.Dropped > most {
		sets.lack(e, root, of, e.Dropped-most)
	} else if e.Dropped < least {
		find(Foreign, "%d samples should have been dropped (drop_last, even), and %d were", least, e.Dropped)
	}
	if of.account != nil && g.key.base == "" {
		mine := Account{Subset: n, Delivered: e.Delivered, Quarantined: gone, Dropped: e.Dropped, Removed: e.Removed,
			State: of.account.State}
		if *of.account != mine {
			find(Disputed, "the daemon counts %+v, its clients %+v", *of.account, mine)
		}
	}
	sets.whole(e, root, of)
}
