package coresim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
)

// day is so many simulated hours of one machine: two jobs that train through all of it, and jobs that come every few
// minutes, with all that random worlds hold: deaths, hangs, take-overs, breaks, changed subsets, pauses, lost entries,
// bad samples, resizes.
func day(seed uint64, hours int) (Model, []Client) {
	r := xrand.New(seed, 29)
	m, clients := scenario(r.Uint64())
	m.Data = nil // files that are gone would be gone for every later job
	m.Check = 997
	for i := range 2 {
		c := client(fmt.Sprint("all day ", i), span(0, 100+r.IntN(80)), 4+r.IntN(12), 0)
		c.Step = time.Duration(20+r.IntN(60)) * time.Second
		steps := (len(c.Sample.Subset) + c.Spec.Batch - 1) / c.Spec.Batch // of an epoch
		c.Epochs = int(time.Duration(hours-1) * time.Hour / c.Step / time.Duration(steps))
		clients = append(clients, c)
	}
	for at := time.Minute; at < time.Duration(hours)*time.Hour; at += time.Duration(2+r.IntN(20)) * time.Minute {
		_, more := scenario(r.Uint64())
		for i := range more {
			c := more[i]
			c.Spec.Name = fmt.Sprint(c.Spec.Name, " at ", at)
			c.Start += at
			if r.IntN(3) == 0 { // a slow one: it meets others
				c.Step *= time.Duration(10 + r.IntN(1000))
			}
			clients = append(clients, c)
		}
	}
	return m, clients
}

// TestDays simulates whole days, LARDER_SIM_DAYS of them, or eight hours of one in make test; every epoch a client
// finished is whole, and one seed gives one trace. A failing seed is run again alone with LARDER_SIM_DAY=SEED.
func TestDays(t *testing.T) {
	days, first, hours := lane.Times(1, 3), uint64(0), lane.Times(8, 24)
	if n, err := strconv.Atoi(os.Getenv("LARDER_SIM_DAYS")); err == nil {
		days, hours = n, 24
	}
	if n, err := strconv.ParseUint(os.Getenv("LARDER_SIM_DAY"), 10, 64); err == nil {
		days, first, hours = 1, n, 24
	}
	epochs, batches, clientsAll := 0, 0, 0
	for seed := first; seed < first+uint64(days); seed++ {
		m, clients := day(seed, hours)
		res, err := Run(m, clients, 25*time.Hour)
		if err != nil {
			t.Fatalf("day %d: %v", seed, err)
		}
		wholeEpochs(t, res, clients)
		fresh(t, res)
		for _, r := range res.Epochs {
			if r.Ended {
				epochs++
			}
			batches += len(r.IDs)
		}
		clientsAll += len(clients)
		for i := range clients {
			if c := &clients[i]; c.Die == 0 && c.Hang == 0 && c.Break == 0 && ended(res, c.Spec.Name) != c.Epochs*c.Spec.World {
				t.Errorf("%s: %d of %d rank-epochs ended", c.Spec.Name, ended(res, c.Spec.Name), c.Epochs*c.Spec.World)
			}
		}
		for i := range res.Jobs {
			for _, l := range res.Jobs[i].Ledgers {
				if l.State == jobs.Violated {
					t.Errorf("%s epoch %d: %+v", res.Jobs[i].Spec.Name, l.Epoch, *l)
				}
			}
		}
		if seed == first && lane.Nightly() { // one seed, one trace; by day the recorded hashes say it
			m, clients := day(seed, hours)
			if again, err := Run(m, clients, 25*time.Hour); err != nil || again.Hash != res.Hash {
				t.Errorf("day %d again: %x and %x, %v", seed, res.Hash, again.Hash, err)
			}
		}
		if t.Failed() {
			t.Fatalf("day %d; LARDER_SIM_DAY=%d go test -run TestDays ./bench/coresim", seed, seed)
		}
	}
	t.Logf("%d x %d simulated hours: %d jobs, %d epochs, %d samples", days, hours, clientsAll, epochs, batches)
	if epochs < 100*days*hours/24 {
		t.Errorf("only %d epochs", epochs)
	}
}
