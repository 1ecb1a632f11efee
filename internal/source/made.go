package source

import (
	"context"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
)

const schemeMade = "python:"

// MaxMade is the most samples that a dataset made by workers may have: each takes 60 bytes of the daemon's memory.
const MaxMade = 1 << 26

// maxAllMade is the most samples that all of them may have together, unless the configuration says another number.
const maxAllMade = 2 * MaxMade

// Made is a dataset whose samples are made by worker processes of clients: numbers from 0 on, and nothing stored. What
// a sample is, only the workers know.
type Made struct {
	Name, Version string
	Length        int    // samples
	UID           uint32 // of the user who declared it, and may use it
	Fingerprint   uint64 // of what it was declared with
	Private       bool   // of one client, until its last job ends

	slot  int   // of a private one: the objects of a slot are used again
	mtime int64 // of its samples, as Dataset.File shows it: stands for the uri
}

// madeUse is what datasets made by workers take. Catalog.mu guards it.
type madeUse struct {
	samples int   // of all that are declared
	slots   int   // of private ones that there ever were
	free    []int // slots of removed ones
}

// URI is python:NAME@VERSION.
func (m *Made) URI() string { return schemeMade + m.Name + "@" + m.Version }

// IsMade reports whether a uri is one of a dataset made by workers.
func IsMade(uri string) bool { return strings.HasPrefix(uri, schemeMade) }

func (m *Made) check() error {
	bad := ""
	switch {
	case m.Name == "" || len(m.Name) > 256 || len(m.Version) > 256:
		bad = "has a name of 1 to 256 bytes and a version of at most 256"
	case checkName(m.Name, m.Name) != nil || m.Version != "" && checkName(m.Version, m.Version) != nil:
		bad = "has a name and a version of printable characters"
	case strings.Contains(m.Version, "@"):
		bad = "has a version without @"
	case m.Length < 1 || m.Length > MaxMade:
		bad = fmt.Sprintf("has 1 to %d samples", MaxMade)
	}
	if bad == "" {
		return nil
	}
	return errs.New(errs.Invalid, printable(m.Name), "choose name= and version= such as \"train\" and \"1\"",
		"a dataset made by workers %s, not name %.80q, version %.80q, %d samples", bad, m.Name, m.Version, m.Length)
}

// mayUse refuses other users: what they ask of it would run in the workers of the one who declared it.
func (m *Made) mayUse(r Reader) error {
	if r.UID == m.UID {
		return nil
	}
	return errs.New(errs.Denied, "dataset", "declare it under a name of your own, and start workers of your own",
		"a dataset made by workers is for the user who declared it, not for uid %d", r.UID)
}

// Made is what a dataset made by workers was declared with; nil for others.
func (d *Dataset) Made() *Made { return d.snap.Load().made }

// AddMade makes a dataset of samples that workers make. One of that uri that is there already is returned, whatever it
// was declared with: the caller compares. Errors are *errs.Error: INVALID_ARGUMENT, RESOURCE_EXCEEDED where all
// datasets made by workers would have too many samples together; or the context's.
func (c *Catalog) AddMade(ctx context.Context, m Made) (d *Dataset, added bool, err error) {
	if err := m.check(); err != nil {
		return nil, false, err
	}
	uri := m.URI()
	rs := c.rootState(place{uri: uri, root: uri})
	if err := rs.lock(ctx); err != nil {
		return nil, false, fmt.Errorf("declare %s: %w", printable(uri), err)
	}
	defer rs.unlock()
	if d, ok := c.named(uri); ok {
		return d, false, nil
	}
	m.mtime = int64(xxhash.Sum64String(uri) >> 1)
	if err := c.reserveMade(&m); err != nil {
		return nil, false, err
	}
	rs.snap.Store(c.madeSnapshot(&m, rs.index))
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newDatasetLocked(uri, uri, rs), true, nil
}

// reserveMade counts the samples of a dataset that is being declared, and gives a private one a slot.
func (c *Catalog) reserveMade(m *Made) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Length > c.cfg.MaxMade-c.made.samples {
		return errs.New(errs.ResourceExceeded, printable(m.URI()),
			"remove datasets that are not needed any more: larder dataset rm NAME; or declare fewer samples",
			"declare %s: it has %d samples, the other datasets made by workers have %d, and %d in all are the most",
			printable(m.URI()), m.Length, c.made.samples, c.cfg.MaxMade)
	}
	c.made.samples += m.Length
	if k := len(c.made.free); !m.Private {
		return nil
	} else if k > 0 {
		m.slot, c.made.free = c.made.free[k-1], c.made.free[:k-1]
		return nil
	}
	m.slot = c.made.slots
	c.made.slots++
	return nil
}

// releaseMadeLocked gives back what a dataset takes that is removed. Of the columns of its root nothing is left; the
// Dataset keeps its own for jobs that have ended.
func (c *Catalog) releaseMadeLocked(d *Dataset, m *Made) {
	c.made.samples -= m.Length
	if m.Private {
		c.made.free = append(c.made.free, m.slot)
	}
	gone := *m
	gone.Length = 0
	d.rs.snap.Store(&snapshot{root: m.URI(), made: &gone, fp: m.Fingerprint})
	c.datasets[d.id] = nil
}

// madeSnapshot gives the samples their objects: those that they had before, should the dataset come back. No private
// one comes back, so those have the objects of a slot, which removed ones had: Catalog.Remove's caller has forgotten
// what was kept of them, and no two uris have a recipe in common.
func (c *Catalog) madeSnapshot(m *Made, root uint32) *snapshot {
	s := &snapshot{root: m.URI(), made: m, live: m.Length, fp: m.Fingerprint, objs: make([]ident.ObjectID, m.Length)}
	meta := fileMeta{dev: ^uint64(0), mtime: m.mtime}
	if m.Private {
		meta = fileMeta{dev: ^uint64(1), mtime: int64(m.slot)}
	}
	all := make([]named, m.Length)
	const slice = 4096 // short enough that readers of the table do not notice
	for from := 0; from < m.Length; from += slice {
		c.objects.making.Lock()
		c.objects.room(slice)
		c.objects.mu.Lock()
		for i := from; i < min(from+slice, m.Length); i++ {
			meta.ino = uint64(i)
			s.objs[i] = c.objects.internLocked(meta, 0, root, ident.SampleID(i))
			c.objects.nameLocked(s.objs[i], root) // of the dataset that has it now
			all[i] = named{s.objs[i], ident.SampleID(i), 0}
		}
		c.objects.mu.Unlock()
		c.objects.making.Unlock()
	}
	s.rev = makeReverse(all)
	return s
}

// openMade finds a dataset by its uri.
func (c *Catalog) openMade(uri string) (*Dataset, error) {
	if d, ok := c.named(uri); ok {
		return d, nil
	}
	return nil, errs.New(errs.NotFound, printable(uri),
		"a Loader of it declares it: larder.Loader(dataset, name=..., version=...)", "no dataset %q is declared", uri)
}
