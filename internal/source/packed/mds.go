package packed

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/record"
)

// mds is MosaicML's format (streaming/base/format/mds): a shard is u32 samples, u32 offsets, the columns as JSON, then
// the samples: u32 sizes of the columns that vary, and the columns.
type mds struct {
	identity

	raw     map[string]int64 // bytes that compressed shards unpack to, by path; nil = the index was not read
	plain   map[string]int64 // bytes of the others
	samples map[string]int64 // of all of them
}

func (mds) Scheme() string { return "mds" }

// mdsIndex is index.json.
type mdsIndex struct {
	Version int
	Shards  []mdsShard
}

type mdsShard struct {
	Format      string
	Samples     *int64 // streaming always says it
	Compression *string
	RawData     mdsFile  `json:"raw_data"`
	ZipData     *mdsFile `json:"zip_data"`
}

type mdsFile struct {
	Basename string
	Bytes    int64
}

// Files reads index.json.
func (m mds) Files(a Address) (files, beside []string, err error) {
	l, err := m.listed(a)
	return l.files, l.beside, err
}

// Prepare implements Prepares: it remembers how large compressed shards are unpacked.
func (m mds) Prepare(a Address) (_ Format, files, beside []string, err error) {
	l, err := m.listed(a)
	m.raw, m.plain, m.samples = l.raw, l.plain, l.samples
	return m, l.files, l.beside, err
}

// mdsListed holds what index.json says of a folder: its files, how many bytes those that are compressed unpack to, how
// many the others have, and how many samples are in each.
type mdsListed struct {
	files, beside       []string
	raw, plain, samples map[string]int64
}

func (mds) listed(a Address) (l mdsListed, err error) {
	path := filepath.Join(a.Path, "index.json")
	index, err := readIndex(a, path)
	if err != nil {
		return l, err
	}
	l.raw, l.plain, l.samples = map[string]int64{}, map[string]int64{}, map[string]int64{}
	unpacked := unpackedNames(a)
	for i := range index.Shards {
		s := &index.Shards[i]
		f := &s.RawData
		err := s.check()
		if err == nil && s.Compression != nil {
			var there bool
			if there, err = unpacked(f.Basename); err == nil && !there {
				f, err = s.packed()
			}
		}
		if err != nil {
			return mdsListed{}, fmt.Errorf("%s: shard %d %w", path, i, err)
		}
		full := filepath.Join(a.Path, f.Basename)
		if s.Samples != nil {
			l.samples[full] = *s.Samples
		}
		if f == s.ZipData {
			l.raw[full] = s.RawData.Bytes
		} else {
			l.plain[full] = s.RawData.Bytes
		}
		l.files = append(l.files, full)
	}
	if len(l.files) == 0 {
		return l, errNoFiles
	}
	l.beside = []string{path}
	return l, unique(l.files)
}

