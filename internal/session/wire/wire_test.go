package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// TestBytes pins the layout of docs/protocol.md: Python writes the same bytes.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct{ got, want string }{
		"header": {
			string(AppendHeader(nil, Header{Type: Segment, Length: 0x01020304, ID: 0x1112131415161718})),
			"\x01\x00\x08\x00\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11",
		},
		"epoch": {string(AppendEpoch(nil, 7)), "\x07\x00\x00\x00\x00\x00\x00\x00"},
		"segment": {string(SegmentFrame{1, 2, 3}.Append(nil)),
			"\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"},
		"release": {
			string(ReleaseFrame{Slot: 1, Gen: 3, Waited: 515 * time.Microsecond}.Append(nil)),
			"\x01\x00\x00\x00\x03\x02\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00",
		},
		"batch": {
			string(BatchFrame{Segment: 1, Slot: 2, Gen: 3, Offset: 4, Epoch: 5, Step: 6, Rank: 7, Rows: 8,
				Report: []byte("{}")}.Append(nil)),
			"\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00" +
				"\x05\x00\x00\x00\x06\x00\x00\x00\x07\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00{}",
		},
	} {
		if c.got != c.want {
			t.Errorf("%s: %x, want %x", name, c.got, c.want)
		}
	}
}

func TestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u32 := func() uint32 { return rapid.Uint32().Draw(t, "u32") }
		u64 := func() uint64 { return rapid.Uint64().Draw(t, "u64") }
		b := BatchFrame{Segment: u32(), Slot: u32(), Gen: u64(), Offset: u64(), Epoch: u32(), Step: u32(), Rank: u32(),
			Rows: u32()}
		b.Report = rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "report")
		if got, err := ParseBatch(b.Append(nil)); err != nil || got.Segment != b.Segment || got.Slot != b.Slot ||
			got.Gen != b.Gen || got.Offset != b.Offset ||
			got.Epoch != b.Epoch || got.Step != b.Step || got.Rank != b.Rank || got.Rows != b.Rows ||
			!bytes.Equal(got.Report, b.Report) {
			t.Fatalf("%+v → %+v, %v", b, got, err)
		}
		s := SegmentFrame{u32(), u32(), u64()}
		if got, err := ParseSegment(s.Append(nil)); err != nil || got != s {
			t.Fatalf("%+v → %+v, %v", s, got, err)
		}
		r := ReleaseFrame{u32(), u64(), time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "waited"))}
		want := r
		want.Waited = min(r.Waited.Truncate(time.Microsecond), math.MaxUint32*time.Microsecond)
		if got, err := ParseRelease(r.Append(nil)); err != nil || got != want {
			t.Fatalf("%+v → %+v, %v", r, got, err)
		}
		e := u32()
		if got, from, err := ParseEpoch(AppendEpochFrom(nil, e, e/2)); err != nil || got != e || from != e/2 {
			t.Fatalf("%d → %d, %v", e, got, err)
		}
	})
	if got, err := ParseRelease(ReleaseFrame{Waited: -time.Hour}.Append(nil)); err != nil || got.Waited != 0 {
		t.Errorf("a clock that went back: %v, %v", got.Waited, err)
	}
}

// TestReader: frames come out as they went in, however the stream is cut, with the place where each began.
func TestReader(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type frame struct {
			t  Type
			id uint64
			p  []byte
		}
		var frames []frame
		var stream []byte
		var starts []int64
		for range rapid.IntRange(0, 8).Draw(rt, "n") {
			f := frame{t: Type(rapid.IntRange(1, int(Gone)).Draw(rt, "type")), id: rapid.Uint64().Draw(rt, "id")}
			k := kinds[f.t]
			n := rapid.IntRange(int(k.min), int(min(k.max, 3*growth))).Draw(rt, "len")
			f.p = bytes.Repeat([]byte{byte(n)}, n)
			starts = append(starts, int64(len(stream)))
			stream = AppendFrame(stream, f.t, f.id, f.p)
			frames = append(frames, f)
		}
		cut := rapid.IntRange(0, len(stream)).Draw(rt, "cut")
		var in io.Reader = bytes.NewReader(stream[:cut])
		if rapid.Bool().Draw(rt, "halves") {
			in = iotest.HalfReader(in)
		}
		r := NewReader(in)
		for i, f := range frames {
			end := starts[i] + HeaderSize + int64(len(f.p))
			h, p, at, err := r.Next()
			if int64(cut) < end {
				want := io.ErrUnexpectedEOF
				if int64(cut) == starts[i] {
					want = io.EOF
				}
				if !errors.Is(err, want) {
					rt.Fatalf("cut at %d of a frame [%d, %d): %v, want %v", cut, starts[i], end, err, want)
				}
				return
			}
			if err != nil || h.Type != f.t || h.ID != f.id || at != starts[i] || !bytes.Equal(p, f.p) {
				rt.Fatalf("frame %d: %+v, %d bytes, at %d, %v", i, h, len(p), at, err)
			}
		}
		if _, _, _, err := r.Next(); !errors.Is(err, io.EOF) {
			rt.Fatal(err)
		}
	})
}

