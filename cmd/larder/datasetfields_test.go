package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/jpeg"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/tabwriter"

	"larder/internal/prep"
	"larder/internal/record"
	larderv1 "larder/proto/larder/v1"
)

// someRecords is a dataset of lines and one of arrays, whose values are known.
func someRecords(t *testing.T) (lines, arrays string) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	var b strings.Builder
	for i := range 10 {
		fmt.Fprintf(&b, `{"text": "<script>%s", "n": %d, "v": %s, "ok": %v}`+"\n", strings.Repeat("é", 9*i), i,
			strings.ReplaceAll(fmt.Sprint(make([]int, i%3)), " ", ","), i%2 == 0)
	}
	lines = filepath.Join(dir, "x.jsonl")
	if err := os.WriteFile(lines, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// Three rows of 12 x 10 x 3.
	head := `{'descr': '|u1', 'fortran_order': False, 'shape': (3, 12, 10, 3), }`
	head += strings.Repeat(" ", 63-(10+len(head))%64) + "\n"
	raw := append([]byte("\x93NUMPY\x01\x00"), byte(len(head)), byte(len(head)>>8))
	raw = append(raw, head...)
	for i := range 3 * 360 {
		raw = append(raw, byte(i%200+i/360*10))
	}
	arrays = filepath.Join(dir, "a.npy")
	if err := os.WriteFile(arrays, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return "jsonl:" + lines, "npy:" + arrays
}

func openRecords(t *testing.T, uri string) *localData {
	t.Helper()
	l, err := openLocal(t.Context(), uri, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// TestStatsOfRecords: sizes, lengths and ranges of each field are those of the file.
func TestStatsOfRecords(t *testing.T) {
	lines, arrays := someRecords(t)
	s, err := openRecords(t, lines).stats(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"text": "[…] 8 to 170 (median 98) ", "n": "[]  0 to 9, mean 4.5", "v": "[…] 0 to 2 (median 1) 0 to 0, mean 0",
		"ok": "[]  0 to 1, mean 0.5",
	}
	if len(s.Fields) != len(want) || s.Looked != 10 || len(s.Bad) != 0 {
		t.Fatalf("%+v", s)
	}
	for i := range s.Fields {
		c := s.Fields[i].cells()
		if got := strings.Join([]string{c[3], c[5], c[6]}, " "); got != want[c[0]] {
			t.Errorf("%s: %q, want %q", c[0], got, want[c[0]])
		}
	}
	labelled := filepath.Join(t.TempDir(), "y.jsonl")
	if err := os.WriteFile(labelled, []byte("{\"label\": 7}\n{\"label\": 3}\n{\"label\": 7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	classes, err := openRecords(t, "jsonl:"+labelled).stats(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tableTo(&b, func(t *tabwriter.Writer) { dataStatsTable(t, classes) }); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^LABEL .*\n3 .* 1 .*\n7 .* 2 `).MatchString(b.String()) {
		t.Errorf("the classes of records are not counted:\n%s", b.String())
	}
	numbers := fieldStat{values: record.Range{Min: math.Inf(-1), Max: math.Inf(1), Sum: math.NaN(), Numbers: 2, NaN: 3}}
	if got := numbers.holds(); got != "-Inf to +Inf, mean NaN, 3 NaN" {
		t.Errorf("infinite numbers are %q", got)
	}
	if got := (&fieldStat{values: record.Range{NaN: 2}}).holds(); got != "2 NaN" {
		t.Errorf("no number is %q", got)
	}
	if s, err = openRecords(t, arrays).stats(t.Context(), "", 2); err != nil || s.Looked != 2 || *s.Fields[0].Max != 209 ||
		s.Fields[0].Stored.Median != 360 {
		t.Errorf("%+v, %v", s, err)
	}
	if b, err := json.Marshal(s); err != nil || !bytes.Contains(b, []byte(`"max":209`)) {
		t.Errorf("%s, %v", b, err)
	}
}

// TestInspectRecords: values are shown short, what changed since the daemon looked is said, and JSON has both.
func TestInspectRecords(t *testing.T) {
	lines, _ := someRecords(t)
	l := openRecords(t, lines)
	r := &larderv1.InspectDatasetResponse{Dataset: &larderv1.Dataset{Uri: lines, Samples: 10}, Selected: 10}
	for _, id := range []uint64{0, 9} {
		r.Samples = append(r.Samples, &larderv1.Sample{Id: id, Key: l.data.Key(0), Label: -1, Format: "record"})
	}
	r.Samples[1].Key = fmt.Sprintf("x.jsonl/%08d", 9)
	r.Samples = append(r.Samples, &larderv1.Sample{Id: 3, Key: "gone", Label: 1, Format: "record"})
	if !holdsRecords(r) {
		t.Error("they are no records")
	}
	list, err := l.records(t.Context(), r.GetSamples())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tableTo(&b, func(t *tabwriter.Writer) { recordsTable(t, r, l.data.Schema(), list) }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"records of 4 fields", "<script>ééé", "… (170 bytes)", "[]", "true", "false",
		"cannot be read: the dataset has changed since"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	raw, err := recordsJSON(r, list)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Samples []struct {
			Fields []shownField
			Reason string
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil || len(got.Samples) != 3 || len(got.Samples[1].Fields) != 4 ||
		got.Samples[1].Fields[1].Value != "9" || got.Samples[2].Reason == "" {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestPageOfRecords: every field is there, escaped, and arrays that are images are thumbnails of their pixels.
func TestPageOfRecords(t *testing.T) {
	lines, arrays := someRecords(t)
	for uri, thumbs := range map[string]int{lines: 0, arrays: 3} {
		out := filepath.Join(t.TempDir(), "page.html")
		if err := openRecords(t, uri).writeHTML(t.Context(), out, "", 100, nil); err != nil {
			t.Fatal(err)
		}
		page, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		images := regexp.MustCompile(`data:image/jpeg;base64,([^"]*)"`).FindAllSubmatch(page, -1)
		if len(images) != thumbs {
			t.Errorf("%s: %d thumbnails, want %d", uri, len(images), thumbs)
		}
		for _, m := range images {
			raw, err := base64.StdEncoding.DecodeString(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			if c, err := jpeg.DecodeConfig(bytes.NewReader(raw)); err != nil || c.Width != 10 || c.Height != 12 {
				t.Errorf("a thumbnail has %d x %d pixels: %v", c.Width, c.Height, err)
			}
		}
		if text := string(page); strings.Contains(text, "<script>é") || uri == lines &&
			!strings.Contains(text, "&lt;script&gt;ééé") {
			t.Errorf("%s: texts are missing, or not escaped", uri)
		}
	}
}

func TestArraysThatAreImages(t *testing.T) {
	for _, x := range []struct {
		dims []int64
		want bool
	}{{[]int64{8, 8}, true}, {[]int64{7, 80}, false}, {[]int64{9, 9, 3}, true}, {[]int64{9, 9, 1}, true},
		{[]int64{9, 9, 4}, false}, {[]int64{100}, false}, {[]int64{3, 9, 9}, false}, {[]int64{0, 9, 3}, false},
		{[]int64{8, mostPixels/8 + 1}, false}} {
		n := int64(1)
		for _, d := range x.dims {
			n *= d
		}
		s := record.Schema{Fields: []record.Field{{Name: "x", Kind: record.Array, DType: record.Uint8, Shape: x.dims}}}
		blob, err := record.Encode(&s, []record.Content{{Dims: x.dims, Data: make([]byte, n)}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := record.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range v.All {
			img, ok := imageOf(&value)
			if ok != x.want {
				t.Errorf("%v is an image: %v", x.dims, ok)
			}
			if _, err := prep.EncodePNG(img); ok && err != nil {
				t.Errorf("%v: %v", x.dims, err)
			}
		}
	}
}
