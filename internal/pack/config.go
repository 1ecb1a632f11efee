package pack

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/store"
	"larder/internal/units"
)

// Formats that are written, by the scheme that names them.
const (
	WDS = "wds"
	MDS = "mds"
)

// Target is where a pack goes.
type Target struct {
	Format string // WDS or MDS
	Dir    string // absolute, or a URI of a store such as s3://bucket/prefix, without a slash at its end
}

// remote reports whether it is in a store.
func (t Target) remote() bool { return store.IsRemote(t.Dir) }

// URI is how larder reads the target.
func (t Target) URI() string { return t.Format + ":" + t.Dir }

// ParseTarget reads wds:DIR or mds:DIR; a relative DIR is resolved against the working directory, and one of a store is
// a URI. Errors are *errs.Error INVALID_ARGUMENT or UNSUPPORTED.
func ParseTarget(text string) (Target, error) {
	const hint = "write --to wds:DIR or --to mds:DIR, or wds:s3://BUCKET/PREFIX"
	format, dir, ok := strings.Cut(text, ":")
	switch {
	case !ok || format != WDS && format != MDS:
		return Target{}, errs.New(errs.Invalid, "to", hint, "larder packs into WebDataset tars and MDS shards, not into %q",
			store.Redact(text))
	case store.IsRemote(dir):
		return parseStore(format, dir)
	case strings.Contains(dir, "://"):
		return Target{}, errs.New(errs.Invalid, "to", hint, "packing into %q: it names no folder", store.Redact(text))
	case dir == "" || dir == "~" || strings.HasPrefix(dir, "~/"):
		return Target{}, errs.New(errs.Invalid, "to", hint, "packing into %q: it names no folder", text)
	}
	abs, err := filepath.Abs(dir)
	switch {
	case err != nil:
		return Target{}, errs.New(errs.Invalid, "to", "write an absolute path", "find the working directory").Because(err)
	case strings.ContainsAny(abs, "{}?\x00"): // no uri could name it
		return Target{}, errs.New(errs.Invalid, "to", "name a folder without { } and ?",
			"packing into %q: no uri could name a pack there", store.Redact(abs))
	case strings.Contains(abs, "::") || strings.HasSuffix(abs, ".tar"):
		return Target{}, errs.New(errs.Invalid, "to", "name the folder that the shards go to",
			"packing into %q: it names files", text)
	}
	return Target{format, abs}, nil
}

func parseStore(format, uri string) (Target, error) {
	l, err := store.Parse(uri)
	if err != nil {
		return Target{}, err
	}
	prefix := strings.TrimSuffix(l.Prefix, "/")
	bad := func(reason errs.Reason, hint, what string) (Target, error) {
		return Target{}, errs.New(reason, "to", hint, "packing into %s: %s", store.Redact(uri), what)
	}
	switch {
	case strings.HasPrefix(l.Scheme, "http"):
		return bad(errs.Unsupported, "pack into s3://, gs:// or az://, or into a folder that the web server serves",
			"larder cannot write to a web server")
	case prefix == "":
		return bad(errs.Invalid, "write "+l.Scheme+"://"+l.Place+"/PREFIX", "it names no place in the bucket")
	case strings.Contains(prefix, "?"): // a query is no part of a prefix, and may be a secret
		prefix, _, _ = strings.Cut(store.Redact(uri), "?")
		return bad(errs.Invalid, "write "+prefix+"; larder finds credentials by itself (docs/stores.md)",
			"its prefix has a ?")
	case slices.Contains(strings.Split(prefix, "/"), "") || strings.ContainsAny(prefix, "{}"):
		return bad(errs.Invalid, "leave them out", "its prefix has an empty part, or braces")
	case strings.Contains(uri, "::") || strings.HasSuffix(prefix, ".tar"):
		return bad(errs.Invalid, "name the prefix that the shards go below", "it names files")
	}
	l.Prefix = prefix
	return Target{format, l.String()}, nil
}

// Limits and defaults of a Config.
const (
	DefaultShardSize = 256 << 20
	DefaultQuality   = 90

	minShardSize = 4 << 10
	maxMDS       = 1<<32 - 1 // its offsets have 32 bits
	maxShards    = 1_000_000
	maxSide      = 65_500 // that a JPEG image can have
)

// Config says what to pack, and how.
type Config struct {
	URI        string
	To         Target
	Subset     string // expression; "" = every sample
	Shuffle    uint64 // seed of the order of the samples; 0 = that of the dataset
	ShardSize  int64  // bytes that a shard has at most, unless it holds one sample; 0 = DefaultShardSize
	MaxSize    int    // pixels of the longer side; larger images are resized; 0 = none are
	Quality    int    // 1 to 100, of JPEG images that are encoded; 0 = none but resized ones, with DefaultQuality
	Properties bool   // also store what the source calls each sample, its class, and its size

	SkipBad bool // leave samples out that cannot be packed, and list them; else the first one ends the run
	Verify  bool // read back what was written
	Workers int  // that read and encode; 0 = one for each core

	SkipEmpty bool          // accept class folders without images
	Stores    *store.Stores // where buckets are read from and written to; nil = folders only
	Report    func(Progress)

	columns columns // of records; nil = samples are an image and a label

	disk  disk          // for tests
	ahead int64         // 0 = aheadBytes
	beat  time.Duration // 0 = beatEvery
	quiet int           // 0 = quietBeats
}

