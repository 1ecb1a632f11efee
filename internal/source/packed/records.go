package packed

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"larder/internal/record"
)

// Records is a Format whose samples may be records of fields instead of an image and a label.
//
// Its stored form is the record itself: what Rows.Record appends. A field that the schema calls an array of uint8 with
// the shape [-1, -1, 3] may be stored as a field of kind bytes that holds an image file; it is decoded when the sample
// is prepared (StoredFits).
type Records interface {
	Format
	// Schema gives the fields of the dataset's records, in order; ragged dimensions are -1. A schema without fields says
	// that samples are an image and a label. files are what Files gave; open opens one of them, or one beside them.
	Schema(ctx context.Context, a Address, files []string, open func(path string) (Other, error)) (record.Schema, error)
	// Open prepares one file for random access; f.Schema is what Schema gave. The source keeps some Rows open and closes
	// them; f stays open until Rows.Close has returned.
	Open(ctx context.Context, a Address, f File) (Rows, error)
}

// ByFirst is a Records whose schema the first file says alone: while that is as it was, Schema is not asked again.
type ByFirst interface{ ByFirst() }

// Rows are the samples of one file. Its methods may be called from any goroutine.
type Rows interface {
	// Record appends the record of a sample that Scan emitted to dst (record.Append does). Errors name the offset or row
	// and what is wrong there; the source adds the shard and the sample.
	Record(ctx context.Context, dst []byte, s Sample) ([]byte, error)
	Close() error
}

// Of a sample that is a record, Off and Size are for the format alone. Formats whose samples lie together in the file
// say where; others give the number of the row and about how many bytes its record has. Size is at least 1.

// IsImage reports whether a field of a schema may be stored as an image file.
func IsImage(f *record.Field) bool {
	return f.Kind == record.Array && f.DType == record.Uint8 &&
		slices.Equal(f.Shape, []int64{record.Ragged, record.Ragged, 3})
}

// Stored is the schema that stored records have: images among the fields are bytes.
func Stored(s *record.Schema, images []bool) record.Schema {
	out := record.Schema{Fields: slices.Clone(s.Fields)}
	for i := range out.Fields {
		if i < len(images) && images[i] && IsImage(&out.Fields[i]) {
			out.Fields[i].Kind, out.Fields[i].Shape = record.Bytes, []int64{record.Ragged}
		}
	}
	return out
}

// check says what is wrong with the value of an argument of a uri, in words that follow "KEY is VALUE, "; nil = it may
// be so.
type check func(value string) error

// oneOf accepts some words.
func oneOf(words ...string) check {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("not one of %s", strings.Join(words, ", "))
		}
		return nil
	}
}

// number accepts whole numbers from low to high.
func number(low, high int64) check {
	return func(value string) error {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < low || n > high {
			return fmt.Errorf("not a whole number from %d to %d", low, high)
		}
		return nil
	}
}

// names accepts a list of names that commas separate, each once.
func names(value string) error {
	seen := map[string]bool{}
	for name := range strings.SplitSeq(value, ",") {
		switch {
		case name == "":
			return fmt.Errorf("which has an empty name")
		case seen[name]:
			return fmt.Errorf("which has %q twice", name)
		}
		seen[name] = true
	}
	return nil
}

// Fields are the names of ?fields=, in order; nil = none are asked for.
func (a Address) Fields() []string {
	return a.named("fields")
}
