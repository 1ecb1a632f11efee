package engine

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/record"
	"larder/internal/engine/restore"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/resume"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// history is what was handed out, in this life of the daemon and in those before.
type history struct {
	journal journal.Log
	found   *journal.State // what the journal held at the start; nil = nothing
	jobs    *registry
	catalog *source.Catalog
}

// mayTouchID is mayTouch for a job that may be known from the journal alone. A job that is not known belongs to no
// user.
func (h *history) mayTouchID(ctx context.Context, id ident.JobID, what string) error {
	if asker(ctx) == nil {
		return nil
	}
	if j := h.jobs.byID(id); j != nil {
		return mayTouch(ctx, j, what)
	}
	if r := h.foundJob(id); r != nil {
		return mayTouchOf(ctx, (*owner)(r.Owner), itoa(int(id)), what)
	}
	return mayRun(ctx, what)
}

// orderName returns the fingerprint of an order: its log, its job, its epoch and the number of samples to draw from.
// The samples are not part of it. Another rank may not have a step yet, and its batches may be returned or get
// substitutes after the token was made, so no hash of them would hold.
func (h *history) orderName(id ident.JobID, epoch, instance uint32, samples int) string {
	b := binary.LittleEndian.AppendUint64(nil, h.journal.ID())
	for _, v := range []uint32{uint32(id), epoch, instance, uint32(samples)} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	sum := xxhash.Sum64(b)
	b = binary.LittleEndian.AppendUint64(b, sum)
	out := binary.BigEndian.AppendUint64(nil, sum)
	return hex.EncodeToString(binary.BigEndian.AppendUint64(out, xxhash.Sum64(b)))
}

func (h *history) logName() string { return fmt.Sprintf("%016x", h.journal.ID()) }

// handed resolves a token for a job that selects objects. changed accepts files that are not what they were.
func (h *history) handed(t *resume.Token, changed bool, j *job, objects []ident.ObjectID) (*handed, error) {
	if t.Log != h.logName() && t.Order != "" && !t.Portable() {
		return nil, badToken("load it on the daemon that made it (the same state.dir), "+
			"or save state_dict(portable=True), which needs no log",
			"it was made by another daemon, or on another state directory, than this one, "+
				"whose log does not know the order of job %s", t.Job)
	}
	names, here, there, err := h.compare(t, j, objects, changed)
	if err != nil {
		return nil, err
	}
	had := &handed{}
	if names != "" {
		had.notes = append(had.notes, "files changed since the state was saved: "+names)
	}
	switch {
	case t.Order == "":
	case t.Portable():
		places, err := resume.Unpack(t.Delivered, t.Samples)
		if err != nil {
			return nil, badToken("pass what Loader.state_dict() returned, as it was", "%v", err)
		}
		had.before = placed(j.Data, objects, places, here, there)
	default:
		rec, err := h.journal.Recorded(ident.JobID(t.ID), t.Epoch, int64(t.Instance))
		if err != nil {
			return nil, err
		}
		if rec == nil {
			return nil, badToken("load a newer state; state_dict(portable=True) needs no log; "+
				"state.orders says how much of it is kept",
				"the order of epoch %d of job %s (id %d) is not kept any more", t.Epoch, t.Job, t.ID)
		}
		if rec.Steps() < t.Step || h.orderName(ident.JobID(t.ID), t.Epoch, t.Instance, t.Samples) != t.Order {
			return nil, badToken("load it on the daemon that made it, or save state_dict(portable=True)",
				"it is of step %d of another order than this log has for epoch %d of job %s, which ends with step %d: "+
					"the state directory is an older copy or another one",
				t.Step, t.Epoch, t.Job, rec.Steps())
		}
		if r := h.resumed(ident.JobID(t.ID)); rec.Remainder && r != nil && rec.Earlier() < r.Before {
			return nil, badToken("load an older state",
				"not all that was handed out before epoch %d of job %s was resumed is in the log", t.Epoch, t.Job)
		}
		had.before = record.ToObjects(j.Data, rec.Given(t.Step))
	}
	return had, nil
}

