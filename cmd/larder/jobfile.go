package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/source/packed"
	larderv1 "larder/proto/larder/v1"
)

const (
	maxJobFile = 1 << 20
	maxDepth   = 16 // of lists and maps in an op's arguments
)

// readJobFile reads the YAML of a job; "-" is stdin.
func readJobFile(path string, stdin io.Reader) (*larderv1.JobSpec, error) {
	name, dir := path, filepath.Dir(path)
	var r io.Reader
	if path == "-" {
		r, name, dir = stdin, "standard input", "."
	} else {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errs.New(errs.NotFound, path, "check the path", "read the job").Because(err)
		}
		if err != nil {
			return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the job").Because(err)
		}
		defer f.Close()
		r = f
	}
	data, err := io.ReadAll(io.LimitReader(r, maxJobFile+1))
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the job").Because(err)
	}
	if len(data) > maxJobFile {
		return nil, errs.New(errs.Invalid, path, "name the YAML of a job", "%s: a job is smaller than %s", name,
			config.FormatBytes(maxJobFile))
	}
	spec, err := parseJob(name, data)
	if err != nil {
		return nil, err
	}
	var missing []error
	for _, x := range []struct {
		key, example string
		there        bool
	}{
		{"name", "name: lr-0.1", spec.GetName() != ""}, {"dataset", "dataset: imagefolder:/data/train",
			spec.GetDataset() != ""},
		{"batch_size", "batch_size: 256", spec.GetBatchSize() > 0},
	} {
		if !x.there {
			missing = append(missing, errs.New(errs.Invalid, x.key, "e.g. "+x.example, "%s: %s is missing", name, x.key))
		}
	}
	if len(missing) > 0 {
		return nil, errors.Join(missing...)
	}
	spec.Dataset = absoluteURI(spec.GetDataset(), dir)
	return spec, nil
}

// absoluteURI makes the paths of a uri absolute, for the daemon's working directory is another one. Names of added
// datasets (no scheme) stay as they are.
func absoluteURI(uri, dir string) string {
	scheme, path, ok := strings.Cut(uri, ":")
	if _, isPacked := packed.ByScheme(scheme); ok && isPacked {
		path, args, _ := strings.Cut(path, "?")
		parts := strings.Split(path, "::")
		for i, p := range parts {
			if p != "" && !filepath.IsAbs(p) && !strings.HasPrefix(p, "~") && !strings.Contains(p, "://") {
				if abs, err := filepath.Abs(filepath.Join(dir, p)); err == nil {
					parts[i] = abs
				}
			}
		}
		uri = scheme + ":" + strings.Join(parts, "::")
		if args != "" {
			uri += "?" + args
		}
		return uri
	}
	if !ok || scheme != "imagefolder" || path == "" || filepath.IsAbs(path) || strings.HasPrefix(path, "~") {
		return uri
	}
	// a scheme, which the daemon refuses with a hint
	if inner, _, ok := strings.Cut(path, "://"); ok && !strings.Contains(inner, "/") {
		return uri
	}
	abs, err := filepath.Abs(filepath.Join(dir, path))
	if err != nil {
		return uri
	}
	return scheme + ":" + abs
}

// parseJob reads one job. All mistakes are reported, with line, column and the nearest key.
func parseJob(name string, data []byte) (spec *larderv1.JobSpec, err error) {
	defer func() {
		if r := recover(); r != nil { // the YAML library has panicked on hostile input before
			spec, err = nil, errs.New(errs.Invalid, name, "check its YAML", "%s: it cannot be read as YAML: %v", name, r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errs.New(errs.Invalid, name, "larder jobs register --help shows what to write",
				"%s: there is no job in it", name)
		}
		return nil, errs.NotYAML(errs.Invalid, name, data, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errs.New(errs.Invalid, name, "keep one job in a file", "%s: more than one YAML document", name)
	}
	p := jobParser{file: name}
	spec = new(larderv1.JobSpec)
	p.message(doc.Content[0], spec.ProtoReflect(), "the job")
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return spec, nil
}

type jobParser struct {
	file     string
	problems []error
}

func (p *jobParser) fail(n *yaml.Node, key, hint, format string, args ...any) {
	p.problems = append(p.problems, errs.New(errs.Invalid, key, hint, "%s:%d:%d: %s", p.file, n.Line, n.Column,
		fmt.Sprintf(format, args...)))
}

func (p *jobParser) message(n *yaml.Node, m protoreflect.Message, what string) {
	if n.Kind != yaml.MappingNode {
		p.fail(n, what, "write key: value lines", "%s must hold keys", what)
		return
	}
	fields := m.Descriptor().Fields()
	seen := map[protoreflect.Name]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		fd := fields.ByName(protoreflect.Name(k.Value))
		if fd == nil {
			fd = fields.ByJSONName(k.Value)
		}
		if fd == nil || k.Kind != yaml.ScalarNode {
			p.unknown(k, fields, what)
			continue
		}
		if seen[fd.Name()] {
			p.fail(k, k.Value, "keep one of them", "key %q is there twice", k.Value)
			continue
		}
		seen[fd.Name()] = true
		if v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
			continue // left at its default
		}
		p.field(v, m, fd)
	}
}

