package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
)

func TestRead(t *testing.T) {
	root := t.TempDir()
	big := strings.Repeat("0123456789", 2<<20) // 20 MiB: three system calls
	write(t, root, "a/big.jpg", big)
	write(t, root, "a/empty.jpg", "")
	write(t, root, "a/small.jpg", "small")
	c, _ := open(t, "")
	d := add(t, c, "", root)
	buf := make([]byte, 3, 64)
	got, err := c.Read(t.Context(), d.Object(2), buf)
	if err != nil || string(got) != "small" || &got[0] != &buf[0] {
		t.Errorf("%q, %v; same memory: %v", got, err, &got[0] == &buf[0])
	}
	if got, err := c.Read(t.Context(), d.Object(1), nil); err != nil || len(got) != 0 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := c.Read(t.Context(), d.Object(0), buf); err != nil || string(got) != big {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n := testing.AllocsPerRun(100, func() {
		buf, err = c.Read(context.Background(), d.Object(2), buf)
	}); err != nil || n > 4 {
		t.Errorf("%v allocations a read, %v", n, err)
	}
	if p, off := c.ObjectPath(d.Object(2)); p != d.Path(2) || off != 0 || c.ObjectBytes(d.Object(2)) != 5 {
		t.Errorf("%q %d", p, off)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				s := ident.SampleID(1 + i%2)
				if got, err := c.Read(context.Background(), d.Object(s), nil); err != nil ||
					string(got) != []string{"", "small"}[i%2] {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()

	small, err := OpenCatalog(CatalogConfig{MaxObject: 10 << 20})
	must(t, err)
	e := add(t, small, "", root)
	if _, err := small.Read(t.Context(), e.Object(0), nil); !errs.Is(err, errs.ResourceExceeded) ||
		!strings.Contains(err.Error(), "20MiB") || !strings.Contains(err.Error(), "10MiB") {
		t.Errorf("%v", err)
	}
}

// cutRead has a file end at byte 5.
func cutRead(s *system) {
	s.pread = func(fd int, p []byte, off int64) (int, error) {
		if off >= 5 {
			return 0, nil
		}
		return realSystem.pread(fd, p[:min(5, len(p))], off)
	}
}

// TestReadFaults: storage that fails in every way a system call can.
func TestReadFaults(t *testing.T) {
	root := tree(t, "a/1.jpg") // "content of a/1.jpg", 18 bytes
	c, _ := open(t, "")
	d := add(t, c, "", root)
	path, o := d.Path(0), d.Object(0)
	var closed, opened int
	base := realSystem
	base.open = func(p string) (int, error) { opened++; return realSystem.open(p) }
	base.close = func(fd int) error { closed++; return realSystem.close(fd) }
	for _, x := range []struct {
		name   string
		broken func(s *system)
		reason errs.Reason // "" = the read succeeds
		says   string
	}{
		{"EIO on read", func(s *system) { s.pread = func(int, []byte, int64) (int, error) { return -1, unix.EIO } },
			errs.DatasetUnread, "read at byte 0: input/output error"},
		{"EIO on open", func(s *system) { s.open = func(string) (int, error) { return -1, unix.EIO } }, errs.DatasetUnread,
			"check the storage"},
		{"EIO on stat", func(s *system) { s.stat = func(int, *unix.Stat_t) error { return unix.EIO } }, errs.DatasetUnread,
			"input/output error"},
		{"EACCES", func(s *system) { s.open = func(string) (int, error) { return -1, unix.EACCES } }, errs.DatasetUnread,
			"make it readable"},
		{"ENOENT", func(s *system) { s.open = func(string) (int, error) { return -1, unix.ENOENT } }, errs.DatasetUnread,
			"was removed"},
		{"EMFILE", func(s *system) { s.open = func(string) (int, error) { return -1, unix.EMFILE } }, errs.ResourceExceeded,
			"ulimit -n"},
		{"ESTALE", func(s *system) { s.stat = func(int, *unix.Stat_t) error { return unix.ESTALE } }, errs.DatasetUnread,
			"cannot be read"},
		{"cut while reading", cutRead, errs.DatasetUnread, "it had 18 bytes, now 5"},
		{"written while reading", func(s *system) {
			n := 0
			s.stat = func(fd int, st *unix.Stat_t) error {
				err := realSystem.stat(fd, st)
				if n++; n > 1 {
					st.Mtim.Nsec ^= 1
				}
				return err
			}
		}, errs.DatasetUnread, "it was modified at"},
		{"one byte at a time, interrupted", func(s *system) {
			n := 0
			s.pread = func(fd int, p []byte, off int64) (int, error) {
				if n++; n%2 == 1 {
					return -1, unix.EINTR
				}
				return realSystem.pread(fd, p[:1], off)
			}
			m := 0
			s.open = func(p string) (int, error) {
				if m++; m == 1 {
					return -1, unix.EINTR
				}
				opened++
				return realSystem.open(p)
			}
		}, "", ""},
	} {
		c.sys = base
		x.broken(&c.sys)
		got, err := c.Read(t.Context(), o, make([]byte, 0, 100))
		if x.reason == "" {
			if err != nil || string(got) != "content of a/1.jpg" {
				t.Errorf("%s: %q, %v", x.name, got, err)
			}
			continue
		}
		if got != nil {
			t.Errorf("%s: %q", x.name, got)
		}
		saysOf(t, path, err, x.reason, x.says)
	}
	if opened != closed || opened == 0 {
		t.Errorf("%d files opened, %d closed", opened, closed)
	}
	cancelledRead(t, c, base, o)
}

// saysOf checks the error of a read of a file.
func saysOf(t *testing.T, path string, err error, reason errs.Reason, says string) {
	t.Helper()
	if !errs.Is(err, reason) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v; want %s and %q", err, reason, says)
	}
	if fe := errs.From(err); fe.Subject != path || fe.Hint == "" {
		t.Errorf("%+v", fe)
	}
}

// cancelledRead cancels a read in its first system call.
func cancelledRead(t *testing.T, c *Catalog, base system, o ident.ObjectID) {
	t.Helper()
	// A cancelled read ends between two system calls.
	ctx, cancel := context.WithCancel(t.Context())
	c.sys = base
	c.sys.pread = func(fd int, p []byte, off int64) (int, error) {
		cancel()
		return realSystem.pread(fd, p[:1], off)
	}
	if _, err := c.Read(ctx, o, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestStorageLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := newLimiter(1000, 0, nil)
		ctx := t.Context()
		for range 10 {
			must(t, l.wait(ctx, 500))
		}
		// 5,000 bytes at 1,000 a second, less the 100 that a full bucket holds.
		if d := time.Since(start); d != 4900*time.Millisecond {
			t.Errorf("took %v", d)
		}
		time.Sleep(time.Hour) // idle time is not saved up beyond the bucket
		start = time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _ = l.wait(ctx, 250) })
		}
		wg.Wait()
		if d := time.Since(start); d != 900*time.Millisecond {
			t.Errorf("four at once took %v", d)
		}
		// A waiter that gives up returns its bytes.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := l.wait(short, 1_000_000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		start = time.Now()
		must(t, l.wait(ctx, 600))
		if d := time.Since(start); d != 500*time.Millisecond {
			t.Errorf("after a waiter gave up: %v", d)
		}
		must(t, l.wait(ctx, 0))
		must(t, newLimiter(0, 0, nil).wait(ctx, 1<<40))
		if l.waits != 10+4+1+1 { // a full bucket holds 100 bytes, less than any of them took
			t.Errorf("%d reads waited, %v", l.waits, l.waited)
		}
	})
}

