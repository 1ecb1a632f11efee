package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"larder/internal/errs"
	"larder/internal/plot"
	"larder/internal/xrand"
)

// Comparison is what Compare says of two results.
type Comparison struct {
	Kind    string   `json:"kind"` // compare
	Before  string   `json:"before"`
	After   string   `json:"after"`
	Least   float64  `json:"least_change"` // a change below it is not claimed
	Metrics []Metric `json:"metrics"`      // in the order of the first result
	Only    []string `json:"only_in_one,omitempty"`
	Notes   []string `json:"notes,omitempty"` // facts that are not the same: another scenario, machine or version
	Same    int      `json:"same"`            // metrics that are equal to the last digit
	Better  int      `json:"better"`
	Worse   int      `json:"worse"`
	Changed int      `json:"changed"` // neither better nor worse: it is unknown which is good
	Unclear int      `json:"unclear"` // the interval holds no change
}

// Metric is one number, or the repeats of one, in both results.
type Metric struct {
	Path    string     `json:"path"`
	N       [2]int     `json:"n"`
	Median  [2]float64 `json:"median"`
	Ratio   float64    `json:"ratio"`         // of the medians, after / before
	Low     float64    `json:"low,omitempty"` // bootstrap 95 % interval of the ratio; absent for single numbers
	High    float64    `json:"high,omitempty"`
	Verdict string     `json:"verdict"` // same, better, worse, higher, lower, unclear
}

// bootstraps is how often the repeats are drawn again.
const bootstraps = 4000

// direction is whether more of a metric is better (1), worse (-1) or neither (0), by what its name ends with.
func direction(path string) int {
	name := path[strings.LastIndexByte(path, '/')+1:]
	for _, w := range []string{"hit_ratio", "hits", "per_second", "per_cpu_second", "throughput", "rate", "coverage",
		"jain", "jain_of_job_hit_ratios", "part_of_full_speed"} {
		if name == w || strings.HasSuffix(name, "_"+w) {
			return 1
		}
	}
	for _, w := range []string{"miss_ratio", "loads", "loads_per_unique", "loads_over_bound", "ratio", "preps", "reads",
		"decodes", "augments", "source_reads", "source_bytes", "seconds", "makespan_seconds", "wait",
		"repeated", "lost", "foreign", "slow_downs", "p50", "p99", "p999", "max", "total", "us", "ms", "by_pass",
		"cpu_seconds", "1000_samples", "rss_bytes", "loads_sd", "both"} {
		if name == w || strings.HasSuffix(name, "_"+w) {
			return -1
		}
	}
	return 0
}

// Output is what a command of larder bench has written, and what to call it.
type Output struct {
	Name string
	JSON []byte
}

// Compare compares all numbers that two results share. An array of numbers under one name is the repeats of one
// measurement; elements of arrays of objects are matched by what names them (name, policy, system, job, cache, …),
// otherwise by place; runs of one source are repeats too. Single numbers are counts or virtual time and must be equal,
// though a change below least is called neither better nor worse; of repeats the ratio of the medians gets a bootstrap
// interval, drawn with seed. A change of medians below least (0.05 = 5 %) is not claimed.
func Compare(before, after Output, least float64, seed uint64) (*Comparison, error) {
	if !(least >= 0) || least > 10 {
		return nil, errs.New(errs.Invalid, "least", "e.g. 0.05", "a least change of %g is not possible", least)
	}
	a, orderA, err := flatten(before.Name, before.JSON)
	if err != nil {
		return nil, err
	}
	b, orderB, err := flatten(after.Name, after.JSON)
	if err != nil {
		return nil, err
	}
	c := &Comparison{Kind: "compare", Before: before.Name, After: after.Name, Least: least}
	if c.Notes, err = facts(before, after); err != nil {
		return nil, err
	}
	for _, path := range orderA {
		if _, ok := b[path]; !ok {
			c.Only = append(c.Only, path+" only in "+before.Name)
			continue
		}
		m := compare(path, a[path], b[path], least, xrand.New(seed, xrand.Hash(uint64(len(c.Metrics)))))
		switch m.Verdict {
		case "same":
			c.Same++
		case "better":
			c.Better++
		case "worse":
			c.Worse++
		case "unclear":
			c.Unclear++
		default:
			c.Changed++
		}
		c.Metrics = append(c.Metrics, m)
	}
	for _, path := range orderB {
		if _, ok := a[path]; !ok {
			c.Only = append(c.Only, path+" only in "+after.Name)
		}
	}
	if len(c.Metrics) == 0 {
		return nil, errs.New(errs.Invalid, after.Name, "compare two outputs of one command of larder bench",
			"%s and %s have no number in common", before.Name, after.Name)
	}
	return c, nil
}

