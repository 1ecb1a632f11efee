package packed

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"testing"

	"larder/internal/spool"
	"larder/internal/xrand"
)

// heldPieces is what a block that is held keeps of its pieces.
type heldPieces struct {
	pieces map[string]*heldPiece
	full   bool
}

type heldPiece struct{ records [][]byte }

func (h *heldPieces) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	if h.full {
		return nil, spool.ErrFull
	}
	if p := h.pieces[key]; p != nil {
		return p, nil
	}
	p := &heldPiece{}
	if err := make(ctx, p); err != nil {
		return nil, err
	}
	h.pieces[key] = p
	return p, nil
}

func (p *heldPiece) Add(record []byte) error {
	p.records = append(p.records, bytes.Clone(record))
	return nil
}

func (p *heldPiece) Fill(n int) ([]byte, error) {
	b := make([]byte, n)
	p.records = append(p.records, b)
	return b, nil
}
func (p *heldPiece) Len() int                   { return len(p.records) }
func (p *heldPiece) View(i int) ([]byte, error) { return p.records[i], nil }
func (p *heldPiece) Record(dst []byte, i int) ([]byte, error) {
	return append(dst, p.records[i]...), nil
}
func (p *heldPiece) Close() error { return nil }

// rowFiles are files whose rows lie one behind the other, of unlike sizes by seed.
func rowFiles(t *testing.T, r *xrand.Rand) map[string]disk {
	some := func(n int64) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint64())
		}
		return b
	}
	n := 37 + int64(r.Uint64()%60)
	ids := some(2 * n * 9)
	arrays := map[string][]byte{"a": npyOf("<f4", []int64{n, 2, 3}, some(n*24)), "b": npyOf(">i8", []int64{n}, some(n*8)),
		"c": npyOf("|u1", []int64{n, 0}, nil)}
	return map[string]disk{
		"npy:":                              {"/d/a.npy": npyOf("<f8", []int64{n}, some(n*8))},
		"npy:?big":                          {"/d/a.npy": npyOf(">i4", []int64{n, 3}, some(n*12))},
		"npy:?one":                          {"/d/a.npy": npyOf("<f8", []int64{1, 3}, some(24))},
		"npy:?none":                         {"/d/a.npy": npyOf("<f8", []int64{n, 0}, nil)},
		"npz:":                              {"/d/a.npz": npzOf(t, zip.Store, arrays, "a", "b", "c")},
		"npz:?fields=b,a":                   {"/d/a.npz": npzOf(t, zip.Store, arrays, "a", "b", "c")},
		"tokens:?seq_len=8":                 {"/d/a.bin": ids},
		"tokens:?seq_len=8&stride=1&doc=7":  {"/d/a.bin": ids},
		"tokens:?seq_len=8&stride=20":       {"/d/a.bin": ids},
		"tokens:?seq_len=5&dtype=uint8":     {"/d/a.bin": ids},
		"tokens:?seq_len=5&stride=3":        {"/d/a.npy": npyOf("<u2", []int64{9 * n}, ids)},
		"tokens:?seq_len=5&doc=2&stride=40": {"/d/a.npy": npyOf(">u2", []int64{9 * n}, ids)},
	}
}

