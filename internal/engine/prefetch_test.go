package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	larderv1 "larder/proto/larder/v1"
)

// Rings of small records have more slots than others, unless the spec says how many.
func TestPrefetchOfSmallRecords(t *testing.T) {
	dir := folder(t, 20)
	ids := filepath.Join(t.TempDir(), "train.bin")
	if err := os.WriteFile(ids, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	w := serve(t)
	c := w.dial()
	windows := func(name, seq string, batch uint32, change ...func(*larderv1.JobSpec)) *larderv1.JobSpec {
		s := spec(name, dir, batch, change...)
		s.Dataset = "tokens:" + ids + "?seq_len=" + seq
		return s
	}
	for _, x := range []struct {
		spec *larderv1.JobSpec
		want uint32
	}{
		{spec("images", dir, 4, recipe(crops...)), 2},
		{windows("small", "1024", 64), 14},
		{windows("one", "1024", 1), 14},
		{windows("some MiB", "65536", 16), 5}, // 2 MiB a batch, and its indices
		{windows("large", "65536", 256), 2},
		{windows("said", "1024", 64, func(s *larderv1.JobSpec) { s.Prefetch = 2 }), 2},
		{windows("blocks", "1024", 8, func(s *larderv1.JobSpec) { s.Order = "blocks(4, 1MiB)" }), 2},
	} {
		got, err := register(c, x.spec)
		if err != nil {
			t.Errorf("%s: %v", x.spec.GetName(), err)
			continue
		}
		if n := got.GetJob().GetSpec().GetPrefetch(); n != x.want {
			t.Errorf("%s: %d batches are prepared ahead, want %d", x.spec.GetName(), n, x.want)
		}
	}
	// Who does not say how many agrees with the job that is there; who does has to say the same.
	said := windows("said", "1024", 64)
	if got, err := register(c, said); err != nil || got.GetCreated() || got.GetJob().GetSpec().GetPrefetch() != 2 {
		t.Errorf("the same job without prefetch: %v, %v", got, err)
	}
	said.Prefetch = 3
	refused := func(s *larderv1.JobSpec, says ...string) {
		t.Helper()
		_, err := register(c, s)
		for _, part := range says {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want %q", s.GetName(), err, part)
			}
		}
	}
	refused(said, "job said has prefetch=2, as it was registered, and this rank says prefetch=3",
		"say prefetch=3 in every rank of the job, or leave it out here", "larder jobs kill said")
	// A job whose first rank does not say has the daemon's choice; another rank may say that number.
	chosen := windows("small", "1024", 64)
	chosen.Prefetch = 14
	if got, err := register(c, chosen); err != nil || got.GetCreated() {
		t.Errorf("the number that the daemon chose: %v, %v", got, err)
	}
	chosen.Prefetch = 2
	refused(chosen, "job small has prefetch=14, as the daemon chose, because the rank that registered it says none, and "+
		"this rank says prefetch=2", "say prefetch=2 in every rank")
	chosen.BatchSize = 32 // it differs in more
	refused(chosen, "exists with another spec", "prefetch is 14 there and 2 here")
}
