package fields

import (
	"cmp"
	"slices"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/record"
)

// Mixing is the MixUp or CutMix that ends a recipe on records. Batches are delivered as they are before it: whoever
// hands them out mixes. So it is no step, and no part of a fingerprint.
type Mixing struct {
	op    prep.Mixing
	image string   // that the last Fields op names
	moved []string // masks, boxes and keypoints that it names
}

// TakeMixing takes the MixUp or CutMix off the end of a recipe; nil = it has none. The last Fields op says which image
// it mixes, as it does for every op behind it; _mix.py has the same rule, and testdata/mixing.json tests both.
func TakeMixing(specs []prep.OpSpec) (rest []prep.OpSpec, m *Mixing, err error) {
	last := len(specs) - 1
	if last < 0 || !prep.IsMixing(specs[last].Name) {
		return specs, nil, nil
	}
	m = &Mixing{}
	if m.op, err = prep.ParseMixing(last, specs[last]); err != nil {
		return nil, nil, err
	}
	rest = specs[:last]
	for i, spec := range rest {
		if spec.Name != OpName {
			continue
		}
		n, err := parseNames(i, spec)
		if err != nil {
			continue // Parse says it
		}
		m.image = n.image
		m.moved = append(m.moved, slices.Concat(n.masks, n.boxes, n.keypoints)...)
	}
	return rest, m, nil
}

// Check refuses to mix records whose image and label it does not find, or that cannot be mixed. s is their schema in a
// batch. m may be nil.
func (m *Mixing) Check(s *record.Schema) error {
	if m == nil {
		return nil
	}
	if len(m.moved) > 0 {
		return refuse(m.op.Name, m.moved[0], "leave it out, or mix in the training loop",
			"it mixes images and labels, and not masks, boxes or keypoints; torchvision refuses them, too")
	}
	image, label, err := m.roles(s)
	if err != nil {
		return err
	}
	if f := &s.Fields[image]; m.op.Name == "MixUp" && f.DType == record.Uint8 {
		return refuse(m.op.Name, f.Name, "put ToTensor or Normalize before it",
			"it mixes floats, and the image is uint8")
	}
	f := &s.Fields[label]
	switch classes := int64(m.op.Classes); {
	case len(f.Shape) == 0 && classes == 0:
		return refuse(m.op.Name, f.Name, "write "+m.op.Name+"(num_classes=10), say",
			"labels are numbers, and it needs the argument num_classes")
	case len(f.Shape) == 1 && classes > 0 && f.Shape[0] != classes:
		return refuse(m.op.Name, f.Name, "give as many classes as the labels have", "labels have the shape %v, and "+
			"num_classes is %d", f.Shape, classes)
	}
	return nil
}

// roles gives the places of the image and of the label.
func (m *Mixing) roles(s *record.Schema) (image, label int, err error) {
	if image, err = m.find(s, cmp.Or(m.op.Image, m.image), "image", []string{"image"}, mixable); err != nil {
		return 0, 0, err
	}
	label, err = m.find(s, m.op.Label, "label", labelNames, labels)
	return image, label, err
}

// labelNames are the names by which a label is found, in this order.
var labelNames = []string{"label", "labels", "class", "cls", "y", "target", "fine_label"}

// find is the place of the field of a role: the one that is named, else one of a known name, else the only one that can
// be it. can says why a field cannot; empty = it can.
func (m *Mixing) find(
	s *record.Schema, named, role string, known []string, can func(*record.Field) string,
) (int, error) {
	if named != "" {
		i, err := find(s, named, role, m.op.Name)
		if err != nil {
			return 0, err
		}
		if why := can(&s.Fields[i]); why != "" {
			return 0, refuse(m.op.Name, named, mixHint[role], "%s, which is no %s that it mixes", why, role)
		}
		return i, nil
	}
	var fit []int
	var names []string
	for i := range s.Fields {
		if can(&s.Fields[i]) == "" {
			fit, names = append(fit, i), append(names, s.Fields[i].Name)
		}
	}
	for _, name := range known {
		if i := slices.Index(names, name); i >= 0 {
			return fit[i], nil
		}
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	return 0, errs.New(errs.RecipeInvalid, "transform", mixHint[role],
		"op %s: %d fields of the records can be its %s%s", m.op.Name, len(fit), role, listed(names))
}

var mixHint = map[string]string{
	"image": "images are uint8, float32 or float64 of one size, [H, W, C] or [C, H, W] with 1 or 3 channels; say which " +
		`field it is: image="..."`,
	"label": `labels are whole numbers, or an array of one number a class; say which field it is: label="..."`,
}

// mixable says why a field is no image that can be mixed; empty = it is one.
func mixable(f *record.Field) string {
	channels := func(n int64) bool { return n == 1 || n == 3 }
	numbers := f.DType == record.Uint8 || f.DType == record.Float32 || f.DType == record.Float64
	if f.Kind == record.Array && numbers && len(f.Shape) == 3 && f.Dense() && (channels(f.Shape[0]) ||
		channels(f.Shape[2])) {
		return ""
	}
	return describe(f)
}

// labels says why a field is no label; empty = it is one.
func labels(f *record.Field) string {
	one := f.Kind == record.Scalar || f.Kind == record.Array && len(f.Shape) == 0
	hot := f.Kind == record.Array && len(f.Shape) == 1 && f.Dense()
	switch f.DType {
	case record.Float32, record.Float64:
		one = false
	case record.Float16, record.BFloat16:
		return describe(f)
	case record.Bool:
		one = false
	default:
	}
	if one || hot {
		return ""
	}
	return describe(f)
}
