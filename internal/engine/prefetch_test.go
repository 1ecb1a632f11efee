package engine_test

import (
	"os"
	"path/filepath"
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
	if _, err := register(c, said); err == nil {
		t.Error("another prefetch than the job's was accepted")
	}
}
