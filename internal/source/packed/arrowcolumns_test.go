package packed

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/record"
)

// rowsOf are the samples of a dataset: the bytes of their fields, apart by a space.
func rowsOf(t *testing.T, d dataset, s fileSet) (rows []string) {
	t.Helper()
	if err := d.each(s, func(_ Sample, blob []byte, bad error) error {
		if bad != nil {
			return bad
		}
		v, err := record.Open(blob)
		if err != nil {
			return err
		}
		var row []string
		for _, x := range v.All {
			row = append(row, string(x.Data))
		}
		rows = append(rows, strings.Join(row, " "))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestColumnsOfAnArrowFile reads testdata/columns.arrow, which pyarrow wrote: a dictionary, lists of text, decimals of
// 20 digits and lists of dictionary-encoded text.
func TestColumnsOfAnArrowFile(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "columns.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	s := fileSet{"/d/x.arrow": b}
	d, err := describe("hf:/d/x.arrow", s)
	if err != nil {
		t.Fatal(err)
	}
	got := rowsOf(t, d, s)
	want := []string{`a ["x",null] 1.50 ["x"]`, `b [] 1.50 []`, `a ["y"] 1.50 ["x","z"]`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("rows %q, want %q", got, want)
	}
	for what, damaged := range map[string][]byte{"without its end": b[:len(b)-3], "its end": append(bytes.Clone(b), 0)} {
		if _, err := describe("hf:/d/x.arrow", fileSet{"/d/x.arrow": damaged}); err == nil ||
			!strings.Contains(err.Error(), "does not end as one: it is cut") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDictionariesInsideOfDictionaries reads testdata/nested.arrow, which pyarrow wrote: a dictionary of lists of
// dictionary-encoded text, which larder does not read, and a column of numbers, which it does.
func TestDictionariesInsideOfDictionaries(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "nested.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	s := fileSet{"/d/x.arrow": b}
	if _, err := describe("hf:/d/x.arrow", s); err == nil || !strings.Contains(err.Error(), "dictionary of lists") {
		t.Errorf("all columns: %v", err)
	}
	d, err := describe("hf:/d/x.arrow?fields=x", s)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(rowsOf(t, d, s), ""); got != "\x07\x00\x00\x00\x08\x00\x00\x00" {
		t.Errorf("column x is % x", got)
	}
}
