package client

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"larder/internal/audit"
	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// runLog records what a stream receives of one epoch, for `larder audit`; see docs/format/audit.md. It exists with
// LARDER_AUDIT_LOG only; the methods of a nil runLog do nothing.
type runLog struct {
	log    *audit.Log
	number uint64
	over   bool
}

// auditLog returns the log of this process, or nil.
func auditLog() (*audit.Log, error) {
	l, err := audit.Process()
	if err != nil {
		return nil, errs.New(errs.Invalid, audit.Env, "name a folder that may be written to, or unset it",
			"open the audit log").Because(err)
	}
	return l, nil
}

// beginLog records that an epoch begins, or continues at step from-1.
func (s *Stream) beginLog(ctx context.Context, log *audit.Log, epoch, from uint32, size *larderv1.EpochResponse) error {
	j := s.info.GetJob()
	spec := j.GetSpec()
	start := audit.Start{
		Job: spec.GetName(), ID: j.GetId(), Registered: j.GetRegisteredAt().AsTime().Format(time.RFC3339Nano),
		Rank: s.rank, World: max(spec.GetWorldSize(), 1), Inc: s.info.GetIncarnation(), Epoch: epoch, N: size.GetNumSamples(),
		Batch: spec.GetBatchSize(), DropLast: spec.GetDropLast(), Even: spec.GetEven(), OnError: spec.GetOnError(),
		Dataset: spec.GetDataset(),
	}
	if start.N == 0 {
		start.N = s.info.GetNumSamples()
	}
	if size.GetWhole() > 0 { // the epoch is the remainder of another job's
		start.N = size.GetWhole()
		if start.Base = s.base; s.base == "" {
			start.Base = fmt.Sprintf("unknown, of job %d", start.ID)
		}
	}
	if from > 0 {
		start.On, start.From = true, from-1
	}
	s.source(ctx, &start)
	number, err := log.Begin(start)
	s.log = &runLog{log: log, number: number}
	return err
}

// Loaded records for `larder audit` that the job's first epoch continues a saved state; sum identifies its token. Call
// it before StartEpoch.
func (s *Stream) Loaded(sum string) { s.base = sum }

// Saved records for `larder audit` that the state of the running epoch before step was saved; sum identifies the token.
// Without LARDER_AUDIT_LOG it does nothing.
func (s *Stream) Saved(step uint32, sum string) error {
	if s.log == nil {
		return nil
	}
	return checkLog(s.log.note(audit.Record{Kind: audit.KindSaved, Step: step, Token: sum}))
}

// source fills in where the samples of an epoch come from, as far as the daemon says. These calls look at no file: an
// audit must not make the daemon notice changes of files.
func (s *Stream) source(ctx context.Context, start *audit.Start) {
	known, about := new(larderv1.ListDatasetsResponse), new(larderv1.DescribeJobResponse)
	start.Subset = fmt.Sprintf("(of epoch %d)", start.Epoch)
	if s.c.Call(ctx, "ListDatasets", &larderv1.ListDatasetsRequest{}, known) != nil ||
		s.c.Call(ctx, "DescribeJob", &larderv1.DescribeJobRequest{Name: start.Job}, about) != nil {
		return
	}
	for _, d := range known.GetDatasets() {
		if d.GetName() == start.Dataset || d.GetUri() == start.Dataset {
			start.Fingerprint = d.GetFingerprint()
		}
	}
	if j := about.GetJob(); j.GetSubsetSince() <= start.Epoch { // else another rank has changed it since
		start.Subset = j.GetSpec().GetSubset()
	}
}

// note writes one record of the epoch.
func (r *runLog) note(rec audit.Record) error {
	if r == nil {
		return nil
	}
	rec.Run = r.number
	return r.log.Write(&rec)
}

// received records a batch before Next returns it.
func (r *runLog) received(b *Batch) error {
	if r == nil {
		return nil
	}
	b.log = r
	var bad []int64
	for _, q := range b.report {
		bad = append(bad, int64(q.GetId()))
	}
	return r.log.Batch(r.number, b.Step, b.Index(), bad, b.checksum())
}

// ended records the end of the epoch, once.
func (r *runLog) ended(e *larderv1.EpochEnd) error {
	if r == nil || r.over {
		return nil
	}
	r.over = true
	rec := audit.Record{Kind: audit.KindEnd, Batches: e.GetBatches(), Samples: e.GetSamples()}
	if a := e.GetAccount(); a != nil {
		rec.Account = &audit.Account{Subset: a.GetSubset(), Delivered: a.GetDelivered(), Quarantined: a.GetQuarantined(),
			Dropped: a.GetDropped(),
			Removed: a.GetRemoved(), State: a.GetState()}
	}
	return r.note(rec)
}

// left records that an unfinished epoch is abandoned.
func (r *runLog) left(why string) {
	if r != nil && !r.over {
		r.over = true
		_ = r.note(audit.Record{Kind: audit.KindLeft, Why: why}) // a log that ends early says the same
	}
}

// checksum returns the CRC-32 of a batch's values, field by field and row by row.
func (b *Batch) checksum() uint32 {
	var sum uint32
	for _, f := range b.s.layout.fields {
		for row := range b.Rows {
			switch {
			case !f.GetRagged():
				at := f.GetOffset() + uint64(row)*f.GetSampleBytes()
				sum = crc32.Update(sum, crc32.IEEETable, b.mem[at:at+valueBytes(f)])
			case f.GetKind() != "":
				data, _, ok := b.value(f, row)
				if !ok {
					sum = ^sum
				}
				sum = crc32.Update(sum, crc32.IEEETable, data)
			default:
				off, h, w, c := b.entry(f, row)
				n := uint64(h) * uint64(w) * uint64(c)
				if off > uint64(len(b.mem)) || n > uint64(len(b.mem))-off {
					sum = ^sum // the caller wrote over the entries: a change, too
					continue
				}
				sum = crc32.Update(sum, crc32.IEEETable, b.mem[off:off+n])
			}
		}
	}
	return sum
}

var sizes = map[string]uint64{"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
	"uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8}

// valueBytes returns the bytes of a sample's value; the distance between two samples may be larger.
func valueBytes(f *larderv1.Field) uint64 {
	n := sizes[f.GetDtype()]
	for _, d := range f.GetShape() {
		n *= uint64(d)
	}
	if n == 0 || n > f.GetSampleBytes() {
		return f.GetSampleBytes()
	}
	return n
}

// checkLog makes an error of a log that could not be written one that a user can act on. It must not be ignored: an
// audit that lacks records would accuse the daemon.
func checkLog(err error) error {
	if f := (*errs.Error)(nil); err == nil || errors.As(err, &f) {
		return err
	}
	return errs.New(errs.Invalid, audit.Env, "make room, or unset it", "write the audit log").Because(err)
}
