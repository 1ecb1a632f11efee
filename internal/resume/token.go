// Package resume is the text that a Loader's state_dict is made of, and what goes with it: the set of what was
// delivered, packed, and a sketch of the files of a subset, from which the few that differ can be named. It is pure;
// who resolves a token is exec.
package resume

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"larder/internal/errs"
)

// Version is the newest of the tokens that this larder makes and reads. A token has the oldest that can say what it
// says: 2 only with Before.
const Version = 2

// MaxToken bounds what is read, in bytes: a portable token of 36 million samples is smaller, and a record of the
// journal can hold it.
const MaxToken = 6 << 20

// Token says where a job is: so many batches of an epoch were handed out on every rank. It names a place in an order
// log, or, portable, carries what was delivered itself. It is the same on every rank. Numbers of 64 bits are text, for
// JSON.
type Token struct {
	Version  int    `json:"version"`
	Job      string `json:"job"`      // name, for people
	Log      string `json:"log"`      // id of the order log, 16 hex digits
	ID       uint32 `json:"id"`       // of the job in it
	Epoch    uint32 `json:"epoch"`    // that is continued
	Step     uint32 `json:"step"`     // batches of it that each rank of the job was handed
	Instance uint32 `json:"instance"` // of its random parameters
	// fingerprint of the order, 32 hex digits; empty when nothing of the epoch was handed out, by earlier jobs either
	Order   string `json:"order"`
	Dataset string `json:"dataset"` // uri
	Files   string `json:"files"`   // fingerprint of the files of the subset (Sketch.Sum), 16 hex digits
	Samples int    `json:"samples"` // of the subset

	// Before is how many batches of the epoch every rank was handed by the jobs that this one resumed from. Nothing
	// follows from it here: frameworks count the batches of an epoch through every resume, and a client reports its
	// length to them.
	Before uint32 `json:"before,omitempty"`

	// Of a portable token: the samples that were delivered, as places among the samples of the subset in the order of
	// their keys' hashes, and the sketch of those (without modification times, which a copy may not keep).
	Delivered string `json:"delivered,omitempty"`
	Sketch    string `json:"sketch,omitempty"`

	Sum string `json:"sum"` // of all the rest: an edited token is refused
}

// Portable reports whether the token needs no log.
func (t *Token) Portable() bool { return t.Sketch != "" }

// sum is the checksum of the fields, 16 hex digits: the beginning of the SHA-256 of their values, a line each. Python
// computes the same.
func (t *Token) sum() string {
	values := []string{
		strconv.Itoa(t.Version), t.Job, t.Log, u(t.ID), u(t.Epoch), u(t.Step), u(t.Instance), t.Order, t.Dataset, t.Files,
		strconv.Itoa(t.Samples), t.Delivered, t.Sketch,
	}
	if t.Version > 1 {
		values = append(values, u(t.Before))
	}
	h := sha256.Sum256([]byte(strings.Join(values, "\n")))
	return hex.EncodeToString(h[:8])
}

func u(x uint32) string { return strconv.FormatUint(uint64(x), 10) }

// Text seals the token and returns its JSON.
func (t Token) Text() string {
	t.Version = 1
	if t.Before > 0 {
		t.Version = 2
	}
	t.Sum = t.sum()
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // numbers and strings
	}
	return string(b)
}

const again = "pass what Loader.state_dict() returned, as it was"

func invalid(hint, format string, args ...any) error {
	return errs.New(errs.Token, "state_dict", hint, "load a state: "+format, args...)
}

// Parse reads the text of a token. Errors are *errs.Error of reason TOKEN_INVALID, or UNSUPPORTED for a token of a
// newer version.
func Parse(text string) (*Token, error) {
	if len(text) > MaxToken {
		return nil, invalid(again, "it has %d bytes, and no token has more than %d", len(text), MaxToken)
	}
	if !utf8.ValidString(text) {
		return nil, invalid(again, "it is not UTF-8")
	}
	// The version first: a newer token may have anything else in it.
	var v struct {
		Version *json.Number `json:"version"`
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.Version == nil {
		return nil, invalid(again, "it is no token of larder: it has no version")
	}
	n, err := strconv.Atoi(v.Version.String())
	if err != nil || n < 1 {
		return nil, invalid(again, "version %.20q is none of larder", v.Version.String())
	}
	if n > Version {
		return nil, errs.New(errs.Unsupported, "state_dict", "use the larder that made it, or a newer one",
			"load a state of version %d: this larder knows versions up to %d", n, Version)
	}
	t := new(Token)
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, invalid(again, "it is no token of larder: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid(again, "something follows the token")
	}
	if err := t.check(); err != nil {
		return nil, invalid(again, "%v", err)
	}
	if t.Sum != t.sum() {
		return nil, invalid(again, "its checksum does not fit what it says: it was edited or damaged")
	}
	return t, nil
}

func (t *Token) check() error {
	switch {
	case !isHex(t.Log, 16):
		return fmt.Errorf("log is %.40q, which is no id of a log", t.Log)
	case !isHex(t.Files, 16):
		return fmt.Errorf("files is %.40q, which is no fingerprint", t.Files)
	case t.Order != "" && !isHex(t.Order, 32) || t.Order == "" && t.Step > 0:
		return fmt.Errorf("order is %.40q, which is no fingerprint", t.Order)
	case strings.ContainsFunc(t.Job+t.Dataset, func(r rune) bool { return r == '\n' || r == 0 }) || len(t.Job) > 1<<10 ||
		len(t.Dataset) > 1<<16:
		return errors.New("its names are not those of a job and a dataset")
	case strings.ContainsFunc(t.Job, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("job is no name of a job")
	case t.Samples < 1 || int64(t.Samples) > 1<<32:
		return fmt.Errorf("samples is %d", t.Samples)
	case t.Version == 1 && t.Before > 0:
		return errors.New("it says before, which version 1 does not have")
	case (t.Delivered != "") && t.Sketch == "":
		return errors.New("it says what was delivered and not of which files")
	}
	return nil
}

func isHex(s string, n int) bool {
	return len(s) == n && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') &&
			(r < 'a' || r > 'f')
	})
}