func readIndex(a Address, path string) (*mdsIndex, error) {
	b, err := a.readSmall(path, maxIndex)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(validJSON(b), onceEach(b)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	index := &mdsIndex{}
	if err := json.Unmarshal(b, index); err != nil {
		return nil, fmt.Errorf("%s is no index of MosaicML's streaming: %w", path, err)
	}
	if index.Version != 2 {
		return nil, fmt.Errorf("%s has version %d; larder reads version 2", path, index.Version)
	}
	return index, nil
}

// check says what is wrong with a shard of an index.
func (s *mdsShard) check() error {
	if s.Format != "mds" {
		return fmt.Errorf("has the format %q; larder reads mds", s.Format)
	}
	return s.RawData.check()
}

// check refuses a name that leads out of the folder. merge_index of streaming names files in folders below it.
func (f *mdsFile) check() error {
	n := f.Basename
	if n == "." || !fs.ValidPath(n) || strings.IndexByte(n, 0) >= 0 {
		return fmt.Errorf("is named %q, which is no file of the folder or below it", n)
	}
	return nil
}

// packed is the compressed file of a shard.
func (s *mdsShard) packed() (*mdsFile, error) {
	codec, _, _ := strings.Cut(*s.Compression, ":")
	switch {
	case !slices.Contains(mdsPackings, codec):
		return nil, fmt.Errorf("is compressed with %q, and larder unpacks %s; write the dataset with one of them, or "+
			"without compression", *s.Compression, strings.Join(mdsPackings, ", "))
	case s.ZipData == nil:
		return nil, fmt.Errorf("is compressed (%s), and the index names no file for that (zip_data)", *s.Compression)
	case packingOf(s.ZipData.Basename) != codec:
		return nil, fmt.Errorf("is compressed with %s, and its file is named %q, not *.mds.%s", codec, s.ZipData.Basename,
			codec)
	case s.RawData.Bytes < 1 || s.RawData.Bytes > math.MaxUint32:
		return nil, fmt.Errorf("unpacks to %d bytes, as the index says; a shard has 1 to %d", s.RawData.Bytes,
			int64(math.MaxUint32))
	}
	return s.ZipData, s.ZipData.check()
}

// unpackedNames tells whether compressed shards are there unpacked, too. A place without lists is asked for the first
// of each folder, and the others there are taken to be as that one.
func unpackedNames(a Address) func(name string) (bool, error) {
	type folder struct {
		names map[string]bool
		first *bool
	}
	folders := map[string]*folder{}
	return func(name string) (bool, error) {
		full := filepath.Join(a.Path, name)
		dir := filepath.Dir(full)
		in := folders[dir]
		if in == nil {
			in = &folder{names: map[string]bool{}}
			list, err := a.names(dir)
			if err != nil && !errs.Is(err, errs.Unsupported) { // a web server has no list
				return false, err
			}
			for _, n := range list {
				in.names[n] = true
			}
			folders[dir] = in
		}
		if len(in.names) > 0 {
			return in.names[filepath.Base(full)], nil
		}
		if in.first == nil {
			there, err := a.exists(full)
			if err != nil {
				return false, err
			}
			in.first = &there
		}
		return *in.first, nil
	}
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

// mdsLabels are the encodings that a label may have.
var mdsLabels = append(slices.Collect(maps.Keys(integers)), "str", "str_int", "str_float", "str_decimal", "float16",
	"float32", "float64")

// labelNames are the columns that are taken for the label, the best first.
var labelNames = []string{"label", "labels", "class", "cls", "y", "target", "fine_label"}

func parseColumns(b []byte) (columns, error) {
	c := columns{image: -1, label: -1}
	if err := errors.Join(validJSON(b), onceEach(b)); err != nil {
		return c, fmt.Errorf("its header: %w", err)
	}
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
		if i >= 0 && c.label < 0 && slices.Contains(mdsLabels, c.Encodings[i]) {
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

// place is where sample i lies. Samples are asked for in order.
func (s *shard) place(i int64) (from, to int64, err error) {
	k := i % offsetsAtOnce
	if k == 0 && i > 0 {
		if err := s.load(i); err != nil {
			return 0, 0, fmt.Errorf("read offsets of sample %d: %w", i, err)
		}
	}
	return s.offset(k), s.offset(k + 1), nil
}

func (s *shard) offset(i int64) int64 { return int64(binary.LittleEndian.Uint32(s.offsets[4*i:])) }

func (m mds) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	number := int64(0)
	packed := isPackedShard(f.Path)
	if n := m.plain[f.Path]; !packed && n > 0 && n != f.Size {
		return Found{}, fmt.Errorf("it has %d bytes, and index.json says %d: one of them is of another version, or the "+
			"shard is cut; write both again", f.Size, n)
	}
	rest := func() error { return nil }
	if packed {
		u, err := openUnpacked(f.Path, f.ReaderAt, f.Size, m.raw[f.Path])
		if err != nil {
			return Found{}, err
		}
		defer u.close()
		f.ReaderAt, f.Size, rest = u, u.size, u.rest
	}
	found, err := scanShard(ctx, a, f, func(s Sample) error {
		if packed {
			s.Off = number
		}
		number++
		return emit(s)
	})
	if err == nil {
		err = rest()
	}
	if said, ok := m.samples[f.Path]; err == nil && ok && number != said {
		err = fmt.Errorf("it has %d samples, and index.json says %d: one of them is of another version; write both again",
			number, said)
	}
	return found, err
}

// scanShard reads the heads of all samples, in the order in which they lie.
func scanShard(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	found := Found{Skipped: map[string]int{}}
	c, err := openShard(f.ReaderAt, f.Size)
	if err != nil {
		return found, err
	}
	if f.Schema == nil {
		err = c.needImage()
	} else if err = c.fits(a, f.Schema); c.label >= 0 && integers[c.Encodings[c.label]] == 0 {
		c.label = -1 // subsets read it as a property
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
		from, to, err := c.place(i)
		if err != nil {
			return found, err
		}
		s, err := c.sample(f, from, to, buf)
		if err != nil {
			return found, fmt.Errorf("sample %d, at byte %d: %w", i, from, err)
		}
		if f.Schema != nil {
			s.Off, s.Size = from, to-from
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
	if strings.HasPrefix(encoding, "str") {
		if !utf8.Valid(b) {
			return errors.New("its label is not UTF-8")
		}
		return s.labelled(b)
	}
	if d := mdsScalars[encoding]; strings.HasPrefix(encoding, "float") {
		if d.Size() != size {
			return fmt.Errorf("column %q of encoding %s has not %d bytes", c.Names[c.label], encoding, d.Size())
		}
		return s.labelledFloat((&record.Value{Kind: record.Scalar, DType: d, Data: b}).Number(0))
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
