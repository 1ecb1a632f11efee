package pack

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source"
	"larder/internal/store"
	"larder/internal/xrand"
)

// Result is what a run did.
type Result struct {
	URI      string    `json:"uri"` // how larder reads the pack
	Source   string    `json:"source"`
	Samples  int       `json:"samples"`
	Earlier  int       `json:"earlier"` // of them, packed by earlier runs
	Bytes    int64     `json:"bytes"`
	Shards   int       `json:"shards"`
	Encoded  int       `json:"encoded"` // images that are not the bytes of the source
	Encoder  string    `json:"encoder,omitempty"`
	Skipped  []Skipped `json:"skipped"`
	Verified int       `json:"verified"` // samples that were read back; 0 = not asked for
	Bad      []Damage  `json:"bad"`      // what was found then
	Stores   []Cost    `json:"stores"`   // what this run has cost, of each store
}

// Cost is what a run asked of a store.
type Cost struct {
	Name     string  `json:"name"`
	Reads    uint64  `json:"reads"`
	Lists    uint64  `json:"lists"`
	Writes   uint64  `json:"writes"`
	Deletes  uint64  `json:"deletes"`
	Received uint64  `json:"received"` // bytes
	Sent     uint64  `json:"sent"`     // bytes
	Retries  uint64  `json:"retries"`
	Money    float64 `json:"money"`
}

// costs are those of all stores that a run used.
func costs(s *store.Stores) []Cost {
	out := []Cost{}
	if s == nil {
		return out
	}
	for _, c := range s.Counters() {
		out = append(out, Cost{c.Name, c.Reads, c.Lists, c.Writes, c.Deletes, c.Bytes, c.Sent, c.Retries, c.Money})
	}
	return out
}

