package bench

import (
	"bytes"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
)

// property is what the schema of scenarios says of one key.
type property struct {
	Ref       string       `json:"$ref"`
	Type      kind         `json:"type"`
	Enum      []string     `json:"enum"`
	Min       *json.Number `json:"minimum"`
	Max       *json.Number `json:"maximum"`
	Above     *json.Number `json:"exclusiveMinimum"`
	Props     properties   `json:"properties"`
	Required  []string     `json:"required"`
	MinItems  *int         `json:"minItems"`
	MaxItems  *int         `json:"maxItems"`
	Items     *property    `json:"items"`
	Forbidden *bool        `json:"additionalProperties"`
}

type properties map[string]property

// kind is a type of JSON, or several with blanks between them.
type kind string

func (k *kind) UnmarshalJSON(raw []byte) error {
	var several []string
	if json.Unmarshal(raw, &several) == nil {
		*k = kind(strings.Join(several, " "))
		return nil
	}
	return json.Unmarshal(raw, (*string)(k))
}

// step is the least that can be added to a limit so that it is passed.
func step(n json.Number, integer, up bool) string {
	x, ok := new(big.Rat).SetString(n.String())
	if !ok {
		panic(n)
	}
	d := big.NewRat(1, 1)
	if !integer {
		d = big.NewRat(1, 1_000_000_000)
		if x.Sign() != 0 {
			d = new(big.Rat).Mul(x, d)
			d.Abs(d)
		}
	}
	if !up {
		d.Neg(d)
	}
	x.Add(x, d)
	if integer {
		return x.Num().String()
	}
	return x.FloatString(18)
}

