package engine_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/testenv"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// specimen is one file of the corpus.
type specimen struct {
	name string // says what was done to it
	data []byte
}

// corpus makes n broken, hostile and odd images, and some that are only unusual, out of the small ones that package
// prep is tested with: all formats, baseline and progressive, grey, CMYK, 1 to 16 bits, with alpha and palettes.
func corpus(t testing.TB, n int, seed uint64) []specimen {
	t.Helper()
	var seeds []specimen
	for _, glob := range []string{"golden/*.jpg", "golden/*.png", "golden/*.gif", "golden/*.webp", "golden/*.bmp",
		"golden/*.tif", "golden/*.tiff", "golden/*.ppm", "golden/*.pgm",
		"region/*.jpg"} {
		paths, err := filepath.Glob("../prep/testdata/" + glob)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, error %v", glob, len(paths), err)
		}
		for _, p := range paths {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(p, ".want.png") {
				seeds = append(seeds, specimen{filepath.Base(p), b})
			}
		}
	}
	out := slices.Clone(seeds)
	out = append(out, hostile(t, seeds)...)
	rnd := xrand.New(seed)
	var cuts []specimen
	for _, s := range seeds {
		for _, at := range borders(s) { // cut at every marker and chunk
			cuts = append(cuts, specimen{fmt.Sprintf("cut%d-%s", at, s.name), s.data[:at]})
		}
	}
	rnd.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
	out = append(out, cuts[:min(len(cuts), n/3)]...)
	for i := 0; len(out) < n; i++ {
		s := seeds[rnd.IntN(len(seeds))]
		b := bytes.Clone(s.data)
		switch i % 6 {
		case 0: // one bit
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
		case 1: // some bytes of its header
			for range 3 {
				b[rnd.IntN(min(len(b), 200))] = byte(rnd.IntN(256))
			}
		case 2: // a page of zeros
			at := rnd.IntN(len(b))
			clear(b[at:min(len(b), at+512)])
		case 3: // a piece again
			at := rnd.IntN(len(b))
			b = slices.Insert(b, at, b[rnd.IntN(at+1):at]...)
		case 4: // the end of another one
			o := seeds[rnd.IntN(len(seeds))].data
			b = append(b[:rnd.IntN(len(b))], o[rnd.IntN(len(o)):]...)
		case 5:
			b = b[:rnd.IntN(len(b))]
		}
		name := s.name
		if i%11 == 0 { // a wrong suffix
			name = strings.TrimSuffix(name, filepath.Ext(name)) + []string{".png", ".jpg", ".gif", ".webp", ".bmp", ".tif",
				".ppm"}[i/11%7]
		}
		out = append(out, specimen{fmt.Sprintf("odd%d-%s", i, name), b})
	}
	return out
}

// borders are where a file may be cut: before and behind what a marker or chunk begins with.
func borders(s specimen) []int {
	var at []int
	for i := 0; i+12 < len(s.data); i++ {
		switch chunk := s.data[i : i+4]; {
		case strings.HasSuffix(s.name, ".jpg") && s.data[i] == 0xff && s.data[i+1] >= 0xc0:
			at = append(at, i, i+2)
		case strings.HasSuffix(s.name, ".png") && slices.Contains([]string{"IHDR", "PLTE", "tRNS", "IDAT", "IEND"},
			string(chunk)):
			at = append(at, i, i+4)
		case strings.HasSuffix(s.name, ".webp") && slices.Contains([]string{"VP8 ", "VP8L", "VP8X", "ALPH"}, string(chunk)):
			at = append(at, i, i+8)
		}
	}
	return at
}

