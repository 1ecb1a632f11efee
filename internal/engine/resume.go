package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/engine/record"
	"larder/internal/engine/restore"
	"larder/internal/engine/ring"
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
	sum  string // of the token
	told *larderv1.Resumed
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

// orderName is the fingerprint of an order: which log has it, of which job, what it is drawn from. The samples are
// not in it: of a step that another rank was not given yet, batches may be given back or get substitutes after the
// token was made, so no hash of them would hold.
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

// GetState makes the token of a place in a job.
func (e *Engine) GetState(ctx context.Context, req *larderv1.GetStateRequest) (*larderv1.GetStateResponse, error) {
	j := e.jobs.byName(req.GetName())
	if req.GetId() != 0 {
		j = e.jobs.byID(ident.JobID(req.GetId()))
	}
	if j == nil {
		return nil, e.jobs.noJob(req.GetName())
	}
	if err := mayTouch(ctx, j, "save the state of"); err != nil {
		return nil, err
	}
	v, err := e.loop.lookup(ctx, j.ID)
	if err != nil {
		return nil, err
	}
	a, instance := j.subsets.last(), req.GetEpoch()
	if v != nil {
		instance += v.Offset
		if v.Begun && (v.Next == nil || req.GetEpoch() <= v.Epoch) {
			a = j.subsets.coming(v.Mark)
		}
	}
	t := resume.Token{Job: j.spec.GetName(), Log: e.history.logName(), ID: uint32(j.ID), Epoch: req.GetEpoch(),
		Step: req.GetStep(), Dataset: j.Data.URI(), Samples: len(a.objects)}
	rec, err := e.cfg.Journal.Recorded(j.ID, t.Epoch, journal.AnyInstance)
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
		r.told != nil && r.told.GetEpoch() == t.Epoch && r.Epoch != t.Epoch):
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

// handed is what a token says was handed out, and what is to be said of it.
type handed struct {
	before []ident.ObjectID
	notes  []string
}

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
				"what was handed out before epoch %d of job %s went on is not all in the log", t.Epoch, t.Job)
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
	before, told := had.before, &larderv1.Resumed{Epoch: t.Epoch, Notes: had.notes}
	target := objects // what the epoch is drawn from
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
		told.Notes = append(told.Notes, fmt.Sprintf("%d samples that were handed out are not in the subset any more", gone))
	}
	told.Before, told.Left = uint64(len(rest.Before)), uint64(dealt(j.life, rest.Member.Len()))
	whole := j.life
	whole.Subset = len(target)
	told.Whole, told.WholeBatches = uint64(whole.Subset), uint64(whole.Batches(0))
	from := ident.JobID(0)
	if own {
		from = ident.JobID(t.ID)
	}
	if told.Left == 0 { // it is over: the job begins with the next one
		if n := rest.Member.Len(); n > 0 {
			told.Notes = append(told.Notes, fmt.Sprintf(
				"%d samples of epoch %d are dropped: they are too few for the ranks and batches", n, t.Epoch))
		}
		order := rest.Before
		rest = &coordinator.Rest{Epoch: t.Epoch + 1, Instance: t.Instance + 1}
		if _, ok := restore.Scripted(reg.Script, rest.Epoch); !ok && reg.Script != nil {
			return nil, nil, badToken("there is nothing to go on with", "epoch %d was the last one of the recorded order",
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
		sum: t.Sum, told: told,
	}, nil
}

func dealt(spec jobs.Spec, samples int) int {
	spec.Subset = samples
	return spec.Dealt()
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

// resumed is what a job went on from; nil = nothing, or it is not known any more.
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
	told := false
	if was != nil {
		if here, there, told = now.Diff(was); told {
			names = nameFiles(j.Data, objects, here, there, times)
		}
	}
	if !told {
		names = "more than can be told"
		if t.Samples != len(objects) {
			names = fmt.Sprintf("%d samples were selected then and %d now", t.Samples, len(objects))
		}
	}
	switch {
	case t.Dataset != j.Data.URI() && !told:
		return "", nil, nil, badToken("load it into a Loader of the dataset and subset that it was saved from",
			"it is of %s (%d samples), and job %s reads other files, of %s (%d samples)", t.Dataset, t.Samples, j.spec.GetName(),
			j.Data.URI(), len(objects))
	case !changed:
		return "", nil, nil, badToken(
			"put the files back, or load_state_dict(state, strict=False) goes on with the files as they are",
			"the files of %s are not those that it was saved with: %s", j.Data.URI(), names)
	case t.Portable() && t.Order != "" && !told:
		return "", nil, nil, badToken("begin the epoch anew",
			"so many files of %s changed that a portable state does not tell which of them were handed out: %s", j.Data.URI(),
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

// takeOver makes room for a job that continues from a token: a job of that name whose clients are all gone ends. It
// returns the job instead when it is the very one, made by another rank of it.
func (r *registry) takeOver(
	ctx context.Context, rings *ring.Set, spec *larderv1.JobSpec, t *resume.Token,
) (same *job, kill func() error, err error) {
	old, live, err := r.live(ctx, spec.GetName())
	if err != nil || !live {
		return nil, func() error { return nil }, err
	}
	v, err := r.loop.lookup(ctx, old.ID)
	if err != nil || v == nil {
		return nil, func() error { return nil }, err
	}
	if old.resume != nil && old.resume.sum == t.Sum && !v.Begun && old.diff(spec) == "" {
		return old, nil, nil
	}
	for rank := range v.Ranks {
		if v.Ranks[rank].Attached() {
			return nil, nil, heldBy(rings, errs.New(errs.RankHeld, spec.GetName(),
				"end the other process, or give this Loader another job name; all ranks of a job load its state together",
				"job %s, of which rank %d is held by a live client, cannot go on from a state", spec.GetName(), rank), old.ID, rank)
		}
	}
	return nil, func() error {
		_, err := r.loop.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event {
			return coordinator.Kill{Token: t, Job: old.ID,
				Reason: "its client loaded a state, and goes on as another job of that name"}
		})
		if errs.Is(err, errs.JobEnded) {
			return nil
		}
		return err
	}, nil
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
