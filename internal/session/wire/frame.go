package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"larder/internal/errs"
)

// ABI is the version of the frames described here.
const ABI = 1

// HeaderSize is in bytes.
const HeaderSize = 16

// MaxPayload bounds the payload of any frame, in bytes.
const MaxPayload = 16 << 20

// maxOpening bounds HELLO and ATTACH, which a peer sends before it is known to be good for anything.
const maxOpening = 64 << 10

// Type says what a frame is.
type Type uint16

// The frame types; docs/protocol.md has the meaning of each.
const (
	Hello    Type = 1
	Welcome  Type = 2
	Call     Type = 3
	Result   Type = 4
	Error    Type = 5
	Attach   Type = 6
	Ring     Type = 7
	Segment  Type = 8
	Epoch    Type = 9
	Batch    Type = 10
	Release  Type = 11
	EpochEnd Type = 12
	Detach   Type = 13
	Drain    Type = 14
	Ping     Type = 15
	Pong     Type = 16
	Gone     Type = 17
	Wake     Type = 18

	// Of sessions of workers, see work.go.
	Work   Type = 32
	Task   Type = 33
	Done   Type = 34
	Failed Type = 35
	Free   Type = 36
	Grow   Type = 37

	// Picks is of clients with an index stream, see picks.go.
	Picks Type = 38

	// Of sessions of workers that take several samples at once.
	Tasks Type = 39
	Dones Type = 40
	// Words is where a worker says why it ends.
	Words Type = 41
)

// Sizes of the fixed payloads, in bytes.
const (
	SegmentSize = 16
	EpochSize   = 8
	BatchSize   = 48 // without the report
	ReleaseSize = 16
)

// kinds holds name and allowed payload length of every type.
var kinds = [...]struct {
	name     string
	min, max uint32
}{
	Hello:    {"HELLO", 0, maxOpening},
	Welcome:  {"WELCOME", 0, MaxPayload},
	Call:     {"CALL", 0, MaxPayload},
	Result:   {"RESULT", 0, MaxPayload},
	Error:    {"ERROR", 0, MaxPayload},
	Attach:   {"ATTACH", 0, maxOpening},
	Ring:     {"RING", 0, MaxPayload},
	Segment:  {"SEGMENT", SegmentSize, SegmentSize},
	Epoch:    {"EPOCH", EpochSize, EpochSize},
	Batch:    {"BATCH", BatchSize, MaxPayload},
	Release:  {"RELEASE", ReleaseSize, ReleaseSize},
	EpochEnd: {"EPOCH_END", 0, MaxPayload},
	Detach:   {"DETACH", 0, 0},
	Drain:    {"DRAIN", 0, MaxPayload},
	Ping:     {"PING", 0, 0},
	Pong:     {"PONG", 0, 0},
	Gone:     {"GONE", 0, MaxPayload},
	Wake:     {"WAKE", 0, 0},
	Work:     {"WORK", 0, maxOpening},
	Task:     {"TASK", TaskSize, TaskSize},
	Done:     {"DONE", DoneSize, DoneSize},
	Failed:   {"FAILED", 8, maxFailed},
	Free:     {"FREE", FreeSize, FreeSize},
	Grow:     {"GROW", GrowSize, GrowSize},
	Picks:    {"PICKS", PicksSize, MaxPicks},
	Tasks:    {"TASKS", TasksSize + 8, TasksSize + 8*MaxTasks},
	Dones:    {"DONES", DonesSize, DonesSize},
	Words:    {"WORDS", WordsSize, WordsSize},
}

// known reports whether a type has a meaning.
func (t Type) known() bool { return int(t) < len(kinds) && kinds[t].name != "" }

// String is the name in docs/protocol.md.
func (t Type) String() string {
	if !t.known() {
		return fmt.Sprintf("type %d", uint16(t))
	}
	return kinds[t].name
}

// Header starts every frame.
type Header struct {
	Type   Type
	Length uint32 // of the payload, bytes
	ID     uint64 // of the request, 0 in frames that answer no request
}

// AppendHeader appends the 16 bytes of h.
func AppendHeader(dst []byte, h Header) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, ABI)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(h.Type))
	dst = binary.LittleEndian.AppendUint32(dst, h.Length)
	return binary.LittleEndian.AppendUint64(dst, h.ID)
}

// ParseHeader reads the 16 bytes of a header and refuses another abi, an unknown type, and a length that the type
// cannot have.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, Violation("a frame header has 16 bytes, here are %d", len(b))
	}
	if abi := binary.LittleEndian.Uint16(b); abi != ABI {
		return Header{}, Violation("the frame has abi %d, this side speaks abi %d", abi, ABI)
	}
	h := Header{
		Type:   Type(binary.LittleEndian.Uint16(b[2:])),
		Length: binary.LittleEndian.Uint32(b[4:]),
		ID:     binary.LittleEndian.Uint64(b[8:]),
	}
	if !h.Type.known() {
		return h, Violation("frame type %d is unknown", uint16(h.Type))
	}
	if k := kinds[h.Type]; h.Length < k.min || h.Length > k.max {
		return h, Violation("%s carries %d to %d bytes, this frame announces %d", k.name, k.min, k.max, h.Length)
	}
	return h, nil
}

// AppendFrame appends a whole frame. The payload must respect the limits of its type.
func AppendFrame(dst []byte, t Type, id uint64, payload []byte) []byte {
	dst = AppendHeader(dst, Header{Type: t, Length: uint32(len(payload)), ID: id})
	return append(dst, payload...)
}

// BatchFrame is the payload of BATCH.
type BatchFrame struct {
	Segment uint32
	Slot    uint32
	Gen     uint64
	Offset  uint64 // of the slot's first byte in the segment
	Epoch   uint32
	Step    uint32
	Rank    uint32
	Rows    uint32
	Report  []byte // JSON BatchReport, empty when there is nothing to say
}

const flagReport = 1

// Append appends the payload.
func (b BatchFrame) Append(dst []byte) []byte {
	le := binary.LittleEndian
	var flags uint32
	if len(b.Report) > 0 {
		flags |= flagReport
	}
	dst = le.AppendUint32(dst, b.Segment)
	dst = le.AppendUint32(dst, b.Slot)
	dst = le.AppendUint64(dst, b.Gen)
	dst = le.AppendUint64(dst, b.Offset)
	dst = le.AppendUint32(dst, b.Epoch)
	dst = le.AppendUint32(dst, b.Step)
	dst = le.AppendUint32(dst, b.Rank)
	dst = le.AppendUint32(dst, b.Rows)
	dst = le.AppendUint32(dst, flags)
	dst = le.AppendUint32(dst, 0)
	return append(dst, b.Report...)
}

// ParseBatch reads the payload. Report points into p. Flags of later versions are ignored.
func ParseBatch(p []byte) (BatchFrame, error) {
	if len(p) < BatchSize {
		return BatchFrame{}, Violation("a BATCH payload has at least %d bytes, here are %d", BatchSize, len(p))
	}
	le := binary.LittleEndian
	b := BatchFrame{
		Segment: le.Uint32(p), Slot: le.Uint32(p[4:]), Gen: le.Uint64(p[8:]), Offset: le.Uint64(p[16:]),
		Epoch: le.Uint32(p[24:]), Step: le.Uint32(p[28:]), Rank: le.Uint32(p[32:]), Rows: le.Uint32(p[36:]),
	}
	report := le.Uint32(p[40:])&flagReport != 0
	if report != (len(p) > BatchSize) {
		return BatchFrame{}, Violation("the flag of a BATCH and its %d bytes disagree about a report", len(p))
	}
	if report {
		b.Report = p[BatchSize:]
	}
	return b, nil
}

// ReleaseFrame is the payload of RELEASE.
type ReleaseFrame struct {
	Slot   uint32
	Gen    uint64
	Waited time.Duration // how long the client's next() waited; whole microseconds, saturating at 71 minutes
}

// Append appends the payload.
func (r ReleaseFrame) Append(dst []byte) []byte {
	us := max(0, min(r.Waited.Microseconds(), math.MaxUint32))
	dst = binary.LittleEndian.AppendUint32(dst, r.Slot)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(us))
	return binary.LittleEndian.AppendUint64(dst, r.Gen)
}

// ParseRelease reads the payload.
func ParseRelease(p []byte) (ReleaseFrame, error) {
	if len(p) != ReleaseSize {
		return ReleaseFrame{}, Violation("a RELEASE payload has %d bytes, here are %d", ReleaseSize, len(p))
	}
	le := binary.LittleEndian
	return ReleaseFrame{
		Slot: le.Uint32(p), Gen: le.Uint64(p[8:]),
		Waited: time.Duration(le.Uint32(p[4:])) * time.Microsecond,
	}, nil
}

// SegmentFrame is the payload of SEGMENT.
type SegmentFrame struct {
	Segment uint32
	Slot    uint32
	Bytes   uint64
}

// Append appends the payload.
func (s SegmentFrame) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, s.Segment)
	dst = binary.LittleEndian.AppendUint32(dst, s.Slot)
	return binary.LittleEndian.AppendUint64(dst, s.Bytes)
}

// ParseSegment reads the payload.
func ParseSegment(p []byte) (SegmentFrame, error) {
	if len(p) != SegmentSize {
		return SegmentFrame{}, Violation("a SEGMENT payload has %d bytes, here are %d", SegmentSize, len(p))
	}
	le := binary.LittleEndian
	return SegmentFrame{Segment: le.Uint32(p), Slot: le.Uint32(p[4:]), Bytes: le.Uint64(p[8:])}, nil
}

// AppendEpoch appends the payload of EPOCH for an epoch from its beginning.
func AppendEpoch(dst []byte, epoch uint32) []byte { return AppendEpochFrom(dst, epoch, 0) }

// AppendEpochFrom appends the payload of EPOCH. from is 0 for the beginning, or 1 + the step to continue at after a
// restart of the daemon.
func AppendEpochFrom(dst []byte, epoch, from uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, epoch)
	return binary.LittleEndian.AppendUint32(dst, from)
}

// ParseEpoch reads the payload of EPOCH.
func ParseEpoch(p []byte) (epoch, from uint32, err error) {
	if len(p) != EpochSize {
		return 0, 0, Violation("an EPOCH payload has %d bytes, here are %d", EpochSize, len(p))
	}
	return binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), nil
}

// Violation is the error for a peer that breaks the protocol.
func Violation(format string, args ...any) *errs.Error {
	return errs.New(errs.Protocol, "session",
		"client and daemon must come from versions that fit: compare `larder version` with the client's", format, args...)
}
