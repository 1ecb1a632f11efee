package arrow

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// batchOf is a batch of the given rows of each node, whose buffers lie one behind the other.
func batchOf(rows []int64, most int64, buffers ...[]byte) reader {
	b := &batch{rows: rows[0]}
	for _, n := range rows {
		b.nodes = append(b.nodes, fieldNode{rows: n})
	}
	var all []byte
	for _, x := range buffers {
		b.buffers = append(b.buffers, span{int64(len(all)), int64(len(x))})
		all = append(all, x...)
	}
	return reader{r: bytes.NewReader(all), batch: b, most: most}
}

func offsets(all ...uint32) (b []byte) {
	for _, x := range all {
		b = le.AppendUint32(b, x)
	}
	return b
}

// An array of no values may have no offsets at all: other writers than pyarrow leave out the only one.
func TestListsOfNothingNeedNoOffsets(t *testing.T) {
	text := Field{Name: "x", Kind: Text, node: 1, buffer: 2, buffers: 3}
	lists := Field{Name: "x", Kind: List, buffers: 2, Inner: []Field{text}}
	r := batchOf([]int64{2, 0}, 1<<20, nil, offsets(0, 0, 0), nil, nil, nil)
	for row := range int64(2) {
		if v, err := r.read(&lists, row); err != nil || string(v.Data) != "[]" {
			t.Errorf("row %d of lists of text: %q, %v", row, v.Data, err)
		}
	}
	deep := Field{Name: "x", Kind: List, buffers: 2, Inner: []Field{{Name: "x", Kind: List, node: 1, buffer: 2, buffers: 2,
		Inner: []Field{{Name: "x", Kind: Int, Bits: 32, node: 2, buffer: 4, buffers: 2}}}}}
	r = batchOf([]int64{2, 0, 0}, 1<<20, nil, offsets(0, 0, 0), nil, nil, nil, nil)
	for row := range int64(2) {
		v, err := r.read(&deep, row)
		if err != nil || len(v.Data) != 0 || len(v.Dims) != 2 || v.Dims[0] != 0 || v.Dims[1] != 0 {
			t.Errorf("row %d of lists of lists: %v of %v, %v", row, v.Data, v.Dims, err)
		}
	}
	r = batchOf([]int64{1, 1}, 1<<20, nil, offsets(0, 1), nil, nil, nil)
	if v, err := r.read(&lists, 0); err == nil {
		t.Errorf("a list of one text without offsets is %q", v.Data)
	}
}

// What a list of text has in memory as JSON has a bound, however few bytes the file has of it: its texts and their
// copy in the list.
func TestListsOfTextAreBounded(t *testing.T) {
	text := Field{Name: "x", Kind: Text, node: 1, buffer: 2, buffers: 3}
	lists := Field{Name: "x", Kind: List, buffers: 2, Inner: []Field{text}}
	const most = 1 << 16
	for _, x := range []struct {
		what string
		n    int
		text string
		ok   bool
	}{
		{"letters", 1, strings.Repeat("x", most/2-100), true},
		{"letters, and their copy is beyond it", 1, strings.Repeat("x", most/2), false},
		{"control bytes", 1, strings.Repeat("\x01", most/4), false},
		{"quotes", 1, strings.Repeat("\"", most/4-100), true},
		{"quotes beyond it", 1, strings.Repeat("\"", most/4), false},
		{"few without a letter", most / 64, "", true},
		{"many without a letter", most / 8, "", false},
		{"two that fit alone", 2, strings.Repeat("x", most/2-100), false},
	} {
		at := make([]uint32, x.n+1)
		for i := range at {
			at[i] = uint32(i * len(x.text))
		}
		texts := strings.Repeat(x.text, x.n)
		r := batchOf([]int64{1, int64(x.n)}, most, nil, offsets(0, uint32(x.n)), nil, offsets(at...), []byte(texts))
		v, err := r.read(&lists, 0)
		if x.ok && (err != nil || len(v.Data) != x.n*int(jsonSize([]byte(x.text))+1)+1) ||
			!x.ok && (err == nil || !strings.Contains(err.Error(), "65536")) {
			t.Errorf("%s: %d bytes, %v", x.what, len(v.Data), err)
		}
	}
	// Lists in lists are a copy more each; in a list of a fixed length, too.
	one := text
	one.node, one.buffer = 2, 4
	for name, x := range map[string]struct {
		outer Field
		rows  []int64
		after [][]byte
	}{
		"lists": {Field{Name: "x", Kind: List, buffers: 2, Inner: []Field{{Name: "x", Kind: List, node: 1, buffer: 2,
			buffers: 2, Inner: []Field{one}}}}, []int64{1, 1, 1}, [][]byte{nil, offsets(0, 1), nil, offsets(0, 1)}},
		"fixed lists": {Field{Name: "x", Kind: FixedList, Width: 1, buffers: 1, Inner: []Field{{Name: "x", Kind: FixedList,
			Width: 1, node: 1, buffer: 1, buffers: 1, Inner: []Field{{Name: "x", Kind: Text, node: 2, buffer: 2,
				buffers: 3}}}}}, []int64{1, 1, 1}, [][]byte{nil, nil}},
	} {
		for n, ok := range map[int]bool{most/3 - 200: true, most / 3: false} {
			buffers := append(slices.Clone(x.after), nil, offsets(0, uint32(n)), []byte(strings.Repeat("x", n)))
			r := batchOf(x.rows, most, buffers...)
			if v, err := r.read(&x.outer, 0); (err == nil) != ok || ok && len(v.Data) != n+6 {
				t.Errorf("%s of %d letters: %d bytes, %v", name, n, len(v.Data), err)
			}
		}
	}
	for c := range 256 {
		if got, want := jsonSize([]byte{byte(c)}), len(AppendJSON(nil, []byte{byte(c)})); int(got) != want {
			t.Errorf("byte %d has %d bytes as JSON, and %d were counted", c, want, got)
		}
	}
}
