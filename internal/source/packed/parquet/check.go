package parquet

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

const (
	// maxPage bounds the decompressed bytes of a page, maxValues its values, maxPageHead its header.
	maxPage     = 1 << 30
	maxValues   = 1 << 26
	maxPageHead = 4 << 20
	firstHead   = 16 << 10
)

// check walks the headers of a column's pages: every size is compared with what is there before the library makes room
// for it. Of a column of booleans it returns what to read in place of its encodings.
func (f *File) check(ctx context.Context, c *format.ColumnMetaData, booleans bool) (codes []recoding, err error) {
	at, n := chunkAt(c)
	end := at + n
	values := int64(0)
	var packed []byte
	for page := 0; at < end && values < c.NumValues; page++ {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h, head, err := f.pageHeader(at, end)
		if err != nil {
			return nil, fmt.Errorf("page %d, at byte %d: %w", page, at, err)
		}
		if booleans && (h.Type == format.DataPage || h.Type == format.DataPageV2) {
			code, ok, err := recode(h, head, at)
			if err != nil {
				return nil, fmt.Errorf("page %d, at byte %d: %w", page, at, err)
			}
			if ok {
				codes = append(codes, code)
			}
		}
		at += int64(len(head))
		count, size := valuesOf(h)
		if h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > end-at || h.UncompressedPageSize < 0 ||
			h.UncompressedPageSize > maxPage || count < 0 || count > maxValues {
			return nil, fmt.Errorf("page %d, at byte %d: %d bytes, decompressed %d, of %d values", page, at,
				h.CompressedPageSize, h.UncompressedPageSize, count)
		}
		if h.Type != format.DictionaryPage {
			values += int64(count)
		}
		if c.Codec == format.Uncompressed || size < 0 {
			at += int64(h.CompressedPageSize)
			continue
		}
		if packed, err = f.readInto(packed, at, int64(h.CompressedPageSize)); err != nil {
			return nil, err
		}
		levels := int64(h.UncompressedPageSize) - size
		if levels < 0 || levels > int64(len(packed)) {
			return nil, fmt.Errorf("page %d, at byte %d: levels of %d bytes", page, at, levels)
		}
		if err = tryOut(c.Codec, packed[levels:], size); err != nil {
			return nil, fmt.Errorf("page %d, at byte %d: decompress %d bytes to %d: %w", page, at, len(packed), size, err)
		}
		at += int64(h.CompressedPageSize)
	}
	if values != c.NumValues {
		return nil, fmt.Errorf("its pages have %d values, and it says %d", values, c.NumValues)
	}
	return codes, nil
}

// valuesOf counts a page's values; size is how many bytes what is compressed has decompressed; -1 = nothing is.
func valuesOf(h *format.PageHeader) (values int32, size int64) {
	size = int64(h.UncompressedPageSize)
	switch {
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		return h.DictionaryPageHeader.V.NumValues, size
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		return h.DataPageHeader.V.NumValues, size
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		v := &h.DataPageHeaderV2.V
		if v.IsCompressed.Valid && !v.IsCompressed.V {
			return v.NumValues, -1
		}
		return v.NumValues, size - int64(v.RepetitionLevelsByteLength) - int64(v.DefinitionLevelsByteLength)
	}
	return -1, size
}

// pageHeader reads a header, and returns its bytes too.
func (f *File) pageHeader(at, end int64) (*format.PageHeader, []byte, error) {
	var last error
	for room := int64(firstHead); ; room *= 16 {
		b := make([]byte, min(room, end-at))
		if err := readAt(f.r, b, at); err != nil {
			return nil, nil, err
		}
		w := walker{b: b}
		if w.structure(0) {
			var protocol thrift.CompactProtocol
			r := protocol.NewReaderFromBytes(b)
			h := new(format.PageHeader)
			if err := thrift.NewDecoder(r).Decode(h); err != nil {
				return nil, nil, err
			}
			return h, b[:r.BytesRead()], nil
		}
		last = errors.New("its header is damaged")
		if room >= maxPageHead || room >= end-at {
			return nil, nil, last
		}
	}
}

func (f *File) readInto(b []byte, at, n int64) ([]byte, error) {
	b = grow(b, int(n))
	return b, readAt(f.r, b, at)
}

// tryOut decompresses with a bound, and reports an error if there are other than size bytes.
func tryOut(codec format.CompressionCodec, b []byte, size int64) error {
	got := int64(-1)
	var err error
	switch codec {
	case format.Snappy: // it says how long it is, and decoders believe no more than that
		var n int
		n, err = snappy.DecodedLen(b)
		got = int64(n)
	case format.Zstd:
		var d *zstd.Decoder
		if d, err = zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(maxPage)); err == nil {
			got, err = count(d, size)
			d.Close()
		}
	case format.Gzip:
		var d *gzip.Reader
		if d, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			got, err = count(d, size)
		}
	case format.Brotli:
		got, err = count(brotli.NewReader(bytes.NewReader(b)), size)
	default: // Readable says so before a page is read
		err = fmt.Errorf("larder does not read the codec %s; write the file with snappy or zstd", codec)
	}
	if err == nil && got != size {
		err = fmt.Errorf("%d bytes came", got)
	}
	return err
}

// count counts what a decoder gives, up to one byte more than size.
func count(r io.Reader, size int64) (int64, error) {
	return io.Copy(io.Discard, io.LimitReader(r, size+1))
}
