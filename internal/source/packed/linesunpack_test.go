package packed

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"larder/internal/record"
	"larder/internal/spool"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// inFrames compresses a text in frames that end at some places.
func inFrames(t testing.TB, suffix string, text []byte, ends []int) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(true))
	if err != nil {
		t.Fatal(err)
	}
	from := 0
	for _, to := range append(slices.Clone(ends), len(text)) {
		if suffix == ".zst" {
			if from == 0 { // as pzstd and the seekable format have
				out.WriteString("\x53\x2a\x4d\x18\x04\x00\x00\x00skip")
			}
			out.Write(z.EncodeAll(text[from:to], nil))
		} else {
			w := gzip.NewWriter(&out)
			_, err := w.Write(text[from:to])
			if err = errors.Join(err, w.Close()); err != nil {
				t.Fatal(err)
			}
		}
		from = to
	}
	return out.Bytes()
}

// someEnds are places in a text, some of them twice, some just behind the end of a line.
func someEnds(r *xrand.Rand, text []byte, n int) []int {
	var out []int
	for range n {
		at := int(r.Uint64() % uint64(len(text)))
		if k := bytes.IndexByte(text[at:], '\n'); r.Uint64()%4 == 0 && k >= 0 {
			at += k + 1
		}
		out = append(out, at)
		if r.Uint64()%8 == 0 {
			out = append(out, at)
		}
	}
	slices.Sort(out)
	return out
}

// someLines are n lines of a format, some of them empty where that may be, some long.
func someLines(r *xrand.Rand, scheme string, n int) []byte {
	var b bytes.Buffer
	word := func() string {
		raw := make([]byte, r.Uint64()%40)
		for i := range raw {
			raw[i] = byte(r.Uint64())
		}
		s := base64.StdEncoding.EncodeToString(raw)
		if r.Uint64()%50 == 0 {
			s = strings.Repeat(s+"ü", 100)
		}
		return s
	}
	if scheme == "csv" {
		b.WriteString("\xef\xbb\xbfnumber,text\r\n")
	}
	for i := range n {
		switch scheme {
		case "jsonl":
			fmt.Fprintf(&b, "{\"number\": %d, \"text\": %q}\n", i, word())
			if r.Uint64()%9 == 0 {
				b.WriteByte('\n')
			}
		case "csv":
			fmt.Fprintf(&b, "%d,\"a \"\"b\"\"\n%s\n\n,%s\"\r\n", i, word(), word())
		default:
			b.WriteString(word() + "\n")
		}
	}
	if r.Uint64()%2 == 0 {
		b.WriteString(map[string]string{"jsonl": `{"number": -1, "text": "last"}`, "csv": "-1,last", "text": "last"}[scheme])
	}
	return b.Bytes()
}

// cutAt is a format of lines whose runs have so many bytes.
func cutAt(scheme string, u unpacking) Records {
	return map[string]Records{"jsonl": jsonl{unpacking: u}, "csv": csv{unpacking: u}, "text": text{unpacking: u}}[scheme]
}

// madeBlocks is a spool that counts the blocks that are made.
type madeBlocks struct {
	*spool.Memory
	made int
}

func (m *madeBlocks) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	return m.Memory.Block(ctx, key, func(ctx context.Context, w spool.Writer) error {
		m.made++
		return make(ctx, w)
	})
}

// linesOf reads a file: what its samples are, in the order of the file, and the samples. They are read in another one.
func linesOf(f Records, a Address, path string, file []byte, s spool.Spool, r *xrand.Rand) (
	out [][]byte, samples []Sample, rows Rows, err error,
) {
	d := disk{path: file}
	schema, err := f.Schema(context.Background(), a, []string{path}, d.open)
	if err != nil {
		return nil, nil, nil, err
	}
	in := File{ReaderAt: bytes.NewReader(file), Path: path, Size: int64(len(file)), Beside: d.open, Schema: &schema,
		ID: path, Spool: s}
	if _, err = f.Scan(context.Background(), a, in, func(s Sample) error {
		samples = append(samples, s)
		return nil
	}); err != nil {
		return nil, nil, nil, err
	}
	if rows, err = f.Open(context.Background(), a, in); err != nil {
		return nil, samples, nil, err
	}
	out = make([][]byte, len(samples))
	order := make([]int, len(samples))
	for i := range order {
		order[i] = i
	}
	r.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
	for _, i := range order {
		if out[i], err = rows.Record(context.Background(), nil, samples[i]); err != nil {
			return nil, samples, nil, fmt.Errorf("sample %d: %w", i, err)
		}
	}
	return out, samples, rows, nil
}

