package pack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

// Names in the folder of a pack.
const (
	// ManifestName is the file that says what a finished pack holds.
	ManifestName = "larder-pack.json"

	workName    = ".larder-pack" // a folder, while the pack is being made
	journalName = "journal"
	lockName    = "lock"
	indexName   = "index.json" // of MDS

	manifestVersion = 1
	maxManifest     = 1 << 30
)

// Manifest says what a finished pack holds and where it came from. It has no times and no name of a machine: packing
// the same files again gives the same manifest.
type Manifest struct {
	Version int `json:"larder_pack"`
	options
	Samples int       `json:"samples"`
	Bytes   int64     `json:"bytes"` // of all shards
	Classes []string  `json:"classes,omitempty"`
	Shards  []Shard   `json:"shards"`
	Skipped []Skipped `json:"skipped"` // samples of the source that are not in the pack
}

// Shard is one finished file.
type Shard struct {
	Name    string `json:"name"`
	Samples int    `json:"samples"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`  // of the file
	Content string `json:"content"` // xxhash64 of its labels and images, computed before they were written
	Encoded int    `json:"encoded"` // images that are not the bytes of the source
	PNG     bool   `json:"png"`     // every image is a PNG file
	Next    int    `json:"next"`    // place in the order of the first sample behind it
}

// Skipped is a sample that could not be packed.
type Skipped struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// line is one of the journal: the options, then finished shards, then the end.
type line struct {
	Options *options  `json:"options,omitempty"`
	Shard   *Shard    `json:"shard,omitempty"`
	Skipped []Skipped `json:"skipped,omitempty"` // met since the line before
	Done    bool      `json:"done,omitempty"`    // every sample is in a shard or skipped
}

// target is where a pack is being made. It belongs to one goroutine.
type target interface {
	// state is what is finished there.
	state() *finished
	// begin makes an empty file for a shard, or for the rows of one, which finish or drop ends.
	begin(name string) (file, error)
	// keep takes over a finished shard and the samples that were skipped since the one before. It may return before
	// that is durable.
	keep(ctx context.Context, f file, s Shard, skipped []Skipped) error
	// end says that every sample is in a shard or skipped, when all that is kept is durable.
	end(skipped []Skipped) error
	// finish makes the pack one that readers find, the manifest last.
	finish(ctx context.Context, o options, classes []string) (*Manifest, error)
	// durable is how much of that no kill can undo.
	durable() (shards int, size int64)
	// room refuses to begin what cannot fit: need is the bytes that are still to be written at least.
	room(need int64) error
	close()
}

// finished is what a pack in the making has.
type finished struct {
	where   string // it is written down
	shards  []Shard
	skipped []Skipped
	done    bool // every sample is in a shard or skipped
}

// next is the place in the order of the first sample that is not finished.
func (f *finished) next() int {
	if len(f.shards) == 0 {
		return 0
	}
	return f.shards[len(f.shards)-1].Next
}

// samples and bytes of finished shards.
func (f *finished) totals() (samples int, size int64) {
	for i := range f.shards {
		samples += f.shards[i].Samples
		size += f.shards[i].Bytes
	}
	return samples, size
}

// manifest of a pack that has everything.
func (f *finished) manifest(o options, classes []string) *Manifest {
	m := &Manifest{Version: manifestVersion, options: o, Classes: classes, Shards: f.shards, Skipped: f.skipped}
	if m.Skipped == nil {
		m.Skipped = []Skipped{}
	}
	m.Samples, m.Bytes = f.totals()
	return m
}

func (m *Manifest) encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	return append(b, '\n'), nil
}

// openTarget prepares a place for a run with options o: a new one, or one that an earlier run left behind. It returns
// the manifest instead when the pack is finished. Errors are *errs.Error: ALREADY_EXISTS when the place holds something
// else, or when another run works on it.
func openTarget(ctx context.Context, cfg *Config, o options) (target, *Manifest, error) {
	if cfg.To.remote() {
		return openPrefix(ctx, cfg, o)
	}
	t, m, err := openFolder(cfg.To, o, cfg.disk)
	if t == nil {
		return nil, m, err
	}
	return t, m, err
}

func other(place, what, differs string) error {
	return errs.New(errs.AlreadyExists, place, "name another folder, or remove this one",
		"%s holds %s of something else: %s", place, what, differs)
}

// readManifest returns nil where there is none.
func readManifest(dir string) (*Manifest, error) {
	path := filepath.Join(dir, ManifestName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, noManifest(path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil, noManifest(path, err)
	}
	return decodeManifest(path, b)
}

func noManifest(path string, err error) error {
	return errs.New(errs.AlreadyExists, path, "name another folder, or remove this one",
		"%s is no manifest of a pack", path).Because(err)
}

func decodeManifest(path string, b []byte) (*Manifest, error) {
	m := &Manifest{}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(m); err != nil {
		return nil, noManifest(path, err)
	}
	if m.Version != manifestVersion {
		return nil, noManifest(path, fmt.Errorf("its version is %d, and this larder knows %d", m.Version, manifestVersion))
	}
	for i := range m.Shards {
		if n := m.Shards[i].Name; n == "" || filepath.Base(n) != n || strings.HasPrefix(n, ".") {
			return nil, noManifest(path, fmt.Errorf("it names the shard %q", n))
		}
	}
	return m, nil
}
