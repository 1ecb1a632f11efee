package packed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"larder/internal/record"
)

// tfrecord is TensorFlow's TFRecord with tf.Example (tensorflow/core/lib/io/record_writer.h): u64 length, u32 masked
// CRC32C of it, the bytes, u32 masked CRC32C of them.
type tfrecord struct{ identity }

func (tfrecord) Scheme() string { return "tfrecord" }

// tfShards are the names that TensorFlow's writers give to parts, such as train-00000-of-00010.
var tfShards = regexp.MustCompile(`\.tfrecords?($|[-.])|\.tfrec$|-\d{5}-of-\d{5}(\.gz)?$`)

func isTFShard(name string) bool {
	return tfShards.MatchString(name) && !strings.HasSuffix(name, ".index") && !strings.HasSuffix(name, ".json")
}

// Files expands braces and lists; a folder stands for its files that are named like TFRecords. What a file is unpacked
// from is left out beside it.
func (tfrecord) Files(a Address) (files, beside []string, err error) {
	files, err = someFiles(a, "*.tfrecord", isTFShard)
	if err != nil {
		return nil, nil, err
	}
	plain := map[string]bool{}
	for _, f := range files {
		plain[f] = true
		if compressedName(f) && !strings.HasSuffix(f, ".gz") {
			return nil, nil, fmt.Errorf("%q is compressed, and larder reads TFRecords of gzip and zlib; unpack it", f)
		}
	}
	files = slices.DeleteFunc(files, func(f string) bool {
		return strings.HasSuffix(f, ".gz") && plain[strings.TrimSuffix(f, ".gz")]
	})
	return files, nil, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maskedCRC is TensorFlow's checksum (tensorflow/core/lib/hash/crc32c.h).
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

const (
	tfHead = 12 // u64 length and its checksum
	tfTail = 4  // the checksum of the bytes
)

// tfRecords calls each for every record of a file, with its number and its place; packed says that the place is one in
// what the file unpacks to. The bytes are valid during the call.
func tfRecords(
	ctx context.Context, f io.ReaderAt, size int64, each func(i, off int64, packed bool, b []byte) error,
) error {
	in, err := openTF(f, size)
	if err != nil {
		return err
	}
	defer in.Close()
	var b bytes.Buffer
	for i, at := int64(0), int64(0); ; i++ {
		if i&63 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		end, err := in.next(&b, at)
		if err != nil {
			return fmt.Errorf("record %d, at byte %d%s: %w", i, at, in.of(), err)
		}
		if end {
			return nil
		}
		if i >= in.records {
			return fmt.Errorf("it has more than %d records, and its %d bytes should not: unpack it, or write several "+
				"smaller files", in.records, size)
		}
		n := b.Len() - tfTail
		if err := each(i, at+tfHead, in.packing != "", b.Bytes()[:n]); err != nil {
			return err
		}
		at += tfHead + int64(n) + tfTail
	}
}

// checkTail compares bytes with the checksum behind them.
func checkTail(b []byte) error {
	n := len(b) - tfTail
	if maskedCRC(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return fmt.Errorf("the checksum of its %d bytes is wrong", n)
	}
	return nil
}

// Schema looks at all records: a feature that always has one value is a scalar, one that always has n an array of n,
// and others are ragged.
func (tfrecord) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (record.Schema, error) {
	seen := make([]tfSeen, len(files))
	errs := make([]error, len(files))
	next := make(chan int, len(files))
	for i := range files {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range min(4, len(files)) {
		wg.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				errs[i] = seen[i].file(ctx, files[i], open)
			}
		})
	}
	wg.Wait()
	if err := damagedFiles(ctx, errs); err != nil {
		return record.Schema{}, err
	}
	all := tfSeen{}
	for i := range files {
		if err := all.merge(&seen[i]); err != nil {
			return record.Schema{}, fmt.Errorf("%s: %w", filepath.Base(files[i]), err)
		}
	}
	return all.schema(a)
}

// tfSeen is what the records of some files have.
type tfSeen struct {
	records int64
	order   []string // of the keys
	keys    map[string]*tfKey
}

