package demo

import (
	"fmt"
	"slices"
)

// Audit is what the parent found in the ids that the clients say they received.
type Audit struct {
	JobEpochs int      `json:"job_epochs"` // epochs of jobs that should have been delivered, over both runs
	Good      int      `json:"good"`       // those in which every sample came exactly once, with its label
	Problems  []string `json:"problems,omitempty"`
	// Pictures were compared by their pixels; Repeats of them came to a job that had seen exactly these pixels before.
	Pictures int64 `json:"pictures_compared"`
	Repeats  int64 `json:"pictures_repeated"`
}

// OK reports whether every job saw every sample exactly once in every epoch.
func (a *Audit) OK() bool { return a.JobEpochs > 0 && a.Good == a.JobEpochs }

// epoch checks one epoch of one job. expected is ascending; labels are those of the dataset by id.
func (a *Audit) epoch(who string, expected []uint32, labels []int64, got receipt) {
	a.JobEpochs++
	if problem := compare(expected, labels, got); problem != "" {
		a.Problems = append(a.Problems, who+": "+problem)
		return
	}
	a.Good++
}

// compare returns "" when got is a permutation of expected with the right labels, else what is wrong with it.
func compare(expected []uint32, labels []int64, got receipt) string {
	if len(got.IDs) != len(got.Labels) {
		return fmt.Sprintf("%d ids came with %d labels", len(got.IDs), len(got.Labels))
	}
	seen := make([]int, len(labels))
	var strangers, repeated, mislabelled, missing []int64
	for i, id := range got.IDs {
		if id < 0 || id >= int64(len(labels)) {
			strangers = append(strangers, id)
			continue
		}
		if got.Labels[i] != labels[id] {
			mislabelled = append(mislabelled, id)
		}
		if seen[id]++; seen[id] == 2 {
			repeated = append(repeated, id)
		}
	}
	next := 0
	for id := range labels {
		want := next < len(expected) && expected[next] == uint32(id)
		if want {
			next++
		}
		switch {
		case want && seen[id] == 0:
			missing = append(missing, int64(id))
		case !want && seen[id] > 0:
			strangers = append(strangers, int64(id))
		}
	}
	text := ""
	for _, p := range []struct {
		what string
		ids  []int64
	}{
		{"never came", missing}, {"came more than once", repeated},
		{"came though the job did not ask for them", strangers}, {"came with a wrong label", mislabelled},
	} {
		if len(p.ids) == 0 {
			continue
		}
		if text != "" {
			text += "; "
		}
		slices.Sort(p.ids)
		text += fmt.Sprintf("%d samples %s (ids %v", len(p.ids), p.what, p.ids[:min(5, len(p.ids))])
		if len(p.ids) > 5 {
			text += " and more"
		}
		text += ")"
	}
	return text
}
