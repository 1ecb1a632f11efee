package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// mustSay fails unless exactly the lines of got hold the texts of want, in this order.
func mustSay(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i, w := range want {
		if !strings.Contains(got[i], w) {
			t.Errorf("line %d is %q, want %q in it", i, got[i], w)
		}
	}
}

func TestCompareRefusesWhatTheFileDoesNotAllow(t *testing.T) {
	file := numbers{"methods.a.T": 30, "banned.anew": 4, "words.docs": 100, "lines.old": 7}
	for name, c := range map[string]struct {
		change numbers
		want   []string
	}{
		"the same":                {numbers{}, nil},
		"a quality number rose":   {numbers{"methods.a.T": 31}, []string{"methods.a.T is 31, at most 30"}},
		"a quality number fell":   {numbers{"banned.anew": 3}, []string{"fell to 3, the file says 4: run `make counts`"}},
		"a new type is too large": {numbers{"methods.b.U": 200}, []string{"methods.b.U is 200, at most 20"}},
		"a page grew": {numbers{"words.docs": 130},
			[]string{"`Ceiling: words.docs +30: REASON`"}},
		"a page shrank":   {numbers{"words.docs": 1}, nil},
		"a new package":   {numbers{"lines.new": 5}, []string{"`Ceiling: lines.new +5: REASON`"}},
		"a new measure":   {numbers{"waits.entries": 9}, []string{"waits.entries is 9 and has no line"}},
		"a type vanished": {numbers{"methods.a.T": -1}, []string{"methods.a.T has a line, and nothing"}},
		"a package is no longer there": {numbers{"lines.old": -1},
			[]string{"lines.old has a line, and nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			measured := maps.Clone(file)
			maps.Copy(measured, c.change)
			maps.DeleteFunc(measured, func(_ string, n int) bool { return n < 0 })
			mustSay(t, compare(file, measured), c.want...)
		})
	}
}

func TestUpdateNeverRaisesQuality(t *testing.T) {
	file := numbers{"methods.a.T": 30, "methods.a.Old": 40, "methods.c.Small": 25, "banned.anew": 4, "fields.a.T": 20,
		"words.docs": 100, "lines.x": 9, "waits.entries": 3, "binary.KiB": 700}
	measured := numbers{"methods.a.T": 29, "methods.b.Old": 38, "banned.anew": 5, "fields.b.U": 21, "words.docs": 130,
		"lines.x": 8, "comments.is-what": 6}
	out, message, refused := update(file, measured)
	want := numbers{"methods.a.T": 29, "methods.b.Old": 38, "banned.anew": 4, "words.docs": 130, "lines.x": 8,
		"waits.entries": 0, "comments.is-what": 6, "binary.KiB": 700}
	if !maps.Equal(out, want) {
		t.Errorf("the file became %v, want %v", out, want)
	}
	mustSay(t, message, "Moved: methods.a.Old -> methods.b.Old", "Ceiling: words.docs +30: REASON")
	mustSay(t, refused, "banned.anew is 5, at most 4", "fields.b.U is 21, at most 15")
}

// TestWhatIsStillDeclaredDoesNotMove: a type that fell below its limit keeps its name, and leaves its number to none.
func TestWhatIsStillDeclaredDoesNotMove(t *testing.T) {
	file := numbers{"methods.a.T": 30, "parameters.client.f": 7}
	const aType, aFunction = "methods.a.T -> methods.b.U", "parameters.client.f -> parameters.b.g"
	for name, c := range map[string]struct {
		all   numbers
		moves []string
	}{
		"gone":         {numbers{}, []string{aType, aFunction}},
		"small":        {numbers{"methods.a.T": 3, "parameters.client.f": 1}, nil},
		"without any":  {numbers{"methods.a.T": 0, "parameters.client.f": 0}, nil},
		"public now":   {numbers{"arguments.client.f": 4}, []string{aType}},
		"other family": {numbers{"fields.a.T": 4}, []string{aType, aFunction}},
	} {
		t.Run(name, func(t *testing.T) {
			c.all["methods.b.U"], c.all["parameters.b.g"] = 25, 6
			var got []string
			for _, m := range likelyMoves(file, listed(c.all), c.all) {
				got = append(got, m.String())
			}
			mustSay(t, got, c.moves...)
			_, message, refused := update(file, c.all)
			mustSay(t, message, c.moves...)
			if len(refused)+len(c.moves) != 2 {
				t.Errorf("refused %q", refused)
			}
		})
	}
}