func (p *jobParser) unknown(k *yaml.Node, fields protoreflect.FieldDescriptors, what string) {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	hint := "known are " + strings.Join(names, ", ")
	if near := config.Nearest(k.Value, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	p.fail(k, k.Value, hint, "unknown key %q in %s", k.Value, what)
}

func (p *jobParser) field(v *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	key := string(fd.Name())
	switch {
	case fd.IsList(): // transform
		if v.Kind != yaml.SequenceNode {
			p.fail(v, key, "write one - line for each op", "%s must be a list", key)
			return
		}
		list := m.Mutable(fd).List()
		for _, item := range v.Content {
			op := list.AppendMutable().Message()
			p.op(item, op)
		}
	case fd.Kind() == protoreflect.BytesKind,
		fd.Kind() == protoreflect.MessageKind && fd.Message().FullName() != "google.protobuf.Struct":
		p.asJSON(v, m, fd)
	case fd.Kind() == protoreflect.MessageKind: // args
		args := m.Mutable(fd).Message().Interface().(*structpb.Struct)
		if s := p.structure(v, key); s != nil {
			args.Fields = s.GetFields()
		}
	case v.Kind != yaml.ScalarNode:
		p.fail(v, key, "write "+key+": VALUE", "%s takes one value", key)
	default:
		if val, why := scalar(v, fd); why != "" {
			p.fail(v, key, why, "%s: %q cannot be its value", key, v.Value)
		} else {
			m.Set(fd, val)
		}
	}
}

// asJSON reads what is written as in the JSON of the session: a schema, a duration such as 30s, bytes in base64.
func (p *jobParser) asJSON(v *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	key := string(fd.Name())
	text, err := protojson.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{key: p.value(v, key, 0)}})
	whole := m.New()
	if err == nil {
		err = protojson.Unmarshal(text, whole.Interface())
	}
	if err != nil {
		p.fail(v, key, "write it as in docs/protocol.md: a schema as fields, a duration as 30s, bytes in base64",
			"%s cannot be read", key)
		return
	}
	m.Set(fd, whole.Get(fd))
}

func scalar(v *yaml.Node, fd protoreflect.FieldDescriptor) (protoreflect.Value, string) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.ToValidUTF8(v.Value, "\uFFFD")), ""
	case protoreflect.BoolKind:
		var b bool
		if v.Tag != "!!bool" || v.Decode(&b) != nil {
			return protoreflect.Value{}, "write true or false"
		}
		return protoreflect.ValueOfBool(b), ""
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(v.Value, 10, 32)
		if err != nil {
			return protoreflect.Value{}, "write a whole number from 0 to 4294967295"
		}
		return protoreflect.ValueOfUint32(uint32(n)), ""
	case protoreflect.Uint64Kind:
		n, err := strconv.ParseUint(v.Value, 10, 64)
		if err != nil {
			return protoreflect.Value{}, "write a whole number from 0 to 18446744073709551615"
		}
		return protoreflect.ValueOfUint64(n), ""
	default:
		return protoreflect.Value{}, "this version of larder cannot read it from a file"
	}
}

// op reads {name: Resize, args: {size: 224}}, or shorter Resize: {size: 224}, or just Resize.
func (p *jobParser) op(n *yaml.Node, m protoreflect.Message) {
	op := m.Interface().(*larderv1.Op)
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value != "":
		op.Name = n.Value
	case n.Kind == yaml.MappingNode && len(n.Content) == 2 && n.Content[0].Kind == yaml.ScalarNode &&
		!isOpField(n.Content[0].Value):
		op.Name = n.Content[0].Value
		if v := n.Content[1]; v.Tag != "!!null" {
			op.Args = p.structure(v, op.Name)
		}
	case n.Kind == yaml.MappingNode:
		p.message(n, m, "an op")
		if op.GetName() == "" {
			p.fail(n, "transform", "e.g. - Resize: {size: 224}", "an op without a name")
		}
	default:
		p.fail(n, "transform", "e.g. - Resize: {size: 224}", "an op must be a name, or a name with arguments")
	}
}

func isOpField(s string) bool { return s == "name" || s == "args" || s == "kind" }

func (p *jobParser) structure(n *yaml.Node, what string) *structpb.Struct {
	if n.Kind != yaml.MappingNode {
		p.fail(n, what, "e.g. {size: 224}", "the arguments of %s must be keys and values", what)
		return nil
	}
	v := p.value(n, what, 0)
	return v.GetStructValue()
}

func (p *jobParser) value(n *yaml.Node, what string, depth int) *structpb.Value {
	if depth > maxDepth {
		p.fail(n, what, "no op needs that", "lists and keys lie more than %d deep in %s", maxDepth, what)
		return structpb.NewNullValue()
	}
	switch n.Kind {
	case yaml.MappingNode:
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if k.Kind != yaml.ScalarNode {
				p.fail(k, what, "write name: value", "an argument of %s has no name", what)
				continue
			}
			if _, twice := s.Fields[k.Value]; twice {
				p.fail(k, what, "keep one of them", "argument %q of %s is there twice", k.Value, what)
				continue
			}
			s.Fields[strings.ToValidUTF8(k.Value, "\uFFFD")] = p.value(n.Content[i+1], what, depth+1)
		}
		return structpb.NewStructValue(s)
	case yaml.SequenceNode:
		l := &structpb.ListValue{}
		for _, c := range n.Content {
			l.Values = append(l.Values, p.value(c, what, depth+1))
		}
		return structpb.NewListValue(l)
	case yaml.ScalarNode:
		return p.plain(n, what)
	default:
		p.fail(n, what, "write the value out", "aliases are not supported")
		return structpb.NewNullValue()
	}
}

func (p *jobParser) plain(n *yaml.Node, what string) *structpb.Value {
	switch n.Tag {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		var b bool
		if n.Decode(&b) == nil {
			return structpb.NewBoolValue(b)
		}
	case "!!int", "!!float":
		var x float64
		if n.Decode(&x) == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return structpb.NewNumberValue(x)
		}
		p.fail(n, what, "write a plain number", "%q of %s is not a number that can be used", n.Value, what)
		return structpb.NewNullValue()
	}
	return structpb.NewStringValue(strings.ToValidUTF8(n.Value, "\uFFFD"))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