// resolve finds out what a token leaves to a job.
func (h *history) resolve(
	t *resume.Token, changed bool, j *job, reg *coordinator.Register,
) (*coordinator.Rest, *recordedResume, error) {
	own := t.Log == h.logName()
	objects := reg.Sample.Subset
	if len(reg.Script) > 0 {
		objects = j.subsets.last().objects
	}
	had, err := h.handed(t, changed, j, objects)
	if err != nil {
		return nil, nil, err
	}
	before, summary := had.before, &larderv1.Resumed{Epoch: t.Epoch, Notes: had.notes}
	target := objects // the samples of the epoch
	if s, ok := restore.Scripted(reg.Script, t.Epoch); ok {
		target = s.Objects
	}
	rest := &coordinator.Rest{Epoch: t.Epoch, Instance: t.Instance, Member: coordinator.Members(target)}
	for _, x := range before {
		if rest.Member.Remove(uint32(x)) {
			rest.Before = append(rest.Before, x)
		}
	}
	if gone := len(before) - len(rest.Before); gone > 0 {
		summary.Notes = append(summary.Notes,
			fmt.Sprintf("%d samples that were handed out are not in the subset any more", gone))
	}
	summary.Before, summary.Left = uint64(len(rest.Before)), uint64(dealt(j.life, rest.Member.Len()))
	whole := j.life
	whole.Subset = len(target)
	summary.Whole, summary.WholeBatches = uint64(whole.Subset), uint64(whole.Batches(0))
	from := ident.JobID(0)
	if own {
		from = ident.JobID(t.ID)
	}
	if summary.Left == 0 { // it is over: the job begins with the next one
		if n := rest.Member.Len(); n > 0 {
			summary.Notes = append(summary.Notes, fmt.Sprintf(
				"%d samples of epoch %d are dropped: they are too few for the ranks and batches", n, t.Epoch))
		}
		order := rest.Before
		rest = &coordinator.Rest{Epoch: t.Epoch + 1, Instance: t.Instance + 1}
		if _, ok := restore.Scripted(reg.Script, rest.Epoch); !ok && reg.Script != nil {
			return nil, nil, badToken("there is nothing to continue", "epoch %d was the last one of the recorded order",
				t.Epoch)
		} else if s, ok := restore.Scripted(reg.Script, rest.Epoch); ok {
			target = s.Objects
		}
		rest.Member = coordinator.Members(target)
		if j.mode == dsa.Stratified {
			rest.Previous = order
		}
	} else if j.mode == dsa.Stratified && t.Epoch > 0 && own {
		ids, err := h.orderOf(from, t.Epoch-1)
		if err != nil {
			return nil, nil, err
		}
		rest.Previous = record.ToObjects(j.Data, ids)
	}
	sample := reg.Sample
	sample.Subset = target
	rest.Places = coordinator.Places(sample, rest.Epoch, rest.Before)
	return rest, &recordedResume{
		Resume: record.Resume{Token: t.Text(), Changed: changed, Epoch: rest.Epoch, Before: len(rest.Before),
			From: uint32(from)},
		sum: t.Sum, summary: summary,
	}, nil
}

// orderOf is the order of a job's epoch, as far as it is known; the job that it continues has the epochs before it.
func (h *history) orderOf(id ident.JobID, epoch uint32) ([]ident.ObjectID, error) {
	return h.orderBefore(id, h.resumed(id), epoch)
}

// orderBefore is orderOf for a job that is not known yet, which continues from r.
func (h *history) orderBefore(id ident.JobID, r *recordedResume, epoch uint32) ([]ident.ObjectID, error) {
	for range 1 << 10 {
		rec, err := h.journal.Recorded(id, epoch, journal.AnyInstance)
		if err != nil {
			return nil, err
		}
		if rec != nil {
			return rec.Given(journal.Earlier), nil
		}
		if r == nil || r.From == 0 {
			break
		}
		id = ident.JobID(r.From)
		r = h.resumed(id)
	}
	return nil, nil
}

