package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// commit is a commit that changed the file of counts.
type commit struct {
	hash, subject, message string
	counts                 numbers         // nil: it has no such file
	parents                []numbers       // what its parents have
	base                   numbers         // what the parents of a merge had in common
	declared               map[string]bool // of the old keys that its message moves: those that its tree still declares
}

var (
	ceilingLine = regexp.MustCompile(`(?m)^Ceiling: (\S+) \+(\d+): (\S.{7,})$`)
	movedLine   = regexp.MustCompile(`(?m)^Moved: (\S+) -> (\S+)\s*$`)
)

// said holds the lines about counts in the message of a commit.
type said struct {
	ceilings numbers           // by how much a ceiling rises
	moved    map[string]string // new keys to old ones
	declared map[string]bool   // old keys that cannot move: what they count is still there
}

func sayings(message string) said {
	s := said{ceilings: numbers{}, moved: map[string]string{}}
	for _, m := range ceilingLine.FindAllStringSubmatch(message, -1) {
		n, _ := strconv.Atoi(m[2])
		s.ceilings[m[1]] += n // a squashed commit may have several lines
	}
	for _, m := range movedLine.FindAllStringSubmatch(message, -1) {
		s.moved[m[2]] = m[1]
	}
	return s
}

// breach describes a violation of the rules by one commit.
type breach struct {
	text    string
	key     string
	allowed int     // the number that would have been right
	deleted numbers // the whole file, where a commit deleted it
}

// mended says whether later numbers take the breach back.
func (b breach) mended(later numbers) bool {
	if later == nil {
		return false
	}
	if b.deleted != nil {
		return len(rises(b.deleted, later, said{})) == 0
	}
	n, known := later[b.key]
	return n <= b.allowed && (known || !ruleOf(b.key).fixed)
}

// judge returns what a commit did against the rules. The first commits that have the file may hold anything.
func judge(c commit) []breach {
	before := c.before()
	if before == nil {
		return nil
	}
	if c.counts == nil {
		return []breach{{text: countsFile + " was deleted", deleted: before}}
	}
	say := sayings(c.message)
	say.declared = c.declared
	return rises(before, c.counts, say)
}

// before holds the numbers that a commit is compared with: its parent's, or those of both sides of a merge.
func (c commit) before() numbers {
	var sides []numbers
	for _, p := range c.parents {
		if p != nil {
			sides = append(sides, p)
		}
	}
	switch len(sides) {
	case 0:
		return nil
	case 1:
		return sides[0]
	case 2:
		return merged(sides[0], sides[1], c.base)
	}
	out := sides[0]
	for _, s := range sides[1:] {
		out = merged(out, s, nil)
	}
	return out
}

// merged is the most that a merge of two sides may hold: what one side changed, or the larger number where both did.
// Where both raised a ceiling, the rises may add up.
func merged(a, b, base numbers) numbers {
	out := numbers{}
	keys := numbers{}
	for key := range a {
		keys[key] = 0
	}
	for key := range b {
		keys[key] = 0
	}
	for key := range keys {
		floor := ruleOf(key).limit
		inA, knownA := a[key]
		inB, knownB := b[key]
		common, knownBase := base[key]
		switch {
		case base != nil && knownA == knownBase && inA == common:
			if knownB {
				out[key] = inB
			}
		case base != nil && knownB == knownBase && inB == common:
			if knownA {
				out[key] = inA
			}
		default:
			most := max(inA, inB)
			if ruleOf(key).size && base != nil {
				common = max(common, floor)
				most = max(most, inA+inB-common)
			}
			out[key] = most
		}
	}
	return out
}

// rises compares two versions of the file, under what the message of the commit between them says.
func rises(before, after numbers, say said) []breach {
	var out []breach
	taken := map[string]bool{}
	for _, key := range sorted(after) {
		n, f := after[key], ruleOf(key)
		old, known := before[key]
		if old = max(old, f.limit); f.fixed && !known || n <= old && known {
			continue // a new measure starts at its number
		}
		if f.size {
			if n > old && say.ceilings[key] != n-old {
				out = append(out, breach{key: key, allowed: old, text: fmt.Sprintf(
					"%s rose from %d to %d without the line %#q in the message", key, old, n, ceiling(key, n-old))})
			}
			continue
		}
		from := say.moved[key]
		_, stays := after[from]
		stays = stays || say.declared[from]
		if was, had := before[from]; !known && had && !stays && !taken[from] && n <= was && ruleOf(from).name == f.name {
			taken[from] = true
			continue
		}
		out = append(out, breach{key: key, allowed: old,
			text: fmt.Sprintf("%s rose from %d to %d: it may only fall", key, old, n)})
	}
	for _, key := range sorted(before) {
		if _, known := after[key]; !known && ruleOf(key).fixed {
			out = append(out, breach{key: key, allowed: before[key], text: "the line of " + key + " was deleted"})
		}
	}
	return out
}

// judgeAll judges every commit. A breach is forgiven if the numbers of now, or of a commit after it, take it back.
func judgeAll(history []commit, now numbers, after func(c, earlier string) bool) []string {
	var out []string
	for _, c := range history {
		for _, b := range judge(c) {
			mended := b.mended(now) || slices.ContainsFunc(history, func(later commit) bool {
				return later.hash != c.hash && b.mended(later.counts) && after(later.hash, c.hash)
			})
			if !mended {
				out = append(out, fmt.Sprintf("commit %.12s (%s): %s. Amend the commit, or bring the number back to what it was",
					c.hash, c.subject, b.text))
			}
		}
	}
	return out
}

// pending compares the working tree with the last commit: what no message can allow, and the lines that the message of
// the next commit needs. all holds what was measured of the tree.
func pending(head, now, all numbers) (problems, lines []string) {
	if head == nil {
		return nil, nil
	}
	say := said{ceilings: numbers{}, moved: map[string]string{}}
	for _, m := range likelyMoves(head, now, all) {
		say.moved[m.to] = m.from
		lines = append(lines, m.String())
	}
	for _, key := range sorted(now) {
		if rise := now[key] - max(head[key], ruleOf(key).limit); ruleOf(key).size && rise > 0 {
			say.ceilings[key] = rise
			lines = append(lines, ceiling(key, rise))
		}
	}
	for _, b := range rises(head, now, say) {
		problems = append(problems, b.text)
	}
	return problems, lines
}

// ceiling is the line with which a commit raises a ceiling.
func ceiling(key string, rise int) string { return fmt.Sprintf("Ceiling: %s +%d: REASON", key, rise) }
