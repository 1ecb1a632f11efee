// Package report writes benchmarks as one HTML file that needs no network: pictures as inline SVG, tables, the facts of
// machine and seeds, and all raw data embedded, so that a reader who doubts a picture can draw another. It also
// compares two results (compare.go).
//
// It measures nothing and knows no daemon; the commands of larder bench write the JSON that it reads.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/htmlreport"
	"larder/internal/plot"
	"larder/internal/units"
)

// Result is what any command of larder bench may write beside its own figures so that a report can show it.
type Result struct {
	// policy, systems, sampler, prep, live, tiers, bars, accuracy, reproduction, compare
	Kind   string             `json:"kind"`
	Title  string             `json:"title,omitempty"` // of its part of the report
	Facts  map[string]string  `json:"facts,omitempty"` // machine, seeds, versions, hashes of configuration
	Text   []string           `json:"text,omitempty"`  // paragraphs
	Plots  []plot.Plot        `json:"plots,omitempty"`
	Tables []htmlreport.Table `json:"tables,omitempty"`
}

// Named is a Result from a file.
type Named struct {
	Name string // of the file
	Raw  []byte // its JSON
	Result
}

// Wanted are the pictures that a benchmark of a cache should show, by number, and what they need.
var Wanted = []struct{ Title, Needs string }{
	{"throughput of each job over time", "larder bench live or sim"},
	{"hits by tier", "larder bench live or sim"},
	{"hits, loads and throughput against cache size", "larder bench policy, with --systems for throughput"},
	{"splits of memory: predicted beside measured", "bench/py/tiers.py"},
	{"speed-up against the number of jobs", "larder bench policy --systems for several numbers of jobs"},
	{"redundancy: reads, decodes and augments per unique sample", "larder bench policy, live or sim"},
	{"what each job spent its time on", "larder bench live or sim"},
	{"distribution of the wait for a batch", "larder bench live or sim"},
	{"time to first batch, first epoch", "larder bench live or sim"},
	{"processor time and memory", "larder bench live or prep"},
	{"fairness between jobs of unlike speed", "larder bench policy --systems, live or sim"},
	{"quality of orders", "larder bench sampler, live or sim"},
	{"recovery after a kill", "larder bench live of a scenario with kill"},
	{"accuracy, strict beside opportunistic", "bench/py/accuracy.py"},
}

// Limits of what a report reads.
const (
	maxFile  = 64 << 20
	maxFiles = 1000
)

// ReadDir reads every *.json of a folder that is a result of larder bench, by name; others are named in skipped. An
// unreadable folder is NOT_FOUND, damaged JSON an INVALID_ARGUMENT with the offset.
func ReadDir(dir string) (results []Named, skipped []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, errs.New(errs.NotFound, dir, "name the folder that holds the JSON of larder bench … -o json",
			"read the results").Because(err)
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		if len(results) == maxFiles {
			return nil, nil, errs.New(errs.ResourceExceeded, dir, "make reports of some of them", "more than %d results",
				maxFiles)
		}
		n, err := ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, nil, err
		}
		if n.Kind == "" {
			skipped = append(skipped, e.Name())
			continue
		}
		results = append(results, *n)
	}
	if len(results) == 0 {
		return nil, skipped,
			errs.New(errs.NotFound, dir, "e.g. larder bench policy --scenario FILE -o json > "+filepath.Join(dir, "policy.json"),
				"there are no results of larder bench in the folder")
	}
	return results, skipped, nil
}

// ReadFile reads one result; its Kind is empty when it is JSON of something else.
func ReadFile(path string) (*Named, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errs.New(errs.NotFound, path, "check the path", "read the result").Because(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "check the file and its rights", "read the result").Because(err)
	}
	if len(raw) > maxFile {
		return nil, errs.New(errs.ResourceExceeded, path, "write fewer runs into a file", "the result has more than %s",
			units.Size(int64(maxFile)))
	}
	return Parse(filepath.Base(path), raw)
}

// Parse reads the JSON of a result and makes the pictures that it does not bring.
func Parse(name string, raw []byte) (*Named, error) {
	n := &Named{Name: name, Raw: raw}
	dec := json.NewDecoder(bytes.NewReader(raw))
	var kind struct {
		Kind  string          `json:"kind"`
		Rows  json.RawMessage `json:"rows"`
		Cells json.RawMessage `json:"loads_lower_bound_windows"`
	}
	if err := dec.Decode(&kind); err != nil {
		return nil, errs.New(errs.Invalid, name, "name the output of larder bench … -o json",
			"%s: at byte %d: it is not the JSON of a result", name, dec.InputOffset()).Because(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errs.New(errs.Invalid, name, "keep one result in a file", "%s: at byte %d: something follows the result",
			name, dec.InputOffset())
	}
	if kind.Kind == "" && kind.Cells != nil {
		kind.Kind = "sampler"
	}
	if kind.Kind == "" {
		return n, nil
	}
	err := json.Unmarshal(raw, &n.Result) // what it brings itself
	if err == nil {
		switch kind.Kind {
		case "policy":
			err = n.policy()
		case "sampler":
			err = n.sampler()
		case "live":
			err = n.live()
		case "prep":
			err = n.prep()
		case "tiers":
			err = n.tiers()
		case "bars":
			err = n.bars()
		case "accuracy":
			err = n.accuracy()
		}
	}
	if err != nil {
		return nil, errs.New(errs.Invalid, name, "write it again with this version of larder",
			"%s: the result cannot be understood", name).Because(err)
	}
	n.Kind = kind.Kind
	n.fact("xxhash64 of the file", fmt.Sprintf("%016x", xxhash.Sum64(raw)))
	return n, nil
}

func (n *Named) fact(key, value string) {
	if n.Facts == nil {
		n.Facts = map[string]string{}
	}
	n.Facts[key] = value
}
