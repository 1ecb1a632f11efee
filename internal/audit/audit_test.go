package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"larder/internal/errs"
	"larder/internal/xrand"
)

// Whatever honest clients and daemons do, whole epochs are found whole, and nothing is found.
func TestHonest(t *testing.T) {
	again, runs := 0, 0
	for seed := range uint64(200) {
		w := newWorld(t, seed, 3, seed%2 == 1)
		for _, o := range []Options{{}, {Expect: w.expect()}} {
			r := check(t, w.logs(), o)
			if len(r.Findings) > 0 || r.States[Whole] != 3 || len(r.Epochs) != 3 {
				t.Fatalf("seed %d: %+v", seed, r)
			}
			for _, e := range r.Epochs {
				again += e.Again
				runs += e.Runs - e.Ranks
			}
		}
	}
	if again == 0 || runs == 0 {
		t.Error("nothing died")
	}
}

// plants are what daemons, clients and disks might do wrong, and what each must be found as. A plant returns false
// where the world has no place for it.
var plants = []struct {
	name string
	want []string // one of them
	do   func(w *world) bool
	bare bool // found without knowing what to expect
}{
	{"a sample is swapped for one of another batch", []string{Repeated}, func(w *world) bool {
		a, b := w.twoBatches()
		if a.Record == nil {
			return false
		}
		a.IDs[0] = b.IDs[0]
		return a.rehash()
	}, true},
	{"a batch never comes", []string{Lost}, func(w *world) bool {
		b := w.lastOfLater(func(r *Record) bool { return len(r.IDs) > 0 })
		if b.Record == nil {
			return false
		}
		w.cutRun(b)
		return true
	}, true},
	{"a step is left out", []string{Lost}, func(w *world) bool {
		b := w.pick(KindBatch)
		for _, f := range w.files {
			if slices.ContainsFunc(f, func(r *Record) bool {
				return r.Kind == KindOn || r.Kind == KindEpoch && r.Start.On
			}) {
				return false // it may be what came again
			}
		}
		if b.To = 0; slices.ContainsFunc(w.of(KindBatch), func(s spot) bool {
			return s.Record != b.Record && s.Run == b.Run && s.Step == b.Step
		}) {
			return false
		}
		w.drop(func(r *Record) bool {
			return r.Run == b.Run && r.Step == b.Step && (r.Kind == KindBatch || r.Kind == KindDone)
		})
		return true
	}, true},
	{"a sample is lost from its batch", []string{Lost}, func(w *world) bool {
		b := w.pick(KindBatch)
		if len(b.IDs) == 0 {
			return false
		}
		w.everywhere(b, func(r *Record) { r.IDs, r.Rows = r.IDs[1:], len(r.IDs)-1 })
		w.noAccount()
		return true
	}, true},
	{"a sample of another subset", []string{Foreign}, func(w *world) bool {
		b := w.pick(KindBatch)
		if len(b.IDs) == 0 {
			return false
		}
		w.everywhere(b, func(r *Record) { r.IDs[0] = int64(w.first + 2*w.n + 1) })
		return true
	}, false},
	{"an id that is none", []string{Foreign}, func(w *world) bool {
		b := w.pick(KindBatch)
		if len(b.IDs) == 0 {
			return false
		}
		w.everywhere(b, func(r *Record) { r.IDs[0] = -1 })
		return true
	}, true},
	{"bytes change while a batch is held", []string{Altered}, func(w *world) bool {
		d := w.pick(KindDone)
		if d.Hash == nil {
			return false
		}
		x := *d.Hash ^ 1<<7
		d.Hash = &x
		return true
	}, true},
	{"a batch comes again with other bytes", []string{Altered}, func(w *world) bool {
		return w.again(func(r *Record) { x := *r.Hash + 1; r.Hash = &x })
	}, true},
	{"a batch comes again with other samples", []string{Altered}, func(w *world) bool {
		return w.again(func(r *Record) { slices.Reverse(r.IDs); r.Hash = hashOf(r.IDs, 9) })
	}, true},
	{"a step comes twice", []string{Repeated}, func(w *world) bool {
		d := w.pick(KindDone)
		i := slices.IndexFunc(w.files[d.file], func(r *Record) bool {
			return r.Kind == KindBatch && r.Run == d.Run &&
				r.Step == d.Step
		})
		if i < 0 {
			return false
		}
		w.files[d.file] = slices.Insert(w.files[d.file], d.at+1, copyOf(w.files[d.file][i]))
		return true
	}, true},
	{"a delivered sample is said to be bad", []string{Repeated}, func(w *world) bool {
		a, b := w.twoBatches()
		if a.Record == nil {
			return false
		}
		w.everywhere(a, func(r *Record) { r.Bad = append(slices.Clone(r.Bad), b.IDs[0]) })
		return true
	}, true},
	{"the daemon miscounts", []string{Disputed}, func(w *world) bool {
		for _, e := range w.of(KindEnd) {
			if e.Account != nil {
				e.Account.Delivered++
				return true
			}
		}
		return false
	}, true},
	{"the end says more batches", []string{Lost}, func(w *world) bool {
		w.pick(KindEnd).Batches++
		return true
	}, true},
	{"a line is gone", []string{Damaged}, func(w *world) bool {
		f := w.r.IntN(len(w.files))
		if len(w.files[f]) < 4 {
			return false
		}
		w.gone[w.files[f][1+w.r.IntN(len(w.files[f])-2)]] = true
		return true
	}, true},
}

