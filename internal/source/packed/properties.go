package packed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"larder/internal/record"
)

// Properties are single values of samples that expressions may use: scalars and text among the fields of records, and
// scalars in text that is JSON. They are read as records of one field, so every format that takes ?fields= has them,
// also where its samples are an image and a label.

// ErrNoValue says that a sample has no value for a property.
var ErrNoValue = errors.New("it is null")

// Named is a Records that can name its properties although its samples are no records, or only of some fields.
type Named interface {
	// PropertyNames names what there may be; of JSON as FIELD.KEY.
	PropertyNames(ctx context.Context, a Address, files []string, open func(string) (Other, error)) ([]string, error)
}

// OwnProperties is a Format whose samples are an image and a label, and that has more values of each.
type OwnProperties interface {
	// Properties reads those values as records; it is a Named. nil = there are none.
	Properties() Records
}

// PropertiesOf is what reads the properties of a format; false = it has none.
func PropertiesOf(f Format) (Records, bool) {
	if own, ok := f.(OwnProperties); ok {
		r := own.Properties()
		return r, r != nil
	}
	r, ok := f.(Records)
	return r, ok
}

// TakesFields reports whether a scheme has properties.
func TakesFields(scheme string) bool {
	_, ok := args[scheme]["fields"]
	return ok
}

// nullsNone is a value of nulls= that no uri has: a null is ErrNoValue.
const nullsNone = "none"

// ForProperty is the address of the same files as records of one field.
func ForProperty(a Address, fields ...string) Address {
	b := a
	b.Args = map[string]string{"fields": strings.Join(fields, ",")}
	for k, v := range a.Args { // order-free: a copy
		if k != "fields" && k != "raw" && args[a.Scheme][k] != nil {
			b.Args[k] = v
		}
	}
	if args[a.Scheme]["nulls"] != nil && b.Args["nulls"] == "" {
		b.Args["nulls"] = nullsNone
	}
	return b
}

// IsProperty reports whether values of a field can be a property.
func IsProperty(f *record.Field) bool {
	return f.Kind == record.Text || f.Kind == record.Scalar && f.DType != record.Float16 && f.DType != record.BFloat16
}

// Value is one value of a property.
type Value struct {
	Kind   ValueKind
	Int    int64 // of ValueInt, and of ValueBool as 0 or 1
	Float  float64
	Text   []byte // points into the record
	Single bool   // of ValueFloat: it was a float32
}

// ValueKind is what a Value is.
type ValueKind uint8

// The kinds.
const (
	ValueInt ValueKind = iota + 1
	ValueFloat
	ValueBool
	ValueText
)

// ValueOf reads a value of a field.
func ValueOf(v *record.Value) (Value, error) {
	if v.Kind == record.Text {
		return Value{Kind: ValueText, Text: v.Data}, nil
	}
	switch d := v.DType; d {
	case record.Bool:
		return Value{Kind: ValueBool, Int: int64(v.Data[0])}, nil
	case record.Float32:
		return Value{Kind: ValueFloat, Single: true,
			Float: float64(math.Float32frombits(binary.LittleEndian.Uint32(v.Data)))}, nil
	case record.Float64:
		return Value{Kind: ValueFloat, Float: math.Float64frombits(binary.LittleEndian.Uint64(v.Data))}, nil
	case record.Uint64:
		n := leUint(v.Data)
		if n > math.MaxInt64 {
			return Value{}, fmt.Errorf("%d is larger than a property can be", n)
		}
		return Value{Kind: ValueInt, Int: int64(n)}, nil
	case record.Uint8, record.Uint16, record.Uint32:
		return Value{Kind: ValueInt, Int: int64(leUint(v.Data))}, nil
	case record.Int8, record.Int16, record.Int32, record.Int64:
		shift := 64 - 8*d.Size()
		return Value{Kind: ValueInt, Int: int64(leUint(v.Data)<<shift) >> shift}, nil
	default:
		return Value{}, fmt.Errorf("values of %s are no properties", d)
	}
}

