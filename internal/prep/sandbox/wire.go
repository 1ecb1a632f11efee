package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"larder/internal/prep"
)

// Requests and answers are packets of a SOCK_SEQPACKET socket: little-endian words of 8 bytes, and behind an answer the
// JSON of a prep.Failure.
const (
	requestBytes = 10 * 8
	answerBytes  = 6 * 8
	maxFailure   = 4 << 10 // of JSON
	maxAnswer    = answerBytes + maxFailure
	maxText      = 1 << 10 // of one text of a failure
	maxSetup     = 4 << 10 // of a setup, or of what is in force after it
)

// page is what the pixels in shared memory are aligned to.
const page = 4096

// pixelsAt is where the pixels lie in shared memory: behind the stored bytes.
func pixelsAt(stored int64) int64 { return (stored + page - 1) &^ (page - 1) }

// request asks for pixels of the stored bytes that lie at the beginning of the shared memory.
type request struct {
	seq    uint64
	stored int64 // bytes of the stored image
	pixels int64 // bytes that there are for its pixels, from pixelsAt(stored) on
	want   prep.Want
}

func (r *request) append(b []byte) []byte {
	x := &r.want
	for _, v := range []int64{int64(r.seq), r.stored, r.pixels, int64(x.W), int64(x.H), int64(x.As), int64(x.Part.X),
		int64(x.Part.Y), int64(x.Part.W), int64(x.Part.H)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// parseRequest reads a request about memory of so many bytes.
func parseRequest(b []byte, memory int64) (r request, err error) {
	if len(b) != requestBytes {
		return r, fmt.Errorf("a request of %d bytes", len(b))
	}
	v := words(b)
	r = request{seq: uint64(v[0]), stored: v[1], pixels: v[2], want: prep.Want{
		W: int(v[3]), H: int(v[4]), As: prep.Planes(v[5]), Part: area(v[6:]),
	}}
	if r.stored < 0 || r.stored > memory || r.pixels < 0 || pixelsAt(r.stored) > memory-r.pixels || v[5] != v[5]&0xff {
		return r, errors.New("a request beyond the shared memory")
	}
	return r, nil
}

func words(b []byte) []int64 {
	v := make([]int64, len(b)/8)
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return v
}

func area(v []int64) prep.Area {
	return prep.Area{X: int(v[0]), Y: int(v[1]), W: int(v[2]), H: int(v[3])}
}

// Kinds of answers.
const (
	answerPixels = 1
	answerBad    = 2
)

// answer is what a child says about a request. bad is set if the image is.
type answer struct {
	seq uint64
	got prep.Area
	bad *prep.Failure
}

func (a *answer) append(b []byte) ([]byte, error) {
	kind := int64(answerPixels)
	if a.bad != nil {
		kind = answerBad
	}
	for _, v := range []int64{int64(a.seq), kind, int64(a.got.X), int64(a.got.Y), int64(a.got.W), int64(a.got.H)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	if a.bad == nil {
		return b, nil
	}
	f := *a.bad
	f.Message, f.Hint, f.Cause = printable(f.Message), printable(f.Hint), printable(f.Cause)
	text, err := json.Marshal(&f)
	if err == nil && len(text) > maxFailure { // escapes made it longer: what matters stays
		f.Hint, f.Cause = "", ""
		text, err = json.Marshal(&f)
	}
	return append(b, text...), err
}

// parseAnswer reads an untrusted answer to r. An error means that the child sent a wrong one.
func parseAnswer(b []byte, r *request) (a answer, err error) {
	if len(b) < answerBytes || len(b) > maxAnswer {
		return a, fmt.Errorf("it answered with %d bytes", len(b))
	}
	v := words(b[:answerBytes])
	a = answer{seq: uint64(v[0]), got: area(v[2:])}
	switch {
	case a.seq != r.seq:
		return a, errors.New("it answered another request")
	case v[1] == answerPixels && len(b) == answerBytes:
		if !r.want.Fits(a.got, int(r.pixels)) {
			return a, fmt.Errorf("it decoded another part than was asked for, or more than there is room for: %+v", a.got)
		}
		return a, nil
	case v[1] != answerBad:
		return a, fmt.Errorf("its answer of %d bytes is of kind %d", len(b), v[1])
	}
	a.bad = new(prep.Failure)
	if err := json.Unmarshal(b[answerBytes:], a.bad); err != nil {
		return a, errors.New("what it says is wrong with the image cannot be read")
	}
	f := a.bad
	f.Message, f.Hint, f.Cause = printable(f.Message), printable(f.Hint), printable(f.Cause)
	if f.Message == "" || f.At > r.stored {
		return a, errors.New("what it says is wrong with the image makes no sense")
	}
	f.At = max(f.At, -1)
	return a, nil
}

// printable is text without what a terminal or a log would obey, of maxText bytes at most.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r != utf8.RuneError && unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}

// setup is what a child gets before its first request, as JSON.
type setup struct {
	Parent int         `json:"parent"` // pid of the daemon
	Memory int64       `json:"memory"` // bytes of the shared memory
	Limits prep.Limits `json:"limits"`
	Drop   bool        `json:"drop"`   // the daemon is root: become another user
	NoNet  bool        `json:"no_net"` // it was started in a network of its own
}

// User is the uid and gid of children of a daemon that is root: those that systems keep for nobody.
const User = 65534

// State is what protects the daemon from a child.
type State struct {
	In    []string `json:"in"`    // what is in force, in words
	Lacks []string `json:"lacks"` // what is not, and why
}

// equal reports whether both say the same.
func (s *State) equal(o *State) bool {
	return slices.Equal(s.In, o.In) && slices.Equal(s.Lacks, o.Lacks)
}

// String is one line for people.
func (s *State) String() string {
	out := strings.Join(s.In, ", ")
	if len(s.Lacks) > 0 {
		out += "; not in force: " + strings.Join(s.Lacks, "; ")
	}
	return out
}
