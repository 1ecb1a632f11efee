// Package audit reads what clients wrote about themselves, and finds what they lost, got twice, should not have got, or
// had changed under them. It knows nothing of the daemon: its only input is the logs of docs/format/audit.md and, where
// it is given, what an independent source says a job's samples are. What it repeats of larder's rules (how many samples
// drop_last drops) it works out for itself.
//
// Log is the writer's end, which the Go client uses; the Python client has its own.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// Version of the format.
const Version = 1

// The kinds of records.
const (
	KindLog    = "log"    // the first record of a file: who writes
	KindEpoch  = "epoch"  // a rank begins an epoch, or continues one: a run
	KindOn     = "on"     // the same process continues a run, after its daemon died or the connection was cut
	KindBatch  = "batch"  // received
	KindDone   = "done"   // the step is over: what the batch's memory held then
	KindMissed = "missed" // steps that were handed out and are not in the log: a signal came between the two
	KindEnd    = "end"    // the epoch is complete for this rank
	KindLeft   = "left"   // the client gave the epoch up
	KindSaved  = "saved"  // a checkpoint was taken
)

// Record is one line. Which fields a kind has is in docs/format/audit.md.
type Record struct {
	Line uint64 `json:"i"`
	Kind string `json:"r"`
	Run  uint64 `json:"run,omitempty"`

	// log
	Version int    `json:"v,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Client  string `json:"client,omitempty"`
	Boot    int64  `json:"boot,omitempty"` // ns since the machine started: orders logs

	Start *Start `json:"start,omitempty"` // epoch

	// batch, done, on, missed, saved
	Step uint32  `json:"step,omitempty"`
	To   uint32  `json:"to,omitempty"` // missed: the first step after them
	IDs  []int64 `json:"ids,omitempty"`
	Rows int     `json:"rows,omitempty"`
	Bad  []int64 `json:"bad,omitempty"`  // samples the daemon said it could not prepare for this batch
	Hash *uint32 `json:"hash,omitempty"` // CRC-32 of the payload; done: nil when the memory had been released

	// end
	Batches uint64   `json:"batches,omitempty"`
	Samples uint64   `json:"samples,omitempty"`
	Account *Account `json:"account,omitempty"`

	Why   string `json:"why,omitempty"`   // left
	Token string `json:"token,omitempty"` // saved
}

// Start is what a client knows when it begins an epoch: from its registration and from the answer to EPOCH.
type Start struct {
	Job        string `json:"job"`
	ID         uint32 `json:"id"`         // of the job, in its daemon's state
	Registered string `json:"registered"` // when; with ID it distinguishes jobs of one name
	Rank       uint32 `json:"rank"`
	World      uint32 `json:"world"`
	Inc        uint64 `json:"inc"`
	Epoch      uint32 `json:"epoch"`
	On         bool   `json:"on,omitempty"` // continues at From what another process or connection began
	From       uint32 `json:"from,omitempty"`
	// token of the checkpoint that was loaded: what was received before it counts
	Base string `json:"base,omitempty"`

	N        uint64 `json:"n"` // samples of the subset, as the daemon said
	Batch    uint32 `json:"batch"`
	DropLast bool   `json:"drop_last,omitempty"`
	// Stream: the client says which samples come, as often as it likes; N is what there is to choose from
	Stream  bool   `json:"stream,omitempty"`
	Even    string `json:"even,omitempty"`
	OnError string `json:"on_error,omitempty"`

	Dataset     string `json:"dataset"`
	Fingerprint string `json:"fingerprint,omitempty"` // of the dataset; empty: not known
	Subset      string `json:"subset,omitempty"`
}

// Account is what the daemon says of a job-epoch at its end. It is compared, never believed; only Removed has no other
// witness.
type Account struct {
	Subset      uint64 `json:"subset"`
	Delivered   uint64 `json:"delivered"`
	Quarantined uint64 `json:"quarantined"`
	Dropped     uint64 `json:"dropped"`
	Removed     uint64 `json:"removed"`
	State       string `json:"state"`
}

// encode appends a record as a line: the CRC-32 of what follows in hex, a blank, JSON, a line feed.
func (r *Record) encode(b []byte) ([]byte, error) {
	from := len(b)
	b = append(b, "00000000 "...)
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	b = append(b, body...)
	seal(b[from:])
	return append(b, '\n'), nil
}

// seal puts the checksum before the body of a line.
func seal(line []byte) {
	const digits = "0123456789abcdef"
	sum := crc32.ChecksumIEEE(line[9:])
	for i := range 8 {
		line[i] = digits[sum>>(28-4*i)&15]
	}
}

var errLine = errors.New("its checksum does not fit")

// decode reads a line without its line feed.
func decode(line []byte) (*Record, error) {
	if len(line) < 9 || line[8] != ' ' {
		return nil, errLine
	}
	body := line[9:]
	if string(line[:8]) != fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)) {
		return nil, errLine
	}
	r := new(Record)
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("it is no record: %w", err)
	}
	return r, nil
}
