package pack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// mds is a shard of MosaicML's streaming: u32 samples, u32 offsets, the columns as JSON, then the samples: u32 sizes of
// the columns that vary, and the columns. How many samples come is known at the end alone, so that their bytes wait in
// a file beside it.
type mds struct {
	s        *open
	o        options
	spool    file
	rows     *bufio.Writer
	rowBytes int64
	ends     []uint32 // of each sample, from the first one's beginning
	bytes    int64    // of the file
}

func newMDS(s *open, o options, spool file) *mds {
	return &mds{s: s, o: o, spool: spool, rows: bufio.NewWriterSize(spool, writeBuffer),
		bytes: int64(4 + 4 + len(columnsJSON(o, false)))}
}

// columnsJSON is what streaming.base.format.mds.MDSWriter writes of its columns, which it sorts.
func columnsJSON(o options, png bool) string {
	image := "jpeg"
	if png {
		image = "png"
	}
	names, encodings, sizes := `"image", "label"`, `"`+image+`", "int"`, "null, 8"
	if o.columns != nil {
		encodings, names, sizes = o.columns.json()
	} else if o.Properties {
		names, encodings = `"class", "image", "key", "label"`, `"str", "`+image+`", "str", "int"`
		sizes = "null, null, null, 8"
	}
	return fmt.Sprintf(`{"column_encodings": [%s], "column_names": [%s], "column_sizes": [%s], "compression": null, `+
		`"format": "mds", "hashes": [], "size_limit": %d, "version": 2}`, encodings, names, sizes, o.ShardSize)
}

// row is the head of a sample, and its columns.
func (m *mds) row(s *sample) [][]byte {
	if s.values != nil {
		return m.o.columns.row(s.values)
	}
	label := binary.LittleEndian.AppendUint64(nil, uint64(s.label))
	columns := [][]byte{s.image, label}
	varying := 1
	if m.o.Properties {
		columns = [][]byte{[]byte(s.props.Class), s.image, []byte(s.props.Key), label}
		varying = 3
	}
	var head []byte
	for _, c := range columns[:varying] {
		head = binary.LittleEndian.AppendUint32(head, uint32(len(c)))
	}
	return append([][]byte{head}, columns...)
}

func (m *mds) size(s *sample) int64 {
	n := m.bytes + 4
	for _, part := range m.row(s) {
		n += int64(len(part))
	}
	return n
}

func (m *mds) add(s *sample) error {
	size := m.size(s)
	if size > maxMDS {
		return fmt.Errorf("a shard with sample %d would have %d bytes, and MDS shards have less than 4 GiB", s.at, size)
	}
	end := uint32(size - m.bytes - 4)
	if n := len(m.ends); n > 0 {
		end += m.ends[n-1]
	}
	m.bytes, m.ends, m.rowBytes = size, append(m.ends, end), int64(end)
	for _, part := range m.row(s) {
		if _, err := m.rows.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (m *mds) end() error {
	defer m.spool.Close() // it is removed
	if err := m.rows.Flush(); err != nil {
		return err
	}
	columns := columnsJSON(m.o, m.s.info.PNG)
	n := len(m.ends)
	head := binary.LittleEndian.AppendUint32(make([]byte, 0, 8+4*n+len(columns)), uint32(n))
	first := uint32(8 + 4*n + len(columns))
	head = binary.LittleEndian.AppendUint32(head, first)
	for _, end := range m.ends {
		head = binary.LittleEndian.AppendUint32(head, first+end)
	}
	if _, err := m.s.buf.Write(append(head, columns...)); err != nil {
		return err
	}
	if _, err := io.Copy(m.s.buf, io.NewSectionReader(m.spool, 0, m.rowBytes)); err != nil {
		return err
	}
	if err := os.Remove(m.spool.Name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// mdsIndex is index.json, as streaming writes it.
func mdsIndex(shards []Shard, o options) []byte {
	list := make([]string, len(shards))
	for i := range shards {
		s := &shards[i]
		list[i] = strings.TrimSuffix(strings.Replace(columnsJSON(o, s.PNG), `"hashes": [], `,
			fmt.Sprintf(`"hashes": [], "raw_data": {"basename": %q, "bytes": %d, "hashes": {}}, "samples": %d, `,
				s.Name, s.Bytes, s.Samples), 1), "}") + `, "zip_data": null}`
	}
	return []byte(`{"shards": [` + strings.Join(list, ", ") + `], "version": 2}`)
}
