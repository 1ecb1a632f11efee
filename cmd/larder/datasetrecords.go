package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

// What a table shows of one value.
const (
	fewNumbers = 8  // that are shown all
	textRunes  = 60 // of text
	firstBytes = 12 // of bytes
)

// shownField is a field of one sample, in a few words.
type shownField struct {
	Name   string   `json:"name"`
	Kind   string   `json:"kind"`
	DType  string   `json:"dtype"`
	Shape  []int64  `json:"shape"`
	Bytes  int64    `json:"bytes"`            // stored
	Format string   `json:"format,omitempty"` // of an image file
	Value  string   `json:"value"`
	Min    *float64 `json:"min,omitempty"` // of an array
	Max    *float64 `json:"max,omitempty"`
	Mean   *float64 `json:"mean,omitempty"`
	NaN    int64    `json:"nan,omitempty"`
}

// fieldsOf opens a stored record, and calls f for each field with what there is to say of it.
func fieldsOf(w *prep.Worker, s *record.Schema, stored []byte, f func(x *record.Value, shown shownField)) error {
	v, err := record.Open(stored)
	if err != nil {
		return err
	}
	if v.Len() != len(s.Fields) {
		return fmt.Errorf("%d fields, the schema says %d", v.Len(), len(s.Fields))
	}
	for i, x := range v.All {
		shown := shownField{Name: s.Fields[i].Name, Kind: s.Fields[i].Kind.String(), DType: s.Fields[i].DType.String(),
			Shape: x.Dims(), Bytes: int64(len(x.Data))}
		if isFile(&s.Fields[i], &x) {
			format, wide, high, err := w.Header(x.Data)
			if err != nil {
				return fmt.Errorf("field %s: %w", shown.Name, err)
			}
			shown.Format, shown.Shape = format, []int64{int64(high), int64(wide), 3}
			shown.Value = format + " file, " + units.Size(shown.Bytes)
		} else {
			shown.describe(&x)
		}
		f(&x, shown)
	}
	return nil
}

// isFile reports whether a stored value is an image file that jobs get decoded.
func isFile(f *record.Field, x *record.Value) bool {
	return f.Kind == record.Array && x.Kind == record.Bytes
}

// describe says what a value is.
func (s *shownField) describe(x *record.Value) {
	switch x.Kind {
	case record.Text:
		text := printable(string(x.Data))
		if s.Value = clip(text, textRunes); s.Value != text {
			s.Value += fmt.Sprintf(" (%s bytes)", count(s.Bytes))
		}
	case record.Bytes:
		s.Value = hex.EncodeToString(x.Data[:min(len(x.Data), firstBytes)])
		if len(x.Data) > firstBytes {
			s.Value += fmt.Sprintf("… (%s bytes)", count(s.Bytes))
		}
	case record.Scalar:
		s.Value = x.NumberText(0)
	case record.Array:
		r := x.Range()
		s.Min, s.Max, s.Mean, s.NaN = number(r.Min, r), number(r.Max, r), number(r.Mean(), r), r.NaN
		if x.Len() > fewNumbers {
			s.Value = rangeText(r)
			return
		}
		all := make([]string, x.Len())
		for i := range all {
			all[i] = x.NumberText(i)
		}
		s.Value = "[" + strings.Join(all, " ") + "]"
	}
}

// number is nil where JSON has no such number, or there is none.
func number(x float64, r record.Range) *float64 {
	if r.Numbers == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return nil
	}
	return &x
}

