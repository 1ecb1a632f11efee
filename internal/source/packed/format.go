package packed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"larder/internal/record"
	"larder/internal/spool"
)

// File is one file of a dataset, open for reading.
type File struct {
	io.ReaderAt
	Path string // absolute, in its place
	Size int64  // bytes
	// Beside opens another file of the dataset, such as one of labels. The caller closes it.
	Beside func(path string) (Other, error)
	// Schema is what a format of records gave for the whole dataset; nil = samples are an image and a label.
	Schema *record.Schema
	// Goroutines is how many a scan may use; 0 = 1.
	Goroutines int
	// ID names the file and its content: place, path, size and version. Spool keeps what is unpacked of files. Both are
	// set for Open.
	ID    string
	Spool spool.Spool
}

// ContextReader is a file whose reads end with their contexts. What is an io.ReaderAt here may be one.
type ContextReader interface {
	io.ReaderAt
	ReadAtContext(ctx context.Context, p []byte, off int64) (int, error)
}

// within is a file whose reads end with ctx, where it can do that.
func within(ctx context.Context, r io.ReaderAt) io.ReaderAt {
	if f, ok := r.(File); ok {
		r = f.ReaderAt
	}
	if c, ok := r.(ContextReader); ok {
		return readsWithin{ctx, c}
	}
	return r
}

type readsWithin struct {
	ctx context.Context //nolint:containedctx // it lives as long as one read of a record
	ContextReader
}

func (r readsWithin) ReadAt(p []byte, off int64) (int, error) { return r.ReadAtContext(r.ctx, p, off) }

// section is n bytes of a file from off on; unlike an io.SectionReader it passes contexts on.
type section struct {
	r      io.ReaderAt
	off, n int64
}

func (s section) ReadAt(p []byte, off int64) (int, error) {
	return io.NewSectionReader(s.r, s.off, s.n).ReadAt(p, off)
}

func (s section) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return io.NewSectionReader(within(ctx, s.r), s.off, s.n).ReadAt(p, off)
}

// Other is a file beside the one that is scanned.
type Other interface {
	io.ReaderAt
	io.Closer
	Len() int64 // bytes
}

// Sample is where one sample lies.
type Sample struct {
	Key   string // unique in its file, UTF-8 or not, without NUL
	Off   int64  // of the stored image in the file
	Size  int64  // of the stored image, bytes
	Label int64  // -1 = none
	Class string // the label as a word, where the format has words; then Label counts for nothing
}

// Found is what a scan saw beside samples.
type Found struct {
	Skipped map[string]int // by kind: members or columns that are not delivered
	Without int            // samples without an image, which are left out
}

// Format says where the samples of packed files lie. Its methods may be called from any goroutine.
type Format interface {
	// Scheme is what its uris begin with.
	Scheme() string
	// Names are the class names that the dataset's files give, in label order; nil = none.
	Names(a Address) ([]string, error)
	// Files are the files that hold samples, absolute, in the order of their samples; beside are others that a scan reads.
	Files(a Address) (files, beside []string, err error)
	// Scan calls emit for each sample of f, in order. An error that is not the context's or emit's says what is wrong
	// with the file, and where.
	Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error)
	// Overhead is how many bytes Image puts before the stored ones.
	Overhead() int
	// Image makes an image file (JPEG, PNG, netpbm, …) of stored bytes, which lie at raw[Overhead:]. It may return raw.
	Image(raw []byte) ([]byte, error)
}

// Prepares is a Format that notes something while it lists the files of a dataset, for the scans of them.
type Prepares interface {
	Format
	// Prepare is Files, and gives the Format that scans them.
	Prepare(a Address) (f Format, files, beside []string, err error)
}

// Prepare lists the files of an address, and gives the Format that scans them.
func Prepare(f Format, a Address) (_ Format, files, beside []string, err error) {
	if p, ok := f.(Prepares); ok {
		return p.Prepare(a)
	}
	files, beside, err = f.Files(a)
	return f, files, beside, err
}

// Address is what a uri names: SCHEME:PATH, or SCHEME:PATH?KEY=VALUE.
type Address struct {
	Scheme string
	Path   string            // absolute; of wds: with braces, or several joined by "::"
	Args   map[string]string // such as split=test
	Place  string            // the store that holds it, such as s3://bucket: Path is a path in it; "" = the file system
	At     Place             // to look at that store; nil = the file system
	Left   *LeftOut          // counts what lists of folders leave out; nil = it is not asked for
}

// String is the canonical uri.
func (a Address) String() string {
	var query []string
	for _, k := range slices.Sorted(maps.Keys(a.Args)) {
		query = append(query, k+"="+a.Args[k])
	}
	if len(query) == 0 {
		return a.Scheme + ":" + a.joined()
	}
	return a.Scheme + ":" + a.joined() + "?" + strings.Join(query, "&")
}

