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

// Block is a piece of a file that is decoded as a whole: a row group, a record batch, a compressed file, some frames of
// one.
type Block struct {
	// First is Sample.Off of its first sample; it ends where the next Block begins.
	First int64
	// Bytes is about how many bytes its records have; 0 = as many as the samples say.
	Bytes int64
}

// InPieces are Rows whose samples are decoded in blocks. Each asks File.Spool, or the spool that holds blocks in memory
// for the read (spool.HeldIn), for whole blocks.
type InPieces interface {
	Rows
	// Blocks are those of the file, in the order of Block.First; none = its samples are read one by one.
	Blocks() []Block
}

// ByPlace are InPieces whose blocks are to be asked for by the samples of a file: Blocks says one where there are some.
type ByPlace interface {
	InPieces
	// Piece is Block.First of the block of the sample with this Sample.Off.
	Piece(off int64) int64
}

// wholeFile is a file that is one block.
func wholeFile() []Block { return []Block{{}} }

// blockIn is the block of a key: of what holds blocks in memory for this read, if anything does and has the room, else
// of the spool.
func blockIn(ctx context.Context, s spool.Spool, key string, make spool.Make) (spool.Reader, error) {
	if h := spool.HeldIn(ctx); h != nil {
		if b, err := h.Block(ctx, key, make); !errors.Is(err, spool.ErrFull) {
			return b, err
		}
	}
	return s.Block(ctx, key, make)
}

// fromBlock appends what a block has at place i to dst, whatever that is; a block that is lost meanwhile is made again.
func fromBlock(
	ctx context.Context, s spool.Spool, key string, dst []byte, i int, make spool.Make,
) ([]byte, error) {
	const tries = 4
	for try := 1; ; try++ {
		b, err := blockIn(ctx, s, key, make)
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