// twoBatches are two of one epoch, each there once, with samples.
func (w *world) twoBatches() (a, b spot) {
	epochOf := map[uint64]uint32{}
	for _, e := range w.of(KindEpoch) {
		epochOf[e.Run] = e.Start.Epoch
	}
	all := w.of(KindBatch)
	once := func(s spot) bool {
		n := 0
		for _, x := range all {
			if len(x.IDs) > 0 && len(s.IDs) > 0 && x.IDs[0] == s.IDs[0] && epochOf[x.Run] == epochOf[s.Run] {
				n++
			}
		}
		return n == 1
	}
	for _, i := range w.perm(len(all)) {
		for _, j := range w.perm(len(all)) {
			if i != j && epochOf[all[i].Run] == epochOf[all[j].Run] && once(all[i]) && once(all[j]) {
				return all[i], all[j]
			}
		}
	}
	return spot{}, spot{}
}

// rehash makes the sums fit what a batch holds now: what was planted is not a change of bytes.
func (s spot) rehash() bool { s.Hash = nil; return true }

// everywhere changes each receipt of a batch alike.
func (w *world) everywhere(b spot, f func(*Record)) {
	was := slices.Clone(b.IDs)
	for _, x := range w.of(KindBatch) {
		if x.Step == b.Step && slices.Equal(x.IDs, was) {
			f(x.Record)
		}
	}
}

// again changes a receipt that follows another one of the same batch.
func (w *world) again(f func(*Record)) bool {
	all := w.of(KindBatch)
	for _, i := range w.perm(len(all)) {
		for j := range i {
			a, b := all[j], all[i]
			if len(a.IDs) > 1 && a.Step == b.Step && slices.Equal(a.IDs, b.IDs) && *a.Hash == *b.Hash {
				last := b
				for _, x := range all[i:] { // the last one, whose end no check compares
					if x.Step == a.Step && slices.Equal(x.IDs, a.IDs) {
						last = x
					}
				}
				f(last.Record)
				for _, d := range w.of(KindDone) {
					if d.Run == last.Run && d.Step == last.Step {
						d.Hash = nil
					}
				}
				return true
			}
		}
	}
	return false
}

// lastOfLater is the last batch of an epoch, by its run.
func (w *world) lastOfLater(fits func(*Record) bool) spot {
	for _, e := range w.of(KindEnd) {
		all := w.of(KindBatch)
		for _, b := range slices.Backward(all) {
			if b.Run == e.Run {
				if fits(b.Record) && uint64(b.Step)+1 == e.Batches {
					return b
				}
				break
			}
		}
	}
	return spot{}
}

// cutRun takes the last batch of a run away, and has the daemon count accordingly.
func (w *world) cutRun(b spot) {
	for _, e := range w.of(KindEnd) {
		if e.Run == b.Run {
			e.Batches--
		}
	}
	w.noAccount()
	run, step := b.Run, b.Step
	w.drop(func(r *Record) bool {
		return r.Run == run && r.Step == step && (r.Kind == KindBatch || r.Kind == KindDone)
	})
}

func (w *world) noAccount() {
	for _, e := range w.of(KindEnd) {
		e.Account = nil
	}
}

func (w *world) drop(f func(*Record) bool) {
	for i := range w.files {
		w.files[i] = slices.DeleteFunc(w.files[i], f)
	}
}

// Each thing that can go wrong is found, and found as what it is, in worlds of every kind.
func TestPlanted(t *testing.T) {
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			tried := 0
			for seed := range uint64(60) {
				w := newWorld(t, seed, 3, seed%2 == 1)
				if !p.do(w) {
					continue
				}
				logs := w.logs()
				for _, o := range []Options{{}, {Expect: w.expect()}} {
					if o.Expect == nil && !p.bare {
						continue
					}
					r := check(t, logs, o)
					if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return slices.Contains(p.want, f.Kind) }) {
						t.Fatalf("seed %d: not found: %+v", seed, r)
					}
				}
				tried++
			}
			if tried < 10 {
				t.Errorf("planted in %d worlds only", tried)
			}
		})
	}
}

