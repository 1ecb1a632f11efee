package parquet

import (
	"errors"
	"fmt"
	"slices"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"larder/internal/source/packed/arrow"
)

// How a column is compressed and encoded is in the footer. A way that larder does not read is told when a file is
// opened: else it would be told of every row, as if the rows were damaged.

// Readable says why some columns cannot be read in any row group; nil = they can.
func (f *File) Readable(columns []*arrow.Field) error {
	for i := range f.meta.RowGroups {
		g := &f.meta.RowGroups[i]
		if g.NumRows == 0 {
			continue
		}
		for _, c := range columns {
			if c.Column >= len(g.Columns) || c.Column >= len(f.leaves) {
				return fmt.Errorf("row group %d has %d columns, and the schema %d", i, len(g.Columns), len(f.leaves))
			}
			if why := unreadable(&g.Columns[c.Column]); why != "" {
				return fmt.Errorf("column %q %s, or leave the column out with ?fields=", f.leaves[c.Column].field.Name, why)
			}
		}
	}
	return nil
}

// unreadable is why a column of a row group cannot be read, and what to do; "" = it can.
func unreadable(c *format.ColumnChunk) string {
	m := &c.MetaData
	switch {
	case c.FilePath != "":
		return fmt.Sprintf("lies in another file, %.80q, which larder does not read: write it into this one", c.FilePath)
	case !readsCodec(m.Codec):
		return fmt.Sprintf("is compressed with the codec %s, which larder does not read: write the file with snappy or zstd",
			codecName(m.Codec))
	}
	for _, e := range m.Encoding {
		if !readsEncoding(e, m.Type) {
			return fmt.Sprintf("has the encoding %s, which larder does not read there: write the file with PLAIN or a "+
				"dictionary", encodingName(e))
		}
	}
	return ""
}

// readsCodec reports whether pages of a codec are read: tryOut has a decoder of each.
func readsCodec(c format.CompressionCodec) bool {
	// parquet-go 0.32 loses what it decodes of LZ4, where that is less than three times as long.
	return slices.Contains([]format.CompressionCodec{format.Uncompressed, format.Snappy, format.Gzip, format.Brotli,
		format.Zstd}, c)
}

func codecName(c format.CompressionCodec) string {
	if s := c.String(); s != "CompressionCodec(?)" {
		return s
	}
	return fmt.Sprintf("number %d", int(c))
}

func encodingName(e format.Encoding) string {
	if s := e.String(); s != "Encoding(?)" {
		return s
	}
	return fmt.Sprintf("number %d", int(e))
}

// readsEncoding reports whether values of a type are read in an encoding, or levels.
func readsEncoding(e format.Encoding, t format.Type) bool {
	if e >= format.Plain && e < format.DeltaBinaryPacked || e == format.RLEDictionary {
		return true // of levels, too; number 1 was never given to an encoding
	}
	x := pq.LookupEncoding(e)
	switch t { //nolint:exhaustive // the others have none of these encodings
	case format.Int32:
		return encoding.CanEncodeInt32(x)
	case format.Int64:
		return encoding.CanEncodeInt64(x)
	case format.Float:
		return encoding.CanEncodeFloat(x)
	case format.Double:
		return encoding.CanEncodeDouble(x)
	case format.ByteArray:
		return encoding.CanEncodeByteArray(x)
	case format.FixedLenByteArray:
		return encoding.CanEncodeFixedLenByteArray(x)
	}
	return false
}

var errEncrypted = errors.New("it is encrypted, which larder does not read: write the file without encryption")

// whyNotOpened says more of a footer that the library refuses, where it is that of an encrypted file.
func whyNotOpened(footer []byte, err error) error {
	var protocol thrift.CompactProtocol
	var meta format.FileMetaData
	if thrift.NewDecoder(protocol.NewReaderFromBytes(footer)).Decode(&meta) != nil { // a signature may follow it
		return err
	}
	if meta.EncryptionAlgorithm.Value != nil {
		return errEncrypted
	}
	return err
}