// formats by scheme.
var formats = []Format{
	wds{},
	mds{},
	cifar{classes: 10},
	cifar{classes: 100},
	idx{},
	npy{},
	npz{},
	tokens{},
	jsonl{},
	csv{},
	text{},
	tfrecord{},
	lmdbFiles{},
	hf{},
	parquetFiles{},
	fasta{},
	imageFiles{},
	beton{},
}

// args that formats take, and what checks their values.
var args = map[string]map[string]check{
	"cifar10":  {"split": oneOf("train", "test")},
	"cifar100": {"split": oneOf("train", "test")},
	"idx":      {"split": oneOf("train", "test")},
	"jsonl":    {"fields": names},
	"wds":      {"fields": names},
	"mds":      {"fields": names, "audio": names},
	"npz":      {"fields": names},
	"csv":      {"fields": names, "delimiter": oneOf("comma", "semicolon", "tab", "pipe")},
	"tokens": {"seq_len": number(1, maxSeqLen), "stride": number(1, math.MaxInt32), "doc": docID,
		"dtype":   oneOf("uint16", "uint32", "int32", "int64", "uint8", "uint64", "int16", "int8"),
		"borders": oneOf(bordersRun, bordersStop, bordersDrop, bordersPack), "pad": number(0, math.MaxUint32)},
	"imagefiles": {"path": someName, "label": someName,
		"delimiter": oneOf("comma", "semicolon", "tab", "pipe")},
	"beton":    {"fields": names},
	"hf":       {"split": someName, "fields": names, "raw": names, "audio": names, "nulls": oneOf("default")},
	"fasta":    {"fields": names, "sequence": oneOf("text", "uint8")},
	"parquet":  {"fields": names, "raw": names, "audio": names, "nulls": oneOf("default")},
	"tfrecord": {"fields": names, "text": names, "raw": names, "audio": names},
	"lmdb": {"value": oneOf(lmdbImage, lmdbAudio, lmdbBytes, lmdbText, lmdbMsgpack), "db": someName,
		"fields": names},
}

// Schemes are the schemes of all formats.
func Schemes() []string {
	out := make([]string, len(formats))
	for i, f := range formats {
		out[i] = f.Scheme()
	}
	return out
}

// ByScheme returns the format of a scheme.
func ByScheme(scheme string) (Format, bool) {
	for _, f := range formats {
		if f.Scheme() == scheme {
			return f, true
		}
	}
	return nil, false
}

// Takes reports whether uris of a scheme may have an argument.
func Takes(scheme, arg string) bool { return args[scheme][arg] != nil }

// ParseAddress reads what follows the scheme of a uri. A relative path is resolved against the working directory.
func ParseAddress(scheme, rest string) (Address, error) {
	a := Address{Scheme: scheme}
	path, query, has := strings.Cut(rest, "?")
	if has {
		a.Args = map[string]string{}
		for pair := range strings.SplitSeq(query, "&") {
			k, v, _ := strings.Cut(pair, "=")
			fits, ok := args[scheme][k]
			switch {
			case !ok && len(args[scheme]) == 0:
				return a, fmt.Errorf("%s: takes no ?%s", scheme, k)
			case !ok:
				return a, fmt.Errorf("%s: knows no ?%s=, only ?%s=", scheme, k,
					strings.Join(slices.Sorted(maps.Keys(args[scheme])), "=, ?"))
			}
			if _, twice := a.Args[k]; twice {
				return a, fmt.Errorf("%s: ?%s= is given twice", scheme, k)
			}
			if err := fits(v); err != nil {
				return a, fmt.Errorf("%s is %q, %w", k, v, err)
			}
			a.Args[k] = v
		}
	}
	if path == "" {
		return a, errors.New("it names no path")
	}
	if strings.IndexByte(path, 0) >= 0 {
		return a, errors.New("a path cannot hold a NUL byte")
	}
	parts := strings.Split(path, "::")
	for i, p := range parts {
		store, _, remote := strings.Cut(p, "://")
		switch {
		case p == "":
			return a, errors.New("one of the paths that :: joins is empty")
		case p == "~" || strings.HasPrefix(p, "~/"):
			return a, errors.New("~ is not expanded here; write the full path")
		case remote:
			return a, fmt.Errorf("%s: files are read from folders only, not from %s://", scheme, store)
		}
		p, err := filepath.Abs(p)
		if err != nil {
			return a, fmt.Errorf("find the working directory: %w", err)
		}
		parts[i] = p
	}
	a.Path = strings.Join(parts, "::")
	return a, nil
}

// identity is what formats that store images as files embed.
type identity struct{}

func (identity) Overhead() int                    { return 0 }
func (identity) Image(raw []byte) ([]byte, error) { return raw, nil }
func (identity) Names(Address) ([]string, error)  { return nil, nil }
