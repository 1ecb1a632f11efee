package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Sizes of the payloads of worker sessions, in bytes.
const (
	TaskSize = 64
	DoneSize = 24
	FreeSize = 8
	GrowSize = 8
	// WordsSize is that of WORDS, which has the bytes of a memory as GROW has them.
	WordsSize = 8

	maxFailed = 64 << 10
)

// MaxWords is how large the memory may be in which a worker says why it ends, in bytes.
const MaxWords = 64 << 10

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
	Batch  bool    `json:"batch"`  // it takes TASKS, and may answer with DONES
	Tells  bool    `json:"tells"`  // its client says how workers ended, in Ended of those that take their places
	// Ended says how the worker ended in whose place this one comes; nil = there is none.
	Ended *EndedWorker `json:"ended"`
}

// EndedWorker says how a worker process ended, as only its parent knows.
type EndedWorker struct {
	PID int32  `json:"pid"` // as WorkRequest.PID
	How string `json:"how"` // in words, on one line
}

// WorkResult answers WORK. The descriptor of the input memory rides on it.
type WorkResult struct {
	Worker  uint32 `json:"worker"`  // its number in this daemon
	InBytes uint64 `json:"inBytes"` // of the input memory
	Window  uint32 `json:"window"`  // tasks that it may have at once
	// What a record and the worker's memory may have at most, in bytes, and the memory of WORDS.
	MaxRecord uint64 `json:"maxRecord"`
	MaxMemory uint64 `json:"maxMemory"`
	MaxWords  uint64 `json:"maxWords"`
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
	e := req.Ended
	if e != nil && (e.How == "" || len(e.How) > maxHow || strings.ContainsFunc(e.How, unicode.IsControl)) {
		return nil, Violation("a WORK says how a worker ended on a line of 1 to %d bytes, this one on %d", maxHow, len(e.How))
	}
	return req, nil
}

// maxHow is how many bytes say how a worker ended.
const maxHow = 200

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
	Alone    bool // it travels in a TASK of its own: a worker ended when it was at this task and others
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

// Sizes of the frames of several samples, in bytes, and the most tasks of one TASKS.
const (
	TasksSize = 40 // and 8 for each sample
	DonesSize = 32
	MaxTasks  = 1024
)

// follows reports whether a task can stand behind another one in one TASKS: it differs in sample and instance only.
func (t *TaskFrame) follows(o *TaskFrame) bool {
	return t.Task == o.Task+1 && !t.Alone && !o.Alone && t.Bytes == 0 && o.Bytes == 0 && t.First == 0 && o.First == 0 &&
		t.Recipe == o.Recipe && t.Last == o.Last && t.Seed == o.Seed && t.Timeout == o.Timeout &&
		max(t.Sample, o.Sample) <= math.MaxUint32
}

// AppendTasks appends the frames of tasks to a worker that takes TASKS: one for each run of those that differ in sample
// and instance only.
func AppendTasks(dst []byte, tasks []TaskFrame) []byte {
	le := binary.LittleEndian
	for len(tasks) > 0 {
		t, n := &tasks[0], 1
		for n < min(len(tasks), MaxTasks) && tasks[n].follows(&tasks[n-1]) {
			n++
		}
		if n == 1 {
			dst = AppendHeader(dst, Header{Type: Task, Length: TaskSize})
			dst = t.Append(dst)
			tasks = tasks[1:]
			continue
		}
		dst = AppendHeader(dst, Header{Type: Tasks, Length: uint32(TasksSize + 8*n)})
		dst = le.AppendUint64(dst, t.Task)
		dst = le.AppendUint64(dst, t.Seed)
		dst = le.AppendUint32(dst, t.Recipe)
		dst = le.AppendUint32(dst, t.First)
		dst = le.AppendUint32(dst, t.Last)
		dst = le.AppendUint32(dst, uint32(n))
		dst = le.AppendUint64(dst, uint64(max(t.Timeout.Milliseconds(), 0)))
		for i := range tasks[:n] {
			dst = le.AppendUint32(dst, uint32(tasks[i].Sample))
			dst = le.AppendUint32(dst, tasks[i].Instance)
		}
		tasks = tasks[n:]
	}
	return dst
}

