package source

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// npzOf is an archive of arrays of five rows of four bytes; some of its members are blanks of so many bytes, which lie
// between two of them.
func npzOf(t *testing.T, apart int) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range []string{"x.npy", "blank", "y.npy", "blank2", "z.npy"} {
		content := []byte(npyFile(5))
		if filepath.Ext(name) == "" {
			content = make([]byte, apart)
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		must(t, err)
		_, err = io.Copy(w, bytes.NewReader(content))
		must(t, err)
	}
	must(t, errors.Join(z.Close()))
	return b.String()
}

// The ranges of one record of an object are asked for together, and those that lie near each other are one request:
// nine values of a row of an Arrow file, one after the other, are two requests, and arrays that are near, or documents
// of a window, are one.
func TestRangesOfARecordAreFewRequests(t *testing.T) {
	rows, err := os.ReadFile(filepath.Join("packed", "testdata", "rows.arrow"))
	must(t, err)
	b, root := newBucket(t), t.TempDir()
	ids := strings.Repeat("\x01\x00\x02\x00\x09\x00", 5) + strings.Repeat("\x03\x00\x04\x00\x05\x00\x09\x00", 5)
	for name, content := range map[string]string{"t.bin": ids, "near.npz": npzOf(t, 1<<10), "far.npz": npzOf(t, 2*joinGap),
		"rows.arrow": string(rows)} { // order-free: files of one folder
		b.put(t, "set/"+name, content)
		write(t, root, name, content)
	}
	for _, x := range []struct {
		scheme, name string
		most         int // requests for a record
	}{{"npz:", "near.npz?fields=x,y,z", 1}, {"npz:", "far.npz?fields=x,y,z", 3}, {"hf:", "rows.arrow", 2},
		{"tokens:", "t.bin?seq_len=9&doc=9&borders=pack", 1}} {
		if testing.Short() && x.most == 3 {
			continue // megabytes for each record
		}
		local, _ := open(t, "")
		same, err := local.Add(t.Context(), "", x.scheme+root+"/"+x.name)
		must(t, err)
		want := recordsOf(t, local, same)
		c := b.open(t, "")
		d, err := c.Add(t.Context(), "", x.scheme+"s3://data/set/"+x.name)
		must(t, err)
		_, err = c.Read(t.Context(), d.Object(0), nil) // it is open now
		must(t, err)
		before, beforeLeast := requests(b)
		if got := recordsOf(t, c, d); !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", x.name, got, want)
		}
		after, least := requests(b)
		if n := len(want); least-beforeLeast > x.most*n || after-before < n {
			t.Errorf("%s: %d to %d requests for %d records, %d may be", x.name, least-beforeLeast, after-before, n, x.most*n)
		}
	}
}
