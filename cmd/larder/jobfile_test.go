package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

func structOf(t *testing.T, m map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseJob(t *testing.T) {
	got, err := parseJob("job.yaml", []byte(`
name: lr-0.1            # comments are fine
dataset: imagefolder:/data
subset: "label < 600"
batchSize: 256
shuffle: true
seed: 18446744073709551615
drop_last: true
even:
transform:
  - RandomResizedCrop: {size: 224, scale: [0.08, 1.0]}
  - RandomHorizontalFlip
  - HFlip:
  - {name: Normalize, args: {mean: imagenet, std: null, on: yes}}
  - kind: builtin
    name: ToTensor
onError: skip
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &larderv1.JobSpec{Name: "lr-0.1", Dataset: "imagefolder:/data", Subset: "label < 600", BatchSize: 256,
		Shuffle: true,
		Seed:    18446744073709551615, DropLast: true, OnError: "skip", Transform: []*larderv1.Op{
			{Name: "RandomResizedCrop", Args: structOf(t, map[string]any{"size": 224, "scale": []any{.08, 1.0}})},
			{Name: "RandomHorizontalFlip"}, {Name: "HFlip"},
			{Name: "Normalize", Args: structOf(t, map[string]any{"mean": "imagenet", "std": nil, "on": "yes"})},
			{Kind: "builtin", Name: "ToTensor"},
		}}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Every field of a JobSpec can be written in a file.
func TestEveryFieldOfAJob(t *testing.T) {
	full := &larderv1.JobSpec{Name: "n", Dataset: "d", Subset: "s", BatchSize: 1, Shuffle: true, Order: "fixed", Seed: 2,
		DropLast: true,
		Even:     "none", WorldSize: 3, Replica: 4, NumNodes: 5, Share: "augmented", OnError: "skip", Prefetch: 6, Epochs: 7,
		SkipEmpty: true, Advance: "on_request", Cache: "items", Indices: []byte{1, 0, 0, 0},
		SampleTimeout: durationpb.New(30 * time.Second),
		Schema: &larderv1.Schema{Structure: "{}", Fields: []*larderv1.SchemaField{
			{Name: "x", Kind: "array", Dtype: "uint8", Shape: []int64{2, -1}}}},
		Transform: []*larderv1.Op{{Kind: "k", Name: "Resize",
			Args: structOf(t, map[string]any{"size": []any{1, "x", true, nil, map[string]any{"a": 1}}})}}}
	fields := full.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if !full.ProtoReflect().Has(fields.Get(i)) {
			t.Fatalf("this test leaves %s empty", fields.Get(i).Name())
		}
	}
	for _, names := range []bool{false, true} {
		raw, err := protojson.MarshalOptions{UseProtoNames: names}.Marshal(full)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseJob("x", raw)
		if err != nil || !proto.Equal(got, full) {
			t.Errorf("from %s: %v, %v", raw, got, err)
		}
	}
}

func TestJobMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "no job in it",
		"- a\n":                                 "must hold keys",
		"naem: x\n":                             "j:1:1: unknown key \"naem\" in the job (did you mean name?)",
		"zzzzzzz: x\n":                          "known are name, dataset",
		"name: a\nname: b\n":                    "j:2:1: key \"name\" is there twice",
		"batch_size: 8\nbatchSize: 8\n":         "there twice",
		"batch_size: -1\n":                      "whole number",
		"batch_size: 1.5\n":                     "whole number",
		"seed: 18446744073709551616\n":          "18446744073709551615",
		"shuffle: maybe\n":                      "true or false",
		"name: [a]\n":                           "takes one value",
		"transform: Resize\n":                   "must be a list",
		"transform: [3]\n":                      "an op must be",
		"schema: 3\n":                           "schema cannot be read",
		"schema: {feilds: []}\n":                "schema cannot be read",
		"indices: \"*\"\n":                      "indices cannot be read",
		"sample_timeout: soon\n":                "sample_timeout cannot be read",
		"transform: [{args: {}}]\n":             "an op without a name",
		"transform: [{name: a, agrs: 3}]":       "did you mean args?",
		"transform: [{Resize: 224}]\n":          "must be keys and values",
		"transform: [{Resize: {s: .inf}}]\n":    "not a number",
		"transform: [{Resize: {s: 1, s: 2}}]\n": "there twice",
		"transform: [&a {Resize: {s: *a}}]\n":   "aliases",
		"a: {\n":                                "j:1: ",
		"name: a\n---\nname: b\n":               "more than one",
		"transform: [{R: " + strings.Repeat("{a: ", 40) + "1" + strings.Repeat("}", 40) + "}]": "deep",
	} {
		_, err := parseJob("j", []byte(text))
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) || errs.From(err).Hint == "" {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	_, err := parseJob("j", []byte("naem: x\nbatch_size: y\nshuffle: z\n"))
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("of three mistakes this is reported: %v", err)
	}
}

func TestReadJobFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(path, []byte("name: a\nbatch_size: 4\ndataset: imagefolder:data/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := readJobFile(path, nil)
	if err != nil || s.GetDataset() != "imagefolder:"+filepath.Join(dir, "data/x") {
		t.Errorf("%v, %v", s, err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	s, err = readJobFile("-", strings.NewReader("{name: a, batch_size: 4, dataset: \"imagefolder:y\"}"))
	if err != nil || s.GetDataset() != "imagefolder:"+filepath.Join(wd, "y") {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := readJobFile("-", bytes.NewReader(make([]byte, maxJobFile+1))); !errs.Is(err, errs.Invalid) {
		t.Errorf("huge: %v", err)
	}
	_, err = readJobFile("-", strings.NewReader("shuffle: true\n"))
	for _, want := range []string{"standard input: name is missing (e.g. name: lr-0.1)", "dataset is missing",
		"batch_size is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, err := readJobFile(dir, nil); !errs.Is(err, errs.Invalid) {
		t.Errorf("a folder: %v", err)
	}
	for in, want := range map[string]string{"train": "train", "imagefolder:/a": "imagefolder:/a",
		"imagefolder:": "imagefolder:", "s3:b": "s3:b", "imagefolder:~/x": "imagefolder:~/x",
		"imagefolder:s3://b/x": "imagefolder:s3://b/x", "imagefolder:x/s3://b": "imagefolder:/d/x/s3:/b"} {
		if got := absoluteURI(in, "/d"); got != want {
			t.Errorf("absoluteURI(%q) = %q", in, got)
		}
	}
}

func FuzzParseJob(f *testing.F) {
	f.Add([]byte("name: a\ntransform: [{Resize: {size: [1, 2]}}, HFlip]\n"))
	f.Add([]byte("{\"batchSize\": 3, \"transform\": [{\"name\": \"x\", \"args\": {}}]}"))
	f.Add([]byte("transform: [&a {R: {x: *a}}]\n? [x]\n: y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := parseJob("fuzz", data)
		if err != nil {
			if errs.From(err).Reason != errs.Invalid {
				t.Fatalf("%v", err)
			}
			return
		}
		raw, err := protojson.Marshal(spec)
		if err != nil {
			t.Fatalf("cannot be sent: %v", err)
		}
		back, err := parseJob("back", raw)
		if err != nil || !proto.Equal(back, spec) {
			t.Fatalf("%s is read back as %v, %v", raw, back, err)
		}
	})
}
