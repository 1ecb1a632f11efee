package jobs

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/btree"

	"larder/internal/bits"
	"larder/internal/errs"
	"larder/internal/ident"
)

// Registry holds the jobs of a daemon by id and by name, and the leases of those whose client vanished.
type Registry struct {
	lease  time.Duration
	max    int
	nextID ident.JobID
	byID   []*Job // ascending; live and lately ended
	byName map[string]*Job
	leases *btree.BTreeG[due]
}

type due struct {
	at time.Time
	id ident.JobID
}

const keepEnded = 64

// NewRegistry returns an empty registry; max bounds the jobs that live at once.
func NewRegistry(lease time.Duration, maxLive int) *Registry {
	return &Registry{
		lease: lease, max: maxLive, nextID: 1, byName: map[string]*Job{},
		leases: btree.NewG(16, func(a, b due) bool {
			if !a.at.Equal(b.at) {
				return a.at.Before(b.at)
			}
			return a.id < b.id
		}),
	}
}

// Add makes a job. A live job of the same name is an error that names it.
func (g *Registry) Add(spec Spec, member *bits.Set) (*Job, error) {
	old := g.byName[spec.Name]
	if old != nil && !old.State.Ended() {
		return nil, errs.New(errs.AlreadyExists, spec.Name, "choose another job name, or end it: larder jobs kill "+spec.Name,
			"job %s exists already (job %d, %s)", spec.Name, old.ID, old.State)
	}
	if live := g.Live(); live >= g.max {
		return nil, errs.New(errs.JobLimit, spec.Name, "end a job, or raise jobs.max in the configuration",
			"register job %s: %d jobs live and jobs.max is %d", spec.Name, live, g.max)
	}
	j := NewJob(g.nextID, spec, member)
	g.nextID++
	if old != nil { // incarnations rise across the jobs of one name, so that a client of the old one stays fenced
		for r := range min(len(j.Ranks), len(old.Ranks)) {
			j.Ranks[r].Incarnation = old.Ranks[r].Incarnation
		}
	}
	g.byID = append(g.byID, j)
	g.byName[spec.Name] = j
	g.trim()
	return j, nil
}

// Restore puts back a job of an earlier run of the daemon, with its id and incarnations; its clients have a lease to
// come back. Jobs come by ascending id.
func (g *Registry) Restore(id ident.JobID, spec Spec, member *bits.Set, ranks []ident.Incarnation, now time.Time) (*Job,
	error) {
	if id < g.nextID {
		return nil, errs.New(errs.StateDamaged, spec.Name, "register the job again",
			"restore job %s: id %d was given already", spec.Name, id)
	}
	g.nextID = id
	j, err := g.Add(spec, member)
	if err != nil {
		return nil, err
	}
	for r := range min(len(ranks), len(j.Ranks)) {
		if ranks[r] > 0 {
			j.Ranks[r] = Rank{Incarnation: ranks[r], Attaches: 1, Phase: Vanished, Asked: -1, Ended: -1}
		}
	}
	if j.Vanished() >= 0 { // else no client has come yet, and none is waited for
		g.Suspect(j, now)
	}
	return j, nil
}

// Reserve makes ids begin above id: those up to it were given in an earlier run.
func (g *Registry) Reserve(id ident.JobID) { g.nextID = max(g.nextID, id+1) }

// trim forgets the oldest ended jobs beyond keepEnded.
func (g *Registry) trim() {
	ended := len(g.byID) - g.Live()
	for i := 0; i < len(g.byID) && ended > keepEnded; {
		if j := g.byID[i]; j.State.Ended() {
			if g.byName[j.Spec.Name] == j {
				delete(g.byName, j.Spec.Name)
			}
			g.byID = append(g.byID[:i], g.byID[i+1:]...)
			ended--
			continue
		}
		i++
	}
}

// Check tests that jobs are listed by id and by name, and that exactly the suspect ones have a lease.
func (g *Registry) Check() error {
	var err error
	leases := 0
	for i, j := range g.byID {
		if j.ID >= g.nextID || i > 0 && g.byID[i-1].ID >= j.ID {
			err = errors.Join(err, fmt.Errorf("job %d is in place %d, ids come from %d on", j.ID, i, g.nextID))
		}
		if n := g.byName[j.Spec.Name]; n == nil || n.ID < j.ID {
			err = errors.Join(err, fmt.Errorf("job %d is not the newest of its name %s", j.ID, j.Spec.Name))
		}
		if leased := g.leases.Has(due{j.Lease, j.ID}); leased != (j.State == Suspect) {
			err = errors.Join(err, fmt.Errorf("job %d, which is %s, has a lease: %v", j.ID, j.State, leased))
		} else if leased {
			leases++
		}
	}
	if leases != g.leases.Len() {
		err = errors.Join(err, fmt.Errorf("%d leases run, %d of them of a suspect job", g.leases.Len(), leases))
	}
	return err
}

// Live counts jobs that have not ended.
func (g *Registry) Live() int {
	n := 0
	for _, j := range g.byID {
		if !j.State.Ended() {
			n++
		}
	}
	return n
}

// Get returns the job of that id, nil when unknown.
func (g *Registry) Get(id ident.JobID) *Job {
	for _, j := range g.byID { // few jobs, and sorted searching would not be faster for them
		if j.ID == id {
			return j
		}
	}
	return nil
}

// Named returns the newest job of that name, nil when unknown.
func (g *Registry) Named(name string) *Job { return g.byName[name] }

// All yields jobs by id.
func (g *Registry) All() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for _, j := range g.byID {
			if !yield(j) {
				return
			}
		}
	}
}

// Suspect starts the lease of a job of which a client vanished; a lease that runs already is restarted.
func (g *Registry) Suspect(j *Job, now time.Time) {
	g.Recover(j)
	j.become(Suspect)
	j.Lease = now.Add(g.lease)
	g.leases.ReplaceOrInsert(due{j.Lease, j.ID})
}

// Recover ends the lease: a client is back.
func (g *Registry) Recover(j *Job) {
	g.leases.Delete(due{j.Lease, j.ID})
	j.Lease = time.Time{}
}

// Await ends the lease of a job that no client ever attached to: a process that lives has registered it again.
func (g *Registry) Await(j *Job) {
	g.Recover(j)
	j.become(Joining)
}

// End marks a job as Dead or Done; its name is free again.
func (g *Registry) End(j *Job, s State, reason string) {
	g.Recover(j)
	j.become(s)
	j.Reason, j.Next = reason, nil
	j.SetActive(false)
	if j.Paused() {
		j.Unpause()
	}
	for i := range j.Ranks {
		if k := &j.Ranks[i]; k.Attached() {
			k.Vanish()
		}
	}
	for _, l := range j.Ledgers { // the next epoch may have begun before the clients were done with theirs
		l.Abandon()
	}
}

// Expired returns the jobs whose lease ran out, in order of their deadline.
func (g *Registry) Expired(now time.Time) []*Job {
	var out []*Job
	g.leases.Ascend(func(d due) bool {
		if d.at.After(now) {
			return false
		}
		out = append(out, g.Get(d.id))
		return true
	})
	return out
}

// Deadline is when the next lease runs out; zero when none runs.
func (g *Registry) Deadline() time.Time {
	if d, ok := g.leases.Min(); ok {
		return d.at
	}
	return time.Time{}
}