// endless gives zeros forever after a prefix.
type endless struct {
	prefix []byte
	given  int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.prefix)
	e.prefix = e.prefix[n:]
	clear(p[n:])
	e.given += len(p)
	return len(p), nil
}

// TestMemory: a length that is announced takes no memory until the bytes come.
func TestMemory(t *testing.T) {
	head := AppendHeader(nil, Header{Type: Call, Length: MaxPayload})
	r := NewReader(io.MultiReader(bytes.NewReader(head), bytes.NewReader(make([]byte, 10))))
	if _, _, _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	if cap(r.buf) > growth {
		t.Errorf("%d bytes taken for a payload of 10", cap(r.buf))
	}
	e := &endless{prefix: head}
	r = NewReader(e)
	if _, p, _, err := r.Next(); err != nil || len(p) != MaxPayload {
		t.Fatalf("%d bytes, %v", len(p), err)
	}
	if _, _, _, err := r.Next(); !errs.Is(err, errs.Protocol) { // zeros are no header
		t.Error(err)
	}
	if e.given > MaxPayload+2*bufferSize || cap(r.buf) > growth {
		t.Errorf("%d bytes read, %d kept", e.given, cap(r.buf))
	}
}

func TestRefusals(t *testing.T) {
	head := func(abi, typ uint16, length uint32) []byte {
		b := AppendHeader(nil, Header{Type: Type(typ), Length: length})
		b[0], b[1] = byte(abi), byte(abi>>8)
		return b
	}
	for name, b := range map[string][]byte{
		"short": head(1, 1, 2)[:15], "abi 0": head(0, 1, 2), "abi 2": head(2, 1, 2), "type 0": head(1, 0, 2),
		"type 19": head(1, 19, 2), "type 65535": head(1, 65535, 2), "long": head(1, 3, MaxPayload+1),
		"long HELLO": head(1, 1, maxOpening+1), "EPOCH of 7": head(1, 9, 7), "DETACH of 1": head(1, 13, 1),
		"short BATCH": head(1, 10, 47),
	} {
		if _, err := ParseHeader(b); !errs.Is(err, errs.Protocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, e1 := ParseBatch(make([]byte, BatchSize-1))
	_, e2 := ParseBatch(make([]byte, BatchSize+1)) // a report that no flag announces
	flagged := BatchFrame{Report: []byte("{}")}.Append(nil)
	_, e3 := ParseBatch(flagged[:BatchSize])
	_, e4 := ParseRelease(nil)
	_, e5 := ParseSegment(make([]byte, 17))
	_, _, e6 := ParseEpoch(make([]byte, 4))
	for i, err := range []error{e1, e2, e3, e4, e5, e6} {
		if !errs.Is(err, errs.Protocol) {
			t.Errorf("payload %d: %v", i+1, err)
		}
	}
	for typ := range Type(20) {
		if known := typ >= 1 && typ <= Wake; known == strings.HasPrefix(typ.String(), "type ") {
			t.Errorf("%d is called %q", uint16(typ), typ)
		}
	}
}

func TestCall(t *testing.T) {
	p, err := MarshalCall("GetStats", &larderv1.GetStatsRequest{Job: "ä"})
	if err != nil {
		t.Fatal(err)
	}
	name, body, err := ParseCall(p)
	req := new(larderv1.GetStatsRequest)
	if err != nil || name != "GetStats" || UnmarshalStrict(body, req) != nil || req.GetJob() != "ä" {
		t.Errorf("%q %s %v", name, body, err)
	}
	if name, body, err = ParseCall([]byte(`{"method":"X"}`)); err != nil || name != "X" || string(body) != "{}" {
		t.Errorf("without a body: %q %s %v", name, body, err)
	}
	for _, bad := range []string{
		"", "{", "[]", "null", `"x"`, `{}`, `{"method":1}`, `{"method":"X","body":}`, `{"method":"X","extra":1}`,
		`{"method":"X"} x`,
		strings.Repeat("[", 1<<20), `{"method":"X","body":` + strings.Repeat(`{"a":`, 1<<18),
	} {
		if _, _, err := ParseCall([]byte(bad)); !errs.Is(err, errs.Protocol) {
			t.Errorf("%.40s: %v", bad, err)
		}
	}
	deep := `{"spec":{"transform":[{"args":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000) + `}]}}`
	for _, bad := range []string{"", "[]", `{"spec":1}`, `{"speck":{}}`, deep} {
		if err := UnmarshalStrict([]byte(bad), new(larderv1.RegisterJobRequest)); !errs.Is(err, errs.Invalid) {
			t.Errorf("%.40s: %v", bad, err)
		}
	}
	if err := Unmarshal([]byte(`{"later":1,"job":"a"}`), req); err != nil || req.GetJob() != "a" {
		t.Errorf("a client and a newer daemon: %v", err)
	}
}

func TestErrorTravels(t *testing.T) {
	for _, r := range errs.Reasons {
		f := &errs.Error{Reason: r, Subject: "s", Message: "m", Hint: "h", RetryAfter: 1500 * time.Millisecond}
		got := ParseError(MarshalError(f))
		if *got != *f {
			t.Errorf("%+v → %+v", f, got)
		}
	}
	if got := ParseError(MarshalError(errs.New(errs.NotFound, "", "", "open x").
		Because(io.EOF))); got.Message != "open x: EOF" {
		t.Errorf("a cause: %+v", got)
	}
	if got := ParseError(MarshalError(errors.New("boom"))); got.Reason != errs.Internal ||
		!strings.Contains(got.Message, "boom") {
		t.Errorf("an ordinary error: %+v", got)
	}
	if got := ParseError(MarshalError(errs.New(errs.Invalid, "a\xffb", "", "%s",
		strings.Repeat("ä", MaxPayload)))); got.Reason != errs.Invalid ||
		got.Subject != "a\uFFFDb" || len(got.Message) > maxOpening+8 || !strings.HasSuffix(got.Message, "ä…") {
		t.Errorf("what JSON cannot carry: %.20q, %d bytes", got.Subject, len(got.Message))
	}
	if got := ParseError([]byte("no JSON")); got.Reason != errs.Protocol {
		t.Errorf("a broken error: %+v", got)
	}
	if got := ParseError([]byte("{}")); got.Reason != errs.Internal {
		t.Errorf("an empty error: %+v", got)
	}
}

func TestDefaultSocket(t *testing.T) {
	t.Setenv("LARDER_SOCKET", "")
	there := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", there)
	if s := DefaultSocket(); s != there+"/larder/larder.sock" {
		t.Error(s)
	}
	for _, dir := range []string{"", "relative", there + "/gone"} {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		if s := DefaultSocket(); !strings.HasPrefix(s, "/tmp/larder-") || !strings.HasSuffix(s, "/larder.sock") {
			t.Error(s)
		}
	}
	t.Setenv("LARDER_SOCKET", "/x/y")
	if s := DefaultSocket(); s != "/x/y" {
		t.Error(s)
	}
}

// FuzzReader: no bytes make the reader panic, hang or take memory for what did not come; what it accepts, it would
// write the same way.
func FuzzReader(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendFrame(nil, Hello, 1, []byte("{}")))
	f.Add(AppendFrame(AppendFrame(nil, Epoch, 2, AppendEpoch(nil, 3)), Detach, 3, nil))
	f.Add(AppendFrame(nil, Batch, 0, BatchFrame{Report: []byte("{}")}.Append(nil)))
	f.Add(AppendHeader(nil, Header{Type: Call, Length: MaxPayload}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		var back []byte
		for {
			h, p, at, err := r.Next()
			if err != nil {
				if !bytes.HasPrefix(data, back) {
					t.Error("frames do not write back to their bytes")
				}
				if cap(r.buf) > 2*len(data)+growth {
					t.Errorf("%d bytes taken for %d", cap(r.buf), len(data))
				}
				return
			}
			if at != int64(len(back)) {
				t.Errorf("a frame at %d, the bytes before it are %d", at, len(back))
			}
			back = AppendFrame(back, h.Type, h.ID, p)
		}
	})
}

// FuzzPayload: no payload makes a parser panic.
func FuzzPayload(f *testing.F) {
	f.Add([]byte(`{"method":"RegisterJob","body":{"spec":{"name":"a"}}}`))
	f.Add(BatchFrame{Report: []byte(`{"quarantined":[{"id":"1"}]}`)}.Append(nil))
	f.Add([]byte(`{"reason":"INTERNAL","retryAfter":"1s"}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		if b, err := ParseBatch(p); err == nil {
			if again, err := ParseBatch(b.Append(nil)); err != nil || again.Gen != b.Gen ||
				!bytes.Equal(again.Report, b.Report) {
				t.Errorf("%+v → %+v, %v", b, again, err)
			}
			_ = Unmarshal(b.Report, new(larderv1.BatchReport))
		}
		if _, body, err := ParseCall(p); err == nil {
			_ = UnmarshalStrict(body, new(larderv1.RegisterJobRequest))
		}
		_, _ = ParseRelease(p)
		_, _ = ParseSegment(p)
		_, _, _ = ParseEpoch(p)
		if why, where := LastWords(p); strings.ContainsAny(why, "\x00\n") || !utf8.ValidString(why+where) ||
			len(where) > MaxTraceback+8 {
			t.Errorf("last words %q, %q", why, where)
		}
		if tasks, err := ParseTasks(p); err == nil {
			if got := AppendTasks(nil, tasks); len(got) == 0 {
				t.Error("no frame of tasks")
			}
		}
		if d, err := ParseDones(p); err == nil && !bytes.Equal(d.Append(nil), p) {
			t.Errorf("%+v", d)
		}
		if d, err := ParseDone(p); err == nil && !bytes.Equal(d.Append(nil), p) {
			t.Errorf("%+v", d)
		}
		if _, f, err := ParseFailed(p); err == nil && !utf8.ValidString(f.Type+f.Message+f.Traceback) {
			t.Errorf("%+v", f)
		}
		_, _ = ParseWork(p)
		if e := ParseError(p); e.Reason == "" {
			t.Error("an error without a reason")
		}
	})
}

