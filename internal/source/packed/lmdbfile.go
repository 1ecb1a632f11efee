package packed

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"larder/internal/record"
	"larder/internal/source/packed/lmdb"
)

// lmdbFiles are LMDB environments whose values are samples: image files, as CoorDL and most scripts of vision papers
// write them, files of sound, msgpack of an image and a label (Joader), text or bytes.
type lmdbFiles struct{ identity }

func (lmdbFiles) Scheme() string { return "lmdb" }

// Files finds data.mdb in a folder; a path may also name the file itself (subdir=False).
func (lmdbFiles) Files(a Address) (files, beside []string, err error) {
	for part := range strings.SplitSeq(a.Path, "::") {
		some, err := expand(part)
		if err != nil {
			return nil, nil, err
		}
		if len(files)+len(some) > maxFiles {
			return nil, nil, fmt.Errorf("it names more than %d files", maxFiles)
		}
		for _, f := range some {
			if a.isDir(f) {
				f = filepath.Join(f, "data.mdb")
				if is, err := a.exists(f); err != nil {
					return nil, nil, err
				} else if !is {
					return nil, nil, fmt.Errorf("%q is no LMDB: it has no data.mdb", filepath.Dir(f))
				}
			}
			if filepath.Ext(f) == "" {
				return nil, nil, fmt.Errorf("%q is neither a folder nor has its name an extension; call it %s.mdb", f,
					filepath.Base(f))
			}
			files = append(files, f)
		}
	}
	return files, nil, unique(files)
}

const (
	lmdbImage   = "image"
	lmdbAudio   = "audio"
	lmdbBytes   = "bytes"
	lmdbText    = "text"
	lmdbMsgpack = "msgpack"

	// lmdbProbes is how many values are looked at to find out what they are, lmdbProbe how many bytes of each.
	lmdbProbes = 64
	lmdbProbe  = 16
)

// lmdbMeta are keys that are no samples: what writers note about the others.
func lmdbMeta(key []byte) bool {
	switch string(key) {
	case "__len__", "__keys__", "num-samples", "length", "keys", "num_samples", "meta":
		return true
	}
	return false
}

// Schema gives key and value; what a value is says ?value=, or the first ones.
func (lmdbFiles) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (record.Schema, error) {
	if len(files) == 0 {
		return record.Schema{}, errNoFiles
	}
	f, err := open(files[0])
	if err != nil {
		return record.Schema{}, err
	}
	defer f.Close()
	kind := a.Args["value"]
	if kind == "" {
		if kind, err = lmdbKind(ctx, a, f); err != nil {
			return record.Schema{}, fmt.Errorf("%s: %w", filepath.Base(files[0]), err)
		}
	}
	fields := []record.Field{textField("key")}
	switch kind {
	case lmdbImage:
		fields = append(fields, imageField("image"))
	case lmdbAudio:
		samples, rate := soundFields("audio")
		fields = append(fields, samples, rate)
	case lmdbMsgpack:
		fields = append(fields, imageField("image"), scalarField("label", record.Int64))
	case lmdbText:
		fields = append(fields, textField("value"))
	default:
		fields = append(fields, bytesField("value"))
	}
	chosen, err := choose(fields, a)
	return record.Schema{Fields: withRates(chosen, fields)}, err
}

