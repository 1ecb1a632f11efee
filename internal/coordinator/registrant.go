package coordinator

import "larder/jobs"

// registrant begins the lease of a job that no client ever attached to, when the process that registered it is gone,
// and ends it when another process registers the job.
func registrant(lc *lifecycle, e Registrant) {
	s := lc.roster.streams[e.Job]
	if s == nil || !jobs.Unattached(s.job) {
		return // its clients have leases of their own
	}
	switch lost := s.job.State == jobs.Suspect; {
	case e.Lives && lost:
		lc.jobs.Await(s.job)
	case !e.Lives && !lost:
		lc.jobs.Suspect(s.job, lc.step.now)
	}
}

// giveWay makes room for a job where all places are taken: of the jobs that no client ever attached to, and whose
// registrants are gone, the one whose lease ends first has to go.
func giveWay(lc *lifecycle) {
	var first *jobs.Job
	for j := range lc.jobs.All() {
		if j.State == jobs.Suspect && jobs.Unattached(j) && (first == nil || j.Lease.Before(first.Lease)) {
			first = j
		}
	}
	if first != nil {
		lc.endJob(lc.roster.streams[first.ID], jobs.Dead, "the process that registered it ended before its first batch, "+
			"and another job needed its place")
	}
}
