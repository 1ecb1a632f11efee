package engine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/internal/record"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

const (
	pythonOp       = "python"
	cacheItems     = "items"
	cacheNone      = "none"
	defaultTimeout = time.Minute
	maxIndices     = 1 << 21 // a job must fit a record of the journal
	maxTimeout     = 24 * time.Hour
)

// normaliseMade checks, of a job on a dataset that workers make, what others do not have, and fills in defaults.
func normaliseMade(s *larderv1.JobSpec) error {
	bad := func(field, hint, format string, args ...any) error {
		return errs.New(errs.Invalid, field, hint, "register job %s: "+format, append([]any{s.GetName()}, args...)...)
	}
	switch s.GetCache() {
	case "":
		s.Cache = cacheNone
	case cacheItems, cacheNone:
	default:
		return bad("cache", "choose one of items, none", "cache is %q", s.GetCache())
	}
	return normaliseSteps(s)
}

// normaliseIndices checks the list of samples of a job, of any dataset.
func normaliseIndices(s *larderv1.JobSpec) error {
	bad := func(hint, format string, args ...any) error {
		return errs.New(errs.Invalid, "indices", hint, "register job %s: "+format, append([]any{s.GetName()}, args...)...)
	}
	switch n := len(s.GetIndices()); {
	case n > 4*maxIndices:
		return errs.New(errs.ResourceExceeded, "indices",
			"say it as a subset expression (ranges, id % n), or make a dataset of its own of them",
			"register job %s: it lists %d samples, and %d are the most", s.GetName(), n/4, maxIndices)
	case n%4 != 0:
		return bad("write each id as u32, little-endian", "indices have %d bytes", n)
	case n > 0 && s.GetSubset() != "":
		return bad("use one of them", "both indices and the subset %q are given", s.GetSubset())
	}
	return nil
}

// hasPython reports whether a recipe has steps in Python.
func hasPython(s *larderv1.JobSpec) bool {
	return slices.ContainsFunc(s.GetTransform(), func(op *larderv1.Op) bool { return op.GetKind() == pythonOp })
}

// normaliseSteps checks what a job says of steps that workers make, and of what they make.
func normaliseSteps(s *larderv1.JobSpec) error {
	bad := func(field, hint, format string, args ...any) error {
		return errs.New(errs.Invalid, field, hint, "register job %s: "+format, append([]any{s.GetName()}, args...)...)
	}
	if s.GetSchema() == nil {
		return bad("schema", "say what fields the samples have", "no schema, which jobs need whose samples workers make")
	}
	if d := s.GetSampleTimeout(); d != nil && (!d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > maxTimeout) {
		return bad("sample_timeout", fmt.Sprintf("choose up to %v; 0 = no limit", maxTimeout), "sample_timeout is %v", d)
	}
	for _, op := range s.GetTransform() {
		if op.GetKind() == pythonOp && op.GetName() == "" {
			return bad("transform", "name it", "an op of kind python has no name")
		}
	}
	return nil
}

// parsed is what is known of a recipe before its dataset is.
type parsed struct {
	builtin *prep.Recipe
	err     error // why there is none, where samples that are records may have one
}

func parse(spec *larderv1.JobSpec) (parsed, error) {
	if source.IsMade(spec.GetDataset()) || hasPython(spec) {
		return parsed{}, nil
	}
	ops := opsOf(spec)
	r, err := prep.ParseRecipe(ops)
	if err == nil || !source.MayBeRecords(spec.GetDataset()) {
		return parsed{builtin: r}, err
	}
	return parsed{err: err}, fields.Check(ops)
}

// recipeOn is the recipe of a job on its dataset; made is nil where the daemon's own workers run it.
func (l *library) recipeOn(
	p parsed, data *source.Dataset, spec *larderv1.JobSpec,
) (_ *prep.Recipe, made *work.Made, err error) {
	if hasPython(spec) && !source.IsMade(data.URI()) {
		return mixedRecipe(data, spec)
	}
	if s := data.Schema(); s != nil {
		return storedRecipe(data, spec, s)
	}
	if p.builtin != nil || p.err != nil {
		return p.builtin, nil, p.err
	}
	d, ok := l.declared.of(data.URI())
	if !ok {
		return nil, nil, errs.New(errs.NotFound, data.Name(), "declare it again", "what %s was declared with is not known",
			data.Name())
	}
	made = &work.Made{Steps: uint32(1 + len(stepsOf(spec))), Item: d.schema, Timeout: defaultTimeout}
	if err := handedOut(spec, made); err != nil {
		return nil, nil, err
	}
	if err := planSteps(spec, made, spec.GetCache() == cacheItems); err != nil {
		return nil, nil, err
	}
	recipe, err := foreignRecipe(data, spec, made)
	return recipe, made, err
}

