package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"

	"larder/internal/errs"
)

// World is the machine that a trace was recorded on and what its jobs asked for beside Job, by which the demand can be
// simulated again with time and bytes. Its file form is JSON with these keys.
type World struct {
	Workers int `json:"workers"`
	Cores   int `json:"cores"`
	// Limits of storage that were configured, a second; 0 = none. Bandwidth is what was reached, in bytes a second; 0 =
	// nothing was read.
	StorageLimit int64         `json:"storage_limit"`
	StorageIOPS  int64         `json:"storage_iops"`
	Bandwidth    float64       `json:"storage_bandwidth"`
	Latency      time.Duration `json:"storage_latency_ns"` // of a read, on average, without what it waited for the limits
	Memory       float64       `json:"memory_bandwidth"`   // bytes a second
	Finish       time.Duration `json:"finish_ns"`          // copying an augmented sample into a batch
	// what decoding and augmenting in one cost, as a part of both; 0 = not known
	InPlace float64    `json:"in_place"`
	Tiers   Tiers      `json:"tiers"`
	Jobs    []JobWorld `json:"jobs"` // by number
	// Lost counts what was not recorded because the recorder could not follow: Picks and Moves lack so much.
	Lost uint64 `json:"lost"`
	// Breaks counts how often the daemon went away meanwhile. What it delivered in the last moments before, and until the
	// recording continued, is missing.
	Breaks int `json:"breaks,omitempty"`
	// Unknown counts objects whose decoded size or costs were never seen: they have the mean.
	Unknown int `json:"unknown_costs"`
	// Counted is what the daemon counted while it was recorded, for comparison.
	Counted Counted `json:"counted"`
}

// Tiers is the configured memory: bytes, -1 = auto.
type Tiers struct {
	Total     int64    `json:"total"`
	Encoded   int64    `json:"encoded"`
	Decoded   int64    `json:"decoded"`
	Augmented int64    `json:"augmented"`
	Policy    []string `json:"policy,omitempty"` // encoded, decoded, augmented
	Model     string   `json:"model,omitempty"`
}

// JobWorld is what a job asked for beside Job.
type JobWorld struct {
	Ranks     int    `json:"ranks"`
	Prefetch  int    `json:"prefetch"`
	DropLast  bool   `json:"drop_last,omitempty"`
	Even      bool   `json:"even,omitempty"`
	Seed      uint64 `json:"seed,omitempty"`
	Recipe    string `json:"recipe"`          // fingerprint: jobs of one prepare alike
	Share     bool   `json:"share,omitempty"` // augmented samples
	Augmented int64  `json:"augmented_bytes"`
	Epoch     int    `json:"first_epoch,omitempty"` // it was in when the recording began
	Partial   bool   `json:"partial,omitempty"`     // the recording began or ended inside of its epochs
}

// Counted are counters of the daemon.
type Counted struct {
	Reads    uint64 `json:"source_reads"`
	Decodes  uint64 `json:"decodes"`
	Augments uint64 `json:"augments"`
	Samples  uint64 `json:"samples_delivered"`
}

// check says what contradicts itself.
func (w *World) check(jobs int) error {
	bad := func(what string) error {
		return errs.New(errs.Invalid, "trace", "record the trace again", "the world of the trace contradicts itself: %s",
			what)
	}
	rate := func(v float64) bool { return v >= 0 && v <= 1e18 && !math.IsNaN(v) }
	t := &w.Tiers
	switch {
	case len(w.Jobs) != jobs:
		return bad(fmt.Sprintf("%d jobs, %d are there", len(w.Jobs), jobs))
	case w.Workers < 1 || w.Workers > 1<<20 || w.Cores < 1 || w.Cores > 1<<20:
		return bad("workers and cores")
	case w.StorageLimit < 0 || w.StorageIOPS < 0 || w.Latency < 0 || w.Finish < 0 || !rate(w.Bandwidth) ||
		!rate(w.Memory) || !rate(w.InPlace) || w.Unknown < 0 || w.Breaks < 0:
		return bad("a negative rate or time")
	case t.Total < 0 || t.Encoded < -1 || t.Decoded < -1 || t.Augmented < -1 || len(t.Policy) != 0 && len(t.Policy) != 3:
		return bad("sizes or policies of tiers")
	}
	for i := range w.Jobs {
		if j := &w.Jobs[i]; j.Ranks < 1 || j.Ranks > 1<<16 || j.Prefetch < 1 || j.Prefetch > 1<<16 || j.Augmented < 0 ||
			j.Epoch < 0 {
			return bad(fmt.Sprintf("job %d", i))
		}
	}
	return nil
}

func (w *World) marshal() ([]byte, error) {
	raw, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("write a trace: %w", err)
	}
	if len(raw) > maxChunk {
		return nil, fmt.Errorf("write a trace: its world takes %d bytes, the limit is %d", len(raw), maxChunk)
	}
	return raw, nil
}

func (r *reader) world(t *Trace) error {
	dec := json.NewDecoder(bytes.NewReader(r.rest))
	dec.DisallowUnknownFields()
	w := new(World)
	if err := dec.Decode(w); err != nil {
		return r.damaged("its world cannot be read: %v", err)
	}
	if dec.More() {
		return r.damaged("something follows its world")
	}
	if t.World != nil {
		return r.damaged("it has two worlds")
	}
	if err := w.check(len(t.Jobs)); err != nil {
		return r.damaged("%s", errs.From(err).Message)
	}
	t.World, r.rest = w, nil
	return nil
}

func sameWorld(a, b *World) bool { return reflect.DeepEqual(a, b) }