// JSONValue finds a value in JSON by its keys; ErrNoValue where it is not there, or null.
func JSONValue(text []byte, keys []string) (Value, error) {
	raw := bytes.TrimSpace(text)
	for _, key := range keys {
		var at []byte
		if len(raw) == 0 || raw[0] != '{' {
			return Value{}, ErrNoValue
		}
		if err := splitObject(raw, func(k string, v []byte) error {
			if k == key && at != nil {
				return fmt.Errorf("it has the key %q twice", k)
			}
			if k == key {
				at = v
			}
			return nil
		}); err != nil {
			return Value{}, err
		}
		raw = at
	}
	switch {
	case len(raw) == 0 || raw[0] == 'n':
		return Value{}, ErrNoValue
	case raw[0] == '"':
		s, err := stringOf(raw)
		return Value{Kind: ValueText, Text: []byte(s)}, err
	case raw[0] == '{', raw[0] == '[':
		return Value{}, errors.New("it is an object or a list, which no property can be")
	}
	is := scalarShape(raw)
	if is.kind == kindInt && is.whole&(isLarge|isHuge) != 0 {
		is.kind = kindFloat
		if is.whole&isBetween != 0 {
			return Value{}, fmt.Errorf("%.40s is larger than a property can be", raw)
		}
	}
	dtypes := map[valueKind]record.DType{kindBool: record.Bool, kindInt: record.Int64, kindFloat: record.Float64}
	d := dtypes[is.kind]
	b, err := appendNumber(nil, raw, d)
	if err != nil {
		return Value{}, err
	}
	return ValueOf(&record.Value{Kind: record.Scalar, DType: d, Data: b})
}

// jsonNames names the scalars of a JSON object behind a prefix.
func jsonNames(prefix string, b []byte) (names []string) {
	if !json.Valid(b) {
		return nil
	}
	_ = splitObject(b, func(key string, raw []byte) error { // what is no object has no names
		if raw[0] != '{' && raw[0] != '[' && !strings.Contains(key, ".") {
			names = append(names, prefix+"."+key)
		}
		return nil
	})
	return names
}

// PropertyNames implements Named: the members of the first sample.
func (wds) PropertyNames(
	ctx context.Context, _ Address, files []string, open func(string) (Other, error),
) ([]string, error) {
	for _, path := range files {
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		first, _, err := firstOf(ctx, path, f, nil, map[string]bool{})
		_ = f.Close() // nothing was written, so nothing can be lost
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if first == nil {
			continue
		}
		var names []string
		for _, ext := range first.names() {
			switch kindOfMember(ext) {
			case "number", "text":
				names = append(names, ext)
				names = append(names, jsonNames(ext, first.members[ext])...)
			}
		}
		return names, nil
	}
	return nil, nil
}

// PropertyNames implements Named: the columns of the first shard.
func (mds) PropertyNames(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) ([]string, error) {
	for _, path := range files {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		c, _, end, err := openBeginning(path, f)
		if err == nil {
			end()
		}
		var names []string
		for i := 0; err == nil && c.n > 0 && i < len(c.Names); i++ {
			fields, _, err := schemaOfShard(ForProperty(a, c.Names[i]), path, f)
			if err == nil {
				names = append(names, PropertyNamesOf(&record.Schema{Fields: fields})...)
			}
		}
		_ = f.Close() // nothing was written, so nothing can be lost
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if names != nil {
			return names, nil
		}
	}
	return nil, nil
}

// PropertyNamesOf are the fields of a schema that can be properties.
func PropertyNamesOf(s *record.Schema) (names []string) {
	for i := range s.Fields {
		if IsProperty(&s.Fields[i]) {
			names = append(names, s.Fields[i].Name)
		}
	}
	return names
}

// PropertyField finds the field that a property is in, among names: itself, or text that is JSON and the keys in there.
func PropertyField(name string, names []string) (field string, keys []string, ok bool) {
	if slices.Contains(names, name) && !inJSON(name, names) {
		return name, nil, true
	}
	for i := range len(name) {
		if name[i] == '.' && slices.Contains(names, name[:i]) {
			return name[:i], strings.Split(name[i+1:], "."), true
		}
	}
	return "", nil, false
}

// inJSON reports whether a name is that of a key in another field, as Named gives them.
func inJSON(name string, names []string) bool {
	i := strings.LastIndexByte(name, '.')
	return i > 0 && slices.Contains(names, name[:i])
}
