package engine

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"larder/dsa"
	"larder/internal/config"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/source"
	"larder/internal/units"
	"larder/jobs"
)

// Order blocks(W): the coordinator says which blocks a job holds, the catalogue holds them. Their memory is taken from
// that of the rings, when the job is registered (blockroom.go).

const (
	// blockBytes is the size of a block where none is given: the longest read that is one request to a store.
	blockBytes = 8 << 20
	// The sizes that may be given.
	leastBlock, mostBlock = 4 << 10, 256 << 20
	// mostWindow is the most blocks that an order may mix.
	mostWindow = 1 << 16
)

// blockOrder is an order blocks(W) or blocks(W, SIZE).
type blockOrder struct {
	window int
	size   int64
}

var blockSyntax = regexp.MustCompile(`^blocks\(\s*([0-9]+)\s*(?:,\s*([^,()]+?)\s*)?\)$`)

// parseBlocks reads an order of blocks; ok = it is meant as one.
func parseBlocks(order string) (b blockOrder, ok bool, err error) {
	name, _, _ := strings.Cut(order, "(")
	if name = strings.TrimSpace(name); name != order && nearest.Word(name, []string{"blocks"}) == "" ||
		name == order && name != "blocks" && name != "block" {
		return b, false, nil
	}
	hint := fmt.Sprintf("write blocks(W) to mix W blocks, 1 to %d, or blocks(W, SIZE) with blocks of SIZE, %s to %s: "+
		"blocks(16) is blocks(16, %s)", mostWindow, config.FormatBytes(leastBlock), config.FormatBytes(mostBlock),
		config.FormatBytes(blockBytes))
	bad := func(format string, args ...any) (blockOrder, bool, error) {
		return b, true, errs.New(errs.Invalid, "order", hint, "order %.60q: %s", order, fmt.Sprintf(format, args...))
	}
	parts := blockSyntax.FindStringSubmatch(order)
	if parts == nil {
		return bad("it does not name a number of blocks")
	}
	if b.window, err = strconv.Atoi(parts[1]); err != nil || b.window < 1 || b.window > mostWindow {
		return bad("%s blocks cannot be mixed", parts[1])
	}
	if b.size = blockBytes; parts[2] != "" {
		size, err := config.ParseSize(parts[2])
		if err != nil || size.IsAuto() || size.IsPercent() {
			return bad("%q is no size in bytes", parts[2])
		}
		if b.size = size.Of(0); b.size < leastBlock || b.size > mostBlock {
			return bad("blocks of %s cannot be had", parts[2])
		}
	}
	return b, true, nil
}

// window is what a job of order blocks holds in memory.
type window struct {
	order  blockOrder
	blocks *source.Blocks
	single atomic.Int64 // blocks that there was no room for: their samples were read one by one

	mu    sync.Mutex // guards what follows
	bytes int64      // that it was promised: the most that it holds at once
	gone  bool       // the promise has ended
}

// windowOf finds the blocks of a job; nil = its order is another one.
func (c *compiler) windowOf(ctx context.Context, j *job) (*window, error) {
	b, ok, err := parseBlocks(j.spec.GetOrder())
	if !ok || err != nil {
		return nil, err
	}
	if j.spec.GetShare() != "none" {
		return nil, errs.New(errs.Unsupported, "share", "leave share out",
			"register job %s: order blocks with share=%q does not work yet", j.spec.GetName(), j.spec.GetShare())
	}
	if j.Made != nil && j.Made.Python {
		return nil, errs.New(errs.Unsupported, "transform", "use an order of single samples, or larder.ops alone",
			"register job %s: order blocks with steps in Python does not work yet", j.spec.GetName())
	}
	blocks, err := c.library.catalog.Blocks(ctx, j.Data, b.size)
	if err != nil {
		return nil, err
	}
	w := &window{order: b, blocks: blocks}
	need := w.need(&j.life)
	w.bytes = need.of(b.window)
	l := j.layout()
	free := max(c.rings.Limit()-c.rings.Used()-l.Bytes()*int64(j.life.World), 0)
	if w.bytes <= free {
		return w, nil
	}
	return nil, w.tooLarge(j, &need, free, c.rings.Limit())
}

