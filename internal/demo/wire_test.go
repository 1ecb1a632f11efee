package demo

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
)

func TestReceiptsTravelWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := receipt{
			IDs:    rapid.SliceOf(rapid.Int64()).Draw(rt, "ids"),
			Labels: rapid.SliceOf(rapid.Int64Range(-1, 1000)).Draw(rt, "labels"),
		}
		b, err := json.Marshal(&line{Event: "epoch", Receipt: &want})
		if err != nil {
			rt.Fatal(err)
		}
		var got []line
		if err := readLines(bytes.NewReader(append(b, '\n')), func(l *line) { got = append(got, *l) }); err != nil {
			rt.Fatal(err)
		}
		if len(got) != 1 || !slices.Equal(got[0].Receipt.IDs, want.IDs) || !slices.Equal(got[0].Receipt.Labels, want.Labels) {
			rt.Fatalf("%v became %v", want, got)
		}
	})
}

// FuzzReadLines: whatever a client writes, the parent neither panics nor takes more memory than the line had.
func FuzzReadLines(f *testing.F) {
	f.Add([]byte(`{"event":"progress","epoch":1,"step":3,"rows":96,"wait_us":12}` + "\n"))
	f.Add([]byte(`{"event":"epoch","receipt":["AgICAg==","AAAA"]}` + "\n{}\n"))
	f.Add([]byte(`{"event":"error","error":{"reason":"NOT_FOUND","hint":"x"}}`))
	f.Add([]byte(`{"event":"epoch","receipt":["gICAgICAgICAgIA=",""]}`))
	f.Add([]byte("panic: boom\n\ngoroutine 1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = readLines(bytes.NewReader(b), func(l *line) {
			if l.Receipt != nil && len(l.Receipt.IDs) > len(b) {
				t.Fatalf("%d ids out of %d bytes", len(l.Receipt.IDs), len(b))
			}
			if l.Error != nil {
				_ = l.Error.fault().Error()
			}
		})
	})
}

func TestErrorsTravelWhole(t *testing.T) {
	in := errs.New(errs.SampleBad, "a.jpg", "replace it", "decode a.jpg").Because(io.ErrUnexpectedEOF)
	out := newLineError(in).fault()
	if out.Error() != in.Error() || out.Reason != in.Reason || out.Subject != in.Subject {
		t.Errorf("%v became %v", in, out)
	}
}

func TestClientWantsAnOrder(t *testing.T) {
	for _, text := range []string{"", "no newline", "not json\n"} {
		var out bytes.Buffer
		err := Client(t.Context(), strings.NewReader(text), &out)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(errs.From(err).Hint, "larder demo") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A client whose parent dies before "go" ends by itself, and one without a daemon says so.
func TestClientWithoutParentOrDaemon(t *testing.T) {
	o, err := json.Marshal(order{Socket: t.TempDir() + "/none", Job: "j", Epochs: 1, Batch: 8})
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(append(o, '\n')) }()
	var out bytes.Buffer
	if err := Client(t.Context(), r, &out); !errs.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
	w.Close()
	if !strings.Contains(out.String(), `"reason":"UNAVAILABLE"`) {
		t.Errorf("sent the parent %q", out.String())
	}
}
