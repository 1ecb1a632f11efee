package packed

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A * does not stand for what a folder leaves out, in no part of the path; a pattern that begins as such a name does.
func TestPatternsLeaveOutTheFilesOfOtherPrograms(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"p/a.parquet", "p/_tmp.parquet", "p/._a.parquet", "_temporary/b.parquet",
		"_named/c.parquet"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string][]string{"p/*.parquet": {"p/a.parquet"}, "*/*.parquet": {"p/a.parquet"},
		"p/_*.parquet": {"p/_tmp.parquet"}, "_named/*.parquet": {"_named/c.parquet"}} { // order-free: each by itself
		left := &LeftOut{}
		got, _, err := parquetFiles{}.Files(Address{Path: filepath.Join(root, pattern), Left: left})
		for i := range want {
			want[i] = filepath.Join(root, want[i])
		}
		some := filepath.Base(want[0]) == "a.parquet" // beside it there are others
		if err != nil || !slices.Equal(got, want) || (left.Files > 0) != some {
			t.Errorf("%s: %q, %d left out, %v", pattern, got, left.Files, err)
		}
	}
}
