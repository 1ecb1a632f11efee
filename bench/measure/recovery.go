package measure

import "math"

// Recovery is what the death of the daemon in the midst of a run did to the jobs, as their clients saw it. Times are
// seconds.
type Recovery struct {
	Killed float64 `json:"killed_seconds"` // since the run began
	Ready  float64 `json:"ready_seconds"`  // since the run began: the successor said that it can be used
	Down   float64 `json:"down_seconds"`   // from one to the other
	// From Ready until some client, and until every client that was training, had a batch of the successor. Clients look
	// for it as larder.Loader does: after 5 ms, then after pauses that double, up to half a second.
	First float64 `json:"first_batch_seconds"`
	All   float64 `json:"all_jobs_seconds"`
	// Back is from Ready until all jobs together took 90 % of what they had taken in the two seconds before, for half a
	// second; null = they were done before, or had not trained for so long.
	Back *float64 `json:"as_fast_seconds"`
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
	Name string `json:"name"`
	// from Ready until the last of its clients had a batch again; 0 = none was training
	First float64 `json:"first_batch_seconds"`
	// longest time of a client between its last batch of the dead daemon and the first one of the successor
	Still float64 `json:"still_seconds"`
	// Samples that its clients took in each slice since the run began.
	Samples []int `json:"samples_by_slice"`
}

// Windows by which a Recovery decides that training is as fast as it was, in seconds, and how fast that is.
const (
	windowBefore = 2.0
	windowAfter  = 0.5
	asFast       = 0.9
)

// FindBack fills in Back from the slices.
func (r *Recovery) FindBack() {
	r.Back = nil
	var all []int
	for i := range r.Jobs {
		for k, n := range r.Jobs[i].Samples {
			if k == len(all) {
				all = append(all, 0)
			}
			all[k] += n
		}
	}
	mean := func(from, to int) float64 {
		sum := 0
		for _, n := range all[from:to] {
			sum += n
		}
		return float64(sum) / float64(to-from)
	}
	killed, before, after := int(r.Killed/r.Slice), int(math.Round(windowBefore/r.Slice)),
		int(math.Round(windowAfter/r.Slice))
	if killed < before || after < 1 || killed > len(all) {
		return
	}
	was := mean(killed-before, killed)
	for k := int(r.Ready / r.Slice); k+after <= len(all); k++ {
		if mean(k, k+after) >= asFast*was {
			back := max(0, float64(k)*r.Slice-r.Ready)
			r.Back = &back
			return
		}
	}
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
