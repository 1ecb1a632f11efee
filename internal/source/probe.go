package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/png"
	"io"
	"sync"

	"github.com/dgraph-io/ristretto/v2"
	"golang.org/x/image/bmp"
	"golang.org/x/image/webp"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/raster"
	"larder/internal/source/packed"
)

// probeLimit is how many bytes of a file Probe reads at most.
const probeLimit = 64 << 10

// Probe is what the header of a stored image says. JPEG orientation tags are not applied.
type Probe struct {
	Format        string // jpeg, png, gif, webp, bmp, tiff, netpbm
	Width, Height int    // pixels
}

// Probe reads the header of an object, by content and not by name, at most 64 KiB of it. Results are cached, lossily:
// any call may read again. Errors are those of Read, and SAMPLE_BAD when the content is no known image. What it reads
// of a store, or of records, ends with ctx.
func (c *Catalog) Probe(ctx context.Context, o ident.ObjectID) (Probe, error) {
	if p, ok := c.probes.get(o); ok {
		return p, nil
	}
	row, ok := c.objects.get(o)
	if !ok {
		return Probe{}, noObject(o)
	}
	overhead := c.rootAt(row.root).overhead()
	snap := c.rootAt(row.root).snap.Load()
	whole := overhead > 0 || snap != nil && snap.opened(row.sample)
	if snap != nil && snap.records() {
		_, err := c.Read(ctx, o, nil)
		return c.probed(o, Probe{Format: "record"}, nil, err)
	}
	if isStored(c.rootAt(row.root).root) && !whole {
		p, bad, err := c.probeStored(ctx, o, row)
		return c.probed(o, p, bad, err)
	}
	var p Probe
	var bad error
	if whole { // its header is made, or not stored as it is
		b, err := c.Read(ctx, o, nil)
		if err != nil {
			return Probe{}, err
		}
		p, bad = probe(&header{left: probeLimit, size: int64(len(b)), read: bytes.NewReader(b).ReadAt})
		return c.probed(o, p, bad, nil)
	}
	err := c.probeFile(o, row, &p, &bad)
	return c.probed(o, p, bad, err)
}

// probed is what a look at an object came to: bad is the content's fault, err the storage's.
func (c *Catalog) probed(o ident.ObjectID, p Probe, bad, err error) (Probe, error) {
	if err != nil {
		return Probe{}, err
	}
	if bad != nil {
		path, _ := c.ObjectPath(o)
		return Probe{}, errs.New(errs.SampleBad, path, "remove or replace the file, or use on_error=\"skip\"",
			"%s is no image larder knows", path).Because(bad)
	}
	c.probes.set(o, p)
	return p, nil
}

// probeFile reads the header of a stored image.
func (c *Catalog) probeFile(o ident.ObjectID, row object, p *Probe, bad *error) error {
	return c.withFile(o, row, func(fd int, want fileState) error {
		r := &header{left: probeLimit, size: row.size, read: func(b []byte, off int64) (int, error) {
			return retry(func() (int, error) { return c.sys.pread(fd, b, row.off+off) })
		}}
		*p, *bad = probe(r)
		if r.err != nil {
			return r.err
		}
		return c.unchanged(fd, want)
	})
}

// header reads parts of a file within a budget. It remembers a failure of the storage, which is not the image's fault.
type header struct {
	left int
	size int64
	read func(b []byte, off int64) (int, error)
	err  error
}

var errProbeLimit = errors.New("its header is longer than 64 KiB")

// ReadAt implements io.ReaderAt: fewer bytes than asked for come with an error.
func (h *header) ReadAt(b []byte, off int64) (int, error) {
	for done := 0; ; {
		switch {
		case done == len(b):
			return done, nil
		case off+int64(done) >= h.size:
			return done, io.EOF
		case h.left == 0:
			return done, errProbeLimit
		}
		at := off + int64(done)
		n, err := h.read(b[done:min(int64(len(b)), int64(done)+min(int64(h.left), h.size-at))], at)
		if err != nil {
			h.err = err
			return done, err
		}
		if n == 0 { // shorter than its size said
			return done, io.ErrUnexpectedEOF
		}
		done += n
		h.left -= n
	}
}