// tfKey is one feature, in all records that were seen.
type tfKey struct {
	kind      featureKind
	low, high int64 // values in a record that has it
	records   int64 // that have it
	images    int64 // values that begin as an image file
	sounds    int64 // values that begin as a file of sound
}

func (s *tfSeen) file(ctx context.Context, path string, open func(string) (Other, error)) error {
	s.keys = map[string]*tfKey{}
	f, err := open(path)
	if err != nil {
		return named(path, err)
	}
	defer f.Close()
	var e example
	err = tfRecords(ctx, f, f.Len(), func(i, off int64, _ bool, b []byte) error {
		if err := e.parse(b); err != nil {
			return fmt.Errorf("record %d, at byte %d: %w", i, off-tfHead, err)
		}
		for k := range e.features {
			if err := s.add(&e.features[k]); err != nil {
				return fmt.Errorf("record %d, at byte %d: %w", i, off-tfHead, err)
			}
		}
		s.records++
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return err
}

func (s *tfSeen) add(f *feature) error {
	if f.kind == noFeature {
		return nil // a feature without a list: as if it were absent
	}
	images, sounds := int64(0), int64(0)
	if f.kind == bytesFeature && f.count == 1 {
		if isImageFile(f.data) {
			images = 1
		} else if isSoundFile(f.data) {
			sounds = 1
		}
	}
	k, ok := s.keys[string(f.key)]
	if !ok {
		if len(s.order) >= record.MaxFields {
			return fmt.Errorf("feature %.80q is one more than the %d that a record may have", f.key, record.MaxFields)
		}
		s.keys[string(f.key)] = &tfKey{f.kind, f.count, f.count, 1, images, sounds}
		s.order = append(s.order, string(f.key))
		return nil
	}
	if k.kind != f.kind {
		return fmt.Errorf("feature %.80q has %s, and records before have %s", f.key, f.kind, k.kind)
	}
	k.low, k.high = min(k.low, f.count), max(k.high, f.count)
	k.records++
	k.images += images
	k.sounds += sounds
	return nil
}

func (s *tfSeen) merge(o *tfSeen) error {
	if s.keys == nil {
		s.keys = map[string]*tfKey{}
	}
	for _, name := range o.order {
		k := o.keys[name]
		was, ok := s.keys[name]
		switch {
		case !ok && len(s.order) >= record.MaxFields:
			return fmt.Errorf("feature %.80q is one more than the %d that a record may have", name, record.MaxFields)
		case !ok:
			s.keys[name] = k
			s.order = append(s.order, name)
		case was.kind != k.kind:
			return fmt.Errorf("feature %.80q has %s, and in files before %s", name, k.kind, was.kind)
		default:
			was.low, was.high = min(was.low, k.low), max(was.high, k.high)
			was.records += k.records
			was.images += k.images
			was.sounds += k.sounds
		}
	}
	s.records += o.records
	return nil
}

func (s *tfSeen) schema(a Address) (record.Schema, error) {
	if s.records == 0 {
		return record.Schema{}, errors.New("its files have no records")
	}
	if err := s.checkArgs(a); err != nil {
		return record.Schema{}, err
	}
	var fields []record.Field
	var lists []string
	for _, name := range s.order {
		k := s.keys[name]
		always := k.records == s.records
		switch {
		case k.kind == bytesFeature && k.high > 1:
			lists = append(lists, fmt.Sprintf("%q", name))
		case k.kind == bytesFeature && a.wants("text", name):
			fields = append(fields, textField(name))
		case k.kind == bytesFeature && s.isSound(a, name):
			samples, _ := soundFields(name)
			fields = append(fields, samples)
		case k.kind == bytesFeature && always && k.images == s.records && !a.wants("raw", name):
			fields = append(fields, imageField(name))
		case k.kind == bytesFeature:
			fields = append(fields, bytesField(name))
		case always && k.low == 1 && k.high == 1:
			fields = append(fields, scalarField(name, k.kind.dtype()))
		case always && k.low == k.high:
			fields = append(fields, arrayField(name, k.kind.dtype(), k.low))
		default:
			fields = append(fields, arrayField(name, k.kind.dtype(), record.Ragged))
		}
	}
	sortFields(fields)
	fields = s.rates(fields)
	chosen, err := choose(fields, a)
	fields = withRates(chosen, fields)
	switch {
	case err != nil && len(lists) > 0:
		return record.Schema{}, fmt.Errorf("%w; lists of byte strings, such as %s, cannot be fields", err, lists[0])
	case err != nil:
		return record.Schema{}, err
	case len(lists) > 0 && a.Fields() == nil:
		return record.Schema{}, fmt.Errorf("feature %s is a list of byte strings, which a field cannot hold; name the "+
			"others with ?fields=", strings.Join(lists, ", "))
	}
	return record.Schema{Fields: fields}, nil
}

// Scan reads all records and checks their checksums.
func (tfrecord) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	if f.Schema == nil {
		return Found{}, errNoSchema
	}
	label := labelField(f.Schema, labelFields)
	var e example
	var word [8]byte
	err := tfRecords(ctx, f, f.Size, func(i, off int64, packed bool, b []byte) error {
		s := Sample{Key: rowKey(i), Off: off, Size: max(int64(len(b)), 1), Label: -1}
		if packed {
			s.Off = tfPacked | i
		}
		if label >= 0 {
			if err := e.parse(b); err != nil {
				return fmt.Errorf("record %d, at byte %d: %w", i, off-tfHead, err)
			}
			switch x := e.find(f.Schema.Fields[label].Name); {
			case x == nil || x.count != 1:
			case x.kind == floatFeature:
				s.Label = labelValue(record.Float32, x.floats(nil))
			case x.kind == intFeature:
				if err := x.ints(word[:]); err != nil {
					return fmt.Errorf("record %d, at byte %d: %w", i, off-tfHead, err)
				}
				s.Label = labelValue(record.Int64, word[:])
			}
		}
		return emit(s)
	})
	return Found{}, err
}

type tfRows struct {
	f      File
	stored *record.Schema
	plain  []int // fields that are no sound
	sounds []tfSound
	hear   hearing
}

func (tfrecord) Open(_ context.Context, a Address, f File) (Rows, error) {
	if f.Schema == nil {
		return nil, errNoSchema
	}
	packing, err := tfPacking(f, f.Size)
	if err != nil {
		return nil, err
	}
	r := tfRows{f: f, stored: storedSchema(f.Schema), hear: hear}
	r.plain, r.sounds = tfSounds(f.Schema)
	if packing != "" {
		return &packedTF{r, f.blockKey(a)}, nil
	}
	return &r, nil
}

func (*tfRows) Close() error { return nil }

// Record reads one record, checks it and takes the features of the schema from it.
func (r *tfRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if s.Off < tfHead || s.Size > maxRecordBytes || s.Off > r.f.Size-tfTail-s.Size {
		return nil, fmt.Errorf("it should lie at byte %d of %d", s.Off, r.f.Size)
	}
	b := make([]byte, s.Size+tfTail)
	if err := readFull(within(ctx, r.f), b, s.Off); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", len(b), s.Off, err)
	}
	err := checkTail(b)
	if err == nil {
		dst, err = r.append(dst, b[:s.Size])
	}
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", s.Off-tfHead, err)
	}
	return dst, nil
}

// append appends the record of a tf.Example.
func (r *tfRows) append(dst, message []byte) ([]byte, error) {
	var e example
	if err := e.parse(message); err != nil {
		return nil, err
	}
	values := make([]record.Content, len(r.stored.Fields))
	for i := range r.sounds {
		if err := r.sounds[i].put(values, &e, r.stored, r.hear); err != nil {
			return nil, err
		}
	}
	for _, i := range r.plain {
		var err error
		if values[i], err = e.content(&r.stored.Fields[i]); err != nil {
			return nil, fmt.Errorf("feature %.80q %w", r.stored.Fields[i].Name, err)
		}
	}
	return record.Append(dst, r.stored, values)
}
