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
	for i := range f.Schema.Fields {
		_, _ = fmt.Fprintf(h, "%+v", f.Schema.Fields[i])
	}
	return fmt.Sprintf("%s 1 %016x\x00%s", a.Scheme, h.Sum64(), f.ID) // 1: how this larder decodes them
}

// badMark begins what stands for a record that could not be made: no record begins so.
const badMark = '!'

// badRecord stands in a block for a sample that cannot be a record, and says why.
func badRecord(format string, args ...any) []byte {
	return append([]byte{badMark}, fmt.Sprintf(format, args...)...)
}

// blockRecord appends a record of a block to dst, and makes the block where it is not there.
func blockRecord(
	ctx context.Context, s spool.Spool, key string, dst []byte, i int, make spool.Make,
) ([]byte, error) {
	for try := 0; ; try++ {
		out, err := fromBlock(ctx, s, key, dst, i, make)
		if !errors.Is(err, spool.ErrLost) || try == 3 {
			return out, err
		}
	}
}

func fromBlock(
	ctx context.Context, s spool.Spool, key string, dst []byte, i int, make spool.Make,
) ([]byte, error) {
	b, err := s.Block(ctx, key, make)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	n := len(dst)
	out, err := b.Record(dst, i)
	if err != nil {
		return nil, err
	}
	if len(out) > n && out[n] == badMark {
		return nil, errors.New(string(out[n+1:]))
	}
	return out, nil
}
