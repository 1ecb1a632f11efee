package coresim

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// decisions is the record of a run: every effect in order, as bytes. Its hash is that of all bytes, however they are
// split between two calls of settle.
type decisions struct {
	hash *xxhash.Digest
	to   io.Writer // takes the bytes too; nil = none does
	note []byte    // what was decided and is not in the hash yet
}

const noteAtOnce = 1 << 14 // bytes

// settle enters what was decided into the hash, and writes it down.
func (d *decisions) settle() error {
	_, _ = d.hash.Write(d.note)
	if d.to != nil && len(d.note) > 0 {
		if _, err := d.to.Write(d.note); err != nil {
			return fmt.Errorf("write down the decisions: %w", err)
		}
	}
	d.note = d.note[:0]
	return nil
}

// describe appends what was decided to the running step's note. What is no value is left out: errors and accounts are
// addresses.
func (d *decisions) describe(e coordinator.Effect) {
	switch x := e.(type) {
	case coordinator.Prepare:
		d.word(1, uint64(x.Flight), uint64(x.Job), uint64(x.From), flag(x.Keep), flag(x.KeepEncoded), x.Turn)
		d.key(x.Key)
		if x.Into != nil {
			d.describeFill(x.Into)
		}
	case coordinator.Augment:
		d.word(2, uint64(x.Flight), uint64(x.Job), uint64(x.From.Flight), flag(x.Keep), x.Seed, uint64(x.Instance), x.Turn)
		d.key(x.Key)
		d.key(x.From.Key)
	case *coordinator.Fill:
		d.describeFill(x)
	case coordinator.Discard:
		d.word(4, uint64(x.Flight))
	case coordinator.HoldBlock:
		d.word(16, uint64(x.Job), uint64(x.Block))
	case coordinator.DropBlock:
		d.word(17, uint64(x.Job), uint64(x.Block))
	case coordinator.FreeKey:
		d.word(5)
		d.key(x.Key)
	case coordinator.SetBudget:
		d.word(6, uint64(x.Form), uint64(x.Bytes))
	case coordinator.Solve:
		d.word(7, x.Seq, uint64(x.Now.Encoded), uint64(x.Now.Decoded), uint64(x.Now.Augmented))
	case coordinator.Deliver:
		d.word(8, uint64(x.Delivery), uint64(x.Job), uint64(x.Rank), uint64(x.Inc), uint64(x.Slot), x.Gen, uint64(x.Epoch),
			uint64(x.Step), uint64(len(x.Rows)))
		for _, r := range x.Rows {
			d.note = binary.AppendUvarint(d.note, uint64(r))
		}
		for _, b := range x.Bad {
			d.word(9, uint64(b.Object))
			d.note = append(d.note, b.Reason...)
		}
	case coordinator.EndEpoch:
		d.word(10, uint64(x.Job), uint64(x.Rank), uint64(x.Epoch), uint64(x.Batches), uint64(x.Samples), flag(x.Final))
	case coordinator.CloseRank:
		d.word(11, uint64(x.Job), uint64(x.Rank), uint64(x.Inc))
		d.note = append(d.note, x.Reason...)
	case coordinator.JobEnded:
		d.word(12, uint64(x.Job))
	case coordinator.Persist:
		d.describeRecord(x.Seq, describedRecord(x.Record))
	case coordinator.Reply:
		d.word(14, uint64(x.Token), uint64(x.Job), uint64(x.Inc))
	case coordinator.Complain:
		d.word(15, uint64(x.Job))
		d.note = append(d.note, x.Text...)
	}
}

// described is what the hashes have of a record: the fields of the one struct that all kinds had when they were
// recorded.
type described struct {
	kind    uint64
	job     ident.JobID
	rank    int
	inc     ident.Incarnation
	epoch   uint32
	step    uint64
	seed    uint64
	objects []ident.ObjectID
	text    string
}

func describedRecord(r coordinator.Record) described {
	switch r := r.(type) {
	case coordinator.RecordRegistered:
		return described{kind: 0, job: r.Job, seed: r.Seed, text: r.Name}
	case coordinator.RecordAttached:
		return described{kind: 1, job: r.Job, rank: r.Rank, inc: r.Inc, text: r.Client}
	case coordinator.RecordEpochStarted:
		return described{kind: 2, job: r.Job, epoch: r.Epoch, step: uint64(r.Instance)}
	case coordinator.RecordAssigned:
		return described{kind: 3, job: r.Job, rank: r.Rank, inc: r.Inc, epoch: r.Epoch, step: uint64(r.Step),
			objects: r.Objects}
	case coordinator.RecordGivenEarlier:
		return described{kind: 3, job: r.Job, rank: -1, epoch: r.Epoch, step: uint64(r.Chunk), objects: r.Objects}
	case coordinator.RecordReturned:
		return described{kind: 4, job: r.Job, rank: r.Rank, inc: r.Inc, epoch: r.Epoch, step: uint64(r.Step),
			objects: r.Objects}
	case coordinator.RecordEpochEnded:
		return described{kind: 5, job: r.Job, epoch: r.Epoch, text: r.State.String()}
	case coordinator.RecordQuarantined:
		return described{kind: 6, job: r.Job, objects: []ident.ObjectID{r.Object}, text: r.Reason}
	case coordinator.RecordEnded:
		return described{kind: 7, job: r.Job, text: r.Reason}
	case coordinator.RecordSubsetChanged:
		return described{kind: 8, job: r.Job, epoch: r.Epoch, step: uint64(r.Mark)}
	case coordinator.RecordPaused:
		return described{kind: 9, job: r.Job}
	case coordinator.RecordUnpaused:
		return described{kind: 10, job: r.Job}
	case coordinator.RecordDealt:
		return described{kind: 11, job: r.Job, epoch: r.Epoch, step: uint64(r.Step), objects: r.Objects,
			text: strconv.Itoa(r.GivenUp)}
	}
	panic(fmt.Sprintf("coresim: unknown record %T", r))
}

func (d *decisions) describeRecord(seq uint64, r described) {
	d.word(13, seq, r.kind, uint64(r.job), uint64(r.rank), uint64(r.inc), uint64(r.epoch), r.step, r.seed,
		uint64(len(r.objects)))
	for _, o := range r.objects {
		d.note = binary.LittleEndian.AppendUint32(d.note, uint32(o))
	}
	d.note = append(d.note, r.text...)
}

// assigned counts the samples that a record commits to a job, those of an earlier job included.
func assigned(r coordinator.Record) uint64 {
	switch r := r.(type) {
	case coordinator.RecordAssigned:
		return uint64(len(r.Objects))
	case coordinator.RecordGivenEarlier:
		return uint64(len(r.Objects))
	}
	return 0
}

func (d *decisions) describeFill(x *coordinator.Fill) {
	d.word(3, uint64(x.Delivery), uint64(x.Row), uint64(x.Job), uint64(x.Rank), uint64(x.Slot), uint64(x.Object),
		uint64(x.From.Flight), uint64(x.Instance), x.Turn)
	d.key(x.From.Key)
}

func (d *decisions) word(kind byte, v ...uint64) {
	b := d.note
	b = append(b, kind)
	for _, n := range v {
		b = binary.AppendUvarint(b, n)
	}
	d.note = b
}

func (d *decisions) key(k ident.Key) {
	b := d.note
	b = append(b, byte(k.Form))
	b = binary.LittleEndian.AppendUint32(b, uint32(k.Object))
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Recipe))
	b = binary.AppendUvarint(b, uint64(k.Group))
	d.note = binary.AppendUvarint(b, uint64(k.Instance))
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
