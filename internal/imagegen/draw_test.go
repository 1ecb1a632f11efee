package imagegen

import (
	"bytes"
	"context"
	"errors"
	"image/jpeg"
	"os"
	"path/filepath"
	"sort"
	"sync/atomic"
	"testing"

	"larder/internal/errs"
)

// The weight of every file must lie where photographs of that size lie: the figures of the demo depend on it.
func TestDrawWeights(t *testing.T) {
	p := &painter{shrink: 1}
	var lightest, heaviest int
	for id := range 40 {
		data, size, err := p.photo(7, id*97, id%MaxClasses)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) < minFile || len(data) > maxFile {
			t.Errorf("photo %d weighs %d bytes, want %d to %d", id, len(data), minFile, maxFile)
		}
		if lightest == 0 || len(data) < lightest {
			lightest = len(data)
		}
		heaviest = max(heaviest, len(data))
		cfg, err := jpeg.DecodeConfig(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Width != size.X || cfg.Height != size.Y {
			t.Errorf("photo %d is %dx%d, said %v", id, cfg.Width, cfg.Height, size)
		}
		if min(size.X, size.Y) < minSide || max(size.X, size.Y) > maxSide {
			t.Errorf("photo %d is %v, want sides of %d to %d", id, size, minSide, maxSide)
		}
	}
	if heaviest < 2*lightest {
		t.Errorf("weights spread only from %d to %d bytes; photographs vary more", lightest, heaviest)
	}
}

func TestDrawIsAFunctionOfItsSeed(t *testing.T) {
	var first map[string][]byte
	for run, seed := range []uint64{3, 3, 4} {
		d, err := Draw(t.Context(), t.TempDir(), Spec{Seed: seed, Samples: 23}, nil)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{}
		var sum int64
		for i, k := range d.Keys {
			b, err := os.ReadFile(filepath.Join(d.Root, k))
			if err != nil {
				t.Fatal(err)
			}
			files[k] = b
			sum += int64(len(b))
			if got := filepath.Dir(k); got != d.Classes[d.Labels[i]] {
				t.Errorf("%s has label %d = %s", k, d.Labels[i], d.Classes[d.Labels[i]])
			}
		}
		if !sort.StringsAreSorted(d.Keys) {
			t.Error("keys are not in the order a sorted walk finds them")
		}
		if sum != d.Bytes {
			t.Errorf("Bytes is %d, the files weigh %d", d.Bytes, sum)
		}
		if run == 0 {
			first = files
			continue
		}
		same := 0
		for k, b := range files {
			if bytes.Equal(b, first[k]) {
				same++
			}
		}
		if run == 1 && same != len(files) {
			t.Errorf("same seed: only %d of %d files are equal", same, len(files))
		}
		if run == 2 && same != 0 {
			t.Errorf("other seed: %d files are equal", same)
		}
	}
}

func TestDrawStopsWhenTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done atomic.Int64
	_, err := Draw(ctx, t.TempDir(), Spec{Seed: 1, Samples: 5000}, func() {
		if done.Add(1) == 5 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if n := done.Load(); n > 100 {
		t.Errorf("%d files were drawn after the cancellation", n)
	}
}

func TestDrawNamesTheFolderItCannotWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a-file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Draw(t.Context(), file, Spec{Seed: 1, Samples: 10}, nil)
	f := errs.From(err)
	if err == nil || f.Reason != errs.ResourceExceeded || f.Subject != file {
		t.Fatalf("got %v", err)
	}
}

func BenchmarkDraw(b *testing.B) {
	p := &painter{shrink: 1}
	var n int
	for i := 0; b.Loop(); i++ {
		data, _, err := p.photo(1, i, i%MaxClasses)
		if err != nil {
			b.Fatal(err)
		}
		n += len(data)
	}
	b.SetBytes(int64(n / b.N))
}
