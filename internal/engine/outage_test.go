package engine_test

import (
	"os"
	"strings"
	"testing"

	"larder/internal/engine"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// TestAFolderThatIsGoneForAWhile: a disk that is unmounted in the midst of an epoch costs no sample. The job waits,
// says for what, and gets each sample once when the disk is back.
func TestAFolderThatIsGoneForAWhile(t *testing.T) {
	const n = 40
	for _, decoded := range []int64{0, 16 * mib} { // in place and not
		dir := folder(t, n)
		w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes = [ident.NumForms]int64{ident.Decoded: decoded} })
		tr := w.train(spec("a", dir, 4, recipe(crops...), func(s *larderv1.JobSpec) { s.OnError = "skip" }), 0)
		if err := os.Rename(dir, dir+".gone"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		type result struct {
			got *seen
			err error
		}
		done := make(chan result, 1)
		go func() {
			got, err := tr.epoch(0)
			done <- result{got, err}
		}()
		eventually(t, "the job says that storage has failed", func() bool {
			j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			wait := j.GetJob().GetRanks()[0].GetWait()
			return wait.GetCause() == "storage" && strings.Contains(wait.GetText(), "has failed for")
		})
		if err := os.Rename(dir+".gone", dir); err != nil {
			t.Fatal(err)
		}
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		exactly(t, "the epoch", r.got.ids, all(n))
		if len(r.got.bad) != 0 || r.got.end.GetAccount().GetQuarantined() != 0 ||
			w.stats().GetTotals().GetQuarantined() != 0 {
			t.Errorf("%v are bad, %v, %v", r.got.bad, r.got.end.GetAccount(), w.stats().GetTotals())
		}
		tr.detach()
	}
}