// handedOut fills in what a job says about the samples that it is handed, and how long a step may take.
func handedOut(spec *larderv1.JobSpec, made *work.Made) (err error) {
	if made.Out, err = record.FromProto(spec.GetSchema()); err != nil {
		return err
	}
	if len(made.Out.Fields) == 0 {
		return errs.New(errs.Invalid, "schema", "return at least one value",
			"register job %s: its samples have no fields", spec.GetName())
	}
	if t := spec.GetSampleTimeout(); t != nil {
		made.Timeout = t.AsDuration()
	}
	_, mixing, err := fields.TakeMixing(opsOf(spec))
	if err != nil {
		return err
	}
	return mixing.Check(&made.Out)
}

// foreignRecipe names a recipe that workers run, and its parts.
func foreignRecipe(data *source.Dataset, spec *larderv1.JobSpec, made *work.Made) (*prep.Recipe, error) {
	name := func(what string, steps uint32, out bool) (ident.RecipeID, error) {
		h := xxhash.New()
		str := func(s string) {
			_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(s)))) // a hash never fails
			_, _ = h.WriteString(s)
		}
		str("larder python recipe 1")
		str(what)
		nameSource(str, data, made)
		if err := nameSteps(str, spec, made, steps); err != nil {
			return 0, err
		}
		if out {
			for i := range made.Out.Fields {
				str(fmt.Sprintf("%+v", made.Out.Fields[i]))
			}
		}
		return ident.RecipeID(max(h.Sum64(), 1)), nil
	}
	id, err := name("whole "+spec.GetCache(), made.Steps, true)
	if err != nil {
		return nil, err
	}
	prefix, err := name(fmt.Sprintf("decoded %d", made.Cut), made.Cut, made.Cut == made.Steps)
	if made.Cut == 0 { // what may be done with the number is said by the whole recipe
		prefix = ident.RecipeID(max(xxhash.Sum64String("number "+id.String()), 1))
	}
	return prep.Foreign(id, prefix, id, made.Cut < made.Steps), err
}

// makingOf is what the coordinator must know of a job whose samples workers make.
func makingOf(m *work.Made) coordinator.Making {
	return coordinator.Making{Workers: true, Bare: m.Cut == 0, InSteps: 0 < m.Cut && m.Cut < m.Steps,
		Native: m.Suffix() != nil}
}

// listed returns the samples that the indices of a spec name, without those that are gone, as an expression leaves them
// out.
func listed(data *source.Dataset, spec *larderv1.JobSpec) ([]ident.SampleID, error) {
	b := spec.GetIndices()
	samples := make([]ident.SampleID, 0, len(b)/4)
	for last := -1; len(b) > 0; b = b[4:] {
		id := ident.SampleID(binary.LittleEndian.Uint32(b))
		switch {
		case int(id) <= last:
			return nil, errs.New(errs.Invalid, "indices", "sort them and leave repeats out",
				"register job %s: id %d follows %d", spec.GetName(), id, last)
		case int(id) >= data.Len():
			return nil, errs.New(errs.Invalid, "indices", fmt.Sprintf("ids are 0 to %d", data.Len()-1),
				"register job %s: sample %d is not in %s", spec.GetName(), id, data.Name())
		case data.Live(id):
			samples = append(samples, id)
		}
		last = int(id)
	}
	if len(samples) == 0 {
		return nil, errs.New(errs.SubsetEmpty, "indices", "list samples that exist",
			"job %s: no sample that it lists is in %s any more", spec.GetName(), data.Name())
	}
	return samples, nil
}

// sortedKeys of a map, for messages.
func sortedKeys[V any](maps ...map[string]V) []string {
	seen := map[string]bool{}
	var out []string
	for _, m := range maps {
		for k := range m { // order-free: sorted below
			if !seen[k] {
				seen[k] = true
				out = append(out, k)
			}
		}
	}
	sort.Strings(out)
	return out
}

// runNative is the pool's Native, for the crew, which is made first.
func (e *Engine) runNative(j *work.Job, runs []work.Run, key prep.RandKey, blob []byte, done func([]byte, error)) {
	e.pool.Native(j, runs, key, blob, done)
}

// readRecord is the pool's Read, for the crew.
func (e *Engine) readRecord(
	j *work.Job, item work.Item, runs []work.Run, key prep.RandKey, done func([]byte, coordinator.Prepared),
) {
	e.pool.Read(j, item, runs, key, done)
}
