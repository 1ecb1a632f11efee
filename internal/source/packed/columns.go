package packed

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"larder/internal/record"
	"larder/internal/source/packed/arrow"
)

// arrowColumn is a field of records that comes from a column of a table, or from a part of one.
type arrowColumn struct {
	field record.Field
	path  []int // from the table's fields down to the values
	file  bool  // the values are files in a struct of bytes and path
	list  bool  // the values are lists of text, as JSON
	sound sound // the values are files of sound
}

// at is the part of the schema that holds the values; above are the structs around it, the outermost first.
func (c *arrowColumn) at(fields []arrow.Field) (f *arrow.Field, above []*arrow.Field) {
	for i, k := range c.path {
		if i > 0 {
			above = append(above, f)
			fields = f.Inner
		}
		f = &fields[k]
	}
	return f, above
}

// hfFeature is the description of a column by Hugging Face datasets (datasets.Features.to_dict).
type hfFeature struct {
	Type  string   `json:"_type"`
	Names []string `json:"names"`
	Shape []*int64 `json:"shape"`
}

// hfFeatures reads the description of the columns in a table's metadata; nil = there is none.
func hfFeatures(meta map[string]string) map[string]hfFeature {
	var info struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	if json.Unmarshal([]byte(meta["huggingface"]), &info) != nil {
		return nil
	}
	out := map[string]hfFeature{}
	for name, raw := range info.Info.Features {
		var f hfFeature
		if json.Unmarshal(raw, &f) == nil { // lists of one feature are JSON lists: nothing is said about them
			out[name] = f
		}
	}
	return out
}

// arrowColumns is what is known of a table beside its values.
type arrowColumns struct {
	fields   []arrow.Field
	features map[string]hfFeature
	// isImage reports whether the first value of a column of bytes is an image file.
	isImage func(c *arrowColumn) (bool, error)
	// isSound reports the same of a file of sound.
	isSound func(c *arrowColumn) (bool, error)
}

// columns are the fields of a table's records, and the fields by themselves.
func (t *arrowColumns) columns(a Address) ([]arrowColumn, error) {
	b := columnBuilder{arrowColumns: t, a: a}
	for i := range t.fields {
		if err := b.add(&t.fields[i], t.fields[i].Name, []int{i}); err != nil {
			return nil, err
		}
	}
	if err := b.checkArgs(); err != nil {
		return nil, err
	}
	want := a.Fields()
	if want == nil {
		if len(b.refused) > 0 {
			return nil, fmt.Errorf("%s; name the other columns with ?fields=", strings.Join(b.refused, "; "))
		}
		return b.out, nil
	}
	out := make([]arrowColumn, len(want))
	for i, name := range want {
		k := slices.IndexFunc(b.out, func(c arrowColumn) bool { return c.field.Name == name })
		if k < 0 {
			if j := slices.Index(b.names, name); j >= 0 {
				return nil, errors.New(b.refused[j])
			}
			return nil, fmt.Errorf("?fields= names %q, and there are %s", name, quotedNames(schemaOf(b.out).Fields))
		}
		out[i] = b.out[k]
	}
	for i := range out { // as those of tars, a sound comes with its rate
		rate := rateName(out[i].field.Name)
		k := slices.IndexFunc(b.out, func(c arrowColumn) bool { return c.field.Name == rate })
		if out[i].sound == soundSamples && k >= 0 && !slices.Contains(want, rate) {
			out = append(out, b.out[k])
		}
	}
	return out, nil
}

type columnBuilder struct {
	*arrowColumns
	a       Address
	out     []arrowColumn
	refused []string // why, and which
	names   []string
}

func (b *columnBuilder) refuse(name, format string, args ...any) {
	b.names = append(b.names, name)
	b.refused = append(b.refused, fmt.Sprintf("column %q ", name)+fmt.Sprintf(format, args...))
}

var intTypes = map[bool][]record.DType{
	true:  {record.Int8, record.Int16, 0, record.Int32, 0, 0, 0, record.Int64},
	false: {record.Uint8, record.Uint16, 0, record.Uint32, 0, 0, 0, record.Uint64},
}

// numberType is the dtype of a column of numbers; 0 = it is none.
func numberType(f *arrow.Field) record.DType {
	switch f.Kind { //nolint:exhaustive // the others are no numbers
	case arrow.Bool:
		return record.Bool
	case arrow.Int:
		return intTypes[f.Signed][f.Bits/8-1]
	case arrow.Float:
		return map[int]record.DType{16: record.Float16, 32: record.Float32, 64: record.Float64}[f.Bits]
	}
	return 0
}

func (b *columnBuilder) add(f *arrow.Field, name string, path []int) error {
	c := arrowColumn{path: slices.Clone(path)}
	switch f.Kind {
	case arrow.Bool, arrow.Int, arrow.Float:
		c.field = scalarField(name, numberType(f))
	case arrow.Decimal:
		if c.field = scalarField(name, record.Float64); f.Exact() {
			c.field = textField(name)
		}
	case arrow.Text:
		c.field = textField(name)
	case arrow.Binary:
		return b.bytes(c, name)
	case arrow.Struct:
		if k := fileBytes(f); k >= 0 {
			c.file = true
			c.path = append(c.path, k)
			return b.bytes(c, name)
		}
		for k := range f.Inner {
			if err := b.add(&f.Inner[k], name+"."+f.Inner[k].Name, append(path, k)); err != nil {
				return err
			}
		}
		return nil
	case arrow.List, arrow.FixedList:
		if f.OfTexts() {
			c.field, c.list = textField(name), true
			break
		}
		dims, d := b.shape(f, name)
		if d == 0 {
			b.refuse(name, "is a list of what are neither numbers nor text, which a field cannot hold")
			return nil
		}
		if len(dims) > record.MaxDims {
			b.refuse(name, "has %d dimensions, and %d are the most", len(dims), record.MaxDims)
			return nil
		}
		c.field = arrayField(name, d, dims...)
	default:
		b.refuse(name, "has the type %s, which a field cannot hold", f.Word)
		return nil
	}
	b.out = append(b.out, c)
	return nil
}

