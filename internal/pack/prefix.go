package pack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"larder/internal/errs"
	"larder/internal/store"
)

// Keys below that of a pack, while it is being made. They are removed when it is finished.
const (
	optionsNote = workName + "/options.json"
	endNote     = workName + "/end.json"
	noteSuffix  = ".json"

	maxNote = 64 << 20
	// uploads is how many finished shards wait or are on their way while the next one is made. Each has a file in the
	// folder for temporary files.
	uploads = 2
)

// prefix is a target in a store. Objects appear whole, so that shards are written under their own names at once; for
// each there is a note, an object that says what it holds. What is finished is what has a note. The manifest, and the
// index of MDS, come last.
//
// One run works on a place at a time: it writes down that it does, says so again while it lives (owner.go), and looks
// before it publishes whether that still stands. Runs that differ also meet in the note of the options, which is made
// once, and read again at the end.
type prefix struct {
	finished

	ctx  context.Context //nolint:containedctx // of the run: uploads outlive the call that begins them
	w    store.Writer
	own  *owner
	base string // of all keys; ends with a slash
	uri  string // for messages
	opt  options

	g       errgroup.Group
	turn    chan struct{} // one for each upload
	mu      sync.Mutex    // guards what follows
	etags   map[string]string
	settled Progress // Bytes and Shards that have a note
	failure error    // the first of an upload
}

// note is what a store has of a finished shard, or of the end.
type note struct {
	line

	ETag string `json:"etag,omitempty"` // of the shard
}

func openPrefix(ctx context.Context, cfg *Config, o options) (target, *Manifest, error) {
	if cfg.Stores == nil {
		return nil, nil, errs.New(errs.Invalid, cfg.To.Dir, "pack with larder pack", "no stores to write to are given")
	}
	w, key, err := cfg.Stores.Writer(ctx, cfg.To.Dir)
	if err != nil {
		return nil, nil, err
	}
	t := &prefix{ctx: ctx, w: w, base: key + "/", uri: cfg.To.Dir, opt: o, turn: make(chan struct{}, uploads),
		etags: map[string]string{}}
	t.where = t.uri + "/" + workName
	there, err := t.list(ctx)
	if err != nil {
		return nil, nil, t.failed(err)
	}
	if in, ok := there[ManifestName]; ok {
		m, err := t.manifestOf(ctx, in)
		if err != nil {
			return nil, nil, err
		}
		return nil, m, t.clean(ctx, there) // what a run left that was killed at its very end
	}
	if err := t.mustBeOurs(ctx, there); err != nil {
		return nil, nil, err
	}
	if t.own, err = own(ctx, t, cfg.beat, cfg.quiet); err != nil {
		return nil, nil, err
	}
	m, err := t.begun(ctx)
	if m != nil || err != nil {
		t.own.release()
		return nil, m, err
	}
	return t, nil, nil
}

// begun reads what is there, now that no other run works on it: the manifest, of a run that has ended meanwhile, or
// what is finished.
func (t *prefix) begun(ctx context.Context) (*Manifest, error) {
	there, err := t.list(ctx)
	if err != nil {
		return nil, t.failed(err)
	}
	if in, ok := there[ManifestName]; ok {
		m, err := t.manifestOf(ctx, in)
		if err != nil {
			return nil, err
		}
		return m, t.clean(ctx, there)
	}
	if err := t.mustBeOurs(ctx, there); err != nil {
		return nil, err
	}
	if err := t.claim(ctx, there); err != nil {
		return nil, err
	}
	_ = t.w.Sweep(ctx, t.base, t.owns) // what cannot be swept costs room, and nothing else
	return nil, t.resume(ctx, there)
}

// owns reports whether a pack writes that key. Another program's unfinished uploads are its own.
func (t *prefix) owns(key string) bool {
	name, below := strings.CutPrefix(key, t.base)
	return below && (shardNamed.MatchString(name) || name == ManifestName || name == indexName ||
		strings.HasPrefix(name, workName+"/"))
}

var shardNamed = regexp.MustCompile(`^shard(-\d{6,}\.tar|\.\d{5,}\.mds)$`) // see shardName

// list is every object of the pack, by its key below base.
func (t *prefix) list(ctx context.Context) (map[string]store.Info, error) {
	out := map[string]store.Info{}
	return out, t.w.List(ctx, t.base, func(in store.Info) error {
		out[strings.TrimPrefix(in.Key, t.base)] = in
		return nil
	})
}

func (t *prefix) manifestOf(ctx context.Context, in store.Info) (*Manifest, error) {
	path := t.uri + "/" + ManifestName
	b, err := t.read(ctx, in, maxManifest)
	if err != nil {
		return nil, t.failed(err)
	}
	m, err := decodeManifest(path, b)
	if err != nil {
		return nil, err
	}
	if what := m.differs(t.opt); what != "" {
		return nil, other(t.uri, "a finished pack", what)
	}
	return m, nil
}

