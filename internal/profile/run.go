package profile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/store"
	"larder/internal/xrand"
)

// Config says what to measure.
type Config struct {
	URI          string
	Recipe       *prep.Recipe
	Seconds      float64       // all measuring together, 1 to 3600; indexing comes on top
	Workers      int           // 0 = one per core
	IndexDir     string        // of saved indexes; "" = the dataset is walked
	StorageLimit int64         // bytes a second, 0 = none
	Disk         string        // directory in which a disk tier would be; "" = none is measured
	Stores       *store.Stores // of datasets that lie behind a network; nil = those are refused
	Limits       prep.Limits   // of one image
	Logger       *slog.Logger  // nil = silent
}

// Parts of the time, and the memory that measuring may take.
const (
	partRead    = .30
	partDecode  = .17
	partPrepare = .22
	partAugment = .18
	partFinish  = .06
	partMemory  = .05

	maxLooked  = 4096
	leastRead  = 16        // a dataset of so few samples is read whole, whatever time that takes
	maxEncoded = 256 << 20 // bytes of samples held for the phases after reading
	maxDecoded = 128 << 20
	copyBuffer = 32 << 20 // larger than a core's share of any cache
	maxPasses  = 5        // over the files
)

// looked is what the phases work on.
type looked struct {
	objects []ident.ObjectID
	paths   []string
	encoded [][]byte
	images  []prep.Image // decoded
	ready   []prep.Image // augmented
}

type run struct {
	cfg    Config
	cat    *source.Catalog
	out    *Profile
	looked looked
	mu     sync.Mutex // guards the failures in out
}

// Validate refuses times that cannot be waited for.
func (c *Config) Validate() error {
	if !(c.Seconds >= 1 && c.Seconds <= 3600) {
		return errs.New(errs.Invalid, "seconds", "20 is enough for most datasets",
			"measuring for %v seconds: it must be 1 to 3600", c.Seconds)
	}
	return nil
}