func TestStorageIOPS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1000, 10, nil)
		start := time.Now()
		for range 20 { // 10 bytes each: the operations are what is scarce
			must(t, l.wait(t.Context(), 10))
		}
		for range 2 { // now the bytes
			must(t, l.wait(t.Context(), 1000))
		}
		if d := time.Since(start); d != 1900*time.Millisecond+2000*time.Millisecond-100*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

// A change of the limit reaches those who wait already, however long the old one would have let them wait.
func TestStorageLimitChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := OpenCatalog(CatalogConfig{StorageLimit: 1})
		must(t, err)
		l := c.limit
		start := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := l.wait(t.Context(), 1<<40); err != nil {
					t.Error(err)
				}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := l.wait(ctx, 1<<40); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		c.SetStorageLimit(1, 0) // no change: no reader takes again
		time.Sleep(time.Hour)
		cancel() // between two limits: returns its units under the old one
		synctest.Wait()
		c.SetStorageLimit(1<<40, 0)
		wg.Wait()
		if d := time.Since(start); d != time.Hour+4*time.Second {
			t.Errorf("waited %v", d)
		}
		if n, waited := c.Throttled(); n != 5 || waited < 5*time.Hour {
			t.Errorf("%d reads waited %v", n, waited)
		}
		c.SetStorageLimit(0, 0)
		must(t, l.wait(t.Context(), 1<<50))
	})
}

