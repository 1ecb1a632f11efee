package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"larder/internal/engine/record"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/resume"
	"larder/internal/source"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// recordedResume is what is known of a job that continues another one: what the journal has, and of one that this
// daemon registered what its client heard.
type recordedResume struct {
	record.Resume
	sum     string // of the token
	summary *larderv1.Resumed
}

// resumedFrom is what the journal has; nil stays nil.
func resumedFrom(r *record.Resume) *recordedResume {
	if r == nil {
		return nil
	}
	return &recordedResume{Resume: *r}
}

// sketchOf summarises the files of some objects; without times it is equal for a copy that did not keep them.
func sketchOf(data *source.Dataset, objects []ident.ObjectID, times bool) *resume.Sketch {
	s := new(resume.Sketch)
	for _, x := range objects {
		s.Add(fileOf(data, x, times))
	}
	return s
}

func fileOf(data *source.Dataset, x ident.ObjectID, times bool) resume.Entry {
	key, size, mtime := data.File(x)
	if !times {
		mtime = 0
	}
	return resume.File(key, size, mtime)
}

// maySave refuses the state of a job of another user, or of one whose order is its client's.
func maySave(ctx context.Context, j *job) error {
	if j.life.Given {
		return errs.New(errs.Unsupported, j.spec.GetName(), "keep the place in the stream beside the client's own state",
			"the state of job %s: of order given, its client has the place in its stream", j.spec.GetName())
	}
	return mayTouch(ctx, j, "save the state of")
}

// GetState makes the token of a place in a job.
func (e *Engine) GetState(ctx context.Context, req *larderv1.GetStateRequest) (*larderv1.GetStateResponse, error) {
	j := e.jobs.byName(req.GetName())
	if req.GetId() != 0 {
		j = e.jobs.byID(ident.JobID(req.GetId()))
	}
	if j == nil {
		return nil, e.jobs.noJob(req.GetName())
	}
	if err := maySave(ctx, j); err != nil {
		return nil, err
	}
	v, err := e.loop.lookup(ctx, j.ID)
	if err != nil {
		return nil, err
	}
	a, instance := j.subsets.during(v, req.GetEpoch()), req.GetEpoch()
	if v != nil {
		instance += v.Offset
	}
	t := resume.Token{Job: j.spec.GetName(), Log: e.history.logName(), ID: uint32(j.ID), Epoch: req.GetEpoch(),
		Step: req.GetStep(), Dataset: j.Data.URI(), Samples: a.samples}
	if req.GetPortable() || j.resume != nil {
		if a.objects, err = j.selected(a); err != nil {
			return nil, err
		}
	}
	rec, err := e.cfg.Journal.Log.Recorded(j.ID, t.Epoch, journal.AnyInstance)
	if err != nil {
		return nil, err
	}
	if rec != nil {
		instance = rec.Instance
	}
	t.Instance, t.Files = instance, a.filed(j.Data).Sum()
	if j.resume != nil && req.GetStep() > 0 {
		t.Before = req.GetBefore()
	}
	if rec != nil && rec.Steps() < t.Step || rec == nil && t.Step > 0 {
		return nil, errs.New(errs.Invalid, j.spec.GetName(), "ask for a step that was handed out",
			"the state of job %s at step %d of epoch %d, of which fewer batches were given out",
			j.spec.GetName(), t.Step, t.Epoch)
	}
	if t.Step > 0 || rec != nil && rec.Remainder && rec.Earlier() > 0 {
		t.Order = e.history.orderName(j.ID, t.Epoch, t.Instance, t.Samples)
	}
	var given []ident.ObjectID
	switch r := j.resume; {
	case r != nil && t.Step == 0 && (rec == nil || rec.Remainder) && (r.Epoch == t.Epoch && r.Before > 0 ||
		r.summary != nil && r.summary.GetEpoch() == t.Epoch && r.Epoch != t.Epoch):
		// Nothing of it was handed out: the state is that which was loaded, which stands in the log for sure.
		old, err := resume.Parse(r.Token)
		if err != nil {
			return nil, err
		}
		if !req.GetPortable() || old.Portable() {
			return &larderv1.GetStateResponse{Token: r.Token}, nil
		}
		h, err := e.history.handed(old, r.Changed, j, a.objects)
		if err != nil {
			return nil, err
		}
		t, given = *old, h.before
		t.Files, t.Samples = a.filed(j.Data).Sum(), len(a.objects)
	case req.GetPortable() && rec != nil:
		given = record.ToObjects(j.Data, rec.Given(t.Step))
	}
	if req.GetPortable() {
		places := placesOf(j.Data, a.objects)
		var had []uint32
		for _, x := range given {
			if p, ok := places[x]; ok {
				had = append(had, p)
			}
		}
		t.Delivered, t.Sketch = resume.Pack(len(a.objects), had), sketchOf(j.Data, a.objects, false).Text()
	}
	return &larderv1.GetStateResponse{Token: t.Text()}, nil
}

