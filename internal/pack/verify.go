package pack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"larder/internal/errs"
	"larder/internal/source"
	"larder/internal/source/packed"
	"larder/internal/store"
)

// Damage is a shard that is not what the manifest says.
type Damage struct {
	Shard  string `json:"shard"`
	Reason string `json:"reason"`
}

// verify reads a finished pack back: the bytes of every shard, every label and image as larder's own reader finds them,
// and the whole as a dataset.
func verify(ctx context.Context, cfg *Config, m *Manifest) ([]Damage, error) {
	format, ok := packed.ByScheme(cfg.To.Format)
	if !ok {
		return nil, fmt.Errorf("no reader is named %q", cfg.To.Format)
	}
	workers := cfg.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	if cfg.To.remote() {
		workers = min(workers, uploads) // each has a file
	}
	bad := []Damage{}
	done := Progress{Phase: "verify", All: m.Samples}
	var mu sync.Mutex // guards bad and done
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range m.Shards {
		g.Go(func() error {
			s := &m.Shards[i]
			err := verifyShard(gctx, format, cfg, s)
			if gctx.Err() != nil {
				return gctx.Err()
			}
			if lost := (*unread)(nil); errors.As(err, &lost) {
				return readAgain(lost.err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				bad = append(bad, Damage{s.Name, err.Error()})
			}
			done.Samples, done.Bytes, done.Shards = done.Samples+s.Samples, done.Bytes+s.Bytes, done.Shards+1
			cfg.Report(done)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(bad, func(a, b Damage) int { return strings.Compare(a.Shard, b.Shard) })
	if len(bad) == 0 {
		if err := verifyWhole(ctx, cfg, m); err != nil {
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case store.Unreachable(err):
				return nil, readAgain(err)
			}
			bad = append(bad, Damage{cfg.To.URI(), err.Error()})
		}
	}
	return bad, nil
}

// unread is why a shard could not be fetched, which says nothing of what it holds.
type unread struct{ err error }

func (u *unread) Error() string { return u.err.Error() }

// readAgain says of a failure how to go on.
func readAgain(err error) error {
	e, ok := errors.AsType[*errs.Error](err)
	if !ok {
		return err
	}
	return errs.New(e.Reason, e.Subject, e.Hint+"; then run the same command again: the pack is finished, and is read "+
		"back", "%s", e.Message).Because(e.Err)
}

// verifyShard reads one file twice: as bytes, and as samples. One of a store is fetched for that.
func verifyShard(ctx context.Context, format packed.Format, cfg *Config, s *Shard) error {
	to := cfg.To
	path := to.Dir + "/" + s.Name
	open := os.Open
	if to.remote() {
		open = func(string) (*os.File, error) { return fetch(ctx, cfg.Stores, path) }
	}
	f, err := open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() != s.Bytes {
		return fmt.Errorf("it has %d bytes, and the manifest says %d", st.Size(), s.Bytes)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, reader{ctx, io.NewSectionReader(f, 0, st.Size())}); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != s.SHA256 {
		return fmt.Errorf("its SHA-256 is %.16s…, and the manifest says %.16s…", got, s.SHA256)
	}
	read := readImages
	if cfg.columns != nil {
		read = readRecords
	}
	content, n, err := read(ctx, format, cfg, packed.File{ReaderAt: f, Path: path, Size: st.Size()})
	switch {
	case err != nil:
		return err
	case n != s.Samples:
		return fmt.Errorf("it has %d samples, and the manifest says %d", n, s.Samples)
	case hexOf(content) != s.Content:
		return errors.New("its samples are not those that were packed")
	}
	return nil
}

// readImages hashes every label and image of a shard.
func readImages(ctx context.Context, format packed.Format, cfg *Config, f packed.File) (*xxhash.Digest, int, error) {
	content, n := xxhash.New(), 0
	var buf []byte
	_, err := format.Scan(ctx, packed.Address{Scheme: cfg.To.Format, Path: cfg.To.Dir}, f, func(x packed.Sample) error {
		if int64(cap(buf)) < x.Size {
			buf = make([]byte, x.Size)
		}
		buf = buf[:x.Size]
		if _, err := f.ReadAt(buf, x.Off); err != nil {
			return fmt.Errorf("sample %s at byte %d: %w", x.Key, x.Off, err)
		}
		hashSample(content, x.Label, buf)
		n++
		return nil
	})
	return content, n, err
}

// fetched is how much of an object is in memory at once.
const fetched = 16 << 20

// fetch copies an object into a file without a name. Errors are *unread, but where the object is gone or changes.
func fetch(ctx context.Context, stores *store.Stores, uri string) (*os.File, error) {
	failed := func(err error) (*os.File, error) {
		if errors.Is(err, store.ErrNotExist) || errors.Is(err, store.ErrChanged) {
			return nil, err
		}
		return nil, &unread{err}
	}
	st, key, err := stores.Open(ctx, uri)
	if err != nil {
		return failed(err)
	}
	in, err := st.Stat(ctx, key)
	if err != nil {
		return failed(err)
	}
	f, err := nameless()
	if err != nil {
		return nil, noTemporary(err)
	}
	buf := make([]byte, min(fetched, in.Size))
	for off := int64(0); off < in.Size; off += fetched {
		n, err := st.ReadRange(ctx, in, off, buf[:min(fetched, in.Size-off)])
		if err != nil {
			_ = f.Close() // it is given up
			return failed(err)
		}
		if _, err := f.WriteAt(buf[:n], off); err != nil {
			_ = f.Close() // as above
			return nil, noTemporary(err)
		}
	}
	return f, nil
}

// noTemporary is the error of a file for what is fetched.
func noTemporary(err error) error {
	return &unread{errs.New(errs.ResourceExceeded, os.TempDir(), "free some room there, or name another folder in TMPDIR",
		"write a shard of the pack into %s, the folder for temporary files", os.TempDir()).Because(err)}
}

// verifyWhole opens the pack as a dataset.
func verifyWhole(ctx context.Context, cfg *Config, m *Manifest) error {
	cat, err := source.OpenCatalog(source.CatalogConfig{Stores: cfg.Stores, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer cat.Close()
	data, err := cat.Open(ctx, cfg.uri())
	if err != nil {
		return err
	}
	if data.LiveCount() != m.Samples {
		return fmt.Errorf("the folder has %d samples, and the manifest says %d: are there files of others?",
			data.LiveCount(), m.Samples)
	}
	return nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context //nolint:containedctx // of one copy
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
