package source

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/ident"
)

// labelledSet is a dataset whose sample i has the label of place i, where it has one.
type labelledSet struct {
	uri   string // behind the folder
	files map[string]string
}

// mdsLabelled is a shard of images whose labels have an encoding; size 0 = they vary.
func mdsLabelled(t *testing.T, encoding string, size int, labels ...[]byte) map[string]string {
	t.Helper()
	sizes := []any{nil, nil}
	if size > 0 {
		sizes[1] = size
	}
	head, err := json.Marshal(map[string]any{"column_names": []string{"image", "label"},
		"column_encodings": []string{"jpeg", encoding}, "column_sizes": sizes, "format": "mds", "version": 2})
	must(t, err)
	at := 4 + 4*(len(labels)+1) + len(head)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(labels)))
	var data []byte
	for _, l := range labels {
		b = binary.LittleEndian.AppendUint32(b, uint32(at+len(data)))
		data = binary.LittleEndian.AppendUint32(data, 5)
		if size == 0 {
			data = binary.LittleEndian.AppendUint32(data, uint32(len(l)))
		}
		data = append(append(data, "image"...), l...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(at+len(data)))
	return mdsSet(string(b) + string(head) + string(data))
}

func floats64(values ...float64) (out [][]byte) {
	for _, x := range values {
		out = append(out, binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)))
	}
	return out
}

func textsOf(words ...string) (out [][]byte) {
	for _, w := range words {
		out = append(out, []byte(w))
	}
	return out
}

// arrowLabels is a file that pyarrow wrote.
func arrowLabels(t *testing.T, name string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("packed/testdata/units/" + name + ".arrow")
	must(t, err)
	return map[string]string{"a.arrow": string(b)}
}

// imageList is a list beside images 1.jpg to 9.jpg.
func imageList(name, text string) map[string]string {
	files := map[string]string{name: text}
	for i := range 9 {
		files[fmt.Sprintf("%d.jpg", i+1)] = fmt.Sprint("image ", i)
	}
	return files
}

type optional[T any] struct {
	X     int64
	Label *T `parquet:"label,optional"`
}

func optionals[T any](values ...T) (out []optional[T]) {
	for i := range values {
		out = append(out, optional[T]{int64(i), &values[i]})
	}
	return append(out, optional[T]{X: int64(len(values))})
}

type decimalLabel struct {
	X     int64
	Label *int64 `parquet:"label,optional,decimal(0:10)"`
}

func decimals(values ...int64) (out []decimalLabel) {
	for i := range values {
		out = append(out, decimalLabel{int64(i), &values[i]})
	}
	return append(out, decimalLabel{X: int64(len(values))})
}

