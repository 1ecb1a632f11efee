package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"larder/internal/fault"
)

// setKey names a set of samples. Epochs of one key have the same set: it is what an expression selects of a dataset whose files have not
// changed. Without a fingerprint only epochs of one job are compared.
type setKey struct {
	dataset, fingerprint, subset string
	job                          string // when there is no fingerprint
	n                            uint64
}

// sets compares epochs with what they should have had, and with each other.
type sets struct {
	expect map[string][]uint32
	all    map[setKey]*union
}

type union struct {
	ids   []uint32 // ascending, of all epochs
	whole []uint32 // of an epoch that had all of them: the set itself
	first *run
	seen  []setUse
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
func (s *sets) whole(e *Epoch, root *run, got, bad []seen) {
	if u := s.all[keyOf(root)]; u != nil && u.whole == nil && e.Dropped == 0 && e.Removed == 0 && e.Silent == 0 {
		u.whole = ids(got, bad)
	}
}

// lack is the finding of samples that an epoch should have given.
func (s *sets) lack(e *Epoch, root *run, got, bad []seen, n uint64) Finding {
	f := Finding{Kind: Lost, Job: e.Job, Epoch: e.Epoch, Where: root.at(root.line),
		Text: fmt.Sprintf("%d of %d samples never came: %d delivered, %d bad, %d removed, and drop_last and even take %d", n, root.N, e.Delivered, e.Quarantined, e.Removed, root.tail(root.N))}
	want := s.expect[root.Job]
	if u := s.all[keyOf(root)]; want == nil && u != nil {
		want = u.whole
	}
	if len(want) > 0 {
		f.IDs = firstIDs(without(want, ids(got, bad)))
	}
	return f
}

// judge finds samples that are not of their set.
func (s *sets) judge() []Finding {
	var out []Finding
	keys := slices.SortedFunc(maps.Keys(s.all), func(a, b setKey) int {
		return cmp.Or(cmp.Compare(a.dataset, b.dataset), cmp.Compare(a.subset, b.subset), cmp.Compare(a.fingerprint, b.fingerprint), cmp.Compare(a.n, b.n), cmp.Compare(a.job, b.job))
	})
	for _, k := range keys {
		u := s.all[k]
		if more := uint64(len(u.ids)); more > k.n && u.whole == nil {
			out = append(out, Finding{Kind: Foreign, Job: u.first.Job, Epoch: u.first.Epoch, Where: u.first.at(u.first.line),
				Text: fmt.Sprintf("epochs on subset %q of %s had %d samples altogether, and it has %d", k.subset, k.dataset, more, k.n)})
		}
		for _, x := range u.seen {
			want, source := s.expect[x.root.Job], "what was said to be expected"
			if want == nil {
				want, source = u.whole, "what a whole epoch of that subset had"
			}
			if want == nil {
				continue
			}
			if odd := without(x.ids, want); len(odd) > 0 {
				out = append(out, Finding{Kind: Foreign, Job: x.root.Job, Epoch: x.root.Epoch, IDs: firstIDs(odd), Where: x.root.at(x.root.line),
					Text: fmt.Sprintf("%d samples are not of %s", len(odd), source)})
			}
			if s.expect[x.root.Job] != nil && uint64(len(want)) != k.n {
				out = append(out, Finding{Kind: Foreign, Job: x.root.Job, Epoch: x.root.Epoch, Where: x.root.at(x.root.line),
					Text: fmt.Sprintf("%d samples are expected, and the daemon says %d", len(want), k.n)})
			}
		}
	}
	return out
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
			return fault.New(fault.Invalid, a, "e.g. --expect lr-0.1=0-107,200", "what is expected: %s", what)
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
