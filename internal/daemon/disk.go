package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"larder/internal/spool"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers/disk"
)

// disks are what larder keeps on a local disk: the disk tier, or, without one, a spool of blocks.
type disks struct {
	tier    *disk.Store // nil = none is configured
	spool   lazySpool
	readers atomic.Pointer[func(uri string) int] // live jobs of a dataset; nil = there is no engine yet
}

// open opens what is configured. A directory that cannot be used is said by the tier and is no error.
func (d *disks) open(o resourceOptions) (err error) {
	d.spool.open = func() (*disk.Store, error) { return d.openSpool(o.log) }
	if o.resolved.DiskDir == "" {
		return nil
	}
	d.tier, err = disk.Open(disk.Config{Dir: o.resolved.DiskDir, Size: o.resolved.DiskSize, Need: d.need, Log: o.log})
	return err
}

// need is how many live jobs read a group. Blocks without a group count as needed by one.
func (d *disks) need(group string) int {
	if group == "" {
		return 1
	}
	if f := d.readers.Load(); f != nil {
		return (*f)(group)
	}
	return 0
}

// blocks is where the blocks of formats are kept.
func (d *disks) blocks() spool.Spool {
	if d.tier != nil {
		return d.tier
	}
	return &d.spool
}

// spoolSize is what blocks take without a disk tier, and spoolPart the part of what is free that they may take.
const (
	spoolSize = 4 << 30
	spoolPart = 10
)

// openSpool opens a spool in the cache folder of the user.
func (d *disks) openSpool(log *slog.Logger) (*disk.Store, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "larder", "spool")
	size := int64(0) // nothing where the disk is not known
	if err := os.MkdirAll(dir, 0o700); err == nil {
		size = min(spoolSize, free(dir)/spoolPart)
	}
	log.Info("blocks of formats that are read in blocks are kept on disk", "dir", dir, "size", size,
		"larger", "tiers.disk.dir and tiers.disk.size")
	return disk.Open(disk.Config{Dir: dir, Size: size, Need: d.need, Log: log})
}

// stats describes the disk tier; nil = there is none.
func (d *disks) stats() *larderv1.DiskTier {
	if d.tier == nil {
		return nil
	}
	s := d.tier.Stats()
	return &larderv1.DiskTier{Dir: s.Dir, Size: uint64(s.Size), Used: uint64(s.Used), Entries: uint64(s.Entries),
		Blocks: uint64(s.Blocks), State: s.State, Hits: s.Hits, Misses: s.Misses, HitBytes: s.HitBytes,
		Written: s.Written, WrittenBytes: s.WrittenBytes, Evictions: s.Evictions, Refused: s.Refused,
		Skipped: s.Skipped, Damaged: s.Damaged, Errors: s.Errors, BlockHits: s.BlockHits, BlockMakes: s.BlockMakes,
		Foreign: uint64(s.Foreign)}
}

// resize is nil without a disk tier.
func (d *disks) resize() func(int64) {
	if d.tier == nil {
		return nil
	}
	return d.tier.Resize
}

func (d *disks) close() (problems []error) {
	if d.tier != nil {
		problems = append(problems, d.tier.Close())
	}
	return append(problems, d.spool.close())
}

// lazySpool opens a spool when the first block is asked for: most daemons never need one.
type lazySpool struct {
	open func() (*disk.Store, error)

	mu   sync.Mutex
	disk *disk.Store
	made spool.Spool
	over bool // it is closed
}

var _ spool.Grouped = (*lazySpool)(nil)

func (l *lazySpool) get() spool.Spool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made == nil {
		l.made = spool.NewMemory(64 << 20)
		if !l.over {
			if s, err := l.open(); err == nil {
				l.disk, l.made = s, s
			}
		}
	}
	return l.made
}

func (l *lazySpool) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	return l.get().Block(ctx, key, make)
}

// For implements spool.Grouped.
func (l *lazySpool) For(group string) spool.Spool { return lazyGroup{l, group} }

type lazyGroup struct {
	l     *lazySpool
	group string
}

func (g lazyGroup) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	return spool.For(g.l.get(), g.group).Block(ctx, key, make)
}

func (l *lazySpool) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.disk == nil {
		return nil
	}
	return l.disk.Close()
}

// free is how many bytes the user may write to the file system of a directory; 0 = not known.
func free(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
