package pack

import (
	"bufio"
	"bytes"
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
	"larder/internal/units"
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

// target is the folder of a pack that is being made. It belongs to one goroutine.
type target struct {
	to      Target
	work    string
	lock    *os.File
	journal *os.File
	disk    disk

	shards  []Shard
	skipped []Skipped
	done    bool // the journal has its last line
}

// openTarget prepares the folder for a run with options o: a new one, or one that an earlier run left behind. It
// returns the manifest instead when the pack is finished. Errors are *errs.Error: ALREADY_EXISTS when the folder holds
// something else, or when another run works on it.
func openTarget(to Target, o options, d disk) (*target, *Manifest, error) {
	t := &target{to: to, work: filepath.Join(to.Dir, workName), disk: d}
	m, err := readManifest(to.Dir)
	if err != nil {
		return nil, nil, err
	}
	if m != nil {
		if what := m.differs(o); what != "" {
			return nil, nil, t.other("a finished pack", what)
		}
		return nil, m, os.RemoveAll(t.work) // what a run left that was killed at its very end
	}
	if err := t.mustBeOurs(); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(t.work, 0o777); err != nil {
		return nil, nil, writeError(t.work, err)
	}
	if err := t.takeLock(); err != nil {
		return nil, nil, err
	}
	if err := t.readJournal(o); err != nil {
		t.close()
		return nil, nil, err
	}
	return t, nil, nil
}

func (t *target) other(what, differs string) error {
	return errs.New(errs.AlreadyExists, t.to.Dir, "name another folder, or remove this one",
		"%s holds %s of something else: %s", t.to.Dir, what, differs)
}

// mustBeOurs refuses a folder with files of others. Shards at their places are ours where the work folder is there: a
// run was killed while it moved them.
func (t *target) mustBeOurs() error {
	entries, err := os.ReadDir(t.to.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errs.New(errs.Invalid, t.to.Dir, "name a folder that you may write to", "look at %s", t.to.Dir).Because(err)
	}
	if _, err := os.Stat(filepath.Join(t.work, journalName)); err == nil {
		return nil
	}
	for _, e := range entries {
		if e.Name() != workName {
			return errs.New(errs.AlreadyExists, t.to.Dir, "name an empty folder, or one that does not exist",
				"%s holds %q and is no pack of larder", t.to.Dir, e.Name())
		}
	}
	return nil
}

func (t *target) takeLock() error {
	f, err := os.OpenFile(filepath.Join(t.work, lockName), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return writeError(t.work, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return errs.New(errs.AlreadyExists, t.to.Dir, "wait until it ends", "another run is packing into %s", t.to.Dir)
	}
	t.lock = f
	return nil
}

// readJournal takes over what the journal says is finished, as far as it is there.
func (t *target) readJournal(o options) error {
	path := filepath.Join(t.work, journalName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return writeError(path, err)
	}
	t.journal = f
	r, good, first := bufio.NewReader(f), int64(0), true
	for {
		b, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return errs.New(errs.Invalid, path, "check the disk", "read %s", path).Because(err)
		}
		var l line
		if err != nil || json.Unmarshal(b, &l) != nil || first != (l.Options != nil) || t.done {
			break // torn by a crash: what follows was never finished
		}
		if l.Options != nil {
			if d := l.Options.differs(o); d != "" {
				return t.other("an unfinished pack", d)
			}
		}
		if l.Shard != nil {
			if l.Shard.Name != shardName(o.Format, len(t.shards)) || l.Shard.Next <= t.next() || !t.has(l.Shard) {
				break
			}
			t.shards = append(t.shards, *l.Shard)
		}
		t.skipped = append(t.skipped, l.Skipped...)
		t.done, first = l.Done, false
		good += int64(len(b))
	}
	if err := f.Truncate(good); err != nil {
		return writeError(path, err)
	}
	if _, err := f.Seek(good, io.SeekStart); err != nil {
		return writeError(path, err)
	}
	if first {
		return t.log(line{Options: &o})
	}
	return nil
}

// has reports whether a finished shard is there, with its size.
func (t *target) has(s *Shard) bool {
	for _, dir := range []string{t.work, t.to.Dir} {
		if st, err := os.Stat(filepath.Join(dir, s.Name)); err == nil && st.Mode().IsRegular() && st.Size() == s.Bytes {
			return true
		}
	}
	return false
}

// log makes a line durable.
func (t *target) log(l line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	if _, err = t.journal.Write(append(b, '\n')); err == nil {
		err = t.disk.sync(t.journal)
	}
	if err == nil {
		err = t.syncDir(t.work)
	}
	if err != nil {
		return writeError(t.journal.Name(), err)
	}
	return nil
}

func (t *target) close() {
	if t.journal != nil {
		_ = t.journal.Close() // every line was made durable
	}
	_ = t.lock.Close()
}

// next is the place in the order of the first sample that is not finished.
func (t *target) next() int {
	if len(t.shards) == 0 {
		return 0
	}
	return t.shards[len(t.shards)-1].Next
}

// samples and bytes of finished shards.
func (t *target) totals() (samples int, size int64) {
	for i := range t.shards {
		samples += t.shards[i].Samples
		size += t.shards[i].Bytes
	}
	return samples, size
}

// finish moves everything to its place, the manifest last.
func (t *target) finish(o options, classes []string) (*Manifest, error) {
	m := &Manifest{Version: manifestVersion, options: o, Classes: classes, Shards: t.shards, Skipped: t.skipped}
	if m.Skipped == nil {
		m.Skipped = []Skipped{}
	}
	m.Samples, m.Bytes = t.totals()
	for i := range t.shards {
		from, to := filepath.Join(t.work, t.shards[i].Name), filepath.Join(t.to.Dir, t.shards[i].Name)
		if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier run moved it
			return nil, writeError(to, err)
		}
		if st, err := os.Stat(to); err != nil || st.Size() != t.shards[i].Bytes {
			return nil, errs.New(errs.StateDamaged, to, "remove "+t.work+" and pack again", "%s is gone, or was changed "+
				"while it was packed", to).Because(err)
		}
	}
	if t.to.Format == MDS {
		if err := t.place(indexName, mdsIndex(t.shards, o)); err != nil {
			return nil, err
		}
	}
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	if err := t.place(ManifestName, append(b, '\n')); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(t.work); err != nil {
		return nil, writeError(t.work, err)
	}
	return m, nil
}