func TestStorageLimitIsUsed(t *testing.T) {
	root := tree(t, "a/1.jpg")
	c, err := OpenCatalog(CatalogConfig{StorageLimit: 1})
	must(t, err)
	d := add(t, c, "", root)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Read(ctx, d.Object(0), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func picture(w, h int) image.Image {
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range m.Pix {
		m.Pix[i] = byte(i * 7)
	}
	return m
}

func encoded(t testing.TB, f func(b *bytes.Buffer) error) string {
	t.Helper()
	var b bytes.Buffer
	must(t, f(&b))
	return b.String()
}

// segment is a JPEG marker segment of n bytes of data.
func segment(marker byte, n int) string {
	return "\xff" + string([]byte{marker}) + string(binary.BigEndian.AppendUint16(nil, uint16(n+2))) +
		strings.Repeat("x", n)
}

func TestProbe(t *testing.T) {
	jpg := encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, picture(33, 21), nil) })
	pngs := encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, picture(20, 40)) })
	profile := jpg[:2] + strings.Repeat(segment(0xe2, 65533), 40) + jpg[2:] // 2.6 MB of colour profile
	webp := "RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x3f\x00\x00\x1f\x00\x00"
	huge := []byte(pngs)
	binary.BigEndian.PutUint32(huge[16:], 65_500)
	binary.BigEndian.PutUint32(huge[20:], 65_500)
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	files := []struct {
		name, content string
		want          Probe
		says          string
	}{
		{"a.jpg", jpg, Probe{"jpeg", 33, 21}, ""},
		{"b.png", jpg, Probe{"jpeg", 33, 21}, ""}, // the name lies
		{"c.png", pngs, Probe{"png", 20, 40}, ""},
		{"d.png", encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, picture(5, 6), nil) }), Probe{"gif", 5, 6},
			""},
		{"e.bmp", encoded(t, func(b *bytes.Buffer) error { return bmp.Encode(b, picture(7, 8)) }), Probe{"bmp", 7, 8}, ""},
		{"f.webp", webp, Probe{"webp", 64, 32}, ""},
		{"g.jpg", profile, Probe{"jpeg", 33, 21}, ""},
		{"h.png", string(huge), Probe{"png", 65_500, 65_500}, ""},
		{"i.jpg", jpg[:2] + "\xff\xff\xff\x01\xff\xd0" + jpg[2:], Probe{"jpeg", 33, 21}, ""}, // fill bytes, bare markers
		{"j.tif", encoded(t, func(b *bytes.Buffer) error { return tiff.Encode(b, picture(9, 6), nil) }), Probe{"tiff", 9, 6},
			""},
		{"k.ppm", "P6 # x\n4 5\n255\n" + strings.Repeat("x", 60), Probe{"netpbm", 4, 5}, ""},
		{"l.tif", "II*\x00\x08\x00\x00\x00", Probe{}, "unexpected EOF"},
		{"m.ppm", "P6 4 x", Probe{}, "where a number is due"},
		{"n.jpg", "", Probe{}, "it is empty"},
		{"o.jpg", "no image", Probe{}, "does not begin as"},
		{"p.jpg", jpg[:30], Probe{}, "unexpected EOF"},
		{"q.jpg", jpg[:2] + segment(0xe1, 30) + "zz", Probe{}, "no marker at byte 36"},
		{"r.jpg", jpg[:2] + "\xff\xda" + jpg[2:], Probe{}, "no frame header"},
		{"s.jpg", jpg[:2] + "\xff\xe1\x00\x01" + jpg[2:], Probe{}, "a segment of 1 bytes"},
		{"t.jpg", jpg[:2] + strings.Repeat("\xff", 200), Probe{}, "no marker"},
		{"u.jpg", "\xff\xd8\xff\xc0\x00\x11\x08\x00\x00\x00\x10" + strings.Repeat("x", 20), Probe{}, "16 x 0 pixels"},
		{"v.png", pngs[:20], Probe{}, "png header"},
		{"w.jpg", jpg[:2] + strings.Repeat(segment(0xe1, 100), 40_000), Probe{}, "longer than 64 KiB"},
		{"x.webp", "RIFF\xff\xff\xff\xffWEBPVP8X" + strings.Repeat("\xff", 50), Probe{}, "webp header"},
	}
	root := t.TempDir()
	for _, f := range files {
		write(t, root, "a/"+f.name, f.content)
	}
	c, _ := open(t, "")
	read := 0
	c.sys.pread = func(fd int, p []byte, off int64) (int, error) {
		n, err := realSystem.pread(fd, p, off)
		read += n
		return n, err
	}
	d := add(t, c, "", root)
	for i, f := range files {
		read = 0
		o := d.Object(ident.SampleID(i))
		p, err := c.Probe(t.Context(), o)
		if read > probeLimit {
			t.Errorf("%s: %d bytes read", f.name, read)
		}
		if f.says == "" {
			if err != nil || p != f.want {
				t.Errorf("%s: %+v, %v; want %+v", f.name, p, err, f.want)
			}
			continue
		}
		if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), f.says) || !strings.Contains(err.Error(), f.name) {
			t.Errorf("%s: %v; want %q", f.name, err, f.says)
		}
	}
	probeAgain(t, c, d, &read, files[0].want)
}