// hostile files cost little to make, and much to decode.
func hostile(t testing.TB, seeds []specimen) []specimen {
	t.Helper()
	named := func(name string) []byte {
		for _, s := range seeds {
			if s.name == name {
				return bytes.Clone(s.data)
			}
		}
		t.Fatal("no " + name)
		return nil
	}
	u16 := func(b []byte, at int, order binary.ByteOrder) {
		order.PutUint16(b[at:], 65500)
		order.PutUint16(b[at+2:], 65500)
	}
	huge := named("baseline420.jpg")
	for i := 2; i < len(huge)-9; i++ {
		if huge[i] == 0xff && huge[i+1] == 0xc0 {
			u16(huge, i+5, binary.BigEndian)
		}
	}
	scans := named("420-progressive.jpg")
	last := bytes.LastIndex(scans, []byte{0xff, 0xda})
	scans = append(append(bytes.Clone(scans[:len(scans)-2]), bytes.Repeat(scans[last:len(scans)-2], 10_000/10)...), 0xff,
		0xd9)
	empty := append(bytes.Clone(named("420-progressive.jpg")[:last]), bytes.Repeat([]byte{0xff, 0xda, 0, 8, 1, 1, 0, 1, 5,
		0x10, 0xff, 0xd9}[:10], 10_000)...)
	frame := named("local.gif")
	u16(frame, 6, binary.LittleEndian)
	bitmap := named("grey8.bmp")
	binary.LittleEndian.PutUint32(bitmap[18:], 65500)
	binary.LittleEndian.PutUint32(bitmap[22:], 65500)
	extended := append([]byte("RIFF\x00\x01\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00"), 0xff, 0xff, 0xff, 0xff,
		0xff, 0xff)
	return []specimen{
		{"bomb65500.jpg", huge}, {"bomb65500.gif", frame}, {"bomb65500.bmp", bitmap},
		{"bomb16M.webp", append(extended, make([]byte, 64)...)},
		{"bomb65500.png", bomb{65500, 65500, 8, 2, 0}.png(t)}, {"bombmax.png", bomb{1<<31 - 1, 1<<31 - 1, 16, 6, 1}.png(t)},
		{"bomb-inside.png", bomb{2000, 2000, 8, 2, 2000 * (1 + 3*2000)}.png(t)}, {"bomb-wide.png", bomb{4_000_000, 1, 8, 0,
			4_000_001}.png(t)},
		{"bomb-deep.png", bomb{1000, 1000, 16, 6, 1000 * (1 + 8*1000)}.png(t)}, {"bomb-overlong.png", bomb{10, 10, 8, 0,
			8 << 20}.png(t)},
		{"bomb-laced.png", bomb{1900, 1900, 8, 0, -1}.png(t)},
		{"scans1000.jpg", scans}, {"scans10000.jpg", empty},
		{"empty.jpg", nil}, {"short.jpg", []byte{0xff, 0xd8, 0xff}}, {"text.jpg", []byte("this is no image")},
		{"zeros.png", make([]byte, 1<<20)},
		{"ones.jpg", bytes.Repeat([]byte{0xff}, 1<<20)}, {"starts.jpg", bytes.Repeat([]byte{0xff, 0xd8}, 1<<19)},
		{"sides0.ppm", []byte("P6 4294967296 4294967296 255 xxxxxxxxxxxx")}, // their product is 0 mod 2^64
		{"sides-1.ppm", []byte("P6 4294967297 4294967295 255 xxxxxxxxxxxx")},
		{"sides4.pgm", []byte("P6 2147418113 8590196740 255 xxxxxxxxxxxx")},
		{"sides10.ppm", []byte("P6 9999999999 9999999999 255 xxxxxxxxxxxx")},
		{"sides31.ppm", []byte("P3 2147483647 2147483647 255 1 2 3")},
		{"fills.jpg", append([]byte{0xff, 0xd8}, bytes.Repeat([]byte{0xff, 0xe0, 0, 2}, 1<<18)...)},
	}
}

// bomb is an image of zeros, which compress a thousand times.
type bomb struct {
	w, h         uint32
	depth, color byte
	data         int // how many zeros; -1 = as many as an interlaced image wants
}

