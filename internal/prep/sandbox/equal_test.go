package sandbox

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"larder/internal/prep"
	"larder/internal/record"
)

// stored are images of every format, whole, cut short and damaged.
func stored(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"photo.jpg": photo(t, 500, 375, 2), "tall.jpg": photo(t, 90, 700, 5), "empty": {},
		"text": []byte("no image")}
	names, err := filepath.Glob("../testdata/golden/*")
	if err != nil || len(names) < 20 {
		t.Fatalf("%d golden files, %v", len(names), err)
	}
	for i, name := range names {
		if strings.HasSuffix(name, ".want.png") || testing.Short() && i%8 != 0 {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = b
	}
	for _, name := range slices.Collect(maps.Keys(files)) {
		b := files[name]
		for _, part := range []int{3, 2} {
			files[name+" cut"] = b[:len(b)-len(b)/part]
		}
		if len(b) > 80 {
			broken := bytes.Clone(b)
			for i := len(b) / 2; i < len(b)/2+9; i++ {
				broken[i] ^= 0x5a
			}
			files[name+" broken"] = broken
		}
	}
	return files
}

func recipe(t *testing.T, ops ...prep.OpSpec) *prep.Recipe {
	t.Helper()
	r, err := prep.ParseRecipe(ops)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// same fails unless both workers give the same bytes, or the same error.
func same(t *testing.T, what string, in, out func() ([]byte, error)) (good bool) {
	t.Helper()
	a, aerr := in()
	b, berr := out()
	if (aerr == nil) != (berr == nil) {
		t.Errorf("%s: %v in the process, %v outside", what, aerr, berr)
		return false
	}
	if aerr == nil {
		if !bytes.Equal(a, b) {
			t.Errorf("%s: other pixels outside", what)
		}
		return true
	}
	at, known := prep.DamagedAt(aerr)
	bt, bknown := prep.DamagedAt(berr)
	if aerr.Error() != berr.Error() || prep.IsCorrupt(aerr) != prep.IsCorrupt(berr) || at != bt || known != bknown {
		t.Errorf("%s: %q (corrupt %v, at %d %v), outside %q (%v, %d %v)", what, aerr, prep.IsCorrupt(aerr), at, known, berr,
			prep.IsCorrupt(berr), bt, bknown)
	}
	return false
}

// Every image of every format, good and bad, has the same pixels, the same size and the same error as in the process:
// whole, in planes, in place, with the part that a crop reads, and as a field of a record.
func TestEqual(t *testing.T) {
	size := prep.OpSpec{Name: "RandomResizedCrop", Args: map[string]any{"size": 64.0}}
	recipes := map[string]*prep.Recipe{
		"crop": recipe(t, size), "as it is": recipe(t),
		"resize": recipe(t, prep.OpSpec{Name: "Resize", Args: map[string]any{"size": []any{48.0, 40.0}}},
			prep.OpSpec{Name: "RandomHorizontalFlip"}),
	}
	schema := record.Schema{Fields: []record.Field{{Name: "image", Kind: record.Array, DType: record.Uint8,
		Shape: []int64{record.Ragged, record.Ragged, 3}}}}
	for _, l := range []prep.Limits{{}, {RefuseCorrupt: true, MaxPixels: 100_000}} {
		p := newPool(t, 1, l)
		in, out := prep.NewWorker(l), prep.NewWorker(l)
		out.DecodeBy(p)
		good, bad, least := 0, 0, 300
		if testing.Short() {
			least = 30
		}
		for name, enc := range stored(t) {
			for what, r := range recipes {
				each := func(f func(w *prep.Worker) ([]byte, error)) {
					if same(t, name+", "+what, func() ([]byte, error) { return f(in) }, func() ([]byte, error) { return f(out) }) {
						good++
					} else {
						bad++
					}
				}
				alloc := func(n int) ([]byte, error) { return make([]byte, n), nil }
				for _, decode := range []func(*prep.Worker) (prep.Image, error){
					func(w *prep.Worker) (prep.Image, error) { return w.Decode(r, enc, alloc) },
					func(w *prep.Worker) (prep.Image, error) { return w.DecodeCompact(r, enc, alloc) },
				} {
					each(func(w *prep.Worker) ([]byte, error) {
						img, err := decode(w)
						return append(slices.Clip(img.Pix), byte(img.W), byte(img.H), byte(img.Planes)), err
					})
				}
				if r.Output().Ragged {
					continue
				}
				for instance := range uint32(4) {
					each(func(w *prep.Worker) ([]byte, error) {
						dst := make([]byte, r.Output().SampleBytes)
						return dst, w.DecodeInto(r, enc, prep.RandKey{Seed: 7, Instance: instance}, dst)
					})
				}
			}
			blob := fileRecord(t, enc)
			if same(t, name+", record", func() ([]byte, error) {
				return in.Record(&schema, blob, func(n int) ([]byte, error) { return make([]byte, n), nil })
			}, func() ([]byte, error) {
				return out.Record(&schema, blob, func(n int) ([]byte, error) { return make([]byte, n), nil })
			}) {
				good++
			}
		}
		if c := p.Counts(); c.Crashed+c.Ended > 0 || good < least || bad < least {
			t.Errorf("%d equal images, %d equal errors, %+v", good, bad, c)
		}
		t.Logf("%d equal images, %d equal errors", good, bad)
		in.Close()
		out.Close()
	}
}

// fileRecord is a stored record with one field, a file.
func fileRecord(t *testing.T, enc []byte) []byte {
	t.Helper()
	s := record.Schema{Fields: []record.Field{{Name: "image", Kind: record.Bytes}}}
	dims := [][]int64{{int64(len(enc))}}
	n, err := s.Size(dims)
	if err != nil {
		t.Fatal(err)
	}
	blob := make([]byte, n)
	copy(s.Frame(blob, dims)[0], enc)
	return blob
}