// Tasks that differ in sample and instance only travel together, the others alone, all in order.
func TestTasksTravelTogether(t *testing.T) {
	var tasks []TaskFrame
	add := func(t TaskFrame, n int) {
		for i := range n {
			t.Sample, t.Instance = uint64(3*len(tasks)), uint32(i)
			t.Task = uint64(len(tasks) + 1)
			tasks = append(tasks, t)
		}
	}
	add(TaskFrame{Seed: 1, Last: 2, Timeout: time.Second}, MaxTasks+3)
	add(TaskFrame{Seed: 2, Last: 2}, 1)
	add(TaskFrame{Seed: 2, Last: 2, Alone: true}, 2)
	add(TaskFrame{Seed: 2, First: 1, Last: 2, Bytes: 8}, 2)
	add(TaskFrame{Seed: 2, Last: 2, Recipe: 1}, 2)
	r := NewReader(bytes.NewReader(AppendTasks(nil, tasks)))
	var got []TaskFrame
	var frames []Type
	for {
		h, p, _, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, h.Type)
		if h.Type == Task {
			x, err := ParseTask(p)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, x)
			continue
		}
		xs, err := ParseTasks(p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, xs...)
	}
	if want := []Type{Tasks, Tasks, Task, Task, Task, Task, Task, Tasks}; !slices.Equal(frames, want) {
		t.Errorf("%v, want %v", frames, want)
	}
	for i := range tasks {
		tasks[i].Alone = false
	}
	if !slices.Equal(got, tasks) {
		t.Error("other tasks arrive")
	}
}