// A foreign sample in place of a right one is found without a hint, when another epoch has been whole; and it is
// named.
func TestForeignByItsNeighbours(t *testing.T) {
	w := newWorld(t, 8, 3, false)
	for seed := uint64(8); w.start.DropLast || w.start.Even == "drop"; seed++ {
		w = newWorld(t, seed, 3, false)
	}
	odd := uint32(w.first + 2*w.n + 7)
	for _, b := range w.of(KindBatch) {
		if len(b.IDs) > 0 && b.Run > uint64(w.ranks) {
			b.IDs[0] = int64(odd)
			break
		}
	}
	r := check(t, w.logs(), Options{})
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Kind == Foreign &&
			slices.Equal(f.IDs, []uint32{odd}) && f.Epoch == 1
	}) {
		t.Errorf("%+v", r)
	}
}

// What is lost is named when another epoch had it.
func TestLostIsNamed(t *testing.T) {
	for seed := uint64(0); ; seed++ {
		w := newWorld(t, seed, 3, false)
		all := w.of(KindBatch)
		if len(all) == 0 {
			continue
		}
		b := all[len(all)-1]
		if w.start.DropLast || w.start.Even == "drop" || len(b.IDs) == 0 {
			continue
		}
		gone := uint32(b.IDs[0])
		b.IDs, b.Rows = b.IDs[1:], len(b.IDs)-1
		w.drop(func(r *Record) bool { return r.Kind == KindDone && r.Run == b.Run && r.Step == b.Step })
		w.noAccount()
		r := check(t, w.logs(), Options{})
		if len(r.Findings) != 1 || r.Findings[0].Kind != Lost || !slices.Equal(r.Findings[0].IDs, []uint32{gone}) ||
			r.States[Violated] != 1 || r.States[Whole] != 2 {
			t.Errorf("seed %d: %+v", seed, r)
		}
		return
	}
}

// A log may end anywhere: what is left is read, and its epoch is broken off.
func TestTornTail(t *testing.T) {
	w := newWorld(t, 4, 2, false)
	w.files = w.files[:1]
	whole := w.logs()[0]
	torn := 0
	for n := range whole {
		r := check(t, [][]byte{whole[:n]}, Options{})
		torn += len(r.Torn)
		if len(r.Findings) > 0 || r.Records != bytes.Count(whole[:n], []byte{'\n'}) {
			t.Fatalf("cut at %d: %+v", n, r)
		}
	}
	if torn != len(whole)-bytes.Count(whole, []byte{'\n'}) {
		t.Errorf("%d of %d cuts were seen", torn, len(whole))
	}
	// Damage before the end is not forgiven.
	for i := range bytes.LastIndexByte(whole[:len(whole)-1], '\n') {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		if rep := check(t, [][]byte{b}, Options{}); !slices.ContainsFunc(rep.Findings,
			func(f Finding) bool { return f.Kind == Damaged }) {
			t.Fatalf("byte %d: %+v", i, rep)
		}
	}
}

// states of what cannot be proved.
func TestStates(t *testing.T) {
	open := func(w *world) { w.drop(func(r *Record) bool { return r.Kind == KindEnd }) }
	for name, c := range map[string]struct {
		ranks int
		do    func(w *world)
		want  string
	}{
		"a client that left":       {1, func(w *world) { w.pick(KindEnd).Kind = KindLeft }, BrokenOff},
		"a client that died":       {1, open, BrokenOff},
		"a rank whose log is gone": {2, func(w *world) { w.files = w.files[:1] }, Partial},
		"steps without a record": {1, func(w *world) {
			i := slices.IndexFunc(w.files[0], func(r *Record) bool { return r.Kind == KindBatch })
			s := w.files[0][i].Step
			w.files[0] = slices.DeleteFunc(w.files[0], func(r *Record) bool { return r.Kind == KindDone && r.Step == s })
			*w.files[0][i] = Record{Kind: KindMissed, Run: w.files[0][i].Run, Step: s, To: s + 1}
		}, Partial},
	} {
		for seed := uint64(0); ; seed++ {
			w := newWorld(t, seed, 1, false)
			if w.ranks != c.ranks {
				continue
			}
			c.do(w)
			if r := check(t, w.logs(), Options{}); len(r.Findings) > 0 || r.States[c.want] != 1 {
				t.Errorf("%s: %+v", name, r)
			}
			break
		}
	}
}

