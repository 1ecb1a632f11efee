package demo

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"larder/internal/errs"
)

// The messages of the parent and a client process, one JSON object a line: the parent writes order, then "go"; the
// client writes lines. The end of the client's standard input means that the parent is gone.

// order describes the job of a client process. It is the first line of its standard input.
type order struct {
	Socket  string `json:"socket"`
	Dataset string `json:"dataset"` // uri
	Job     string `json:"job"`
	Subset  string `json:"subset"`
	Batch   uint32 `json:"batch"`
	Epochs  uint32 `json:"epochs"`
	Seed    uint64 `json:"seed"`
	StepUS  int64  `json:"step_us"` // simulated training time of a batch, microseconds
	Share   string `json:"share"`
}

const goLine = "go"

// line is one report of a client process.
type line struct {
	Event  string `json:"event"`             // ready | progress | epoch | done | error
	Epoch  uint32 `json:"epoch"`             // of progress and epoch
	Step   int    `json:"step,omitempty"`    // batches received in the epoch
	Rows   int64  `json:"rows,omitempty"`    // samples received since the start
	WaitUS int64  `json:"wait_us,omitempty"` // time spent waiting for batches since the start, microseconds

	Receipt *receipt `json:"receipt,omitempty"` // of epoch: what it delivered

	Pictures int64 `json:"pictures,omitempty"` // of done: pictures compared by their pixels
	Repeats  int64 `json:"repeats,omitempty"`  // of done: those seen before

	Error *lineError `json:"error,omitempty"`
}

// lineError carries a errs.Error over the pipe.
type lineError struct {
	Reason  errs.Reason `json:"reason"`
	Subject string      `json:"subject"`
	Message string      `json:"message"`
	Hint    string      `json:"hint"`
}

func (e *lineError) fault() *errs.Error {
	return &errs.Error{Reason: e.Reason, Subject: e.Subject, Message: e.Message, Hint: e.Hint}
}

func newLineError(err error) *lineError {
	f := errs.From(err)
	e := &lineError{Reason: f.Reason, Subject: f.Subject, Message: f.Message, Hint: f.Hint}
	if f.Err != nil {
		e.Message += ": " + f.Err.Error()
	}
	return e
}

// receipt is what one epoch delivered, in the order it came. It travels as base64 of varints: the ids as differences,
// which a line of JSON numbers would make four times as long.
type receipt struct {
	IDs    []int64
	Labels []int64
}

func (r receipt) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]string{packInts(r.IDs), packInts(r.Labels)})
}

func (r *receipt) UnmarshalJSON(b []byte) error {
	var s [2]string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	var err error
	if r.IDs, err = unpackInts(s[0]); err != nil {
		return fmt.Errorf("ids of a receipt: %w", err)
	}
	if r.Labels, err = unpackInts(s[1]); err != nil {
		return fmt.Errorf("labels of a receipt: %w", err)
	}
	return nil
}

func packInts(v []int64) string {
	b := make([]byte, 0, 2*len(v))
	last := int64(0)
	for _, x := range v {
		b = binary.AppendVarint(b, x-last)
		last = x
	}
	return base64.StdEncoding.EncodeToString(b)
}

func unpackInts(s string) ([]int64, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	var v []int64
	last := int64(0)
	for len(b) > 0 {
		d, n := binary.Varint(b)
		if n <= 0 {
			return nil, errors.New("the numbers are cut off")
		}
		last += d
		v = append(v, last)
		b = b[n:]
	}
	return v, nil
}

// maxLine bounds what the parent reads as one line: an epoch of maxSamples samples fits several times.
const maxLine = 8 << 20

// readLines calls f for every line of r until the end; a line that is not JSON, or too long, is an error.
func readLines(r io.Reader, f func(*line)) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	for s.Scan() {
		l := new(line)
		if err := json.Unmarshal(s.Bytes(), l); err != nil {
			text := s.Bytes()
			return fmt.Errorf("a client wrote %q: %w", text[:min(len(text), 200)], err)
		}
		f(l)
	}
	return s.Err()
}
