package resume

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Orders is a recorded order: what `larder orders export` writes and order="replay:FILE" reads (docs/format/order.md).
// A file is lines of JSON, a head and one line for each epoch; it may be compressed by gzip.
type Orders struct {
	Job     string // for people
	Dataset string // uri
	Files   string // fingerprint of the files of the subset
	Seed    uint64 // of the random parameters
	Epochs  []EpochOrder
}

// EpochOrder is the order of one epoch.
type EpochOrder struct {
	Epoch    uint32   `json:"epoch"`
	Instance uint32   `json:"instance"`
	Samples  []uint32 `json:"samples"` // ids in the dataset
}

type ordersHead struct {
	Version int    `json:"larder_order"`
	Job     string `json:"job"`
	Dataset string `json:"dataset"`
	Files   string `json:"files"`
	Seed    string `json:"seed"`
	Epochs  int    `json:"epochs"`
}

// Limits of a file of orders.
const (
	maxEpochs = 1 << 16
	maxLine   = 1 << 30 // bytes: 80 million samples
	maxIDs    = 1 << 27 // of all epochs: half a GiB of memory
)

// WriteHead begins a file of n epochs.
func (o *Orders) WriteHead(w io.Writer, n int) error {
	return json.NewEncoder(w).Encode(ordersHead{1, o.Job, o.Dataset, o.Files, strconv.FormatUint(o.Seed, 10), n})
}

// WriteEpoch adds an epoch.
func WriteEpoch(w io.Writer, e EpochOrder) error { return json.NewEncoder(w).Encode(e) }

// ReadOrders reads a file of orders.
func ReadOrders(r io.Reader) (*Orders, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("it cannot be unpacked: %w", err)
		}
		b = bufio.NewReaderSize(z, 1<<16)
	}
	lines := bufio.NewScanner(b)
	lines.Buffer(make([]byte, 1<<16), maxLine)
	next := func(v any, what string) error {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return fmt.Errorf("%s cannot be read: %w", what, err)
			}
			return fmt.Errorf("it ends before %s", what)
		}
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(v); err != nil {
			return fmt.Errorf("%s cannot be read: %w", what, err)
		}
		return nil
	}
	var h ordersHead
	if err := next(&h, "its first line"); err != nil {
		return nil, err
	}
	if h.Version != 1 {
		return nil, fmt.Errorf("it has version %d, and this larder knows 1", h.Version)
	}
	seed, err := strconv.ParseUint(h.Seed, 10, 64)
	if err != nil || h.Epochs < 0 || h.Epochs > maxEpochs || !isHex(h.Files, 16) {
		return nil, errors.New("its first line is none of larder")
	}
	o := &Orders{Job: h.Job, Dataset: h.Dataset, Files: h.Files, Seed: seed}
	ids := 0
	for i := range h.Epochs {
		var e EpochOrder
		if err := next(&e, fmt.Sprintf("epoch %d of %d", i+1, h.Epochs)); err != nil {
			return nil, err
		}
		if n := len(o.Epochs); n > 0 && e.Epoch <= o.Epochs[n-1].Epoch {
			return nil, fmt.Errorf("epoch %d follows epoch %d", e.Epoch, o.Epochs[n-1].Epoch)
		}
		if ids += len(e.Samples); ids > maxIDs {
			return nil, fmt.Errorf("it has more than %d samples; export fewer epochs", maxIDs)
		}
		o.Epochs = append(o.Epochs, e)
	}
	if lines.Scan() {
		return nil, errors.New("something follows its last epoch")
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("its end cannot be read: %w", err)
	}
	return o, nil
}