// resumed returns what a job resumed from; nil when it resumed from nothing, or when that is not known any more.
func (h *history) resumed(id ident.JobID) *recordedResume {
	if j := h.jobs.byID(id); j != nil {
		return j.resume
	}
	if r := h.foundJob(id); r != nil {
		return resumedFrom(r.Resume)
	}
	return nil
}

// foundJob is the record of a job that ended before this daemon began.
func (h *history) foundJob(id ident.JobID) *record.Job {
	if h.found == nil {
		return nil
	}
	js := h.found.Job(id)
	if js == nil {
		return nil
	}
	r, err := record.ParseJob(js.Spec)
	if err != nil {
		return nil
	}
	return r
}

// compare holds the files of a job's subset against those of a token. The error names what differs; when that is
// allowed, names does, and here and there are what is only in either, for portable tokens.
func (h *history) compare(
	t *resume.Token, j *job, objects []ident.ObjectID, changed bool,
) (names string, here, there []resume.Entry, err error) {
	now := j.subsets.last().filed(j.Data)
	if now.Sum() == t.Files {
		return "", nil, nil, nil
	}
	was := (*resume.Sketch)(nil)
	times := !t.Portable()
	if t.Portable() {
		if was, err = resume.ParseSketch(t.Sketch); err != nil {
			return "", nil, nil, badToken("pass what Loader.state_dict() returned, as it was", "%v", err)
		}
		now = sketchOf(j.Data, objects, false)
		if now.Sum() == was.Sum() {
			return "", nil, nil, nil // a copy that did not keep times
		}
	} else if t.Log == h.logName() {
		was = h.oldSketch(t)
	}
	listed := false
	if was != nil {
		if here, there, listed = now.Diff(was); listed {
			names = nameFiles(j.Data, objects, here, there, times)
		}
	}
	if !listed {
		names = "more than can be listed"
		if t.Samples != len(objects) {
			names = fmt.Sprintf("%d samples were selected then and %d now", t.Samples, len(objects))
		}
	}
	switch {
	case t.Dataset != j.Data.URI() && source.IsMade(t.Dataset):
		return "", nil, nil, badToken(
			"give the dataset a name=: without one it belongs to its process, and so does its state",
			"it is of %s, and job %s reads %s", t.Dataset, j.spec.GetName(), j.Data.URI())
	case t.Dataset != j.Data.URI() && !listed:
		return "", nil, nil, badToken("load it into a Loader of the dataset and subset that it was saved from",
			"it is of %s (%d samples), and job %s reads other files, of %s (%d samples)", t.Dataset, t.Samples, j.spec.GetName(),
			j.Data.URI(), len(objects))
	case !changed:
		return "", nil, nil, badToken(
			"put the files back, or load_state_dict(state, strict=False) continues with the files as they are",
			"the files of %s are not those that it was saved with: %s", j.Data.URI(), names)
	case t.Portable() && t.Order != "" && !listed:
		return "", nil, nil, badToken("begin the epoch again",
			"so many files of %s changed that a portable state does not show which of them were handed out: %s", j.Data.URI(),
			names)
	}
	return names, here, there, nil
}

// oldSketch is the sketch of the subset that a token of this log was made from; nil when it is not known any more.
func (h *history) oldSketch(t *resume.Token) *resume.Sketch {
	if j := h.jobs.byID(ident.JobID(t.ID)); j != nil {
		j.subsets.Lock()
		defer j.subsets.Unlock()
		for _, a := range j.subsets.asked {
			if a.sketch != nil && a.sketch.Sum() == t.Files {
				return a.sketch
			}
		}
	}
	try := func(s record.Subset) *resume.Sketch {
		if k, err := resume.ParseSketch(s.Files); err == nil && k.Sum() == t.Files {
			return k
		}
		return nil
	}
	if r := h.foundJob(ident.JobID(t.ID)); r != nil {
		if k := try(r.Subset); k != nil {
			return k
		}
		for _, c := range h.found.Job(ident.JobID(t.ID)).Subsets() {
			if s, err := record.ParseSubset(c.Document); err == nil {
				if k := try(s); k != nil {
					return k
				}
			}
		}
	}
	return nil
}