// probe recognises and parses a header.
func probe(h *header) (Probe, error) {
	if h.size == 0 {
		return Probe{}, errors.New("it is empty")
	}
	start := make([]byte, min(4096, h.size))
	n, err := h.ReadAt(start, 0)
	if h.err != nil {
		return Probe{}, err
	}
	start = start[:n]
	type decoder struct {
		format string
		magic  func() bool
		config func(io.Reader) (image.Config, error)
	}
	has := func(at int, s string) bool { return len(start) >= at+len(s) && string(start[at:at+len(s)]) == s }
	for _, d := range []decoder{
		{"jpeg", func() bool { return has(0, "\xff\xd8\xff") }, nil},
		{"png", func() bool { return has(0, "\x89PNG\r\n\x1a\n") }, png.DecodeConfig},
		{"gif", func() bool { return has(0, "GIF87a") || has(0, "GIF89a") }, gif.DecodeConfig},
		{"webp", func() bool { return has(0, "RIFF") && has(8, "WEBP") }, webp.DecodeConfig},
		{"bmp", func() bool { return has(0, "BM") }, bmp.DecodeConfig},
	} {
		if !d.magic() {
			continue
		}
		p := Probe{Format: d.format}
		var err error
		if d.config == nil {
			p.Width, p.Height, err = jpegSize(h, start)
		} else {
			var cfg image.Config
			rest := io.NewSectionReader(h, int64(len(start)), max(0, h.size-int64(len(start))))
			cfg, err = d.config(io.MultiReader(bytes.NewReader(start), rest))
			p.Width, p.Height = cfg.Width, cfg.Height
		}
		switch {
		case err != nil:
			return Probe{}, fmt.Errorf("%s header: %w", d.format, err)
		case p.Width <= 0 || p.Height <= 0:
			return Probe{}, fmt.Errorf("%s header: it has %d x %d pixels", d.format, p.Width, p.Height)
		}
		return p, nil
	}
	switch {
	case raster.IsTIFF(start):
		t, err := raster.TIFFHeader(h)
		if err != nil {
			return Probe{}, fmt.Errorf("tiff header: %w", err)
		}
		w, ht := t.Size()
		return Probe{Format: "tiff", Width: w, Height: ht}, nil
	case raster.IsNetpbm(start):
		p, err := raster.NetpbmHeader(start)
		if err != nil {
			return Probe{}, fmt.Errorf("netpbm header: %w", err)
		}
		return Probe{Format: "netpbm", Width: p.Width, Height: p.Height}, nil
	}
	if err := packed.StandsIn(start); err != nil {
		return Probe{}, err
	}
	return Probe{}, errors.New("it does not begin as JPEG, PNG, GIF, WebP, BMP, TIFF or netpbm (PPM, PGM, PBM)")
}

// jpegSize walks the marker segments of a JPEG to its frame header (ITU T.81, B.2.2), jumping over the rest, so that
// large EXIF and colour profiles cost nothing. start holds the first bytes of the file.
func jpegSize(h *header, start []byte) (width, height int, err error) {
	at := func(off int64, b []byte) error {
		if off+int64(len(b)) <= int64(len(start)) {
			copy(b, start[off:])
			return nil
		}
		if n, err := h.ReadAt(b, off); n < len(b) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		return nil
	}
	var b [9]byte
	for off, fills := int64(2), 0; ; {
		if err := at(off, b[:2]); err != nil {
			return 0, 0, err
		}
		if b[0] != 0xff {
			return 0, 0, fmt.Errorf("no marker at byte %d", off)
		}
		switch m := b[1]; {
		case m == 0xff: // a fill byte
			off++
			if fills++; fills > 64 {
				return 0, 0, fmt.Errorf("no marker at byte %d", off)
			}
		case m == 0x01 || m >= 0xd0 && m <= 0xd7: // without a segment
			off += 2
			if fills++; fills > 64 {
				return 0, 0, fmt.Errorf("no segment at byte %d", off)
			}
		case m == 0xd8, m == 0xd9, m == 0xda: // image data or its end before a frame header
			return 0, 0, fmt.Errorf("no frame header before marker %#x at byte %d", m, off)
		case m >= 0xc0 && m <= 0xcf && m != 0xc4 && m != 0xc8 && m != 0xcc: // SOF: length, precision, height, width
			if err := at(off+2, b[:7]); err != nil {
				return 0, 0, err
			}
			return int(binary.BigEndian.Uint16(b[5:])), int(binary.BigEndian.Uint16(b[3:])), nil
		default:
			if err := at(off+2, b[:2]); err != nil {
				return 0, 0, err
			}
			n := int64(binary.BigEndian.Uint16(b[:]))
			if n < 2 {
				return 0, 0, fmt.Errorf("a segment of %d bytes at byte %d", n, off)
			}
			off += 2 + n
		}
	}
}

// probeCache is a lossy cache of probes. ristretto may drop any Set and evict any entry; nothing depends on it, and an
// entry cannot be out of date, because a file that changes gets another object. It starts with its first use, since
// it owns goroutines and most daemons never probe.
type probeCache struct {
	mu     sync.RWMutex // guards what follows
	cache  *ristretto.Cache[uint64, Probe]
	closed bool
}

// probeEntries bounds the cache: about 100 bytes each.
const probeEntries = 1 << 16

func (p *probeCache) get(o ident.ObjectID) (Probe, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.cache == nil || p.closed {
		return Probe{}, false
	}
	return p.cache.Get(uint64(o))
}

func (p *probeCache) set(o ident.ObjectID, v Probe) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.cache == nil && !p.closed {
		p.mu.RUnlock()
		p.open()
		p.mu.RLock()
	}
	if p.cache != nil && !p.closed {
		p.cache.Set(uint64(o), v, 1) // an offer: false means dropped
	}
}

func (p *probeCache) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cache != nil || p.closed {
		return
	}
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, Probe]{
		NumCounters: 10 * probeEntries, MaxCost: probeEntries, BufferItems: 64, IgnoreInternalCost: true,
		// Dense ids are their own hash; a conflict hash of 0 is right because no two keys can collide.
		KeyToHash: func(key uint64) (uint64, uint64) { return key, 0 },
	})
	if err == nil { // else: no cache, which costs reads only
		p.cache = cache
	}
}

func (p *probeCache) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cache != nil && !p.closed {
		p.cache.Close()
	}
	p.closed = true
}
