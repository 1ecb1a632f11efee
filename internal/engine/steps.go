package engine

import (
	"encoding/json"
	"fmt"
	"slices"

	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/internal/record"
	larderv1 "larder/proto/larder/v1"
)

// planSteps says which steps of a recipe on records are built-in ops, and where the decoded form ends: as for images,
// before the first random op, and before a cast to floats at the end, which take four times the memory.
func planSteps(spec *larderv1.JobSpec, made *work.Made, cached bool) error {
	ops, plan := stepsOf(spec), planner{made: made, cached: cached}
	in := &made.Item // what records look like; nil = a step in Python comes before, and does not say
	for i := 0; i < len(ops); {
		step := uint32(i) + 1
		if ops[i].GetKind() == pythonOp {
			if in = nil; ops[i].GetArgs().GetFields()["random"].GetBoolValue() {
				plan.cutAt(step)
			}
			i++
			continue
		}
		end := i + 1
		for end < len(ops) && ops[end].GetKind() != pythonOp && ops[end].GetName() != fields.OpName {
			end++
		}
		run, err := fields.Parse(opSpecs(ops[i:end]), i+1, in)
		if err != nil {
			return err
		}
		plan.add(run, step, end-i, end == len(ops))
		out := run.Out(run.Whole())
		in, i = &out, end
	}
	plan.end()
	if n := len(made.Runs); n > 0 && made.Runs[n-1].Last == made.Steps {
		return agree(spec, in, &made.Out)
	}
	return nil
}

// planner finds where the decoded form ends, step by step.
type planner struct {
	made   *work.Made
	cached bool // there is a decoded form
	cut    bool // its end was found
}

// cutAt ends the decoded form before a step, unless it has ended.
func (p *planner) cutAt(step uint32) {
	if p.cached && !p.cut {
		p.made.Cut, p.cut = step, true
	}
}

// add puts a run of n ops that begins at a step behind the steps so far. last: nothing comes behind it.
func (p *planner) add(run *fields.Ops, step uint32, n int, last bool) {
	at := -1
	if p.cached && !p.cut {
		at = cutOf(run, last)
	}
	if at >= 0 {
		p.cutAt(step + uint32(at))
	}
	p.made.Runs = append(p.made.Runs, runsOf(run, step, step+uint32(n), at)...)
}

// end has the decoded form be the whole record, unless it has ended.
func (p *planner) end() { p.cutAt(p.made.Steps) }

// cutOf is how many image ops of a run belong to the decoded form, when that ends in it; -1 = it goes on behind it.
func cutOf(run *fields.Ops, last bool) int {
	r := run.Recipe()
	switch _, dtype := r.FieldShape(run.Whole(), -1, -1); {
	case r.Random():
		return r.Cut()
	case r.Draws(), last && dtype == prep.Float32:
		return r.ImageOps()
	}
	return -1
}

// runsOf is the steps [first, last) as one run, or as two where the decoded form ends after at image ops of it.
func runsOf(run *fields.Ops, first, last uint32, at int) []work.Run {
	whole := run.Whole()
	if at <= 0 {
		return []work.Run{{First: first, Last: last, Stage: run.Stage(whole)}}
	}
	before, behind := prep.Part{To: at}, prep.Part{From: at, To: whole.To, Finish: true}
	middle := first + uint32(at)
	return []work.Run{{First: first, Last: middle, Stage: run.Stage(before)},
		{First: middle, Last: last, Stage: run.Stage(behind)}}
}

// agree refuses a schema of a job that is not what its last ops make.
func agree(spec *larderv1.JobSpec, made, said *record.Schema) error {
	bad := func(field, hint, format string, args ...any) error {
		return errs.New(errs.Invalid, "schema", hint, "register job %s: field %.80q: "+format,
			append([]any{spec.GetName(), field}, args...)...)
	}
	for i := range max(len(made.Fields), len(said.Fields)) {
		if i >= len(made.Fields) || i >= len(said.Fields) || made.Fields[i].Name != said.Fields[i].Name {
			return errs.New(errs.Invalid, "schema", "name the fields that the last step leaves, in their order",
				"register job %s: its schema has the fields %s, and its last ops make %s", spec.GetName(), fieldsOf(said),
				fieldsOf(made))
		}
		m, s := &made.Fields[i], &said.Fields[i]
		fits := m.Kind == s.Kind && m.DType == s.DType && len(m.Shape) == len(s.Shape)
		for k := 0; fits && k < len(m.Shape); k++ {
			fits = m.Shape[k] == s.Shape[k] || m.Shape[k] == record.Ragged || s.Shape[k] == record.Ragged
		}
		if !fits {
			return bad(m.Name, "say what the last op makes", "the schema says %s %s %v, and its last ops make %s %s %v", s.Kind,
				s.DType, s.Shape, m.Kind, m.DType, m.Shape)
		}
	}
	return nil
}

// opSpecs are ops as they came.
func opSpecs(ops []*larderv1.Op) []prep.OpSpec {
	out := make([]prep.OpSpec, 0, len(ops))
	for _, o := range ops {
		out = append(out, prep.OpSpec{Kind: o.GetKind(), Name: o.GetName(), Args: o.GetArgs().AsMap()})
	}
	return out
}

// nameSteps hands the steps behind the item and before number steps to a hash.
func nameSteps(str func(string), spec *larderv1.JobSpec, made *work.Made, steps uint32) error {
	ops := stepsOf(spec)
	for n := uint32(1); n < steps; {
		if i := slices.IndexFunc(made.Runs, func(r work.Run) bool { return r.First == n }); i >= 0 {
			str("built-in")
			str(made.Runs[i].Stage.Describe())
			n = made.Runs[i].Last
			continue
		}
		op := ops[n-1]
		args, err := json.Marshal(op.GetArgs().AsMap()) // its keys are sorted
		if err != nil {
			return errs.New(errs.Invalid, "transform", "use numbers, text and lists",
				"register job %s: the arguments of op %s cannot be written as JSON", spec.GetName(),
				fmt.Sprintf("%.80q", op.GetName())).Because(err)
		}
		str(op.GetName())
		str(string(args))
		n++
	}
	return nil
}
