package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// Sizes of the payloads of worker sessions, in bytes.
const (
	TaskSize = 64
	DoneSize = 24
	FreeSize = 8
	GrowSize = 8

	maxFailed = 64 << 10
)

// MaxTraceback is how much of a worker's traceback is kept, in bytes.
const MaxTraceback = 16 << 10

// WorkRequest is the payload of WORK: a worker process introduces itself.
type WorkRequest struct {
	Dataset  string   `json:"dataset"`  // its uri
	Recipes  []string `json:"recipes"`  // fingerprints of jobs (Job.recipe), hex; tasks name them by their place
	PID      int32    `json:"pid"`      // of the worker, as its own PID namespace counts; 0 = the socket's
	OutBytes uint64   `json:"outBytes"` // of its memory, whose descriptor rides on the frame
	Client   string   `json:"client"`   // who started it, for people
	// Inline says that the worker is the training process itself, which works only while its script waits for a batch: it
	// gets the tasks of jobs of this process (PID) first.
	Inline bool    `json:"inline"`
	Window uint32  `json:"window"` // tasks it takes at most at once; 0 = workers.window
	Mark   *uint64 `json:"mark"`   // where in its memory it says which task it is at; nil = nowhere
}

// WorkResult answers WORK. The descriptor of the input memory rides on it.
type WorkResult struct {
	Worker  uint32 `json:"worker"`  // its number in this daemon
	InBytes uint64 `json:"inBytes"` // of the input memory
	Window  uint32 `json:"window"`  // tasks that it may have at once
}

// maxRecipes is how many recipes one worker names.
const maxRecipes = 256

// ParseWork reads the payload of WORK.
func ParseWork(p []byte) (*WorkRequest, error) {
	req := new(WorkRequest)
	if err := strictJSON(p, req); err != nil {
		v := Violation(`a WORK holds {"dataset", "recipes", "pid", "outBytes", "client"}`)
		v.Err = err
		return nil, v
	}
	if len(req.Recipes) == 0 || len(req.Recipes) > maxRecipes {
		return nil, Violation("a WORK names 1 to %d recipes, this one %d", maxRecipes, len(req.Recipes))
	}
	return req, nil
}

func strictJSON(p []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// TaskFrame is the payload of TASK: what a worker is to make.
type TaskFrame struct {
	Task     uint64 // by which it is answered
	Sample   uint64
	Seed     uint64
	Instance uint32
	Recipe   uint32 // place in WorkRequest.Recipes
	First    uint32 // step with which to begin: 0 is the item, i the i-th step of the recipe
	Last     uint32 // step before which to end
	Offset   uint64 // of the input record in the input memory
	Bytes    uint64 // of the input record; 0 = there is none, because First is 0
	Timeout  time.Duration
}

// Append appends the payload. The timeout has whole milliseconds.
func (t *TaskFrame) Append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, t.Task)
	dst = le.AppendUint64(dst, t.Sample)
	dst = le.AppendUint64(dst, t.Seed)
	dst = le.AppendUint32(dst, t.Instance)
	dst = le.AppendUint32(dst, t.Recipe)
	dst = le.AppendUint32(dst, t.First)
	dst = le.AppendUint32(dst, t.Last)
	dst = le.AppendUint64(dst, t.Offset)
	dst = le.AppendUint64(dst, t.Bytes)
	return le.AppendUint64(dst, uint64(max(t.Timeout.Milliseconds(), 0)))
}

// ParseTask reads the payload of TASK.
func ParseTask(p []byte) (TaskFrame, error) {
	if len(p) != TaskSize {
		return TaskFrame{}, Violation("a TASK payload has %d bytes, here are %d", TaskSize, len(p))
	}
	le := binary.LittleEndian
	return TaskFrame{
		Task: le.Uint64(p), Sample: le.Uint64(p[8:]), Seed: le.Uint64(p[16:]), Instance: le.Uint32(p[24:]),
		Recipe: le.Uint32(p[28:]), First: le.Uint32(p[32:]), Last: le.Uint32(p[36:]), Offset: le.Uint64(p[40:]),
		Bytes: le.Uint64(p[48:]), Timeout: time.Duration(le.Uint64(p[56:])) * time.Millisecond,
	}, nil
}

// DoneFrame is the payload of DONE: where the record lies in the worker's memory.
type DoneFrame struct{ Task, Offset, Bytes uint64 }

// Append appends the payload.
func (d DoneFrame) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, d.Task)
	dst = binary.LittleEndian.AppendUint64(dst, d.Offset)
	return binary.LittleEndian.AppendUint64(dst, d.Bytes)
}

// ParseDone reads the payload of DONE.
func ParseDone(p []byte) (DoneFrame, error) {
	if len(p) != DoneSize {
		return DoneFrame{}, Violation("a DONE payload has %d bytes, here are %d", DoneSize, len(p))
	}
	le := binary.LittleEndian
	return DoneFrame{Task: le.Uint64(p), Offset: le.Uint64(p[8:]), Bytes: le.Uint64(p[16:])}, nil
}

// Failure is the JSON of FAILED: why a worker could not make a record.
type Failure struct {
	Type      string `json:"type"` // of the exception
	Message   string `json:"message"`
	Traceback string `json:"traceback"`
	Retry     bool   `json:"retry"` // it may succeed if it is tried again, also by this worker
}

// AppendFailed appends the payload of FAILED.
func AppendFailed(dst []byte, task uint64, f Failure) []byte {
	b, err := json.Marshal(f)
	if err != nil { // a struct of strings and a bool: cannot happen
		b = []byte("{}")
	}
	return append(binary.LittleEndian.AppendUint64(dst, task), b...)
}

// ParseFailed reads the payload of FAILED. Text that is no UTF-8 is made so, and what is too long is cut.
func ParseFailed(p []byte) (task uint64, f Failure, err error) {
	if len(p) < 8 {
		return 0, f, Violation("a FAILED payload has at least 8 bytes, here are %d", len(p))
	}
	if jerr := strictJSON(p[8:], &f); jerr != nil {
		v := Violation(`a FAILED holds a task and {"type", "message", "traceback", "retry"}`)
		v.Err = jerr
		return 0, f, v
	}
	f.Type, f.Message = cut(f.Type, 256), cut(f.Message, 4<<10)
	f.Traceback = cutFront(f.Traceback, MaxTraceback)
	return binary.LittleEndian.Uint64(p), f, nil
}

func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// cutFront keeps the end, where a traceback says what happened.
func cutFront(s string, n int) string {
	if len(s) > n {
		s = s[len(s)-n:]
		for len(s) > 0 && !utf8.RuneStart(s[0]) {
			s = s[1:]
		}
		s = "…" + s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// AppendFree appends the payload of FREE: the offset of a record that was taken over.
func AppendFree(dst []byte, offset uint64) []byte {
	return binary.LittleEndian.AppendUint64(dst, offset)
}

// ParseFree reads the payload of FREE.
func ParseFree(p []byte) (uint64, error) { return parseOne(p, "FREE") }

// AppendGrow appends the payload of GROW: the bytes of a worker's new memory, whose descriptor rides on the frame.
func AppendGrow(dst []byte, n uint64) []byte { return binary.LittleEndian.AppendUint64(dst, n) }

// ParseGrow reads the payload of GROW.
func ParseGrow(p []byte) (uint64, error) { return parseOne(p, "GROW") }

func parseOne(p []byte, name string) (uint64, error) {
	if len(p) != 8 {
		return 0, Violation("a %s payload has 8 bytes, here are %d", name, len(p))
	}
	return binary.LittleEndian.Uint64(p), nil
}
