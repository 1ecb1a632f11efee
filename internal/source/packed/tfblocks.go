package packed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"

	"larder/internal/spool"
)

// TensorFlow compresses TFRecords as a whole (TFRecordOptions), with gzip or zlib, and does not say so in the name.
// Such a file is a block, as a compressed tar is: the records of its samples are kept in a spool after one pass.

// tfPacked is a bit of Sample.Off of a sample of a compressed file, whose other bits are its number.
const tfPacked = 1 << 62

// DecodedAt is Decoded for the file of a sample with this Sample.Off: of some files only their first bytes say it.
func DecodedAt(scheme, file string, off int64) bool {
	return Decoded(scheme, file) || scheme == "tfrecord" && off >= tfPacked
}

// tfPacking is how a file of TFRecords is compressed; "" = it is not, or is no such file.
func tfPacking(f io.ReaderAt, size int64) (string, error) {
	if size < 2 {
		return "", nil
	}
	head := make([]byte, min(size, tfHead)) // zlib of no records has 8 bytes
	if err := readFull(f, head, 0); err != nil {
		return "", fmt.Errorf("read its first bytes: %w", err)
	}
	switch {
	case len(head) == tfHead && maskedCRC(head[:8]) == binary.LittleEndian.Uint32(head[8:]):
		return "", nil // a length may begin as gzip does
	case len(head) > 2 && head[0] == 0x1f && head[1] == 0x8b && head[2] == 8:
		return "gzip", nil
	case head[0]&0xf == 8 && head[0]>>4 <= 7 && binary.BigEndian.Uint16(head)%31 == 0: // RFC 1950
		return "zlib", nil
	}
	return "", nil
}

// tfInput is a file of TFRecords that is read from the front.
type tfInput struct {
	io.ReadCloser

	packing string
	size    int64 // bytes; of a compressed file not known
	most    int64 // bytes of a record
	records int64 // at most
}

// leastRecords is how many records any compressed file may have; a larger one has one for each of its bytes at most.
const leastRecords = 1 << 20

func openTF(f io.ReaderAt, size int64) (*tfInput, error) {
	packing, err := tfPacking(f, size)
	if err != nil {
		return nil, err
	}
	if packing == "" {
		in := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 1<<20)
		return &tfInput{io.NopCloser(in), "", size, maxRecordBytes, size}, nil
	}
	raw := bufio.NewReaderSize(newChunks(f, size), bufferOf(size))
	var z io.ReadCloser
	if packing == "gzip" {
		z, err = gzip.NewReader(raw)
	} else {
		z, err = newZlibs(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("it begins as %s: %w", packing, cut(err))
	}
	most := int64(leastText) // it and the records bound the index of a file that is made to unpack to endless records
	if size > most/textTimes {
		most = min(size, math.MaxInt64/textTimes) * textTimes
	}
	return &tfInput{&bounded{z, most, most}, packing, math.MaxInt64, maxMember, max(leastRecords, size)}, nil
}

// zlibs are streams of zlib one behind the other, as TensorFlow reads them.
type zlibs struct {
	io.ReadCloser

	raw *bufio.Reader
}

func newZlibs(raw *bufio.Reader) (*zlibs, error) {
	z, err := zlib.NewReader(raw)
	return &zlibs{z, raw}, err
}

// Read implements io.Reader.
func (z *zlibs) Read(p []byte) (int, error) {
	n, err := z.ReadCloser.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if _, end := z.raw.Peek(1); end != nil {
		return n, end
	}
	again, ok := z.ReadCloser.(zlib.Resetter)
	if !ok {
		return n, errors.New("more bytes follow its end")
	}
	return n, again.Reset(z.raw, nil)
}

// of says what places in the file are of.
func (in *tfInput) of() string {
	if in.packing == "" {
		return ""
	}
	return " of what its " + in.packing + " unpacks to"
}

// next reads a record and its checksum, which begin at a place.
func (in *tfInput) next(b *bytes.Buffer, at int64) (end bool, err error) {
	var head [tfHead]byte
	left := in.size - at
	if in.packing == "" && left < tfHead+tfTail {
		if left == 0 {
			return true, nil
		}
		return false, fmt.Errorf("%d bytes are left, fewer than a record has", left)
	}
	if _, err := io.ReadFull(in, head[:]); err != nil {
		if errors.Is(err, io.EOF) && in.packing != "" {
			return true, nil
		}
		return false, in.damaged(err)
	}
	n := binary.LittleEndian.Uint64(head[:])
	switch {
	case maskedCRC(head[:8]) != binary.LittleEndian.Uint32(head[8:]):
		return false, errors.New("the checksum of its length is wrong")
	case in.packing == "" && n > uint64(left-tfHead-tfTail):
		return false, fmt.Errorf("it says %d bytes, and %d are left", n, left-tfHead-tfTail)
	case n > uint64(in.most):
		return false, fmt.Errorf("it says %d bytes, and a record has %d at most", n, in.most)
	}
	b.Reset()
	if in.packing == "" {
		b.Grow(int(n+tfTail) + bytes.MinRead)
	}
	if _, err := io.CopyN(b, in, int64(n+tfTail)); err != nil { // it grows with what is there
		return false, in.damaged(err)
	}
	return false, checkTail(b.Bytes())
}

// damaged is the error of a read.
func (in *tfInput) damaged(err error) error {
	if in.packing == "" {
		return err
	}
	return fmt.Errorf("unpack it: %w", cut(err))
}

// packedTF are samples of a compressed file.
type packedTF struct {
	tfRows

	key string
}

var _ InPieces = (*packedTF)(nil)

// Blocks are the whole file.
func (*packedTF) Blocks() []Block { return wholeFile() }

// Record takes a record from the file's block.
func (r *packedTF) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if s.Off < tfPacked {
		return nil, fmt.Errorf("it should lie at byte %d, and the file is compressed now", s.Off)
	}
	return blockRecord(ctx, r.f.Spool, r.key, dst, int(s.Off&^tfPacked), r.records)
}

// records adds the records of all samples.
func (r *packedTF) records(ctx context.Context, out spool.Writer) error {
	var blob []byte
	return tfRecords(ctx, within(ctx, r.f), r.f.Size, func(i, off int64, _ bool, b []byte) error {
		var err error
		if blob, err = r.append(blob[:0], b); err != nil {
			return out.Add(badRecord("record %d, at byte %d of what it unpacks to: %v", i, off-tfHead, err))
		}
		return out.Add(blob)
	})
}