// Rows that a block holds are what they are without, each piece of them is one read of every array, and no byte that is
// not theirs is read.
func TestRowsInPieces(t *testing.T) {
	for seed := range uint64(3) {
		for uri, d := range rowFiles(t, xrand.New(seed)) { // order-free: each by itself
			f, a := address(t, trimTest(uri))
			schema, want, samples, err := readAll(f, a, d, d.main())
			if err != nil {
				t.Fatalf("%s: %v", uri, err)
			}
			file := d[d.main()]
			for _, size := range []int64{1, 100, 1 << 20} {
				counted := &countedReads{r: bytes.NewReader(file)}
				in := File{ReaderAt: counted, Path: d.main(), Size: int64(len(file)), Beside: d.open, Schema: &schema, ID: "x"}
				inner, err := f.Open(t.Context(), a, in)
				if err != nil {
					t.Fatal(err)
				}
				rows := cutRows(inner.(plainRows), size)
				blocks := rows.Blocks()
				for i := range blocks { // none is larger than it has to be, and they follow each other
					if next := rows.rows(); i+1 < len(blocks) {
						next = blocks[i+1].First
						if next-blocks[i].First != rows.per {
							t.Errorf("%s: block %d has %d rows", uri, i, next-blocks[i].First)
						}
					} else if next <= blocks[i].First {
						t.Errorf("%s: the last block is empty", uri)
					}
				}
				held := &heldPieces{pieces: map[string]*heldPiece{}}
				ctx := spool.WithHeld(t.Context(), held)
				counted.reads, counted.bytes = 0, 0
				for i, s := range samples {
					if got, err := rows.Record(ctx, nil, s); err != nil || !bytes.Equal(got, want[i]) {
						t.Fatalf("%s: row %d is %x, not %x: %v", uri, i, got, want[i], err)
					}
				}
				all := int64(0)
				for _, b := range blocks {
					all += b.Bytes
				}
				arrays := len(rows.spans(0, 1))
				if len(held.pieces) != len(blocks) || counted.reads > arrays*len(blocks) || counted.bytes > all {
					t.Errorf("%s: pieces of %d: %d pieces of %d blocks, %d reads of %d bytes of %d", uri, size,
						len(held.pieces), len(blocks), counted.reads, counted.bytes, all)
				}
				held.full = true
				if got, err := rows.Record(ctx, nil, samples[0]); err != nil || !bytes.Equal(got, want[0]) {
					t.Errorf("%s: without room: %x, %v", uri, got, err)
				}
				if _, err := rows.Record(ctx, nil, Sample{Off: rows.rows(), Size: 1}); err == nil {
					t.Errorf("%s: a row behind the last one", uri)
				}
			}
		}
	}
}

// trimTest is a uri without what only tells tests apart.
func trimTest(uri string) string {
	for _, s := range []string{"?big", "?one", "?none"} {
		if rest, ok := bytes.CutSuffix([]byte(uri), []byte(s)); ok {
			return string(rest)
		}
	}
	return uri
}

// Rows of a file that is cut, or whose store fails, say so when they are held.
func TestRowsInPiecesThatFail(t *testing.T) {
	whole := npyOf("<f8", []int64{20}, make([]byte, 160))
	f, a := address(t, "npy:")
	schema, _, samples, err := readAll(f, a, disk{"/d/a.npy": whole}, "/d/a.npy")
	if err != nil {
		t.Fatal(err)
	}
	for at := len(whole) - 159; at < len(whole); at++ {
		in := File{ReaderAt: fails{bytes.NewReader(whole), int64(at)}, Path: "/d/a.npy", Size: int64(len(whole)),
			Schema: &schema}
		r, err := OpenRows(t.Context(), f, a, in)
		if err != nil {
			t.Fatal(err)
		}
		ctx := spool.WithHeld(t.Context(), &heldPieces{pieces: map[string]*heldPiece{}})
		if _, err := r.Record(ctx, nil, samples[0]); !errors.Is(err, errStore) || r.(InPieces).Blocks()[0].Bytes != 160 {
			t.Fatalf("a store that fails at byte %d of %d: %v", at, len(whole), err)
		}
	}
	deflated := npzOf(t, zip.Deflate, map[string][]byte{"a": whole}, "a")
	g, b := address(t, "npz:")
	in := File{ReaderAt: bytes.NewReader(deflated), Path: "/d/a.npz", Size: int64(len(deflated)), Schema: &schema}
	if r, err := OpenRows(t.Context(), g, b, in); err != nil {
		t.Fatal(err)
	} else if _, ok := r.(InPieces); ok {
		t.Error("rows of a compressed member are said to be plain")
	}
}
