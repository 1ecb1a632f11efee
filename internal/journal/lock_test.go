package journal

import (
	"fmt"
	"sync"
	"testing"

	"larder/internal/errs"
	"larder/internal/testenv"
)

// Several daemons begin on one folder at the same moment, again and again: one has it, with the next term and all
// that was there; the others get its name. LARDER_STALE is how often.
func TestOneOfManyHasTheFolder(t *testing.T) {
	const daemons = 4
	path := t.TempDir() + "/state"
	term := uint64(0)
	for round := range testenv.Count(t, "LARDER_STALE", 40) {
		var mu sync.Mutex
		var winners []*Disk
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range daemons {
			wg.Go(func() {
				fs, err := OpenDir(path, true)
				if err != nil {
					t.Error(err)
					return
				}
				<-begin
				d, err := OpenDisk(fs, small)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					winners = append(winners, d)
				case !errs.Is(err, errs.AlreadyExists):
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if len(winners) != 1 {
			t.Fatalf("round %d: %d daemons have the folder", round, len(winners))
		}
		d := winners[0]
		if d.Term() <= term || len(d.Found().Jobs()) != min(round, 1) || round > 0 &&
			d.Found().Job(1).Spec != fmt.Sprint(round-1) {
			t.Fatalf("round %d: term %d after %d, %d records", round, d.Term(), term, d.Found().Seq)
		}
		term = d.Term()
		d.Append(row{Kind: kindRegistered, Job: 1, Text: fmt.Sprint(round)}, nil)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
