package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/resume"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// resumeJob registers a job that resumes from a token.
func (w *world) resumeJob(s *larderv1.JobSpec, token string, changed bool) (*larderv1.RegisterJobResponse, error) {
	return w.engine.RegisterJob(context.Background(), &larderv1.RegisterJobRequest{Spec: s, Resume: token,
		ResumeChanged: changed})
}

func (w *world) state(name string, epoch uint32, step int, portable bool) string {
	w.t.Helper()
	r, err := w.engine.GetState(context.Background(), &larderv1.GetStateRequest{Name: name, Epoch: epoch,
		Step: uint32(step), Portable: portable})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.GetToken()
}

func sumOf(t *testing.T, token string) string {
	t.Helper()
	k, err := resume.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	return k.Sum
}

// takeSome reads n batches of an epoch, all when n < 0.
func (tr *trainer) takeSome(epoch uint32, n int) *seen {
	tr.t.Helper()
	s := newSeen()
	if err := tr.st.StartEpoch(context.Background(), epoch); err != nil {
		tr.t.Fatal(err)
	}
	for i := 0; i != n; i++ {
		b, err := tr.st.Next(context.Background())
		if err != nil {
			if i > 0 || n < 0 {
				break
			}
			tr.t.Fatal(err)
		}
		tr.take(b, s)
		b.Release()
	}
	return s
}

// A share group, substitutes for damaged images, drop_last and even: what was handed out and what is left are the
// subset, the pixels are those of the undisturbed epoch, and the account of what is left is closed.
func TestResumeKeepsInstancesAndAccounts(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprint(portable), func(t *testing.T) {
			w := serve(t)
			shares := func(s *larderv1.JobSpec) {
				if s.Seed = 3; portable { // a member of a share group has instances that the others have led it to
					s.Share = "augmented"
				}
			}
			a := w.train(spec("a", dir, 4, recipe(crops...), shares), 0)
			whole := a.must(0)
			b := w.train(spec("b", dir, 4, recipe(crops...), shares), 0)
			first := b.takeSome(0, 5)
			token := w.state("b", 0, 5, portable)
			if err := b.st.Saved(5, sumOf(t, token)); err != nil {
				t.Fatal(err)
			}
			if _, err := w.resumeJob(spec("b", dir, 7, recipe(crops...), shares), token, false); reasonOf(err) != errs.RankHeld {
				t.Errorf("while it is held: %v", err)
			}
			b.detach()
			r, err := w.resumeJob(spec("b", dir, 7, recipe(crops...), shares), token, false)
			if err != nil || r.GetResumed().GetEpoch() != 0 || r.GetResumed().GetBefore() != 20 ||
				r.GetResumed().GetLeft() != 40 || len(r.GetResumed().GetNotes()) != 0 {
				t.Fatalf("%v, %v", r.GetResumed(), err)
			}
			again, err := w.resumeJob(spec("b", dir, 7, recipe(crops...), shares), token, false)
			if err != nil || again.GetJob().GetId() != r.GetJob().GetId() || again.GetCreated() {
				t.Fatalf("another rank: %v, %v", again, err)
			}
			tr := w.train(spec("b", dir, 7, recipe(crops...), shares), 0)
			tr.st.Loaded(sumOf(t, token))
			if !tr.st.Info().GetRest() || tr.st.Info().GetNextEpoch() != 0 || tr.st.Info().GetBatchesPerEpoch() != 6 {
				t.Errorf("attached: %v", tr.st.Info())
			}
			rest := tr.must(0)
			exactly(t, "together", append(slices.Clone(first.ids), rest.ids...), all(n))
			maps.Copy(first.pixels, rest.pixels)
			if !portable && !maps.EqualFunc(first.pixels, whole.pixels, func(x, y []byte) bool { return bytes.Equal(x, y) }) {
				t.Error("the pixels are not those of the undisturbed epoch")
			}
			if a := rest.end.GetAccount(); a.GetState() != "complete" || a.GetSubset() != 40 || a.GetDelivered() != 40 {
				t.Errorf("the account: %v", a)
			}
			var was resume.Token
			if err := json.Unmarshal([]byte(token), &was); err != nil {
				t.Fatal(err)
			}
			orders, err := w.engine.ListOrders(context.Background(), &larderv1.ListOrdersRequest{Name: "b"})
			if err != nil || len(orders.GetOrders()) == 0 || orders.GetOrders()[0].GetInstance() != was.Instance ||
				orders.GetOrders()[0].GetEarlier() != 20 || orders.GetOrders()[0].GetSamples() != n {
				t.Errorf("instance %d: %v, %v", was.Instance, orders, err)
			}
			exactly(t, "the next epoch", tr.must(1).ids, all(n))
		})
	}
}

