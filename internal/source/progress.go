package source

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Indexed is how far an index is. Of folders, files and bytes are not known before they were walked: there they are 0.
type Indexed struct {
	Samples   int64 // found
	Files     int64 // packed files that were scanned, with KeptFiles
	AllFiles  int64 // packed files that are to be scanned; 0 = not known yet, or none
	KeptFiles int64 // those that an earlier try has scanned
	Bytes     int64 // of these files: how far the scans are in them, with KeptBytes
	AllBytes  int64
	KeptBytes int64
	Looked    int64 // bytes that were read for the fields of the samples, which some formats need before the scan
}

// Progress counts how far an index is. Safe for concurrent use; nil counts nothing.
type Progress struct {
	samples, files, allFiles, keptFiles, bytes, allBytes, keptBytes, looked atomic.Int64

	// report is called after every change that is worth a look, from any goroutine.
	report func()
	above  *Progress // counts the same
}

// NewProgress returns a Progress at 0. report is called whenever it changed, from any goroutine; nil = it is not.
func NewProgress(report func()) *Progress { return &Progress{report: report} }

// Now is how far the index is.
func (p *Progress) Now() Indexed {
	if p == nil {
		return Indexed{}
	}
	return Indexed{Samples: p.samples.Load(), Files: p.files.Load(), AllFiles: p.allFiles.Load(),
		KeptFiles: p.keptFiles.Load(), Bytes: p.bytes.Load(), AllBytes: p.allBytes.Load(), KeptBytes: p.keptBytes.Load(),
		Looked: p.looked.Load()}
}

// add counts on.
func (p *Progress) add(x Indexed) {
	for ; p != nil; p = p.above {
		p.samples.Add(x.Samples)
		p.allFiles.Add(x.AllFiles)
		p.allBytes.Add(x.AllBytes)
		p.keptFiles.Add(x.KeptFiles)
		p.keptBytes.Add(x.KeptBytes)
		p.files.Add(x.Files)
		p.bytes.Add(x.Bytes)
		p.looked.Add(x.Looked)
		if p.report != nil {
			p.report()
		}
	}
}

type progressKey struct{}

// WithProgress returns a context under which indexing counts in p what it finds. What an index has already is not
// counted.
func WithProgress(ctx context.Context, p *Progress) context.Context {
	return context.WithValue(ctx, progressKey{}, p)
}

// progressOf is what WithProgress was given, or nil.
func progressOf(ctx context.Context) *Progress {
	p, _ := ctx.Value(progressKey{}).(*Progress)
	return p
}

const (
	// stepBytes and stepSamples are what a file counts by itself before Progress hears of it.
	stepBytes   = 1 << 20
	stepSamples = 4096
)

// fileProgress is how far the scan of one file is.
type fileProgress struct {
	io.ReaderAt
	of   *Progress
	size int64
	// sum: every byte is read once, in whatever order; else a scan goes through the file from the front, and leaves parts
	// out.
	sum     bool
	at      atomic.Int64
	told    atomic.Int64 // bytes that Progress has heard of
	samples int64        // that it has not heard of
}

// ReadAt implements io.ReaderAt.
func (f *fileProgress) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(b, off)
	f.passed(off, int64(n))
	return n, err
}

func (f *fileProgress) passed(off, n int64) {
	at := f.at.Load()
	if f.sum {
		at = f.at.Add(n)
	} else if off+n > at { // such a scan reads from one goroutine
		at = off + n
		f.at.Store(at)
	}
	f.tell(min(at, f.size), stepBytes)
}

// tell counts the bytes up to one of the file, where there are at least so many new ones.
func (f *fileProgress) tell(to, least int64) {
	for {
		told := f.told.Load()
		if to-told < least {
			return
		}
		if f.told.CompareAndSwap(told, to) {
			f.of.add(Indexed{Bytes: to - told})
			return
		}
	}
}

// sample counts one sample. It is called from one goroutine.
func (f *fileProgress) sample() {
	if f.samples++; f.samples == stepSamples {
		f.of.add(Indexed{Samples: f.samples})
		f.samples = 0
	}
}

// end counts what is left of the file.
func (f *fileProgress) end() {
	f.tell(f.size, 1)
	f.of.add(Indexed{Samples: f.samples, Files: 1})
	f.samples = 0
}

// Indexing is an index that is under way.
type Indexing struct {
	URI   string
	Since time.Time
	Indexed

	of    *Progress
	asked []uint32 // other users who wait for it
}

// AskedBy reports whether a user waits for the index whom the daemon reads for with rights of its own: he was found to
// have the right to list what it is of.
func (x *Indexing) AskedBy(uid uint32) bool { return slices.Contains(x.asked, uid) }

// indexings are those of a catalogue that are under way. The zero value is empty.
type indexings struct {
	mu sync.Mutex
	of map[*rootState]Indexing
	by map[string][]uint32 // other users who ask for a root, by its uri; once for each call
}

// asks notes that a user asks for a root, until end is called.
func (x *indexings) asks(uri string, uid uint32) (end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil {
		x.by = map[string][]uint32{}
	}
	x.by[uri] = append(x.by[uri], uid)
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		i := slices.Index(x.by[uri], uid)
		if x.by[uri] = slices.Delete(x.by[uri], i, i+1); len(x.by[uri]) == 0 {
			delete(x.by, uri)
		}
	}
}

// begin notes that the index of a root is under way, and returns the context that counts how far it is.
func (x *indexings) begin(ctx context.Context, rs *rootState) (_ context.Context, end func()) {
	p := &Progress{above: progressOf(ctx)}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		x.of = map[*rootState]Indexing{}
	}
	x.of[rs] = Indexing{URI: rs.uri, Since: time.Now(), of: p}
	return WithProgress(ctx, p), func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.of, rs)
	}
}

// Indexing lists the indexes that are under way, the oldest first. It looks at no file.
func (c *Catalog) Indexing() []Indexing {
	c.indexing.mu.Lock()
	defer c.indexing.mu.Unlock()
	out := make([]Indexing, 0, len(c.indexing.of))
	for _, x := range c.indexing.of {
		x.asked = slices.Clone(c.indexing.by[x.URI])
		x.URI, x.Indexed = redactPacked(printable(x.URI)), x.of.Now()
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Indexing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.URI, b.URI))
	})
	return out
}