func sixDigits(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

func rangeText(r record.Range) string {
	if r.Numbers == 0 {
		return plural(r.NaN, "NaN", "NaN")
	}
	text := fmt.Sprintf("%s to %s, mean %s", sixDigits(r.Min), sixDigits(r.Max), sixDigits(r.Mean()))
	if r.NaN > 0 {
		text += fmt.Sprintf(", %s NaN", count(r.NaN))
	}
	return text
}

func shapeText(dims []int64) string {
	parts := make([]string, len(dims))
	for i, d := range dims {
		if parts[i] = fmt.Sprint(d); d < 0 {
			parts[i] = "…"
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// record reads a sample and says what its fields are. A panic is a bug, but of one sample, as in the daemon.
func (v *verifying) record(
	ctx context.Context, id ident.ObjectID, s *record.Schema, f func(*record.Value, shownField),
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errs.New(errs.SampleBad, "", "please report this", "larder panicked while preparing it: %v", p)
		}
	}()
	if v.enc, err = v.cat.Read(ctx, id, v.enc[:0]); err != nil {
		return err
	}
	return fieldsOf(v.w, s, v.enc, f)
}

// holdsRecords reports whether the samples of an answer are records of files, whose values this process can show.
func holdsRecords(r *larderv1.InspectDatasetResponse) bool {
	return slices.ContainsFunc(r.GetSamples(), func(s *larderv1.Sample) bool { return s.GetFormat() == "record" })
}

// shownRecord is a sample that the daemon named, with its fields or with why there are none.
type shownRecord struct {
	sample *larderv1.Sample
	fields []shownField
	reason string
}

// records reads the samples that the daemon named.
func (l *localData) records(ctx context.Context, list []*larderv1.Sample) ([]shownRecord, error) {
	v := verifying{verifier: &verifier{}, cat: l.cat, w: prep.NewWorker(prep.Limits{})}
	defer v.w.Close()
	out := make([]shownRecord, 0, len(list))
	for _, s := range list {
		x := shownRecord{sample: s}
		id := ident.SampleID(s.GetId())
		if s.GetId() >= uint64(l.data.Len()) || l.data.Key(id) != s.GetKey() {
			x.reason = "the dataset has changed since: larder dataset refresh"
		} else if err := v.record(ctx, l.data.Object(id), l.data.Schema(), func(_ *record.Value, f shownField) {
			x.fields = append(x.fields, f)
		}); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err := l.lost(ctx, id, err); err != nil {
				return nil, err
			}
			x.fields, x.reason = nil, l.badOf(id, err).Reason
		}
		out = append(out, x)
	}
	return out, nil
}

// inspectRecords prints a dataset of records with the values of the samples that the daemon named. They are read here.
func inspectRecords(ctx context.Context, out *outputFlag, w io.Writer, r *larderv1.InspectDatasetResponse) error {
	l, err := openLocal(ctx, r.GetDataset().GetUri(), true)
	if err != nil {
		return err
	}
	defer l.close()
	if l.data.Schema() == nil {
		return errs.New(errs.Unavailable, l.data.URI(), "larder dataset refresh, and inspect again",
			"%s has no records now", l.data.URI())
	}
	list, err := l.records(ctx, r.GetSamples())
	if err != nil {
		return err
	}
	if out.form == "table" {
		return tableTo(w, func(t *tabwriter.Writer) { recordsTable(t, r, l.data.Schema(), list) })
	}
	raw, err := recordsJSON(r, list)
	if err != nil {
		return fmt.Errorf("write %s: %w", out.form, err)
	}
	return out.raw(w, raw)
}

// recordsJSON is the daemon's answer with the fields of each sample in it.
func recordsJSON(r *larderv1.InspectDatasetResponse, list []shownRecord) ([]byte, error) {
	raw, err := protoJSON.Marshal(r)
	if err != nil {
		return nil, err
	}
	var all map[string]json.RawMessage
	var samples []map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(all["samples"], &samples); err != nil {
		return nil, err
	}
	for i := range samples {
		samples[i]["fields"] = list[i].fields
		if list[i].reason != "" {
			samples[i]["reason"] = list[i].reason
		}
	}
	if all["samples"], err = json.Marshal(samples); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// labelText is a label with the name of its class, where that says more.
func labelText(label int64, class string) string {
	if class == "" || class == fmt.Sprint(label) {
		return fmt.Sprint(label)
	}
	return fmt.Sprintf("%d %s", label, class)
}

func recordsTable(t *tabwriter.Writer, r *larderv1.InspectDatasetResponse, s *record.Schema, list []shownRecord) {
	oneDataset(t, r.GetDataset())
	row(t)
	row(t, fmt.Sprintf("selected %s of %s samples, records of %s", count(r.GetSelected()),
		count(r.GetDataset().GetSamples()), plural(len(s.Fields), "field", "fields")))
	for i := range list {
		x := &list[i]
		row(t)
		label := ""
		if x.sample.GetLabel() >= 0 {
			label = ", label " + labelText(x.sample.GetLabel(), clip(x.sample.GetClassName(), 30))
		}
		row(t, fmt.Sprintf("sample %d, %s%s", x.sample.GetId(), clipPath(x.sample.GetKey(), 60), label))
		if x.reason != "" {
			row(t, "cannot be read: "+clip(x.reason, 200))
			continue
		}
		row(t, "FIELD", "KIND", "DTYPE", "SHAPE", "BYTES", "VALUE")
		for j := range x.fields {
			f := &x.fields[j]
			row(t, clip(f.Name, 40), f.Kind, f.DType, shapeText(f.Shape), units.Size(f.Bytes), f.Value)
		}
	}
}
