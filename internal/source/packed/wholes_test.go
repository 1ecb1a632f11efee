package packed

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"larder/internal/record"
)

// jsonFiles reads files of JSON lines as a dataset: the schema, and the field x of every line as text.
func jsonFiles(t *testing.T, contents ...string) (record.Schema, []string, error) {
	t.Helper()
	s, paths := fileSet{}, make([]string, len(contents))
	for i, content := range contents {
		paths[i] = fmt.Sprintf("/d/%d.jsonl", i)
		s[paths[i]] = []byte(content)
	}
	d := dataset{format: jsonl{}, Address: Address{Scheme: "jsonl", Path: "/d"}, files: paths}
	c, err := d.read(s, -1)
	if err != nil {
		return c.schema, nil, err
	}
	var out []string
	for _, blob := range c.records {
		v, err := record.Open([]byte(blob))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range v.All {
			out = append(out, wordOf(&x))
		}
	}
	return c.schema, out, nil
}

// wordOf is a value in words.
func wordOf(v *record.Value) string {
	if v.Kind == record.Text {
		return string(v.Data)
	}
	var words []string
	for b := v.Data; len(b) >= 8; b = b[8:] {
		switch n := binary.LittleEndian.Uint64(b); v.DType {
		case record.Uint64:
			words = append(words, fmt.Sprint(n))
		case record.Int64:
			words = append(words, fmt.Sprint(int64(n)))
		default:
			words = append(words, fmt.Sprint(math.Float64frombits(n)))
		}
	}
	return strings.Join(words, " ")
}

// Whole numbers of JSON are what they are: as int64, as uint64 where that holds them all, else as text. None becomes a
// float64 that is another number, in one file or in several.
func TestWholeNumbersAreExact(t *testing.T) {
	const most, more, odd = "18446744073709551615", "18446744073709551616", "9007199254740993"
	for in, want := range map[string]string{
		"1 -2":                            "int64: 1 -2",
		"-9223372036854775808":            "int64: -9223372036854775808",
		odd + " 9223372036854775807":      "int64: " + odd + " 9223372036854775807",
		most + " " + odd:                  "uint64: " + most + " " + odd,
		odd + " " + most + " -0":          "uint64: " + odd + " " + most + " 0",
		most + " -1":                      "text: " + most + " -1",
		more + " 1":                       "text: " + more + " 1",
		"-9223372036854775809 1":          "text: -9223372036854775809 1",
		odd + " 0.5":                      "text: " + odd + " 0.5",
		"1e3 " + odd:                      "text: 1e3 " + odd,
		"9007199254740992 0.5":            "float64: 9.007199254740992e+15 0.5",
		"18446744073709551616 0.5":        "float64: 1.8446744073709552e+19 0.5",
		most + " 0.5":                     "text: " + most + " 0.5",
		"1 0.5":                           "float64: 1 0.5",
		strings.Repeat("9", 400) + " 0.5": "text: " + strings.Repeat("9", 400) + " 0.5",
		"[" + most + "," + odd + "]":      "uint64: " + most + " " + odd,
		"[1," + odd + "] [0.5,1]":         "text: [1," + odd + "] [0.5,1]",
		"[" + most + ",-1]":               "text: [" + most + ",-1]",
		"[] [" + most + "]":               "uint64:  " + most,
		"[0.5,2] [3,4]":                   "float64: 0.5 2 3 4",
	} { // order-free: each by itself
		values := strings.Fields(in)
		lines := make([]string, len(values))
		for i, v := range values {
			lines[i] = `{"x": ` + v + "}\n"
		}
		for name, files := range map[string][]string{"one file": {strings.Join(lines, "")}, "several": lines} {
			s, got, err := jsonFiles(t, files...)
			if err != nil {
				t.Errorf("%s in %s: %v", in, name, err)
				continue
			}
			kind := s.Fields[0].DType.String()
			if s.Fields[0].Kind == record.Text {
				kind = "text"
			}
			if is := kind + ": " + strings.Join(got, " "); is != want {
				t.Errorf("%s in %s is %s, not %s", in, name, is, want)
			}
		}
	}
}

// The note of a file keeps what its whole numbers are.
func TestNotesOfWholeNumbers(t *testing.T) {
	s := newShapes()
	s.all, s.names, s.begun = []string{"x"}, []string{"x"}, true
	s.of["x"] = shape{kind: kindInt, whole: isLarge | isBetween}
	got, ok := shapesNoted(s.note())
	if !ok || got.of["x"].whole != isLarge|isBetween || got.of["x"].field("x").DType != record.Uint64 {
		t.Errorf("%v: %+v", ok, got)
	}
}

// No value or name becomes U+FFFD: half of a character is refused with its line, in a value and in a name. JSON that
// stays text keeps it as it is written.
func TestHalvesOfCharacters(t *testing.T) {
	for in, want := range map[string]string{
		`{"x": "a\ud83d b"}`:            "line 2",
		`{"x": "a\ude00 b"}`:            "line 2",
		`{"x": "\ud83d"}`:               "line 2",
		`{"x": "\uD83D\ud83d\ude00"}`:   "line 2",
		`{"x": "\\\ud83d"}`:             "line 2",
		`{"\ud83d": 1, "x": "a"}`:       "line 2",
		`{"x": "\ud83d\ude00 \\ud83d"}`: "= \U0001f600 \\ud83d",
		`{"x": "\ufffd"}`:               "= \ufffd",
		"{\"x\": \"\xff\"}":             "line 2",
	} { // order-free: each by itself
		_, got, err := jsonFiles(t, `{"x": "first"}`+"\n"+in+"\n")
		if says, ok := strings.CutPrefix(want, "= "); ok {
			if err != nil || got[1] != says {
				t.Errorf("%s: %q, %v", in, got, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	_, got, err := jsonFiles(t, `{"x": {"a": "\ud83d"}}`+"\n")
	if err != nil || got[0] != `{"a":"\ud83d"}` {
		t.Errorf("in JSON that stays text: %q, %v", got, err)
	}
}
