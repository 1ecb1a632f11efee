package main

import (
	"fmt"
	"strconv"
	"strings"
)

const header = `# What may not grow unnoticed: one number a line. "make counts" writes it, "make check" checks it.
# Quality numbers may only fall, and stand here exactly. A raised one stays red, committed or not, until it is lowered.
# Size numbers are ceilings. A commit that raises one has a line in its message: "Ceiling: words.docs +1200: REASON".
# What is renamed keeps its number if the message has the line "Moved: OLD KEY -> NEW KEY". A new line is a rise.
# Generated code is not counted; types, functions and lines are counted without tests.
# internal/tools/counts/doc.go has the rules in full.
`

// parse reads a file of counts.
func parse(text string) (numbers, error) {
	out := numbers{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, number, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("line %d: %q is no key and number: settle the merge, or run `make counts`", i+1, line)
		}
		if _, err := familyOf(key); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("line %d: %s has two lines: keep the smaller number", i+1, key)
		}
		out[key] = n
	}
	return out, nil
}

// format writes what parse reads.
func format(all numbers) string {
	var b strings.Builder
	b.WriteString(header)
	last := ""
	for _, key := range sorted(all) {
		if f := ruleOf(key); f.name != last {
			kind := "quality"
			if f.size {
				kind = "size"
			}
			fmt.Fprintf(&b, "\n# %s: %s\n", kind, f.what)
			last = f.name
		}
		fmt.Fprintf(&b, "%s %d\n", key, all[key])
	}
	return b.String()
}