// Run measures. Errors are *errs.Error of the dataset (DATASET_UNREADABLE, DATASET_EMPTY, SAMPLE_BAD when no sample can
// be prepared), or the context's. A read that hangs in the kernel makes it hang.
func Run(ctx context.Context, cfg Config) (*Profile, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Workers <= 0 {
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cat, err := source.OpenCatalog(source.CatalogConfig{IndexDir: cfg.IndexDir, StorageLimit: cfg.StorageLimit,
		Stores: cfg.Stores, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	defer cat.Close()
	data, err := cat.Open(ctx, cfg.URI)
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, cat: cat, out: &Profile{Version: Version, Machine: ThisMachine(), Workers: cfg.Workers,
		Dataset: Dataset{URI: data.URI(), Samples: int64(data.LiveCount()), Bytes: data.TotalBytes()}}}
	r.out.Recipe = Recipe{ID: cfg.Recipe.ID().String(), Prefix: cfg.Recipe.Prefix().String(), Random: cfg.Recipe.Random()}
	for _, o := range cfg.Recipe.Ops() {
		r.out.Recipe.Ops = append(r.out.Recipe.Ops, o.Name)
	}
	r.choose(data)
	begun := time.Now()
	for _, phase := range []func(context.Context) error{r.read, r.disk, r.decode, r.prepare, r.augment, r.finish,
		r.memory} {
		if err := phase(ctx); err != nil {
			return nil, err
		}
	}
	r.out.Seconds = time.Since(begun).Seconds()
	return r.out, nil
}

// choose draws samples at random, the same ones for the same dataset: the first ones are often all of one class.
func (r *run) choose(data *source.Dataset) {
	var ids []ident.SampleID
	for i := range data.Len() {
		if s := ident.SampleID(i); data.Live(s) {
			ids = append(ids, s)
		}
	}
	rnd := xrand.New(data.Fingerprint())
	rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	total := int64(0)
	for _, s := range ids[:min(len(ids), maxLooked)] {
		if n := data.Bytes(s); len(r.looked.objects) < r.cfg.Workers || total+n <= maxEncoded {
			total += n
			r.looked.objects = append(r.looked.objects, data.Object(s))
			r.looked.paths = append(r.looked.paths, data.Path(s))
		}
	}
	r.out.Looked = len(r.looked.objects)
	r.out.Bytes.Stored = float64(data.TotalBytes()) / float64(max(data.LiveCount(), 1))
	r.out.Bytes.Encoded = r.out.Bytes.Stored // larder keeps the original bytes
}

func (r *run) slice(part float64) time.Time {
	return time.Now().Add(time.Duration(part * r.cfg.Seconds * float64(time.Second)))
}

// read measures storage: passes over the chosen files by all workers, each after the files were put out of the page
// cache. Only whole passes are timed, so that putting files out costs nothing that counts.
func (r *run) read(ctx context.Context) error {
	until := r.slice(partRead)
	r.looked.encoded = make([][]byte, len(r.looked.objects))
	st := &r.out.Storage
	st.Limit = r.cfg.StorageLimit
	st.Cold = -1
	var bytes, reads int64
	var spent time.Duration
	for st.Passes == 0 || st.Passes < maxPasses && time.Now().Before(until) {
		r.dropAll(ctx, until)
		begun, end := time.Now(), until
		if n := len(r.looked.objects); st.Passes == 0 && n <= leastRead {
			end = begun.Add(24 * time.Hour) // a mean of fewer would be of no use
		}
		pass := r.each(ctx, len(r.looked.objects), end, func(_ *prep.Worker, i int) (int64, error) {
			b, err := r.cat.Read(ctx, r.looked.objects[i], r.looked.encoded[i][:0])
			if err == nil {
				r.looked.encoded[i] = b
			}
			return int64(len(b)), err
		})
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("measure storage: %w", err)
		}
		spent += time.Since(begun)
		bytes += pass.bytes
		reads += pass.done
		st.Passes++
	}
	if reads == 0 || bytes == 0 {
		return errs.New(errs.DatasetUnread, r.out.Dataset.URI, "larder dataset inspect shows samples; check their rights",
			"none of %d samples could be read: %s", len(r.looked.objects), r.out.FirstFail)
	}
	st.BytesPerSecond, st.SamplesPerSecond = float64(bytes)/spent.Seconds(), float64(reads)/spent.Seconds()
	// the bucket was full at first, which does not last
	if limit := float64(st.Limit); limit > 0 && st.BytesPerSecond > limit {
		st.SamplesPerSecond *= limit / st.BytesPerSecond
		st.BytesPerSecond = limit
	}
	kept := r.looked.encoded[:0]
	for _, b := range r.looked.encoded { // time may have ended before all were read
		if len(b) > 0 {
			kept = append(kept, b)
		}
	}
	r.looked.encoded = kept
	r.out.Looked = len(kept) + r.out.Bad
	return nil
}

// dropAll puts the chosen files out of the page cache, and notes once how that went. Nothing here caches a store.
func (r *run) dropAll(ctx context.Context, until time.Time) {
	st := &r.out.Storage
	if store.IsRemote(r.looked.paths[0]) {
		st.Cold, st.Method = 1, "requests to the store"
		return
	}
	dropped := 0
	for i, p := range r.looked.paths {
		if drop(p) {
			dropped++
		}
		if i%64 == 0 && (ctx.Err() != nil || time.Now().After(until)) {
			break
		}
	}
	if st.Passes == 0 {
		st.Cold = coldPart(r.looked.paths)
		st.Method = fmt.Sprintf("posix_fadvise(DONTNEED) on %d of %d files before each pass", dropped, len(r.looked.paths))
	}
}

// decode measures the prefix, and keeps images for the phases after it.
func (r *run) decode(ctx context.Context) error {
	images := make([]prep.Image, len(r.looked.encoded))
	sizes := make([]int64, len(r.looked.encoded))
	held := int64(0)
	m := r.loop(ctx, len(images), partDecode, func(w *prep.Worker, i int) (int64, error) {
		img, err := w.DecodeCompact(r.cfg.Recipe, r.looked.encoded[i], func(n int) ([]byte, error) {
			if cap(images[i].Pix) >= n {
				return images[i].Pix[:n], nil
			}
			return make([]byte, n), nil
		})
		if err != nil {
			return 0, err
		}
		n := int64(len(img.Pix))
		r.mu.Lock()
		defer r.mu.Unlock()
		if sizes[i] == 0 && held+n <= max(maxDecoded, int64(r.cfg.Workers)*n) {
			held += n
			images[i] = img
		}
		sizes[i] = n
		return n, nil
	})
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("measure decoding: %w", err)
	}
	sum, seen := int64(0), 0
	kept := r.looked.encoded[:0]
	for i, n := range sizes {
		if images[i].Pix != nil {
			r.looked.images = append(r.looked.images, images[i])
		}
		if n > 0 {
			sum += n
			seen++
			kept = append(kept, r.looked.encoded[i])
		}
	}
	if seen == 0 {
		return errs.New(errs.SampleBad, r.out.Dataset.URI, "larder dataset inspect shows samples and their format",
			"none of the samples that were looked at can be decoded: %s", r.out.FirstFail)
	}
	r.looked.encoded = kept
	r.out.Bytes.Decoded = float64(sum) / float64(seen)
	r.out.Rates.Decode, r.out.CPU.Decode = m.rate, m.perCPU()
	return nil
}