func TestParseReadsWhatFormatWrites(t *testing.T) {
	all := numbers{"words.docs": 12, "methods.internal/a.T": 30, "banned.anew": 0, "binary.KiB": 600}
	text := format(all)
	got, err := parse(text)
	if err != nil || !maps.Equal(got, all) {
		t.Fatalf("read %v, %v; want %v", got, err, all)
	}
	if before, after := strings.Index(text, "methods."), strings.Index(text, "words.docs 12"); before > after {
		t.Error("a size stands before a quality number")
	}
	for bad, want := range map[string]string{
		"words.docs":                   "no key and number",
		"<<<<<<< HEAD":                 "settle the merge",
		"words.docs -3":                "no key and number",
		"beauty.docs 3":                "no known count",
		"words.docs 3\nwords.docs 900": "two lines",
	} {
		if _, err := parse(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reading %q gave %v, want %q", bad, err, want)
		}
	}
}

func TestHistoryOfOneParent(t *testing.T) {
	before := numbers{"methods.a.T": 30, "methods.a.U": 25, "fields.a.T": 22, "banned.anew": 4, "words.docs": 100}
	for name, c := range map[string]struct {
		change  numbers // -1: removed
		message string
		want    []string
	}{
		"everything fell": {numbers{"methods.a.T": 29, "methods.a.U": -1, "banned.anew": 0, "words.docs": 1}, "", nil},
		"a rise of quality": {numbers{"banned.anew": 5}, "Ceiling: banned.anew +1: it is needed",
			[]string{"rose from 4 to 5"}},
		"a new large type": {numbers{"methods.b.V": 21}, "", []string{"methods.b.V rose from 20 to 21"}},
		"a move": {numbers{"methods.a.T": -1, "methods.b.T": 30},
			"b: move T\n\nMoved: methods.a.T -> methods.b.T\n", nil},
		"a move that grew": {numbers{"methods.a.T": -1, "methods.b.T": 31},
			"Moved: methods.a.T -> methods.b.T", []string{"methods.b.T rose from 20 to 31"}},
		"a move from a type that stays": {numbers{"methods.b.T": 30},
			"Moved: methods.a.T -> methods.b.T", []string{"methods.b.T rose"}},
		"a move to two types": {numbers{"methods.a.T": -1, "methods.b.T": 25, "methods.b.V": 25},
			"Moved: methods.a.T -> methods.b.T\nMoved: methods.a.T -> methods.b.V", []string{"methods.b.V rose"}},
		"a move to another family": {numbers{"methods.a.T": -1, "fields.b.T": 22},
			"Moved: methods.a.T -> fields.b.T", []string{"fields.b.T rose"}},
		"a ceiling with words": {numbers{"words.docs": 130}, "x\n\nCeiling: words.docs +30: a page about stores", nil},
		"a squashed ceiling": {numbers{"words.docs": 130},
			"Ceiling: words.docs +10: a page about stores\nCeiling: words.docs +20: a page about tiers", nil},
		"a ceiling without words": {numbers{"words.docs": 130}, "x", []string{"`Ceiling: words.docs +30: REASON`"}},
		"a ceiling of a wrong amount": {numbers{"words.docs": 130}, "Ceiling: words.docs +29: a page about stores",
			[]string{"rose"}},
		"a ceiling without a reason": {numbers{"words.docs": 130}, "Ceiling: words.docs +30:", []string{"rose"}},
		"a ceiling of another": {numbers{"words.docs": 130}, "Ceiling: words.changelog +30: a new page",
			[]string{"rose"}},
		"a new package": {numbers{"lines.x": 50}, "Ceiling: lines.x +50: holds the clock", nil},
		"a new public function": {numbers{"arguments.client.F": 7},
			"Ceiling: arguments.client.F +2: five are the limit", nil},
		"a new measure":  {numbers{"waits.entries": 9}, "", nil},
		"a deleted line": {numbers{"banned.anew": -1}, "", []string{"the line of banned.anew was deleted"}},
	} {
		t.Run(name, func(t *testing.T) {
			after := maps.Clone(before)
			maps.Copy(after, c.change)
			maps.DeleteFunc(after, func(_ string, n int) bool { return n < 0 })
			one := commit{hash: "0123456789abcdef", message: c.message, counts: after, parents: []numbers{before}}
			mustSay(t, judgeAll([]commit{one}, after, nil), c.want...)
		})
	}
}

