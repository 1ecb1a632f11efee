package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// TestExplain: parts of a whole add up to it, neighbours are found under any name of the dataset, and only those that
// live count.
func TestExplain(t *testing.T) {
	job := func(id uint32, name, dataset, prefix string, group uint32) *larderv1.Job {
		return &larderv1.Job{Id: id, Spec: &larderv1.JobSpec{Name: name, Dataset: dataset},
			State: larderv1.JobState_JOB_STATE_LIVE, Prefix: prefix, ShareGroup: group,
			Counters: &larderv1.Counters{}}
	}
	me := job(1, "me", "train", "p", 3)
	me.InstanceOffset = 2
	me.Counters = &larderv1.Counters{SamplesDelivered: 80, BatchesDelivered: 8, SourceReads: 25, Decodes: 30,
		WaitSeconds: 4,
		Hits:        map[string]uint64{"encoded": 10, "decoded": 60, "augmented": 5}}
	torn := &larderv1.QuarantinedSample{Id: 9, Key: "a/9.jpg", Reason: "it is truncated", Path: "/d/a/9.jpg"}
	me.Quarantined = []*larderv1.QuarantinedSample{torn, torn, torn}
	gone := job(6, "gone", "train", "p", 3)
	gone.State = larderv1.JobState_JOB_STATE_DEAD
	all := []*larderv1.Job{me, job(2, "by-uri", "imagefolder:/data", "p", 3), job(3, "resized", "train", "q", 0),
		job(4, "else", "imagefolder:/other", "p", 0), gone}
	tiers := []*larderv1.Tier{{Form: "encoded", Budget: 100, Used: 40, Evictions: 9},
		{Form: "decoded", Budget: 1 << 20, Used: 1000 << 10, Evictions: 7}}
	said := inOneLine(t, explain(me, all, tiers, map[string]string{"train": "imagefolder:/data"}))
	for _, want := range []string{
		"Of the 80 samples it got and 20 that are on their way: 25 (25 %) were read for it, 75 (75 %) were cached: 10 " +
			"encoded, 60 decoded, 5 augmented. 30 were decoded for it.",
		"What is decoded for it serves by-uri too",
		"With resized it shares what is read",
		"It shares augmented samples with by-uri (group 3).",
		"Its epoch e has the augmentations of instance e + 2.",
		"It has waited 4.0 s for data in all, 500 ms a batch.",
		"The decoded tier is full: 1000KiB of 1MiB, 7 entries",
		"1 sample cannot be prepared, the first is a/9.jpg: it is truncated.",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in\n%s", want, said)
		}
	}
	var d strings.Builder
	if err := tableTo(&d, func(t *tabwriter.Writer) { describeJob(t, me) }); err != nil ||
		strings.Count(d.String(), "quarantined") != 1 || !strings.Contains(d.String(), "truncated (/d/a/9.jpg), 3 times") {
		t.Errorf("%v\n%s", err, d.String())
	}
	for _, not := range []string{"encoded tier is full", "else", "gone"} {
		if strings.Contains(said, not) {
			t.Errorf("%q is said in\n%s", not, said)
		}
	}
}

// TestExplainBlocks: reads of blocks are no samples.
func TestExplainBlocks(t *testing.T) {
	x := &explanation{}
	explainWork(x, &larderv1.Job{Counters: &larderv1.Counters{SamplesDelivered: 90, SourceReads: 1, Decodes: 40,
		Hits: map[string]uint64{"block": 60, "shared_block": 30, "decoded": 10}}})
	const want = "Of the 90 samples it got and 10 that are on their way: 90 (90 %) came from blocks in memory, 30 of " +
		"them from blocks read for other jobs; 1 read was made for it, 10 (10 %) were cached: 0 encoded, 10 decoded"
	if said := inOneLine(t, x); !strings.Contains(said, want) {
		t.Errorf("%q is missing in\n%s", want, said)
	}
}