// place writes a small file of the pack as a whole.
func (t *target) place(name string, content []byte) error {
	from, to := filepath.Join(t.work, name), filepath.Join(t.to.Dir, name)
	f, err := t.disk.create(from)
	if err != nil {
		return writeError(to, err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = t.disk.sync(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(from, to)
	}
	if err == nil {
		err = t.syncDir(t.to.Dir)
	}
	if err != nil {
		return writeError(to, err)
	}
	return nil
}

// readManifest returns nil where there is none.
func readManifest(dir string) (*Manifest, error) {
	path := filepath.Join(dir, ManifestName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil //nolint:nilnil // documented
	}
	damaged := func(err error) error {
		return errs.New(errs.AlreadyExists, path, "name another folder, or remove this one",
			"%s is no manifest of a pack", path).Because(err)
	}
	if err != nil {
		return nil, damaged(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil, damaged(err)
	}
	m := &Manifest{}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(m); err != nil {
		return nil, damaged(err)
	}
	if m.Version != manifestVersion {
		return nil, damaged(fmt.Errorf("its version is %d, and this larder knows %d", m.Version, manifestVersion))
	}
	for i := range m.Shards {
		if n := m.Shards[i].Name; n == "" || filepath.Base(n) != n || strings.HasPrefix(n, ".") {
			return nil, damaged(fmt.Errorf("it names the shard %q", n))
		}
	}
	return m, nil
}

// file is what a shard is written to.
type file interface {
	io.Writer
	Name() string
	Sync() error
	Close() error
}

// creator makes an empty file, over one that is there.
type creator func(path string) (file, error)

// disk is how files are made, and made durable.
type disk struct {
	create creator
	sync   func(file) error
}

func create(path string) (file, error) { return os.Create(path) }

func (t *target) syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return t.disk.sync(d)
}

// writeError says what could not be written, and that nothing of it is lost.
func writeError(path string, err error) error {
	const again = "run the same command again: it goes on after the last finished shard"
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		return errs.New(errs.ResourceExceeded, path, "free some room and "+again, "write %s", path).Because(err)
	}
	return errs.New(errs.Invalid, path, "check the folder and its disk, then "+again, "write %s", path).Because(err)
}

// room refuses to begin what cannot fit: need is the bytes that are still to be written at least.
func (t *target) room(need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(t.work, &st); err != nil {
		return nil //nolint:nilerr // then writing tells
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need { //nolint:unconvert // other systems have other types
		return errs.New(errs.ResourceExceeded, t.to.Dir, "free some room, or pack smaller images with --max-size",
			"packing into %s takes %s more, and its disk has %s", t.to.Dir, units.Size(need), units.Size(free))
	}
	return nil
}
