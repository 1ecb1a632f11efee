package packed

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSuffixes: a file with a suffix of the table is taken by the format it stands beside, and by the one that is
// guessed for it. The formats that are not in the table have files of fixed names.
func TestSuffixes(t *testing.T) {
	dir := t.TempDir()
	var listed []string
	for _, n := range namedFiles {
		listed = append(listed, n.scheme)
		f, ok := ByScheme(n.scheme)
		if !ok || len(n.suffixes) == 0 {
			t.Fatalf("%s: no format, or no suffixes", n.scheme)
		}
		for _, s := range n.suffixes {
			path := filepath.Join(dir, "x"+s)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			guess, ok := ByScheme(SchemeOf(path))
			if !ok {
				t.Errorf("nothing is guessed for x%s of %s", s, n.scheme)
				continue
			}
			for _, f := range []Format{f, guess} {
				files, _, err := f.Files(Address{Scheme: f.Scheme(), Path: path})
				if err != nil || !slices.Equal(files, []string{path}) {
					t.Errorf("%s takes %q of x%s: %v", f.Scheme(), files, s, err)
				}
			}
		}
	}
	for _, scheme := range Schemes() {
		fixed := slices.Contains([]string{"mds", "cifar10", "cifar100", "idx"}, scheme)
		if slices.Contains(listed, scheme) == fixed {
			t.Errorf("%s is in the table: %v", scheme, !fixed)
		}
	}
	for name, want := range map[string]string{
		"a.TAR": "wds", "a.txt": "text", "a.npy": "npy", "a.jsonl.gz": "jsonl", "train-00000-of-00010": "tfrecord",
		"a.tfrecord-00000-of-00010": "tfrecord", "a.tfrecord.gz": "tfrecord", "a.tfrecord.index": "", "a": "", "a.jpg": "",
		"a.tar.xz": "", "a.md": "text", "a.tok.zst": "text",
	} { // order-free: each by itself
		if got := SchemeOf("/d/" + name); got != want {
			t.Errorf("%s is guessed to be %q, not %q", name, got, want)
		}
	}
}