// Labels 1, 0, 5 and none: a condition on labels never selects the sample without one, in any format.
func TestMissingLabelsOfEachFormat(t *testing.T) {
	for name, x := range map[string]labelledSet{
		"csv":          {"csv:%s", map[string]string{"a.csv": "label,x\n1,1\n0,2\n5,3\n,4\n"}},
		"tsv":          {"csv:%s/a.tsv", map[string]string{"a.tsv": "label\tx\n1\t1\n0\t2\n5\t3\n\t4\n"}},
		"csv floats":   {"csv:%s", map[string]string{"a.csv": "x,y\n1,1.0\n2,0.0\n3,5.0\n4,nan\n"}},
		"csv blank":    {"csv:%s", map[string]string{"a.csv": "label,x\n 1,1\n\ufeff0,2\n5 ,3\n ,4\n"}},
		"csv mark":     {"csv:%s", map[string]string{"a.csv": "\ufefflabel,x\n1,1\n0,2\n5,3\n,4\n"}},
		"csv gz":       {"csv:%s", map[string]string{"a.csv.gz": string(gzipOf(t, []byte("y,label\n,1\n,0\n,5.0\n,\n")))}},
		"parquet 10,0": {"parquet:%s", map[string]string{"a.parquet": parquetOf(t, decimals(1, 0, 5)...)}},
		"csv fields":   {"csv:%s?fields=x,label", map[string]string{"a.csv": "label,x\n1,1\n0,2\n5,3\n,4\n"}},
		"parquet int":  {"parquet:%s", map[string]string{"a.parquet": parquetOf(t, optionals[int32](1, 0, 5)...)}},
		"parquet f64":  {"parquet:%s", map[string]string{"a.parquet": parquetOf(t, optionals(1., 0, 5)...)}},
		"parquet f32":  {"parquet:%s", map[string]string{"a.parquet": parquetOf(t, optionals[float32](1, 0, 5)...)}},
		"parquet NaN":  {"parquet:%s", map[string]string{"a.parquet": parquetOf(t, optionals(1., 0, 5, math.NaN())[:4]...)}},
		"arrow int":    {"hf:%s/a.arrow", arrowLabels(t, "labels-int")},
		"arrow f64":    {"hf:%s/a.arrow", arrowLabels(t, "labels-float")},
		"wds":          {"wds:%s", map[string]string{"a.tar": shard(t, "1=1", "2=0", "3=5", "4=")}},
		"mds str":      {"mds:%s", mdsLabelled(t, "str", 0, textsOf("1", "0", "5", "")...)},
		"mds f64":      {"mds:%s", mdsLabelled(t, "float64", 8, floats64(1, 0, 5, math.NaN())...)},
		"mds decimal":  {"mds:%s", mdsLabelled(t, "str_decimal", 0, textsOf("1", "0", "5", "")...)},
		"mds int":      {"mds:%s", mdsLabelled(t, "int8", 1, []byte{1}, []byte{0}, []byte{5}, []byte{255})},
		"npz f64": {"npz:%s", map[string]string{"a.npz": zipOf(t, zip.Store, "label.npy",
			strings.Replace(ids("<f8", 0), "(0,)", "(4,)", 1)+string(bytes.Join(floats64(1, 0, 5, math.NaN()), nil)))}},
		"list csv":     {"imagefiles:%s/a.csv", imageList("a.csv", "path,label\n1.jpg,1\n2.jpg,0\n3.jpg,5\n4.jpg,\n")},
		"list of keys": {"imagefiles:%s/a.jsonl", imageList("a.jsonl", listOfKeys("1", "0", "5", "null"))},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range x.files { // order-free
				write(t, root, file, text)
			}
			c, _ := open(t, t.TempDir())
			d, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root))
			must(t, err)
			for expr, want := range map[string][]ident.SampleID{
				"label < 1": {1}, "label >= 0": {0, 1, 2}, "label != 1": {1, 2}, "not label == 1": {1, 2},
				"label not in (0, 1)": {2}, "label < 5 or id == 3": {0, 1, 3}, "label % 5 == 0": {1, 2},
				"not label in [0, 3)": {2}, "not label < 9 or id == 0": {0},
			} { // order-free
				if got, err := d.SelectContext(t.Context(), expr); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s selects %v, %v; want %v", expr, got, err, want)
				}
			}
		})
	}
}

// listOfKeys is a list of images with labels in JSON.
func listOfKeys(labels ...string) string {
	var b strings.Builder
	for i, l := range labels {
		fmt.Fprintf(&b, `{"path": "%d.jpg", "label": %s}`+"\n", i+1, l)
	}
	return b.String()
}

