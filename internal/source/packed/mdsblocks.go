package packed

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"larder/internal/errs"
	"larder/internal/spool"
)

// A compressed shard of MDS can be read from the front only. It is a block, as a compressed tar is: what is delivered
// of its samples is kept in a spool after one pass. Sample.Off is the number of the sample in the shard.

const (
	// maxShardTable bounds the offsets of a compressed shard, which are in memory while it is read: 16 million samples.
	maxShardTable = 64 << 20
	// maxShardSample bounds a sample of a compressed shard; one of them is in memory.
	maxShardSample = 256 << 20
)

// mdsPackings are the codecs of MosaicML's streaming, as they are named in an index and after the names of shards.
var mdsPackings = []string{"zstd", "gz", "bz2", "br", "snappy"}

// packingOf is the codec of a compressed shard; "" = it is not compressed.
func packingOf(path string) string {
	for _, p := range mdsPackings {
		if strings.HasSuffix(path, ".mds."+p) {
			return p
		}
	}
	return ""
}

func isPackedShard(path string) bool { return packingOf(path) != "" }

// unpackShard opens a compressed shard. One that is unpacked as a whole may give so many bytes.
func unpackShard(path string, r io.ReaderAt, size, most int64) (io.ReadCloser, error) {
	raw := bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<18)
	switch packingOf(path) {
	case "zstd":
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("it is no zstd file: %w", err)
		}
		return z.IOReadCloser(), nil
	case "gz":
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, fmt.Errorf("it is no gzip file: %w", err)
		}
		return z, nil
	case "bz2":
		return io.NopCloser(bzip2.NewReader(raw)), nil
	case "br":
		return io.NopCloser(brotli.NewReader(raw)), nil
	}
	b, err := unpackSnappy(raw, size, most)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// unpackSnappy unpacks a block of snappy, which has no pieces: it and what it gives are in memory.
func unpackSnappy(r io.Reader, size, most int64) ([]byte, error) {
	if size > maxUnpacked {
		return nil, fmt.Errorf("it has %d bytes of snappy, which unpacks only as a whole, and larder unpacks up to %d so: "+
			"write smaller shards, or zstd", size, int64(maxUnpacked))
	}
	packed, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	n, err := snappy.DecodedLen(packed)
	if err != nil {
		return nil, fmt.Errorf("it is no block of snappy: %w", err)
	}
	if int64(n) > min(most, maxUnpacked) {
		return nil, fmt.Errorf("it unpacks to %d bytes, more than %d: write smaller shards, or zstd", n,
			min(most, maxUnpacked))
	}
	b, err := snappy.Decode(nil, packed)
	if err != nil {
		return nil, fmt.Errorf("it is no block of snappy: %w", err)
	}
	return b, nil
}

// unpackedShard is a compressed shard as one that is not, which can be read forwards only, but for its offsets. Nothing
// is read beyond the byte behind the last sample, whatever the file would unpack to.
type unpackedShard struct {
	in   io.ReadCloser
	size int64  // of the unpacked shard: where its last sample ends
	at   int64  // the next byte of in
	head []byte // the number of samples and the offsets
}

// openUnpacked begins to unpack a shard. raw is how many bytes it unpacks to, 0 = that is not known.
func openUnpacked(path string, r io.ReaderAt, size, raw int64) (u *unpackedShard, err error) {
	u = &unpackedShard{size: raw}
	if raw == 0 {
		u.size = math.MaxUint32 // offsets have 32 bits
	}
	if u.in, err = unpackShard(path, r, size, u.size); err != nil {
		return nil, err
	}
	if err = u.readHead(); err == nil && raw > 0 && u.size != raw {
		err = fmt.Errorf("its samples end at byte %d, and index.json says that it unpacks to %d", u.size, raw)
	}
	if err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *unpackedShard) readHead() error {
	var word [4]byte
	if _, err := io.ReadFull(u.in, word[:]); err != nil {
		return fmt.Errorf("read the number of samples: %w", cut(err))
	}
	n := int64(binary.LittleEndian.Uint32(word[:]))
	table := 4 * (n + 1)
	switch {
	case 4+table > u.size:
		return fmt.Errorf("it says %d samples, whose offsets do not fit its %d bytes", n, u.size)
	case table > maxShardTable:
		return fmt.Errorf("it has %d samples, and larder reads compressed shards of up to %d: write smaller shards", n,
			maxShardTable/4-1)
	}
	var head bytes.Buffer // it grows with what is there
	head.Write(word[:])
	if _, err := io.CopyN(&head, u.in, table); err != nil {
		return fmt.Errorf("read offsets: %w", cut(err))
	}
	u.head, u.at = head.Bytes(), 4+table
	last := int64(binary.LittleEndian.Uint32(u.head[table:]))
	if last < u.at {
		return fmt.Errorf("its samples end at byte %d, and its offsets at %d", last, u.at)
	}
	u.size = last
	return nil
}