// runsOf counts the runs that have a line: by the frames, apart from the code that is tested. A line belongs to the run
// of the line end before it.
func runsOf(text []byte, ends []int, run int, starts []int) int {
	var borders []int
	begin := 0
	for _, end := range append(slices.Clone(ends), len(text)) {
		if end-begin >= run {
			borders = append(borders, end)
			begin = end
		}
	}
	seen := map[int]bool{}
	for _, at := range starts {
		before := max(at-1, 0)
		k, _ := slices.BinarySearch(borders, before+1)
		if at == 0 {
			k = 0
		}
		seen[k] = true
	}
	return len(seen)
}

// Compressed lines are what they are in a file that is not compressed, in any order, wherever frames end, and each run
// of frames is unpacked once.
func TestLinesOfFrames(t *testing.T) {
	for seed := range uint64(lane.Times(1, 3)) {
		r := xrand.New(seed)
		for _, scheme := range []string{"jsonl", "csv", "text"} {
			plain := someLines(r, scheme, 97+int(r.Uint64()%300))
			a := Address{Scheme: scheme}
			want, places, _, err := linesOf(cutAt(scheme, unpacking{}), a, "/d/a."+scheme, plain, nil, r)
			if err != nil {
				t.Fatal(err)
			}
			for _, suffix := range []string{".gz", ".zst"} {
				for _, run := range []int{1, 300, 4096, 1 << 30} {
					ends := someEnds(r, plain, int(r.Uint64()%60))
					file := inFrames(t, suffix, plain, ends)
					made := &madeBlocks{Memory: spool.NewMemory(64 << 20)}
					name := fmt.Sprintf("seed %d, %s%s, runs of %d, %d frames", seed, scheme, suffix, run, len(ends)+1)
					got, samples, rows, err := linesOf(cutAt(scheme, unpacking{run: int64(run)}), a, "/d/a."+scheme+suffix,
						file, made, r)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if len(got) != len(want) {
						t.Fatalf("%s: %d samples, not %d", name, len(got), len(want))
					}
					var starts []int
					pieces := map[int64]bool{}
					for i := range got {
						if !bytes.Equal(got[i], want[i]) || samples[i].Key != places[i].Key || samples[i].Size != places[i].Size {
							t.Fatalf("%s: sample %d is %q, not %q", name, i, got[i], want[i])
						}
						if i > 0 && samples[i].Off <= samples[i-1].Off {
							t.Fatalf("%s: sample %d has the place %x behind %x", name, i, samples[i].Off, samples[i-1].Off)
						}
						starts = append(starts, int(places[i].Off))
						pieces[rows.(ByPlace).Piece(samples[i].Off)] = true
					}
					if n := runsOf(plain, ends, run, starts); made.made != n || len(pieces) != n {
						t.Errorf("%s: %d blocks of %d pieces, not %d", name, made.made, len(pieces), n)
					}
				}
			}
		}
	}
}

// An index of before numbers the lines of the whole file: they are still found.
func TestLinesOfAnOlderIndex(t *testing.T) {
	r := xrand.New(5)
	plain := someLines(r, "text", 50)
	file := inFrames(t, ".gz", plain, someEnds(r, plain, 9))
	f := text{unpacking: unpacking{run: 100}}
	want, samples, rows, err := linesOf(f, Address{Scheme: "text"}, "/d/a.txt.gz", file, spool.NewMemory(1<<20), r)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range samples {
		s.Off = int64(i)
		if got, err := rows.Record(t.Context(), nil, s); err != nil || !bytes.Equal(got, want[i]) {
			t.Errorf("line %d is %q, not %q: %v", i, got, want[i], err)
		}
		if p := rows.(ByPlace).Piece(s.Off); p != 0 {
			t.Errorf("line %d is in piece %d", i, p)
		}
	}
}

