package packed

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"larder/internal/record"
	"larder/internal/source/packed/arrow"
)

// meanings keep what the columns of the first file of a dataset mean: the unit of a time, the names of classes.
// Files of one schema of records may differ in them, and then equal numbers stand for other values.
type meanings struct {
	path string
	of   map[string]string
}

// agree compares the columns of another file, or takes those of the first one.
func (m *meanings) agree(
	path string, columns []arrowColumn, fields []arrow.Field, features map[string]hfFeature,
) error {
	if len(columns) == 0 {
		return nil
	}
	first := m.of == nil
	if first {
		m.path, m.of = path, map[string]string{}
	}
	for i := range columns {
		leaf, _ := columns[i].at(fields)
		name := columns[i].field.Name
		now := cmp.Or(features[name].classes(), leaf.Meaning())
		if first {
			m.of[name] = now
		} else if was := m.of[name]; was != now {
			plain := fmt.Sprintf("plain %s", columns[i].field.DType)
			return fmt.Errorf("column %q is %.200s there and %.200s in %s, so that equal numbers in them are other values; "+
				"write both files with one type, or leave the column out with ?fields=", name, cmp.Or(now, plain),
				cmp.Or(was, plain), m.path)
		}
	}
	return nil
}

var errColumns = errors.New("its columns are")

// named adds the first file to the error of one whose columns are other ones.
func (m *meanings) named(err error) error {
	if m.path != "" && errors.Is(err, errColumns) {
		return fmt.Errorf("%w, such as %s", err, m.path)
	}
	return err
}

// TypedAnew reports whether this larder may refuse files of a scheme whose fields an earlier one found, or give the
// fields other types: it compares units of times and names of classes of several files, and keeps long whole numbers of
// CSV as they are.
func TypedAnew(scheme string, s *record.Schema, files int) bool {
	switch scheme {
	case "parquet", "hf":
		return files > 1
	case "csv":
		return slices.ContainsFunc(s.Fields, func(f record.Field) bool {
			return f.Kind == record.Text || f.DType == record.Float64
		})
	}
	return false
}