// prepare measures all the work of a sample that no tier holds but encoded: T_D+A.
func (r *run) prepare(ctx context.Context) error {
	rows := r.rows()
	whole := make([][]byte, r.cfg.Workers)
	m := r.loopWorker(ctx, len(r.looked.encoded), partPrepare, func(k int, w *prep.Worker, i int) (int64, error) {
		img, err := w.DecodeCompact(r.cfg.Recipe, r.looked.encoded[i], func(n int) ([]byte, error) {
			if cap(whole[k]) < n {
				whole[k] = make([]byte, n)
			}
			return whole[k][:n], nil
		})
		if err != nil {
			return 0, err
		}
		return r.row(w, img, i, &rows[k])
	})
	r.out.Rates.DecodeAugment, r.out.CPU.DecodeAugment = m.rate, m.perCPU()
	return r.check(ctx, "preparing", m)
}

// augment measures the work of a sample that lies decoded in memory: T_A.
func (r *run) augment(ctx context.Context) error {
	rows := r.rows()
	m := r.loopWorker(ctx, len(r.looked.images), partAugment, func(k int, w *prep.Worker, i int) (int64, error) {
		return r.row(w, r.looked.images[i], i, &rows[k])
	})
	r.out.Rates.Augment, r.out.CPU.Augment = m.rate, m.perCPU()
	if m.done > 0 {
		r.out.Bytes.Delivered = float64(m.bytes) / float64(m.done)
	}
	return r.check(ctx, "augmenting", m)
}

// rows are the workers' places in a batch.
func (r *run) rows() [][]byte {
	rows := make([][]byte, r.cfg.Workers)
	for k := range rows {
		rows[k] = make([]byte, r.cfg.Recipe.Output().SampleBytes)
	}
	return rows
}

// row augments one image into a row of a batch, as the daemon fills slots.
func (r *run) row(w *prep.Worker, img prep.Image, i int, dst *[]byte) (int64, error) {
	key := prep.RandKey{Seed: 1, Sample: uint64(i)}
	if r.cfg.Recipe.Output().Ragged {
		out, err := w.Augment(r.cfg.Recipe, img, key, func(n int) ([]byte, error) {
			if cap(*dst) < n {
				*dst = make([]byte, n)
			}
			return (*dst)[:n], nil
		})
		return int64(len(out.Pix)), err
	}
	return int64(len(*dst)), w.AugmentInto(r.cfg.Recipe, img, key, *dst)
}

// finish measures the work of a hit of augmented.
func (r *run) finish(ctx context.Context) error {
	w := prep.NewWorker(r.cfg.Limits)
	defer w.Close()
	sum := int64(0)
	for i, img := range r.looked.images[:min(len(r.looked.images), 256)] {
		a, err := w.Augment(r.cfg.Recipe, img, prep.RandKey{Seed: 1, Sample: uint64(i)},
			func(n int) ([]byte, error) { return make([]byte, n), nil })
		if err != nil {
			continue // it was counted before
		}
		r.looked.ready = append(r.looked.ready, a)
		if sum += int64(len(a.Pix)); sum > maxDecoded {
			break
		}
	}
	if len(r.looked.ready) == 0 {
		return errs.New(errs.SampleBad, r.out.Dataset.URI, "larder dataset inspect shows samples and their format",
			"no sample can be augmented: %s", r.out.FirstFail)
	}
	r.out.Bytes.Augmented = float64(sum) / float64(len(r.looked.ready))
	rows := r.rows()
	m := r.loopWorker(ctx, len(r.looked.ready), partFinish, func(k int, w *prep.Worker, i int) (int64, error) {
		img := r.looked.ready[i]
		if n := len(img.Pix); r.cfg.Recipe.Output().Ragged && len(rows[k]) < n {
			rows[k] = make([]byte, n)
		}
		return int64(len(rows[k])), w.Finish(r.cfg.Recipe, img, prep.RandKey{Seed: 1, Sample: uint64(i)}, rows[k])
	})
	r.out.Rates.Finish, r.out.CPU.Finish = m.rate, m.perCPU()
	return r.check(ctx, "finishing", m)
}

// memory measures copying between buffers that no cache holds.
func (r *run) memory(ctx context.Context) error {
	n := min(copyBuffer, (1<<30)/(2*r.cfg.Workers))
	from, to := make([][]byte, r.cfg.Workers), make([][]byte, r.cfg.Workers)
	for k := range from {
		from[k], to[k] = make([]byte, n), make([]byte, n)
		for i := 0; i < n; i += 4096 { // touch the pages: untouched ones are all one page of zeros
			from[k][i], to[k][i] = byte(i>>12), 1
		}
	}
	m := r.loopWorker(ctx, math.MaxInt32, partMemory, func(k int, _ *prep.Worker, _ int) (int64, error) {
		return int64(copy(to[k], from[k])), nil
	})
	r.out.Memory = m.byteRate
	return r.check(ctx, "copying", m)
}

