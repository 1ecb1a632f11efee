package engine

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"larder/internal/engine/record"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/source"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// library is the catalogue as users see it: what each may list, open and read.
type library struct {
	catalog     *source.Catalog
	journal     journal.Log // names of datasets survive in it
	skipCorrupt bool        // see Config.SkipCorrupt
	declared    declarations
	keys        keyTable
}

// nameOf is how messages name a dataset.
func (l *library) nameOf(id ident.DatasetID) string {
	if d, ok := l.catalog.ByID(id); ok {
		return d.Name()
	}
	return itoa(int(id))
}

// mayRegister refuses what cannot be registered by another user, before a file is looked at.
func (l *library) mayRegister(o *owner, spec *larderv1.JobSpec) error {
	if o == nil {
		return nil
	}
	if strings.HasPrefix(spec.GetOrder(), replayOrder) {
		return errs.New(errs.Unsupported, "order",
			`use order "fixed" with a seed, or ask the daemon's user to register the job`,
			"register job %s: a recorded order is read with the rights of the daemon's user (uid %d), "+
				"and that does not work yet for uid %d", spec.GetName(), os.Getuid(), o.UID)
	}
	return l.catalog.MayList(spec.GetDataset(), o.reader())
}

// openFor opens a dataset with the rights of o.
func (l *library) openFor(ctx context.Context, o *owner, nameOrURI string, skipEmpty bool) (*source.Dataset, error) {
	switch {
	case o != nil:
		return l.catalog.OpenFor(ctx, nameOrURI, skipEmpty, o.reader())
	case skipEmpty:
		return l.catalog.OpenSkipEmpty(ctx, nameOrURI)
	}
	return l.catalog.Open(ctx, nameOrURI)
}

// mayRead refuses a job on files that its user may not read, all of them, in the version that it was compiled with.
func (l *library) mayRead(ctx context.Context, o *owner, j *job) error {
	return l.mayReadAt(ctx, o, j.Data, j.subsets.seen)
}

func (l *library) mayReadAt(ctx context.Context, o *owner, d *source.Dataset, seen uint64) error {
	if o == nil {
		return nil
	}
	got, err := l.catalog.MayRead(ctx, d, o.reader())
	if err != nil {
		return err
	}
	if got != seen {
		return &errs.Error{Reason: errs.Unavailable, Subject: d.Name(), Hint: "try again",
			Message: fmt.Sprintf("%s changed while it was looked at what uid %d may read of it", d.Name(), o.UID)}
	}
	return nil
}

func (l *library) dataset(d *source.Dataset) *larderv1.Dataset {
	out := &larderv1.Dataset{
		Id: uint32(d.ID()), Name: d.Name(), Uri: d.URI(), Samples: uint64(d.LiveCount()), Classes: d.Classes(),
		Bytes:       uint64(d.TotalBytes()),
		Fingerprint: fmt.Sprintf("%016x", d.Fingerprint()), SharedSamples: uint64(l.catalog.SharedSamples(d)),
		Notes: d.Notes(),
	}
	for _, k := range d.Ignored() {
		out.Ignored = append(out.Ignored, &larderv1.IgnoredFiles{Kind: strings.ToValidUTF8(k.Kind, "?"),
			Files: uint64(k.Files)})
	}
	return out
}

func (l *library) sample(d *source.Dataset, s ident.SampleID) *larderv1.Sample {
	return &larderv1.Sample{Id: uint64(s), Key: d.Key(s), Label: d.Label(s), ClassName: d.Class(s),
		Bytes: uint64(d.Bytes(s))}
}

// quarantined names samples for people.
func (l *library) quarantined(j *job, bad []jobs.Bad) []*larderv1.QuarantinedSample {
	out := make([]*larderv1.QuarantinedSample, 0, len(bad))
	for _, b := range bad {
		s, _ := j.Data.Sample(b.Object)
		path, offset := l.catalog.ObjectPath(b.Object)
		q := &larderv1.QuarantinedSample{Id: uint64(s), Key: j.Data.Key(s), Path: path, Offset: uint64(offset),
			Reason: b.Reason}
		if j.ByClients() {
			q.Reason, q.Traceback, _ = strings.Cut(b.Reason, "\n")
		}
		if b.At > 0 {
			q.DamagedAt = new(uint64(offset + b.At - 1))
		}
		out = append(out, q)
	}
	return out
}