// TestPartsOfSamplesAddUp: whatever is counted, the parts that larder explain names are all of the samples, and all
// that was delivered is among them.
func TestPartsOfSamplesAddUp(t *testing.T) {
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(strings.ReplaceAll(text, ",", ""), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	whole := regexp.MustCompile(`Of the ([0-9,]+) samples? it got(?: and ([0-9,]+) that are on their way)?:`)
	part := regexp.MustCompile(`([0-9,]+) \(([0-9]+) %\) (were read for|came from|were cached|were read one|were made)`)
	share := regexp.MustCompile(`([0-9]+) % (were read|were cached|were made|came)`)
	seen := map[string]int{}
	rng := xrand.New(1)
	n := func() uint64 { return rng.Uint64n(4) * rng.Uint64n(500) }
	for range 500 {
		c := &larderv1.Counters{SamplesDelivered: 1 + n(), SourceReads: n(), Hits: map[string]uint64{"encoded": n(),
			"decoded": n(), "augmented": n(), "block": n() / 9, "shared_block": n() / 9}}
		x, all := &explanation{}, &explanation{}
		explainWork(x, &larderv1.Job{Counters: c})
		explainMemory(all, &larderv1.Stats{Totals: c})
		said, ofAll := inOneLine(t, x), inOneLine(t, all)
		var sum, percent, parts uint64
		for _, m := range part.FindAllStringSubmatch(said, -1) {
			sum, percent, parts = sum+number(m[1]), percent+number(m[2]), parts+1
			seen[m[3]]++
		}
		m := append(whole.FindStringSubmatch(said), "", "", "")
		got, under := number("0"+m[1]), number("0"+m[2])
		if got != c.GetSamplesDelivered() || sum != got+under || percent+parts < 100 || percent > 100+parts {
			t.Fatalf("%v: the parts are %d and %d %%, not %d and %d: %s", c, sum, percent, got, under, said)
		}
		percent, parts = 0, 0
		for _, m := range share.FindAllStringSubmatch(ofAll, -1) {
			percent, parts = percent+number(m[1]), parts+1
		}
		if percent+parts < 100 || percent > 100+parts {
			t.Fatalf("%v: the parts of all jobs are %d %%: %s", c, percent, ofAll)
		}
	}
	if len(seen) != 5 {
		t.Errorf("said were %v only", seen)
	}
}

// TestExplainAmongUsers: a user cannot see what other users draw from, so explain does not say that they do not draw
// from his dataset.
func TestExplainAmongUsers(t *testing.T) {
	me := &larderv1.Job{Id: 1, Spec: &larderv1.JobSpec{Name: "me", Dataset: "d"}, State: larderv1.JobState_JOB_STATE_LIVE}
	twin := &larderv1.Job{Id: 2, Spec: &larderv1.JobSpec{Name: "twin", Dataset: "d"},
		State: larderv1.JobState_JOB_STATE_LIVE}
	theirs := &larderv1.Job{Id: 3, Spec: &larderv1.JobSpec{Name: "theirs"}, State: larderv1.JobState_JOB_STATE_LIVE,
		Others: true}
	ended := &larderv1.Job{Id: 4, Spec: &larderv1.JobSpec{Name: "ended"}, State: larderv1.JobState_JOB_STATE_DONE,
		Others: true}
	const hidden = "What 1 job of other users draw from is not shown"
	for name, x := range map[string]struct {
		all       []*larderv1.Job
		want, not []string
	}{
		"alone": {[]*larderv1.Job{me, ended}, []string{"No other job draws from its dataset"}, []string{"other users"}},
		"theirs": {[]*larderv1.Job{me, theirs, ended}, []string{"No other job that you may see draws from its dataset.",
			hidden}, []string{"what it saves"}},
		"both": {[]*larderv1.Job{me, theirs, twin}, []string{"What is decoded for it serves twin too", hidden},
			[]string{"No other job"}},
	} {
		said := inOneLine(t, explain(me, x.all, nil, nil))
		for _, w := range x.want {
			if !strings.Contains(said, w) {
				t.Errorf("%s: %q is missing in\n%s", name, w, said)
			}
		}
		for _, n := range x.not {
			if strings.Contains(said, n) {
				t.Errorf("%s: %q is said in\n%s", name, n, said)
			}
		}
	}
}

// inOneLine is an explanation without its form: each run of blanks and line feeds is one blank. It checks the form.
func inOneLine(t *testing.T, x *explanation) string {
	t.Helper()
	var b strings.Builder
	if err := x.write(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestExplanation: a topic stands before its first sentence, and long sentences continue in indented lines.
func TestExplanation(t *testing.T) {
	x := &explanation{}
	x.say("job", "%s is live.", "a")
	x.say("order", "%s", strings.Repeat("word ", 20))
	x.say("order", "short")
	var b strings.Builder
	if err := x.write(&b); err != nil {
		t.Fatal(err)
	}
	words := strings.TrimSuffix(strings.Repeat("word ", 17), " ")
	want := "job    a is live.\norder  " + words + "\n         word word word\n       short\n"
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
}
