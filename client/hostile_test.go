package client_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"larder/client"
	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

// broken is a daemon that answers HELLO, ATTACH and EPOCH well and then sends what a test wants.
type broken struct {
	l    *net.UnixListener
	info *larderv1.AttachResponse
	ring *shm.Segment
	noFD bool
	then func(c *net.UnixConn)
}

func goodInfo() *larderv1.AttachResponse {
	return &larderv1.AttachResponse{
		Job:   &larderv1.Job{Spec: &larderv1.JobSpec{Name: "a", BatchSize: 2}},
		Slots: 2, SlotBytes: 4096, SegmentBytes: 8192,
		Fields: []*larderv1.Field{
			{Name: "image", Dtype: "uint8", Ragged: true},
			{Name: "index", Dtype: "int64", Offset: 64, SampleBytes: 8},
			{Name: "label", Dtype: "int64", Offset: 128, SampleBytes: 8},
		},
	}
}

// listen serves one session.
func (b *broken) listen(t testing.TB, dir string) {
	t.Helper()
	if b.info == nil {
		b.info = goodInfo()
	}
	var err error
	if b.ring, err = shm.Create("broken", 8192); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.ring.Release)
	if b.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "broken"), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := b.l.AcceptUnix()
			if err != nil {
				return
			}
			b.serve(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = b.l.Close()
		<-done
	})
}

func (b *broken) serve(c *net.UnixConn) {
	r := wire.NewReader(c)
	for {
		h, _, _, err := r.Next()
		if err != nil {
			return
		}
		answer := wire.AppendFrame(nil, wire.Result, h.ID, []byte("{}"))
		switch h.Type {
		case wire.Hello:
			answer = wire.AppendFrame(nil, wire.Welcome, h.ID, []byte(`{"abi":1}`))
		case wire.Attach:
			p, _ := wire.Marshal(b.info)
			answer = wire.AppendFrame(nil, wire.Ring, h.ID, p)
			if !b.noFD {
				_ = shm.WriteWithFD(c, answer, b.ring.FD())
				continue
			}
		case wire.Release:
			continue
		default:
		}
		_, _ = c.Write(answer)
		if h.Type == wire.Epoch && b.then != nil {
			b.then(c)
		}
	}
}

// attach listens in a folder of its own and attaches a client.
func (b *broken) attach(t testing.TB) (*client.Conn, *client.Stream) {
	t.Helper()
	b.listen(t, t.TempDir())
	c := b.dial(t)
	s, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func (b *broken) dial(t testing.TB) *client.Conn {
	t.Helper()
	c, err := client.Dial(t.Context(), b.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBrokenRing: a field table that does not fit is refused before anything is read through it.
func TestBrokenRing(t *testing.T) {
	fds, segs := openFDs(t), segments()
	for name, spoil := range map[string]func(*larderv1.AttachResponse){
		"field beyond the slot":    func(i *larderv1.AttachResponse) { i.Fields[1].Offset = 4096 - 8 },
		"overflow in a field":      func(i *larderv1.AttachResponse) { i.Fields[1].SampleBytes = 1 << 63 },
		"overflow of an offset":    func(i *larderv1.AttachResponse) { i.Fields[1].Offset = 1<<64 - 8 },
		"slots beyond the segment": func(i *larderv1.AttachResponse) { i.Slots = 3 },
		"overflow of slots":        func(i *larderv1.AttachResponse) { i.Slots, i.SlotBytes = 1<<31, 1<<40 },
		"segment too large":        func(i *larderv1.AttachResponse) { i.SegmentBytes = 1 << 40 },
		"segment negative":         func(i *larderv1.AttachResponse) { i.SegmentBytes = 1 << 63 },
		"segment empty":            func(i *larderv1.AttachResponse) { i.SegmentBytes = 0 },
		"no rows":                  func(i *larderv1.AttachResponse) { i.Job = nil },
		"many rows":                func(i *larderv1.AttachResponse) { i.Job.Spec.BatchSize = 1 << 31 },
		"no slots":                 func(i *larderv1.AttachResponse) { i.Slots = 0 },
		"a flat image":             func(i *larderv1.AttachResponse) { i.Fields[0].Ragged = false },
		"words beyond the segment": func(i *larderv1.AttachResponse) { i.Board, i.Releases = 4096, i.SegmentBytes-32 },
		"words before the board":   func(i *larderv1.AttachResponse) { i.Board, i.Releases = 4096, 2048 },
		"words without a board":    func(i *larderv1.AttachResponse) { i.Releases = 2048 },
		"words between words":      func(i *larderv1.AttachResponse) { i.Board, i.Releases = 1024, 2052 },
		"overflow of words":        func(i *larderv1.AttachResponse) { i.Board, i.Releases = 1024, 1<<64-8 },
		"no descriptor":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := &broken{info: goodInfo(), noFD: spoil == nil}
			if spoil != nil {
				spoil(b.info)
			}
			b.listen(t, t.TempDir())
			c := b.dial(t)
			defer c.Close()
			if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"}); !errs.Is(err, errs.Protocol) {
				t.Errorf("%v", err)
			}
		})
	}
	if n := openFDs(t); n > fds || segments() != segs {
		t.Errorf("descriptors: %d before, %d after; segments: %d, %d", fds, n, segs, segments())
	}
}

