package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/image/bmp"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// photos draws a folder of small images in several formats.
func photos(t testing.TB, seed uint64, each int) string {
	t.Helper()
	root := t.TempDir()
	r := xrand.New(seed, 1)
	for c := range 3 {
		dir := filepath.Join(root, fmt.Sprintf("class%d", c))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range each {
			m := image.NewRGBA(image.Rect(0, 0, 1+r.IntN(60), 1+r.IntN(60)))
			for p := range m.Pix {
				m.Pix[p] = byte(p/7 + 40*c + r.IntN(30))
			}
			for p := 3; p < len(m.Pix); p += 4 {
				m.Pix[p] = 255
			}
			var b bytes.Buffer
			var err error
			ext := []string{"jpg", "jpg", "png", "bmp", "ppm"}[i%5]
			switch ext {
			case "jpg":
				err = jpeg.Encode(&b, m, nil)
			case "png":
				err = png.Encode(&b, m)
			case "bmp":
				err = bmp.Encode(&b, m)
			default:
				fmt.Fprintf(&b, "P6 2 1 255\n%s", string([]byte{byte(i), 2, 3, 4, 5, byte(c)}))
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.%s", i, ext)), b.Bytes(), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// seen is one sample of a dataset as a job gets it.
type seen struct {
	label int64
	w, h  int
	pix   string
	raw   string
}

// read gives all samples of a dataset.
func read(t testing.TB, uri string) []seen {
	t.Helper()
	cat, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer cat.Close()
	data, err := cat.Open(t.Context(), uri)
	if err != nil {
		t.Fatal(err)
	}
	recipe, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	out := make([]seen, data.Len())
	for i := range out {
		id := ident.SampleID(i)
		enc, err := cat.Read(t.Context(), data.Object(id), nil)
		if err != nil {
			t.Fatal(err)
		}
		img, err := w.Decode(recipe, enc, func(n int) ([]byte, error) { return make([]byte, n), nil })
		if err != nil {
			t.Fatal(err)
		}
		out[i] = seen{data.Label(id), img.W, img.H, string(img.Pix), string(enc)}
	}
	return out
}

// tree is every file of a folder.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func to(t testing.TB, format string) Target {
	t.Helper()
	return Target{format, filepath.Join(t.TempDir(), "out")}
}

func must(t testing.TB, cfg Config) *Result {
	t.Helper()
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Bad) > 0 {
		t.Fatalf("damaged: %+v", r.Bad)
	}
	return r
}

// TestPacksHoldTheSameSamples: label and pixels of every sample stay, and JPEG and PNG files are copied.
func TestPacksHoldTheSameSamples(t *testing.T) {
	for seed, format := range map[uint64]string{1: WDS, 2: MDS, 3: WDS, 4: MDS} {
		root := photos(t, seed, 11)
		want := read(t, "imagefolder:"+root)
		cfg := Config{URI: "imagefolder:" + root, To: to(t, format), disk: disk{sync: unsynced},
			ShardSize: 20 << 10, Verify: true,
			Properties: seed > 2, Workers: int(seed)}
		r := must(t, cfg)
		got := read(t, r.URI)
		if len(got) != len(want) || r.Samples != len(want) || r.Verified != len(want) || r.Shards < 2 {
			t.Fatalf("%s: %d samples of %d: %+v", format, len(got), len(want), r)
		}
		encoded := 0
		for i := range want {
			w, g := want[i], got[i]
			if w.raw != g.raw {
				encoded++
				if !strings.HasPrefix(g.raw, "\x89PNG") || strings.HasPrefix(w.raw, "\x89PNG") ||
					strings.HasPrefix(w.raw, "\xff\xd8") {
					t.Errorf("%s: sample %d became other bytes", format, i)
				}
			}
			w.raw, g.raw = "", ""
			if w != g {
				t.Errorf("%s: sample %d differs: label %d and %d, %d x %d and %d x %d", format, i, w.label, g.label, w.w, w.h,
					g.w, g.h)
			}
		}
		if encoded != r.Encoded || encoded == 0 {
			t.Errorf("%s: %d images were encoded, reported %d", format, encoded, r.Encoded)
		}
		before := tree(t, cfg.To.Dir)
		if again := must(t, cfg); again.Earlier != len(want) || !reflect.DeepEqual(before, tree(t, cfg.To.Dir)) {
			t.Errorf("%s: packing again was no no-op: %+v", format, again)
		}
	}
}

// TestPacksOfPacks: subsets and shuffles are of the source, and packs are packed again.
func TestPacksOfPacks(t *testing.T) {
	root := photos(t, 5, 9)
	want := read(t, "imagefolder:"+root)
	first := must(t, Config{URI: "imagefolder:" + root, To: to(t, WDS), disk: disk{sync: unsynced},
		Shuffle: 9, Subset: "label < 2"})
	second := must(t, Config{URI: first.URI, To: to(t, MDS), Verify: true})
	a, b := read(t, first.URI), read(t, second.URI)
	if !reflect.DeepEqual(a, b) {
		t.Error("a pack of a pack holds other samples")
	}
	count := map[seen]int{}
	for _, s := range want[:18] {
		s.raw = ""
		count[s]++
	}
	inOrder := true
	for i, s := range a {
		inOrder = inOrder && s.pix == want[i].pix
		s.raw = ""
		count[s]--
	}
	for s, n := range count {
		if n != 0 {
			t.Errorf("a sample of label %d is there %d times too few", s.label, n)
		}
	}
	if inOrder || len(a) != 18 {
		t.Errorf("%d samples, shuffled: %v", len(a), !inOrder)
	}
}

// TestResizedImages: the longer side is bounded, small JPEG files stay, and --quality makes JPEG files of all.
func TestResizedImages(t *testing.T) {
	root := photos(t, 6, 11)
	want := read(t, "imagefolder:"+root)
	for _, quality := range []int{0, 80} {
		r := must(t, Config{URI: "imagefolder:" + root, To: to(t, WDS), disk: disk{sync: unsynced},
			MaxSize: 30, Quality: quality, Verify: true})
		for i, s := range read(t, r.URI) {
			long := max(want[i].w, want[i].h)
			isJPEG, wasJPEG := strings.HasPrefix(s.raw, "\xff\xd8"), strings.HasPrefix(want[i].raw, "\xff\xd8")
			switch {
			case max(s.w, s.h) != min(long, 30):
				t.Errorf("sample %d of %d x %d became %d x %d", i, want[i].w, want[i].h, s.w, s.h)
			case isJPEG != (wasJPEG || quality > 0):
				t.Errorf("sample %d: JPEG %v, was %v, quality %d", i, isJPEG, wasJPEG, quality)
			case long <= 30 && wasJPEG && s.raw != want[i].raw:
				t.Errorf("sample %d is small and was encoded again", i)
			}
		}
		if r.Encoder != prep.EncoderName() {
			t.Errorf("encoder %q", r.Encoder)
		}
	}
	r := must(t, Config{URI: "imagefolder:" + root, To: to(t, WDS), disk: disk{sync: unsynced}, Quality: 50})
	if r.Encoded != len(want) {
		t.Errorf("--quality alone encoded %d of %d images", r.Encoded, len(want))
	}
}

// unsynced is for tests that do not crash the machine: what is durable is slow.
func unsynced(file) error { return nil }

// failing lets so many bytes be written.
type failing struct {
	file
	left *int
	with error
}

func (f failing) Write(b []byte) (int, error) {
	if *f.left -= len(b); *f.left < 0 {
		n, _ := f.file.Write(b[:len(b)*2/3])
		return n, f.with
	}
	return f.file.Write(b)
}

func failAfter(n int, with error) creator {
	return func(path string) (file, error) {
		f, err := create(path)
		return failing{f, &n, with}, err
	}
}

// TestInterruptedRunsGiveTheSameBytes: a run that ends wherever it may is continued, to the very bytes.
func TestInterruptedRunsGiveTheSameBytes(t *testing.T) {
	root, every := photos(t, 7, 25), lane.Times(2, 1)
	if testing.Short() {
		every = 3
	}
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: "imagefolder:" + root, To: to(t, format), disk: disk{sync: unsynced},
			ShardSize: 16 << 10, MaxSize: 40, Shuffle: 3}
		must(t, cfg)
		want := tree(t, cfg.To.Dir)
		for n := 0; n < 8; n += every {
			cfg.To = to(t, format)
			ended, room := 0, 5_000*n
			for {
				cfg.disk.create, cfg.Workers = failAfter(room, syscall.ENOSPC), 1+ended%4
				_, err := Run(t.Context(), cfg)
				if err == nil {
					break
				}
				if !errs.Is(err, errs.ResourceExceeded) || !errors.Is(err, syscall.ENOSPC) || ended > 200 {
					t.Fatalf("%s: %v", format, err)
				}
				damageWork(t, cfg.To.Dir, uint64(n+ended))
				ended++
				room += 7_000
			}
			if got := tree(t, cfg.To.Dir); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: after %d interruptions the pack differs", format, ended)
			}
		}
	}
}

