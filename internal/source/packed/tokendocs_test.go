package packed

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/record"
	"larder/internal/spool"
	"larder/internal/xrand"
)

// TestBestFit: the packing is that of the plain way, every piece is in one window, and no window is too full.
func TestBestFit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		room := int32(1 + r.IntN(400))
		lengths := make([]int32, r.IntN(300))
		for i := range lengths {
			lengths[i] = 1 + int32(r.IntN(int(room)))
			if r.IntN(2) == 0 {
				lengths[i] = 1 + lengths[i]/8
			}
			lengths[i] = min(lengths[i], room)
		}
		order, first := bestFit(lengths, room)
		var got [][]uint32
		for k := range len(first) - 1 {
			got = append(got, order[first[k]:first[k+1]])
		}
		if want := plainBestFit(lengths, room); !slices.EqualFunc(got, want, slices.Equal) {
			rt.Fatalf("%v in %d: %v, want %v", lengths, room, got, want)
		}
	})
}

// plainBestFit is bestFit by looking at all windows for each piece.
func plainBestFit(lengths []int32, room int32) [][]uint32 {
	type window struct {
		left   int32
		filled int
		pieces []uint32
	}
	byLength := make([]uint32, len(lengths))
	for i := range byLength {
		byLength[i] = uint32(i)
	}
	slices.SortStableFunc(byLength, func(a, b uint32) int { return cmp.Compare(lengths[b], lengths[a]) })
	var all []*window
	for step, i := range byLength {
		var best *window
		for _, w := range all {
			if w.left >= lengths[i] && (best == nil || w.left < best.left || w.left == best.left && w.filled > best.filled) {
				best = w
			}
		}
		if best == nil {
			best = &window{left: room}
			all = append(all, best)
		}
		best.left, best.filled = best.left-lengths[i], step
		best.pieces = append(best.pieces, i)
	}
	out := make([][]uint32, len(all))
	for k, w := range all {
		slices.Sort(w.pieces)
		out[k] = w.pieces
	}
	slices.SortFunc(out, func(a, b []uint32) int { return cmp.Compare(a[0], b[0]) })
	return out
}