func compare(path string, a, b []float64, least float64, r *xrand.Rand) Metric {
	m := Metric{Path: path, N: [2]int{len(a), len(b)}, Median: [2]float64{median(a), median(b)}}
	m.Ratio = ratio(m.Median[1], m.Median[0])
	change := math.Abs(m.Ratio - 1)
	if slices.Equal(a, b) {
		m.Verdict = "same"
		return m
	}
	if len(a) > 1 && len(b) > 1 {
		m.Low, m.High = interval(a, b, r)
		if m.Low <= 1 && m.High >= 1 || change < least {
			m.Verdict = "unclear"
			return m
		}
	}
	better := direction(path)
	if change < least { // a single number that should be the same and is not, but nothing to speak of
		better = 0
	}
	switch up := m.Ratio > 1; better {
	case 0:
		m.Verdict = map[bool]string{true: "higher", false: "lower"}[up]
	case 1:
		m.Verdict = map[bool]string{true: "better", false: "worse"}[up]
	default:
		m.Verdict = map[bool]string{true: "worse", false: "better"}[up]
	}
	return m
}

// ratio is b/a where both have a meaning: equal numbers are 1, something out of nothing is as much as can be written.
func ratio(b, a float64) float64 {
	switch a {
	case b:
		return 1
	case 0:
		return math.MaxFloat64
	}
	return max(-math.MaxFloat64, min(math.MaxFloat64, b/a))
}

func median(v []float64) float64 { return sortedMedian(slices.Clone(v)) }

// sortedMedian is the median of numbers that it sorts in place.
func sortedMedian(s []float64) float64 {
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return s[n/2-1]/2 + s[n/2]/2
	}
	return s[len(s)/2]
}

// interval is the bootstrap percentile interval of the ratio of medians (Efron, Tibshirani 1993, chapter 13): 95 %.
func interval(a, b []float64, r *xrand.Rand) (low, high float64) {
	out := make([]float64, bootstraps)
	da, db := make([]float64, len(a)), make([]float64, len(b))
	for i := range out {
		for k := range da {
			da[k] = a[r.IntN(len(a))]
		}
		for k := range db {
			db[k] = b[r.IntN(len(b))]
		}
		out[i] = ratio(sortedMedian(db), sortedMedian(da))
	}
	slices.Sort(out)
	return out[bootstraps*25/1000], out[bootstraps*975/1000-1]
}

// Limits of a comparison.
const (
	maxMetrics = 1 << 17
	maxDepth   = 64
)

// facts compares what is known of the two results beside their numbers. Two kinds of results cannot be compared.
func facts(before, after Output) (notes []string, err error) {
	var doc [2]struct {
		Kind  string            `json:"kind"`
		Facts map[string]string `json:"facts"`
	}
	for i, raw := range [2]Output{before, after} {
		if json.Unmarshal(raw.JSON, &doc[i]) != nil {
			return nil, nil // no result of larder; its numbers can be compared all the same
		}
	}
	if a, b := doc[0].Kind, doc[1].Kind; a != "" && b != "" && a != b {
		return nil, errs.New(errs.Invalid, after.Name, "compare two outputs of one command of larder bench",
			"%s is a result of kind %.40q, %s of kind %.40q", before.Name, a, after.Name, b)
	}
	for _, k := range slices.Sorted(maps.Keys(doc[0].Facts)) {
		if a, b := doc[0].Facts[k], doc[1].Facts[k]; b != "" && a != b && k != "load when it ended" &&
			k != "xxhash64 of the file" {
			notes = append(notes, fmt.Sprintf("%s: %s before, %s after", k, plot.Clip(a, 60), plot.Clip(b, 60)))
		}
	}
	return notes, nil
}

// skipped are keys that hold no measurement, the same again, or a figure of one moment that says nothing alone.
var skipped = []string{"seed", "trace_seed", "facts", "raw", "plots", "tables", "text", "errors", "bars", "machine",
	"ratio_95", "picks_per_second", "wall_seconds", "histogram_of_powers_of_2_us", "throughput_over_time",
	"samples_by_slice"}

// derived are what an object says of its repeats, when it has those themselves.
var derived = []string{"cpu_us_per_image", "images_per_cpu_second", "larder_to_this"}

// perJob are arrays that hold a number for each job, not the repeats of one.
var perJob = []string{"job_hit_ratios", "slow_downs"}

// named are the keys that tell elements of an array apart.
var named = []string{"policy", "system", "job", "what", "scenario", "order", "cache", "path", "form", "dataset",
	"phase", "budget", "percent"}