// Records may have labels that are no numbers of classes; they are compared as they are, or refused with words.
func TestLabelsOfRecordsAsTheyAre(t *testing.T) {
	for name, x := range map[string]struct {
		uri, text, expr string
		want            []ident.SampleID
		says            string
	}{
		"below 0":     {"csv:%s/a.csv", "label,x\n-5,1\n0,2\n-1,3\n2,4\n", "label < 0", []ident.SampleID{0, 2}, ""},
		"of lines":    {"jsonl:%s/a.jsonl", "{\"y\": -1}\n{\"y\": 1}\n", "y == -1 and label < 0", []ident.SampleID{0}, ""},
		"parts":       {"csv:%s/a.csv", "y,x\n0.5,1\n1,2\n0.25,3\n,4\n", "label < 1", []ident.SampleID{0, 2}, ""},
		"large":       {"csv:%s/a.csv", "label\n3000000000\n1\n", "label > 5", []ident.SampleID{0}, ""},
		"words":       {"csv:%s/a.csv", "label,x\ndog,1\ncat,2\n", "label < 1", nil, "the labels of the dataset are text"},
		"words later": {"csv:%s/a.csv", "label,x\n1,1\ncat,2\n", "label < 1", nil, "the labels of the dataset are text"},
		"none":        {"text:%s/a.txt", "one\ntwo\n", "label < 1", nil, "no sample of the dataset has one"},
	} {
		root := t.TempDir()
		uri := fmt.Sprintf(x.uri, root)
		write(t, root, uri[strings.LastIndexByte(uri, '/')+1:], x.text)
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		got, err := d.SelectContext(t.Context(), x.expr)
		if x.says != "" && (err == nil || !strings.Contains(fullText(err), x.says)) ||
			x.says == "" && (err != nil || !slices.Equal(got, x.want)) {
			t.Errorf("%s: %s selects %v, %v; want %v %s", name, x.expr, got, err, x.want, x.says)
		}
	}
}

// Labels 7, 10, 7 and 3 are these numbers, also where one of them is written in another way.
func TestOddLabelsOfEachFormat(t *testing.T) {
	tests := map[string]labelledSet{
		"mds f64":     {"mds:%s", mdsLabelled(t, "float64", 8, floats64(7, 10, 7, 3)...)},
		"mds float":   {"mds:%s", mdsLabelled(t, "str_float", 0, textsOf("7.0", "10.0", "7.0", "3.0")...)},
		"mds int":     {"mds:%s", mdsLabelled(t, "str_int", 0, textsOf("7", "10", "7", "3")...)},
		"parquet f64": {"parquet:%s", map[string]string{"a.parquet": parquetOf(t, optionals[float64](7, 10, 7, 3)...)}},
		"list floats": {"imagefiles:%s/a.jsonl", imageList("a.jsonl", listOfKeys("7.0", "1e1", "7", "3"))},
		"list text":   {"imagefiles:%s/a.jsonl", imageList("a.jsonl", listOfKeys("7", "10", `"7"`, `"\ufeff3"`))},
	}
	for _, odd := range []string{"3", "3.0", " 3", "3\r\n", "\ufeff3", "3 \n", "+3", "3.", "\u00a03.00"} {
		cell := strings.TrimRight(odd, "\r\n")
		tests[fmt.Sprintf("wds %q", odd)] = labelledSet{"wds:%s",
			map[string]string{"a.tar": shard(t, "1=7", "2=10", "3=7", "4="+odd)}}
		tests[fmt.Sprintf("wds first %q", odd)] = labelledSet{"wds:%s?fields=jpg,cls",
			map[string]string{"a.tar": shard(t, "1=7.0", "2=10", "3=\ufeff7", "4="+odd)}}
		tests[fmt.Sprintf("mds %q", odd)] = labelledSet{"mds:%s", mdsLabelled(t, "str", 0, textsOf("7", "10", "7", odd)...)}
		tests[fmt.Sprintf("list %q", odd)] = labelledSet{"imagefiles:%s/a.csv",
			imageList("a.csv", "path,label\n1.jpg,7\n2.jpg,10\n3.jpg,7\n4.jpg,"+cell+"\n")}
		tests[fmt.Sprintf("csv %q", odd)] = labelledSet{"csv:%s/a.csv",
			map[string]string{"a.csv": "x,label\n1,7\n2,10\n3,7\n4," + cell + "\n"}}
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range x.files { // order-free
				write(t, root, file, text)
			}
			c, _ := open(t, t.TempDir())
			d, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root))
			must(t, err)
			for i, want := range []int64{7, 10, 7, 3} {
				if got := d.Label(ident.SampleID(i)); got != want {
					t.Errorf("sample %d has the label %d, not %d", i, got, want)
				}
			}
			if notes := strings.Join(d.Notes(), "; "); strings.Contains(notes, "label is") {
				t.Errorf("notes %s", notes)
			}
			if got, err := d.SelectContext(t.Context(), "label == 3"); err != nil || !slices.Equal(got, []ident.SampleID{3}) {
				t.Errorf("label == 3 selects %v, %v", got, err)
			}
		})
	}
}