func (t *prefix) read(ctx context.Context, in store.Info, most int64) ([]byte, error) {
	if in.Size > most {
		return nil, errs.New(errs.AlreadyExists, t.uri, "name another place, or remove this one",
			"%s%s has %d bytes, and larder writes none above %d", t.uri+"/", strings.TrimPrefix(in.Key, t.base), in.Size, most)
	}
	b := make([]byte, in.Size)
	_, err := t.w.ReadRange(ctx, in, 0, b)
	return b, err
}

// readNote reads a note; one that is none is damaged.
func (t *prefix) readNote(ctx context.Context, in store.Info) (n note, err error) {
	b, err := t.read(ctx, in, maxNote)
	if err != nil {
		return n, t.failed(err)
	}
	if err := json.Unmarshal(b, &n); err != nil {
		return n, errs.New(errs.StateDamaged, in.Key, "remove "+t.where+" and pack again", "%s/%s is no note of a pack",
			t.uri, strings.TrimPrefix(in.Key, t.base)).Because(err)
	}
	return n, nil
}

// mustBeOurs refuses a place with objects of others, or with another pack. It writes nothing.
func (t *prefix) mustBeOurs(ctx context.Context, there map[string]store.Info) error {
	if in, ok := there[optionsNote]; ok {
		return t.sameOptions(ctx, in)
	}
	for key := range there { // order-free: any of them is refused
		if !strings.HasPrefix(key, workName+"/") {
			return errs.New(errs.AlreadyExists, t.uri, "name a prefix without objects",
				"%s holds %q and is no pack of larder", t.uri, key)
		}
	}
	return nil
}

// claim writes down whose pack it is.
func (t *prefix) claim(ctx context.Context, there map[string]store.Info) error {
	if _, ok := there[optionsNote]; ok {
		return nil
	}
	_, err := t.write(ctx, t.w.Create, optionsNote, note{line: line{Options: &t.opt}})
	if err == nil || !errors.Is(err, store.ErrExist) {
		return t.failed(err)
	}
	in, err := t.w.Stat(ctx, t.base+optionsNote) // the answer was lost, or another program was faster
	if err != nil {
		return t.failed(err)
	}
	return t.sameOptions(ctx, in)
}

func (t *prefix) sameOptions(ctx context.Context, in store.Info) error {
	n, err := t.readNote(ctx, in)
	if err != nil {
		return err
	}
	if n.Options == nil {
		n.Options = &options{}
	}
	if d := n.Options.differs(t.opt); d != "" {
		return other(t.uri, "an unfinished pack", d)
	}
	return nil
}

// resume takes over the shards that have a note, as far as they follow each other and are what was written.
func (t *prefix) resume(ctx context.Context, there map[string]store.Info) error {
	for {
		name := shardName(t.opt.Format, len(t.shards))
		in, ok := there[workName+"/"+name+noteSuffix]
		if !ok {
			break
		}
		n, err := t.readNote(ctx, in)
		if err != nil {
			return err
		}
		shard := there[name]
		if n.Shard == nil || n.Shard.Name != name || n.Shard.Next <= t.next() || shard.Size != n.Shard.Bytes ||
			shard.ETag != n.ETag {
			return nil // it is written again, and what follows
		}
		t.shards, t.skipped = append(t.shards, *n.Shard), append(t.skipped, n.Skipped...)
		t.etags[name] = n.ETag
		t.settled.Shards, t.settled.Bytes = t.settled.Shards+1, t.settled.Bytes+n.Shard.Bytes
	}
	in, ok := there[endNote]
	if !ok {
		return nil
	}
	n, err := t.readNote(ctx, in)
	if err == nil && n.Done {
		t.done, t.skipped = true, append(t.skipped, n.Skipped...)
	}
	return err
}

// putter is Put or Create of a store.
type putter func(ctx context.Context, key string, body io.ReaderAt, size int64) (store.Info, error)

func (t *prefix) write(ctx context.Context, put putter, key string, v any) (store.Info, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return store.Info{}, fmt.Errorf("write %s: %w", key, err)
	}
	return put(ctx, t.base+key, bytes.NewReader(b), int64(len(b)))
}

func (t *prefix) state() *finished { return &t.finished }

// durable implements target.
func (t *prefix) durable() (shards int, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settled.Shards, t.settled.Bytes
}

// begin makes a file without a name.
func (t *prefix) begin(string) (file, error) {
	f, err := nameless()
	if err != nil {
		return nil, writeError(os.TempDir(), err)
	}
	return f, nil
}