func (x bomb) png(t testing.TB) []byte {
	t.Helper()
	w, h, data := x.w, x.h, x.data
	var b, z bytes.Buffer
	b.WriteString("\x89PNG\r\n\x1a\n")
	chunk := func(name string, p []byte) {
		_ = binary.Write(&b, binary.BigEndian, uint32(len(p)))
		body := append([]byte(name), p...)
		b.Write(body)
		_ = binary.Write(&b, binary.BigEndian, crc32.ChecksumIEEE(body))
	}
	laced := byte(0)
	if data < 0 {
		laced, data = 1, int(2*w*h)
	}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w), h)
	chunk("IHDR", append(head, x.depth, x.color, 0, 0, laced))
	d := zlib.NewWriter(&z)
	zeros := make([]byte, 1<<16)
	for n := data; n > 0; n -= len(zeros) {
		if _, err := d.Write(zeros[:min(n, len(zeros))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	chunk("IDAT", z.Bytes())
	chunk("IEND", nil)
	return b.Bytes()
}

// photographs, spoiled: of each folder of LARDER_TESTDATA the first few are read, never changed.
func photographs(t testing.TB, n int, seed uint64) (out []specimen) {
	t.Helper()
	dir := os.Getenv("LARDER_TESTDATA")
	if dir == "" {
		dir = "../../../shared/data"
	}
	rnd := xrand.New(seed, 2)
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || len(out) >= n || e.IsDir() || !strings.HasSuffix(strings.ToLower(path), ".jpeg") &&
			!strings.HasSuffix(strings.ToLower(path), ".jpg") {
			return nil //nolint:nilerr // what cannot be read is left out
		}
		if b, err := os.ReadFile(path); err == nil && len(b) > 1000 {
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			out = append(out, specimen{fmt.Sprintf("photo%d.jpg", len(out)), b})
		}
		return nil
	})
	if len(out) == 0 {
		t.Log("no photographs: set LARDER_TESTDATA to a folder of JPEG files to have some among the corpus")
	}
	return out
}

