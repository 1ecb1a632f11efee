package restore

import (
	"iter"
	"runtime"
	"sync"

	"larder/internal/engine/record"
	"larder/internal/ident"
	"larder/internal/journal"
)

// Datasets are the datasets whose names hold: of a name, the last document does, unless it removes the name. A
// document that cannot be read comes with an error.
func Datasets(documents []string) iter.Seq2[record.Dataset, error] {
	return func(yield func(record.Dataset, error) bool) {
		last := map[string]record.Dataset{}
		for _, text := range documents {
			if d, err := record.ParseDataset(text); err == nil {
				last[d.Name] = d
			}
		}
		for _, text := range documents {
			d, err := record.ParseDataset(text)
			if err == nil && last[d.Name] != d || d.Removed {
				continue
			}
			if !yield(d, err) {
				return
			}
		}
	}
}

// Steps are what is done with each job that has not ended. T is a job on its way.
type Steps[T any] struct {
	Open func(*journal.JobState) (T, error)
	Read func(T) error
	Put  func(T) error
	// Reserve is called for a job that ended: its id is not to be used again.
	Reserve func(ident.JobID)
	// Failed is called for a job that could not be restored. Its error ends All.
	Failed func(*journal.JobState, error) error
}

// returning is a job on its way.
type returning[T any] struct {
	state *journal.JobState
	job   T
	ready chan struct{} // closed when job was read, or err is set
	err   error
}

// All restores jobs, which are ordered by their ids. It returns when all reading has ended.
func All[T any](jobs []*journal.JobState, s Steps[T]) error {
	var all []*returning[T]
	var reading sync.WaitGroup
	defer reading.Wait()
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, js := range jobs {
		r := &returning[T]{state: js, ready: make(chan struct{})}
		all = append(all, r)
		if js.Ended {
			continue
		}
		if r.job, r.err = s.Open(js); r.err != nil {
			close(r.ready)
			continue
		}
		reading.Go(func() { // beside what Put does with the jobs before
			defer close(r.ready)
			places <- struct{}{}
			defer func() { <-places }()
			r.err = s.Read(r.job)
		})
	}
	for _, r := range all {
		js := r.state
		if js.Ended {
			s.Reserve(js.ID)
			continue
		}
		<-r.ready
		err := r.err
		if err == nil {
			err = s.Put(r.job)
		}
		*r = returning[T]{} // it may be large
		if err == nil {
			continue
		}
		if err := s.Failed(js, err); err != nil {
			return err
		}
	}
	return nil
}
