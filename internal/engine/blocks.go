package engine

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

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
// that of the rings, when the job is registered.

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

	mu    sync.Mutex // guards what follows
	bytes int64      // at the most, that the job may hold at once
	gone  bool       // the memory was given back
}

// windowOf finds the blocks of a job; nil = its order is another one.
func (c *compiler) windowOf(j *job) (*window, error) {
	b, ok, err := parseBlocks(j.spec.GetOrder())
	if !ok || err != nil {
		return nil, err
	}
	if j.spec.GetShare() != "none" {
		return nil, errs.New(errs.Unsupported, "share", "leave share out",
			"register job %s: order blocks with share=%q does not work yet", j.spec.GetName(), j.spec.GetShare())
	}
	blocks, err := c.library.catalog.Blocks(j.Data, b.size)
	if err != nil {
		return nil, err
	}
	w := &window{order: b, blocks: blocks}
	w.bytes = w.need(b.window, &j.life)
	l := j.layout()
	free := c.rings.Limit() - c.rings.Used() - l.Bytes()*int64(j.life.World)
	if w.bytes <= free {
		return w, nil
	}
	most := 0
	for step := b.window; step > 0; { // the largest that fits: needs grow with it
		if half := most + step; half < b.window && w.need(half, &j.life) <= free {
			most = half
		} else {
			step /= 2
		}
	}
	hint := "take smaller blocks, lower batch_size or tiers.total, or raise memory.limit"
	if most > 0 {
		hint = fmt.Sprintf("use blocks(%d) at the most, or %s", most, hint)
	}
	return nil, errs.New(errs.ResourceExceeded, "order", hint,
		"register job %s: order %s holds up to %s of blocks in memory, and %s of the %s for rings and blocks are free "+
			"beside its rings", j.spec.GetName(), j.spec.GetOrder(), units.Size(w.bytes), units.Size(max(free, 0)),
		units.Size(c.rings.Limit()))
}

// need is how many bytes a job holds at the most: the window, the block that comes next, and those that its order has
// left while their last samples are prepared for the batches that are ahead.
func (w *window) need(width int, s *jobs.Spec) int64 {
	ahead := s.Slots*s.Batch*s.World/w.blocks.Each() + 2
	return w.blocks.Largest(width + 1 + ahead)
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

// holdWindow takes the memory of a job's window from that of the rings.
func (j *job) holdWindow(m *memory) error {
	if j.window == nil {
		return nil
	}
	w := j.window
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.rings.Reserve(j.spec.GetName(), w.bytes)
}

// dropWindow gives it back.
func (j *job) dropWindow(m *memory) {
	w := j.window
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.gone {
		m.rings.Release(w.bytes)
	}
	w.gone = true
}

// relay finds the blocks again of a dataset that has changed, and takes memory for larger ones. Without that memory it
// is an error, and the job keeps its subset.
func (f *follower) relay(j *job) error {
	w := j.window
	if w == nil {
		return nil
	}
	blocks, err := f.library.catalog.Blocks(j.Data, w.order.size)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := window{order: w.order, blocks: blocks}
	more := now.need(w.order.window, &j.life) - w.bytes
	if more <= 0 || w.gone {
		return nil
	}
	if err := f.rings.Reserve(j.spec.GetName(), more); err != nil {
		return errs.New(errs.ResourceExceeded, "order", "register it again with fewer or smaller blocks, lower "+
			"tiers.total, or raise memory.limit", "job %s: its blocks have become larger, order %s needs %s more memory, and "+
			"%s of the %s for rings and blocks are free", j.spec.GetName(), j.spec.GetOrder(), units.Size(more),
			units.Size(max(f.rings.Limit()-f.rings.Used(), 0)), units.Size(f.rings.Limit()))
	}
	w.bytes += more
	return nil
}

// holdBlock and dropBlock carry out what the coordinator says of blocks.
func (e *Engine) holdBlock(x coordinator.HoldBlock) {
	e.cfg.Data.Catalog.HoldBlock(x.Block, func(bytes int64) {
		e.loop.send(coordinator.BlockRead{Job: x.Job, Bytes: bytes})
	})
}

func (e *Engine) dropBlock(x coordinator.DropBlock) { e.cfg.Data.Catalog.DropBlock(x.Block) }
