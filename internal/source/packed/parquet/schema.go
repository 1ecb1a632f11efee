package parquet

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"

	"larder/internal/source/packed/arrow"
)

// leaf is what the levels of a column say.
type leaf struct {
	field arrow.Field
	lists []int // the definition level from which on a list has an element, from the outermost
	most  int   // the definition level of a value that is there
}

// builder makes fields of a Parquet schema and numbers the leaves.
type builder struct {
	leaves  []leaf
	nodes   int
	logical []string // of each leaf: the library drops those that it does not know
}

const maxNodes = 1 << 14

// field makes a field of a node whose parent has the definition level def.
func (b *builder) field(node pq.Field, name string, def int, lists []int) (arrow.Field, error) {
	if b.nodes++; b.nodes > maxNodes {
		return arrow.Field{}, fmt.Errorf("it has more than %d columns", maxNodes)
	}
	f := arrow.Field{Name: name}
	if node.Optional() {
		def++
	}
	if node.Repeated() { // a list without a group around it
		def++
		inner := arrow.Field{Name: "element"}
		err := b.content(&inner, node, def, append(slices.Clip(lists), def))
		f.Kind, f.Inner, f.Column = arrow.List, []arrow.Field{inner}, inner.Column
		return f, err
	}
	err := b.content(&f, node, def, lists)
	return f, err
}

func (b *builder) content(f *arrow.Field, node pq.Field, def int, lists []int) error {
	if node.Leaf() {
		if len(b.leaves) >= len(b.logical) {
			return errFooter
		}
		leafKind(f, node.Type(), b.logical[len(b.leaves)])
		f.Column = len(b.leaves)
		b.leaves = append(b.leaves, leaf{field: *f, lists: lists, most: def})
		return nil
	}
	logical := node.Type().LogicalType()
	inner := node.Fields()
	isList := logical != nil && fmt.Sprint(logical) == "LIST"
	if isList && len(inner) == 1 && inner[0].Repeated() {
		f.Kind = arrow.List
		def++
		lists = append(slices.Clip(lists), def)
		element := inner[0]
		if e := element; !e.Leaf() && len(e.Fields()) == 1 {
			x, err := b.field(e.Fields()[0], "element", def, lists)
			f.Inner, f.Column = []arrow.Field{x}, x.Column
			return err
		}
		x := arrow.Field{Name: "element"}
		err := b.content(&x, element, def, lists)
		f.Inner, f.Column = []arrow.Field{x}, x.Column
		return err
	}
	f.Kind = arrow.Struct
	if logical != nil { // a map, or what is newer than this program
		f.Kind, f.Word = arrow.Other, fmt.Sprint(logical)
	}
	for _, n := range inner {
		x, err := b.field(n, n.Name(), def, lists)
		if err != nil {
			return err
		}
		f.Inner = append(f.Inner, x)
	}
	return nil
}

// logicalTypes are the names of the logical types of a file's leaves.
func logicalTypes(schema []format.SchemaElement) []string {
	var out []string
	for i := range schema {
		e := &schema[i]
		if !e.Type.Valid {
			continue
		}
		name := e.LogicalType.String()
		if c := e.ConvertedType; name == "" && c.Valid { // files of before logical types
			name = map[deprecated.ConvertedType]string{deprecated.UTF8: "STRING", deprecated.Enum: "ENUM",
				deprecated.Json: "JSON", deprecated.Uint8: "INT(8,false)",
				deprecated.Uint16: "INT(16,false)", deprecated.Uint32: "INT(32,false)", deprecated.Uint64: "INT(64,false)",
				deprecated.Int8: "INT(8,true)", deprecated.Int16: "INT(16,true)", deprecated.Date: "DATE",
				deprecated.TimeMillis:      "TIME(isAdjustedToUTC=true,unit=MILLIS)",
				deprecated.TimeMicros:      "TIME(isAdjustedToUTC=true,unit=MICROS)",
				deprecated.TimestampMillis: "TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS)",
				deprecated.TimestampMicros: "TIMESTAMP(isAdjustedToUTC=true,unit=MICROS)"}[c.V]
			if c.V == deprecated.Decimal {
				name = fmt.Sprintf("DECIMAL(%d,%d)", e.Precision.V, e.Scale.V)
			}
		}
		out = append(out, name)
	}
	return out
}

// leafKind says what a leaf's values are.
func leafKind(f *arrow.Field, t pq.Type, logical string) {
	switch t.Kind() {
	case pq.Boolean:
		f.Kind = arrow.Bool
	case pq.Int32, pq.Int64:
		f.Kind, f.Bits, f.Signed = arrow.Int, 32, true
		if t.Kind() == pq.Int64 {
			f.Bits = 64
		}
		var bits int
		var signed bool
		if n, _ := fmt.Sscanf(logical, "INT(%d,%t)", &bits, &signed); n == 2 &&
			(bits == 8 || bits == 16 || bits == 32 || bits == 64) && bits <= f.Bits {
			f.Bits, f.Signed = bits, signed
		}
		if strings.HasPrefix(logical, "TIME") || logical == "DATE" {
			f.Word = logical
		}
	case pq.Int96: // a time of old writers: nanoseconds, as those of a timestamp
		f.Kind, f.Bits, f.Signed, f.Word = arrow.Int, 64, true, "TIMESTAMP(isAdjustedToUTC=false,unit=NANOS)"
	case pq.Float:
		f.Kind, f.Bits = arrow.Float, 32
	case pq.Double:
		f.Kind, f.Bits = arrow.Float, 64
	case pq.ByteArray:
		f.Kind = arrow.Binary
		switch logical {
		case "STRING", "ENUM", "JSON":
			f.Kind = arrow.Text
		}
	case pq.FixedLenByteArray:
		f.Kind, f.Width = arrow.Binary, t.Length()
		if logical == "FLOAT16" && f.Width == 2 {
			f.Kind, f.Bits, f.Width = arrow.Float, 16, 0
		}
	default:
		f.Kind, f.Word = arrow.Other, t.String()
	}
	if digits, scale := 0, 0; strings.HasPrefix(logical, "DECIMAL") && (f.Kind == arrow.Binary || f.Kind == arrow.Int) {
		_, _ = fmt.Sscanf(logical, "DECIMAL(%d,%d)", &digits, &scale) // without digits it is no decimal that is read
		f.Bits, f.Width = 0, 0
		f.SetDecimal(digits, scale)
	}
}

// fixLists makes lists of fixed length, and durations, of those that Arrow's own schema, in the file's metadata, calls
// so.
func fixLists(fields []arrow.Field, meta string) {
	b, err := base64.StdEncoding.DecodeString(meta)
	if err != nil {
		return
	}
	if s, err := arrow.ParseSchema(b); err == nil {
		fixFields(fields, s.Fields)
	}
}

func fixFields(fields, like []arrow.Field) {
	if len(fields) != len(like) {
		return
	}
	for i := range fields {
		f, l := &fields[i], &like[i]
		if f.Kind == arrow.List && l.Kind == arrow.FixedList {
			f.Kind, f.Width = arrow.FixedList, l.Width
		}
		if f.Kind == arrow.Int && strings.HasPrefix(l.Word, "duration") { // Parquet has none
			f.Word = l.Word
		}
		fixFields(f.Inner, l.Inner)
	}
}
