package packed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"larder/internal/record"
	"larder/internal/xrand"
)

// onceFile is a file that notes how often each byte was read, and that fails from a byte on.
type onceFile struct {
	b      []byte
	failAt int // -1 = it does not

	mu   sync.Mutex
	read []int
}

var errDisk = errors.New("the disk is broken")

func newOnce(b []byte) *onceFile { return &onceFile{b: b, failAt: -1, read: make([]int, len(b))} }

func (f *onceFile) Len() int64   { return int64(len(f.b)) }
func (f *onceFile) Close() error { return nil }

func (f *onceFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failAt >= 0 && int(off)+len(p) > f.failAt {
		n := copy(p, f.b[min(int(off), f.failAt):f.failAt])
		return n, errDisk
	}
	n, err := bytes.NewReader(f.b).ReadAt(p, off)
	for i := range n {
		f.read[int(off)+i]++
	}
	return n, err
}

// manyLines draws a file of lines, of which some are long, empty, or not what they should be.
func manyLines(r *xrand.Rand, draw func() string) []byte {
	var b bytes.Buffer
	if r.IntN(4) == 0 {
		b.WriteString("\xef\xbb\xbf")
	}
	for range r.IntN(60) {
		switch r.IntN(12) {
		case 0:
			b.WriteString("  ")
		case 1:
			b.WriteString("\r")
		default:
			b.WriteString(draw())
		}
		b.WriteString([]string{"\n", "\n", "\n", "\r\n"}[r.IntN(4)])
	}
	if r.IntN(2) == 0 {
		b.WriteString(draw())
	}
	return b.Bytes()
}

// seen is what a scan gave.
type seen struct {
	samples []Sample
	err     string
}

// scanBy scans text, or lines with a number in front, in pieces of some bytes.
func scanBy(ctx context.Context, f File, piece int64, numbers bool) (out seen) {
	l := &lines{f: f}
	err := scanLines(ctx, l.file(ctx), f.Goroutines, piece, func(x line) (int64, bool, error) {
		if bytes.Contains(x.text, []byte("bad")) {
			return 0, false, fmt.Errorf("%q is bad", x.text)
		}
		return int64(len(x.text)), !numbers || len(bytes.TrimSpace(x.text)) > 0, nil
	}, func(n int64, x line) error {
		s, err := l.sample(x)
		if err != nil {
			return err
		}
		s.Label = n
		if n == 17 {
			return fmt.Errorf("sample %s is not wanted", s.Key)
		}
		out.samples = append(out.samples, s)
		return nil
	})
	out.err = fmt.Sprint(err)
	return out
}

// TestPiecesAreWhatTheFileIs: however a file of lines is cut into pieces, what is found is what reading from the front
// finds, in that order, and so is the error; every byte is read once.
func TestPiecesAreWhatTheFileIs(t *testing.T) {
	failed, whole := 0, 0
	for seed := range uint64(1000) {
		r := xrand.New(seed, 1)
		words := []string{"a", "some words", `"quoted, and more"`, strings.Repeat("long ", 1+r.IntN(60)), "ü€"}
		switch r.IntN(6) {
		case 0:
			words = append(words, "bad")
		case 1:
			words = append(words, strings.Repeat("x", 17))
		}
		b := manyLines(r, func() string { return words[r.IntN(len(words))] })
		f := newOnce(b)
		if r.IntN(8) == 0 && len(b) > 0 {
			f.failAt = r.IntN(len(b))
		}
		file := File{ReaderAt: f, Path: "a.txt", Size: int64(len(b))}
		numbers := r.IntN(2) == 0
		want := scanBy(t.Context(), file, 1<<20, numbers)
		f.read = make([]int, len(b))
		file.Goroutines = 2 + r.IntN(4)
		piece := 3 + int64(r.IntN(80))
		got := scanBy(t.Context(), file, piece, numbers)
		if !slices.Equal(got.samples, want.samples) || got.err != want.err {
			t.Fatalf("seed %d: %q in pieces of %d: %d samples, %s\nnot %d, %s", seed, b, piece, len(got.samples), got.err,
				len(want.samples), want.err)
		}
		if want.err != "<nil>" {
			failed++
			continue
		}
		whole++
		for i, n := range f.read {
			if n != 1 {
				t.Fatalf("seed %d: byte %d was read %d times", seed, i, n)
			}
		}
	}
	if failed < 100 || whole < 300 {
		t.Errorf("%d scans failed, %d did not", failed, whole)
	}
}