// stopping ends the run at the n-th write, which succeeds.
type stopping struct {
	file
	n    *int
	stop func()
}

func (f stopping) Write(b []byte) (int, error) {
	if *f.n--; *f.n == 0 {
		f.stop()
	}
	return f.file.Write(b)
}

// TestACancelledRunIsNotTheEnd: what is read ahead is one sample, so that a cancelled run often has none left to write.
// It must not take that for the end of the dataset.
func TestACancelledRunIsNotTheEnd(t *testing.T) {
	cfg := Config{URI: "imagefolder:" + photos(t, 7, 25), To: to(t, WDS), disk: disk{sync: unsynced}, ShardSize: 16 << 10,
		MaxSize: 40, Shuffle: 3, Workers: 1, ahead: 1}
	must(t, cfg)
	want := tree(t, cfg.To.Dir)
	for n := 1; n < 12; n++ {
		cfg.To = to(t, WDS)
		ctx, stop := context.WithCancel(t.Context())
		left := n
		cfg.disk.create = func(path string) (file, error) {
			f, err := create(path)
			return stopping{f, &left, stop}, err
		}
		_, err := Run(ctx, cfg)
		if left <= 0 && !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped at write %d: %v", n, err)
		}
		cfg.disk.create = nil
		must(t, cfg)
		if got := tree(t, cfg.To.Dir); !reflect.DeepEqual(got, want) {
			t.Fatalf("stopped at write %d: the pack differs", n)
		}
		stop()
	}
}

