package jobs_test

import (
	"fmt"
	"time"

	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// Example is the life of a job of one rank: it registers, its client attaches and asks for an epoch, two batches are
// picked, sent and released, and the account of the epoch closes. Which samples are picked is the sampler's choice.
func Example() {
	now := time.Unix(0, 0)
	subset := new(bits.Set)
	for id := range uint32(4) {
		subset.Add(id)
	}
	registry := jobs.NewRegistry(30*time.Second, 256)
	job, err := registry.Add(jobs.Spec{Name: "train", Subset: subset.Len(), Batch: 2, World: 1, Slots: 2}, subset)
	if err != nil {
		fmt.Println(err)
		return
	}

	inc := job.Attach(0, now)
	rank := &job.Ranks[0]
	fmt.Println(job.State, rank.Phase, "incarnation", inc)
	rank.Await(0)
	fmt.Println(rank.Phase)

	ledger := job.Open(0)
	rank.Enter(0)
	fmt.Println(rank.Phase)
	for step := range job.Spec.Batches(0) {
		slot, gen, _ := rank.FreeSlot()
		for i := range job.Spec.Rows(0, step) { // each pick is committed before it is prepared
			if err := ledger.Commit(ident.ObjectID(job.Spec.Position(0, step) + i)); err != nil {
				fmt.Println(err)
			}
		}
		rank.Slots[slot].State = jobs.Leased // it is sent
		ledger.Deliver(job.Spec.Rows(0, step), nil)
		fmt.Println("step", step, "released", rank.Release(slot, gen))
	}
	if err := ledger.Close(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(ledger.State, ledger.Delivered)

	rank.Vanish() // the client is gone without a goodbye: its lease runs
	registry.Suspect(job, now)
	fmt.Println(job.State, rank.Phase, registry.Deadline().Sub(now))
	registry.End(job, jobs.Dead, "its client did not come back")
	fmt.Println(job.State)
	// Output:
	// live idle incarnation 1
	// waiting
	// in an epoch
	// step 0 released true
	// step 1 released true
	// complete 4
	// suspect vanished 30s
	// dead
}
