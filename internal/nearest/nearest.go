// Package nearest finds the word that a user most likely meant to type.
package nearest

import "strings"

// Word returns the word that typed is most likely a typing error of, the first of equals, or "" when none is near: at
// most a third of the letters may differ, or typed is the beginning of the word, three letters of it at the least. Case
// does not count. The work is bounded for any input.
func Word(typed string, words []string) string {
	const long = 64 // no misspelled word is longer
	typed = strings.ToLower(typed[:min(len(typed), long+1)])
	best, least := "", len(typed)+long
	for _, w := range words {
		lower := strings.ToLower(w)
		if max(len(typed), len(lower)) > long {
			continue
		}
		d := Distance(typed, lower)
		if len(typed) >= 3 && strings.HasPrefix(lower, typed) {
			d = min(d, 1)
		}
		if d < least && d <= max(1, max(len(typed), len(lower))/3) {
			best, least = w, d
		}
	}
	return best
}

// DidYouMean is the hint that names the nearest word, or all of them when none is near.
func DidYouMean(typed string, words []string) string {
	if w := Word(typed, words); w != "" {
		return "did you mean " + w + "?"
	}
	return "use one of " + strings.Join(words, ", ")
}

// Distance is how many bytes must be changed, put in, left out, or swapped with their neighbour to turn a into b
// (optimal string alignment), in time and memory of their product.
func Distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	before, prev, cur := rows[0], rows[1], rows[2]
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