// fileBytes is the place of the bytes in a struct of a file's bytes and path; -1 = it is another struct.
func fileBytes(f *arrow.Field) int {
	at := -1
	for i := range f.Inner {
		switch {
		case f.Inner[i].Name == "bytes" && f.Inner[i].Kind == arrow.Binary:
			at = i
		case f.Inner[i].Name != "path":
			return -1
		}
	}
	return at
}

// bytes adds a column of bytes: an image, where the table or the first value says so.
func (b *columnBuilder) bytes(c arrowColumn, name string) error {
	c.field = bytesField(name)
	if ok, err := b.sounds(&c, name); ok || err != nil {
		return err
	}
	image := false
	if feature, ok := b.features[name]; ok {
		image = feature.Type == "Image"
	} else if !b.a.wants("raw", name) && b.isImage != nil {
		var err error
		if image, err = b.isImage(&c); err != nil {
			return err
		}
	}
	if image && !b.a.wants("raw", name) {
		c.field = imageField(name)
	}
	b.out = append(b.out, c)
	return nil
}

// shape is the shape and dtype of a list of numbers; dtype 0 = it is none.
func (b *columnBuilder) shape(f *arrow.Field, name string) ([]int64, record.DType) {
	var dims []int64
	for f.Kind == arrow.List || f.Kind == arrow.FixedList {
		if f.Kind == arrow.FixedList {
			dims = append(dims, int64(f.Width))
		} else {
			dims = append(dims, record.Ragged)
		}
		f = &f.Inner[0]
	}
	if s := b.features[name].Shape; len(s) == len(dims) { // Array2D to Array5D
		for i := range s {
			if s[i] != nil && *s[i] > 0 && *s[i] < math.MaxInt32 {
				dims[i] = *s[i]
			}
		}
	}
	if f.Encoded() { // a column of them has a number for each value
		return dims, 0
	}
	return dims, numberType(f)
}

// schemaOf are the fields of columns.
func schemaOf(columns []arrowColumn) record.Schema {
	var s record.Schema
	for i := range columns {
		s.Fields = append(s.Fields, columns[i].field)
	}
	return s
}

// classes describe a column of classes; "" = it is none.
func (f hfFeature) classes() string {
	if f.Type != "ClassLabel" {
		return ""
	}
	return fmt.Sprintf("ClassLabel with the names %q", f.Names)
}

// classesOf are the names of the label's classes; nil = the table has none.
func classesOf(columns []arrowColumn, features map[string]hfFeature) []string {
	s := schemaOf(columns)
	if i := tableLabel(&s, features); i >= 0 {
		return features[s.Fields[i].Name].Names
	}
	return nil
}

// hfClasses are the classes of the label, by the description of the columns alone.
func hfClasses(meta string) []string {
	features := hfFeatures(map[string]string{"huggingface": meta})
	var s record.Schema
	for _, name := range slices.Sorted(maps.Keys(features)) {
		if features[name].Type == "ClassLabel" {
			s.Fields = append(s.Fields, scalarField(name, record.Int64))
		}
	}
	if i := tableLabel(&s, features); i >= 0 {
		return features[s.Fields[i].Name].Names
	}
	return nil
}

// tableLabel is the field that gives samples a label: one of the usual name, or the only one that has class names.
func tableLabel(s *record.Schema, features map[string]hfFeature) int {
	i := labelField(s, labelFields)
	if i >= 0 {
		return i
	}
	for k := range s.Fields {
		if features[s.Fields[k].Name].Type == "ClassLabel" && s.Fields[k].Kind == record.Scalar {
			if i >= 0 {
				return -1
			}
			i = k
		}
	}
	return i
}

// nullValue is what ?nulls=default gives for a null: NaN for floats, 0 and false, and no bytes, text or elements.
func nullValue(f *record.Field) (record.Content, error) {
	if f.Kind == record.Bytes || f.Kind == record.Text {
		return record.Content{Data: []byte{}}, nil
	}
	if f.Kind == record.Array {
		dims := slices.Clone(f.Shape)
		n := int64(1)
		for i := range dims {
			dims[i] = max(dims[i], 0)
			n *= dims[i]
		}
		if n > 0 {
			return record.Content{}, errors.New("a list of fixed length has no default")
		}
		return record.Content{Dims: dims}, nil
	}
	b := make([]byte, f.DType.Size())
	switch f.DType { //nolint:exhaustive // of the others all bytes are zero
	case record.Float16:
		b[1] = 0x7e
	case record.Float32:
		b[2], b[3] = 0xc0, 0x7f
	case record.Float64:
		b[6], b[7] = 0xf8, 0x7f
	}
	return record.Content{Data: b}, nil
}

// null is the value of a null, or why there is none.
func (c *arrowColumn) null(a Address) (record.Content, error) {
	if IsImage(&c.field) {
		return record.Content{}, errors.New("is null: it has no image; an image that is stored as a path has none either")
	}
	switch a.Args["nulls"] {
	case nullsNone:
		return record.Content{}, ErrNoValue
	case "":
		return record.Content{}, errors.New("is null; ?nulls=default puts NaN, 0, false or nothing in its place")
	}
	if c.list {
		return record.Content{Data: []byte("[]")}, nil
	}
	v, err := nullValue(&c.field)
	if err != nil {
		return v, fmt.Errorf("is null: %w", err)
	}
	return v, nil
}