func TestHistoryOfAMerge(t *testing.T) {
	base := numbers{"banned.anew": 10, "methods.a.T": 30, "words.docs": 100}
	ours := numbers{"banned.anew": 6, "methods.a.T": 30, "words.docs": 150}
	theirs := numbers{"banned.anew": 10, "methods.b.T": 30, "words.docs": 130}
	for name, c := range map[string]struct {
		merge numbers
		want  []string
	}{
		"what both changed": {numbers{"banned.anew": 6, "methods.b.T": 30, "words.docs": 180}, nil},
		"what was lowered comes back": {numbers{"banned.anew": 10, "methods.b.T": 30, "words.docs": 180},
			[]string{"banned.anew rose from 6 to 10"}},
		"a type in both places": {numbers{"banned.anew": 6, "methods.a.T": 30, "methods.b.T": 30, "words.docs": 180},
			[]string{"methods.a.T rose from 20 to 30"}},
		"more than both sides": {numbers{"banned.anew": 6, "methods.b.T": 30, "words.docs": 181},
			[]string{"`Ceiling: words.docs +1: REASON`"}},
	} {
		t.Run(name, func(t *testing.T) {
			one := commit{hash: "0123456789abcdef", counts: c.merge, parents: []numbers{ours, theirs}, base: base}
			mustSay(t, judgeAll([]commit{one}, c.merge, nil), c.want...)
		})
	}
	old := commit{counts: ours, parents: []numbers{ours, nil}}
	mustSay(t, judgeAll([]commit{old}, ours, nil)) // a branch from before the file
}

func TestABreachIsForgivenWhenTheNumberIsBack(t *testing.T) {
	at := func(hash string, parent, counts numbers, message string) commit {
		return commit{hash: hash, message: message, counts: counts, parents: []numbers{parent}}
	}
	words := func(n int) numbers { return numbers{"words.docs": n, "banned.anew": 4} }
	raised := at("1", words(100), words(150), "")
	mustSay(t, judgeAll([]commit{raised}, words(150), nil), "commit 1")
	mustSay(t, judgeAll([]commit{raised}, words(100), nil))

	back := at("2", words(150), words(100), "")
	again := at("3", words(100), words(150), "Ceiling: words.docs +50: a page about stores")
	history := []commit{again, back, raised}
	mustSay(t, judgeAll(history, words(150), func(c, earlier string) bool { return c > earlier }))
	mustSay(t, judgeAll(history, words(150), func(string, string) bool { return false }), "commit 1")

	gone := at("1", words(100), nil, "")
	mustSay(t, judgeAll([]commit{gone}, nil, nil), "counts.txt was deleted")
	anew := words(100)
	anew["banned.anew"] = 9
	mustSay(t, judgeAll([]commit{at("2", nil, anew, ""), gone}, anew, func(string, string) bool { return true }),
		"counts.txt was deleted")
	mustSay(t, judgeAll([]commit{at("2", nil, words(99), ""), gone}, words(99), func(string, string) bool { return true }))
}

func TestPendingNamesTheLinesOfTheNextCommit(t *testing.T) {
	head := numbers{"methods.a.T": 30, "banned.anew": 4, "words.docs": 100}
	now := numbers{"methods.b.T": 30, "banned.anew": 5, "words.docs": 140, "fields.b.T": 16}
	problems, lines := pending(head, now, now)
	mustSay(t, problems, "banned.anew rose from 4 to 5", "fields.b.T rose from 15 to 16")
	mustSay(t, lines, "Moved: methods.a.T -> methods.b.T", "Ceiling: words.docs +40: REASON")
	all := maps.Clone(now)
	all["methods.a.T"] = 20
	problems, lines = pending(head, now, all)
	mustSay(t, problems, "banned.anew rose from 4 to 5", "fields.b.T rose from 15 to 16", "methods.b.T rose from 20 to 30")
	mustSay(t, lines, "Ceiling: words.docs +40: REASON")
	problems, lines = pending(nil, numbers{"banned.anew": 5}, nil)
	mustSay(t, slices.Concat(problems, lines))
}