// Places of lines say their run and number, also at the limits, and too many lines are an error with words.
func TestPlacesOfLines(t *testing.T) {
	r := xrand.New(2)
	for _, size := range []int64{1, 1000, 1 << 20, 1<<33 + 5, 1 << 40} {
		last := int64(-1)
		for _, at := range []int64{0, 1, size / 3, size - 1} {
			n := numberBits(size)
			for _, i := range []int64{0, 1, int64(r.Uint64() % uint64(int64(1)<<n)), 1<<n - 1} {
				for _, inside := range []bool{false, true} {
					if at == 0 && inside {
						continue
					}
					off, err := runOff(size, runStart{at, inside}, i)
					start, k, ok := runOf(size, off)
					if err != nil || off < 0 || !ok || start != (runStart{at, inside}) || k != i {
						t.Fatalf("line %d of the run at %d, %t, of %d: %x is %v, %d: %v", i, at, inside, size, off, start, k, err)
					}
					if at > last && i == 0 {
						if off <= last {
							t.Fatalf("%d bytes: the run at %d comes before", size, at)
						}
						last = off
					}
				}
			}
			if _, err := runOff(size, runStart{at, false}, 1<<n); at > 0 && (err == nil ||
				!strings.Contains(err.Error(), "write smaller frames")) {
				t.Errorf("%d bytes: one line too many: %v", size, err)
			}
		}
	}
	for _, size := range []int64{0, 1 << 61, 1<<63 - 1} { // of no file, and no panic
		_, _ = runOff(size, runStart{at: 1}, 1)
		_, _, _ = runOf(size, -1)
	}
}