// tooLarge says that the blocks of a job do not fit what is free.
func (w *window) tooLarge(j *job, need *blockNeed, free, limit int64) error {
	smaller := "take smaller blocks"
	if w.blocks.Uncut() {
		smaller = "write the files with smaller row groups, batches or frames"
	}
	hint := smaller + ", lower batch_size or tiers.total, or raise memory.limit"
	name, order := j.spec.GetName(), j.spec.GetOrder()
	if need.one() > free {
		return errs.New(errs.ResourceExceeded, "order", hint, "register job %s: order %s: the largest block alone has %s, "+
			"and %s of the %s for rings and blocks are free beside its rings", name, order, units.Size(need.one()),
			units.Size(free), units.Size(limit))
	}
	most := 0
	for step := w.order.window; step > 0; { // the largest that fits: needs grow with it
		if half := most + step; half < w.order.window && need.of(half) <= free {
			most = half
		} else {
			step /= 2
		}
	}
	if most > 0 {
		hint = fmt.Sprintf("use blocks(%d) at the most, or %s", most, hint)
	}
	return errs.New(errs.ResourceExceeded, "order", hint,
		"register job %s: order %s holds up to %s of blocks in memory, and %s of the %s for rings and blocks are free "+
			"beside its rings", name, order, units.Size(w.bytes), units.Size(free), units.Size(limit))
}

// need is what a job needs for its blocks: its batches ahead have samples of those that its order has left.
func (w *window) need(s *jobs.Spec) blockNeed {
	return needOf(w.blocks.Sizes(), s.Slots*s.Batch*s.World)
}

// takeWindow makes the registration of a job that of a walk through blocks.
func (j *job) takeWindow(w *window, reg *coordinator.Register) {
	if w == nil {
		return
	}
	j.window, j.mode = w, dsa.Blocks
	// an epoch that is prepared ahead would hold a second window beside that of the running one
	j.life.Advance = jobs.OnRequest
	reg.Spec = j.life
	reg.Sample.Mode, reg.Sample.Window, reg.Sample.Block = dsa.Blocks, w.order.window, w.blocks.Of
	if n := w.blocks.Len(); n <= w.order.window {
		j.notes = append(j.notes, fmt.Sprintf("order %s: the dataset has %d blocks, so all of it is mixed and held in "+
			"memory; order stratified shares more", j.spec.GetOrder(), n))
	}
}

// notes are what is to be said of a window while it is walked through; nil = nothing.
func (w *window) notes() []string {
	if w == nil || w.single.Load() == 0 {
		return nil
	}
	return []string{fmt.Sprintf("order blocks(%d): there was no memory for %d blocks, whose samples were read one by "+
		"one; take a smaller window or smaller blocks, lower batch_size or tiers.total, or raise memory.limit",
		w.order.window, w.single.Load())}
}

// holdWindow takes the memory of a job's window from that of the rings.
func (j *job) holdWindow(r *blockRoom) error {
	if j.window == nil {
		return nil
	}
	w := j.window
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.promise(j.spec.GetName(), w.bytes)
}

// dropWindow gives it back.
func (j *job) dropWindow(r *blockRoom) {
	w := j.window
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.gone {
		r.release(w.bytes)
	}
	w.gone = true
}

// relay finds the blocks again of a dataset that has changed, and takes memory for larger ones. Without that memory it
// is an error, and the job keeps its subset.
func (f *follower) relay(ctx context.Context, j *job) error {
	w := j.window
	if w == nil {
		return nil
	}
	blocks, err := f.library.catalog.Blocks(ctx, j.Data, w.order.size)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := window{order: w.order, blocks: blocks}
	need := now.need(&j.life)
	more := need.of(w.order.window) - w.bytes
	if more <= 0 || w.gone {
		return nil
	}
	if err := f.room.promise(j.spec.GetName(), more); err != nil {
		return errs.New(errs.ResourceExceeded, "order", "register it again with fewer or smaller blocks, lower "+
			"tiers.total, or raise memory.limit", "job %s: its blocks have become larger, order %s needs %s more memory, and "+
			"%s of the %s for rings and blocks are free", j.spec.GetName(), j.spec.GetOrder(), units.Size(more),
			units.Size(max(f.room.rings.Limit()-f.room.rings.Used(), 0)), units.Size(f.room.rings.Limit()))
	}
	w.bytes += more
	return nil
}

// holdBlock and dropBlock carry out what the coordinator says of blocks.
func (e *Engine) holdBlock(x coordinator.HoldBlock) {
	by := source.Holder{ID: x.Job}
	if j := e.jobs.byID(x.Job); j != nil {
		by.Read = func(bytes int64, err error) {
			if err != nil {
				e.noBlock(j, err)
			}
			if bytes > 0 {
				e.loop.send(coordinator.BlockRead{Job: x.Job, Dataset: j.Data.ID(), Block: x.Block, Bytes: bytes})
			}
		}
	}
	e.cfg.Data.Catalog.HoldBlock(x.Block, e.room, by)
}

// noBlock notes that there was no memory for a block of a job.
func (e *Engine) noBlock(j *job, err error) {
	if j.window != nil && j.window.single.Add(1) == 1 {
		e.log.note(slog.LevelWarn, "no memory for a block: its samples are read one by one", "job", j.spec.GetName(),
			"err", err)
	}
}

func (e *Engine) dropBlock(x coordinator.DropBlock) { e.cfg.Data.Catalog.DropBlock(x.Block, x.Job) }