// Progress is how far a run is.
type Progress struct {
	Phase   string `json:"phase"`   // "pack" or "verify"
	Samples int    `json:"samples"` // done: packed, left out or verified, by earlier runs too
	All     int    `json:"all"`     // samples that there are
	Bytes   int64  `json:"bytes"`   // of finished shards
	Shards  int    `json:"shards"`  // finished
}

func (c *Config) check() error {
	if c.ShardSize == 0 {
		c.ShardSize = DefaultShardSize
	}
	if c.Report == nil {
		c.Report = func(Progress) {}
	}
	if c.beat == 0 {
		c.beat = beatEvery
	}
	if c.quiet == 0 {
		c.quiet = quietBeats
	}
	if c.disk.create == nil {
		c.disk.create = create
	}
	if c.disk.sync == nil {
		c.disk.sync = file.Sync
	}
	switch {
	case c.ShardSize < minShardSize:
		return errs.New(errs.Invalid, "shard-size", "256MiB suits most disks", "shards of %s: they have at least %s",
			units.Size(c.ShardSize), units.Size(minShardSize))
	case c.To.Format == MDS && c.ShardSize > maxMDS:
		return errs.New(errs.Invalid, "shard-size", "64MiB is what MosaicML's own writer takes",
			"shards of %s: those of MDS have less than 4GiB", units.Size(c.ShardSize))
	case c.MaxSize < 0 || c.MaxSize > maxSide:
		return errs.New(errs.Invalid, "max-size", "e.g. --max-size 500", "a longer side of %d pixels: it is 1 to %d",
			c.MaxSize, maxSide)
	case c.Quality < 0 || c.Quality > 100:
		return errs.New(errs.Invalid, "quality", "90 is hard to tell from the original", "JPEG quality %d: it is 1 to 100",
			c.Quality)
	case c.Workers < 0 || c.Workers > 4096:
		return errs.New(errs.Invalid, "workers", "leave it out for one per core", "%d workers: it is 1 to 4096", c.Workers)
	}
	return nil
}

// options are what the bytes of a pack follow from. Two runs with equal options make the same files.
type options struct {
	Format      string `json:"format"`
	Source      string `json:"source"`
	Fingerprint string `json:"fingerprint"` // of the source
	Subset      string `json:"subset,omitempty"`
	Shuffle     uint64 `json:"shuffle,omitempty"`
	ShardSize   int64  `json:"shard_size"`
	MaxSize     int    `json:"max_size,omitempty"`
	Quality     int    `json:"quality,omitempty"`
	Encoder     string `json:"encoder,omitempty"` // of JPEG images
	Decoder     string `json:"decoder,omitempty"`
	Properties  bool   `json:"properties,omitempty"`
	Fields      string `json:"fields,omitempty"` // of records: each column, and its form

	columns columns // of Fields
}

func (c *Config) options(uri string, fingerprint uint64) options {
	o := options{Format: c.To.Format, Source: uri, Fingerprint: fmt.Sprintf("%016x", fingerprint), Subset: c.Subset,
		Shuffle: c.Shuffle, ShardSize: c.ShardSize, MaxSize: c.MaxSize, Quality: c.Quality, Properties: c.Properties,
		Fields: c.columns.String(), columns: c.columns}
	if c.encodes() {
		o.Encoder, o.Decoder = prep.EncoderName(), prep.DecoderName()
	}
	return o
}

// uri is how larder reads the pack.
func (c *Config) uri() string {
	if c.columns != nil {
		return c.To.URI() + c.columns.query()
	}
	return c.To.URI()
}

// encodes reports whether JPEG images may be encoded again.
func (c *Config) encodes() bool { return c.MaxSize > 0 || c.Quality > 0 }

// differs names what two packs differ in, "" = nothing.
func (o options) differs(p options) string {
	var parts []string
	add := func(name string, was, is any) {
		if was != is {
			parts = append(parts, fmt.Sprintf("%s was %v and is %v", name, was, is))
		}
	}
	add("the format", o.Format, p.Format)
	add("the source", o.Source, p.Source)
	if o.Source == p.Source && o.Fingerprint != p.Fingerprint {
		parts = append(parts, "files of the source have changed since")
	}
	add("--subset", o.Subset, p.Subset)
	add("--shuffle", o.Shuffle, p.Shuffle)
	add("--shard-size", o.ShardSize, p.ShardSize)
	add("--max-size", o.MaxSize, p.MaxSize)
	add("--quality", o.Quality, p.Quality)
	add("the encoder", o.Encoder, p.Encoder)
	add("the decoder", o.Decoder, p.Decoder)
	add("--properties", o.Properties, p.Properties)
	add("the list of fields", o.Fields, p.Fields)
	return strings.Join(parts, "; ")
}
