package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Change is one key that differs between two configurations.
type Change struct {
	Key      string
	Old, New string
	Apply    Apply // when the new value takes effect in a running daemon
}

// String prints the change on one line.
func (c Change) String() string {
	return fmt.Sprintf("%s: %s -> %s (%s)", c.Key, strconv.Quote(c.Old), strconv.Quote(c.New), c.Apply)
}

// Diff lists the keys whose values differ, in the order of the file.
func Diff(a, b *Config) []Change {
	var out []Change
	for _, k := range bothKeys(a, b) {
		if x, y := k.get(a), k.get(b); x != y {
			out = append(out, Change{Key: k.Name, Old: x, New: y, Apply: k.Apply})
		}
	}
	return out
}

// Comments chooses what Marshal writes behind each value.
type Comments uint8

// What Marshal can say about each key.
const (
	NoComments Comments = iota
	Docs                // what the key means
	Origins             // where its value came from
)

// Marshal writes the whole configuration as a file that Parse reads back to the same values.
func (c *Config) Marshal(comments Comments) []byte {
	var b bytes.Buffer
	var open []string // sections already written
	for _, k := range c.Keys() {
		parts := k.path
		if parts == nil {
			parts = strings.Split(k.Name, ".")
		}
		dirs := parts[:len(parts)-1]
		same := 0
		for same < len(open) && same < len(dirs) && open[same] == dirs[same] {
			same++
		}
		for i := same; i < len(dirs); i++ {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", i), quote(dirs[i]))
		}
		open = append(open[:same], dirs[same:]...)
		line := fmt.Sprintf("%s%s: %s", strings.Repeat("  ", len(dirs)), parts[len(parts)-1], quote(k.get(c)))
		note := ""
		switch comments {
		case Docs:
			note = k.Doc
		case Origins:
			note = c.Origin(k.Name).String()
		case NoComments:
		}
		if note != "" {
			line = fmt.Sprintf("%-34s # %s", line, note)
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// quote writes a value as one YAML scalar that is read back as the same text.
func quote(s string) string {
	plain := s != ""
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./%", r) {
			plain = false
		}
	}
	var n yaml.Node
	if plain && yaml.Unmarshal([]byte(s), &n) == nil && len(n.Content) == 1 && n.Content[0].Tag != "!!null" &&
		n.Content[0].Value == s {
		return s
	}
	j, err := json.Marshal(s) // JSON strings are YAML strings
	if err != nil {
		return `""`
	}
	return string(j)
}