// TestShapesOfPiecesAreThoseOfTheFile: the fields of JSON lines, and what is wrong with them, too.
func TestShapesOfPiecesAreThoseOfTheFile(t *testing.T) {
	failed, whole := 0, 0
	for seed := range uint64(1000) {
		r := xrand.New(seed, 2)
		values := [][]string{{"1", "2.5", "7"}, {"[]", "[1]", "[1,2]", "[3.5]"}, {"[]", `["a"]`, `["b","c"]`}, {`"t"`, `"u"`},
			{"[[]]", "[]", "[[1]]", "[[1,2],[3,4]]"}, {"true", "false"}, {`{"k":1}`, `{"k":"v"}`}}
		odd := []string{"", "", "", `"t"`, "[1,[2]]", "nul", "[1]"}[r.IntN(7)]
		names := []string{"a", "b", "label"}
		kinds := [][]string{values[r.IntN(7)], values[r.IntN(7)], values[r.IntN(7)]}
		b := manyLines(r, func() string {
			parts := make([]string, 0, 3)
			order := []int{0, 1, 2}
			r.Shuffle(3, func(i, k int) { order[i], order[k] = order[k], order[i] })
			for _, i := range order {
				v := kinds[i][r.IntN(len(kinds[i]))]
				if odd != "" && r.IntN(40) == 0 {
					v = odd
				}
				parts = append(parts, fmt.Sprintf("%q: %s", names[i], v))
			}
			return "{" + strings.Join(parts, ", ") + "}"
		})
		f := newOnce(b)
		file := lineFile{path: "a.jsonl", r: f, size: int64(len(b))}
		want, wantErr := inferJSON(t.Context(), Address{Scheme: "jsonl"}, file, 1, 1<<20)
		got, err := inferJSON(t.Context(), Address{Scheme: "jsonl"}, file, 3, 3+int64(r.IntN(80)))
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || (got == nil) != (want == nil) {
			t.Fatalf("seed %d: %s: %v, not %v", seed, b, err, wantErr)
		}
		switch {
		case err != nil:
			failed++
		case got != nil:
			whole++
			x, y := got.schema(), want.schema()
			if !x.Equal(&y) || !slices.Equal(got.all, want.all) {
				t.Fatalf("seed %d: %s: %v, not %v", seed, b, x, y)
			}
		}
	}
	if failed < 100 || whole < 200 {
		t.Errorf("%d files failed, %d did not", failed, whole)
	}
}

// csvBy scans and infers a table in pieces of some bytes.
func csvBy(ctx context.Context, b []byte, goroutines int, piece int64) (out seen, fields string) {
	f, a := newOnce(b), Address{Scheme: "csv"}
	schema := &record.Schema{Fields: []record.Field{scalarField("label", record.Int64)}}
	file := File{ReaderAt: f, Path: "a.csv", Size: f.Len(), Goroutines: goroutines, Schema: schema}
	_, err := csv{}.scan(ctx, a, file, piece, func(s Sample) error {
		if s.Label == 17 {
			return fmt.Errorf("sample %s is not wanted", s.Key)
		}
		out.samples = append(out.samples, s)
		return nil
	})
	out.err = fmt.Sprint(err)
	s, err := inferCSV(ctx, a, lineFile{path: "a.csv", r: f, size: f.Len(), quoted: true}, goroutines, piece)
	if s != nil {
		x := s.schema()
		fields = fmt.Sprint(x.Fields, s.all)
	}
	return out, fields + fmt.Sprint(err)
}

// TestPiecesOfTables: rows of CSV go on within quotes, and end where reading from the front finds it, however the file
// is cut.
func TestPiecesOfTables(t *testing.T) {
	failed, whole := 0, 0
	for seed := range uint64(2000) {
		r := xrand.New(seed, 5)
		cells := []string{"1", "2.5", "", "true", "text", `"a, b"`, "\"two\nlines\"", `"say ""x"""`, "\"\n\n\"\"\n\"",
			"ü€"}
		if r.IntN(3) == 0 {
			cells = append(cells, []string{`"open`, `a"b`, "\xff", `"x"y`}[r.IntN(4)])
		}
		cell := func() string { return cells[r.IntN(len(cells))] }
		b := []byte("label,\"two\nnames\"\n")
		b = append(b, manyLines(r, func() string {
			label := fmt.Sprint(r.IntN(16))
			switch r.IntN(150) {
			case 0:
				label = "17"
			case 1:
				return label + ",1,2"
			}
			return label + "," + cell()
		})...)
		if r.IntN(4) == 0 {
			b = append([]byte("\xef\xbb\xbf\n\n"), b...)
		}
		b = bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\n  \n"), []byte("\n\n")), []byte("\r\n"), []byte("\n"))
		want, wantFields := csvBy(t.Context(), b, 1, 1<<20)
		piece := 20 + int64(r.IntN(80))
		got, fields := csvBy(t.Context(), b, 2+r.IntN(4), piece)
		if !slices.Equal(got.samples, want.samples) || got.err != want.err || fields != wantFields {
			t.Fatalf("seed %d: %q in pieces of %d: %d samples, %s, %s\nnot %d, %s, %s", seed, b, piece, len(got.samples),
				got.err, fields, len(want.samples), want.err, wantFields)
		}
		if want.err != "<nil>" {
			failed++
		} else {
			whole++
		}
	}
	if failed < 200 || whole < 300 {
		t.Errorf("%d scans failed, %d did not", failed, whole)
	}
}

