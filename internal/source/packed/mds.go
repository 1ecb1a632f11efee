package packed

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// mds is MosaicML's format (streaming/base/format/mds): a shard is u32 samples, u32 offsets, the columns as JSON, then
// the samples: u32 sizes of the columns that vary, and the columns.
type mds struct{ identity }

func (mds) Scheme() string { return "mds" }

// Files reads index.json.
func (mds) Files(a Address) (files, beside []string, err error) {
	path := filepath.Join(a.Path, "index.json")
	b, err := a.readSmall(path, maxIndex)
	if err != nil {
		return nil, nil, err
	}
	var index struct {
		Version int
		Shards  []struct {
			Format      string
			Compression *string
			RawData     struct{ Basename string } `json:"raw_data"`
		}
	}
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, nil, fmt.Errorf("%s is no index of MosaicML's streaming: %w", path, err)
	}
	if index.Version != 2 {
		return nil, nil, fmt.Errorf("%s has version %d; larder reads version 2", path, index.Version)
	}
	for i, s := range index.Shards {
		name := s.RawData.Basename
		if s.Format != "mds" {
			return nil, nil, fmt.Errorf("%s: shard %d has the format %q; larder reads mds", path, i, s.Format)
		}
		if name == "" || filepath.Base(name) != name || strings.HasPrefix(name, "..") || strings.IndexByte(name, 0) >= 0 {
			return nil, nil, fmt.Errorf("%s: shard %d is named %q, which is no file of the folder", path, i, name)
		}
		full := filepath.Join(a.Path, name)
		if s.Compression != nil {
			ok, err := a.exists(full)
			if err != nil {
				return nil, nil, err
			}
			if !ok {
				return nil, nil, fmt.Errorf("%s: shard %d is compressed (%s), so that no sample in it can be read alone; "+
					"write the dataset without compression", path, i, *s.Compression)
			}
		}
		files = append(files, full)
	}
	if len(files) == 0 {
		return nil, nil, errNoFiles
	}
	return files, []string{path}, unique(files)
}

// columns of a shard, as its header says.
type columns struct {
	Names     []string `json:"column_names"`
	Encodings []string `json:"column_encodings"`
	Sizes     []*int64 `json:"column_sizes"`

	image, label int // -1 = none
	varying      int
}

// integers are the encodings that a label may have, and their bytes.
var integers = map[string]int64{"int": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2,
	"uint32": 4, "uint64": 8}

// labelNames are the columns that are taken for the label, the best first.
var labelNames = []string{"label", "labels", "class", "cls", "y", "target", "fine_label"}

func parseColumns(b []byte) (columns, error) {
	c := columns{image: -1, label: -1}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("its header is no JSON: %w", err)
	}
	if len(c.Names) == 0 || len(c.Names) != len(c.Encodings) || len(c.Names) != len(c.Sizes) || len(c.Names) > 1024 {
		return c, fmt.Errorf("its header names %d columns, %d encodings and %d sizes", len(c.Names), len(c.Encodings),
			len(c.Sizes))
	}
	for i, e := range c.Encodings {
		switch {
		case c.Sizes[i] == nil:
			c.varying++
		case *c.Sizes[i] < 0 || *c.Sizes[i] > math.MaxUint32:
			return c, fmt.Errorf("column %q has %d bytes", c.Names[i], *c.Sizes[i])
		}
		if (e == "jpeg" || e == "png") && (c.image < 0 || c.Names[i] == "image") {
			c.image = i
		}
		if n, ok := integers[e]; ok && (c.Sizes[i] == nil || *c.Sizes[i] != n) {
			return c, fmt.Errorf("column %q of encoding %s has not %d bytes", c.Names[i], e, n)
		}
	}
	for _, name := range labelNames {
		i := slices.Index(c.Names, name)
		if i < 0 || c.label >= 0 {
			continue
		}
		if _, ok := integers[c.Encodings[i]]; ok || c.Encodings[i] == "str" {
			c.label = i
		}
	}
	return c, nil
}

// needImage refuses a shard without images, whose samples were to be an image and a label.
func (c *columns) needImage() error {
	if c.image < 0 {
		if i := slices.Index(c.Encodings, "pil"); i >= 0 {
			return fmt.Errorf("column %q stores raw pixels (pil); write it as jpeg or png", c.Names[i])
		}
		return fmt.Errorf("no column is a jpeg or png: it has %s", strings.Join(c.Encodings, ", "))
	}
	return nil
}

const (
	// maxHeader bounds the JSON of a shard, maxIndex that of index.json: 300 bytes a shard.
	maxHeader = 1 << 20
	maxIndex  = 1 << 30
	// offsetsAtOnce is how many offsets are read together.
	offsetsAtOnce = 1 << 16
)

// shard is the head of a file.
type shard struct {
	columns
	io.ReaderAt
	n       int64  // samples
	offsets []byte // of samples from a multiple of offsetsAtOnce on
}