// A chain of checkpoints, each with another number of ranks: exactly once relative to what was saved.
func TestCheckpoints(t *testing.T) {
	const n, batch = 60, 3
	for _, plant := range []string{"", "afresh", "repeat", "lose"} {
		w := &world{t: t, r: xrand.New(1)}
		next, base := int64(0), ""
		for link, ranks := range []int{2, 3, 1, 4} {
			steps := 2
			if link == 3 {
				steps = 4 // what is left: 60 - 12 - 18 - 6 = 24 samples; two of the steps are full, the rest is empty
			}
			runs := make([]*Record, ranks)
			for rank := range ranks {
				f := w.file(int64(1000*link + rank))
				s := Start{Job: "chain", ID: uint32(link), Registered: fmt.Sprint(link), Rank: uint32(rank), World: uint32(ranks),
					Inc: 1, Epoch: 2, N: n, Batch: batch, Base: base, Dataset: "d", Fingerprint: "x"}
				runs[rank] = &Record{Kind: KindEpoch, Run: 1, Start: &s}
				w.put(f, runs[rank])
			}
			at := len(w.files) - ranks
			for step := range steps {
				for rank := range ranks {
					ids := []int64{}
					for range batch {
						if next < n {
							ids = append(ids, next)
							next++
						}
					}
					if plant == "repeat" && link == 2 && step == 0 {
						ids[0] = 1
					}
					if plant == "lose" && link == 1 && step == 0 && rank == 2 {
						ids = ids[1:]
					}
					w.put(at+rank, &Record{Kind: KindBatch, Run: 1, Step: uint32(step), IDs: ids, Rows: len(ids),
						Hash: hashOf(ids, 2)})
				}
			}
			base = fmt.Sprint("token ", link)
			for rank := range ranks {
				if link < 3 {
					w.put(at+rank, &Record{Kind: KindSaved, Run: 1, Step: uint32(steps), Token: base})
					// What came after the checkpoint is not counted: it comes again.
					w.put(at+rank, &Record{Kind: KindBatch, Run: 1, Step: uint32(steps), IDs: []int64{next + int64(rank)},
						Hash: hashOf(nil, 1)})
					if plant == "afresh" { // the epoch is begun again, as far as link says, before the checkpoint is loaded
						f, again := w.file(int64(1000*link+500+rank)), *runs[rank].Start
						again.Inc = 2
						w.put(f, &Record{Kind: KindEpoch, Run: 1, Start: &again})
						for step := range link {
							w.put(f, &Record{Kind: KindBatch, Run: 1, Step: uint32(step), IDs: []int64{next + int64(rank+ranks*step)},
								Hash: hashOf(nil, 1)})
						}
					}
				} else {
					w.put(at+rank, &Record{Kind: KindEnd, Run: 1, Batches: uint64(steps)})
				}
			}
		}
		r := check(t, w.logs(), Options{})
		want := map[string]string{"": "", "afresh": "", "repeat": Repeated, "lose": Lost}[plant]
		switch {
		case want == "" && (len(r.Findings) > 0 || r.States[Whole] != 1 || r.States[Continued] != 3):
			t.Errorf("%s: %+v", plant, r)
		case want != "" && !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Kind == want }):
			t.Errorf("%s: %+v", plant, r)
		}
	}
}

// The writer writes what the reader reads.
func TestWriter(t *testing.T) {
	dir := t.TempDir()
	l, err := Create(dir, "go")
	if err != nil {
		t.Fatal(err)
	}
	run, err := l.Begin(Start{Job: "a", World: 1, Batch: 2, N: 3})
	if err != nil {
		t.Fatal(err)
	}
	ids := []int64{1, 0}
	if err := errors.Join(l.Batch(run, 0, ids, []int64{5}, 9), l.Done(run, 0, 9),
		l.Write(&Record{Kind: KindEnd, Run: run, Batches: 1})); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(&Record{Kind: KindEnd}); err == nil {
		t.Error("a closed log was written to")
	}
	names, err := Find([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Check(names, Options{}); err != nil || r.States[Whole] != 1 || len(r.Findings) > 0 || r.Compared != 1 ||
		r.Records != 5 || r.Samples != 2 || r.Epochs[0].Quarantined != 1 {
		t.Errorf("%+v", r)
	}
}

func TestFind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, filepath.Join(dir, "none")} {
		if _, err := Find([]string{p}); !errs.Is(err, errs.NotFound) {
			t.Errorf("%s: %v", p, err)
		}
	}
	name := filepath.Join(dir, "audit-1.log")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Find([]string{dir, name}); err != nil || !slices.Equal(got, []string{name}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestParseExpect(t *testing.T) {
	got, err := ParseExpect([]string{"a=b=3,0-2,2", "c=7"})
	if err != nil || !slices.Equal(got["a=b"], []uint32{0, 1, 2, 3}) || !slices.Equal(got["c"], []uint32{7}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "=1", "a=", "a=x", "a=3-1", "a=0-4294967295", "a=-1", "a=1,,2"} {
		if _, err := ParseExpect([]string{bad}); !errs.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
