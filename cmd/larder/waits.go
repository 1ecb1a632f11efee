package main

import (
	"fmt"
	"slices"

	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

// waitsFor is what a job waits for in a word or two, and for how long where it does so now.
func waitsFor(w *larderv1.Wait) string {
	word := w.GetCause()
	switch {
	case word == "":
		return "-"
	case len(w.GetRanks()) > 0:
		word = fmt.Sprintf("rank %d", w.GetRanks()[0])
		if n := len(w.GetRanks()) - 1; n > 0 {
			word += fmt.Sprintf(" and %d more", n)
		}
	}
	if s := w.GetSeconds(); s >= .05 {
		word += fmt.Sprintf(" %.1fs", s)
	}
	return word
}

// waitText is the same in a sentence without its end.
func waitText(w *larderv1.Wait) string {
	if s := w.GetSeconds(); s >= .05 {
		return fmt.Sprintf("%s (it has waited %.1f s)", w.GetText(), s)
	}
	return w.GetText()
}

// rate is what a job is given a second.
func rate(j *larderv1.Job) string {
	if j.GetSamplesPerSecond() == 0 {
		return "0"
	}
	return perSecond(j.GetSamplesPerSecond())
}

// advice is what can be done about a wait; "" = nothing.
func advice(cause string) string {
	switch cause {
	case "storage":
		return "Fewer reads: let tiers hold more (larder tiers ls; larder tune says how), let jobs on the same data run at " +
			"once; or faster storage (larder profile measures it)"
	case "cores":
		return "Less decoding: let the decoded tier hold more (larder tiers ls), share=\"augmented\" for jobs of one " +
			"recipe, " +
			"ops.ToImage() and larder.normalize on the GPU; or more cores"
	case "worker":
		return "Its samples come from worker processes: give the Loader more (num_workers), cache=\"items\" where item i " +
			"is " +
			"always the same, share=\"augmented\" for jobs of one dataset, or a faster __getitem__"
	case "script":
		return "larder is ahead of the script: faster data would change nothing"
	case "rank":
		return "Every rank of a job iterates its Loader; one that only rank 0 iterates, as in a validation, is made with " +
			"rank=0, world_size=1"
	case "pause":
		return "larder jobs unpause continues it"
	case "disk":
		return "Make room on that disk; larder continues by itself"
	case "log":
		return "The disk of the state directory is slow to write (state.dir)"
	}
	return ""
}

// held reports whether a client holds a rank of a job.
func held(j *larderv1.Job) bool {
	return slices.ContainsFunc(j.GetRanks(), func(r *larderv1.RankInfo) bool { return r.GetAttached() })
}

// lives reports whether a job has not ended.
func lives(j *larderv1.Job) bool {
	return j.GetState() != larderv1.JobState_JOB_STATE_DONE && j.GetState() != larderv1.JobState_JOB_STATE_DEAD
}

// explainDaemon says of the daemon what explain says of a job.
func explainDaemon(s *larderv1.Stats) *explanation {
	x := &explanation{}
	live, absent, perSec := 0, 0, 0.0
	by := map[string][]string{}
	for _, j := range s.GetJobs() {
		if lives(j) {
			live++
			if j.GetState() != larderv1.JobState_JOB_STATE_LIVE && !held(j) {
				absent++
			}
			perSec += j.GetSamplesPerSecond()
			by[j.GetWait().GetCause()] = append(by[j.GetWait().GetCause()], j.GetSpec().GetName())
		}
	}
	if live == 0 {
		x.say("jobs", "No job lives.")
	} else {
		x.say("jobs", "Live: %s, given %s samples/s together.", plural(live, "job", "jobs"), perSecond(perSec))
	}
	if absent > 0 {
		x.say("jobs", "Without a client: %s.", plural(absent, "job", "jobs"))
	}
	if f := s.GetStateFull(); f != nil {
		x.say("state", "Nothing can be recorded, and jobs wait: %s. Fix: %s.", f.GetMessage(), f.GetHint())
	}
	l := s.GetLoad()
	x.say("cores", "%d of %d workers decode or augment at this moment; over the last second %.0f %% of the cores were "+
		"in use by them.", l.GetBusy(), l.GetWorkers(), 100*l.GetCores())
	reading := fmt.Sprintf("%s under way", plural(uint64(l.GetReads()), "read", "reads"))
	if l.GetReads() > 0 {
		reading += fmt.Sprintf(", the oldest for %.1f s", l.GetOldestRead().AsDuration().Seconds())
	}
	x.say("storage", "%s; over the last second something was being read for %.0f %% of the time.", reading,
		100*l.GetStorage())
	causes := sortedKeys(by)
	for _, c := range causes {
		names := someOf(by[c])
		switch c {
		case "":
		case "script":
			x.say("waits", "Waiting for their training scripts: %s.", names)
		default:
			x.say("waits", "Waiting for %s: %s.", causeWords[c], names)
		}
	}
	explainMemory(x, s)
	for _, c := range causes {
		if a := advice(c); a != "" {
			x.say("help", "What helps %s: %s.", someOf(by[c]), a)
		}
	}
	return x
}

// causeWords are causes as parts of a sentence.
var causeWords = map[string]string{
	"storage": "storage", "cores": "cores", "rank": "other ranks", "pause": "the end of their pause",
	"disk": "room on the disk of the state directory", "log": "the disk of the state directory",
	"order": "the order of a large subset", "client": "a client", "larder": "batches that are under way",
}

// explainMemory says what memory holds, and what came out of it.
func explainMemory(x *explanation, s *larderv1.Stats) {
	var used, budget uint64
	for _, t := range s.GetTiers() {
		used, budget = used+t.GetUsed(), budget+t.GetBudget()
	}
	x.say("memory", "%s resident, limit %s. The tiers hold %s of %s:", units.Size(s.GetRssBytes()),
		units.Size(s.GetMemoryLimit()), units.Size(used), units.Size(budget))
	for _, t := range s.GetTiers() {
		full := ""
		if t.GetUsed() > t.GetBudget()/8*7 && t.GetEvictions() > 0 {
			full = fmt.Sprintf(" (full: %s entries have left for others)", count(t.GetEvictions()))
		}
		x.say("memory", "%s %s of %s%s", t.GetForm(), units.Size(t.GetUsed()), units.Size(t.GetBudget()), full)
	}
	c := s.GetTotals()
	if h, p := c.GetHits(), sourcesOf(c); p.all > 0 {
		x.say("samples", "Of %s that jobs were to get:", plural(p.all, "sample", "samples"))
		if p.blocks > 0 {
			x.say("samples", "%s came from blocks in memory; %s of blocks and samples were made,", p.percent(p.blocks),
				plural(c.GetSourceReads(), "read", "reads"))
		} else {
			x.say("samples", "%s were read,", p.percent(p.read))
		}
		x.say("samples", "%s were cached: %s encoded, %s decoded, %s augmented.", p.percent(p.cached),
			p.percent(h["encoded"]), p.percent(h["decoded"]), p.percent(h["augmented"]))
		p.sayRest(x, p.percent(p.rest))
		x.say("samples", "%s in all.", plural(c.GetDecodes(), "decode", "decodes"))
	}
	for _, d := range s.GetDatasets() {
		if n := d.GetBadSamples(); n > 0 {
			x.say("bad", "%s of %s cannot be prepared; larder jobs describe names them.", plural(n, "sample", "samples"),
				d.GetDataset().GetName())
		}
	}
	if p := s.GetSplit(); p.GetPredicted() > 0 {
		x.say("model", "By the model of memory, jobs can get %s samples/s, limited by %s.",
			perSecond(p.GetPredicted()), p.GetBinding())
	}
	if why := s.GetSplit().GetWhy(); why != "" {
		x.say("model", "Why the tiers are as large as they are: %s.", why)
	}
}
