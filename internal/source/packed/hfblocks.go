package packed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"

	"larder/internal/source/packed/arrow"
	"larder/internal/spool"
)

// A row of an Arrow file is some reads, so its batches need no spool. An order of blocks has them held in memory as
// they are stored, each one read.

// Blocks are the record batches of all files.
func (r *hfRows) Blocks() []Block {
	var out []Block
	for k := range r.files {
		for _, b := range r.batches[k] {
			out = append(out, Block{r.first[k] + b.First, max(b.To-b.From, 1)})
		}
	}
	return out
}

// batchIn is what a file is read through for one of its rows, where the batch of that is held in memory; nil = it is
// not. The caller calls end when it has read.
func (r *hfRows) batchIn(ctx context.Context, file int, row int64) (in io.ReaderAt, end func(), err error) {
	h := spool.HeldIn(ctx)
	if h == nil {
		return nil, func() {}, nil
	}
	f, all := r.files[file], r.batches[file]
	i := sort.Search(len(all), func(i int) bool { return all[i].First > row }) - 1
	if i < 0 {
		return nil, nil, fmt.Errorf("row %d lies in no batch", row)
	}
	key := fmt.Sprintf("hf batch 1\x00%d\x00%d", file, i)
	b, err := h.Block(ctx, key, func(ctx context.Context, w spool.Writer) error {
		return readBatch(within(ctx, f.Reader()), &all[i], w)
	})
	if errors.Is(err, spool.ErrFull) {
		return nil, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	v, ok := b.(spool.Viewer)
	if !ok {
		return nil, nil, errors.Join(errors.New("its batch is not in memory"), b.Close())
	}
	bytes, err := v.View(0)
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return &arrow.Held{From: all[i].From, Bytes: bytes}, func() { _ = b.Close() }, nil
}

// readBatch adds the values of a batch as they are stored.
func readBatch(r io.ReaderAt, b *arrow.Batch, w spool.Writer) error {
	f, ok := w.(spool.Filler)
	if !ok {
		return errors.New("a batch can be held in memory only")
	}
	buf, err := f.Fill(int(b.To - b.From))
	if err != nil {
		return err
	}
	if n, err := r.ReadAt(buf, b.From); n < len(buf) {
		return fmt.Errorf("read a batch of %d bytes at %d: %w", len(buf), b.From, cmpErr(err, "it is cut"))
	}
	return nil
}