// TestLargeFilesOfLines: what a scan finds does not depend on how many goroutines it may use.
func TestLargeFilesOfLines(t *testing.T) {
	var jsonl, csv, text strings.Builder
	csv.WriteString("label,text\n")
	for i := range 30000 {
		fmt.Fprintf(&jsonl, `{"label": %d, "text": %q}`+"\n", i%10, strings.Repeat("w", i%200))
		fmt.Fprintf(&csv, "%d,\"two\nlines, \"\"quoted\"\"%s\"\n", i%10, strings.Repeat("w", i%150))
		fmt.Fprintf(&text, "%d %s\n", i, strings.Repeat("w", i%200))
	}
	for scheme, content := range map[string]string{"jsonl": jsonl.String(), "csv": csv.String(), "text": text.String()} {
		format, _ := ByScheme(scheme)
		f := newOnce([]byte(content))
		a := Address{Scheme: scheme, Path: "/x." + scheme}
		open := func(string) (Other, error) { return f, nil }
		schema, err := format.(Records).Schema(t.Context(), a, []string{a.Path}, open)
		if err != nil {
			t.Fatal(err)
		}
		scan := func(goroutines int) []Sample {
			var out []Sample
			f.read = make([]int, len(content))
			file := File{ReaderAt: f, Path: a.Path, Size: f.Len(), Schema: &schema, Goroutines: goroutines}
			if _, err := format.Scan(t.Context(), a, file, func(s Sample) error {
				out = append(out, s)
				return nil
			}); err != nil {
				t.Fatalf("%s: %v", scheme, err)
			}
			for i, n := range f.read { // the header of CSV is read first
				if n != 1 && (scheme != "csv" || n != 2 || i >= headerBuffer) {
					t.Fatalf("%s: byte %d was read %d times", scheme, i, n)
				}
			}
			return out
		}
		want := scan(1)
		if got := scan(8); len(want) != 30000 || !slices.Equal(got, want) {
			t.Errorf("%s: %d samples, and %d with one goroutine", scheme, len(got), len(want))
		}
	}
}

// endless is a file that only a context ends.
type endless struct{ cancel context.CancelFunc }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	if off >= 8<<20 {
		e.cancel()
	}
	for i := range p {
		p[i] = "ab\n"[(off+int64(i))%3]
	}
	return len(p), nil
}

// TestPiecesEndWithTheirContext: no goroutine is left, and the pieces ahead are bounded.
func TestPiecesEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := scanLines(ctx, lineFile{path: "a.txt", r: endless{cancel}, size: 1 << 40}, 4, pieceBytes,
		func(line) (struct{}, bool, error) { return struct{}{}, true, nil },
		func(struct{}, line) error { n++; return nil })
	if !errors.Is(err, context.Canceled) || n > 16<<20/3 {
		t.Errorf("%d lines, %v", n, err)
	}
	enough := errors.New("enough")
	f := lineFile{path: "a.txt", r: endless{func() {}}, size: 1 << 40}
	err = scanLines(t.Context(), f, 4, pieceBytes,
		func(line) (struct{}, bool, error) { return struct{}{}, true, nil },
		func(struct{}, line) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}

// TestTooLongLineOfPieces: a line that no file may have ends the scan, and not the memory.
func TestTooLongLineOfPieces(t *testing.T) {
	r := readerFunc(func(p []byte, _ int64) (int, error) {
		for i := range p {
			p[i] = 'x'
		}
		return len(p), nil
	})
	err := scanLines(t.Context(), lineFile{path: "a.txt", r: r, size: 1 << 40}, 2, pieceBytes,
		func(line) (struct{}, bool, error) { return struct{}{}, true, nil }, func(struct{}, line) error { return nil })
	if want := fmt.Sprintf("line 1, at byte 0: it has more than %d bytes", maxLine); fmt.Sprint(err) != want {
		t.Errorf("%v", err)
	}
}

type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }
