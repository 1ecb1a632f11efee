package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// boardEngine hands out its sink: the test is the engine. happened gets what it is asked for in an attachment.
type boardEngine struct {
	seg      *shm.Segment
	sink     chan session.Sink
	happened chan string
}

const boardAt = 4096

func (boardEngine) Hello(*larderv1.HelloRequest) *larderv1.HelloResponse { return nil }

func (e boardEngine) Attach(_ context.Context, _ *larderv1.AttachRequest, _ shm.Peer,
	out session.Sink) (session.Attachment, error) {
	e.sink <- out
	return boardAttachment{e.seg, e.happened}, nil
}

type boardAttachment struct {
	seg      *shm.Segment
	happened chan string
}

func (a boardAttachment) note(what string) {
	if a.happened != nil {
		a.happened <- what
	}
}

func (a boardAttachment) Info() *larderv1.AttachResponse {
	return &larderv1.AttachResponse{Slots: 2, SlotBytes: 2048, SegmentBytes: 8192, Board: boardAt,
		Posts: uint32(wire.Posts(2))}
}
func (a boardAttachment) Segment() *shm.Segment { return a.seg }
func (a boardAttachment) StartEpoch(context.Context, uint32, uint32) (*larderv1.EpochResponse, error) {
	a.note("epoch")
	return &larderv1.EpochResponse{}, nil
}
func (a boardAttachment) Release(uint32, uint64, time.Duration)        { a.note("release") }
func (a boardAttachment) Picks(context.Context, wire.PicksFrame) error { return nil }
func (a boardAttachment) Collect()                                     { a.note("collect") }
func (boardAttachment) Close(bool)                                     {}

// TestBoard: batches without a report are posted once the client has opened the board, in one order with the frames.
func TestBoard(t *testing.T) {
	seg, err := shm.Create("ring", 8192)
	if err != nil {
		t.Fatal(err)
	}
	engine := boardEngine{seg, make(chan session.Sink, 1), nil}
	s := session.NewServer(session.Config{Engine: engine, Service: service{}})
	l, err := session.Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		if err := errors.Join(s.Close(), <-done); err != nil {
			t.Error(err)
		}
		seg.Release()
	}()
	p := (&daemon{t: t, socket: l.Path()}).greeted()
	p.send(wire.Attach, 2, `{"job": "x"}`)
	sink := <-engine.sink
	if h, _, _, err := p.r.Next(); err != nil || h.Type != wire.Ring {
		t.Fatalf("%s, %v", h.Type, err)
	}
	frame := func(want wire.Type) {
		t.Helper()
		if h, _, _, err := p.r.Next(); err != nil || h.Type != want {
			t.Fatalf("%s, %v; want %s", h.Type, err, want)
		}
	}
	board := seg.Bytes()[boardAt:]
	post := func(n int) (seq, frames uint64, step uint32) {
		at := 128 + (n-1)%wire.Posts(2)*64
		le := binary.LittleEndian
		return le.Uint64(board[at:]), le.Uint64(board[at+8:]), le.Uint32(board[at+36:])
	}
	sink.Batch(session.Batch{Rows: 1})
	frame(wire.Batch) // not opened yet
	board[0] = 1
	sink.Batch(session.Batch{Rows: 1, Step: 1})
	if seq, frames, step := post(1); seq != 1 || frames != 1 || step != 1 {
		t.Errorf("post %d after %d frames, step %d", seq, frames, step)
	}
	sink.Batch(session.Batch{Rows: 1, Step: 2, Report: &larderv1.BatchReport{}})
	frame(wire.Batch)
	board[64] = 1 // the client sleeps
	sink.Batch(session.Batch{Rows: 1, Step: 3})
	frame(wire.Wake)
	if seq, frames, step := post(2); seq != 2 || frames != 2 || step != 3 {
		t.Errorf("post %d after %d frames, step %d", seq, frames, step)
	}
	sink.EpochEnd(&larderv1.EpochEnd{})
	frame(wire.EpochEnd)
	sink.Gone(errs.New(errs.Stale, "x", "", "taken over"))
	frame(wire.Gone)
	for n := 1; n <= 2; n++ {
		if _, frames, _ := post(n); frames != uint64(n)|wire.LastPosts {
			t.Errorf("post %d is not marked: %x", n, frames)
		}
	}
	sink.Batch(session.Batch{Rows: 1, Step: 4})
	if seq, _, _ := post(3); seq != 0 {
		t.Error("something was posted after GONE")
	}
}

// TestAnyFrameHasTheWordsRead: WAKE says nothing else, and what a client asks for comes after what it gave back. A
// client that sends RELEASE, as before there were words, is understood as before.
func TestAnyFrameHasTheWordsRead(t *testing.T) {
	seg, err := shm.Create("ring", 8192)
	if err != nil {
		t.Fatal(err)
	}
	engine := boardEngine{seg, make(chan session.Sink, 1), make(chan string, 100)}
	s := session.NewServer(session.Config{Engine: engine, Service: service{}})
	l, err := session.Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		if err := errors.Join(s.Close(), <-done); err != nil {
			t.Error(err)
		}
		seg.Release()
	}()
	p := (&daemon{t: t, socket: l.Path()}).greeted()
	p.send(wire.Wake, 0, "") // without an attachment there is nothing to read
	p.send(wire.Attach, 2, `{"job": "x"}`)
	<-engine.sink
	if h, _, _, err := p.r.Next(); err != nil || h.Type != wire.Ring {
		t.Fatalf("%s, %v", h.Type, err)
	}
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if got := <-engine.happened; got != w {
				t.Fatalf("%s, want %s", got, w)
			}
		}
	}
	p.send(wire.Wake, 0, "")
	expect("collect")
	p.send(wire.Release, 0, string(wire.ReleaseFrame{Slot: 1, Gen: 2}.Append(nil)))
	expect("release")
	p.send(wire.Epoch, 3, string(wire.AppendEpochFrom(nil, 0, 0)))
	expect("collect", "epoch")
	p.send(wire.Ping, 4, "")
	expect("collect")
}
