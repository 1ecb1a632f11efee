package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"larder/internal/errs"
)

// EnvPrefix begins every environment variable of larder. LARDER_TIERS__DECODED sets tiers.decoded.
const EnvPrefix = "LARDER_"

// maxFile bounds the file, so that a wrong path (a dataset) is refused before it is read whole.
const maxFile = 1 << 20

// Load reads the file (path may be empty: no file), then env (as os.Environ gives it), then flags (key to value), and
// validates the result. Every mistake is in the error: errors.Join of *errs.Error of reason CONFIG_INVALID (or
// NOT_FOUND for a file that is missing).
func Load(path string, env []string, flags map[string]string) (*Config, error) {
	if path == "" {
		return LoadContent("", nil, env, flags)
	}
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return LoadContent(path, data, env, flags)
}

// LoadContent is Load of a file's content that lies in memory; name is used in messages.
func LoadContent(name string, data []byte, env []string, flags map[string]string) (*Config, error) {
	c := Default()
	if len(data) > maxFile {
		return nil, tooLarge(name)
	}
	problems := c.parse(name, data)
	problems = append(problems, c.applyEnv(env)...)
	names := make([]string, 0, len(flags))
	for k := range flags {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		if err := c.Set(k, flags[k], Origin{Kind: "flag", Where: flagName(k)}); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// Parse reads a file's content that lies in memory; name is used in messages. The result is validated.
func Parse(name string, data []byte) (*Config, error) {
	c := Default()
	if problems := c.parse(name, data); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

func flagName(key string) string {
	switch key {
	case "socket", "http":
		return "--" + key
	case "socket_group":
		return "--socket-group"
	case "grpc.token_file":
		return "--token-file"
	case "grpc.tls_client_ca":
		return "--tls-ca"
	case "grpc.tls_cert", "grpc.tls_key":
		return "--tls-" + strings.TrimPrefix(key, "grpc.tls_")
	case "source.storage_limit":
		return "--storage-limit"
	}
	return "--set " + key
}

func tooLarge(path string) error {
	return errs.New(errs.ConfigInvalid, path, "name the YAML file of larder", "%s: a configuration is smaller than %s",
		path, FormatBytes(maxFile))
}

// ReadFile reads a configuration file, as far as it can be one.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		reason, hint := errs.ConfigInvalid, "check the path and its rights"
		if errors.Is(err, os.ErrNotExist) {
			reason, hint = errs.NotFound, "larder config default > larder.yaml writes one"
		}
		return nil, errs.New(reason, path, hint, "reading the configuration").Because(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, path, "check the path and its rights", "reading the configuration").
			Because(err)
	}
	if len(data) > maxFile {
		return nil, tooLarge(path)
	}
	return data, nil
}

func (c *Config) parse(name string, data []byte) (problems []error) {
	// The YAML library has panicked on hostile input before; a configuration must not take the daemon down.
	defer func() {
		if r := recover(); r != nil {
			problems = append(problems, errs.New(errs.ConfigInvalid, name, "check its YAML", "%s: it cannot be read as YAML: %v",
				name, r))
		}
	}()
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // an empty file: all defaults
		}
		return []error{errs.NotYAML(errs.ConfigInvalid, name, data, err)}
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return []error{errs.New(errs.ConfigInvalid, name, "keep one document in the file", "%s: more than one YAML document",
			name)}
	}
	w := walker{c: c, file: name, seen: map[string]Origin{}}
	w.mapping("", doc.Content[0])
	return w.problems
}

type walker struct {
	c        *Config
	file     string
	seen     map[string]Origin
	problems []error
}

func (w *walker) origin(n *yaml.Node) Origin {
	return Origin{Kind: "file", Where: fmt.Sprintf("%s:%d:%d", w.file, n.Line, n.Column)}
}

func (w *walker) fail(n *yaml.Node, key, hint, format string, args ...any) {
	w.problems = append(w.problems, errs.New(errs.ConfigInvalid, key, hint, "%s%s", at(w.origin(n)),
		fmt.Sprintf(format, args...)))
}

func (w *walker) mapping(prefix string, n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
	case yaml.ScalarNode:
		if n.Tag == "!!null" { // "tiers:" with nothing below it
			return
		}
		fallthrough
	default:
		what := "the file"
		if prefix != "" {
			what = prefix
		}
		w.fail(n, prefix, keysHint(prefix), "%s must hold keys", what)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			w.fail(k, prefix, "write key: value lines", "a key must be a word")
			continue
		}
		key := k.Value
		if prefix != "" {
			key = prefix + "." + key
		}
		if first, dup := w.seen[key]; dup {
			w.fail(k, key, "keep one of them", "key %q was set already at %s", key, first.Where)
			continue
		}
		w.seen[key] = w.origin(k)
		if freeNames(prefix) && v.Kind != yaml.AliasNode { // any name is one, dots and all
			w.mapping(key, v)
			continue
		}
		w.value(key, k, v)
	}
}

func (w *walker) value(key string, k, v *yaml.Node) {
	if v.Kind == yaml.AliasNode {
		w.fail(v, key, "write the value out", "aliases are not supported")
		return
	}
	if section(key) {
		w.mapping(key, v)
		return
	}
	if lookup(key) == nil {
		w.problems = append(w.problems, unknownKey(key, w.origin(k)))
		return
	}
	if v.Kind != yaml.ScalarNode {
		w.fail(v, key, "write "+lookup(key).Kind, "%s takes one value, not a list or keys", key)
		return
	}
	if v.Tag == "!!null" {
		return // "key:" or "key: null" leaves the default
	}
	if err := w.c.Set(key, v.Value, w.origin(v)); err != nil {
		w.problems = append(w.problems, err)
	}
}

// freeNames reports whether the keys of a section are names that users give.
func freeNames(section string) bool { return section == datasetsKey || section == storesKey }

// keysHint shows how the keys of a section are written.
func keysHint(section string) string {
	if section == datasetsKey {
		return "e.g. datasets: {train: {cap: 10%}}"
	}
	if section == storesKey {
		return "e.g. stores: {s3: {endpoint: \"https://minio.example:9000\"}}"
	}
	if section != "" {
		for _, k := range keys {
			if rest, ok := strings.CutPrefix(k.Name, section+"."); ok && !strings.Contains(rest, ".") {
				return fmt.Sprintf("e.g. %s: {%s: %s}", section[strings.LastIndexByte(section, '.')+1:], rest,
					quote(k.get(Default())))
			}
		}
	}
	return "write key: value lines"
}

func section(key string) bool {
	if key == "" {
		return false
	}
	if freeNames(key) {
		return true
	}
	for _, k := range keys {
		if strings.HasPrefix(k.Name, key+".") {
			return true
		}
	}
	return false
}

// applyEnv takes every LARDER_ variable that names a key. A name with a double underscore can be nothing but a key, so
// an unknown one is an error; other LARDER_ names belong to clients and tests and are left alone.
func (c *Config) applyEnv(env []string) (problems []error) {
	env = slices.Clone(env)
	slices.Sort(env)
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		key := strings.ReplaceAll(strings.ToLower(name[len(EnvPrefix):]), "__", ".")
		from := Origin{Kind: "env", Where: name}
		if lookup(key) == nil && !strings.Contains(key, ".") {
			continue
		}
		if err := c.Set(key, value, from); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// EnvName returns the environment variable of a key.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))
}
