package prep

import "strings"

// Mixing is a MixUp or CutMix that ends a recipe on records, which whoever hands batches out does.
type Mixing struct {
	Name         string // MixUp or CutMix
	Image, Label string // the fields that it names; empty = it names none
	Classes      int    // 0 = it does not say
}

// IsMixing reports whether an op is MixUp or CutMix.
func IsMixing(name string) bool {
	return strings.EqualFold(name, "MixUp") || strings.EqualFold(name, "CutMix")
}

// ParseMixing reads a MixUp or CutMix that ends a recipe on records. i is its place in the list that a client gave.
// Beside the arguments that it has for images it takes image and label, the names of fields.
func ParseMixing(i int, spec OpSpec) (Mixing, error) {
	m := Mixing{Name: "MixUp"}
	if strings.EqualFold(spec.Name, "CutMix") {
		m.Name = "CutMix"
	}
	if spec.Kind != "" && spec.Kind != "builtin" {
		return m, opError(i, m.Name, "leave kind out", "it is of kind %s", show(spec.Kind))
	}
	a := &args{i: i, name: m.Name, in: spec.Args, out: map[string]any{}}
	a.known("alpha", "num_classes", "image", "label")
	a.float("alpha", 1, 1e-3, 1e3)
	if a.has("num_classes") {
		m.Classes = a.whole("num_classes", 1, 1, 1<<20, true)
	}
	m.Image, m.Label = a.field("image"), a.field("label")
	if a.err != nil {
		return m, a.err
	}
	return m, nil
}

// field reads the name of a field; empty = none was given.
func (a *args) field(name string) string {
	if !a.has(name) {
		return ""
	}
	s, ok := a.in[name].(string)
	if !ok || s == "" {
		a.fail("give the name of one field", "%s is %s", name, show(a.in[name]))
	}
	return s
}
