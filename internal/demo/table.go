package demo

import (
	"fmt"
	"io"
	"strings"

	"larder/internal/units"
)

// WriteText prints the result for people.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	u, s := &r.Unshared, &r.Shared
	fmt.Fprintf(&b, "\n%-22s %12s %12s\n", "", "unshared", "shared")
	row := func(name string, a, c uint64, same string) {
		verdict := same
		if a > c {
			verdict = times(float64(a), float64(c)) + " less work"
		} else if a < c {
			verdict = times(float64(c), float64(a)) + " more work"
		}
		fmt.Fprintf(&b, "%-22s %12s %12s   %s\n", name, count(a), count(c), verdict)
	}
	row("source reads", u.SourceReads, s.SourceReads, "no difference")
	row("images decoded", u.Decodes, s.Decodes, "no difference")
	own := "the same: every job keeps its own random crops"
	if r.Share == "augmented" {
		own = "no difference"
	}
	row("augments", u.Augments, s.Augments, own)
	seconds := func(name string, a, c float64) {
		verdict := "no difference"
		switch {
		case c < a*(1-sameTime):
			verdict = times(a, c) + " faster"
		case c > a*(1+sameTime):
			verdict = times(c, a) + " slower"
		}
		if name != "seconds" {
			verdict = strings.NewReplacer("faster", "less", "slower", "more").Replace(verdict)
		}
		fmt.Fprintf(&b, "%-22s %12.1f %12.1f   %s\n", name, a, c, verdict)
	}
	seconds("processor seconds", u.CPUSeconds, s.CPUSeconds)
	seconds("seconds", u.Seconds, s.Seconds)
	fmt.Fprintf(&b, "(%d jobs, %s of %s images wanted by at least one of them, %d epochs; %s of cache memory in all, "+
		"both times)\n\n",
		len(s.Jobs), count(r.Unique), count(r.Dataset.Samples), r.Epochs, units.Size(r.MemoryBytes))

	answer := "yes"
	if !r.Audit.OK() {
		answer = "NO"
	}
	fmt.Fprintf(&b, "each job saw every sample exactly once per epoch: %s, %d of %d job-epochs\n", answer, r.Audit.Good,
		r.Audit.JobEpochs)
	for i, p := range r.Audit.Problems {
		if i == 10 {
			fmt.Fprintf(&b, "  … and %d more\n", len(r.Audit.Problems)-i)
			break
		}
		fmt.Fprintf(&b, "  %s\n", p)
	}
	for _, v := range r.Verdict {
		fmt.Fprintln(&b, v)
	}
	if r.Report != "" {
		fmt.Fprintf(&b, "report: %s\n", r.Report)
	}
	if r.Kept != "" {
		fmt.Fprintf(&b, "kept: %s (images, configurations and logs)\n", r.Kept)
	}
	b.WriteString("next: larder run -- python train.py\n")
	b.WriteString("--- paste into your script " + strings.Repeat("-", 49) + "\n" + Snippet)
	_, err := io.WriteString(w, b.String())
	return err
}

// Snippet is what a training script needs.
const Snippet = `import larder
train = larder.Loader("imagefolder:/your/data", batch_size=64, shuffle=True,
                      transform=[larder.ops.RandomResizedCrop(224), larder.ops.HFlip()])
for images, labels in train: ...
`
