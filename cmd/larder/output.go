package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type pflagFlag = pflag.Flag

// outputFlag is -o of every command that prints data.
type outputFlag struct{ form string }

func (o *outputFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.form, "output", "o", "table", "table, json or yaml")
}

// check refuses a form that does not exist, before the daemon is asked.
func (o *outputFlag) check() error {
	switch o.form {
	case "table", "json", "yaml":
		return nil
	}
	return usagef("write -o table, -o json or -o yaml", "unknown output %q", o.form)
}

// protoJSON writes a message of larder.v1 with the names of the proto, which counters, job files and metrics have as
// well; 64-bit numbers are strings. It varies its blanks on purpose: indent or compact what it wrote.
var protoJSON = protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}

// message prints a message of larder.v1: as protoJSON, as the same in YAML, or through table.
func (o *outputFlag) message(w io.Writer, m proto.Message, table func(*tabwriter.Writer)) error {
	if o.form == "table" {
		return tableTo(w, table)
	}
	raw, err := protoJSON.Marshal(m)
	if err != nil {
		return fmt.Errorf("write %s: %w", o.form, err)
	}
	return o.raw(w, raw)
}

// value prints a plain value through its JSON form.
func (o *outputFlag) value(w io.Writer, v any, table func(*tabwriter.Writer)) error {
	if o.form == "table" {
		return tableTo(w, table)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", o.form, err)
	}
	return o.raw(w, raw)
}

func (o *outputFlag) raw(w io.Writer, raw []byte) error {
	var b bytes.Buffer
	if o.form == "json" {
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("write json: %w", err)
		}
		b.WriteByte('\n')
	} else {
		var n yaml.Node // JSON is YAML; the order of keys stays
		if err := yaml.Unmarshal(raw, &n); err != nil {
			return fmt.Errorf("write yaml: %w", err)
		}
		block(&n)
		enc := yaml.NewEncoder(&b)
		enc.SetIndent(2)
		if err := enc.Encode(&n); err != nil {
			return fmt.Errorf("write yaml: %w", err)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// block turns JSON's style of writing into YAML's. Strings that YAML would read as something else stay quoted.
func block(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && !oldBool(n.Value) {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// oldBool reports whether YAML 1.1, which PyYAML reads, takes a word for true or false.
func oldBool(s string) bool {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off":
		return true
	}
	return false
}

// tableTo writes a table without the blanks that fill up its last column.
func tableTo(w io.Writer, table func(*tabwriter.Writer)) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	table(t)
	if err := t.Flush(); err != nil {
		return err
	}
	var out bytes.Buffer
	for line := range bytes.Lines(b.Bytes()) {
		out.Write(bytes.TrimRight(line, " \n"))
		out.WriteByte('\n')
	}
	_, err := w.Write(out.Bytes())
	return err
}

// row writes one line of a table. Names that users choose may hold tabs or escape sequences; they are made visible.
func row(t *tabwriter.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t, "\t")
		}
		fmt.Fprint(t, printable(fmt.Sprint(c)))
	}
	fmt.Fprint(t, "\n")
}

// printable replaces control characters, so that no job name can move a cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}

// clip shortens what is too wide for a table; describe and -o json have all of it.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// clipPath shortens a uri or path in its middle, because its end says most.
func clipPath(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	scheme, _, ok := strings.Cut(s, ":")
	head := len([]rune(scheme)) + 1
	if !ok || head > n/2 {
		head = 0
	}
	return string(r[:head]) + "…" + string(r[len(r)-(n-head-1):])
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// count writes a number with separators: 1,281,167.
func count[T uint64 | uint32 | int64 | int](n T) string {
	s := fmt.Sprint(n)
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if neg {
		s = "-" + s
	}
	return s
}

// perSecond writes a rate: 131,841 or, below a thousand, with four digits.
func perSecond(x float64) string {
	if x >= 1000 && x < 1<<53 {
		return count(uint64(math.Round(x)))
	}
	return fmt.Sprintf("%.4g", x)
}

// plural writes a number of things: 1 batch, 2 batches.
func plural[T uint64 | uint32 | int64 | int](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// encodeJSON writes one JSON document on one line.
func encodeJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
