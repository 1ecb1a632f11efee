package pack

import (
	"context"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"larder/internal/source/packed"
	"larder/internal/spool"
)

// readRecords reads every record of a shard as larder's own reader finds it, and hashes what it would be packed as.
func readRecords(ctx context.Context, format packed.Format, cfg *Config, f packed.File) (*xxhash.Digest, int, error) {
	content := xxhash.New()
	read, ok := format.(packed.Records)
	if !ok {
		return nil, 0, fmt.Errorf("no reader of %s reads records", cfg.To.Format)
	}
	// What was packed as a column comes back as a field, in this order.
	back := make(columns, len(cfg.columns))
	for i, c := range cfg.columns {
		c.field = i
		back[i] = c
	}
	a, err := packed.ParseAddress(cfg.To.Format, "/"+back.query())
	if err != nil {
		return nil, 0, err
	}
	a.Path = f.Path
	open := func(string) (packed.Other, error) { return whole{f}, nil }
	s, err := read.Schema(ctx, a, []string{f.Path}, open)
	if err != nil {
		return nil, 0, err
	}
	f.Schema, f.ID, f.Spool = &s, f.Path, spool.NewMemory(0)
	var samples []packed.Sample
	if _, err := read.Scan(ctx, a, f, func(x packed.Sample) error {
		samples = append(samples, x)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	rows, err := read.Open(ctx, a, f)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = rows.Close() }() // nothing was written, so nothing can be lost
	var blob []byte
	for i := range samples {
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		if blob, err = rows.Record(ctx, blob[:0], samples[i]); err != nil {
			return nil, 0, fmt.Errorf("sample %s: %w", samples[i].Key, err)
		}
		values, err := back.encode(blob)
		if err != nil {
			return nil, 0, fmt.Errorf("sample %s: %w", samples[i].Key, err)
		}
		hashValues(content, values)
	}
	return content, len(samples), nil
}

// whole is a file that another one closes.
type whole struct{ packed.File }

func (w whole) Len() int64 { return w.Size }
func (whole) Close() error { return nil }
