package fields

import (
	"fmt"
	"strings"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/record"
)

// Ops is a run of built-in ops on records of one schema. It is immutable.
type Ops struct {
	recipe *prep.Recipe
	bound  binding
	in     record.Schema
	names  []string // of the fields that are touched, for messages, by place
}

// Parse reads a run of built-in ops, which may begin with a Fields op, on records of schema in; nil = the Fields op
// must say what they look like. first is the number of the first op among the steps of the whole recipe. Errors are of
// reason RECIPE_INVALID and name the op and the field.
func Parse(specs []prep.OpSpec, first int, in *record.Schema) (*Ops, error) {
	n, ops, r, err := parseRun(specs, first)
	if err != nil {
		return nil, err
	}
	if in == nil {
		in = n.schema
	}
	if in == nil {
		return nil, errs.New(errs.RecipeInvalid, "transform", "put "+OpName+"(record=[…]) before it, with their fields",
			"op %d, %s: it comes behind a step in Python, and nothing says what records look like there", max(first-1, 0),
			ops[0].Name)
	}
	b, err := bind(&n, in, ops[0].Name)
	if err != nil {
		return nil, err
	}
	if b.joint() {
		if err := r.CheckJoint(len(b.masks) > 0); err != nil {
			return nil, err
		}
	}
	o := &Ops{recipe: r, bound: b, in: *in}
	for i := range in.Fields {
		o.names = append(o.names, in.Fields[i].Name)
	}
	return o, nil
}

// parseRun is what of Parse needs no schema. ops are those behind the Fields op.
func parseRun(specs []prep.OpSpec, first int) (n names, ops []prep.OpSpec, r *prep.Recipe, err error) {
	n.format, ops = XYXY, specs
	shown := max(first-1, 0) // ops are counted from 0, steps from 1
	if len(specs) > 0 && specs[0].Name == OpName {
		if n, err = parseNames(shown, specs[0]); err != nil {
			return n, nil, nil, err
		}
		if ops = specs[1:]; specs[0].Kind != Added {
			shown++
		}
	}
	if len(ops) == 0 {
		return n, nil, nil, errs.New(errs.RecipeInvalid, "transform", "put ops behind it, or leave it out",
			"op %d, %s: no op comes behind it", max(first-1, 0), OpName)
	}
	r, err = prep.ParseFields(ops, first+len(specs)-len(ops), shown)
	return n, ops, r, err
}

// Whole is all the work of the run.
func (o *Ops) Whole() prep.Part { return o.recipe.Whole() }

// Recipe is what happens to the image.
func (o *Ops) Recipe() *prep.Recipe { return o.recipe }

// Describe names a part of the run for a fingerprint: ops, versions, arguments and fields.
func (o *Ops) Describe(p prep.Part) string {
	var b strings.Builder
	b.WriteString("fields 1 " + string(o.bound.format))
	for _, g := range [][]int{{o.bound.image}, o.bound.masks, o.bound.boxes, o.bound.keypoints} {
		b.WriteString(" [")
		for _, i := range g {
			fmt.Fprintf(&b, " %d %q", i, o.names[i])
		}
		b.WriteString("]")
	}
	b.WriteString("\n" + o.recipe.Describe(p))
	return b.String()
}

// Out is the schema behind a part of the run: shapes where they are known, -1 where not.
func (o *Ops) Out(p prep.Part) record.Schema {
	out := record.Schema{Fields: append([]record.Field(nil), o.in.Fields...)}
	f := &out.Fields[o.bound.image]
	before := [2]int64{f.Shape[0], f.Shape[1]}
	after, dtype := o.recipe.FieldShape(p, int(before[1]), int(before[0]))
	size, _ := o.recipe.FieldShape(prep.Part{From: p.From, To: p.To}, int(before[1]), int(before[0]))
	f.Shape = after[:]
	if dtype == prep.Float32 {
		f.DType = record.Float32
	}
	for _, i := range o.bound.masks {
		if size[0] == before[0] && size[1] == before[1] {
			continue
		}
		f := &out.Fields[i]
		f.Shape = append([]int64(nil), f.Shape...)
		f.Shape[len(f.Shape)-2], f.Shape[len(f.Shape)-1] = size[0], size[1]
	}
	return out
}