// filed returns the sketch of the files as they were when the subset was selected.
func (a asked) filed(data *source.Dataset) *resume.Sketch {
	if a.sketch != nil {
		return a.sketch
	}
	return sketchOf(data, a.objects, true)
}

// placesOf numbers objects by the hashes of their keys, which are the same wherever the files lie.
func placesOf(data *source.Dataset, objects []ident.ObjectID) map[ident.ObjectID]uint32 {
	type keyed struct {
		key uint64
		x   ident.ObjectID
	}
	all := make([]keyed, len(objects))
	for i, x := range objects {
		all[i] = keyed{fileOf(data, x, false).Key, x}
	}
	slices.SortFunc(all, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	out := make(map[ident.ObjectID]uint32, len(all))
	for i, k := range all {
		out[k.x] = uint32(i)
	}
	return out
}

func badToken(hint, format string, args ...any) error {
	return errs.New(errs.Token, "state_dict", hint, "load a state: "+format, args...)
}

// handed is what a token says was handed out, with notes for the user.
type handed struct {
	before []ident.ObjectID
	notes  []string
}

func dealt(spec jobs.Spec, samples int) int {
	spec.Subset = samples
	return spec.Dealt()
}

const mostNames = 5

// nameFiles says in words which files differ.
func nameFiles(data *source.Dataset, objects []ident.ObjectID, here, there []resume.Entry, times bool) string {
	was := map[uint64]bool{}
	for _, k := range there {
		was[k.Key] = true
	}
	is := map[uint64]bool{}
	for _, k := range here {
		is[k.Key] = true
	}
	var changed, added []string
	for _, x := range objects {
		k := fileOf(data, x, times).Key
		if !is[k] {
			continue
		}
		key, _, _ := data.File(x)
		if was[k] {
			changed = append(changed, strings.ToValidUTF8(key, "\uFFFD"))
		} else {
			added = append(added, strings.ToValidUTF8(key, "\uFFFD"))
		}
	}
	var gone []string
	lost := len(there) - len(changed)
	// this dataset may know their names yet
	for s := ident.SampleID(0); int(s) < data.Len() && len(gone) < lost && len(was) > 0; s++ {
		if k := resume.File(data.Key(s), 0, 0).Key; was[k] && !is[k] {
			gone = append(gone, data.Key(s))
		}
	}
	var out []string
	say := func(n int, what string, names []string) {
		if n == 0 {
			return
		}
		s := fmt.Sprintf("%d %s", n, what)
		if len(names) > 0 {
			s += " (" + strings.Join(names[:min(len(names), mostNames)], ", ")
			if n > mostNames {
				s += ", …"
			}
			s += ")"
		}
		out = append(out, s)
	}
	say(len(changed), "changed", changed)
	say(len(added), "new", added)
	say(lost, "gone", gone)
	return strings.Join(out, ", ")
}

// placed turns the places of a portable token into objects. Its samples were numbered by the hashes of their keys;
// what differs since is known.
func placed(data *source.Dataset, objects []ident.ObjectID, had []uint32, here, there []resume.Entry) []ident.ObjectID {
	type keyed struct {
		key uint64
		x   ident.ObjectID
	}
	was := make(map[uint64]bool, len(there))
	for _, k := range there {
		was[k.Key] = true
	}
	is := make(map[uint64]bool, len(here))
	for _, k := range here {
		is[k.Key] = true
	}
	var all []keyed
	for _, x := range objects {
		if k := fileOf(data, x, false).Key; !is[k] || was[k] { // not new; what only changed keeps its place
			all = append(all, keyed{k, x})
		}
	}
	for _, k := range there {
		if !is[k.Key] {
			all = append(all, keyed{k.Key, source.NoObject})
		}
	}
	slices.SortFunc(all, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	out := make([]ident.ObjectID, 0, len(had))
	for _, p := range had {
		if int(p) < len(all) {
			out = append(out, all[p].x)
		}
	}
	return out
}