// cut is the error of a file that ends too early.
func cut(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); ok { // a store has said what failed
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it is cut")
	}
	return err
}

// ReadAt reads what lies behind all that was read before, or offsets.
func (u *unpackedShard) ReadAt(p []byte, off int64) (int, error) {
	if end := off + int64(len(p)); off >= 0 && end <= int64(len(u.head)) {
		return copy(p, u.head[off:]), nil
	}
	if off < u.at || off+int64(len(p)) > u.size {
		return 0, fmt.Errorf("bytes %d to %d are not behind byte %d and before %d", off, off+int64(len(p)), u.at, u.size)
	}
	n, err := io.CopyN(io.Discard, u.in, off-u.at)
	u.at += n
	if err != nil {
		return 0, fmt.Errorf("at byte %d of what it unpacks to: %w", u.at, cut(err))
	}
	k, err := io.ReadFull(u.in, p)
	u.at += int64(k)
	if err != nil {
		return k, fmt.Errorf("at byte %d of what it unpacks to: %w", u.at, cut(err))
	}
	return k, nil
}

// rest reads to the end, where codecs have their checksums; what is there has to end where the offsets say.
func (u *unpackedShard) rest() error {
	n, err := io.CopyN(io.Discard, u.in, u.size-u.at+1)
	u.at += n
	switch {
	case err == nil:
		return fmt.Errorf("it unpacks to more than %d bytes, where its last sample ends", u.size)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("at byte %d of what it unpacks to: %w", u.at, cut(err))
	case u.at != u.size:
		return fmt.Errorf("it unpacks to %d bytes, and its last sample ends at %d", u.at, u.size)
	}
	return nil
}

func (u *unpackedShard) close() { _ = u.in.Close() } // nothing was written, so nothing can be lost

// packedShard are samples of a compressed shard.
type packedShard struct {
	File
	a   Address
	key string // "" = samples are images
}

func openPackedShard(a Address, f File) Rows {
	if f.Schema == nil {
		return &packedShard{File: f}
	}
	return &packedShard{f, a, f.blockKey(a)}
}

func (r *packedShard) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if r.key != "" {
		return blockRecord(ctx, r.Spool, r.key, dst, int(s.Off), r.records)
	}
	from := len(dst)
	dst, err := r.fromSpool(ctx, dst, "mds images 1", s.Off, r.images)
	if err == nil && int64(len(dst)-from) != s.Size {
		err = fmt.Errorf("image %d has %d bytes, and %d when it was indexed", s.Off, len(dst)-from, s.Size)
	}
	return dst, err
}

// Blocks are the whole file.
func (*packedShard) Blocks() []Block { return wholeFile() }

func (*packedShard) Close() error { return nil }

// images adds the images of all samples.
func (r *packedShard) images(ctx context.Context, out spool.Writer) error {
	return r.each(ctx, func(c *columns, raw []byte) error {
		if err := c.needImage(); err != nil {
			return err
		}
		values, err := c.split(raw)
		if err != nil {
			return err
		}
		return out.Add(values[c.image])
	})
}

// records adds the records of all samples.
func (r *packedShard) records(ctx context.Context, out spool.Writer) error {
	var rows *mdsRows
	var blob []byte
	return r.each(ctx, func(c *columns, raw []byte) error {
		if rows == nil {
			var err error
			if rows, err = newMDSRows(&shard{columns: *c}, r.a, r.Schema); err != nil {
				return err
			}
		}
		var err error
		if blob, err = rows.append(blob[:0], raw); err != nil {
			return out.Add(badRecord("%v", err))
		}
		return out.Add(blob)
	})
}

// each calls take with the bytes of each sample, which are its own until it returns.
func (r *packedShard) each(ctx context.Context, take func(c *columns, raw []byte) error) error {
	u, err := openUnpacked(r.Path, within(ctx, r.ReaderAt), r.Size, 0)
	if err != nil {
		return err
	}
	defer u.close()
	c, err := openShard(u, u.size)
	if err != nil {
		return err
	}
	var raw []byte
	for i := range c.n {
		if i&255 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		from, to, err := c.place(i)
		if err != nil {
			return err
		}
		if to < from || to-from > maxShardSample {
			return fmt.Errorf("sample %d has %d bytes; in a compressed shard %d are the most", i, to-from, maxShardSample)
		}
		raw = slices.Grow(raw[:0], int(to-from))[:to-from]
		if _, err := u.ReadAt(raw, from); err != nil {
			return fmt.Errorf("sample %d: %w", i, err)
		}
		if err := take(&c.columns, raw); err != nil {
			return fmt.Errorf("sample %d, at byte %d: %w", i, from, err)
		}
	}
	return u.rest()
}
