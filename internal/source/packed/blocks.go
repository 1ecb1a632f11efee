package packed

import (
	"context"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"larder/internal/spool"
)

// blockKey is what all blocks of a file have in their names: the file with its content, and what records are made of.
func (f File) blockKey(a Address) string {
	h := xxhash.New()
	a.Path, a.Place = "", ""
	_, _ = h.WriteString(a.String()) // a hash never fails
	f.Schema.Describe(h)
	return fmt.Sprintf("%s 1 %016x\x00%s", a.Scheme, h.Sum64(), f.ID) // 1: how this larder decodes them
}

// badMark begins what stands for a record that could not be made: no record begins so.
const badMark = '!'

// noRecord stands for a record of one field that has no value.
const noRecord = "!\x00"

// badRecord stands in a block for a sample that cannot be a record, and says why.
func badRecord(format string, args ...any) []byte {
	return append([]byte{badMark}, fmt.Sprintf(format, args...)...)
}

// blockRecord appends a record of a block to dst, and makes the block where it is not there.
func blockRecord(
	ctx context.Context, s spool.Spool, key string, dst []byte, i int, make spool.Make,
) ([]byte, error) {
	n := len(dst)
	out, err := fromBlock(ctx, s, key, dst, i, make)
	if err == nil && string(out[n:]) == noRecord {
		return nil, ErrNoValue
	}
	if err == nil && len(out) > n && out[n] == badMark {
		return nil, errors.New(string(out[n+1:]))
	}
	return out, err
}

// fromBlock appends what a block has at place i to dst, whatever that is; a block that is lost meanwhile is made again.
func fromBlock(
	ctx context.Context, s spool.Spool, key string, dst []byte, i int, make spool.Make,
) ([]byte, error) {
	const tries = 4
	for try := 1; ; try++ {
		b, err := s.Block(ctx, key, make)
		if err != nil {
			return dst, err
		}
		out, err := b.Record(dst, i)
		if cerr := b.Close(); err == nil {
			err = cerr
		}
		if err == nil || !errors.Is(err, spool.ErrLost) || try == tries {
			return out, err
		}
	}
}