// Numbers among words are told, with the first that is odd and its place.
func TestLabelsOfNumbersAndWordsAreTold(t *testing.T) {
	for name, x := range map[string]struct {
		labelledSet

		notes string
	}{
		"a word": {labelledSet{"wds:%s", map[string]string{"a.tar": shard(t, "1=7", "2=10", "3=cat", "4=x")}},
			`a label is "cat" (a.tar/3)`},
		"a number": {labelledSet{"imagefiles:%s/a.csv",
			imageList("a.csv", "path,label\n1.jpg,dog\n2.jpg,cat\n3.jpg,3\n")}, `a label is "3" (3.jpg)`},
		"a part": {labelledSet{"wds:%s", map[string]string{"a.tar": shard(t, "1=7", "2=0.5")}}, `a label is "0.5" (a.tar/2)`},
		"nan":    {labelledSet{"mds:%s", mdsLabelled(t, "str", 0, textsOf("7", "8", "nan", "n/a")...)}, `a label is "n/a"`},
		"words":  {labelledSet{"wds:%s", map[string]string{"a.tar": shard(t, "1=dog", "2=cat")}}, ""},
	} {
		root, index := t.TempDir(), t.TempDir()
		for file, text := range x.files { // order-free
			write(t, root, file, text)
		}
		for range 2 { // the second time from the saved index
			c, _ := open(t, index)
			d, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root))
			must(t, err)
			notes := strings.Join(d.Notes(), "; ")
			if !strings.Contains(notes, x.notes) || x.notes == "" && strings.Contains(notes, "a label is") {
				t.Errorf("%s: notes %s; want %s", name, notes, x.notes)
			}
		}
	}
	for name, x := range map[string]labelledSet{
		"parts in MDS":   {"mds:%s", mdsLabelled(t, "float64", 8, floats64(1, 0.5)...)},
		"large in a tar": {"wds:%s", map[string]string{"a.tar": shard(t, "1=7", "2=11898508762506083287")}},
		"below 0":        {"imagefiles:%s/a.csv", imageList("a.csv", "path,label\n1.jpg,3\n2.jpg,-5\n")},
		"part in lines":  {"imagefiles:%s/a.jsonl", imageList("a.jsonl", listOfKeys("1", "0.5"))},
	} {
		root := t.TempDir()
		for file, text := range x.files { // order-free
			write(t, root, file, text)
		}
		c, _ := open(t, "")
		if d, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root)); err == nil {
			t.Errorf("%s: labels %q", name, labelled(d))
		} else if !strings.Contains(err.Error(), "label") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A column of CSV that is text because of one cell is told, with that cell and its row.
func TestNumbersAmongWordsOfCSVAreTold(t *testing.T) {
	for name, x := range map[string]struct{ text, says string }{
		"a word":            {"label,x\n7,1\n10,2\nx,3\n7,4\n", `column "label" of a.csv is text: row 4 has "x", and`},
		"a number":          {"x,label\n1,dog\n2,7\n3,cat\n", `column "label" of a.csv is text: row 3 has "7", and`},
		"an id":             {"id,x\n1,1\n2,2\nn/a,3\n", `column "id" of a.csv is text: row 4 has "n/a"`},
		"names":             {"name,x\nr2,1\nd2,2\n7,3\n", ""},
		"empty cells":       {"id,x\n1,1\n,2\n", ""},
		"text":              {"name,x\na,1\n\"long, " + strings.Repeat("x", 99) + "\",2\n", ""},
		"not a field of it": {"id,x\n1,1\nn/a,2\n", "only"},
	} {
		root, index := t.TempDir(), t.TempDir()
		write(t, root, "a.csv", x.text)
		uri := "csv:" + root + "/a.csv"
		if x.says == "only" {
			uri, x.says = uri+"?fields=x", ""
		}
		for range 2 { // the second time from the saved index
			c, _ := open(t, index)
			d, err := c.Add(t.Context(), "", uri)
			must(t, err)
			if notes := strings.Join(d.Notes(), "; "); !strings.HasPrefix(notes, x.says) || x.says == "" && notes != "" {
				t.Errorf("%s: notes %s; want %s", name, notes, x.says)
			}
			if len(d.Ignored()) > 0 {
				t.Errorf("%s: ignored %v", name, d.Ignored())
			}
		}
	}
}

