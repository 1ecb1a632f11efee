package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
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

// dataOf is where the content of a member of an archive begins.
func dataOf(t *testing.T, b []byte, name string) int64 {
	t.Helper()
	archive, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.File {
		if f.Name != name {
			continue
		}
		at, err := f.DataOffset()
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	t.Fatalf("no %s", name)
	return 0
}

// TestVerifyChecksums: an array of a .npz that has changed is found by its checksum, which no read of a row compares.
func TestVerifyChecksums(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	_, npy := someRecords(t)
	array, err := os.ReadFile(strings.TrimPrefix(npy, "npy:"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, method := range map[string]uint16{"x.npy": zip.Store, "y.npy": zip.Store} { // order-free: by name
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err == nil {
			_, err = w.Write(array)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name+".npz"), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(uri string, samples int) *verified {
		t.Helper()
		v := verifier{workers: 2, samples: samples, report: func(int, int) {}}
		r, err := v.run(t.Context(), uri)
		if err != nil {
			t.Fatal(err)
		}
		if r.Checked != cmp.Or(samples, 6) || len(r.Bad) != 0 {
			t.Errorf("%s: %+v", uri, r)
		}
		return r
	}
	if r := verify("npz:"+dir, 0); len(r.Changed) != 0 || r.failure() != nil {
		t.Errorf("whole files: %+v", r)
	}
	file, changed := filepath.Join(dir, "b.npz"), bytes.Clone(b.Bytes())
	changed[dataOf(t, changed, "y.npy")+int64(len(array))-9] ^= 4 // in the last row
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	r := verify("npz:"+dir, 0)
	want := fmt.Sprintf(`array "y": its bytes do not have the checksum that the archive says (CRC-32 %08x): some have `+
		"changed, in rows that it cannot name", crc32.ChecksumIEEE(array))
	if len(r.Changed) != 1 || r.Changed[0] != (badPart{file, want}) {
		t.Errorf("%+v", r.Changed)
	}
	if err := r.failure(); exitCode(err) != exitData || !strings.HasPrefix(fmt.Sprint(err), "1 part of the files") {
		t.Errorf("%v", err)
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	verifiedTable(w, r)
	if err := w.Flush(); err != nil || !strings.Contains(table.String(), "CHANGED\nFILE") {
		t.Errorf("%v, %s", err, &table)
	}
	if r := verify("npz:"+dir+"?fields=x", 0); len(r.Changed) != 0 {
		t.Errorf("an array that is not asked for: %+v", r.Changed)
	}
	if r := verify("npz:"+dir, 2); len(r.Changed) != 0 {
		t.Errorf("some samples: %+v", r.Changed)
	}
	l := openRecords(t, "npz:"+dir)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := (&verifier{}).sums(ended, l, &verified{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
