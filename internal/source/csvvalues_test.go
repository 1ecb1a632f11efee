package source

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"larder/internal/ident"
	"larder/internal/record"
)

// valueText is the value of a field as text, with its dtype.
func valueText(t *testing.T, c *Catalog, d *Dataset, s ident.SampleID, name string) string {
	t.Helper()
	b := fieldOf(t, c, d, s, name)
	for i := range d.Schema().Fields {
		f := &d.Schema().Fields[i]
		if f.Name != name {
			continue
		}
		if f.Kind == record.Text {
			return "text " + string(b)
		}
		var word [8]byte
		copy(word[:], b)
		switch n := binary.LittleEndian.Uint64(word[:]); f.DType {
		case record.Float64:
			return fmt.Sprint("float64 ", math.Float64frombits(n))
		case record.Uint64:
			return fmt.Sprint("uint64 ", n)
		case record.Int64:
			return fmt.Sprint("int64 ", int64(n))
		default:
			return fmt.Sprint(f.DType, " ", n)
		}
	}
	return "no field"
}

// Whole numbers of CSV are what the file says, whatever stands beside them: no float64 is made of one that it cannot
// hold.
func TestLongNumbersOfCSV(t *testing.T) {
	const big, small, most = "11898508762506083287", "3266119658877827603", "9223372036854775807"
	const huge = "1234567890123456789012345678901"
	for name, x := range map[string]struct {
		files []string
		want  string // the values of column id
	}{
		"two ids":       {[]string{"id,x\n" + big + ",1\n" + small + ",2\n"}, "uint64 " + big + "|uint64 " + small},
		"with a mark":   {[]string{"id,x\n\ufeff" + big + ",1\n+" + small + " ,2\n"}, "uint64 " + big + "|uint64 " + small},
		"below 0":       {[]string{"id,x\n" + big + ",1\n-1,2\n"}, "text " + big + "|text -1"},
		"none first":    {[]string{"id,x\n,1\n7,2\n"}, "float64 NaN|float64 7"},
		"none":          {[]string{"id,x\n" + big + ",1\n,2\n"}, "text " + big + "|text "},
		"beside parts":  {[]string{"id,x\n9007199254740993,1\n0.5,2\n"}, "text 9007199254740993|text 0.5"},
		"31 digits":     {[]string{"id\n" + huge + "\n1\n"}, "text " + huge + "|text 1"},
		"int64":         {[]string{"id\n" + most + "\n-" + most + "\n"}, "int64 " + most + "|int64 -" + most},
		"uint64":        {[]string{"id\n18446744073709551615\n0\n"}, "uint64 18446744073709551615|uint64 0"},
		"beyond uint64": {[]string{"id\n18446744073709551617\n0\n"}, "text 18446744073709551617|text 0"},
		"small parts":   {[]string{"id,x\n3,1\n0.5,2\n,3\n"}, "float64 3|float64 0.5|float64 NaN"},
		"2 to the 60":   {[]string{"id,x\n1152921504606846976,1\n0.5,2\n"}, "float64 1.152921504606847e+18|float64 0.5"},
		"of two files":  {[]string{"id\n" + small + "\n", "id\n" + big + "\n"}, "uint64 " + small + "|uint64 " + big},
		"below 0 later": {[]string{"id\n" + big + "\n", "id\n-7\n"}, "text " + big + "|text -7"},
		"parts later":   {[]string{"id\n" + small + "\n", "id\n0.5\n"}, "text " + small + "|text 0.5"},
		"huge later": {[]string{"id\n0.5\n", "id\n1\n", "id\n" + huge + "\n"},
			"text 0.5|text 1|text " + huge},
	} {
		t.Run(name, func(t *testing.T) {
			for _, form := range []string{".csv", ".tsv"} {
				root, index := t.TempDir(), t.TempDir()
				for i, text := range x.files {
					if form == ".tsv" {
						text = strings.ReplaceAll(text, ",", "\t")
					}
					write(t, root, fmt.Sprint(i, form), text)
				}
				for range 2 { // the second time from the saved index and notes
					c, _ := open(t, index)
					d, err := c.Add(t.Context(), "", "csv:"+root)
					must(t, err)
					var got []string
					for s := range ident.SampleID(d.Len()) {
						got = append(got, valueText(t, c, d, s, "id"))
					}
					if strings.Join(got, "|") != x.want {
						t.Errorf("%s: got  %s\nwant %s", form, strings.Join(got, "|"), x.want)
					}
				}
			}
		})
	}
}

// A file that is worked off in pieces has the types that one read from the front has.
func TestLongNumbersOfALargeCSV(t *testing.T) {
	var b strings.Builder
	b.WriteString("id,odd,x\n")
	for i := range 150_000 {
		fmt.Fprintf(&b, "%d,%d,%d\n", uint64(1)<<63+uint64(i), i, i%7)
	}
	b.WriteString("18446744073709551615,\ufeff7 ,3\n")
	root := t.TempDir()
	write(t, root, "a.csv", b.String())
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "csv:"+root)
	must(t, err)
	last := ident.SampleID(d.Len() - 1)
	for name, want := range map[string]string{"id": "uint64 18446744073709551615", "odd": "int64 7", "x": "int64 3"} {
		if got := valueText(t, c, d, last, name); got != want {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
	if got := valueText(t, c, d, 3, "id"); got != "uint64 9223372036854775811" {
		t.Errorf("id is %s", got)
	}
}