// Classes with names, as Hugging Face writes them, have the number -1 where a sample has none.
func TestNoClassOfNamedOnes(t *testing.T) {
	type row struct {
		Label int64 `parquet:"label"`
		X     int64
	}
	var b bytes.Buffer
	must(t, pq.Write(&b, []row{{1, 0}, {-1, 1}, {0, 2}}, pq.KeyValueMetadata("huggingface",
		`{"info":{"features":{"label":{"_type":"ClassLabel","names":["dog","cat"]}}}}`)))
	root := t.TempDir()
	write(t, root, "a.parquet", b.String())
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "parquet:"+root)
	must(t, err)
	for expr, want := range map[string][]ident.SampleID{
		"label < 1": {2}, "label != 1": {2}, `class == "cat"`: {0}, `class != "cat"`: {2}, `class == ""`: {1},
		`property("label") < 1`: {1, 2},
	} { // order-free
		if got, err := d.SelectContext(t.Context(), expr); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s selects %v, %v; want %v", expr, got, err, want)
		}
	}
}

// A property of JSON is compared as it is, or refused: whole numbers that no float64 holds do not stand beside parts.
func TestLongNumbersAsProperties(t *testing.T) {
	root := t.TempDir()
	long, part := `{"m": {"v": 9007199254740993}}`+"\n", `{"m": {"v": 0.5}}`+"\n"
	write(t, root, "a/a.jsonl", long+part)
	write(t, root, "b/b.jsonl", part+long)
	write(t, root, "c/c.jsonl", long+strings.ReplaceAll(part, "0.5", "9007199254740992"))
	c, _ := open(t, "")
	for _, name := range []string{"a", "b", "c"} {
		d, err := c.Add(t.Context(), "", "jsonl:"+root+"/"+name)
		must(t, err)
		got, err := d.SelectContext(t.Context(), "m.v == 9007199254740993")
		if name == "c" && (err != nil || !slices.Equal(got, []ident.SampleID{0})) ||
			name != "c" && (err == nil || !strings.Contains(err.Error(), "not exact")) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// uint64 of Parquet and Arrow files is what they hold.
func TestLongNumbersOfColumns(t *testing.T) {
	type row struct{ ID uint64 }
	root := t.TempDir()
	write(t, root, "a.arrow", arrowLabels(t, "labels-int")["a.arrow"])
	write(t, root, "a.parquet", parquetOf(t, row{11898508762506083287}, row{3266119658877827603}))
	c, _ := open(t, "")
	for uri, name := range map[string]string{"hf:" + root + "/a.arrow?fields=id": "id", "parquet:" + root: "ID"} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		for s, want := range map[ident.SampleID]string{0: "uint64 11898508762506083287", 1: "uint64 3266119658877827603"} {
			if got := valueText(t, c, d, s, name); got != want {
				t.Errorf("%s: %s, not %s", uri, got, want)
			}
		}
		got, err := d.SelectContext(t.Context(), fmt.Sprintf("property(%q) > 5", name))
		if err == nil || !strings.Contains(err.Error(), "larger than") {
			t.Errorf("%s: %v, %v", uri, got, err)
		}
	}
}