// lmdbKind looks at the first values of a database.
func lmdbKind(ctx context.Context, a Address, f Other) (string, error) {
	db, err := lmdb.Open(ctx, f, f.Len(), a.Args["db"])
	if err != nil {
		return "", err
	}
	images, sounds, others := 0, 0, 0
	_, err = db.Each(ctx, func(key []byte, off, size int64) error {
		if lmdbMeta(key) {
			return nil
		}
		head := make([]byte, min(size, lmdbProbe))
		if err := readFull(f, head, off); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		switch {
		case isImageFile(head):
			images++
		case isSoundFile(head):
			sounds++
		case size > 3 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
			last := make([]byte, 1)
			if err := readFull(f, last, off+size-1); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
			if isPickle(append(head[:3:3], last...)) {
				return fmt.Errorf("key %q: its value %s; ?value=bytes delivers the bytes as they are", key, pickleWords)
			}
			others++
		default:
			others++
		}
		if images+sounds+others >= lmdbProbes {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return "", err
	}
	switch all := images + sounds + others; {
	case all == others:
		return lmdbBytes, nil
	case all == images:
		return lmdbImage, nil
	case all == sounds:
		return lmdbAudio, nil
	case images > 0:
		return "", fmt.Errorf("of its first %d values %d are image files; ?value=image or ?value=bytes says what they are",
			all, images)
	default:
		return "", fmt.Errorf("of its first %d values %d are files of sound; ?value=audio or ?value=bytes says what they are",
			all, sounds)
	}
}

// lmdbKey is a key as a name: text as it is, others in hexadecimal digits behind 0x.
func lmdbKey(key []byte) string {
	if utf8.Valid(key) && strings.IndexByte(string(key), 0) < 0 && !strings.HasPrefix(string(key), "0x") {
		return string(key)
	}
	return "0x" + hex.EncodeToString(key)
}

// Scan lists the keys in order.
func (lmdbFiles) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	found := Found{Skipped: map[string]int{}}
	db, err := lmdb.Open(ctx, f, f.Size, a.Args["db"])
	if err != nil {
		return found, err
	}
	label := f.Schema != nil && labelField(f.Schema, labelFields) >= 0
	databases, err := db.Each(ctx, func(key []byte, off, size int64) error {
		switch {
		case lmdbMeta(key):
			found.Skipped["keys that describe the others"]++
			return nil
		case size == 0:
			return fmt.Errorf("key %q: its value is empty", key)
		case size > maxRecordBytes:
			return fmt.Errorf("key %q: a value of %d bytes, and %d are the most", key, size, maxRecordBytes)
		}
		s := Sample{Key: lmdbKey(key), Off: off, Size: size, Label: -1}
		if label {
			b := make([]byte, size)
			if err := readFull(f, b, off); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
			p, err := parsePair(b)
			if err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
			s.Label = max(p.label, -1)
		}
		return emit(s)
	})
	if databases > 0 {
		found.Skipped["databases (?db=NAME reads one)"] = databases
	}
	return found, err
}

type lmdbRows struct {
	f       File
	stored  *record.Schema
	msgpack bool
	sound   soundInto // of values that are sound
	hear    hearing
}

func (lmdbFiles) Open(_ context.Context, a Address, f File) (Rows, error) {
	if f.Schema == nil {
		return nil, errNoSchema
	}
	r := &lmdbRows{f: f, stored: storedSchema(f.Schema), msgpack: a.Args["value"] == lmdbMsgpack, hear: hear}
	r.sound, _ = soundOf(f.Schema, "audio")
	return r, nil
}

func (*lmdbRows) Close() error { return nil }

// Record reads one value.
func (r *lmdbRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if s.Off < 0 || s.Size > maxRecordBytes || s.Off > r.f.Size-s.Size {
		return nil, fmt.Errorf("it should lie at byte %d of %d", s.Off, r.f.Size)
	}
	b := make([]byte, s.Size)
	if err := readFull(within(ctx, r.f), b, s.Off); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", len(b), s.Off, err)
	}
	pair := pair{image: b}
	if r.msgpack {
		var err error
		if pair, err = parsePair(b); err != nil {
			return nil, fmt.Errorf("at byte %d: %w", s.Off, err)
		}
	}
	values := make([]record.Content, len(r.stored.Fields))
	if r.sound != (soundInto{-1, -1}) {
		if err := r.sound.put(values, b, r.hear); err != nil {
			return nil, fmt.Errorf("at byte %d: its value %w; ?value=bytes gives values as they are", s.Off, err)
		}
	}
	for i := range values {
		switch r.stored.Fields[i].Name {
		case "audio", rateName("audio"):
		case "key":
			values[i].Data = []byte(s.Key)
		case "label":
			values[i].Data = le64(pair.label)
		default:
			values[i].Data = pair.image
		}
	}
	out, err := record.Append(dst, r.stored, values)
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", s.Off, err)
	}
	return out, nil
}
