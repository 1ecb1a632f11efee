package pack

import (
	"context"
	"log/slog"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
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
			"packing %s: its samples are made by workers, and larder pack packs stored images", cfg.URI)
	}
	data, err := openSource(ctx, cfg.URI)
	if err != nil {
		return nil, err
	}
	if data.Schema() != nil {
		return nil, errs.New(errs.Unsupported, data.URI(), "pack the images alone: name the dataset without ?fields=",
			"packing %s: its samples are records of fields, and larder pack packs images with labels", data.URI())
	}
	if root := data.Root(); root == cfg.To.Dir || strings.HasPrefix(cfg.To.Dir, strings.TrimSuffix(root, "/")+"/") {
		return nil, errs.New(errs.Invalid, cfg.To.Dir, "name a folder outside of it",
			"packing into %s: it lies in the source", cfg.To.Dir)
	}
	p := &packer{cfg: &cfg, cat: cat, data: data, opt: cfg.options(data.URI(), data.Fingerprint())}
	if p.order, err = order(data, &cfg); err != nil {
		return nil, err
	}
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

	t       *target
	shard   *open     // nil between two
	skipped []Skipped // not in the journal yet
	packed  int
}

func (p *packer) run(ctx context.Context) (*Result, error) {
	t, m, err := openTarget(p.cfg.To, p.opt, p.cfg.disk)
	if err != nil {
		return nil, err
	}
	earlier := 0
	if m != nil {
		earlier = m.Samples
	} else {
		defer t.close()
		p.t = t
		p.packed, _ = t.totals()
		earlier = p.packed
		if m, err = p.pack(ctx); err != nil {
			return nil, err
		}
	}
	r := &Result{URI: p.cfg.To.URI(), Source: m.Source, Samples: m.Samples, Earlier: earlier, Bytes: m.Bytes,
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
	return r, err
}

func (p *packer) pack(ctx context.Context) (*Manifest, error) {
	if p.t.next() > len(p.order) {
		return nil, errs.New(errs.StateDamaged, p.t.journal.Name(), "remove "+p.t.work+" and pack again",
			"%s says that %d samples are done, and there are %d", p.t.journal.Name(), p.t.next(), len(p.order))
	}
	if !p.t.done {
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
	if !p.t.done {
		if err := p.t.log(line{Done: true, Skipped: p.skipped}); err != nil {
			return nil, err
		}
		p.t.skipped = append(p.t.skipped, p.skipped...)
	}
	return p.t.finish(p.opt, p.data.Classes())
}

// needs is how much the rest takes at least, 0 where that is not known.
func (p *packer) needs() (n int64) {
	if p.cfg.encodes() {
		return 0
	}
	for _, id := range p.order[p.t.next():] {
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
	room := semaphore.NewWeighted(aheadBytes)
	g.Go(func() error {
		defer close(todo)
		defer close(turn)
		for at := p.t.next(); at < len(p.order); at++ {
			id := p.order[at]
			it := &item{at: at, id: id, weight: min(p.data.Bytes(id)+1, aheadBytes), done: make(chan struct{})}
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
			m := &maker{cfg: p.cfg, cat: p.cat, data: p.data, w: prep.NewWorker(prep.Limits{})}
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
		return p.endShard(len(p.order))
	})
	return g.Wait()
}

// put writes one sample, or skips it.
func (p *packer) put(ctx context.Context, it *item) error {
	if it.err != nil {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !p.ofSample(it.err):
			return it.err // what is packed stays packed, and the next run goes on
		case !p.cfg.SkipBad:
			e := errs.From(it.err)
			return errs.New(e.Reason, p.data.Path(it.id), "repair or remove it, or leave such samples out with "+
				"--on-error skip; what is packed stays packed", "packing sample %s", p.data.Key(it.id)).Because(it.err)
		}
		p.skipped = append(p.skipped, Skipped{p.data.Key(it.id), reason(it.err)})
		return nil
	}
	if p.shard != nil && p.shard.lay.size(it.s) > p.cfg.ShardSize {
		if err := p.endShard(it.at); err != nil {
			return err
		}
	}
	if p.shard == nil {
		var err error
		if p.shard, err = p.t.openShard(p.opt); err != nil {
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
func (p *packer) endShard(next int) error {
	if p.shard == nil {
		return nil
	}
	s := p.shard
	if err := s.finish(next, p.skipped); err != nil {
		return err
	}
	p.shard, p.skipped = nil, nil
	p.tell(next)
	return nil
}

// tell reports that all samples before a place are done.
func (p *packer) tell(at int) {
	_, size := p.t.totals()
	p.cfg.Report(Progress{Phase: "pack", Samples: at, All: len(p.order), Bytes: size, Shards: len(p.t.shards)})
}

// reason is an error without what the reader of a list knows.
func reason(err error) string {
	e := errs.From(err)
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}
