package packed

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"sync"
)

// bgzf reads a file of bgzip (SAM specification, 4.1) at offsets of its decompressed bytes: blocks of at most 64 KiB,
// each a member of gzip whose header says how long it is.
type bgzf struct {
	r      io.ReaderAt
	blocks []bgzfBlock
	size   int64 // decompressed

	mu    sync.Mutex
	at    int    // the block that data holds; guarded by mu
	data  []byte // guarded by mu; never written again once it is here
	valid bool   // guarded by mu
}

type bgzfBlock struct {
	at, packed int64 // in the file
	first      int64 // the decompressed bytes before it
	size       int64
}

const (
	bgzfHead   = 18
	bgzfTail   = 8
	bgzfMost   = 1 << 16
	bgzfBlocks = 1 << 28
)

// openBGZF walks the headers of blocks.
func openBGZF(ctx context.Context, r io.ReaderAt, size int64) (*bgzf, error) {
	z := &bgzf{r: r}
	var head [bgzfHead]byte
	var tail [4]byte
	for at := int64(0); at < size; {
		if len(z.blocks)&255 == 255 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if size-at < bgzfHead+bgzfTail {
			return nil, fmt.Errorf("block %d, at byte %d: it is cut", len(z.blocks), at)
		}
		if err := readFull(r, head[:], at); err != nil {
			return nil, fmt.Errorf("block %d, at byte %d: %w", len(z.blocks), at, err)
		}
		if head[0] != 0x1f || head[1] != 0x8b || head[2] != 8 || head[3] != 4 ||
			binary.LittleEndian.Uint16(head[10:]) != 6 || head[12] != 'B' || head[13] != 'C' ||
			binary.LittleEndian.Uint16(head[14:]) != 2 {
			return nil, fmt.Errorf("block %d, at byte %d: it is no block of bgzip, and of other gzip files no part can be "+
				"read alone; compress it with bgzip", len(z.blocks), at)
		}
		n := int64(binary.LittleEndian.Uint16(head[16:])) + 1
		if n < bgzfHead+bgzfTail || n > size-at {
			return nil, fmt.Errorf("block %d, at byte %d: it says %d bytes of %d", len(z.blocks), at, n, size-at)
		}
		if err := readFull(r, tail[:], at+n-4); err != nil {
			return nil, err
		}
		b := bgzfBlock{at: at, packed: n, first: z.size, size: int64(binary.LittleEndian.Uint32(tail[:]))}
		if b.size > bgzfMost || len(z.blocks) >= bgzfBlocks {
			return nil, fmt.Errorf("block %d, at byte %d: it says %d bytes, decompressed", len(z.blocks), at, b.size)
		}
		z.blocks = append(z.blocks, b)
		z.size += b.size
		at += n
	}
	if n := len(z.blocks); n == 0 || z.blocks[n-1].size != 0 {
		return nil, errors.New("the empty block at its end is missing: it is cut")
	}
	return z, nil
}

// block decompresses a block, and keeps the last one.
func (z *bgzf) block(ctx context.Context, i int) ([]byte, error) {
	z.mu.Lock()
	if z.valid && z.at == i {
		defer z.mu.Unlock()
		return z.data, nil
	}
	z.mu.Unlock()
	b := z.blocks[i]
	packed, plain := make([]byte, b.packed), make([]byte, b.size)
	if err := readFull(within(ctx, z.r), packed, b.at); err != nil {
		return nil, err
	}
	d := flate.NewReader(bytes.NewReader(packed[bgzfHead : b.packed-bgzfTail]))
	if _, err := io.ReadFull(d, plain); err != nil {
		return nil, fmt.Errorf("block %d, at byte %d: %w", i, b.at, err)
	}
	if n, _ := d.Read(make([]byte, 1)); n > 0 ||
		crc32.ChecksumIEEE(plain) != binary.LittleEndian.Uint32(packed[b.packed-bgzfTail:]) {
		return nil, fmt.Errorf("block %d, at byte %d: its checksum is wrong", i, b.at)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.at, z.data, z.valid = i, plain, true
	return plain, nil
}

// ReadAt reads decompressed bytes.
func (z *bgzf) ReadAt(p []byte, off int64) (int, error) {
	return z.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext implements ContextReader.
func (z *bgzf) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at byte %d", off)
	}
	done := 0
	i := sort.Search(len(z.blocks), func(i int) bool { return z.blocks[i].first > off }) - 1
	for ; done < len(p); i++ {
		if i < 0 || i >= len(z.blocks) {
			return done, io.EOF
		}
		b, err := z.block(ctx, i)
		if err != nil {
			return done, err
		}
		if from := off + int64(done) - z.blocks[i].first; from < int64(len(b)) {
			done += copy(p[done:], b[from:])
		}
	}
	return done, nil
}
