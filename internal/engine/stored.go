package engine

import (
	"encoding/json"

	"github.com/cespare/xxhash/v2"

	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// maxWeight bounds what a sample's ragged fields are taken to weigh before one was seen, bytes.
const maxWeight = 4 << 20

// storedRecipe is the recipe of a job on a dataset whose format gives records: they are read and decoded.
func storedRecipe(
	data *source.Dataset, spec *larderv1.JobSpec, schema *record.Schema,
) (*prep.Recipe, *work.Made, error) {
	if ops := spec.GetTransform(); len(ops) > 0 {
		return nil, nil, errs.New(errs.Unsupported, "transform",
			"leave transform out, and change the fields in the script, batch by batch",
			"register job %s: op %s on %s, whose samples are records of fields, does not work yet", spec.GetName(),
			ops[0].GetName(), data.URI())
	}
	made := &work.Made{Stored: true, Steps: 1, Cut: 1, Item: *schema, Out: *schema, Weight: weigh(data, schema)}
	h := xxhash.New()
	_, _ = h.WriteString("larder stored record 1") // a hash never fails
	schema.Describe(h)
	id := ident.RecipeID(max(h.Sum64(), 1))
	return prep.Foreign(id, id, id, false), made, nil
}

// weigh is about what the ragged fields of a sample weigh: what is stored of it, and what its images unpack to.
func weigh(data *source.Dataset, schema *record.Schema) int64 {
	n := data.LiveCount()
	if n == 0 {
		return 0
	}
	each := data.TotalBytes() / int64(n)
	for i := range schema.Fields {
		if f := &schema.Fields[i]; f.Kind == record.Array && f.DType == record.Uint8 && len(f.Shape) == 3 && !f.Dense() {
			each *= 6 // as a JPEG unpacks
			break
		}
	}
	return min(max(each, 64), maxWeight)
}

// schemaOf is a schema as clients get it, with how they nest the fields: a dict.
func schemaOf(s *record.Schema) *larderv1.Schema {
	type nested struct {
		Kind  string   `json:"kind"`
		Keys  []string `json:"keys"`
		Parts []string `json:"parts"`
	}
	out := nested{Kind: "dict"}
	for i := range s.Fields {
		f := &s.Fields[i]
		out.Keys = append(out.Keys, source.FieldKey(f.Name))
		out.Parts = append(out.Parts, leafOf(f))
	}
	p := s.Proto()
	if text, err := json.Marshal(out); err == nil { // strings are always JSON
		p.Structure = string(text)
	}
	return p
}

// leafOf is the type of a value in Python that collates to the same batch.
func leafOf(f *record.Field) string {
	switch {
	case f.Kind == record.Bytes:
		return "bytes"
	case f.Kind == record.Text:
		return "str"
	case f.Kind == record.Array:
		return "ndarray"
	case f.DType == record.Int64:
		return "int"
	case f.DType == record.Float64:
		return "float"
	case f.DType == record.Bool:
		return "bool"
	}
	return "numpy"
}