// openShard reads the head of a file of so many bytes.
func openShard(r io.ReaderAt, size int64) (*shard, error) {
	var word [4]byte
	if _, err := r.ReadAt(word[:], 0); err != nil {
		return nil, fmt.Errorf("read the number of samples: %w", err)
	}
	s := &shard{ReaderAt: r, n: int64(binary.LittleEndian.Uint32(word[:]))}
	table := 4 + 4*(s.n+1)
	if table > size || size > math.MaxUint32 { // offsets have 32 bits
		return nil, fmt.Errorf("it says %d samples, whose offsets do not fit its %d bytes", s.n, size)
	}
	s.offsets = make([]byte, 4*min(s.n+1, offsetsAtOnce+1))
	if err := s.load(0); err != nil {
		return nil, fmt.Errorf("read offsets: %w", err)
	}
	first := s.offset(0)
	if first < table || first-table > maxHeader || first > size {
		return nil, fmt.Errorf("its first sample is at byte %d of %d, and the offsets end at %d", first, size, table)
	}
	head := make([]byte, first-table)
	if _, err := r.ReadAt(head, table); err != nil {
		return nil, fmt.Errorf("read its header: %w", err)
	}
	var err error
	s.columns, err = parseColumns(head)
	return s, err
}

func (s *shard) load(from int64) error {
	s.offsets = s.offsets[:4*min(s.n+1-from, offsetsAtOnce+1)]
	_, err := s.ReadAt(s.offsets, 4+4*from)
	return err
}

func (s *shard) offset(i int64) int64 { return int64(binary.LittleEndian.Uint32(s.offsets[4*i:])) }

func (mds) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	found := Found{Skipped: map[string]int{}}
	c, err := openShard(f, f.Size)
	if err != nil {
		return found, err
	}
	if f.Schema == nil {
		err = c.needImage()
	} else if err = c.fits(f.Schema); c.label >= 0 && c.Encodings[c.label] == "str" {
		c.label = -1
	}
	if err != nil {
		return found, err
	}
	n := c.n
	buf := make([]byte, 4*c.varying)
	for i := range n {
		if i&255 == 255 && ctx.Err() != nil {
			return found, ctx.Err()
		}
		k := i % offsetsAtOnce
		if k == 0 && i > 0 {
			if err := c.load(i); err != nil {
				return found, fmt.Errorf("read offsets of sample %d: %w", i, err)
			}
		}
		s, err := c.sample(f, c.offset(k), c.offset(k+1), buf)
		if err != nil {
			return found, fmt.Errorf("sample %d, at byte %d: %w", i, c.offset(k), err)
		}
		if f.Schema != nil {
			s.Off, s.Size = c.offset(k), c.offset(k+1)-c.offset(k)
			if s.Label > math.MaxInt32 {
				s.Label = -1
			}
			s.Label = max(s.Label, -1)
		}
		s.Key = rowKey(i)
		if err := emit(s); err != nil {
			return found, err
		}
	}
	for i, name := range c.Names {
		if i != c.image && i != c.label && n > 0 && f.Schema == nil {
			found.Skipped["column "+name] += int(n)
		}
	}
	return found, nil
}

// sample finds the columns of one sample, which lies at [from, to) of the file.
func (c *columns) sample(f File, from, to int64, buf []byte) (Sample, error) {
	s := Sample{Label: -1}
	if to < from || to > f.Size || from+int64(len(buf)) > to {
		return s, fmt.Errorf("it ends at byte %d of %d", to, f.Size)
	}
	if _, err := f.ReadAt(buf, from); err != nil {
		return s, err
	}
	at := from + int64(len(buf))
	for i := range c.Names {
		var size int64
		if c.Sizes[i] != nil {
			size = *c.Sizes[i]
		} else {
			size = int64(binary.LittleEndian.Uint32(buf))
			buf = buf[4:]
		}
		if size > to-at {
			return s, fmt.Errorf("column %q has %d bytes, and %d are left", c.Names[i], size, to-at)
		}
		switch i {
		case c.image:
			if size == 0 {
				return s, fmt.Errorf("column %q is empty", c.Names[i])
			}
			s.Off, s.Size = at, size
		case c.label:
			if err := c.readLabel(f, at, size, &s); err != nil {
				return s, err
			}
		}
		at += size
	}
	if at != to {
		return s, fmt.Errorf("its columns end at byte %d, and it ends at %d", at, to)
	}
	return s, nil
}

func (c *columns) readLabel(f File, at, size int64, s *Sample) error {
	if size > maxClass {
		return fmt.Errorf("column %q has %d bytes, too many for a label", c.Names[c.label], size)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	encoding := c.Encodings[c.label]
	if encoding == "str" {
		if !utf8.Valid(b) {
			return errors.New("its label is not UTF-8")
		}
		if n, err := strconv.ParseInt(string(b), 10, 64); err == nil {
			s.Label = n
		} else {
			s.Class = string(b)
		}
		return nil
	}
	var word [8]byte
	copy(word[:], b)
	n := binary.LittleEndian.Uint64(word[:])
	if shift := 64 - 8*size; strings.HasPrefix(encoding, "int") { // the sign
		s.Label = int64(n<<shift) >> shift
	} else if n > math.MaxInt64 {
		return fmt.Errorf("its label is %d", n)
	} else {
		s.Label = int64(n)
	}
	return nil
}