// TestBrokenFrames: what points outside of shared memory ends the stream with an error that every later call repeats.
func TestBrokenFrames(t *testing.T) {
	fds, segs := openFDs(t), segments()
	batch := func(f wire.BatchFrame) []byte { return wire.AppendFrame(nil, wire.Batch, 0, f.Append(nil)) }
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		frame []byte
		spoil func(ring []byte)
		fd    bool
		want  errs.Reason
	}{
		"segment":      {frame: batch(wire.BatchFrame{Segment: 1})},
		"slot":         {frame: batch(wire.BatchFrame{Slot: 2})},
		"rows":         {frame: batch(wire.BatchFrame{Rows: 3})},
		"offset":       {frame: batch(wire.BatchFrame{Offset: 8192 - 100})},
		"huge offset":  {frame: batch(wire.BatchFrame{Offset: 1<<64 - 1})},
		"report":       {frame: batch(wire.BatchFrame{Report: []byte("{")})},
		"ragged entry": {frame: batch(wire.BatchFrame{Rows: 1}), spoil: func(p []byte) { le.PutUint64(p, 4097) }},
		"ragged size": {frame: batch(wire.BatchFrame{Rows: 1}),
			spoil: func(p []byte) { le.PutUint32(p[8:], 1<<31); le.PutUint32(p[12:], 1<<31); le.PutUint32(p[16:], 4) }},
		"no descriptor": {
			frame: wire.AppendFrame(nil, wire.Segment, 0, wire.SegmentFrame{Segment: 1, Slot: 0, Bytes: 4096}.Append(nil)),
		},
		"segment again": {
			frame: wire.AppendFrame(nil, wire.Segment, 0, wire.SegmentFrame{Segment: 0, Slot: 0, Bytes: 4096}.Append(nil)),
			fd:    true,
		},
		"segment of no slot": {
			frame: wire.AppendFrame(nil, wire.Segment, 0, wire.SegmentFrame{Segment: 1, Slot: 2, Bytes: 4096}.Append(nil)),
			fd:    true,
		},
		"segment too large": {
			frame: wire.AppendFrame(nil, wire.Segment, 0, wire.SegmentFrame{Segment: 1, Slot: 0, Bytes: 1<<64 - 1}.Append(nil)),
			fd:    true,
		},
		"an answer to nothing": {frame: wire.AppendFrame(nil, wire.Result, 999, []byte("{}"))},
		"a client's frame":     {frame: wire.AppendFrame(nil, wire.Detach, 0, nil)},
		"noise":                {frame: []byte("0123456789abcdef")},
		"EPOCH_END":            {frame: wire.AppendFrame(nil, wire.EpochEnd, 0, []byte("{"))},
		"ERROR": {frame: wire.AppendFrame(nil, wire.Error, 0,
			wire.MarshalError(errs.New(errs.Internal, "", "", "x"))), want: errs.Internal},
		"GONE": {frame: wire.AppendFrame(nil, wire.Gone, 0, []byte(`{"reason":"JOB_ENDED"}`)),
			want: errs.JobEnded},
		"a batch after GONE": {
			frame: append(wire.AppendFrame(nil, wire.Gone, 0, []byte(`{"reason":"JOB_ENDED"}`)), batch(wire.BatchFrame{})...),
			want:  errs.JobEnded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want == "" {
				c.want = errs.Protocol
			}
			b := new(broken)
			b.then = func(conn *net.UnixConn) {
				if c.spoil != nil {
					c.spoil(b.ring.Bytes())
				}
				if c.fd {
					_ = shm.WriteWithFD(conn, c.frame, b.ring.FD())
				} else {
					_, _ = conn.Write(c.frame)
				}
			}
			conn, s := b.attach(t)
			defer conn.Close()
			if err := s.StartEpoch(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := s.Next(t.Context()); !errs.Is(err, c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
			}
			// Answered after all that came before; an error when that ended the connection.
			_ = conn.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{}, new(larderv1.GetStatsResponse))
		})
	}
	if n := openFDs(t); n > fds || segments() != segs {
		t.Errorf("descriptors: %d before, %d after; segments: %d, %d", fds, n, segs, segments())
	}
}