// faulty leaves out samples that no client hears of: nothing is wrong with removed ones, and damaged ones may be
// skipped by configuration.
func (l *library) faulty(bad []jobs.Bad) []jobs.Bad {
	silent := func(b jobs.Bad) bool {
		return b.Kind == jobs.SampleRemoved || b.Kind == jobs.SampleDamaged && l.skipCorrupt
	}
	if !slices.ContainsFunc(bad, silent) {
		return bad
	}
	return slices.DeleteFunc(slices.Clone(bad), silent)
}

// reindex looks at a known dataset again, with the rights of the user who asks. before is what it had.
func (l *library) reindex(
	ctx context.Context, nameOrURI string,
) (now *source.Dataset, before []ident.ObjectID, err error) {
	asks := asker(ctx)
	if asks != nil {
		if err := l.catalog.MayList(nameOrURI, asks.reader()); err != nil {
			return nil, nil, err
		}
	}
	d, ok := l.catalog.Get(nameOrURI)
	switch {
	case ok:
		before = liveObjects(d)
	case asks != nil: // the catalogue's own error names other datasets
		return nil, nil, errs.New(errs.NotFound, nameOrURI, "larder dataset add "+nameOrURI,
			"refresh dataset %q, which is not known", nameOrURI)
	}
	if asks == nil {
		now, err = l.catalog.Reindex(ctx, nameOrURI)
		return now, before, err
	}
	if now, err = l.catalog.ReindexFor(ctx, d, asks.reader()); err != nil {
		return nil, nil, err
	}
	_, err = l.catalog.MayRead(ctx, now, asks.reader())
	return now, before, err
}

// indexing says how far the indexes are that are under way; a user but the owner sees those that this user asked for.
// No folder is looked at for it: one whose server does not answer would hold up the status of the daemon.
func (l *library) indexing(asks *owner) []*larderv1.Indexing {
	var out []*larderv1.Indexing
	for _, x := range l.catalog.Indexing() {
		if asks != nil && !x.AskedBy(asks.UID) {
			continue
		}
		out = append(out, &larderv1.Indexing{Uri: x.URI, Since: timestamppb.New(x.Since), Samples: uint64(x.Samples),
			Files: uint64(x.Files), AllFiles: uint64(x.AllFiles), KeptFiles: uint64(x.KeptFiles), Bytes: uint64(x.Bytes),
			AllBytes: uint64(x.AllBytes), Looked: uint64(x.Looked)})
	}
	return out
}

// report returns the report of the bad samples of a batch; nil when it has none that the client may see.
func (l *library) report(j *job, bad []jobs.Bad) *larderv1.BatchReport {
	if bad = l.faulty(bad); len(bad) == 0 {
		return nil
	}
	return &larderv1.BatchReport{Quarantined: l.quarantined(j, bad)}
}

// addAgain adds a dataset that an earlier life had.
func (l *library) addAgain(ctx context.Context, name, uri string, skipEmpty bool) (*source.Dataset, error) {
	if skipEmpty {
		return l.catalog.AddSkipEmpty(ctx, name, uri)
	}
	return l.catalog.AddAgain(ctx, name, uri)
}

// recordDataset makes the name of a dataset survive.
func (l *library) recordDataset(d *source.Dataset) error {
	return l.recordName(record.Dataset{Name: d.Name(), URI: d.URI(), SkipEmpty: d.SkipEmpty()})
}

func (l *library) recordName(d record.Dataset) error {
	rec, err := record.Indexed(d)
	if err != nil {
		return err
	}
	l.journal.Append(rec, nil)
	return nil
}
