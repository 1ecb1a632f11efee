package fields

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/prep"
	"larder/internal/record"
	larderv1 "larder/proto/larder/v1"

	"google.golang.org/protobuf/encoding/protojson"
)

// OpName is the op that says which fields the ops behind it touch.
const OpName = prep.FieldsOp

// Format is how four numbers are a box.
type Format string

// The formats of torchvision.
const (
	XYXY   Format = "XYXY"
	XYWH   Format = "XYWH"
	CXCYWH Format = "CXCYWH"
)

var formats = []string{string(XYXY), string(XYWH), string(CXCYWH)}

// names are the fields that a Fields op names.
type names struct {
	image                   string
	masks, boxes, keypoints []string
	format                  Format
	schema                  *record.Schema // what records look like there; nil = it does not say
	given                   bool           // there was a Fields op
}

var fieldArgs = []string{"image", "mask", "boxes", "keypoints", "box_format", "record"}

// parseNames reads a Fields op; i is its place in the recipe.
func parseNames(i int, spec prep.OpSpec) (n names, err error) {
	bad := func(hint, format string, args ...any) error {
		return errs.New(errs.RecipeInvalid, fmt.Sprintf("transform[%d] %s", i, OpName), hint, "op %d, %s: "+format,
			append([]any{i, OpName}, args...)...)
	}
	n.given, n.format = true, XYXY
	for _, k := range sortedKeys(spec.Args) {
		if !slices.Contains(fieldArgs, k) {
			return n, bad(nearest.DidYouMean(k, fieldArgs), "has no argument %.60q", k)
		}
	}
	texts := func(key string) []string {
		if err != nil || spec.Args[key] == nil {
			return nil
		}
		list, ok := spec.Args[key].([]any)
		if !ok {
			list = []any{spec.Args[key]}
		}
		var out []string
		for _, v := range list {
			s, ok := v.(string)
			if !ok || s == "" {
				err = bad("give the name of a field, or a list of names", "%s is %.60v", key, spec.Args[key])
				return nil
			}
			out = append(out, s)
		}
		return out
	}
	if image := texts("image"); len(image) == 1 {
		n.image = image[0]
	} else if len(image) > 1 {
		return n, bad("name one; another image of the same record is none of its masks", "image names %d fields", len(image))
	}
	n.masks, n.boxes, n.keypoints = texts("mask"), texts("boxes"), texts("keypoints")
	if f := texts("box_format"); len(f) > 0 {
		if n.format = Format(strings.ToUpper(f[0])); len(f) > 1 || !slices.Contains(formats, string(n.format)) {
			return n, bad(nearest.DidYouMean(f[0], formats), "box_format is %.60v", spec.Args["box_format"])
		}
	}
	if err != nil {
		return n, err
	}
	if fields, ok := spec.Args["record"]; ok && fields != nil {
		n.schema, err = schemaOf(fields)
		if err != nil {
			return n, bad("leave it to the client", "record: %v", err)
		}
	}
	return n, nil
}

// schemaOf reads a list of fields in the JSON form of their messages.
func schemaOf(fields any) (*record.Schema, error) {
	text, err := json.Marshal(map[string]any{"fields": fields})
	if err != nil {
		return nil, err
	}
	p := new(larderv1.Schema)
	if err := protojson.Unmarshal(text, p); err != nil {
		return nil, err
	}
	s, err := record.FromProto(p)
	return &s, err
}