// damageWork does to an unfinished pack what a crash may do: the journal is cut, a finished shard is lost.
func damageWork(t *testing.T, dir string, seed uint64) {
	t.Helper()
	r := xrand.New(seed, 2)
	journal := filepath.Join(dir, workName, journalName)
	st, err := os.Stat(journal)
	if err != nil {
		t.Fatal(err)
	}
	if r.IntN(2) == 0 {
		if err := os.Truncate(journal, max(0, st.Size()-int64(r.IntN(400)))); err != nil {
			t.Fatal(err)
		}
	}
	if shards, _ := filepath.Glob(filepath.Join(dir, workName, "shard*[!t]")); r.IntN(4) == 0 && len(shards) > 0 {
		if err := os.Truncate(shards[r.IntN(len(shards))], 10); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusedTargets(t *testing.T) {
	root := photos(t, 8, 3)
	uri := "imagefolder:" + root
	done := Config{URI: uri, To: to(t, WDS)}
	must(t, done)
	foreign := to(t, WDS)
	if err := os.MkdirAll(foreign.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(foreign.Dir, "thesis.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	unfinished := Config{URI: uri, To: to(t, WDS), ShardSize: minShardSize,
		disk: disk{failAfter(9_000, syscall.EIO), unsynced}}
	if _, err := Run(t.Context(), unfinished); !errors.Is(err, syscall.EIO) {
		t.Fatalf("a failing disk gave %v", err)
	}
	unfinished.disk.create = nil
	busy, _, err := openFolder(to(t, WDS), options{}, disk{create, unsynced})
	if err != nil {
		t.Fatal(err)
	}
	defer busy.close()
	with := func(c Config, change func(*Config)) Config { change(&c); return c }
	for name, c := range map[string]struct {
		cfg    Config
		reason errs.Reason
		words  string
	}{
		"foreign":    {Config{URI: uri, To: foreign}, errs.AlreadyExists, `holds "thesis.txt" and is no pack`},
		"format":     {with(done, func(c *Config) { c.To.Format = MDS }), errs.AlreadyExists, "was wds and is mds"},
		"size":       {with(done, func(c *Config) { c.MaxSize = 7 }), errs.AlreadyExists, "--max-size was 0 and is 7"},
		"unfinished": {with(unfinished, func(c *Config) { c.Shuffle = 7 }), errs.AlreadyExists, "an unfinished pack"},
		"busy":       {Config{URI: uri, To: busy.to}, errs.AlreadyExists, "another run is packing"},
		"inside":     {Config{URI: uri, To: Target{WDS, root + "/class0"}}, errs.Invalid, "it lies in the source"},
		"made":       {Config{URI: "python:x@1", To: to(t, WDS)}, errs.Unsupported, "made by workers"},
		"none":       {Config{URI: "imagefolder:/none", To: to(t, WDS)}, errs.DatasetUnread, "/none"},
		"shard":      {with(done, func(c *Config) { c.ShardSize = 1 }), errs.Invalid, "at least 4KiB"},
		"mds":        {Config{URI: uri, To: to(t, MDS), ShardSize: 5 << 30}, errs.Invalid, "less than 4GiB"},
		"side":       {with(done, func(c *Config) { c.MaxSize = -1 }), errs.Invalid, "longer side of -1"},
		"quality":    {with(done, func(c *Config) { c.Quality = 101 }), errs.Invalid, "JPEG quality 101"},
		"workers":    {with(done, func(c *Config) { c.Workers = -1 }), errs.Invalid, "-1 workers"},
		"subset":     {with(done, func(c *Config) { c.Subset = "label <" }), errs.SubsetSyntax, "subset"},
	} {
		before := tree(t, filepath.Dir(c.cfg.To.Dir))
		_, err := Run(t.Context(), c.cfg)
		if !errs.Is(err, c.reason) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: got %v, want %s %q", name, err, c.reason, c.words)
		}
		if !reflect.DeepEqual(before, tree(t, filepath.Dir(c.cfg.To.Dir))) {
			t.Errorf("%s: files were changed", name)
		}
	}
	now := filepath.Join(root, "class0", "000.jpg")
	if err := os.WriteFile(now, []byte(read(t, uri)[1].raw), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), done); err == nil || !strings.Contains(err.Error(), "files of the source have changed") {
		t.Errorf("a changed source gave %v", err)
	}
}

// TestNoRoom: what cannot fit is refused before it begins, with both sizes.
func TestNoRoom(t *testing.T) {
	busy, _, err := openFolder(to(t, WDS), options{}, disk{create, unsynced})
	if err != nil {
		t.Fatal(err)
	}
	defer busy.close()
	if err := busy.room(1 << 20); err != nil {
		t.Errorf("1 MiB: %v", err)
	}
	if err := busy.room(1 << 60); !errs.Is(err, errs.ResourceExceeded) || !strings.Contains(err.Error(), "1048576TiB") {
		t.Errorf("an exbibyte: %v", err)
	}
}

func TestTargets(t *testing.T) {
	for text, words := range map[string]string{
		"": "not into", "tar:/x": "not into", "wds:": "names no folder", "wds:s3://bucket": "no place in the bucket",
		"mds:https://h/x": "cannot write to a web server", "wds:s3://b/x": "no name of a bucket",
		"wds:ftp://h/x": "is not built", "mds:s3://bucket/a//b": "an empty part", "wds:s3://bucket/x.tar": "it names files",
		"wds:s3://user:secret@bucket/x": "holds a user name",
		"wds:/x/a-{0..3}.tar":           "no uri could name", "wds:/a.tar": "it names files",
		"mds:/x/a?b": "no uri could name", "wds:s3://bucket/a?b": "has a ?",
		"wds:az://bucket/a?sv=1&sig=abcdef":        "holds a signature",
		"wds:s3://bucket/a?X-Amz-Signature=abcdef": "holds a signature",
		"wds:/a::/b": "it names files", "wds:~/x": "names no folder",
	} {
		if _, err := ParseTarget(text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: got %v, want %q", text, err, words)
		} else if strings.Contains(err.Error(), "abcdef") {
			t.Errorf("%v shows a secret", err)
		}
	}
	if got, err := ParseTarget("mds:gs://bucket/a/b/"); err != nil || got.URI() != "mds:gs://bucket/a/b" {
		t.Errorf("got %v, %v", got, err)
	}
	got, err := ParseTarget("mds:x/../y")
	if wd, _ := os.Getwd(); err != nil || got != (Target{MDS, filepath.Join(wd, "y")}) {
		t.Errorf("got %v, %v", got, err)
	}
	odd := filepath.Join(t.TempDir(), "a?b")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(odd)
	if got, err := ParseTarget("wds:out"); err == nil {
		t.Errorf("got %v", got)
	}
}

// TestVerifyFindsDamage: a flipped byte anywhere in a shard, a lost shard and a foreign one are found, and named.
func TestVerifyFindsDamage(t *testing.T) {
	root := photos(t, 10, 6)
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: "imagefolder:" + root, To: to(t, format), disk: disk{sync: unsynced},
			ShardSize: 16 << 10, Verify: true}
		must(t, cfg)
		m, err := readManifest(cfg.To.Dir)
		if err != nil {
			t.Fatal(err)
		}
		r := xrand.New(1, 3)
		for range lane.Times(60, 200) {
			s := m.Shards[r.IntN(len(m.Shards))]
			path := filepath.Join(cfg.To.Dir, s.Name)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := r.IntN(len(b))
			flipped := bytes.Clone(b)
			flipped[at] ^= 1 << r.IntN(8)
			for what, damaged := range map[string][]byte{"flipped": flipped, "cut": b[:at]} {
				put(t, path, damaged)
				got, err := Run(t.Context(), cfg)
				if err != nil || len(got.Bad) != 1 || got.Bad[0].Shard != s.Name {
					t.Fatalf("%s: %s %s at byte %d: %+v, %v", format, s.Name, what, at, got, err)
				}
			}
			put(t, path, b)
		}
		must(t, cfg)
		if format == WDS {
			put(t, filepath.Join(cfg.To.Dir, "zz.tar"), []byte(tree(t, cfg.To.Dir)[m.Shards[0].Name]))
		} else if err := os.Remove(filepath.Join(cfg.To.Dir, indexName)); err != nil {
			t.Fatal(err)
		}
		if got, err := Run(t.Context(), cfg); err != nil || len(got.Bad) != 1 || got.Bad[0].Shard != cfg.To.URI() {
			t.Errorf("%s: a foreign shard, or no index: %+v, %v", format, got, err)
		}
	}
}

