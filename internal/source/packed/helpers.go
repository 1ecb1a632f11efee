package packed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"larder/internal/record"
	"larder/internal/source/packed/arrow"
)

// maxRecordBytes bounds what one sample of a format of records may have in its file.
const maxRecordBytes = 1 << 30

// Fields as formats give them.
func scalarField(name string, d record.DType) record.Field {
	return record.Field{Name: name, Kind: record.Scalar, DType: d}
}
func arrayField(name string, d record.DType, shape ...int64) record.Field {
	return record.Field{Name: name, Kind: record.Array, DType: d, Shape: shape}
}
func bytesField(name string) record.Field {
	return record.Field{Name: name, Kind: record.Bytes, DType: record.Uint8, Shape: []int64{record.Ragged}}
}
func textField(name string) record.Field {
	return record.Field{Name: name, Kind: record.Text, DType: record.Uint8, Shape: []int64{record.Ragged}}
}

// imageField holds an image file in stored records, and its pixels afterwards.
func imageField(name string) record.Field {
	return arrayField(name, record.Uint8, record.Ragged, record.Ragged, 3)
}

// isImageFile reports whether bytes begin as an image file does.
func isImageFile(b []byte) bool {
	for _, magic := range []string{"\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "GIF87a", "GIF89a"} {
		if bytes.HasPrefix(b, []byte(magic)) {
			return true
		}
	}
	return len(b) >= 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP"
}

// isPickle reports whether bytes begin and end as Python's pickles of protocol 2 to 5 do.
func isPickle(b []byte) bool {
	return len(b) > 3 && b[0] == 0x80 && b[1] >= 2 && b[1] <= 5 && b[len(b)-1] == '.'
}

const pickleWords = "is a pickle, which can run any program when it is read; write the values as bytes, arrays or " +
	"image files, or read them through a Python dataset"

// storedColumns is the schema of the stored records of a table: images in columns of bytes are files, and those in
// columns of lists are their pixels.
func storedColumns(s *record.Schema, columns []arrowColumn, fields []arrow.Field) *record.Schema {
	images := make([]bool, len(s.Fields))
	for i := range columns {
		leaf, _ := columns[i].at(fields)
		images[i] = leaf.Kind == arrow.Binary
	}
	out := Stored(s, images)
	return &out
}

// storedSchema is the schema of stored records: every image is a file.
func storedSchema(s *record.Schema) *record.Schema {
	images := make([]bool, len(s.Fields))
	for i := range images {
		images[i] = IsImage(&s.Fields[i])
	}
	out := Stored(s, images)
	return &out
}

// fieldNamed is the place of a field among others; -1 = there is none of that name.
func fieldNamed(fields []record.Field, name string) int {
	return slices.IndexFunc(fields, func(f record.Field) bool { return f.Name == name })
}

// choose keeps the fields that ?fields= names, in that order; all without it.
func choose(fields []record.Field, a Address) ([]record.Field, error) {
	want := a.Fields()
	if want == nil {
		return fields, nil
	}
	out := make([]record.Field, len(want))
	for i, name := range want {
		k := fieldNamed(fields, name)
		if k < 0 {
			return nil, fmt.Errorf("?fields= names %q, and there are %s", name, quotedNames(fields))
		}
		out[i] = fields[k]
	}
	return out, nil
}

func quotedNames(fields []record.Field) string { return quoted(namesOf(fields)) }

// namesOf are the names of fields.
func namesOf(fields []record.Field) []string {
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].Name
	}
	return names
}

// quoted lists names for a message, the first 20 of them.
func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	out := make([]string, min(len(names), 20), 21)
	for i := range out {
		out[i] = strconv.Quote(names[i])
	}
	if len(names) > len(out) {
		out = append(out, fmt.Sprintf("and %d more", len(names)-len(out)))
	}
	return strings.Join(out, ", ")
}

// named are the fields that an argument names.
func (a Address) named(arg string) []string {
	if a.Args[arg] == "" {
		return nil
	}
	return strings.Split(a.Args[arg], ",")
}

// wants reports whether a list of names in the argument KEY of an address has a name.
func (a Address) wants(key, name string) bool {
	return slices.Contains(strings.Split(a.Args[key], ","), name)
}

// someFiles expands braces and lists of an address; a folder stands for the files in it that fit.
func someFiles(a Address, what string, fits func(name string) bool) ([]string, error) {
	var files []string
	for part := range strings.SplitSeq(a.Path, "::") {
		some := []string{part} // a file, also one whose name has braces
		if is, err := a.exists(part); err != nil {
			return nil, err
		} else if a.isDir(part) {
			if some, err = a.fitting(part, what, fits); err != nil {
				return nil, err
			}
		} else if !is {
			if some, err = expand(part); err != nil {
				return nil, err
			}
		}
		if files = append(files, some...); len(files) > maxFiles {
			return nil, fmt.Errorf("it names more than %d files", maxFiles)
		}
	}
	return files, unique(files)
}

// fitting are the files of a folder that fit, sorted.
func (a *Address) fitting(dir, what string, fits func(name string) bool) ([]string, error) {
	names, err := a.names(dir)
	if err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(a.Left.choose(dir, names, fits), func(p string) bool { return a.At == nil && a.isDir(p) })
	if len(out) == 0 {
		return nil, hasNo(a, dir, what, names, fits)
	}
	return out, nil
}

// compressedName reports whether a name says that the file is compressed as a whole.
func compressedName(path string) bool {
	for _, z := range []string{".gz", ".zst", ".bz2", ".xz", ".zip"} {
		if strings.HasSuffix(path, z) {
			return true
		}
	}
	return false
}

// readFull reads exactly len(b) bytes at an offset.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	if n, err := r.ReadAt(b, off); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}

// le64 is a number as a record has it.
func le64(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

// someName accepts any name.
func someName(value string) error {
	if value == "" {
		return errors.New("an empty name")
	}
	return nil
}

var errNoSchema = errors.New("the schema of the dataset is not known")

// leUint is a number of up to 8 bytes.
func leUint(b []byte) uint64 {
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:])
}
