package source

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"larder/internal/bits"
	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/spool"
	"larder/internal/store"
)

// CatalogConfig says how to build a Catalog. The zero value works: nothing saved, no limit.
type CatalogConfig struct {
	IndexDir     string        // where indexes are saved, "" = nowhere; made if missing
	StorageLimit int64         // bytes a second over all reads, 0 = none: a share of slow storage, or an experiment
	StorageIOPS  int64         // reads a second, 0 = none
	MaxObject    int64         // largest object that Read accepts, bytes; 0 = 1 GiB
	MaxMade      int           // samples of all datasets made by workers together; 0 = 2^27
	Stores       *store.Stores // what lies behind a network; nil = datasets there are refused. The caller closes it
	Kept         Kept          // what keeps bytes of Stores on a local disk; nil = nothing does
	Spool        spool.Spool   // of blocks, and of what is unpacked of compressed files; nil = 256 MiB of memory
	Logger       *slog.Logger
	Clock        clock.Clock // of the waits for StorageLimit and StorageIOPS; nil = the real one
}

// spoolBytes is the memory for what is unpacked, where no spool is given.
const spoolBytes = 256 << 20

// Catalog holds the datasets and objects of one daemon. Safe for concurrent use.
//
// Lock order: rootState.sem, then mu, then objects.making, then objects.mu.
type Catalog struct {
	cfg     CatalogConfig
	log     *slog.Logger
	sys     system
	looks   atomic.Uint64 // of Away, which looks at other files each time
	limit   *limiter
	objects objectTable
	probes  probeCache
	files   openFiles
	layouts layouts
	held    heldBlocks
	seen    seenCache
	columns columnCache

	indexing indexings

	mu       sync.RWMutex // guards what follows
	datasets []*Dataset   // by id; a superseded one stays for its jobs; nil = made by workers, and removed
	byName   map[string]*Dataset
	roots    []*rootState
	byRoot   map[string]*rootState // by canonical uri
	made     madeUse
}

// rootState is one folder, or one set of packed files, whatever datasets name it: they share its ids and its saved
// index.
type rootState struct {
	place
	index uint32                   // in Catalog.roots
	sem   chan struct{}            // held while the root is checked or walked
	snap  atomic.Pointer[snapshot] // newest version, nil before the first walk; written under sem
	stale atomic.Bool              // a read found a file changed, which the folders' times need not show
	empty atomic.Bool              // class folders without images are accepted, from the first request for that
	// guarded: files of it are read for other users, so no link is followed.
	guarded atomic.Bool
	stores  *store.Stores          // what packed files of a store are looked at with; nil = there are none
	kept    Kept                   // what keeps bytes of them; nil = nothing does
	notes   *lookNotes             // of its files, while it is walked; nil = none are kept. sem guards it
	server  atomic.Pointer[string] // where it lies, for the disk tier; nil = not asked yet
}