// Run packs, or goes on with what an earlier run with the same options left, or finds that there is nothing to do. Then
// it verifies, if asked for. Errors are *errs.Error: INVALID_ARGUMENT, those of source.Catalog, ALREADY_EXISTS when the
// target holds something else, RESOURCE_EXCEEDED when it has no room, SAMPLE_BAD or DATASET_UNREADABLE for the first
// sample that cannot be packed (without SkipBad); or the context's. After any of them, and after a kill, the same call
// goes on.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	// No saved index: its order of samples could follow from what the folder held before.
	cat, err := source.OpenCatalog(source.CatalogConfig{Stores: cfg.Stores, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer cat.Close()
	openSource := cat.Open
	if cfg.SkipEmpty {
		openSource = cat.OpenSkipEmpty
	}
	if source.IsMade(cfg.URI) {
		return nil, errs.New(errs.Unsupported, cfg.URI, "pack what its workers read",
			"packing %s: its samples are made by workers, and larder pack packs stored samples", cfg.URI)
	}
	data, err := openSource(ctx, cfg.URI)
	if err != nil {
		return nil, err
	}
	if data.Includes(cfg.To.Dir) {
		return nil, errs.New(errs.Invalid, cfg.To.Dir, "name a folder outside of it",
			"packing into %s: it lies in the source", cfg.To.Dir)
	}
	p := &packer{cfg: &cfg, cat: cat, data: data}
	if p.order, err = order(data, &cfg); err != nil {
		return nil, err
	}
	if s := data.Schema(); s != nil {
		if cfg.columns, err = p.columns(ctx, s); err != nil {
			return nil, err
		}
	}
	p.opt = cfg.options(data.URI(), data.Fingerprint())
	return p.run(ctx)
}

// order is the samples of the pack.
func order(data *source.Dataset, cfg *Config) (ids []ident.SampleID, err error) {
	if cfg.Subset != "" {
		if ids, err = data.Select(cfg.Subset); err != nil {
			return nil, err
		}
	} else {
		for s := range data.Len() {
			if id := ident.SampleID(s); data.Live(id) {
				ids = append(ids, id)
			}
		}
	}
	if cfg.Shuffle != 0 {
		xrand.New(cfg.Shuffle).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	}
	return ids, nil
}

type packer struct {
	cfg   *Config
	cat   *source.Catalog
	data  *source.Dataset
	opt   options
	order []ident.SampleID

	t       target
	shard   *open     // nil between two
	skipped []Skipped // not in the journal yet
	packed  int
	resumed bool // an earlier run's notes say what a part of the samples became
}

func (p *packer) run(ctx context.Context) (*Result, error) {
	t, m, err := openTarget(ctx, p.cfg, p.opt)
	if err != nil {
		return nil, err
	}
	earlier := 0
	if m != nil {
		earlier = m.Samples
	} else {
		defer t.close()
		p.t = t
		p.packed, _ = t.state().totals()
		earlier = p.packed
		p.resumed = t.state().next() > 0 || t.state().done
		if m, err = p.pack(ctx); err != nil {
			return nil, err
		}
	}
	r := &Result{URI: p.cfg.uri(), Source: m.Source, Samples: m.Samples, Earlier: earlier, Bytes: m.Bytes,
		Shards: len(m.Shards), Skipped: m.Skipped, Bad: []Damage{}}
	for i := range m.Shards {
		r.Encoded += m.Shards[i].Encoded
	}
	if r.Encoded > 0 {
		r.Encoder = m.Encoder
	}
	if p.cfg.Verify {
		r.Bad, err = verify(ctx, p.cfg, m)
		r.Verified = m.Samples
	}
	r.Stores = costs(p.cfg.Stores)
	return r, err
}

func (p *packer) pack(ctx context.Context) (*Manifest, error) {
	st := p.t.state()
	if st.next() > len(p.order) {
		return nil, errs.New(errs.StateDamaged, st.where, "remove it and pack again",
			"%s says that %d samples are done, and there are %d", st.where, st.next(), len(p.order))
	}
	if !st.done {
		if err := p.t.room(p.needs()); err != nil {
			return nil, err
		}
		if err := p.samples(ctx); err != nil {
			return nil, err
		}
	}
	if p.packed == 0 {
		return nil, errs.New(errs.DatasetEmpty, p.data.URI(), "larder dataset verify lists what is wrong with them",
			"packing %s: none of its %d samples can be packed", p.data.URI(), len(p.order))
	}
	if err := p.complete(); err != nil {
		return nil, err
	}
	if !st.done {
		if err := p.t.end(p.skipped); err != nil {
			return nil, err
		}
	}
	return p.t.finish(ctx, p.opt, p.data.Classes())
}

// complete refuses a pack in which samples are missing, or are twice.
func (p *packer) complete() error {
	st := p.t.state()
	packed, _ := st.totals()
	skipped := len(st.skipped) + len(p.skipped)
	if packed+skipped == len(p.order) {
		return nil
	}
	const what = "packing %s: %d samples are packed and %d left out, together %d of %d; no manifest is written"
	if p.resumed {
		return errs.New(errs.StateDamaged, st.where, "remove it and pack again", what, p.opt.Source, packed, skipped,
			packed+skipped, len(p.order))
	}
	return errs.New(errs.Internal, p.opt.Source, "report it, with this text and the command", what, p.opt.Source, packed,
		skipped, packed+skipped, len(p.order))
}

// needs is how much the rest takes at least, 0 where that is not known.
func (p *packer) needs() (n int64) {
	if p.cfg.encodes() || p.cfg.columns != nil {
		return 0
	}
	for _, id := range p.order[p.t.state().next():] {
		n += p.data.Bytes(id)
	}
	return n
}

// item is one sample on its way to the writer.
type item struct {
	at     int
	id     ident.SampleID
	weight int64
	s      *sample
	err    error
	done   chan struct{}
}

const (
	// aheadBytes bounds the stored bytes of what is read and encoded before it is its turn.
	aheadBytes = 256 << 20
	// aheadItems a worker.
	aheadItems = 8
)

// samples packs what is not packed yet. One goroutine hands samples out in order, workers make them, and this one waits
// for each in turn.
func (p *packer) samples(ctx context.Context) error {
	defer func() {
		if p.shard != nil {
			p.shard.drop()
		}
	}()
	workers := p.cfg.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	g, ctx := errgroup.WithContext(ctx)
	todo, turn := make(chan *item), make(chan *item, aheadItems*workers)
	ahead := cmp.Or(p.cfg.ahead, aheadBytes)
	room := semaphore.NewWeighted(ahead)
	g.Go(func() error {
		defer close(todo)
		defer close(turn)
		for at := p.t.state().next(); at < len(p.order); at++ {
			id := p.order[at]
			it := &item{at: at, id: id, weight: min(p.data.Bytes(id)+1, ahead), done: make(chan struct{})}
			if err := room.Acquire(ctx, it.weight); err != nil {
				return err
			}
			for _, to := range []chan *item{turn, todo} {
				select {
				case to <- it:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		return nil
	})
	for range workers {
		g.Go(func() error {
			m := newMaker(p.cfg, p.cat, p.data)
			defer m.w.Close()
			for it := range todo {
				it.s, it.err = m.make(ctx, it.at, it.id)
				close(it.done)
			}
			return nil
		})
	}
	g.Go(func() error {
		for it := range turn {
			select {
			case <-it.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := p.put(ctx, it); err != nil {
				return err
			}
			room.Release(it.weight)
			it.s = nil
		}
		if err := ctx.Err(); err != nil {
			return err // turn was closed early: what comes after is not the end
		}
		return p.endShard(ctx, len(p.order))
	})
	return g.Wait()
}

// put writes one sample, or skips it.
func (p *packer) put(ctx context.Context, it *item) error {
	if it.err != nil {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !p.cfg.SkipBad || !p.ofSample(ctx, it.id, it.err):
			return p.badSample(ctx, it.id, it.err) // what is packed stays packed, and the next run goes on
		}
		p.skipped = append(p.skipped, Skipped{p.data.Key(it.id), reason(it.err)})
		return nil
	}
	if p.shard != nil && p.shard.lay.size(it.s) > p.cfg.ShardSize {
		if err := p.endShard(ctx, it.at); err != nil {
			return err
		}
	}
	if p.shard == nil {
		var err error
		if p.shard, err = openShard(p.t, p.opt); err != nil {
			return err
		}
	}
	if err := p.shard.add(it.s); err != nil {
		return err
	}
	p.packed++
	p.tell(it.at)
	return nil
}

// endShard finishes the shard that is open, if one is.
func (p *packer) endShard(ctx context.Context, next int) error {
	if p.shard == nil {
		return nil
	}
	s := p.shard
	if err := s.finish(ctx, next, p.skipped); err != nil {
		return err
	}
	p.shard, p.skipped = nil, nil
	p.tell(next)
	return nil
}

// tell reports that all samples before a place are done.
func (p *packer) tell(at int) {
	shards, size := p.t.durable()
	p.cfg.Report(Progress{Phase: "pack", Samples: at, All: len(p.order), Bytes: size, Shards: shards})
}

// reason is an error without what the reader of a list knows.
func reason(err error) string {
	e := errs.From(err)
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}