// probeAgain probes the first sample, which was probed, again: before and after the end of the catalogue.
func probeAgain(t *testing.T, c *Catalog, d *Dataset, read *int, want Probe) {
	t.Helper()
	// The cache is lossy, but a probe that it has taken is not read again.
	c.probes.cache.Wait()
	*read = 0
	if p, err := c.Probe(t.Context(), d.Object(0)); err != nil || p != want || *read != 0 {
		t.Errorf("%+v, %v, %d bytes read", p, err, *read)
	}
	c.sys.pread = func(int, []byte, int64) (int, error) { return -1, unix.EIO }
	if _, err := c.Probe(t.Context(), d.Object(19)); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("%v", err)
	}
	must(t, c.Close())
	must(t, c.Close())
	c.sys = realSystem
	if p, err := c.Probe(t.Context(), d.Object(0)); err != nil || p != want {
		t.Errorf("after Close: %+v, %v", p, err)
	}
}

// TestProbeReadsInPieces: the answer does not depend on how many bytes a system call returns, and never comes from
// beyond the budget: the frame header of this image ends at byte 9,013 of the file, of which 4,096 are read at first.
func TestProbeReadsInPieces(t *testing.T) {
	content := "\xff\xd8" + segment(0xe1, 9000) + "\xff\xc0\x00\x11\x08\x00\x05\x00\x09" + strings.Repeat("x", 30)
	rapid.Check(t, func(rt *rapid.T) {
		budget := rapid.IntRange(0, 5000).Draw(rt, "budget")
		h := &header{left: budget, size: int64(len(content)), read: func(b []byte, off int64) (int, error) {
			return copy(b[:rapid.IntRange(1, len(b)).Draw(rt, "n")], content[off:]), nil
		}}
		p, err := probe(h)
		if enough := budget >= 4096+2+7; enough != (err == nil) || enough && p != (Probe{"jpeg", 9, 5}) {
			rt.Fatalf("%d bytes allowed: %+v, %v", budget, p, err)
		}
	})
}

