package prep

import (
	"errors"

	"larder/internal/errs"
	"larder/internal/record"
	"larder/internal/units"
)

// IsImageFile reports whether values of a field may be stored as image files: it is an array of uint8 with the shape
// [-1, -1, 3].
func IsImageFile(f *record.Field) bool {
	return f.Kind == record.Array && f.DType == record.Uint8 && len(f.Shape) == 3 &&
		f.Shape[0] == record.Ragged && f.Shape[1] == record.Ragged && f.Shape[2] == 3
}

// isMaskFile is IsImageFile for files of masks: [-1, -1].
func isMaskFile(f *record.Field) bool {
	return f.Kind == record.Array && f.DType == record.Uint8 && len(f.Shape) == 2 &&
		f.Shape[0] == record.Ragged && f.Shape[1] == record.Ragged
}

// isFile reports whether a stored value is an image file that the schema wants decoded.
func isFile(f *record.Field, x *record.Value) bool {
	return x.Kind == record.Bytes && (IsImageFile(f) || isMaskFile(f))
}

// Record makes the record that a schema describes of a stored one, whose images are files: they are decoded to RGB, or,
// where the schema says [-1, -1], to the numbers of a mask. The result lies in memory from alloc, which is called once
// with its bytes, after all headers were found good; its error is returned as it is. Errors about the record are faults
// of reason SAMPLE_BAD and name the field.
func (w *Worker) Record(s *record.Schema, stored []byte, alloc func(n int) ([]byte, error)) ([]byte, error) {
	defer w.trim()
	v, headers, err := w.openRecord(s, stored)
	if err != nil {
		return nil, err
	}
	if headers == nil {
		dst, err := allocate(alloc, len(v.Bytes()))
		if err != nil {
			return nil, err
		}
		return dst[:copy(dst, v.Bytes())], nil
	}
	dims := make([][]int64, v.Len())
	for i, x := range v.All {
		if dims[i] = x.Dims(); headers[i].format != "" {
			dims[i] = []int64{int64(headers[i].h), int64(headers[i].w), 3}[:len(s.Fields[i].Shape)]
		}
	}
	size, err := s.Size(dims)
	if err != nil {
		return nil, badRecord("%v", err)
	}
	if size > w.limits.MaxBytes {
		return nil, badRecord("%s with its images decoded, and %s are the most", units.Size(size),
			units.Size(w.limits.MaxBytes))
	}
	dst, err := allocate(alloc, int(size))
	if err != nil {
		return nil, err
	}
	values := s.Frame(dst, dims)
	for i, x := range v.All {
		var err error
		switch {
		case headers[i].format == "":
			copy(values[i], x.Data)
		case isMaskFile(&s.Fields[i]):
			err = w.decodeMask(headers[i], x.Data, values[i])
		default:
			err = w.decode(headers[i], x.Data, Packed, values[i])
		}
		if err != nil {
			return nil, inField(s.Fields[i].Name, err)
		}
	}
	return dst, nil
}

// openRecord checks a stored record against the schema. headers are those of its images, by field; nil = it has none.
func (w *Worker) openRecord(s *record.Schema, stored []byte) (v record.View, headers []header, err error) {
	if v, err = record.Open(stored); err != nil {
		return v, nil, badRecord("%v", err)
	}
	if v.Len() != len(s.Fields) {
		return v, nil, badRecord("%d fields, the schema says %d", v.Len(), len(s.Fields))
	}
	for i, x := range v.All {
		f := &s.Fields[i]
		if !isFile(f, &x) {
			if err := f.Check(&x); err != nil {
				return v, nil, badRecord("%v", err)
			}
			continue
		}
		if headers == nil {
			headers = make([]header, v.Len())
		}
		if headers[i], err = w.header(x.Data); err != nil {
			return v, nil, inField(f.Name, err)
		}
	}
	return v, headers, nil
}

// Whole returns a stored record that has no images, checked as Record checks it: Record would only copy it. False: it
// has some, or it is bad.
func (w *Worker) Whole(s *record.Schema, stored []byte) ([]byte, bool) {
	v, err := record.Open(stored)
	if err != nil || v.Len() != len(s.Fields) {
		return nil, false
	}
	for i, x := range v.All {
		if isFile(&s.Fields[i], &x) || s.Fields[i].Check(&x) != nil {
			return nil, false
		}
	}
	return v.Bytes(), true
}

// RecordMemory is about what Record takes at once to decode the images of a stored record, bytes.
func (w *Worker) RecordMemory(s *record.Schema, stored []byte) int64 {
	v, err := record.Open(stored)
	if err != nil || v.Len() != len(s.Fields) {
		return 0
	}
	most := int64(0)
	for i, x := range v.All {
		if isFile(&s.Fields[i], &x) {
			most = max(most, w.Memory(x.Data))
		}
	}
	return most
}

// Files are what decoders may be given of stored bytes: the bytes themselves, or every field of bytes of a record.
func Files(stored []byte) [][]byte {
	v, err := record.Open(stored)
	if err != nil {
		return [][]byte{stored}
	}
	var out [][]byte
	for _, x := range v.All {
		if x.Kind == record.Bytes {
			out = append(out, x.Data)
		}
	}
	return out
}

func badRecord(format string, args ...any) error {
	return errs.New(errs.SampleBad, "", hintBad, "its record: "+format, args...)
}

// fieldError says which field of a record an error is about, and keeps what is known of the error.
type fieldError struct {
	said  *errs.Error
	cause error
}

func (e *fieldError) Error() string   { return e.said.Error() }
func (e *fieldError) Unwrap() []error { return []error{e.said, e.cause} }

func inField(name string, err error) error {
	said := errs.New(errs.SampleBad, "", hintBad, "field %s: %v", name, err)
	if f, ok := errors.AsType[*errs.Error](err); ok {
		said = errs.New(f.Reason, f.Subject, f.Hint, "field %s: %s", name, f.Message).Because(f.Err)
	}
	return &fieldError{said, err}
}