// TestBordersOfTokens: what windows hold that stop at documents, or pack them, by hand.
func TestBordersOfTokens(t *testing.T) {
	bin := make([]byte, 0, 40)
	// 9 ends documents of 3, 7, 1 and 2 ids; 2 are left.
	for _, id := range []uint16{1, 2, 9, 3, 4, 5, 6, 7, 8, 9, 9, 10, 9, 11, 12} {
		bin = binary.LittleEndian.AppendUint16(bin, id)
	}
	// Five sequences in three documents: 1; 2 3 4 and 5 6; 7 8 and 9 10.
	mega, idx := megatronOf([]uint16{1}, []uint16{2, 3, 4}, []uint16{5, 6}, []uint16{7, 8}, []uint16{9, 10})
	at := len(idx) - 8*6
	idx = slices.Clone(idx[:at])
	for _, k := range []uint64{0, 1, 3, 5} {
		idx = binary.LittleEndian.AppendUint64(idx, k)
	}
	binary.LittleEndian.PutUint64(idx[26:], 4)
	for _, c := range []struct {
		args string
		d    disk
		want []string
	}{
		{"seq_len=3&doc=9&borders=stop", disk{"/d/a.bin": bin}, []string{"1 2 9", "3 4 5 6", "6 7 8 9", "10 9", "11 12"}},
		{"seq_len=3&stride=2&doc=9&borders=stop", disk{"/d/a.bin": bin},
			[]string{"1 2 9", "3 4 5 6", "5 6 7 8", "7 8 9", "10 9", "11 12"}},
		{"seq_len=3&stride=5&doc=9&borders=stop", disk{"/d/a.bin": bin},
			[]string{"1 2 9", "3 4 5 6", "8 9", "10 9", "11 12"}},
		{"seq_len=3&doc=9&borders=drop", disk{"/d/a.bin": bin}, []string{"3 4 5 6", "6 7 8 9"}},
		{"seq_len=3&doc=9&borders=pack&pad=7", disk{"/d/a.bin": bin}, []string{
			"1 2 9 7 doc 0 0 0 -1 position 0 1 2 0", "3 4 5 6 doc 0 0 0 0 position 0 1 2 3",
			"6 7 8 9 doc 0 0 0 0 position 0 1 2 3", "10 9 11 12 doc 0 0 1 1 position 0 1 0 1"}},
		{"seq_len=9&doc=idx&borders=stop", disk{"/d/a.bin": mega, "/d/a.idx": idx}, []string{"2 3 4 5 6", "7 8 9 10"}},
		{"seq_len=9&doc=idx&borders=pack", disk{"/d/a.bin": mega, "/d/a.idx": idx}, []string{
			"2 3 4 5 6 7 8 9 10 0 doc 0 0 0 0 0 1 1 1 1 -1 position 0 1 2 3 4 0 1 2 3 0"}},
		{"seq_len=2&doc=idx&borders=run", disk{"/d/a.bin": mega, "/d/a.idx": idx}, []string{"1 2 3 doc 0 1 1",
			"3 4 5 doc 0 0 0", "5 6 7 doc 0 0 1", "7 8 9 doc 0 0 0"}},
	} {
		f, a := address(t, "tokens:?"+c.args)
		s, got, _, err := readAll(f, a, c.d, "/d/a.bin")
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		var lines []string
		for _, b := range got {
			lines = append(lines, numbersOf(t, &s, b))
		}
		if !slices.Equal(lines, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.args, strings.Join(lines, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestBadBordersOfTokens: arguments that do not go together are refused with words.
func TestBadBordersOfTokens(t *testing.T) {
	for args, want := range map[string]string{
		"borders=stop":                     "?doc=ID",
		"borders=pack&doc=1&stride=4":      "?stride= is not for windows that are packed",
		"borders=stop&doc=1&pad=3":         "no padding",
		"pad=3":                            "?borders=pack",
		"borders=pack&doc=1&pad=65536":     "does not fit ids of uint16",
		"borders=pack&doc=idx":             "no .idx of Megatron",
		"borders=pack&doc=1&seq_len=99999": "", // one window, and padding
	} {
		f, a := address(t, "tokens:?"+args)
		_, got, _, err := readAll(f, a, disk{"/d/a.bin": make([]byte, 64)}, "/d/a.bin")
		if want == "" && (err != nil || len(got) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %d windows, %v", args, len(got), err)
		}
	}
	_, err := ParseAddress("tokens", "/d?borders=cut")
	if err == nil || !strings.Contains(err.Error(), "run, stop, drop") {
		t.Errorf("unknown borders: %v", err)
	}
}

// countingReader counts the bytes that are read.
type countingReader struct {
	bytes.Reader

	n int64
}

func (r *countingReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.Reader.ReadAt(p, off)
	r.n += int64(n)
	return n, err
}

// TestDocumentsArePackedOnce: documents are packed when the first window is read, and a file that is opened again takes
// what the spool has. Other documents, as an index says them, are packed anew.
func TestDocumentsArePackedOnce(t *testing.T) {
	const seqLen, n = 15, 4096
	mega, idx := megatronOf(slices.Repeat([][]uint16{{1, 2, 3}, {4, 5}}, n/5)...)
	size := int64(len(mega))
	kept := spool.NewMemory(1 << 20)
	for i, c := range []struct {
		args   string
		docs   []uint64 // by their first sequences; nil = all
		whole  int64    // how often the whole file is read, beside three windows
		window string
	}{
		{"doc=5", nil, 1, "1 2 3 4 5"}, {"doc=5", nil, 0, "1 2 3 4 5"}, {"doc=3", nil, 1, "1 2 3 4 5"},
		{"doc=idx", nil, 0, "1 2 3 1 2 3"}, {"doc=idx", []uint64{0, 2, 4}, 0, "1 2 3 4 5"},
	} {
		now := slices.Clone(idx)
		if c.docs != nil {
			documents := int(binary.LittleEndian.Uint64(idx[26:]))
			now = slices.Clone(idx[:len(idx)-8*documents])
			for _, k := range c.docs {
				now = binary.LittleEndian.AppendUint64(now, k)
			}
			binary.LittleEndian.PutUint64(now[26:], uint64(len(c.docs)))
		}
		d := disk{"/d/a.bin": mega, "/d/a.idx": now}
		f, a := address(t, fmt.Sprintf("tokens:?seq_len=%d&borders=pack&%s", seqLen, c.args))
		s, err := f.Schema(t.Context(), a, []string{"/d/a.bin"}, d.open)
		if err != nil {
			t.Fatal(err)
		}
		r := &countingReader{Reader: *bytes.NewReader(mega)}
		rows, err := f.Open(t.Context(), a, File{ReaderAt: r, Path: "/d/a.bin", Size: size, Beside: d.open, Schema: &s,
			ID: "a", Spool: kept})
		if err != nil || r.n > 64 {
			t.Fatalf("%d: opened by reading %d bytes, %v", i, r.n, err)
		}
		r.n = 0
		var got string
		for k := range int64(3) {
			b, err := rows.Record(t.Context(), nil, Sample{Off: k, Size: 1})
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				got = numbersOf(t, &s, b)
			}
		}
		if !strings.HasPrefix(got, c.window) || r.n < c.whole*size || r.n > c.whole*size+3*2*(seqLen+1) {
			t.Errorf("%d: %s: %d bytes of %d were read; the first window is %s", i, c.args, r.n, size, got)
		}
	}
}

// TestForgedWindowsOfTokens: a place that no scan gave is an error.
func TestForgedWindowsOfTokens(t *testing.T) {
	d := disk{"/d/a.bin": make([]byte, 64)}
	for _, borders := range []string{"stop", "drop", "pack"} {
		f, a := address(t, "tokens:?seq_len=4&doc=1&borders="+borders)
		s, err := f.Schema(t.Context(), a, []string{"/d/a.bin"}, d.open)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := f.Open(t.Context(), a, File{ReaderAt: bytes.NewReader(d["/d/a.bin"]), Path: "/d/a.bin", Size: 64,
			Beside: d.open, Schema: &s, ID: "a", Spool: spool.NewMemory(1 << 20)})
		if err != nil {
			t.Fatal(err)
		}
		for _, off := range []int64{1 << 40, 1<<62 + 5, 30<<lengthBits | 5, 60, 1<<lengthBits - 1, 3 << lengthBits} {
			if b, err := rows.Record(t.Context(), nil, Sample{Off: off, Size: 1}); err == nil || len(b) > 0 {
				t.Errorf("%s: %d gave %d bytes", borders, off, len(b))
			}
		}
	}
}

// numbersOf are the numbers of a record, behind the names of all fields but the first.
func numbersOf(t *testing.T, s *record.Schema, b []byte) string {
	t.Helper()
	v, err := record.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, x := range v.All {
		if i > 0 {
			out = append(out, s.Fields[i].Name)
		}
		for k := range x.Len() {
			out = append(out, x.NumberText(k))
		}
	}
	return strings.Join(out, " ")
}
