package fields

import (
	"slices"

	"larder/internal/prep"
	"larder/internal/record"
)

// Added is the kind of a Fields op that nobody wrote: in messages the ops behind it keep their places.
const Added = "added"

// foreign is the kind of steps that workers of clients run.
const foreign = "python"

// Begun is a recipe on records with a Fields op at its beginning: Added where it has none. So ops draw the same whether
// it was written or not.
func Begun(specs []prep.OpSpec) []prep.OpSpec {
	if len(specs) == 0 || specs[0].Name == OpName {
		return specs
	}
	return append([]prep.OpSpec{{Kind: Added, Name: OpName}}, specs...)
}

// Part is a run of ops of a longer recipe. First is the number of its first op among the steps, from 1.
type Part struct {
	First int
	Specs []prep.OpSpec
}

// Parts splits a recipe of built-in ops where a Fields op begins another run.
func Parts(specs []prep.OpSpec) (out []Part) {
	for i := range specs {
		if i == 0 || specs[i].Name == OpName {
			out = append(out, Part{First: i + 1})
		}
		p := &out[len(out)-1]
		p.Specs = append(p.Specs, specs[i])
	}
	return out
}

// Check refuses ops that can act on no record, whatever its fields.
func Check(specs []prep.OpSpec) error {
	specs, _, err := TakeMixing(specs)
	if err != nil {
		return err
	}
	for _, p := range Parts(Begun(specs)) {
		if _, _, _, err := parseRun(p.Specs, p.First); err != nil {
			return err
		}
	}
	return nil
}

// Files is a schema of stored records whose masks are image files: a field of the shape of images, [-1, -1, 3], that a
// Fields op names as a mask is [-1, -1], which package prep decodes to the numbers of its classes. in is not changed.
func Files(specs []prep.OpSpec, in *record.Schema) record.Schema {
	out := record.Schema{Fields: slices.Clone(in.Fields)}
	for i, spec := range specs {
		if spec.Kind == foreign {
			break // what the Fields ops behind it name is what it makes
		}
		if spec.Name != OpName {
			continue
		}
		n, err := parseNames(i, spec)
		if err != nil {
			continue // Parse says it
		}
		for k := range out.Fields {
			f := &out.Fields[k]
			if slices.Contains(n.masks, f.Name) && prep.IsImageFile(f) {
				f.Shape = []int64{record.Ragged, record.Ragged}
			}
		}
	}
	return out
}