func FuzzProbe(f *testing.F) {
	f.Add([]byte(encoded(f, func(b *bytes.Buffer) error { return jpeg.Encode(b, picture(3, 2), nil) })))
	f.Add([]byte(encoded(f, func(b *bytes.Buffer) error { return png.Encode(b, picture(3, 2)) })))
	f.Add([]byte(encoded(f, func(b *bytes.Buffer) error { return gif.Encode(b, picture(3, 2), nil) })))
	f.Add([]byte(encoded(f, func(b *bytes.Buffer) error { return bmp.Encode(b, picture(3, 2)) })))
	f.Add([]byte("RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x3f\x00\x00\x1f\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		h := &header{left: probeLimit, size: int64(len(b)), read: func(p []byte, off int64) (int, error) {
			n := copy(p, b[off:])
			total += n
			return n, nil
		}}
		p, err := probe(h)
		if total > probeLimit || err == nil && (p.Width <= 0 || p.Height <= 0 || p.Format == "") {
			t.Fatalf("%+v, %v, %d bytes read", p, err, total)
		}
		// For JPEG the standard library is the judge, where it accepts.
		if cfg, jerr := jpeg.DecodeConfig(bytes.NewReader(b)); jerr == nil && err == nil && p.Format == "jpeg" &&
			(cfg.Width != p.Width || cfg.Height != p.Height) {
			t.Fatalf("%+v, image/jpeg says %d x %d", p, cfg.Width, cfg.Height)
		}
	})
}

// BenchmarkCatalog measures a tree of LARDER_BENCH_FILES files (default 20,000) in 100 classes.
func BenchmarkCatalog(b *testing.B) {
	n := 20_000
	if s := os.Getenv("LARDER_BENCH_FILES"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			b.Fatal(err)
		}
	}
	root, index := b.TempDir(), b.TempDir()
	for i := range n {
		dir := fmt.Sprintf("%s/n%08d", root, i%100)
		if i < 100 {
			must(b, os.Mkdir(dir, 0o755))
		}
		must(b, os.WriteFile(fmt.Sprintf("%s/n%08d_%d.JPEG", dir, i%100, i), nil, 0o644))
	}
	age(b, root)
	per := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sample")
	}
	uri := "imagefolder:" + root
	b.Run("walk", func(b *testing.B) {
		for b.Loop() {
			c, _ := open(b, "")
			add(b, c, "", root)
		}
		per(b)
	})
	c, _ := open(b, index)
	add(b, c, "", root)
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			c, _ := open(b, index)
			add(b, c, "", root)
		}
		per(b)
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Add(context.Background(), "", uri); err != nil {
				b.Fatal(err)
			}
		}
	})
	d := mustGet(b, c, uri)
	b.Run("read", func(b *testing.B) {
		var buf []byte
		i := 0
		for b.Loop() {
			i = (i + 1) % n
			if _, err := c.Read(context.Background(), d.Object(ident.SampleID(i)), buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lookup", func(b *testing.B) {
		i := 0
		for b.Loop() {
			i = (i + 1) % n
			if s, ok := d.Sample(d.Object(ident.SampleID(i))); !ok || int(s) != i {
				b.Fatal(s)
			}
		}
	})
	snap := d.snap.Load()
	heap := indexBytes(c, snap)
	b.Run("memory", func(b *testing.B) { // of the catalogue and one dataset, and of the file
		for b.Loop() {
		}
		b.ReportMetric(float64(heap)/float64(n), "B/sample")
		if fi, err := os.Stat(indexFile(b, index)); err == nil {
			b.ReportMetric(float64(fi.Size())/float64(n), "fileB/sample")
		}
	})
}