func sortedKeys(m map[string]any) []string {
	out := make([]string, 0, len(m))
	for k := range m { // order-free: sorted below
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// binding is the places of fields in the records that ops touch.
type binding struct {
	image                   int
	masks, boxes, keypoints []int
	format                  Format
}

// joint reports whether other fields move with the image.
func (b *binding) joint() bool { return len(b.masks)+len(b.boxes)+len(b.keypoints) > 0 }

// bind finds the fields of n in a schema and checks that ops can act on them. op is what the messages are about.
func bind(n *names, s *record.Schema, op string) (b binding, err error) {
	b.format = n.format
	if b.image, err = findImage(n, s, op); err != nil {
		return b, err
	}
	used := map[int]string{b.image: "image"}
	for _, g := range []struct {
		role  string
		names []string
		to    *[]int
		check func(*record.Field) string
	}{
		{"mask", n.masks, &b.masks, checkMask}, {"boxes", n.boxes, &b.boxes, checkBoxes},
		{"keypoints", n.keypoints, &b.keypoints, checkKeypoints},
	} {
		for _, name := range g.names {
			i, err := find(s, name, g.role, op)
			if err != nil {
				return b, err
			}
			if was, twice := used[i]; twice {
				return b, refuse(op, name, "name it once", "it is named as %s and as %s", was, g.role)
			}
			if why := g.check(&s.Fields[i]); why != "" {
				hint := map[string]string{"mask": "masks are arrays [..., H, W]",
					"boxes":     "boxes are arrays [..., 4] of float32, float64, int32 or int64",
					"keypoints": "keypoints are arrays [..., 2] of float32, float64, int32 or int64"}[g.role]
				return b, refuse(op, name, hint, "%s, which are no %s", why, g.role)
			}
			used[i] = g.role
			*g.to = append(*g.to, i)
		}
	}
	return b, nil
}

// refuse is an error of a recipe about a field.
func refuse(op, field, hint, format string, args ...any) error {
	return errs.New(errs.RecipeInvalid, field, hint, "op %s, field %.80q: "+format, append([]any{op, field}, args...)...)
}

// find is the place of a field.
func find(s *record.Schema, name, role, op string) (int, error) {
	var known []string
	for i := range s.Fields {
		if s.Fields[i].Name == name {
			return i, nil
		}
		known = append(known, s.Fields[i].Name)
	}
	hint := nearest.DidYouMean(name, known)
	if len(known) > 0 && len(known) <= 16 {
		hint = "the fields are " + strings.Join(known, ", ")
	}
	return 0, refuse(op, name, hint, "there is no such field, which Fields names as %s", role)
}

const imageHint = "images are uint8 arrays [H, W, 3]; say which field it is: ops.Fields(image=\"...\")"

// findImage is the field that is named, else "image", else the only one that can be an image.
func findImage(n *names, s *record.Schema, op string) (int, error) {
	name := n.image
	if name == "" {
		var can []string
		for i := range s.Fields {
			f := &s.Fields[i]
			if checkImage(f) == "" {
				can = append(can, f.Name)
			}
			if f.Name == "image" {
				name = f.Name
			}
		}
		if name == "" {
			if len(can) != 1 {
				return 0, errs.New(errs.RecipeInvalid, "transform", imageHint,
					"op %s: %d fields of the records can be its image%s", op, len(can), listed(can))
			}
			name = can[0]
		}
	}
	i, err := find(s, name, "image", op)
	if err != nil {
		return 0, err
	}
	if why := checkImage(&s.Fields[i]); why != "" {
		return 0, refuse(op, name, "images are uint8 arrays [H, W, 3]; casts such as ToTensor and Normalize come behind all "+
			"ops on the image", "%s, which is no image", why)
	}
	return i, nil
}

func listed(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": " + strings.Join(names[:min(len(names), 8)], ", ")
}

// describe is a field's type for messages.
func describe(f *record.Field) string {
	if f.Kind != record.Array {
		return fmt.Sprintf("it is %s", f.Kind)
	}
	return fmt.Sprintf("it is %s %v", f.DType, f.Shape)
}

func checkImage(f *record.Field) string {
	n := len(f.Shape)
	if f.Kind == record.Array && f.DType == record.Uint8 && n == 3 && (f.Shape[2] == 3 || f.Shape[2] == record.Ragged) {
		return ""
	}
	return describe(f)
}

func checkMask(f *record.Field) string {
	if f.Kind == record.Array && len(f.Shape) >= 2 {
		return ""
	}
	return describe(f)
}

func checkBoxes(f *record.Field) string { return checkNumbers(f, 4) }

func checkKeypoints(f *record.Field) string { return checkNumbers(f, 2) }

func checkNumbers(f *record.Field, last int64) string {
	switch f.DType {
	case record.Float32, record.Float64, record.Int32, record.Int64:
		if n := len(f.Shape); f.Kind == record.Array && n > 0 && (f.Shape[n-1] == last || f.Shape[n-1] == record.Ragged) {
			return ""
		}
	default:
	}
	return describe(f)
}