// Tokens whose order is gone, whose log is an older copy, or another one, are refused and say what helps.
func TestTokensThatCannotBeResolved(t *testing.T) {
	dir := folder(t, 40)
	fs := journal.NewMemFS()
	var early, late, kept string
	var copied *journal.MemFS
	keepNothing := func(fs journal.FS) (*world, *journal.Disk) {
		d, err := journal.OpenDisk(fs, journal.Options{SegmentBytes: 2000, SnapshotBytes: 2000, OrderBytes: -1})
		if err != nil {
			t.Fatal(err)
		}
		return serve(t, func(c *engine.Config) { c.Journal.Log, c.Journal.Found = d, d.Found() }), d
	}
	s := spec("a", dir, 4)
	t.Run("first", func(t *testing.T) {
		w, d := keepNothing(fs)
		w.t = t
		tr := w.train(s, 0)
		tr.takeSome(0, 3)
		early = w.state("a", 0, 3, false)
		kept = w.state("a", 0, 3, true)
		for e := range uint32(24) {
			tr.must(e + 1)
		}
		if err := d.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
		copied = fs.Clone()
		tr.takeSome(25, 6)
		late = w.state("a", 25, 6, false)
		if _, err := w.engine.GetState(context.Background(), &larderv1.GetStateRequest{Name: "a", Epoch: 25,
			Step: 99}); reasonOf(err) != errs.Invalid {
			t.Errorf("a step that was not given out: %v", err)
		}
		if _, err := w.engine.GetState(context.Background(),
			&larderv1.GetStateRequest{Name: "b"}); reasonOf(err) != errs.NotFound {
			t.Errorf("a job that is not there: %v", err)
		}
	})
	w := serve(t)
	for name, c := range map[string]struct {
		w     *world
		token string
		want  string
	}{
		"another daemon": {w, late, "portable"},
		"older copy":     {serve(t, onFS(t, copied)), late, "older copy"},
		"expired":        {serve(t, onFS(t, fs)), early, "not kept any more"},
	} {
		_, err := c.w.resumeJob(spec("b", dir, 4), c.token, true)
		f := errs.From(err)
		if err == nil || f.Reason != errs.Token || !strings.Contains(f.Error(), c.want) ||
			!strings.Contains(f.Hint, "portable=True") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := w.resumeJob(spec("b", dir, 4), kept, false); err != nil || r.GetResumed().GetLeft() != 28 {
		t.Errorf("portable: %v, %v", r.GetResumed(), err)
	}
	var edited resume.Token // forged, with a right checksum
	if err := json.Unmarshal([]byte(late), &edited); err != nil {
		t.Fatal(err)
	}
	edited.ID = 99
	if _, err := serve(t, onFS(t, fs)).resumeJob(spec("c", dir, 4), edited.Text(), false); reasonOf(err) != errs.Token {
		t.Errorf("another job: %v", err)
	}
}

func onFS(t *testing.T, fs *journal.MemFS) func(*engine.Config) {
	t.Helper()
	d, err := journal.OpenDisk(fs.Clone(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *engine.Config) { c.Journal.Log, c.Journal.Found = d, d.Found() }
}

// A daemon dies at random moments while jobs resume from tokens: what their clients had up to each token, and what the
// last one got, is the subset.
func TestResumeThroughDeaths(t *testing.T) {
	const n = 50
	dir := folder(t, n)
	for seed := range uint64(lane.Times(3, 6)) {
		r := xrand.New(seed, 2)
		fs := journal.NewMemFS()
		var had []int64
		token := ""
		order := []string{"stratified", "strict", "epoch", "fixed"}[r.IntN(4)]
		for attempt := 0; len(had) < n; attempt++ {
			t.Run(fmt.Sprintf("seed %d attempt %d", seed, attempt), func(t *testing.T) {
				w := onDisk(t, fs)
				s := spec(fmt.Sprintf("j%d-%d", seed, attempt), dir, uint32(1+r.IntN(5)),
					func(s *larderv1.JobSpec) { s.Order = order })
				w.dial()
				left := n
				if token != "" {
					g, err := w.resumeJob(s, token, false)
					if err != nil {
						t.Fatal(err)
					}
					left = int(g.GetResumed().GetLeft())
				}
				if r.IntN(3) == 0 { // it dies before anything was drawn
					fs = fs.Crash(r.IntN)
					return
				}
				tr := w.train(s, 0)
				if token != "" {
					tr.st.Loaded(sumOf(t, token))
				}
				k := r.IntN(4)
				if attempt > 12 {
					k = -1
				}
				got := tr.takeSome(0, k)
				if k < 0 {
					k = len(got.ids)/int(s.GetBatchSize()) + min(1, len(got.ids)%int(s.GetBatchSize()))
				}
				k = min(k, (left+int(s.GetBatchSize())-1)/int(s.GetBatchSize()))
				token = w.state(s.GetName(), 0, k, r.IntN(4) == 0)
				if err := tr.st.Saved(uint32(k), sumOf(t, token)); err != nil {
					t.Fatal(err)
				}
				had = append(had, got.ids...)
				fs = fs.Crash(r.IntN)
			})
			if t.Failed() {
				return
			}
		}
		exactly(t, fmt.Sprint("seed ", seed), had, all(n))
	}
}
