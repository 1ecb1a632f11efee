package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestDatasetVerifyPanics: what panics is one bad sample with a reason, and all others are checked, by the same
// goroutine.
func TestDatasetVerifyPanics(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	for name, b := range map[string]string{
		"a.ppm": "P6 1 1 255 abc", "b.ppm": "P6 1 1 255 bad", "c.ppm": "P6 2 1 255 abcdef",
		"d.ppm": "P6 4294967296 4294967296 255 abc", "e.ppm": "P6 4294967297 4294967295 255 abc",
	} {
		if err := os.MkdirAll(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "x", name), []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v := verifier{workers: 1, report: func(int, int) {}, before: func(enc []byte) {
		if bytes.HasSuffix(enc, []byte("bad")) {
			panic("no such image")
		}
	}}
	r, err := v.run(t.Context(), "imagefolder:"+dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"x/b.ppm": "larder panicked while preparing it: no such image",
		"x/d.ppm": "the netpbm image cannot be decoded: it has 4294967296 x 4294967296 pixels, and a side of more than " +
			"2^31-1 is not read",
		"x/e.ppm": "the netpbm image cannot be decoded: it has 4294967297 x 4294967295 pixels, and a side of more than " +
			"2^31-1 is not read",
	}
	if r.Checked != 5 || len(r.Bad) != len(want) || len(r.Formats) != 1 || r.Formats[0] != (formatSum{"netpbm", 2}) {
		t.Errorf("%+v", r)
	}
	for _, b := range r.Bad {
		if want[b.Key] != b.Reason {
			t.Errorf("%s: %q, not %q", b.Key, b.Reason, want[b.Key])
		}
	}
}
