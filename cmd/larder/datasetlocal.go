package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source"
	"larder/internal/store"
)

// localData is a dataset that this process reads itself, with the saved index of the user's daemon.
type localData struct {
	cat    *source.Catalog
	data   *source.Dataset
	stores *store.Stores
}

// openLocal indexes a dataset, or checks the saved index of it. Stores are reached as a daemon would that LARDER_CONFIG
// and the environment configure.
func openLocal(ctx context.Context, uri string, skipEmpty bool) (*localData, error) {
	stores, err := ownStores()
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	l := &localData{stores: stores}
	l.cat, err = source.OpenCatalog(source.CatalogConfig{IndexDir: config.DetectMachine().IndexDir, Stores: l.stores,
		Logger: quiet})
	if err != nil {
		l.stores.Close()
		return nil, err
	}
	open := l.cat.Open
	if skipEmpty {
		open = l.cat.OpenSkipEmpty
	}
	if l.data, err = open(ctx, uri); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// ownStores are for commands that read without a daemon: stores are reached as one would be that LARDER_CONFIG and the
// environment configure. Close them.
func ownStores() (*store.Stores, error) {
	cfg, err := config.Load(os.Getenv("LARDER_CONFIG"), os.Environ(), nil)
	if err != nil {
		return nil, err
	}
	return store.New(store.Config{Settings: daemon.StoreSettings(cfg), Log: slog.New(slog.DiscardHandler)}), nil
}

func (l *localData) close() {
	_ = l.cat.Close() // it wrote nothing that could be lost
	l.stores.Close()
}

// ids are the samples of a subset, every one if it is "".
func (l *localData) ids(subset string) ([]ident.SampleID, error) {
	if subset != "" {
		return l.data.Select(subset)
	}
	ids := make([]ident.SampleID, 0, l.data.LiveCount())
	for s := range l.data.Len() {
		if id := ident.SampleID(s); l.data.Live(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// spread takes n of the samples at equal distances; 0 = all.
func spread(ids []ident.SampleID, n int) []ident.SampleID {
	if n <= 0 || n >= len(ids) {
		return ids
	}
	some := make([]ident.SampleID, n)
	for i := range some {
		some[i] = ids[i*len(ids)/n]
	}
	return some
}

// each calls do for every index below n, from so many goroutines; 0 = one for each core. start is called once by each
// of them, with a context that ends when one fails, and end when it is done. It returns the first error of do. When ctx
// ends before all are done it returns its error: do may have failed because of that, and what it collected is worth
// nothing.
func each(
	ctx context.Context, n, workers int, start func(ctx context.Context) (do func(i int) error, end func()),
) error {
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	g, inner := errgroup.WithContext(ctx)
	for range min(workers, max(1, n)) {
		g.Go(func() error {
			do, end := start(inner)
			defer end()
			for inner.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := do(i); err != nil {
					return err
				}
			}
			return inner.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err() // the last ones were asked for before it ended
}

// lost is the error of a sample whose storage fails as a whole, which says nothing of the sample. nil = that is what is
// wrong.
func (l *localData) lost(ctx context.Context, s ident.SampleID, err error) error {
	if !errs.Is(err, errs.DatasetUnread) || !l.cat.Away(ctx, l.data.Object(s), err) {
		return nil
	}
	f := errs.From(err)
	return errs.New(errs.DatasetUnread, f.Subject, "see that the storage answers, then run the same command again",
		"the storage of %s fails: %s", l.data.URI(), f.Message).Because(f.Err)
}

// found lists a bad sample, unless its storage is what fails.
func (l *localData) found(ctx context.Context, s ident.SampleID, err error, to *badList) error {
	if err := l.lost(ctx, s, err); err != nil {
		return err
	}
	to.add(l.badOf(s, err))
	return nil
}

// badList collects bad samples from several goroutines.
type badList struct {
	mu   sync.Mutex
	list []badFile
}

func (b *badList) add(f badFile) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, f)
}

func (b *badList) sorted() []badFile {
	slices.SortFunc(b.list, func(a, b badFile) int { return int(int64(a.ID) - int64(b.ID)) })
	if b.list == nil {
		return []badFile{}
	}
	return b.list
}