// OpenCatalog returns an empty catalogue. Close it to end its background work.
func OpenCatalog(cfg CatalogConfig) (*Catalog, error) {
	if cfg.StorageLimit < 0 || cfg.StorageIOPS < 0 || cfg.MaxObject < 0 {
		return nil, errs.New(errs.ConfigInvalid, "source", "use 0 for none", "a negative limit: %d B/s and %d reads/s "+
			"from storage, largest object %d B",
			cfg.StorageLimit, cfg.StorageIOPS, cfg.MaxObject)
	}
	if cfg.MaxObject == 0 {
		cfg.MaxObject = 1 << 30
	}
	if cfg.MaxMade == 0 {
		cfg.MaxMade = maxAllMade
	}
	if cfg.Spool == nil {
		cfg.Spool = spool.NewMemory(spoolBytes)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.IndexDir != "" {
		if err := os.MkdirAll(cfg.IndexDir, 0o700); err != nil {
			return nil, errs.New(errs.ConfigInvalid, printable(cfg.IndexDir),
				"set source.index_dir to a folder that the daemon may write to, or to nothing: none is saved then",
				"the folder for saved indexes cannot be made").Because(err)
		}
		removeLeftovers(cfg.IndexDir)
		removeOldLogs(cfg.IndexDir)
	}
	c := &Catalog{cfg: cfg, log: cfg.Logger, sys: realSystem, byName: map[string]*Dataset{},
		byRoot: map[string]*rootState{},
		limit:  newLimiter(cfg.StorageLimit, cfg.StorageIOPS, cfg.Clock)}
	return c, nil
}

// Close ends background work. Datasets stay usable but for Probe.
func (c *Catalog) Close() error {
	c.probes.close()
	c.held.close()
	c.files.close()
	return nil
}

// Add makes a dataset of a uri, under a name ("" = the uri), or checks a known one for changes. The same name and uri
// give the same Dataset, unless its labels had to change (see Dataset). Errors are *errs.Error: INVALID_ARGUMENT,
// ALREADY_EXISTS, DATASET_UNREADABLE, DATASET_EMPTY; or the context's. After an error everything is as it was.
func (c *Catalog) Add(ctx context.Context, name, uri string) (*Dataset, error) {
	return c.add(ctx, name, uri, walkHow{})
}

// AddSkipEmpty is Add where class folders without images are welcome, now and later: they keep their label and have no
// samples, as with torchvision's allow_empty. Without it a folder is refused at its first index when a class folder
// holds no image; a class that loses its last image later stays a class.
func (c *Catalog) AddSkipEmpty(ctx context.Context, name, uri string) (*Dataset, error) {
	return c.add(ctx, name, uri, walkHow{skipEmpty: true})
}

// AddAgain is Add for a dataset that was accepted before: should its saved index be lost, class folders without images
// do not count against it.
func (c *Catalog) AddAgain(ctx context.Context, name, uri string) (*Dataset, error) {
	return c.add(ctx, name, uri, walkHow{again: true})
}

// walkHow says how a root is brought up to date.
type walkHow struct {
	force     bool    // look at every file, whatever the folders' times say
	skipEmpty bool    // from now on
	again     bool    // this once
	as        *Reader // another user, for whom it is; nil = the daemon's own
	log       *scanLog
	notes     *lookNotes
}

func (c *Catalog) add(ctx context.Context, name, uri string, how walkHow) (*Dataset, error) {
	if IsMade(uri) {
		return c.openMade(uri)
	}
	at, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	if err := c.mayOpen(at.root); err != nil {
		return nil, err
	}
	canonical := at.uri
	if name == "" || name == uri {
		name = canonical
	}
	if name != canonical {
		if err := checkName(name, canonical); err != nil {
			return nil, err
		}
	}
	taken := func(d *Dataset) error {
		return errs.New(errs.AlreadyExists, printable(name), "choose another name", "the name %q belongs to %s", name,
			d.URI())
	}
	if d, ok := c.named(name); ok && d.uri != canonical {
		return nil, taken(d)
	}
	rs := c.rootState(at)
	if err := rs.lock(ctx); err != nil {
		return nil, fmt.Errorf("index %s: %w", printable(at.uri), err)
	}
	defer rs.unlock()
	if how.skipEmpty && !rs.empty.Swap(true) {
		if snap := rs.snap.Load(); snap != nil && len(snap.report.LeftOut) > 0 {
			how.force = true // they are classes from now on
		}
	}
	if err := c.refresh(ctx, rs, how); err != nil {
		return nil, err
	}
	// nothing is left of what he may not read, also where its index was there
	if _, ok := c.named(name); !ok && how.as != nil {
		if err := c.mayRead(ctx, rs.snap.Load(), *how.as); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.byName[name]
	switch {
	case ok && d.uri != canonical:
		return nil, taken(d)
	case !ok:
		d = c.newDatasetLocked(name, canonical, rs)
	}
	return d, nil
}

// Reindex is Add for a known dataset that looks at every file again, whatever the folders' times say.
func (c *Catalog) Reindex(ctx context.Context, nameOrURI string) (*Dataset, error) {
	d, ok := c.Get(nameOrURI)
	if !ok {
		return nil, c.unknown(nameOrURI)
	}
	return c.add(ctx, d.name, d.uri, walkHow{force: true})
}

// Open returns the dataset of that name or uri, checked for changes as Add does; a uri that is not known is added.
func (c *Catalog) Open(ctx context.Context, nameOrURI string) (*Dataset, error) {
	return c.open(ctx, nameOrURI, walkHow{})
}

// OpenSkipEmpty is Open as AddSkipEmpty is Add.
func (c *Catalog) OpenSkipEmpty(ctx context.Context, nameOrURI string) (*Dataset, error) {
	return c.open(ctx, nameOrURI, walkHow{skipEmpty: true})
}

// OpenFor is Open, or OpenSkipEmpty, for another user: folders are indexed with his rights, and what he may not read is
// refused (MayList, MayRead) before a dataset is made of it.
func (c *Catalog) OpenFor(ctx context.Context, nameOrURI string, skipEmpty bool, r Reader) (*Dataset, error) {
	if err := c.MayList(nameOrURI, r); err != nil {
		return nil, err
	}
	defer c.indexing.asks(c.rootOf(nameOrURI), r.UID)()
	return c.open(ctx, nameOrURI, walkHow{skipEmpty: skipEmpty, as: &r})
}

// ReindexFor is Reindex for another user, as OpenFor is Open.
func (c *Catalog) ReindexFor(ctx context.Context, d *Dataset, r Reader) (*Dataset, error) {
	if err := c.MayList(d.URI(), r); err != nil {
		return nil, err
	}
	defer c.indexing.asks(d.rs.uri, r.UID)()
	return c.add(ctx, d.name, d.uri, walkHow{force: true, as: &r})
}

// rootOf is the uri of the root that a name or a uri means; "" = there is none.
func (c *Catalog) rootOf(nameOrURI string) string {
	if d, ok := c.Get(nameOrURI); ok && d.rs != nil {
		return d.rs.uri
	}
	at, err := parseURI(nameOrURI)
	if err != nil {
		return ""
	}
	return at.uri
}

func (c *Catalog) open(ctx context.Context, nameOrURI string, how walkHow) (*Dataset, error) {
	if IsMade(nameOrURI) {
		return c.openMade(nameOrURI)
	}
	if d, ok := c.Get(nameOrURI); ok {
		return c.add(ctx, d.name, d.uri, how)
	}
	if _, err := parseURI(nameOrURI); err != nil {
		if c.looksLikeName(nameOrURI) {
			return nil, c.unknown(nameOrURI)
		}
		return nil, err
	}
	return c.add(ctx, "", nameOrURI, how)
}

// looksLikeName: with neither scheme nor path in it, it was meant as a name.
func (c *Catalog) looksLikeName(s string) bool {
	for i := range len(s) {
		if s[i] == ':' || s[i] == '/' {
			return false
		}
	}
	return s != ""
}

func (c *Catalog) unknown(name string) error {
	hint := "add it with `larder dataset add`, or write its uri, as in imagefolder:/data/train"
	if known := c.List(); len(known) > 0 {
		names := make([]string, 0, 5)
		for _, d := range known[:min(len(known), 5)] {
			names = append(names, d.Name())
		}
		hint += "; known: " + strings.Join(names, ", ")
	}
	return errs.New(errs.NotFound, printable(name), hint, "no dataset is named %q", name)
}

func (c *Catalog) named(name string) (*Dataset, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	d, ok := c.byName[name]
	return d, ok
}

// Get returns the dataset of that name or uri as it was last seen, without looking at storage.
func (c *Catalog) Get(nameOrURI string) (*Dataset, bool) {
	if d, ok := c.named(nameOrURI); ok {
		return d, true
	}
	at, err := parseURI(nameOrURI)
	if err != nil {
		return nil, false
	}
	uri := at.uri
	if d, ok := c.named(uri); ok {
		return d, true
	}
	for _, d := range c.List() {
		if d.uri == uri {
			return d, true
		}
	}
	return nil, false
}

// List returns the datasets by id, without superseded ones.
func (c *Catalog) List() []*Dataset {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []*Dataset
	for _, d := range c.datasets {
		if d != nil && c.byName[d.name] == d {
			out = append(out, d)
		}
	}
	return out
}

// ByID returns any dataset of this run, superseded ones included; not one made by workers that was removed.
func (c *Catalog) ByID(id ident.DatasetID) (*Dataset, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if int64(id) >= int64(len(c.datasets)) || c.datasets[id] == nil {
		return nil, false
	}
	return c.datasets[id], true
}

// Remove forgets a dataset by its name. When no other name has its folder, the saved index goes too, so that ids are
// given again should it come back; indexBytes is the size of it. A holder of the Dataset may still read. own are the
// objects that no other dataset names.
func (c *Catalog) Remove(ctx context.Context, d *Dataset) (own *bits.Set, indexBytes int64, err error) {
	if err := d.rs.lock(ctx); err != nil {
		return nil, 0, fmt.Errorf("remove %s: %w", d.Name(), err)
	}
	defer d.rs.unlock()
	last := true
	for _, o := range c.List() {
		last = last && (o.rs != d.rs || o.name == d.name)
	}
	if last && d.Made() == nil {
		if indexBytes, err = c.removeIndex(d.rs.key()); err != nil {
			return nil, 0, err
		}
		indexBytes += c.removeColumns(d.rs.uri) + c.removeLog(d.rs.key()) + c.removeNotes(d.rs.key())
	}
	c.mu.Lock()
	if c.byName[d.name] == d {
		delete(c.byName, d.name)
		if m := d.Made(); m != nil {
			c.releaseMadeLocked(d, m)
		}
	}
	if last && c.byRoot[d.rs.uri] == d.rs {
		delete(c.byRoot, d.rs.uri)
	}
	c.mu.Unlock()
	own = bits.NewSet(c.objects.len())
	d.snap.Load().eachLive(func(obj ident.ObjectID) { own.Add(uint32(obj)) })
	for _, p := range d.snap.Load().past {
		own.Add(uint32(p.object))
	}
	for _, o := range c.List() {
		o.snap.Load().eachLive(func(obj ident.ObjectID) { own.Remove(uint32(obj)) })
	}
	return own, indexBytes, nil
}

// SharedSamples is how many of the objects of d's samples other datasets name too. It looks at every sample.
func (c *Catalog) SharedSamples(d *Dataset) int {
	others := bits.NewSet(c.objects.len())
	for _, o := range c.List() {
		if o.name != d.name {
			o.snap.Load().eachLive(func(obj ident.ObjectID) { others.Add(uint32(obj)) })
		}
	}
	n := 0
	d.snap.Load().eachLive(func(obj ident.ObjectID) {
		if others.Has(uint32(obj)) {
			n++
		}
	})
	return n
}

func (s *snapshot) eachLive(f func(o ident.ObjectID)) {
	for id := range ident.SampleID(s.Len()) {
		if s.Live(id) {
			f(s.object(id))
		}
	}
}

// Objects is the number of object ids handed out: 0 to Objects-1.
func (c *Catalog) Objects() int { return c.objects.len() }

// ObjectBytes is the stored size of an object, 0 for an unknown id.
func (c *Catalog) ObjectBytes(o ident.ObjectID) int64 {
	row, ok := c.objects.get(o)
	if !ok {
		return 0
	}
	return row.size + int64(c.rootAt(row.root).overhead())
}

// ObjectPath is where an object was found first, as text, "" for an unknown id, and its first byte in that file.
func (c *Catalog) ObjectPath(o ident.ObjectID) (path string, offset int64) {
	row, ok := c.objects.get(o)
	if !ok {
		return "", 0
	}
	return printable(c.rootAt(row.root).path(row.sample)), row.off
}

// refresh brings a root up to date: nothing when no folder changed, else one walk. The caller holds rs.sem.
func (c *Catalog) refresh(ctx context.Context, rs *rootState, how walkHow) error {
	old, oldMeta := rs.snap.Load(), []fileMeta(nil)
	stale := rs.stale.Swap(false)
	done := false
	defer func() {
		if stale && !done {
			rs.stale.Store(true)
		}
	}()
	if old == nil && c.cfg.IndexDir != "" {
		loaded, meta := c.loadIndex(rs.place)
		if loaded != nil {
			ok, err := c.stands(ctx, rs, loaded)
			if err != nil {
				return fmt.Errorf("check %s: %w", printable(rs.uri), err)
			}
			if ok && !how.force {
				loaded.assignObjects(&c.objects, rs.index, nil, meta)
				if rs.format != nil {
					c.removeLog(rs.key()) // of a process that ended after another one had saved the index
				}
				done = true
				c.publish(rs, loaded.shortened())
				return nil
			}
			old, oldMeta = loaded, meta // its ids are kept
		}
	} else if old != nil && !how.force && !stale {
		ok, err := c.stands(ctx, rs, old)
		if err != nil {
			return fmt.Errorf("check %s: %w", printable(rs.uri), err)
		}
		if ok {
			return nil
		}
	}
	ctx, end := c.indexing.begin(ctx, rs)
	defer end()
	how.log, how.notes = c.scanLog(rs), c.lookNotes(rs)
	next, meta, err := c.walk(ctx, rs, version{old, oldMeta}, how)
	if err != nil {
		return err
	}
	next.assignObjects(&c.objects, rs.index, rs.snap.Load(), meta)
	done = true
	c.publish(rs, next.shortened())
	c.log.Info("indexed", "dataset", rs.uri, "samples", next.live, "tombstones", next.Len()-next.live, "classes",
		len(next.classes),
		"folders", next.report.Folders, "ignored_files", next.report.Ignored, "irregular_files", next.report.Irregular,
		"loops", next.report.Loops)
	if c.cfg.IndexDir != "" {
		if err := c.saveIndex(next, meta); err != nil {
			c.log.Warn("the index was not saved; the next start walks the dataset again, and ids of files added since the "+
				"last save may then differ",
				"dataset", rs.uri, "error", err)
		} else if how.log != nil {
			c.removeLog(rs.key())
		}
	}
	return nil
}

// version is a snapshot, and where its samples lie as its saved index says; nil = they have objects.
type version struct {
	snap *snapshot
	meta []fileMeta
}

// walk makes the next version of a root.
func (c *Catalog) walk(ctx context.Context, rs *rootState, was version, how walkHow) (*snapshot, []fileMeta, error) {
	old := was.snap.widened()
	if rs.format != nil {
		return rs.walkPacked(ctx, old, func(id ident.SampleID) fileMeta {
			if was.meta != nil {
				return was.meta[id]
			}
			m, _ := c.objects.meta(old.object(id))
			return m
		}, how)
	}
	allow := allowEmpty{all: rs.empty.Load() || how.again && old == nil}
	if old != nil {
		allow.known = old.classes
	}
	walk, err := c.walkImages(ctx, rs.root, allow, how.as)
	if err != nil {
		return nil, nil, err
	}
	return mergeWalk(rs.root, old, walk)
}

// walkImages lists a folder of images, on a disk or in a store.
func (c *Catalog) walkImages(ctx context.Context, root string, allow allowEmpty, as *Reader) (*walkResult, error) {
	var w *walkResult
	var err error
	switch {
	case !isStored(root) && as != nil: // its files are not opened with the rights of the daemon
		return walkFolder(ctx, root, allow, as)
	case !isStored(root):
		w, err = walkFolder(ctx, root, allow, nil)
	case as != nil:
		return nil, rightsOf(*as).deniedStore(root)
	default:
		w, err = c.walkStore(ctx, root, allow)
	}
	if err == nil {
		err = refusePointers(ctx, c, root, w)
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// stands reports whether a version still is what storage holds, as far as a look tells. Stores have nothing to look
// at but all their keys: there a version stands until a read finds a change, or somebody asks for a new one.
func (c *Catalog) stands(ctx context.Context, rs *rootState, s *snapshot) (bool, error) {
	switch {
	case s.outdated > 0, isStored(s.root):
		return s.outdated == 0, ctx.Err()
	case rs.format != nil:
		return rs.unchangedFiles(ctx, s)
	}
	return unchangedDirs(ctx, s.root, s.dirs)
}

// key names the saved index: the folder, or the uri of packed files.
func (p place) key() string {
	if p.format != nil {
		return p.uri
	}
	return p.root
}

// overhead is how many bytes Read puts before the stored ones of a sample.
func (p place) overhead() int {
	if p.format != nil {
		return p.format.Overhead()
	}
	return 0
}

// publish shows a version to the datasets of its root. One whose labels would change is superseded instead.
func (c *Catalog) publish(rs *rootState, next *snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rs.snap.Store(next)
	for _, d := range slices.Clone(c.datasets) {
		if d == nil || d.rs != rs || c.byName[d.name] != d {
			continue
		}
		before := d.snap.Load()
		was := before.classes
		if before.schema.Equal(&next.schema) && len(was) <= len(next.classes) &&
			slices.Equal(was, next.classes[:len(was)]) {
			d.snap.Store(next)
			continue
		}
		now := c.newDatasetLocked(d.name, d.uri, rs)
		if !before.schema.Equal(&next.schema) {
			c.log.Warn("the fields of the samples changed: running jobs keep those they began with", "dataset", d.name,
				"fields_before", fieldsText(&before.schema), "fields_now", fieldsText(&next.schema), "id_before", d.id,
				"id_now", now.id)
			continue
		}
		c.log.Warn("class folders changed, so labels did: running jobs keep the labels they began with", "dataset", d.name,
			"classes_before", len(was), "classes_now", len(next.classes), "id_before", d.id, "id_now", now.id)
	}
}

func (c *Catalog) newDatasetLocked(name, uri string, rs *rootState) *Dataset {
	d := &Dataset{id: ident.DatasetID(len(c.datasets)), name: name, uri: uri, rs: rs, cat: c}
	d.snap.Store(rs.snap.Load())
	c.datasets = append(c.datasets, d)
	c.byName[name] = d
	return d
}