// ParseTasks reads the payload of TASKS.
func ParseTasks(p []byte) ([]TaskFrame, error) {
	le := binary.LittleEndian
	if len(p) < TasksSize {
		return nil, Violation("a TASKS payload has at least %d bytes, here are %d", TasksSize, len(p))
	}
	n := int(le.Uint32(p[28:]))
	if n < 1 || n > MaxTasks || len(p) != TasksSize+8*n {
		return nil, Violation("a TASKS of %d tasks has %d bytes, here are %d", n, TasksSize+8*n, len(p))
	}
	out := make([]TaskFrame, n)
	for i := range out {
		out[i] = TaskFrame{
			Task: le.Uint64(p) + uint64(i), Seed: le.Uint64(p[8:]), Recipe: le.Uint32(p[16:]), First: le.Uint32(p[20:]),
			Last: le.Uint32(p[24:]), Timeout: time.Duration(le.Uint64(p[32:])) * time.Millisecond,
			Sample: uint64(le.Uint32(p[TasksSize+8*i:])), Instance: le.Uint32(p[TasksSize+8*i+4:]),
		}
	}
	return out, nil
}

// DonesFrame is the payload of DONES: one stack of records that answers tasks whose numbers follow each other.
type DonesFrame struct {
	First  uint64 // task
	Count  uint32 // of tasks
	Offset uint64 // of the stack in the worker's memory
	Bytes  uint64
}

// Append appends the payload.
func (d DonesFrame) Append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, d.First)
	dst = le.AppendUint32(dst, d.Count)
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint64(dst, d.Offset)
	return le.AppendUint64(dst, d.Bytes)
}

// ParseDones reads the payload of DONES.
func ParseDones(p []byte) (DonesFrame, error) {
	if len(p) != DonesSize {
		return DonesFrame{}, Violation("a DONES payload has %d bytes, here are %d", DonesSize, len(p))
	}
	le := binary.LittleEndian
	d := DonesFrame{First: le.Uint64(p), Count: le.Uint32(p[8:]), Offset: le.Uint64(p[16:]), Bytes: le.Uint64(p[24:])}
	if d.Count < 1 || d.Count > MaxTasks || le.Uint32(p[12:]) != 0 || d.First > math.MaxUint64-MaxTasks {
		return DonesFrame{}, Violation("a DONES of %d tasks from %d on, and %d are the most", d.Count, d.First, MaxTasks)
	}
	return d, nil
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

// AppendWords appends the payload of WORDS: the bytes of the memory in which a worker says why it ends, whose
// descriptor rides on the frame.
func AppendWords(dst []byte, n uint64) []byte { return binary.LittleEndian.AppendUint64(dst, n) }

// ParseWords reads the payload of WORDS.
func ParseWords(p []byte) (uint64, error) { return parseOne(p, "WORDS") }

// LastWords reads what a worker has left in the memory of WORDS: text up to the first 0. Its first line, which may be
// empty, says why the worker ends, and what follows is where it was.
func LastWords(p []byte) (why, where string) {
	if i := bytes.IndexByte(p, 0); i >= 0 {
		p = p[:i]
	}
	why, where, _ = strings.Cut(string(p), "\n")
	return cut(strings.TrimSpace(why), 4<<10), cutFront(strings.TrimSpace(where), MaxTraceback)
}

func parseOne(p []byte, name string) (uint64, error) {
	if len(p) != 8 {
		return 0, Violation("a %s payload has 8 bytes, here are %d", name, len(p))
	}
	return binary.LittleEndian.Uint64(p), nil
}
