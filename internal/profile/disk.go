package profile

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/xrand"
	"larder/tiers/disk"
)

// Disk is how fast a disk tier in a directory serves samples of the profiled sizes, drawn at random.
type Disk struct {
	Dir            string  `json:"dir"`
	BytesPerSecond float64 `json:"bytes_per_second"` // to all workers at once, checksums included
	Latency        float64 `json:"latency_seconds"`  // of one sample to one reader: the median
	Method         string  `json:"method"`           // how the page cache was kept out
	Cold           float64 `json:"cold"`             // part of the files that were not cached then; -1 = unknown
}

const (
	partDisk    = .1
	latencyLook = 200 // samples
	diskGroup   = "profile"
)

// disk measures the disk tier that would be in cfg.Disk, with a tier of its own below it, which is removed again.
func (r *run) disk(ctx context.Context) error {
	if r.cfg.Disk == "" {
		return nil
	}
	wrap := func(err error) error {
		return errs.New(errs.Invalid, r.cfg.Disk, "name a directory on a local disk that you may write to",
			"measure the disk tier in %s", r.cfg.Disk).Because(err)
	}
	if err := os.MkdirAll(r.cfg.Disk, 0o700); err != nil {
		return wrap(err)
	}
	dir, err := os.MkdirTemp(r.cfg.Disk, "profile-*")
	if err != nil {
		return wrap(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what cannot be removed is a file of the user's, who sees it
	if err := r.fillDisk(dir); err != nil {
		return wrap(err)
	}
	d := &Disk{Dir: r.cfg.Disk}
	dropped, paths := 0, []string{}
	list, err := os.ReadDir(dir)
	if err != nil {
		return wrap(err)
	}
	for _, e := range list {
		p := filepath.Join(dir, e.Name())
		paths = append(paths, p)
		if drop(p) {
			dropped++
		}
	}
	d.Cold = coldPart(paths)
	d.Method = fmt.Sprintf("fsync and posix_fadvise(DONTNEED) on %d of %d files", dropped, len(paths))
	t, err := disk.Open(disk.Config{Dir: dir, Size: diskRoom, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return wrap(err)
	}
	defer func() { _ = t.Close() }() // it is removed anyway
	if err := r.readDisk(ctx, t, d); err != nil {
		return wrap(err)
	}
	r.out.Disk = d
	return nil
}

const diskRoom = 4 * maxEncoded

// fillDisk writes the samples that were read, and has them on the disk.
func (r *run) fillDisk(dir string) error {
	t, err := disk.Open(disk.Config{Dir: dir, Size: diskRoom, Queue: diskRoom})
	if err != nil {
		return err
	}
	for i, b := range r.looked.encoded {
		t.Put(disk.Whom{Group: diskGroup}, r.diskKey(i), b)
	}
	t.Flush()
	written := t.Stats()
	if err := t.Close(); err != nil {
		return err
	}
	if written.Entries < len(r.looked.encoded) {
		return fmt.Errorf("%d of %d samples could be written: %s", written.Entries, len(r.looked.encoded), written.State)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		err = f.Sync()
		if err2 := f.Close(); err == nil {
			err = err2
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) diskKey(i int) disk.Key {
	return disk.Key{Place: diskGroup, Object: fmt.Sprint(i), Size: int64(len(r.looked.encoded[i]))}
}

// readDisk reads some samples one after another, then the others by all workers, each sample once.
func (r *run) readDisk(ctx context.Context, t *disk.Store, d *Disk) error {
	n := len(r.looked.encoded)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	rnd := xrand.New(uint64(n))
	rnd.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	get := func(i int) (int64, error) {
		k := r.diskKey(order[i])
		buf := make([]byte, k.Size)
		if !t.Get(disk.Whom{Group: diskGroup}, k, buf) {
			return 0, fmt.Errorf("a sample was not there any more: %s", t.Stats().State)
		}
		return k.Size, nil
	}
	first := min(latencyLook, (n+1)/2)
	var took []time.Duration
	for i := range first {
		begun := time.Now()
		if _, err := get(i); err != nil {
			return err
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	d.Latency = took[len(took)/2].Seconds()
	rest := n - first
	if rest == 0 {
		first, rest = 0, n
	}
	m := r.each(ctx, rest, r.slice(partDisk), func(_ *prep.Worker, i int) (int64, error) { return get(first + i) })
	if d.BytesPerSecond = m.byteRate; !(d.BytesPerSecond > 0) {
		return fmt.Errorf("nothing could be read: %w", ctx.Err())
	}
	return nil
}
