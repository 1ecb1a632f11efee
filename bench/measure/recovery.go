package measure

// Recovery is what the death of the daemon in the midst of a run did to the jobs, as their clients saw it. Times are seconds.
type Recovery struct {
	Killed float64 `json:"killed_seconds"` // since the run began
	Ready  float64 `json:"ready_seconds"`  // since the run began: the successor said that it can be used
	Down   float64 `json:"down_seconds"`   // from one to the other
	// From Ready until some client, and until every client that was training, had a batch of the successor. Clients look for it as larder.Loader does:
	// after 5 ms, then after pauses that double, up to half a second.
	First float64 `json:"first_batch_seconds"`
	All   float64 `json:"all_jobs_seconds"`
	// By the clients' own record, of all jobs; both are 0, or the run failed.
	Lost     int `json:"lost"`
	Repeated int `json:"repeated"`
	// By the account of the daemon that ran last: the finished epochs that it knows, and the samples that these lack.
	LedgerEpochs int         `json:"ledger_epochs"`
	LedgerLost   int         `json:"ledger_lost"`
	Slice        float64     `json:"slice_seconds"`
	Jobs         []Recovered `json:"jobs"`
}

// Recovered is one job of a Recovery.
type Recovered struct {
	Name  string  `json:"name"`
	First float64 `json:"first_batch_seconds"` // from Ready until the last of its clients had a batch again; 0 = none was training
	Still float64 `json:"still_seconds"`       // longest time of a client between its last batch of the dead daemon and the first one of the successor
	// Samples that its clients took in each slice since the run began.
	Samples []int `json:"samples_by_slice"`
}

// Merge makes slices longer, a whole number of times, until there are at most so many.
func (r *Recovery) Merge(most int) {
	for {
		longest := 0
		for i := range r.Jobs {
			longest = max(longest, len(r.Jobs[i].Samples))
		}
		if most < 1 || longest <= most {
			return
		}
		r.Slice *= 2
		for i := range r.Jobs {
			was := r.Jobs[i].Samples
			now := make([]int, (len(was)+1)/2)
			for k, n := range was {
				now[k/2] += n
			}
			r.Jobs[i].Samples = now
		}
	}
}
