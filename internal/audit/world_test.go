package audit

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"larder/internal/xrand"
)

// world makes honest logs: jobs of several ranks and epochs, with everything that a log may hold. A test then plants
// something.
type world struct {
	t     testing.TB
	r     *xrand.Rand
	files [][]*Record // the first record of each is its head
	n     int         // samples of a subset
	first int         // its first id
	ranks int
	start Start
	gone  map[*Record]bool // left out of the file, after the lines were numbered
}

func (w *world) file(boot int64) int {
	w.files = append(w.files, []*Record{{Kind: KindLog, Version: Version, PID: 100 + len(w.files), Client: "test",
		Boot: boot}})
	return len(w.files) - 1
}

func (w *world) put(f int, r *Record) { w.files[f] = append(w.files[f], r) }

// hashOf stands for the bytes of a batch.
func hashOf(ids []int64, epoch uint32) *uint32 {
	h := uint32(xrand.Hash(uint64(epoch), uint64(len(ids))))
	for _, id := range ids {
		h = uint32(xrand.Hash(uint64(h), uint64(id)))
	}
	return &h
}

// newWorld draws a job and its epochs. deaths: processes and daemons die.
func newWorld(t testing.TB, seed uint64, epochs int, deaths bool) *world {
	r := xrand.New(seed)
	w := &world{t: t, r: r, gone: map[*Record]bool{}, n: 12 + r.IntN(60), first: r.IntN(5), ranks: 1 + r.IntN(3)}
	even := ""
	if w.ranks > 1 {
		even = []string{"drop", "none"}[r.IntN(2)]
	}
	w.start = Start{Job: "job", ID: 3, Registered: "2026-01-02T03:04:05.000000006Z", World: uint32(w.ranks),
		N: uint64(w.n), Batch: uint32(1 + r.IntN(5)),
		DropLast: r.IntN(2) == 0, Even: even, Dataset: "imagefolder:/d", Fingerprint: "f", Subset: "label < 3"}
	var at []int
	for range w.ranks {
		at = append(at, w.file(int64(1000+len(w.files))))
	}
	runs := uint64(0)
	for e := range uint32(epochs) {
		deal := w.deal()
		bad := map[int64]bool{}
		for rank, mine := range deal {
			f := at[rank]
			s := w.start
			s.Rank, s.Epoch, s.Inc = uint32(rank), e, 1
			runs++
			run := runs
			begin := s
			w.put(f, &Record{Kind: KindEpoch, Run: run, Start: &begin})
			steps := 0
			for lo := 0; lo < len(mine); lo += int(s.Batch) {
				ids := mine[lo:min(lo+int(s.Batch), len(mine))]
				var broken []int64
				if r.IntN(9) == 0 && len(ids) > 1 {
					broken, ids = ids[:1], ids[1:]
					bad[broken[0]] = true
				}
				b := &Record{Kind: KindBatch, Run: run, Step: uint32(steps), IDs: ids, Rows: len(ids), Bad: broken,
					Hash: hashOf(ids, e)}
				w.put(f, b)
				if deaths && r.IntN(6) == 0 { // noted, not handed out, and noted again
					w.put(f, copyOf(b))
				}
				if deaths && r.IntN(6) == 0 { // the daemon dies, and the batch comes again
					w.put(f, &Record{Kind: KindOn, Run: run, Step: b.Step})
					w.put(f, copyOf(b))
				}
				if deaths && r.IntN(8) == 0 { // another process continues, from before that batch or after it
					f = w.file(int64(2000 + len(w.files)))
					at[rank] = f
					s.Inc++
					s.On, s.From = true, b.Step+uint32(r.IntN(2))
					runs++
					run = runs
					on := s
					w.put(f, &Record{Kind: KindEpoch, Run: run, Start: &on})
					if on.From == b.Step {
						again := copyOf(b)
						again.Run = run
						w.put(f, again)
						b = again
					} else {
						b = nil
					}
				}
				if b != nil {
					done := &Record{Kind: KindDone, Run: run, Step: b.Step, Hash: b.Hash}
					if r.IntN(5) == 0 {
						done.Hash = nil
					}
					w.put(f, done)
				}
				steps++
			}
			end := &Record{Kind: KindEnd, Run: run, Batches: uint64(steps), Samples: uint64(len(mine))}
			if rank == len(deal)-1 {
				end.Account = accountOf(s, deal, len(bad))
			}
			w.put(f, end)
		}
	}
	return w
}

// accountOf is the account of an epoch.
func accountOf(s Start, deal [][]int64, bad int) *Account {
	dealt := 0
	for _, d := range deal {
		dealt += len(d)
	}
	return &Account{Subset: s.N, Delivered: uint64(dealt - bad), Quarantined: uint64(bad), Dropped: s.N - uint64(dealt),
		State: "complete"}
}

// deal shuffles the subset and gives the ranks their parts.
func (w *world) deal() [][]int64 {
	all := make([]int64, w.n)
	for i, x := range w.perm(w.n) {
		all[i] = int64(w.first + 2*x)
	}
	out := make([][]int64, w.ranks)
	for rank := range out {
		q := w.n / w.ranks
		if w.start.Even != "drop" && rank < w.n%w.ranks {
			q++
		}
		if w.start.DropLast {
			q -= q % int(w.start.Batch)
		}
		out[rank], all = all[:q:q], all[q:]
	}
	return out
}

func copyOf(r *Record) *Record {
	c := *r
	c.IDs = slices.Clone(r.IDs)
	return &c
}

// logs are the bytes of the files.
func (w *world) logs() [][]byte {
	var out [][]byte
	for _, recs := range w.files {
		var b []byte
		for n, r := range recs {
			r.Line = uint64(n + 1)
			line, err := r.encode(nil)
			if err != nil {
				w.t.Fatal(err)
			}
			if !w.gone[r] {
				b = append(b, line...)
			}
		}
		out = append(out, b)
	}
	return out
}

// of returns records of a kind, and where they are.
func (w *world) of(kind string) (out []spot) {
	for f, recs := range w.files {
		for i, r := range recs {
			if r.Kind == kind {
				out = append(out, spot{f, i, r})
			}
		}
	}
	return out
}

type spot struct {
	file, at int
	*Record
}

func (w *world) pick(kind string) spot {
	all := w.of(kind)
	if len(all) == 0 {
		w.t.Skip("the world has none")
	}
	return all[w.r.IntN(len(all))]
}

func (w *world) expect() map[string][]uint32 {
	var ids []uint32
	for i := range w.n {
		ids = append(ids, uint32(w.first+2*i))
	}
	return map[string][]uint32{"job": ids}
}

func check(t testing.TB, logs [][]byte, o Options) *Report {
	t.Helper()
	c := newChecker(o)
	for i, b := range logs {
		if err := c.log(fmt.Sprint("log ", i), bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	c.judge()
	return c.report
}

// perm is a random order of 0 to n-1.
func (w *world) perm(n int) []int {
	out := make([]int, n)
	for i := range out {
		j := w.r.IntN(i + 1)
		out[i], out[j] = out[j], i
	}
	return out
}
