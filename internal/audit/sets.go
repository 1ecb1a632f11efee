package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"larder/internal/errs"
)

// setKey names a set of samples. Epochs of one key have the same set: it is what an expression selects of a dataset
// whose files have not changed. Without a fingerprint only epochs of one job are compared.
type setKey struct {
	dataset, fingerprint, subset string
	job                          string // when there is no fingerprint
	n                            uint64
}

// sets compares epochs with what they should have had, and with each other.
type sets struct {
	expect map[string][]uint32
	all    map[setKey]*union
	lacks  []lack
}

// lack is an epoch that had too few; which ones is known when all epochs were looked at.
type lack struct {
	Finding
	root *run
	ids  []uint32
}

type union struct {
	ids   []uint32    // ascending, of all epochs
	sets  []candidate // of epochs that had all of them
	first *run
	seen  []setUse
}

// candidate is what whole epochs had, and how many of them had just that.
type candidate struct {
	ids []uint32
	n   int
}

// whole is what most of the whole epochs had; nil when as many had something else.
func (u *union) whole() []uint32 {
	var best candidate
	tie := false
	for _, c := range u.sets {
		switch {
		case c.n > best.n:
			best, tie = c, false
		case c.n == best.n:
			tie = true
		}
	}
	if tie {
		return nil
	}
	return best.ids
}

type setUse struct {
	root *run
	ids  []uint32 // ascending
}

func newSets(expect map[string][]uint32) *sets {
	return &sets{expect: expect, all: map[setKey]*union{}}
}

func keyOf(u *run) setKey {
	k := setKey{u.Dataset, u.Fingerprint, u.Subset, "", u.N}
	if u.Fingerprint == "" {
		k.job = fmt.Sprint(u.Job, "\x00", u.Registered, "\x00", u.ID)
	}
	return k
}

// ids are the distinct ids of what is sorted by id.
func ids(lists ...[]seen) []uint32 {
	var out []uint32
	for _, l := range lists {
		for _, s := range l {
			out = append(out, s.id)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// add notes what an epoch had.
func (s *sets) add(root *run, got, bad []seen) {
	k := keyOf(root)
	u := s.all[k]
	if u == nil {
		u = &union{first: root}
		s.all[k] = u
	}
	mine := ids(got, bad)
	u.ids = merge(u.ids, mine)
	u.seen = append(u.seen, setUse{root, mine})
}

// whole notes an epoch that had every sample.
func (s *sets) whole(e *Epoch, root *run, of heard) {
	u := s.all[keyOf(root)]
	if u == nil || e.Dropped > 0 || e.Removed > 0 || e.Silent > 0 {
		return
	}
	mine := ids(of.got, of.bad)
	for i := range u.sets {
		if slices.Equal(u.sets[i].ids, mine) {
			u.sets[i].n++
			return
		}
	}
	u.sets = append(u.sets, candidate{mine, 1})
}

// lack notes that an epoch had n samples too few.
func (s *sets) lack(e *Epoch, root *run, of heard, n uint64) {
	s.lacks = append(s.lacks, lack{Finding{Kind: Lost, Job: e.Job, Epoch: e.Epoch, Where: root.at(root.line),
		Text: fmt.Sprintf("%d of %d samples never came: %d delivered, %d bad, %d removed, and drop_last and even take %d", n,
			root.N, e.Delivered, e.Quarantined,
			e.Removed, root.tail(root.N))}, root, ids(of.got, of.bad)})
}

// judge finds samples that are not of their set.
func (s *sets) judge() []Finding {
	var out []Finding
	for _, l := range s.lacks {
		want := s.expect[l.root.Job]
		if u := s.all[keyOf(l.root)]; want == nil && u != nil {
			want = u.whole()
		}
		l.IDs = firstIDs(without(want, l.ids))
		out = append(out, l.Finding)
	}
	keys := slices.SortedFunc(maps.Keys(s.all), func(a, b setKey) int {
		return cmp.Or(cmp.Compare(a.dataset, b.dataset), cmp.Compare(a.subset, b.subset),
			cmp.Compare(a.fingerprint, b.fingerprint), cmp.Compare(a.n, b.n), cmp.Compare(a.job, b.job))
	})
	for _, k := range keys {
		u := s.all[k]
		set := u.whole()
		if more := uint64(len(u.ids)); more > k.n && set == nil {
			out = append(out, Finding{Kind: Foreign, Job: u.first.Job, Epoch: u.first.Epoch, Where: u.first.at(u.first.line),
				IDs: firstIDs(u.disputed()),
				Text: fmt.Sprintf("epochs on subset %q of %s had %d samples altogether, and it has %d", k.subset, k.dataset, more,
					k.n)})
		}
		for _, x := range u.seen {
			want, source := s.expect[x.root.Job], "what was said to be expected"
			if want == nil {
				want, source = set, "what whole epochs of that subset had"
			}
			if want == nil {
				continue
			}
			if odd := without(x.ids, want); len(odd) > 0 {
				out = append(out, Finding{Kind: Foreign, Job: x.root.Job, Epoch: x.root.Epoch, IDs: firstIDs(odd),
					Where: x.root.at(x.root.line),
					Text:  fmt.Sprintf("%d samples are not of %s", len(odd), source)})
			}
			if s.expect[x.root.Job] != nil && uint64(len(want)) != k.n {
				out = append(out, Finding{Kind: Foreign, Job: x.root.Job, Epoch: x.root.Epoch, Where: x.root.at(x.root.line),
					Text: fmt.Sprintf("%d samples are expected, and the daemon says %d", len(want), k.n)})
			}
		}
	}
	return out
}

// disputed are samples that some whole epochs had, and others had not.
func (u *union) disputed() []uint32 {
	var out []uint32
	for _, c := range u.sets {
		out = append(out, without(u.ids, c.ids)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// merge and without work on ascending lists without repetitions.
func merge(a, b []uint32) []uint32 {
	if len(without(b, a)) == 0 {
		return a
	}
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func without(a, b []uint32) []uint32 {
	var out []uint32
	for _, x := range a {
		for len(b) > 0 && b[0] < x {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != x {
			out = append(out, x)
		}
	}
	return out
}

// ParseExpect reads JOB=IDS, where IDS is a list of ids and ranges such as 0-107,200.
func ParseExpect(args []string) (map[string][]uint32, error) {
	out := map[string][]uint32{}
	for _, a := range args {
		at := strings.LastIndexByte(a, '=')
		bad := func(what string) error {
			return errs.New(errs.Invalid, a, "e.g. --expect lr-0.1=0-107,200", "what is expected: %s", what)
		}
		if at < 1 {
			return nil, bad(fmt.Sprintf("%q is not JOB=IDS", a))
		}
		var list []uint32
		for part := range strings.SplitSeq(a[at+1:], ",") {
			lo, hi, ranged := strings.Cut(part, "-")
			if !ranged {
				hi = lo
			}
			x, err1 := strconv.ParseUint(lo, 10, 32)
			y, err2 := strconv.ParseUint(hi, 10, 32)
			if err1 != nil || err2 != nil || x > y || y-x >= 1<<28 {
				return nil, bad(fmt.Sprintf("%q is no id and no range of ids", part))
			}
			for ; x <= y; x++ {
				list = append(list, uint32(x))
			}
		}
		slices.Sort(list)
		out[a[:at]] = slices.Compact(list)
	}
	return out, nil
}
