package coordinator

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// tracedWorlds names the worlds of testdata, and for each what its text must have to show what it is there for: the
// commands, and the decisions that follow from them.
var tracedWorlds = []struct {
	file  string
	kind  string
	shows []string
}{
	{"register", "register", []string{"register lr", "record: job lr", "answer: registered", "attach lr", "start lr"}},
	{"pick", "pick", []string{"order=stratified", "record: b epoch 0 step", "fill samples"}},
	{"flight", "join a flight: two jobs, one load", []string{"for a: read, decode", "into a epoch 0 step 0",
		"into b epoch 0 step 0: augment as instance 0, from the working copy", "discard the working copy"}},
	{"inplace", "in place", []string{"into lr epoch 0 step", "keep decoded"}},
	{"encoded", "encoded tier", []string{"keep encoded", "for b: take the encoded copy"}},
	{"evict", "evict", []string{"keep decoded", "evict decoded"}},
	{"lost", "a cache is lost", []string{"lose samples=", "> lost: sample", "for lr: read, decode"}},
	{"cut", "cut and reconnect", []string{"cut lr", "reconnect lr step=1", ", again"}},
	{"cut-planned", "cut before a batch is ready", []string{"work first=1", "cut lr", "reconnect lr step=0"}},
	{"takeover", "another client", []string{"die lr", "attach lr", "returns to the epoch", "within the lease"}},
	{"refused", "refuse", []string{"refuse: job lr exists already", "refuse: rank 0 of job lr is held", "has replaced"}},
	{"restart", "restart", []string{"restart\n", "lr is restored", "reconnect lr step=2"}},
	{"restart-records", "restart before a record", []string{"hold records", "restart\n", "lr is restored"}},
	{"resume", "resume", []string{"kill old", "resumes=old step=2", "an earlier job had samples"}},
	{"resume-later", "resume in a later epoch", []string{"resumes=old epoch=1 step=1", "an earlier job had samples"}},
	{"bad", "bad sample", []string{"spoil samples", "> failed: sample", "is bad: it is broken", "without the bad"}},
	{"quarantine", "quarantine, substitute", []string{"on-error=substitute", "record: sample 2 of other is bad"}},
	{"share", "share group", []string{" share ", "for a: augment as instance 1", "into b epoch 1 step 0: copy"}},
	{"blocks", "blocks", []string{"order=blocks", "read block", "take from block", "drop block"}},
	{"blocks-share", "blocks of two jobs", []string{"into memory for a", "into memory for b", "drop block"}},
	{"blocks-restart", "blocks, restart", []string{"order=blocks", "restart\n", "for lr: read, decode", "read block"}},
	{"given", "a given order", []string{" given\n", "give lr", "refuse: ", "\nend\n"}},
	{"given-restart", "a given order, restart", []string{" given\n", "restart\n", "give lr first=1"}},
	{"outage", "outage", []string{"does not answer", "to try its place", "a place answers again"}},
	{"resize", "resize", []string{"resize decoded=2", "evict decoded", "tier decoded: 1200 bytes"}},
	{"ranks", "two ranks", []string{"ranks=2", "deliver lr/0", "deliver lr/1"}},
	{"ranks-step", "two ranks in step", []string{"even on-error=substitute", "is dealt to all ranks"}},
	{"kill", "kill", []string{"kill a", "returns to the epoch", "a has ended", "for b: read, decode"}},
	{"leave", "leave", []string{"leave lr/0", "returns to the epoch", "its client left"}},
	{"drain", "drain", []string{"drain lr", "the end of lr: drained"}},
	{"full", "full queue, credits", []string{"in-flight=2", "release slow"}},
	{"epochs", "end of an epoch, the next one", []string{"record: epoch 1 of lr", "end epoch 0", "start lr epoch=2"}},
	{"subset", "subset", []string{"subset lr", "another subset of lr from epoch 1 on", "answer: from epoch 1 on"}},
	{"drop-last", "drop_last, even", []string{"drop-last", " even ", "3 dropped of 11", "1 dropped of 11"}},
	{"invisible", "an invisible job", []string{"order=sequential", "order=stratified", "evict decoded"}},
	{"invisible-alone", "beside no invisible job", []string{"order=stratified"}},
	{"pause", "pause", []string{"pause lr", "unpause lr", "live, paused"}},
	{"idle", "idle", []string{"idle=1m", "nothing was heard of its client", "within the lease"}},
}

// TestTraces compares what the Core decides in the worlds of testdata with what it decided when they were recorded.
// After a change of decisions on purpose, record them again and read the diff:
//
//	go test -tags turbo ./internal/coordinator -run TestTraces -rewrite
func TestTraces(t *testing.T) {
	for _, w := range tracedWorlds {
		t.Run(w.file, func(t *testing.T) {
			datadriven.RunTest(t, filepath.Join("testdata", w.file+".txt"), newTrace().play)
		})
	}
}

// TestTracesAreReadable: each world is in the list and shows what it is there for, in a text that one reads at once.
func TestTracesAreReadable(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(tracedWorlds) || len(files) < 20 {
		t.Errorf("%d worlds are recorded, %d are listed; at least 20 are to be", len(files), len(tracedWorlds))
	}
	opaque := regexp.MustCompile(`0x[0-9a-f]{2,}|[0-9a-f]{12,}|%!|coordinator\.|map\[|&\{`)
	kinds := map[string]bool{}
	for _, w := range tracedWorlds {
		text := recordedTrace(t, w.file)
		if kinds[w.kind] {
			t.Errorf("two worlds show: %s", w.kind)
		}
		kinds[w.kind] = true
		for _, s := range w.shows {
			if !strings.Contains(text, s) {
				t.Errorf("%s is to show %s, and does not have %q", w.file, w.kind, s)
			}
		}
		head, _, _ := strings.Cut(text, "\n\n")
		if !strings.HasPrefix(head, "# ") || !regexp.MustCompile(`(?m)^# Rules?: `).MatchString(head) {
			t.Errorf("%s does not begin with a comment that says what it shows, and by which rule", w.file)
		}
		if n := strings.Count(text, "\n"); n < 30 || n > 150 {
			t.Errorf("%s has %d lines, 30 to 150 are read at once", w.file, n)
		}
		if bad := opaque.FindString(text); bad != "" {
			t.Errorf("%s has %q, which is no word", w.file, bad)
		}
	}
}

// TestAnInvisibleJobChangesNoOrder: beside a job in the order of the dataset, a shuffled job is delivered what it is
// delivered alone.
func TestAnInvisibleJobChangesNoOrder(t *testing.T) {
	delivered := func(file string) (out []string) {
		for l := range strings.Lines(recordedTrace(t, file)) {
			if strings.HasPrefix(l, "deliver lr ") {
				out = append(out, l)
			}
		}
		return out
	}
	beside, alone := delivered("invisible"), delivered("invisible-alone")
	if len(alone) != 3 || !slices.Equal(beside, alone) {
		t.Errorf("beside the other job:\n%v\nalone:\n%v", beside, alone)
	}
}

func recordedTrace(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
