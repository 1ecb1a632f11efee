package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/internal/source/subset"
)

// The saved column of one property; docs/format/index.md describes the bytes. It is a cache: what is damaged or of
// another version is read from the dataset again.
const (
	columnMagic   = "LARDERPC"
	columnVersion = 2 // 1 may have rounded numbers, and U+FFFD for half of a character
	columnSuffix  = ".lardercol"
)

func columnName(uri, name string) string {
	return fmt.Sprintf("%016x%s", xxhash.Sum64String(uri+"\x00"+name), columnSuffix)
}

// encodeColumn writes a column of n values.
func encodeColumn(uri, name string, fp uint64, n int, c *subset.Column) []byte {
	b := make([]byte, indexHeader, indexHeader+9*n+64)
	copy(b, columnMagic)
	binary.LittleEndian.PutUint32(b[8:], columnVersion)
	str := func(x string) {
		b = binary.AppendUvarint(b, uint64(len(x)))
		b = append(b, x...)
	}
	str(uri)
	str(name)
	b = binary.LittleEndian.AppendUint64(b, fp)
	b = append(b, byte(c.Kind), flag(c.Single))
	b = binary.AppendUvarint(b, uint64(n))
	for _, w := range c.None {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	switch c.Kind {
	case subset.Int, subset.Bool:
		for _, x := range c.Ints {
			b = binary.LittleEndian.AppendUint64(b, uint64(x))
		}
	case subset.Float:
		for _, x := range c.Floats {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
	case subset.Text:
		b = binary.AppendUvarint(b, uint64(len(c.Words)))
		for _, w := range c.Words {
			str(w)
		}
		for _, x := range c.Codes {
			b = binary.LittleEndian.AppendUint32(b, x)
		}
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(len(b)-indexHeader))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decodeColumn reads what encodeColumn wrote for that version, and accepts nothing else.
func decodeColumn(b []byte, uri, name string, fp uint64, n int) (*subset.Column, error) {
	switch {
	case len(b) < indexHeader+8 || string(b[:8]) != columnMagic:
		return nil, errors.New("it is no column of larder, or cut off")
	case binary.LittleEndian.Uint32(b[8:]) != columnVersion || binary.LittleEndian.Uint32(b[12:]) != 0:
		return nil, errors.New("its version is another one")
	case binary.LittleEndian.Uint64(b[16:]) != uint64(len(b)-indexHeader-8):
		return nil, errors.New("its length is wrong")
	case binary.LittleEndian.Uint64(b[len(b)-8:]) != xxhash.Sum64(b[:len(b)-8]):
		return nil, errors.New("its checksum is wrong")
	}
	r := &indexReader{b: b[indexHeader : len(b)-8]}
	if of, is, version := r.str(), r.str(), r.u64(); of != uri || is != name || version != fp {
		return nil, errors.New("it is of another dataset or version")
	}
	if len(r.b) < 2 {
		return nil, errors.New("it is cut off")
	}
	c := &subset.Column{Kind: subset.Kind(r.b[0]), Single: r.b[1] == 1}
	r.b = r.b[2:]
	if got := r.uvarint(); got != uint64(n) {
		return nil, fmt.Errorf("it has %d values, and the dataset %d samples", got, n)
	}
	words := (n + 63) / 64
	if len(r.b) < 8*words {
		return nil, errors.New("it is cut off")
	}
	c.None = make([]uint64, words)
	for i := range c.None {
		c.None[i] = r.u64()
	}
	readValues(r, c, n)
	if r.err == nil && len(r.b) != 0 {
		r.fail("%d bytes follow the last value", len(r.b))
	}
	if r.err != nil {
		return nil, r.err
	}
	return c, nil
}

func readValues(r *indexReader, c *subset.Column, n int) {
	size := 8
	switch c.Kind {
	case subset.Int, subset.Float, subset.Bool:
	case subset.Text:
		size = 4
		c.Words = make([]string, r.count("words", 1))
		for i := range c.Words {
			c.Words[i] = r.str()
		}
	default:
		r.fail("values of kind %d", c.Kind)
	}
	if r.err == nil && len(r.b) < size*n {
		r.fail("%d values do not fit", n)
	}
	if r.err != nil {
		return
	}
	switch c.Kind {
	case subset.Float:
		c.Floats = make([]float64, n)
		for i := range c.Floats {
			c.Floats[i] = math.Float64frombits(r.u64())
		}
	case subset.Text:
		c.Codes = make([]uint32, n)
		for i := range c.Codes {
			c.Codes[i] = binary.LittleEndian.Uint32(r.b)
			if r.b = r.b[4:]; int(c.Codes[i]) >= max(len(c.Words), 1) {
				r.fail("word %d of %d", c.Codes[i], len(c.Words))
				return
			}
		}
	case subset.Int, subset.Bool:
		c.Ints = make([]int64, n)
		for i := range c.Ints {
			c.Ints[i] = int64(r.u64())
		}
	}
}

// u64 reads 8 bytes.
func (r *indexReader) u64() uint64 {
	if len(r.b) < 8 {
		r.fail("a number is cut off")
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// loadColumn returns the saved column of a version; nil = there is none.
func (c *Catalog) loadColumn(rs *rootState, snap *snapshot, name string) *subset.Column {
	if c.cfg.IndexDir == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(c.cfg.IndexDir, columnName(rs.uri, name)))
	if err != nil {
		return nil
	}
	col, err := decodeColumn(b, rs.uri, name, snap.fp, snap.Len())
	if err != nil {
		return nil
	}
	return col
}

// saveColumn writes the file aside and renames it. Without it the column is read again after a restart.
func (c *Catalog) saveColumn(rs *rootState, snap *snapshot, name string, col *subset.Column) {
	if c.cfg.IndexDir == "" {
		return
	}
	path := filepath.Join(c.cfg.IndexDir, columnName(rs.uri, name))
	if err := writeAside(path, encodeColumn(rs.uri, name, snap.fp, snap.Len(), col)); err != nil {
		c.log.Warn("the column of a property was not saved; the next start reads it again", "dataset", rs.uri, "property",
			name, "error", err)
	}
}

// writeAside writes a file of the cache aside and renames it. It is not synced: what a crash tears has a wrong
// checksum.
func writeAside(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+indexSuffix+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // what is left is removed at a later start
	}
	return err
}

// removeColumns deletes the saved columns of a root, and returns their size.
func (c *Catalog) removeColumns(uri string) (size int64) {
	if c.cfg.IndexDir == "" {
		return 0
	}
	entries, err := os.ReadDir(c.cfg.IndexDir)
	if err != nil {
		return 0 // the index was removed from there, or its error tells
	}
	for _, e := range entries {
		path := filepath.Join(c.cfg.IndexDir, e.Name())
		if !strings.HasSuffix(e.Name(), columnSuffix) {
			continue
		}
		if owner, ok := ownerOf(path, columnMagic); !ok || owner != uri {
			continue
		}
		if fi, err := e.Info(); err == nil && os.Remove(path) == nil {
			size += fi.Size()
		}
	}
	return size
}
