package pack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/units"
)

// folder is a target in the file system.
type folder struct {
	finished

	to      Target
	work    string
	lock    *os.File
	journal *os.File
	disk    disk
}

func (t *folder) state() *finished { return &t.finished }

func (t *folder) durable() (shards int, size int64) {
	_, size = t.totals()
	return len(t.shards), size
}

func openFolder(to Target, o options, d disk) (*folder, *Manifest, error) {
	t := &folder{to: to, work: filepath.Join(to.Dir, workName), disk: d}
	m, err := t.look(o)
	if m == nil && err == nil {
		m, err = t.enter(o)
	}
	if m != nil || err != nil {
		return nil, m, err
	}
	return t, nil, nil
}

// look returns the manifest of a finished pack, nil where there is none, or refuses the folder. It makes nothing.
func (t *folder) look(o options) (*Manifest, error) {
	m, err := t.published(o)
	if m == nil && err == nil {
		err = t.mustBeOurs()
	}
	return m, err
}

// enter makes the work folder this run's. What it finds there may differ from what look saw: another run may have ended
// since. Then it returns its manifest.
func (t *folder) enter(o options) (*Manifest, error) {
	if err := t.takeLock(); err != nil {
		return nil, err
	}
	m, err := t.look(o)
	if m == nil && err == nil {
		err = t.readJournal(o)
	}
	if m != nil || err != nil {
		t.close()
	}
	return m, err
}

// published is the manifest that is there, nil = none.
func (t *folder) published(o options) (*Manifest, error) {
	m, err := readManifest(t.to.Dir)
	if m == nil || err != nil {
		return nil, err
	}
	if what := m.differs(o); what != "" {
		return nil, other(t.to.Dir, "a finished pack", what)
	}
	return m, os.RemoveAll(t.work) // what a run left that was killed at its very end
}

// mustBeOurs refuses a folder with files of others. Shards at their places are ours where the work folder is there: a
// run was killed while it moved them.
func (t *folder) mustBeOurs() error {
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

// takeLock makes the work folder and locks it. A run that ends removes both: the lock counts that is still in its
// place.
func (t *folder) takeLock() error {
	path := filepath.Join(t.work, lockName)
	for {
		if err := os.MkdirAll(t.work, 0o777); err != nil {
			return writeError(t.work, err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the folder went meanwhile
		}
		if err != nil {
			return writeError(t.work, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			return errs.New(errs.AlreadyExists, t.to.Dir, "wait until it ends", "another run is packing into %s", t.to.Dir)
		}
		mine, err := f.Stat()
		if err == nil {
			var there fs.FileInfo
			if there, err = os.Stat(path); err == nil && os.SameFile(mine, there) {
				t.lock = f
				return nil
			}
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return writeError(path, err)
		}
	}
}

// readJournal takes over what the journal says is finished, as far as it is there.
func (t *folder) readJournal(o options) error {
	path := filepath.Join(t.work, journalName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return writeError(path, err)
	}
	t.journal, t.where = f, path
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
				return other(t.to.Dir, "an unfinished pack", d)
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
func (t *folder) has(s *Shard) bool {
	for _, dir := range []string{t.work, t.to.Dir} {
		if st, err := os.Stat(filepath.Join(dir, s.Name)); err == nil && st.Mode().IsRegular() && st.Size() == s.Bytes {
			return true
		}
	}
	return false
}

// log makes a line durable.
func (t *folder) log(l line) error {
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

func (t *folder) close() {
	if t.journal != nil {
		_ = t.journal.Close() // every line was made durable
	}
	_ = t.lock.Close()
}

func (t *folder) begin(name string) (file, error) {
	path := filepath.Join(t.work, name+".part")
	f, err := t.disk.create(path)
	if err != nil {
		return nil, writeError(path, err)
	}
	return f, nil
}

// keep makes a shard durable, and the journal say so.
func (t *folder) keep(_ context.Context, f file, s Shard, skipped []Skipped) error {
	path := f.Name()
	err := t.disk.sync(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path, filepath.Join(t.work, s.Name))
	}
	if err == nil {
		err = t.syncDir(t.work)
	}
	if err != nil {
		return writeError(path, err)
	}
	if err := t.log(line{Shard: &s, Skipped: skipped}); err != nil {
		return err
	}
	t.shards = append(t.shards, s)
	t.skipped = append(t.skipped, skipped...)
	return nil
}

func (t *folder) end(skipped []Skipped) error {
	if err := t.log(line{Done: true, Skipped: skipped}); err != nil {
		return err
	}
	t.skipped, t.done = append(t.skipped, skipped...), true
	return nil
}

// finish moves everything to its place, the manifest last.
func (t *folder) finish(_ context.Context, o options, classes []string) (*Manifest, error) {
	m := t.manifest(o, classes)
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
	b, err := m.encode()
	if err != nil {
		return nil, err
	}
	if err := t.place(ManifestName, b); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(t.work); err != nil {
		return nil, writeError(t.work, err)
	}
	return m, nil
}

// place writes a small file of the pack as a whole.
func (t *folder) place(name string, content []byte) error {
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

// file is what a shard is written to.
type file interface {
	io.Writer
	io.Seeker
	io.ReaderAt
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

func (t *folder) syncDir(path string) error {
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

func (t *folder) room(need int64) error {
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
