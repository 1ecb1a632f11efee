package source

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/errs"
)

// columnOf is a Parquet file of one row, whose column t has a type.
func columnOf(t *testing.T, node pq.Node) string {
	t.Helper()
	var b bytes.Buffer
	w := pq.NewWriter(&b, pq.NewSchema("table", pq.Group{"t": node}))
	v := pq.ValueOf(int64(7))
	if node.Type().Kind() == pq.Int32 {
		v = pq.ValueOf(int32(7))
	}
	if node.Type().Kind() == pq.Double {
		v = pq.ValueOf(7.)
	}
	_, err := w.WriteRows([]pq.Row{{v.Level(0, 0, 0)}})
	must(t, err)
	must(t, w.Close())
	return b.String()
}

// Files of one dataset whose columns are equal numbers of other units are refused, with both files, the column and both
// types.
func TestUnitsOfSeveralFiles(t *testing.T) {
	ms, us := pq.Timestamp(pq.Millisecond), pq.Timestamp(pq.Microsecond)
	decimal := func(scale int) string { return columnOf(t, pq.Decimal(scale, 9, pq.Int64Type)) }
	unit := func(name string) string {
		b, err := os.ReadFile("packed/testdata/units/" + name)
		must(t, err)
		return string(b)
	}
	for name, x := range map[string]struct {
		uri, first, second string
		words              []string // nil = they are one dataset
	}{
		"parquet ms, us": {"parquet:%s", columnOf(t, ms), columnOf(t, us), []string{"unit=MICROS", "unit=MILLIS"}},
		"parquet zones": {"parquet:%s", columnOf(t, ms), columnOf(t, pq.TimestampAdjusted(pq.Millisecond, false)),
			[]string{"isAdjustedToUTC=true", "isAdjustedToUTC=false"}},
		"parquet int, time": {"parquet:%s", columnOf(t, pq.Int(64)), columnOf(t, us), []string{"plain int64", "TIMESTAMP"}},
		"parquet int, date": {"parquet:%s", columnOf(t, pq.Int(32)), columnOf(t, pq.Date()), []string{"plain int32", "DATE"}},
		"parquet times": {"parquet:%s", columnOf(t, pq.Time(pq.Microsecond)), columnOf(t, pq.Time(pq.Nanosecond)),
			[]string{"unit=MICROS", "unit=NANOS"}},
		"parquet scales":         {"parquet:%s", decimal(2), decimal(3), nil}, // each by its own scale
		"parquet decimal, float": {"parquet:%s", columnOf(t, pq.Leaf(pq.DoubleType)), decimal(3), nil},
		"parquet lists": {"parquet:%s",
			parquetOf(t, struct {
				T []int64 `parquet:"t,list" parquet-element:",timestamp(millisecond)"`
			}{[]int64{1}}),
			parquetOf(t, struct {
				T []int64 `parquet:"t,list" parquet-element:",timestamp(microsecond)"`
			}{[]int64{1}}), []string{"unit=MICROS", "unit=MILLIS"}},
		"parquet durations": {"parquet:%s", unit("duration-ms.parquet"), unit("duration-us.parquet"),
			[]string{"duration(ms)", "duration(us)"}},
		"parquet long, date": {"parquet:%s", columnOf(t, pq.Int(64)), columnOf(t, pq.Date()), []string{"int64", "int32"}},
		"parquet same":       {"parquet:%s", columnOf(t, ms), columnOf(t, ms), nil},
		"arrow ms, us":       {"hf:%s", unit("ms.arrow"), unit("us.arrow"), []string{"timestamp(ms)", "timestamp(us)"}},
		"arrow s, ms":        {"hf:%s", unit("s.arrow"), unit("ms.arrow"), []string{"timestamp(s)", "timestamp(ms)"}},
		"arrow zones":        {"hf:%s", unit("us.arrow"), unit("us-utc.arrow"), []string{"timestamp(us) ", "us, UTC)"}},
		"arrow int, time":    {"hf:%s", unit("int64.arrow"), unit("us.arrow"), []string{"plain int64", "timestamp(us)"}},
		"arrow int, date":    {"hf:%s", unit("int32.arrow"), unit("date32.arrow"), []string{"plain int32", "date(days)"}},
		"arrow long, date":   {"hf:%s", unit("int64.arrow"), unit("date32.arrow"), []string{"int64", "int32"}},
		"arrow durations":    {"hf:%s", unit("duration-ms.arrow"), unit("duration-us.arrow"), []string{"duration(ms)"}},
		"arrow times":        {"hf:%s", unit("time-us.arrow"), unit("time-ns.arrow"), []string{"time(us)", "time(ns)"}},
		"arrow scales":       {"hf:%s", unit("decimal-2.arrow"), unit("decimal-3.arrow"), nil},
		"arrow two zones":    {"hf:%s", unit("us-utc.arrow"), unit("us-berlin.arrow"), nil},
		"arrow same units":   {"hf:%s", unit("us.arrow"), unit("us.arrow"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			root, ext := t.TempDir(), ".parquet"
			uri := fmt.Sprintf(x.uri, root)
			if strings.HasPrefix(x.uri, "hf") {
				ext = ".arrow"
				uri += "/{first,second}.arrow"
			}
			write(t, root, "first"+ext, x.first)
			write(t, root, "second"+ext, x.second)
			c, _ := open(t, "")
			_, err := c.Add(t.Context(), "", uri)
			if x.words == nil {
				must(t, err)
				return
			}
			if !errs.Is(err, errs.DatasetUnread) {
				t.Fatalf("%v", err)
			}
			for _, w := range append(x.words, "first"+ext, "second"+ext, `"t"`) {
				if !strings.Contains(fullText(err), w) && !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nwants %q", err, w)
				}
			}
		})
	}
}