func put(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzJournal: whatever a journal says, a run gives the bytes of an undisturbed one, or refuses with words.
func FuzzJournal(f *testing.F) {
	root := photos(f, 11, 4)
	cfg := Config{URI: "imagefolder:" + root, To: to(f, WDS), disk: disk{sync: unsynced}, ShardSize: minShardSize}
	must(f, cfg)
	want := tree(f, cfg.To.Dir)
	cfg.To, cfg.disk.create = to(f, WDS), failAfter(30_000, syscall.EIO)
	if _, err := Run(f.Context(), cfg); !errors.Is(err, syscall.EIO) {
		f.Fatal(err)
	}
	cfg.disk.create = nil
	begun := tree(f, cfg.To.Dir)
	real := begun[workName+"/"+journalName]
	f.Add([]byte(real))
	f.Add([]byte(strings.ReplaceAll(real, `"next":`, `"next":-`)))
	f.Add([]byte(strings.ReplaceAll(real, `"next":`, `"next":9`)))
	f.Add([]byte(strings.ReplaceAll(real, `"name":"`, `"name":"../../`)))
	f.Add([]byte(real + "{\"done\":true}\n"))
	f.Fuzz(func(t *testing.T, journal []byte) {
		mine := cfg
		mine.To = to(t, WDS)
		if err := os.MkdirAll(filepath.Join(mine.To.Dir, workName), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, b := range begun {
			put(t, filepath.Join(mine.To.Dir, name), []byte(b))
		}
		put(t, filepath.Join(mine.To.Dir, workName, journalName), journal)
		_, err := Run(t.Context(), mine)
		if err != nil {
			if errs.Is(err, errs.Internal) || errs.From(err).Hint == "" {
				t.Fatalf("no words for %v", err)
			}
			return
		}
		for name := range tree(t, mine.To.Dir) {
			if _, ok := want[name]; !ok {
				t.Fatalf("%s appeared", name)
			}
		}
	})
}
