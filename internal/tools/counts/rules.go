package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// numbers holds one number for each key. A key begins with the name of its family and a dot.
type numbers map[string]int

// family is a group of numbers under one rule.
type family struct {
	name  string
	what  string // for a reader of the file
	size  bool   // a ceiling that a commit may raise with words; otherwise the number may only fall
	limit int    // what is not above it is not listed
	fixed bool   // its keys are known to this program; a line may not vanish
}

var families = []family{
	{name: "banned", fixed: true, what: "uses of a phrase in comments, strings and pages"},
	{name: "comments", fixed: true, what: "comments that begin with a name and `is what`"},
	{name: "fields", limit: 15, what: "fields of a struct, attributes of a Python class; listed above 15"},
	{name: "glossary", fixed: true, what: "words of docs/glossary.md with two meanings"},
	{name: "interfaces", limit: 3, what: "interfaces that a package declares; listed above 3"},
	{name: "methods", limit: 20, what: "methods of a type or class; listed above 20"},
	{name: "parameters", limit: 5, what: "parameters of a function that is not public; listed above 5"},
	{name: "waits", fixed: true, what: "entries of internal/archtest/testdata/waits.txt"},
	{name: "arguments", limit: 5, size: true, what: "arguments of a public function (Go client, Python); listed above 5"},
	{name: "binary", size: true, what: "bin/larder in KiB: at most 500 KiB above what it was, in steps of 100"},
	{name: "lines", size: true, what: "lines of a package without tests"},
	{name: "words", size: true, what: "words of Markdown: CHANGELOG.md, and README.md, CONTRIBUTING.md and docs"},
}

// familyOf finds the rule of a key.
func familyOf(key string) (family, error) {
	name, rest, _ := strings.Cut(key, ".")
	for _, f := range families {
		if f.name == name && rest != "" {
			return f, nil
		}
	}
	return family{}, fmt.Errorf("%q is no known count: keys begin with one of %s", key, familyNames())
}

func familyNames() string {
	var names []string
	for _, f := range families {
		names = append(names, f.name+".")
	}
	return strings.Join(names, " ")
}

// ruleOf is familyOf for keys that were parsed or measured.
func ruleOf(key string) family {
	f, _ := familyOf(key)
	return f
}

// listed drops what is not above the limit of its family.
func listed(all numbers) numbers {
	out := numbers{}
	for key, n := range all {
		if f := ruleOf(key); f.fixed || n > f.limit {
			out[key] = n
		}
	}
	return out
}

// sorted returns the keys in the order of the file: family by family, then by name.
func sorted(all numbers) []string {
	rank := map[string]int{}
	for i, f := range families {
		rank[f.name] = i
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank[ruleOf(a).name], rank[ruleOf(b).name]), cmp.Compare(a, b))
	})
}

// move says that the number of one key belongs to another from now on.
type move struct{ from, to string }

func (m move) String() string { return fmt.Sprintf("Moved: %s -> %s", m.from, m.to) }

// declares says whether a tree still has what a key counts, listed or not. all holds what was measured of it.
func declares(all numbers, key string) bool {
	name, rest, _ := strings.Cut(key, ".")
	families := []string{name}
	if name == "parameters" || name == "arguments" { // a function that became public, or is so no longer
		families = []string{"parameters", "arguments"}
	}
	return slices.ContainsFunc(families, func(f string) bool {
		_, is := all[f+"."+rest]
		return is
	})
}

// likelyMoves pairs each new quality key with a vanished one of its family whose number was no smaller. What all still
// declares has not vanished. Of several it takes one of the same last name, otherwise the smallest. The committer
// confirms it with the line `Moved:`.
func likelyMoves(before, after, all numbers) []move {
	var out []move
	used := map[string]bool{}
	for _, key := range sorted(after) {
		f := ruleOf(key)
		if _, known := before[key]; known || f.size || f.fixed {
			continue
		}
		var best string
		for _, old := range sorted(before) {
			_, stays := after[old]
			if stays || declares(all, old) || used[old] || ruleOf(old).name != f.name || before[old] < after[key] {
				continue
			}
			if best == "" || lastName(old) == lastName(key) ||
				lastName(best) != lastName(key) && before[old] < before[best] {
				best = old
			}
		}
		if best != "" {
			used[best] = true
			out = append(out, move{best, key})
		}
	}
	return out
}

func lastName(key string) string { return key[strings.LastIndexAny(key, "./")+1:] }

// compare says in which lines the file differs from what was measured in a way that the rules refuse.
func compare(file, measured numbers) []string {
	var out []string
	for _, key := range sorted(measured) {
		n, f := measured[key], ruleOf(key)
		allowed, known := file[key]
		if !known {
			allowed = f.limit
		}
		switch {
		case n > allowed && f.size:
			out = append(out, fmt.Sprintf("%s is %d, its ceiling is %d: make it smaller, or run `make counts` and commit with "+
				"the line %#q", key, n, allowed, ceiling(key, n-allowed)))
		case f.fixed && !known:
			out = append(out, fmt.Sprintf("%s is %d and has no line: run `make counts`", key, n))
		case n > allowed:
			out = append(out, tooMany(key, n, allowed))
		case n < allowed && !f.size:
			out = append(out, fmt.Sprintf("%s fell to %d, the file says %d: run `make counts`", key, n, allowed))
		}
	}
	for _, key := range sorted(file) {
		if _, known := measured[key]; !known && key != binaryKey {
			out = append(out, fmt.Sprintf("%s has a line, and nothing of that name is above %d: run `make counts`",
				key, ruleOf(key).limit))
		}
	}
	return out
}

func tooMany(key string, n, allowed int) string {
	return fmt.Sprintf("%s is %d, at most %d are allowed: this number may only fall (%s)",
		key, n, allowed, ruleOf(key).what)
}

// update brings the file to what was measured without raising a quality number. It returns the new content, the lines
// that the commit's message needs, and what it refused.
func update(file, all numbers) (out numbers, message, refused []string) {
	out = numbers{}
	measured := listed(all)
	moved := map[string]move{}
	for _, m := range likelyMoves(file, measured, all) {
		moved[m.to] = m
	}
	for _, key := range sorted(measured) {
		n, f := measured[key], ruleOf(key)
		old, known := file[key]
		m, isMove := moved[key]
		switch {
		case f.size:
			out[key] = n
			if old = max(old, f.limit); n > old {
				message = append(message, ceiling(key, n-old))
			}
		case isMove:
			out[key] = n
			message = append(message, m.String())
		case f.fixed && !known: // a new measure starts at its number
			out[key] = n
		case !known || n > old:
			refused = append(refused, tooMany(key, n, max(old, f.limit)))
			if known {
				out[key] = old
			}
		default:
			out[key] = n
		}
	}
	for key, old := range file {
		if _, is := measured[key]; is {
			continue
		}
		switch f := ruleOf(key); {
		case key == binaryKey:
			out[key] = old
		case f.fixed:
			out[key] = 0
		}
	}
	return out, message, refused
}