// flatten lists the numbers of a JSON document by path, in order.
func flatten(name string, raw []byte) (values map[string][]float64, order []string, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, nil, errs.New(errs.Invalid, name, "name the output of larder bench … -o json",
			"%s: at byte %d: it is not the JSON of a result", name, dec.InputOffset()).Because(err)
	}
	f := flattening{name: name, values: map[string][]float64{}}
	err = f.walk("", doc, 0)
	return f.values, f.order, err
}

// flattening collects the numbers of a document by their paths.
type flattening struct {
	name    string
	values  map[string][]float64
	order   []string // of values
	repeats bool     // the elements of the array it is in are repeats of one another
}

func (f *flattening) add(path string, v []float64) error {
	if _, twice := f.values[path]; twice {
		if f.repeats {
			f.values[path] = append(f.values[path], v...)
		}
		return nil // else two elements of one name: the first is compared
	}
	if len(f.order) == maxMetrics {
		return errs.New(errs.ResourceExceeded, f.name, "compare smaller results", "%s: more than %d numbers", f.name,
			maxMetrics)
	}
	f.values[path] = v
	f.order = append(f.order, path)
	return nil
}

// number is the value of a JSON number; what names it in an error.
func (f *flattening) number(v json.Number, what, path string) (float64, error) {
	x, err := v.Float64()
	if err != nil {
		return 0, errs.New(errs.Invalid, f.name, "write it again", "%s: %s number at %s", f.name, what, path).Because(err)
	}
	return x, nil
}

func (f *flattening) walk(path string, v any, depth int) error {
	if depth > maxDepth {
		return errs.New(errs.Invalid, f.name, "name the output of larder bench … -o json",
			"%s: it is nested more than %d deep", f.name, maxDepth)
	}
	switch v := v.(type) {
	case json.Number:
		x, err := f.number(v, "the", path)
		if err != nil {
			return err
		}
		return f.add(path, []float64{x})
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if slices.Contains(skipped, k) || v["cpu_us_per_image_by_pass"] != nil && slices.Contains(derived, k) {
				continue
			}
			if err := f.walk(strings.TrimPrefix(path+"/"+k, "/"), v[k], depth+1); err != nil {
				return err
			}
		}
	case []any:
		return f.array(path, v, depth)
	}
	return nil
}

// array walks the elements of an array; numbers alone are repeats of one figure, but where each is of another job.
func (f *flattening) array(path string, v []any, depth int) error {
	var all []float64
	for _, x := range v {
		n, ok := x.(json.Number)
		if !ok {
			break
		}
		x, err := f.number(n, "a", path)
		if err != nil {
			return err
		}
		all = append(all, x)
	}
	last := path[strings.LastIndexByte(path, '/')+1:]
	if len(v) > 0 && len(all) == len(v) && !slices.Contains(perJob, last) {
		return f.add(path, all)
	}
	outer := f.repeats
	of := repeatsAt(path)
	for i, x := range v {
		at := path + "[" + label(x, i) + "]"
		if of {
			f.repeats, at = true, path+runLabel(x)
		}
		if err := f.walk(at, x, depth+1); err != nil {
			return err
		}
	}
	f.repeats = outer
	return nil
}

// repeatsAt reports whether the elements of the array at a path are runs of the same: those of live results, by source,
// and of make bench, by what ran.
func repeatsAt(path string) bool {
	return path == "runs" || strings.HasSuffix(path, "/runs") || strings.HasPrefix(path, "runs/")
}

// runLabel distinguishes runs that are no repeats of one another: by source, and by label unless it counts.
func runLabel(x any) string {
	m, ok := x.(map[string]any)
	if !ok {
		return ""
	}
	source, _ := m["source"].(string)
	text, _ := m["label"].(string)
	if strings.HasPrefix(text, "repeat") || text == source {
		text = ""
	}
	if parts := strings.TrimSpace(source + " " + text); parts != "" {
		return "[" + parts + "]"
	}
	return ""
}

func label(x any, i int) string {
	m, ok := x.(map[string]any)
	if !ok {
		return fmt.Sprint(i)
	}
	if name, ok := m["name"].(string); ok && name != "" { // says enough, whatever its order or policy is
		return name
	}
	var parts []string
	for _, k := range named {
		switch v := m[k].(type) {
		case string, json.Number:
			parts = append(parts, fmt.Sprint(v))
		case []any: // a split
			parts = append(parts, strings.Trim(fmt.Sprint(v...), "[]"))
		}
	}
	return cmp.Or(strings.Join(parts, ","), fmt.Sprint(i))
}