// TestFenced: batches that wait are good when the job has ended, and dropped when another client has the rank.
func TestFenced(t *testing.T) {
	for reason, good := range map[errs.Reason]bool{errs.JobEnded: true, errs.Stale: false} {
		t.Run(string(reason), func(t *testing.T) {
			b := new(broken)
			b.then = func(c *net.UnixConn) {
				f := wire.AppendFrame(nil, wire.Batch, 0, wire.BatchFrame{}.Append(nil))
				f = wire.AppendFrame(f, wire.EpochEnd, 0, []byte(`{"batches":"1"}`))
				f = wire.AppendFrame(f, wire.Gone, 0, wire.MarshalError(errs.New(reason, "a", "", "over")))
				_, _ = c.Write(f)
			}
			c, s := b.attach(t)
			defer c.Close()
			if err := s.StartEpoch(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if err := c.Call(t.Context(), "GetStats", &larderv1.GetStatsRequest{}, new(larderv1.GetStatsResponse)); err != nil {
				t.Fatal(err) // answered after GONE, so all of it has arrived
			}
			batch, err := s.Next(t.Context())
			if !good {
				if !errs.Is(err, errs.Stale) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			batch.Release()
			if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestEarlyNextEpoch: batches of the next epoch that come early wait for it; an answer to EPOCH that comes after its
// caller gave up still counts.
func TestEarlyNextEpoch(t *testing.T) {
	b := new(broken)
	n := uint32(0)
	b.then = func(c *net.UnixConn) {
		f := wire.AppendFrame(nil, wire.Batch, 0, wire.BatchFrame{Epoch: n, Step: 0}.Append(nil))
		f = wire.AppendFrame(f, wire.EpochEnd, 0, mustJSON(&larderv1.EpochEnd{Epoch: n, Batches: 1}))
		f = wire.AppendFrame(f, wire.Batch, 0, wire.BatchFrame{Epoch: n + 1, Slot: 1}.Append(nil))
		f = wire.AppendFrame(f, wire.EpochEnd, 0, mustJSON(&larderv1.EpochEnd{Epoch: n + 1, Batches: 1}))
		_, _ = c.Write(f)
		n += 2
		b.then = nil
	}
	c, s := b.attach(t)
	defer c.Close()
	for e := range uint32(2) {
		if err := s.StartEpoch(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		got, err := s.Next(t.Context())
		if err != nil || got.Epoch != e {
			t.Fatalf("epoch %d: %v, %v", e, got, err)
		}
		got.Release()
		for range 2 {
			if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) || s.End().GetEpoch() != e {
				t.Fatalf("the end of epoch %d: %v, %v", e, s.End(), err)
			}
		}
	}
	if err := s.StartEpoch(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(testenv.DeadlineOnWait(t.Context())); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing comes: %v", err)
	}
}

// FuzzClient: no bytes of a daemon make the client panic, hang, or leak a descriptor or a mapping.
func FuzzClient(f *testing.F) {
	f.Add([]byte{}, 0)
	f.Add(wire.AppendFrame(nil, wire.Batch, 0, wire.BatchFrame{Rows: 2, Report: []byte("{}")}.Append(nil)), 0)
	f.Add(wire.AppendFrame(nil, wire.Segment, 0, wire.SegmentFrame{Segment: 1, Slot: 1, Bytes: 8192}.Append(nil)), 1)
	f.Add(wire.AppendFrame(nil, wire.EpochEnd, 0, []byte(`{"batches":"7"}`)), 0)
	f.Add(wire.AppendFrame(wire.AppendFrame(nil, wire.Ping, 4, nil), wire.Drain, 0, []byte(`{"reason":"UNAVAILABLE"}`)), 3)
	script := make(chan func(*net.UnixConn), 1)
	b := &broken{then: func(c *net.UnixConn) { (<-script)(c) }}
	b.listen(f, f.TempDir())
	segs := segments()
	f.Fuzz(func(t *testing.T, data []byte, fd int) {
		script <- func(c *net.UnixConn) {
			if at := fd & 0xff; fd != 0 && at < len(data) {
				_, _ = c.Write(data[:at])
				_ = shm.WriteWithFD(c, data[at:], b.ring.FD())
			} else {
				_, _ = c.Write(data)
			}
			_ = c.CloseWrite()
		}
		before := openFDs(t)
		c := b.dial(t)
		s, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"})
		if err != nil {
			t.Fatal(err)
		}
		err = s.StartEpoch(t.Context(), 0)
		for err == nil {
			var batch *client.Batch
			if batch, err = s.Next(t.Context()); err == nil {
				for row := range batch.Rows {
					pix, _, _, _ := batch.Image(row)
					for i := range pix {
						pix[i]++
					}
				}
				_, _, _ = batch.Index(), batch.Label(), batch.Field("none")
				batch.Release()
			}
		}
		_ = c.Close()
		if n := segments(); n != segs {
			t.Errorf("%d segments before, %d after", segs, n)
		}
		if n := openFDs(t); n > before+1 { // the daemon's end may still be open
			t.Errorf("%d descriptors before, %d after", before, n)
		}
		clear(b.ring.Bytes())
	})
}

func mustJSON(m proto.Message) []byte {
	b, err := wire.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}