// TestCorpus: three jobs of unlike recipes go through broken, hostile and odd images, beside one that goes through
// good ones. What they were given and what is reported bad is everything, every epoch alike, and which files are
// bad does not depend on recipe, tier or crop. The good job loses nothing. LARDER_CORPUS is how many images,
// LARDER_CORPUS_SEED which.
func TestCorpus(t *testing.T) {
	def := 1000
	if testing.Short() { // under the race detector decoders in Go take twenty times as long
		def = 200
	}
	n, seed := testenv.Count(t, "LARDER_CORPUS", def), uint64(testenv.Count(t, "LARDER_CORPUS_SEED", 1))
	files := corpus(t, n, seed)
	files = append(files, photographs(t, 20, seed)...)
	dir := t.TempDir()
	for i, f := range files {
		sub := filepath.Join(dir, fmt.Sprintf("c%d", i%7))
		if err := os.MkdirAll(sub, 0o750); err != nil {
			t.Fatal(err)
		}
		name := strings.Replace(f.name, ".gif", "-gif.jpg", 1) // torchvision takes no .gif for an image
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("%05d-%s", i, name)), f.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = 60
	healthy := folder(t, good)
	w := serve(t, func(c *engine.Config) {
		c.Work.Limits = prep.Limits{MaxPixels: 5_000_000, MaxBytes: 48 << 20, Timeout: -1} // none, so that no clock decides
		c.Memory.Own = 64 * mib
		c.Memory.Tiers.Sizes[ident.Encoded] = 4 * mib
	})
	jobs := []*larderv1.JobSpec{
		spec("in place", dir, 16, recipe(crops...), func(s *larderv1.JobSpec) { s.OnError = "skip" }),
		spec("as they are", dir, 7, func(s *larderv1.JobSpec) { s.OnError = "skip" }),
		spec("another prefix", dir, 32, recipe(append([]*larderv1.Op{op("Resize", map[string]any{"size": []any{20.0, 24.0}})},
			crops...)...),
			func(s *larderv1.JobSpec) { s.OnError = "substitute" }),
	}
	var wrong [3]map[uint64]string
	errs := make(chan error, len(jobs)+1)
	for i, s := range jobs {
		tr := w.train(s, 0)
		go func() {
			errs <- func() error {
				for e := range uint32(2) {
					got, err := tr.epoch(e)
					if err != nil {
						return fmt.Errorf("%s: %w", s.GetName(), err)
					}
					failed := map[uint64]string{}
					for _, q := range got.bad {
						if q.GetReason() == "" || q.GetPath() == "" {
							return fmt.Errorf("%s: a report without reason or file: %v", s.GetName(), q)
						}
						failed[q.GetId()] = filepath.Base(q.GetPath()) + ": " + q.GetReason()
					}
					distinct := slices.Compact(slices.Sorted(slices.Values(got.ids)))
					a := got.end.GetAccount()
					if len(distinct) != len(got.ids) || len(failed) != len(got.bad) || len(got.ids)+len(got.bad) != len(files) ||
						a.GetDelivered() != uint64(len(got.ids)) || a.GetQuarantined() != uint64(len(got.bad)) || a.GetDropped() != 0 ||
						a.GetState() != "complete" {
						return fmt.Errorf("%s, epoch %d: %d given, %d of them distinct, %d bad, of %d; the daemon says %v",
							s.GetName(), e, len(got.ids), len(distinct), len(failed), len(files), a)
					}
					for _, id := range got.ids {
						if failed[uint64(id)] != "" {
							return fmt.Errorf("%s, epoch %d: %s was given, and is bad", s.GetName(), e, failed[uint64(id)])
						}
					}
					for id, why := range failed {
						if e > 0 && wrong[i][id] == "" {
							return fmt.Errorf("%s: good in the first epoch, and bad in the next: %s", s.GetName(), why)
						}
					}
					if e > 0 && len(failed) != len(wrong[i]) {
						return fmt.Errorf("%s: %d are bad in the first epoch, %d in the next", s.GetName(), len(wrong[i]), len(failed))
					}
					wrong[i] = failed
				}
				return nil
			}()
		}()
	}
	tr := w.train(spec("healthy", healthy, 4, recipe(crops...)), 0)
	go func() {
		errs <- func() error {
			for e := range uint32(10) {
				got, err := tr.epoch(e)
				if err != nil {
					return fmt.Errorf("healthy: %w", err)
				}
				if len(slices.Compact(slices.Sorted(slices.Values(got.ids)))) != good || len(got.ids) != good || len(got.bad) != 0 {
					return fmt.Errorf("healthy, epoch %d: %d given, %d bad", e, len(got.ids), len(got.bad))
				}
			}
			return nil
		}()
	}()
	for range len(jobs) + 1 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	tr.detach()
	if t.Failed() {
		return
	}
	// thin images are refused by recipes of another shape than their own, which is no matter of the file
	for i := range wrong {
		for id, why := range wrong[1] {
			if wrong[i][id] == "" {
				t.Errorf("bad for a job, and good for job %q: %s", jobs[i].GetName(), why)
			}
		}
	}
	reasons, words := map[string]int{}, []string{"allowed", "scans", "truncated", "ends", "no JPEG"}
	for _, why := range wrong[1] {
		for _, word := range words {
			if strings.Contains(why, word) {
				reasons[word]++
			}
		}
	}
	for _, word := range words {
		if reasons[word] == 0 {
			t.Errorf("no file was refused because of %q: %v", word, reasons)
		}
	}
	t.Logf("nightly: %d images: %d bad (%d for a recipe), %v", len(files), len(wrong[1]), len(wrong[2]), reasons)
}