// The schema and the parser agree on values: what lies at a limit of one is accepted by the other, what lies beyond it
// is refused, and so is another type. Keys are compared in TestSchemaIsWhatIsParsed.
func TestSchemaKnowsTheValues(t *testing.T) {
	raw, err := os.ReadFile("scenarios/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var schema struct {
		Defs properties `json:"$defs"`
	}
	if err := dec.Decode(&schema); err != nil {
		t.Fatal(err)
	}
	gen, run := schema.Defs["demand"].Props["generate"], schema.Defs["live"]
	demand := func(text string) error { _, err := ParseDemand("f", []byte(text)); return err }
	live := func(text string) error { _, err := ParseLive("f", []byte(text)); return err }
	// Of a key without limits in the schema, a value that is right: what makes one right is written elsewhere
	// (docs/subsets.md, docs/policies.md, …).
	words := map[string]string{"subset": "id < 5", "order": "epoch", "policy": "lru", "name": "b", "step": "2ms",
		"start": "1s", "leave": "2s", "latency": "1ms", "at": "2s", "finish": "10us", "mean": "1ms",
		"dataset": "imagefolder:x", "bandwidth": "20MB/s", "memory": "8GB", "total": "1GiB", "encoded": "auto",
		"decoded": "7", "augmented": "0"}
	checked := 0
	for _, at := range []struct {
		of    property
		parse func(text string) error
		with  string // KEY: VALUE stands for the key that is tried
	}{
		{schema.Defs["scenario"], demand, "samples: 10\njobs: [{name: a}]\nKEY: VALUE"},
		{schema.Defs["scenario"].Props["cache"], demand, "samples: 10\njobs: [{name: a}]\ncache: {KEY: VALUE}"},
		{schema.Defs["job"], demand, "samples: 10\njobs: [{name: a, KEY: VALUE}]"},
		{gen, demand, "generate: {samples: 10, KEY: VALUE}"},
		{run, live, "samples: 10\njobs: [{name: a}]\nKEY: VALUE"},
		{run.Props["machine"], live, "samples: 10\njobs: [{name: a}]\nmachine: {KEY: VALUE}"},
		{run.Props["machine"].Props["storage"], live, "samples: 10\njobs: [{name: a}]\nmachine: {storage: {KEY: VALUE}}"},
		{run.Props["tiers"], live, "samples: 10\njobs: [{name: a}]\ntiers: {KEY: VALUE}"},
		{run.Props["tiers"].Props["policy"], live, "samples: 10\njobs: [{name: a}]\ntiers: {policy: {KEY: VALUE}}"},
		{run.Props["kill"], live, "samples: 10\njobs: [{name: a}]\nkill: {KEY: VALUE}"},
		{schema.Defs["livejob"], live, "samples: 10\njobs: [{name: a, KEY: VALUE}]"},
		{schema.Defs["phase"], live, "samples: 10\njobs: [{name: a, phases: [{batches: 3, step: 1ms}, {batches: 2, step: " +
			"3ms, KEY: VALUE}]}]"},
		{schema.Defs["distribution"], live, "samples: 10\njobs: [{name: a}]\nmachine: {decode: {mean: 2ms, KEY: VALUE}}"},
	} {
		if at.of.Forbidden == nil || *at.of.Forbidden || len(at.of.Props) == 0 {
			t.Fatalf("the schema of %q allows other keys, or is not where it was", at.with)
		}
		try := func(key, value string, right bool) {
			t.Helper()
			text := at.with
			for given, place := range map[string]string{"samples: 10\n": "\nKEY: ", "samples: 10, ": ", KEY: ",
				"name: a, ":    "name: a, KEY: ",
				"batches: 2, ": "3ms, KEY: ", "step: 3ms, ": "3ms, KEY: ", "mean: 2ms, ": "2ms, KEY: "} { // one key once
				if strings.HasPrefix(given, key+":") && strings.Contains(text, given) && strings.Contains(text, place) {
					text = strings.Replace(text, given, "", 1)
				}
			}
			if key == "gap" || key == "skew" {
				text = strings.Replace(text, "samples: 10", "family: "+map[string]string{"gap": "poisson",
					"skew": "zipf"}[key]+", samples: 10", 1)
			}
			if key == "dataset" {
				text = strings.Replace(text, "samples: 10\n", "", 1)
			}
			text = strings.Replace(strings.Replace(text, "KEY", key, 1), "VALUE", value, 1)
			checked++
			if err := at.parse(text); (err == nil) != right {
				t.Errorf("the schema says %v of %q, the parser %v", right, text, err)
			}
		}
		for key, p := range at.of.Props {
			if p.Type == "array" || p.Type == "object" {
				continue // lists and mappings of their own, below
			}
			if key == "decode" || key == "augment" { // a time, or a distribution
				try(key, "2ms", true)
				try(key, "{mean: 2ms}", true)
				try(key, "{spread: 2}", !slices.Contains(schema.Defs["distribution"].Required, "mean"))
				try(key, "[2ms]", false)
				continue
			}
			if p.Ref != "" {
				p = schema.Defs[p.Ref[strings.LastIndexByte(p.Ref, '/')+1:]]
			}
			switch {
			case p.Type == "integer" || p.Type == "number":
				whole := p.Type == "integer"
				if p.Min == nil && p.Above == nil || p.Max == nil {
					t.Errorf("the schema has no limits for %s", key)
					continue
				}
				if p.Min != nil {
					try(key, p.Min.String(), true)
					try(key, step(*p.Min, whole, false), false)
				} else {
					try(key, p.Above.String(), false)
					try(key, step(*p.Above, whole, true), true)
				}
				if far := key == "epochs" || key == "repeats"; !far { // alone they are allowed, but not so many picks in all
					try(key, p.Max.String(), true)
				}
				try(key, step(*p.Max, whole, true), false)
				try(key, "many", false)
				try(key, "[1]", false)
				try(key, ".nan", false)
				if whole {
					try(key, "1.5", false)
				}
			case p.Type == "boolean":
				try(key, "true", true)
				try(key, "false", true)
				try(key, "3", false)
			case len(p.Enum) > 0:
				for _, word := range p.Enum {
					try(key, word, true)
				}
				try(key, "zzqq", false)
				try(key, "[]", false)
			case p.Type == "string" || p.Type == "string integer":
				value, ok := words[key]
				if p.Type == "string" && slices.Contains([]string{"encoded", "decoded", "augmented"}, key) {
					value = words["policy"]
				}
				if !ok {
					t.Errorf("no example of %s", key)
				}
				try(key, value, true)
				try(key, "{a: 1}", false)
			default:
				t.Errorf("%s: a type that this test does not know: %+v", key, p)
			}
		}
	}
	jobs := schema.Defs["scenario"].Props["jobs"]
	list := func(n int) string {
		var names []string
		for i := range n {
			names = append(names, "{name: j"+big.NewInt(int64(i)).String()+"}")
		}
		return "samples: 10\njobs: [" + strings.Join(names, ", ") + "]"
	}
	four := schema.Defs["scenario"].Props["sizes"].Props["quartiles"]
	for text, right := range map[string]bool{
		list(*jobs.MinItems): true, list(*jobs.MinItems - 1): false, list(*jobs.MaxItems): true, list(*jobs.MaxItems +
			1): false,
		"samples: 10\njobs: [{name: a}]\n" +
			"sizes: {quartiles: [1, 1, 1, 1]}": *four.MinItems == 4 && *four.MaxItems == 4,
		"samples: 10\njobs: [{name: a}]\nsizes: {quartiles: [1, 1, 1]}":                                            false,
		"samples: 10\njobs: [{name: a}]\nsizes: {quartiles: [1, 1, 1, 0]}":                                         false,
		"samples: 10\njobs: [{name: a}]\nsizes: {quartiles: [1, 1, 1, " + four.Items.Max.String() + "]}":           true,
		"samples: 10\njobs: [{name: a}]\nsizes: {quartiles: [1, 1, 1, " + step(*four.Items.Max, true, true) + "]}": false,
		"jobs: [{name: a}]":       !slices.Contains(schema.Defs["scenario"].Required, "samples"),
		"samples: 10":             !slices.Contains(schema.Defs["scenario"].Required, "jobs"),
		"samples: 10\njobs: [{}]": !slices.Contains(schema.Defs["job"].Required, "name"),
		"generate: {jobs: 2}":     !slices.Contains(gen.Required, "samples"),
		"samples: 10\njobs: [{name: a}]\ngenerate: {samples: 10}": false, // one or the other
	} {
		checked++
		if _, err := ParseDemand("f", []byte(text)); (err == nil) != right {
			t.Errorf("the schema says %v of %.80q, the parser %v", right, text, err)
		}
	}
	for text, right := range map[string]bool{
		"samples: 10\ndataset: x\njobs: [{name: a}]": false, "jobs: [{name: a}]": false, // oneOf
		"samples: 10": !slices.Contains(run.Required, "jobs"), "samples: 10\njobs: [{}]": !slices.Contains(
			schema.Defs["livejob"].Required, "name"),
		"samples: 10\njobs: [{name: a, phases: []}]":             *schema.Defs["livejob"].Props["phases"].MinItems == 0,
		"samples: 10\njobs: [{name: a, phases: [{batches: 2}]}]": !slices.Contains(schema.Defs["phase"].Required, "step"),
		"samples: 10\njobs: [{name: a, phases: [{step: 2ms}]}]":  !slices.Contains(schema.Defs["phase"].Required, "batches"),
		list(*run.Props["jobs"].MaxItems):                        true,
		list(*run.Props["jobs"].MaxItems + 1):                    false,
	} {
		checked++
		if err := live(text); (err == nil) != right {
			t.Errorf("the schema says %v of %.80q, the parser %v", right, text, err)
		}
	}
	if checked < 300 {
		t.Errorf("only %d values were tried", checked)
	}
}