// resolveAgain makes a restored job that had not begun begin with what its token says.
func (h *history) resolveAgain(r *recordedResume, j *job, ev *coordinator.Restore) error {
	t, err := resume.Parse(r.Token)
	if err != nil {
		return err
	}
	ev.Rest, j.resume, err = h.resolve(t, r.Changed, j, &ev.Register)
	return err
}

// recordedOf finds the newest job of a name that this daemon knows of, and its record.
func (h *history) recordedOf(name string) (id ident.JobID, uri, files string, seed uint64, err error) {
	j := h.jobs.byName(name)
	if j != nil {
		return j.ID, j.Data.URI(), j.subsets.last().filed(j.Data).Sum(), j.seed.Load(), nil
	}
	if h.found != nil {
		for _, js := range slices.Backward(h.found.Jobs()) {
			r := h.foundJob(js.ID)
			if r == nil || !strings.Contains(string(r.Spec), strconv.Quote(name)) {
				continue
			}
			spec, err := r.JobSpec()
			if err != nil || spec.GetName() != name {
				continue
			}
			seed, _ := strconv.ParseUint(r.Seed, 10, 64)
			k, err := resume.ParseSketch(r.Subset.Files)
			if err != nil {
				continue
			}
			return js.ID, r.URI, k.Sum(), seed, nil
		}
	}
	return 0, "", "", 0, h.jobs.noJob(name)
}

// locate finds the object of a piece of work that an earlier daemon left.
func (h *history) locate(ctx context.Context, p crashguard.Piece) (crashguard.Sample, error) {
	data, ops, err := h.locateJob(ctx, p.Job)
	if err != nil {
		return crashguard.Sample{}, err
	}
	o := source.NoObject
	if int(p.Sample) < data.Len() {
		o = data.Object(p.Sample)
	}
	if o == source.NoObject {
		return crashguard.Sample{}, fmt.Errorf("%s has no such sample", data.Name())
	}
	return crashguard.Sample{
		Object: o, Path: data.Path(p.Sample), Ops: ops, Record: data.Schema() != nil,
		Key: prep.RandKey{Seed: p.Seed, Instance: p.Instance, Sample: uint64(p.Sample)},
	}, nil
}

// locateJob finds a restored job, or what the journal still says of one that is not restored: it may have ended, or its
// files changed.
func (h *history) locateJob(ctx context.Context, id ident.JobID) (*source.Dataset, []prep.OpSpec, error) {
	if j := h.jobs.byID(id); j != nil {
		return j.Data, opsOf(j.spec), nil
	}
	r := h.foundJob(id)
	if r == nil {
		return nil, nil, fmt.Errorf("job %d is not known any more", id)
	}
	spec, err := r.JobSpec()
	if err != nil {
		return nil, nil, err
	}
	if source.IsMade(r.URI) {
		return nil, nil, fmt.Errorf("job %d draws from %s, which workers make", id, r.URI)
	}
	data, err := h.catalog.Add(ctx, r.Name, r.URI)
	return data, opsOf(spec), err
}

// mayReplace refuses the name of another user's live job, and the state of another user's job; token may be nil.
func (h *history) mayReplace(ctx context.Context, name string, token *resume.Token) error {
	if token != nil && token.Log == h.logName() && !token.Portable() {
		if err := h.mayTouchID(ctx, ident.JobID(token.ID), "continue from"); err != nil {
			return err
		}
	}
	old, live, err := h.jobs.live(ctx, name)
	if err != nil || !live {
		return err
	}
	return mayTouch(ctx, old, "join or replace")
}