// Cut or flipped at 200 places each, a file of frames is an error with words, or every line is what it was.
func TestDamagedFrames(t *testing.T) {
	r := xrand.New(11)
	for _, scheme := range []string{"jsonl", "csv", "text"} {
		plain := someLines(r, scheme, 120)
		for _, suffix := range []string{".gz", ".zst"} {
			file := inFrames(t, suffix, plain, someEnds(r, plain, 12))
			f, a, path := cutAt(scheme, unpacking{run: 700}), Address{Scheme: scheme}, "/d/a."+scheme+suffix
			want, _, _, err := linesOf(f, a, path, file, spool.NewMemory(16<<20), r)
			if err != nil {
				t.Fatal(err)
			}
			failed := 0
			for i := range 400 {
				bad := bytes.Clone(file)
				if i < 200 {
					bad = bad[:i*len(file)/200]
				} else {
					bad[(i-200)*len(bad)/200] ^= 1 << (i % 8)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				got, _, _, err := linesOf(f, a, path, bad, spool.NewMemory(16<<20), r)
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > 256<<20 {
					t.Fatalf("%s, damage %d: %d bytes were used", path, i, used)
				}
				if err != nil {
					failed++
					continue
				}
				if i >= 200 && len(got) != len(want) { // a cut between two frames is a shorter file
					t.Errorf("%s, damage %d: %d samples, not %d", path, i, len(got), len(want))
				}
				for k := range got {
					if i >= 200 && !bytes.Equal(got[k], want[k]) {
						t.Fatalf("%s, damage %d: sample %d is %q, not %q", path, i, k, got[k], want[k])
					}
				}
			}
			if failed < 300 {
				t.Errorf("%s: only %d of 400 were errors", path, failed)
			}
		}
	}
}

// A file is indexed and read in the memory of a run, however much it unpacks to, and far beyond what a file that is not
// bounded by its size may have.
func TestLargeLinesInLittleMemory(t *testing.T) {
	r := xrand.New(4)
	const frame, run = 256 << 10, 512 << 10
	var plain bytes.Buffer
	raw := make([]byte, 3<<10)
	for plain.Len() < 12<<20 {
		for i := range raw {
			raw[i] = byte(r.Uint64())
		}
		plain.WriteString(base64.StdEncoding.EncodeToString(raw) + "\n")
	}
	var ends []int
	for at := frame; at < plain.Len(); at += frame {
		ends = append(ends, at)
	}
	schema := record.Schema{Fields: []record.Field{textField(textName)}}
	for _, suffix := range []string{".gz", ".zst"} {
		file := inFrames(t, suffix, plain.Bytes(), ends)
		counted := &countedReads{r: bytes.NewReader(file)}
		most := &largestBlock{}
		in := File{ReaderAt: counted, Path: "/d/a.txt" + suffix, Size: int64(len(file)), Schema: &schema, ID: "a",
			Spool: most}
		f := text{unpacking: unpacking{run: run, least: 1 << 20}}
		var samples []Sample
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := f.Scan(t.Context(), Address{}, in, func(s Sample) error {
			samples = append(samples, s)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 12<<20 {
			t.Errorf("%s: the index of %d bytes used %d", suffix, plain.Len(), used)
		}
		rows, err := f.Open(t.Context(), Address{}, in)
		if err != nil {
			t.Fatal(err)
		}
		counted.bytes, counted.reads = 0, 0
		runs, lastPiece := 0, int64(-1)
		lines := bytes.Split(bytes.TrimSuffix(plain.Bytes(), []byte{'\n'}), []byte{'\n'})
		if len(samples) != len(lines) {
			t.Fatalf("%d samples of %d lines", len(samples), len(lines))
		}
		for i, s := range samples {
			b, err := rows.Record(t.Context(), nil, s)
			if err != nil || !bytes.HasSuffix(b, lines[i]) {
				t.Fatalf("%s: line %d is %.40q: %v", suffix, i, b, err)
			}
			if p := rows.(ByPlace).Piece(s.Off); p != lastPiece {
				runs, lastPiece = runs+1, p
			}
		}
		if runs != plain.Len()/run || most.made != runs {
			t.Errorf("%s: %d runs, %d were made, of %d bytes", suffix, runs, most.made, plain.Len())
		}
		if limit := int64(run + frame + 2*len(raw)); most.bytes > limit {
			t.Errorf("%s: a block has %d bytes, more than %d", suffix, most.bytes, limit)
		}
		// A run does not say where it ends in the file: a block of zstd for the rest of a line, and what is read at once at
		// the least, are read twice.
		if over := counted.bytes - int64(len(file)); over > int64(runs*(128<<10+2*leastChunk)) || counted.reads > 5*runs {
			t.Errorf("%s: %d runs of %d bytes were %d reads, %d bytes too many", suffix, runs, len(file), counted.reads, over)
		}
	}
}

// countedReads counts the reads of a file and their bytes.
type countedReads struct {
	r     io.ReaderAt
	reads int
	bytes int64
}

func (c *countedReads) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.reads, c.bytes = c.reads+1, c.bytes+int64(n)
	return n, err
}

// largestBlock is a spool of one block.
type largestBlock struct {
	one   *spool.Memory
	key   string
	made  int
	bytes int64
}

func (l *largestBlock) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	if key == l.key {
		return l.one.Block(ctx, key, make)
	}
	l.one, l.key, l.made = spool.NewMemory(8<<20), key, l.made+1
	r, err := l.one.Block(ctx, key, make)
	for i, n := 0, int64(0); err == nil && i < r.Len(); i++ {
		b, rerr := r.Record(nil, i)
		n += int64(len(b)) + 1
		l.bytes, err = max(l.bytes, n), rerr
	}
	return r, err
}

// A file that is made to unpack to endless lines is an error with words, at a bound that its own size gives.
func TestLinesThatNeverEnd(t *testing.T) {
	for _, suffix := range []string{".gz", ".zst"} {
		file := inFrames(t, suffix, bytes.Repeat([]byte{'\n'}, 2<<20), nil)
		f := text{unpacking: unpacking{least: 1 << 18}}
		n := 0
		schema := record.Schema{Fields: []record.Field{textField(textName)}}
		in := File{ReaderAt: bytes.NewReader(file), Path: "/d/a.txt" + suffix, Size: int64(len(file)), Schema: &schema}
		_, err := f.Scan(t.Context(), Address{}, in, func(Sample) error {
			n++
			return nil
		})
		if most := 1<<18 + textTimes*len(file); err == nil || n > most || !strings.Contains(err.Error(), "unpack it") {
			t.Errorf("%s: %d lines of at most %d: %v", suffix, n, most, err)
		}
	}
}

// Wherever in a file of frames its store fails, that is the cause: it makes no sample bad.
func TestAStoreThatFailsIsTheCauseInFrames(t *testing.T) {
	plain := []byte("one\ntwo\nthree\nfour\n")
	for _, suffix := range []string{".gz", ".zst"} {
		file := inFrames(t, suffix, plain, []int{6, 9})
		f := text{unpacking: unpacking{run: 1}}
		want, samples, _, err := linesOf(f, Address{Scheme: "text"}, "/d/a.txt"+suffix, file, spool.NewMemory(1<<20),
			xrand.New(1))
		if err != nil || len(want) != 4 {
			t.Fatal(len(want), err)
		}
		schema := record.Schema{Fields: []record.Field{textField(textName)}}
		for at := range file {
			in := File{ReaderAt: fails{bytes.NewReader(file), int64(at)}, Path: "/d/a.txt" + suffix, Size: int64(len(file)),
				ID: "a", Schema: &schema, Spool: spool.NewMemory(1 << 20)}
			rows, err := f.Open(t.Context(), Address{}, in)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Scan(t.Context(), Address{}, in, func(Sample) error { return nil }); !errors.Is(err, errStore) {
				t.Errorf("%s fails at byte %d: the index says %v", suffix, at, err)
			}
			for i, s := range samples {
				got, err := rows.Record(t.Context(), nil, s)
				if err != nil && !errors.Is(err, errStore) || err == nil && !bytes.Equal(got, want[i]) {
					t.Fatalf("%s fails at byte %d: line %d is %q, %v", suffix, at, i, got, err)
				}
				if last := i == len(samples)-1; last && err == nil {
					t.Fatalf("%s fails at byte %d: the last line is %q", suffix, at, got)
				}
			}
		}
	}
}

// A file whose first frame is cut within its head is damaged: no look ahead makes an empty file of it.
func TestFramesThatAreCutInTheirHeads(t *testing.T) {
	for path, whole := range map[string][]byte{"/d/a.gz": gzipped(t, []byte("one\ntwo\n")),
		"/d/a.zst": zstded(t, []byte("one\ntwo\n"))} { // order-free: each by itself
		for n := 1; n < len(whole); n++ {
			lines := 0
			err := forLines(t.Context(), path, bytes.NewReader(whole[:n]), int64(n), false, func(line) error {
				lines++
				return nil
			})
			if err == nil || lines > 2 || !strings.Contains(err.Error(), "it is cut") {
				t.Errorf("%d of %d bytes of %s are %d lines: %v", n, len(whole), path, lines, err)
			}
		}
	}
}

// A web page is refused by the first piece of a file, too.
func TestPagesInPieces(t *testing.T) {
	page := []byte("<!DOCTYPE html>\n" + strings.Repeat("<p>a line</p>\n", 50))
	for _, goroutines := range []int{1, 4} {
		f := lineFile{path: "/d/a.txt", r: bytes.NewReader(page), size: int64(len(page))}
		lines := 0
		err := scanLines(t.Context(), f, goroutines, 64, func(line) (none struct{}, ok bool, err error) {
			return none, true, nil
		}, func(struct{}, line) error {
			lines++
			return nil
		})
		if !errors.Is(err, errPage) || lines > 0 {
			t.Errorf("by %d: %d lines, %v", goroutines, lines, err)
		}
	}
}