// keep uploads a shard beside the making of the next ones.
func (t *prefix) keep(ctx context.Context, f file, s Shard, skipped []Skipped) error {
	if err := t.broken(); err != nil {
		_ = f.Close() // it is never read
		return err
	}
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		_ = f.Close() // as above
		return ctx.Err()
	}
	t.shards, t.skipped = append(t.shards, s), append(t.skipped, skipped...)
	skipped = slices.Clone(skipped)
	t.g.Go(func() error {
		defer func() { <-t.turn }()
		defer f.Close() // nothing that is read is lost
		in, err := t.w.Put(t.ctx, t.base+s.Name, f, s.Bytes)
		if err == nil {
			_, err = t.write(t.ctx, t.w.Put, workName+"/"+s.Name+noteSuffix, note{line{Shard: &s, Skipped: skipped}, in.ETag})
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			if t.failure == nil {
				t.failure = t.failed(err)
			}
			return err
		}
		t.etags[s.Name] = in.ETag
		t.settled.Shards, t.settled.Bytes = t.settled.Shards+1, t.settled.Bytes+s.Bytes
		return nil
	})
	return nil
}

// broken is the first failure of an upload, or why the place is not this run's any more.
func (t *prefix) broken() error {
	if err := t.own.gone(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure
}

func (t *prefix) end(skipped []Skipped) error {
	_ = t.g.Wait() // broken has more words
	if err := t.broken(); err != nil {
		return err
	}
	if _, err := t.write(t.ctx, t.w.Put, endNote, note{line: line{Done: true, Skipped: skipped}}); err != nil {
		return t.failed(err)
	}
	t.skipped, t.done = append(t.skipped, skipped...), true
	return nil
}

// finish compares what the store has with what was written, and writes what readers look for.
func (t *prefix) finish(ctx context.Context, o options, classes []string) (*Manifest, error) {
	there, err := t.list(ctx)
	if err != nil {
		return nil, t.failed(err)
	}
	if err := t.own.check(ctx); err != nil {
		return nil, err
	}
	if err := t.same(ctx, there); err != nil {
		return nil, err
	}
	m := t.manifest(o, classes)
	if o.Format == MDS {
		b := mdsIndex(t.shards, o)
		if _, err := t.w.Put(ctx, t.base+indexName, bytes.NewReader(b), int64(len(b))); err != nil {
			return nil, t.failed(err)
		}
	}
	b, err := m.encode()
	if err != nil {
		return nil, err
	}
	if err := t.own.check(ctx); err != nil {
		return nil, err
	}
	if _, err := t.w.Put(ctx, t.base+ManifestName, bytes.NewReader(b), int64(len(b))); err != nil {
		return nil, t.failed(err)
	}
	return m, t.clean(ctx, there)
}

// same says what is not as this run wrote it.
func (t *prefix) same(ctx context.Context, there map[string]store.Info) error {
	odd := func(what string) error {
		return errs.New(errs.StateDamaged, t.uri, "remove everything below it, and pack again", "packing into %s: %s: "+
			"another program writes there", t.uri, what)
	}
	in, ok := there[optionsNote]
	if !ok {
		return odd("its options are gone")
	}
	n, err := t.readNote(ctx, in)
	if err != nil {
		return err
	}
	if n.Options == nil || n.Options.differs(t.opt) != "" {
		return odd("it is another pack's now")
	}
	known := map[string]bool{indexName: true}
	for i := range t.shards {
		s := &t.shards[i]
		known[s.Name] = true
		if in, ok := there[s.Name]; !ok || in.Size != s.Bytes || in.ETag != t.etags[s.Name] {
			return odd(s.Name + " is gone, or was changed")
		}
	}
	for key := range there { // order-free: any of them is refused
		if !known[key] && !strings.HasPrefix(key, workName+"/") {
			return odd(fmt.Sprintf("%q has appeared", key))
		}
	}
	return nil
}

// clean removes the notes, that of the options last; that of the owner is the owner's.
func (t *prefix) clean(ctx context.Context, there map[string]store.Info) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	names := []string{}
	for i := range t.shards {
		names = append(names, workName+"/"+t.shards[i].Name+noteSuffix)
	}
	for key := range there { // order-free: all of them are removed
		names = append(names, key)
	}
	slices.Sort(names)
	for _, key := range slices.Compact(names) {
		if strings.HasPrefix(key, workName+"/") && key != optionsNote && (key != ownerNote || t.own == nil) {
			g.Go(func() error { return t.w.Remove(gctx, t.base+key) })
		}
	}
	err := g.Wait()
	if _, ok := there[optionsNote]; ok && err == nil {
		err = t.w.Remove(ctx, t.base+optionsNote)
	}
	return t.failed(err)
}

// room implements target: a store does not say how much it has.
func (t *prefix) room(int64) error { return nil }

// close waits for what is on its way, which the next run need not do again then, and gives the place up.
func (t *prefix) close() {
	_ = t.g.Wait()
	t.own.release()
}

// failed says of a failure of the store how to go on.
func (t *prefix) failed(err error) error {
	e, ok := errors.AsType[*errs.Error](err)
	if !ok || t.ctx.Err() != nil || e.Reason == errs.AlreadyExists {
		return err
	}
	return errs.New(e.Reason, e.Subject, e.Hint+"; then run the same command again: it goes on after the last finished "+
		"shard", "%s", e.Message).Because(e.Err)
}
