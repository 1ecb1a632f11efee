package source

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"larder/internal/ident"
)

// runs is a column of few different stretches: from[k] is where the k-th begins, value[k] what is there. In a column
// that counts, the value is that of the first row, and each following one is one more.
type runs[T ~uint32 | ~int32] struct {
	n     int
	from  []uint32
	value []T
}

// runsOf makes runs of n rows; false where they would take more than most bytes.
func runsOf[T ~uint32 | ~int32](n int, counts bool, most int, at func(i int) T) (runs[T], bool) {
	r := runs[T]{n: n}
	next := T(0)
	for i := range n {
		v := at(i)
		if i == 0 || v != next {
			if 8*(len(r.from)+1) > most {
				return runs[T]{}, false
			}
			r.from, r.value = append(r.from, uint32(i)), append(r.value, v)
		}
		if next = v; counts {
			next++
		}
	}
	r.from, r.value = slices.Clone(r.from), slices.Clone(r.value)
	return r, true
}

// at is the value of the run of row i, and how far behind its beginning the row is.
func (r *runs[T]) at(i uint32) (T, uint32) {
	if len(r.from) == 1 {
		return r.value[0], i
	}
	k := sort.Search(len(r.from), func(k int) bool { return r.from[k] > i }) - 1
	return r.value[k], i - r.from[k]
}

// shortColumns are columns of a snapshot in few bytes; each with rows stands for one that is nil there.
type shortColumns struct {
	dirs   runs[uint32]         // for dirOf
	labels runs[int32]          // for labels, which is empty then
	keys   runs[uint32]         // for names and nameEnd: keys are numbers, and count
	objs   runs[ident.ObjectID] // counts
}

// dir is the row of dirs of a sample that there is.
func (s *snapshot) dir(id ident.SampleID) uint32 {
	if s.dirOf != nil {
		return s.dirOf[id]
	}
	return s.shortDir(id)
}

func (s *snapshot) shortDir(id ident.SampleID) uint32 {
	d, _ := s.short.dirs.at(uint32(id))
	return d
}

// label is that of a sample of packed files.
func (s *snapshot) label(id ident.SampleID) int32 {
	if s.short.labels.n > 0 {
		l, _ := s.short.labels.at(uint32(id))
		return l
	}
	return s.labels[id]
}

func (s *snapshot) name(id ident.SampleID) string {
	if s.nameEnd == nil {
		return s.shortName(id)
	}
	from := uint32(0)
	if id > 0 {
		from = s.nameEnd[id-1]
	}
	return s.names[from:s.nameEnd[id]]
}

func (s *snapshot) shortName(id ident.SampleID) string {
	first, k := s.short.keys.at(uint32(id))
	return string(appendRowKey(nil, uint64(first)+uint64(k)))
}

func (s *snapshot) object(id ident.SampleID) ident.ObjectID {
	switch {
	case !s.has(id):
		return NoObject
	case s.short.objs.n > 0:
		o, k := s.short.objs.at(uint32(id))
		return o + ident.ObjectID(k)
	}
	return s.objs[id]
}

// shortened is a version whose columns have as few bytes as they can, to be published: runs where columns have few of
// them, no room to spare elsewhere. The columns of s stay as they are.
func (s *snapshot) shortened() *snapshot {
	n := len(s.dirOf)
	if n == 0 || s.made != nil {
		return s
	}
	t, most, ok := *s, 2*n, false // a run costs a search: there is much to win, or it stays as it is
	if t.short.dirs, ok = runsOf(n, false, most, func(i int) uint32 { return s.dirOf[i] }); ok {
		t.dirOf = nil
	} else {
		t.dirOf = slices.Clone(s.dirOf)
	}
	if s.labels != nil {
		if t.short.labels, ok = runsOf(n, false, most, func(i int) int32 { return s.labels[i] }); ok {
			t.labels = []int32{}
		} else {
			t.labels = slices.Clone(s.labels)
		}
	}
	if t.short.keys, ok = s.numbers(most); ok {
		t.names, t.nameEnd = "", nil
	} else {
		t.names, t.nameEnd = strings.Clone(s.names), slices.Clone(s.nameEnd)
	}
	if t.short.objs, ok = runsOf(n, true, most, func(i int) ident.ObjectID { return s.objs[i] }); ok {
		t.objs = nil
	}
	return &t
}

// rowDigits is how many digits the keys of rows have at least.
const rowDigits = 8

// appendRowKey appends a key as formats make them that name samples by their rows.
func appendRowKey(b []byte, n uint64) []byte { return fmt.Appendf(b, "%0*d", rowDigits, n) }

// rowKey is the number that appendRowKey makes a key of. The last one of 32 bits is left out: in a column that counts,
// 0 would follow it.
func rowKey(key string) (uint32, bool) {
	n, err := strconv.ParseUint(key, 10, 32)
	return uint32(n), err == nil && n < math.MaxUint32 &&
		(len(key) == rowDigits || len(key) > rowDigits && key[0] != '0')
}

// numbers are the keys of samples as a column; false and no column where one is not that of a row.
func (s *snapshot) numbers(most int) (runs[uint32], bool) {
	all := true
	r, ok := runsOf(len(s.dirOf), true, most, func(i int) uint32 {
		n, is := uint32(0), false
		if all {
			n, is = rowKey(s.name(sampleID(i)))
		}
		all = all && is
		return n
	})
	if !all {
		return runs[uint32]{}, false
	}
	return r, ok
}

// widened is a version that columns can be appended to, as merges do; s itself where nothing is short.
func (s *snapshot) widened() *snapshot {
	if s == nil || s.made != nil || s.Len() == 0 {
		return s
	}
	t, n := *s, s.Len()
	t.short = shortColumns{objs: s.short.objs}
	if s.short.dirs.n > 0 {
		t.dirOf = make([]uint32, n)
		for i := range t.dirOf {
			t.dirOf[i] = s.dir(sampleID(i))
		}
	}
	if s.short.labels.n > 0 {
		t.labels = make([]int32, n)
		for i := range t.labels {
			t.labels[i] = s.label(sampleID(i))
		}
	}
	if s.short.keys.n > 0 {
		t.nameEnd = make([]uint32, n)
		names := make([]byte, 0, 8*n)
		for i := range n {
			first, k := s.short.keys.at(uint32(i))
			names = appendRowKey(names, uint64(first)+uint64(k))
			t.nameEnd[i] = uint32(len(names))
		}
		t.names = string(names)
	}
	return &t
}