func (r *run) check(ctx context.Context, what string, m meter) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("measure %s: %w", what, err)
	}
	if m.done == 0 || !(m.rate > 0) {
		return errs.New(errs.SampleBad, r.out.Dataset.URI, "larder dataset inspect shows samples and their format",
			"%s: no sample came through: %s", what, r.out.FirstFail)
	}
	return nil
}

// meter is what workers did together.
type meter struct {
	done, bytes int64
	cpu         float64 // seconds of processor time that the process took meanwhile
	// sums over workers of what each did in its own time, so that the last sample of one does not idle others
	rate, byteRate float64
}

// perCPU is samples a second of processor time.
func (m *meter) perCPU() float64 {
	if !(m.cpu > 0) {
		return 0
	}
	return float64(m.done) / m.cpu
}

// processorTime is what this process used of it so far, in seconds.
func processorTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// each does every index once, split among workers, until a time.
func (r *run) each(ctx context.Context, n int, until time.Time, f func(w *prep.Worker, i int) (int64, error)) meter {
	return r.work(ctx, until, func(k, turn int) int {
		if i := k + turn*r.cfg.Workers; i < n {
			return i
		}
		return -1
	}, func(_ int, w *prep.Worker, i int) (int64, error) { return f(w, i) })
}

// loop does indexes again and again for a part of the time.
func (r *run) loop(ctx context.Context, n int, part float64, f func(w *prep.Worker, i int) (int64, error)) meter {
	return r.loopWorker(ctx, n, part, func(_ int, w *prep.Worker, i int) (int64, error) { return f(w, i) })
}

func (r *run) loopWorker(ctx context.Context, n int, part float64, f func(k int, w *prep.Worker, i int) (int64,
	error)) meter {
	own := (n + r.cfg.Workers - 1) / r.cfg.Workers // each worker stays with its own indexes, so that f may write to them
	return r.work(ctx, r.slice(part), func(k, turn int) int {
		i := k + turn%own*r.cfg.Workers
		if i >= n {
			if k >= n {
				return -1 // fewer samples than workers
			}
			return k
		}
		return i
	}, f)
}

// work runs the workers. A panic of a decoder is a failure of its sample.
func (r *run) work(ctx context.Context, until time.Time, next func(k, turn int) int,
	f func(k int, w *prep.Worker, i int) (int64, error)) meter {
	var total meter
	var wg sync.WaitGroup
	failed := map[int]bool{}
	used := processorTime()
	for k := range r.cfg.Workers {
		wg.Go(func() {
			w := prep.NewWorker(r.cfg.Limits)
			defer w.Close()
			guarded := func(i int) (n int64, err error) {
				defer func() {
					if p := recover(); p != nil {
						err = fmt.Errorf("larder panicked while preparing it: %v", p)
					}
				}()
				return f(k, w, i)
			}
			var own meter
			begun := time.Now()
			for turn := 0; ctx.Err() == nil; turn++ {
				i := next(k, turn)
				if i < 0 || turn > 0 && time.Now().After(until) {
					break
				}
				n, err := guarded(i)
				if err != nil {
					r.fail(failed, i, err)
					continue
				}
				own.done++
				own.bytes += n
			}
			spent := time.Since(begun).Seconds()
			r.mu.Lock()
			defer r.mu.Unlock()
			total.done += own.done
			total.bytes += own.bytes
			if spent > 0 {
				total.rate += float64(own.done) / spent
				total.byteRate += float64(own.bytes) / spent
			}
		})
	}
	wg.Wait()
	total.cpu = processorTime() - used
	return total
}

func (r *run) fail(failed map[int]bool, i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed[i] || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	failed[i] = true
	r.out.Bad++
	if r.out.FirstFail == "" {
		r.out.FirstFail = strings.ToValidUTF8(err.Error(), "\uFFFD")
	}
}

// drop puts a file out of the page cache. Dirty pages and files that others map stay.
func drop(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) == nil
}

// coldPart probes some files: a read that must not wait fails where the page is not in memory. -1 = the system
// does not say.
func coldPart(paths []string) float64 {
	cold, probed := 0, 0
	for k := 0; k < len(paths); k += max(len(paths)/64, 1) {
		fd, err := unix.Open(paths[k], unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		var b [1]byte
		_, err = unix.Preadv2(fd, [][]byte{b[:]}, 0, unix.RWF_NOWAIT)
		_ = unix.Close(fd) // nothing was written
		switch {
		case errors.Is(err, unix.EAGAIN):
			cold++
			probed++
		case err == nil:
			probed++
		}
	}
	if probed == 0 {
		return -1
	}
	return float64(cold) / float64(probed)
}
