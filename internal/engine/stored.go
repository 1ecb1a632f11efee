package engine

import (
	"encoding/json"
	"slices"

	"github.com/cespare/xxhash/v2"

	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/internal/record"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// maxWeight bounds what a sample's ragged fields are taken to weigh before one was seen, bytes.
const maxWeight = 4 << 20

// storedRecipe is the recipe of a job on a dataset whose format gives records: they are read and decoded, and built-in
// ops run on them as on items that workers of clients have made, and that are cached.
func storedRecipe(
	data *source.Dataset, spec *larderv1.JobSpec, schema *record.Schema,
) (*prep.Recipe, *work.Made, error) {
	steps, mixing, err := fields.TakeMixing(opsOf(spec))
	if err != nil {
		return nil, nil, err
	}
	ops := fields.Begun(steps)
	made := &work.Made{Stored: true, Steps: uint32(1 + len(ops)), Cut: 1, Item: fields.Files(ops, schema)}
	made.Out = made.Item
	draws := false
	if len(ops) > 0 {
		plan := planner{made: made, cached: true}
		for _, p := range fields.Parts(ops) {
			run, err := fields.Parse(p.Specs, p.First, &made.Out)
			if err != nil {
				return nil, nil, err
			}
			plan.add(run, uint32(p.First), len(p.Specs), p.First+len(p.Specs) > len(ops))
			made.Out, draws = run.Out(run.Whole()), draws || run.Recipe().Draws()
		}
		plan.end()
	}
	if err := mixing.Check(&made.Out); err != nil {
		return nil, nil, err
	}
	made.Weight = weigh(data, made)
	id := storedID(made, made.Steps)
	return prep.Foreign(id, storedID(made, made.Cut), id, draws), made, nil
}

// storedID names what steps before number steps make.
func storedID(made *work.Made, steps uint32) ident.RecipeID {
	h := xxhash.New()
	_, _ = h.WriteString("larder stored record 1") // a hash never fails
	made.Item.Describe(h)
	for i := range made.Runs {
		if r := &made.Runs[i]; r.Last <= steps {
			_, _ = h.WriteString("\x00built-in " + r.Stage.Describe())
		}
	}
	return ident.RecipeID(max(h.Sum64(), 1))
}

// weigh is about what the ragged fields of a sample weigh: what is stored of it, and what its images unpack to; 0 = not
// known, because ops give the images, which are most of what is stored, one size.
func weigh(data *source.Dataset, made *work.Made) int64 {
	n := data.LiveCount()
	if n == 0 {
		return 0
	}
	each := data.TotalBytes() / int64(n)
	switch before, after := raggedImages(&made.Item), raggedImages(&made.Out); {
	case after:
		each *= 6 // as a JPEG unpacks
	case before:
		return 0
	}
	return min(max(each, 64), maxWeight)
}

// raggedImages reports whether images of unlike sizes are among the fields.
func raggedImages(s *record.Schema) bool {
	return slices.ContainsFunc(s.Fields, func(f record.Field) bool {
		cast := f.DType == record.Float32 && (slices.Contains(f.Shape, 3) || slices.Contains(f.Shape, 1))
		return f.Kind == record.Array && (f.DType == record.Uint8 || cast) && len(f.Shape) == 3 && !f.Dense()
	})
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
