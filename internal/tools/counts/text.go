package main

import (
	"regexp"
	"strings"
)

// phrases are banned in comments, strings and pages. A hyphen stands for white space.
var phrases = []string{"goes-on", "nobody", "for-ever", "at-hand", "anew", "all-the-same", "what-is-that"}

var patterns = func() map[string]*regexp.Regexp {
	out := map[string]*regexp.Regexp{}
	for _, p := range phrases {
		expr := `(?i)\b` + strings.ReplaceAll(p, "-", `\s+`) + `\b`
		if p == "what-is-that" { // with other words of the same sentence between
			expr = `(?i)\bwhat\s+is\b[^.;:!?]*\bthat\b`
		}
		out[p] = regexp.MustCompile(expr)
	}
	return out
}()

// countPhrases adds the uses of banned phrases in a comment, a string or a page.
func countPhrases(into numbers, text string) {
	for p, re := range patterns {
		into["banned."+p] += len(re.FindAllStringIndex(text, -1))
	}
}

var isWhat = regexp.MustCompile(`^(\S+ )?\S+ (is|are) what\b`)

// countIsWhat adds a comment that begins with a name and `is what`.
func countIsWhat(into numbers, comment string) {
	if isWhat.MatchString(strings.TrimSpace(comment)) {
		into["comments.is-what"]++
	}
}

var (
	glossaryNote = regexp.MustCompile(`\*([^*\n]+)\*\s*\(`)
	glossaryRow  = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|`)
	secondOf     = regexp.MustCompile(`; or\b|\(2\)|\b2\. |\bsecond meaning\b`)
)

// twoMeanings returns the words of a glossary that have two meanings: those that its first paragraphs name (a word in
// italics, before its meanings in parentheses), those that have two rows, and those whose row gives two meanings
// ("...; or ...", numbers, "second meaning").
func twoMeanings(page string) []string {
	var out []string
	found := map[string]bool{}
	add := func(word string) {
		if word = strings.TrimSpace(word); !found[word] {
			found[word] = true
			out = append(out, word)
		}
	}
	intro, _, _ := strings.Cut(page, "\n## ")
	for _, m := range glossaryNote.FindAllStringSubmatch(intro, -1) {
		add(m[1])
	}
	rows := map[string]int{}
	for _, m := range glossaryRow.FindAllStringSubmatch(page, -1) {
		if m[1] == "word" {
			continue
		}
		for word := range strings.SplitSeq(m[1], ",") {
			word = strings.TrimSpace(word)
			if rows[word]++; rows[word] > 1 {
				add(word)
			}
		}
		if secondOf.MatchString(m[2]) {
			add(m[1])
		}
	}
	return out
}

// entries counts the lines of a list that hold something else than a comment.
func entries(list string) int {
	n := 0
	for line := range strings.SplitSeq(list, "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}
