package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/resume"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// RegisterJob makes a job, or returns the live job of that name when its spec is equal.
func (e *Engine) RegisterJob(
	ctx context.Context, req *larderv1.RegisterJobRequest,
) (*larderv1.RegisterJobResponse, error) {
	out, err := e.register(ctx, req)
	if err != nil {
		e.notRegistered(ctx, req.GetSpec().GetDataset(), err)
		return nil, err
	}
	if j := e.jobs.byID(ident.JobID(out.GetJob().GetId())); j != nil && j.by != nil {
		e.jobs.claims.hold(ctx, j.ID)
	}
	return out, nil
}

func (e *Engine) register(
	ctx context.Context, req *larderv1.RegisterJobRequest,
) (_ *larderv1.RegisterJobResponse, err error) {
	if e.draining.Load() {
		return nil, errDraining
	}
	if err := e.cfg.Journal.Log.Room(); err != nil { // it would wait, and all that come after it
		return nil, err
	}
	spec, err := normalise(req.GetSpec())
	if err != nil {
		return nil, err
	}
	j, reg, err := e.compiler.compileFor(ctx, asker(ctx), spec)
	if err != nil {
		return nil, err
	}
	j.by = registrant(ctx)
	var token *resume.Token
	if req.GetResume() != "" {
		if token, err = resume.Parse(req.GetResume()); err != nil {
			return nil, err
		}
	}
	j.subsets.asked[0].sketch = e.jobs.sketched(j.Data, j.subsets.asked[0])
	e.registering.Lock()
	defer e.registering.Unlock() // held while the journal writes, and no longer
	defer func() {
		if err == nil {
			e.library.declared.settled(j.Data.URI())
		}
	}()
	if e.draining.Load() {
		return nil, errDraining
	}
	if _, err := e.follower.follow(ctx); err != nil { // the dataset may have been found changed
		return nil, err
	}
	if err := e.history.mayReplace(ctx, spec.GetName(), token); err != nil {
		return nil, err
	}
	if token != nil && j.life.Given {
		return nil, errs.New(errs.Unsupported, "resume", "begin the epoch, and send the samples that are left",
			"register job %s with a state: of order given, its client has the place in its stream", spec.GetName())
	}
	if token != nil {
		same, err := e.resume(ctx, token, req.GetResumeChanged(), j, &reg)
		if err != nil {
			return nil, err
		}
		if same != nil {
			v, err := e.views.describe(ctx, same.ID)
			return answer(v, same, &larderv1.RegisterJobResponse{Resumed: same.resume.summary}), err
		}
	}
	old, live, err := e.jobs.live(ctx, spec.GetName())
	if err != nil {
		return nil, err
	}
	if live {
		refusal := old.sameAs(j)
		if refusal == nil {
			v, err := e.views.describe(ctx, old.ID)
			return answer(v, old, &larderv1.RegisterJobResponse{}), err
		}
		if err := e.jobs.giveWay(ctx, e.rings, old, refusal); err != nil {
			return nil, err
		}
	}
	if err := e.admit(ctx, j, reg); err != nil {
		return nil, err
	}
	v, err := e.views.describe(ctx, j.ID)
	out := answer(v, j, &larderv1.RegisterJobResponse{Created: true})
	if j.resume != nil {
		out.Resumed = j.resume.summary
		e.cfg.Log.Info("job resumes", "job", spec.GetName(), "id", uint32(j.ID),
			"from", j.resume.From, "epoch", j.resume.Epoch, "before", j.resume.Before)
	}
	return out, err
}

// answer adds to a response what is said of every job.
func answer(v *larderv1.Job, j *job, out *larderv1.RegisterJobResponse) *larderv1.RegisterJobResponse {
	out.Job, out.DatasetNotes = v, j.Data.Notes()
	out.Fingerprint = fmt.Sprintf("%016x", j.Data.Fingerprint())
	return out
}

// admit has the coordinator take a new job, and makes it known here. e.registering is held.
func (e *Engine) admit(ctx context.Context, j *job, reg coordinator.Register) error {
	if err := j.holdWindow(e.room); err != nil {
		return err
	}
	reg.Strata = e.memory.strata(j)
	if len(reg.Strata) > 0 {
		e.log.note(slog.LevelInfo, "a dataset is kept mixed", "dataset", j.Data.Name(), "strata", len(reg.Strata)+1)
	}
	// The caller may be gone meanwhile: a job that the coordinator knows must be known here too.
	r, err := e.loop.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event {
		reg.Token = t
		e.jobs.expect(t, j)
		return reg
	})
	defer e.jobs.unexpect(reg.Token)
	if err != nil {
		j.dropWindow(e.room)
		return err
	}
	e.memory.stratified(j.Data.ID())
	j.ID = r.Job
	e.jobs.add(j)
	e.cfg.Log.Info("job registered", "job", j.spec.GetName(), "id", uint32(j.ID), "samples", j.life.Subset,
		"order", j.mode.String(), "batch_size", j.life.Batch, "world_size", j.life.World, "recipe", j.Recipe.ID().String())
	return nil
}

// resume makes a job begin with what a token left of an epoch. It returns another job when that is the very one, made
// by another rank of it. e.registering is held.
func (e *Engine) resume(
	ctx context.Context, t *resume.Token, changed bool, j *job, reg *coordinator.Register,
) (same *job, err error) {
	same, kill, err := e.jobs.takeOver(ctx, e.rings, j, t)
	if err != nil || same != nil {
		return same, err
	}
	if reg.Rest, j.resume, err = e.history.resolve(t, changed, j, reg); err != nil {
		return nil, err
	}
	j.notes = append(j.notes, fmt.Sprintf("it continues epoch %d of job %s, of which %d samples had been handed out",
		t.Epoch, strconv.Quote(t.Job), j.resume.summary.GetBefore()))
	j.notes = append(j.notes, j.resume.summary.GetNotes()...)
	return nil, kill()
}

var errDraining = errs.New(errs.Unavailable, "", "use the daemon that replaces it",
	"the daemon is draining and takes no new jobs")

// oneMachine is what works today instead of a job of several machines.
const oneMachine = "give each machine a job and a daemon of its own: " +
	"subset \"id % 2 == 0\" on the first of two and \"id % 2 == 1\" on the other, " +
	"rank and world_size of that machine alone"

// normalise checks what needs no dataset and fills in defaults.
func normalise(in *larderv1.JobSpec) (*larderv1.JobSpec, error) {
	if in == nil {
		return nil, errs.New(errs.Invalid, "spec", "send a JobSpec", "register a job without a spec")
	}
	s := proto.CloneOf(in)
	bad := func(field, hint, format string, args ...any) error {
		return errs.New(errs.Invalid, field, hint, "register job %s: "+format, append([]any{s.GetName()}, args...)...)
	}
	if n := utf8.RuneCountInString(s.GetName()); n < 1 || n > 256 || strings.ContainsFunc(s.GetName(),
		func(r rune) bool { return !unicode.IsPrint(r) }) {
		return nil, errs.New(errs.Invalid, "name", "use 1 to 256 printable characters", "register job %q: not a name",
			s.GetName())
	}
	if err := noRecords(s); err != nil && !source.IsMade(s.GetDataset()) {
		return nil, err
	}
	if s.GetDataset() == "" {
		return nil, bad("dataset", "give a uri such as imagefolder:/data/train", "no dataset")
	}
	if s.BatchSize < 1 || s.BatchSize > 1<<16 {
		return nil, bad("batch_size", "choose 1 to 65,536", "batch_size is %d", s.BatchSize)
	}
	switch {
	case !s.Shuffle && s.Order != "" && s.Order != givenOrder:
		return nil, bad("order", "set shuffle=True, or leave order out", "order %q needs shuffle", s.Order)
	case s.Shuffle && s.Order == "":
		s.Order = "stratified"
	}
	if err := normaliseRanks(s); err != nil {
		return nil, err
	}
	if s.Prefetch > 64 { // 0: see job.prefetch
		return nil, bad("prefetch", "choose 1 to 64", "prefetch is %d", s.Prefetch)
	}
	var err error
	oneOf := func(field, value, def string, allowed ...string) string {
		if value == "" {
			return def
		}
		if slices.Contains(allowed, value) {
			return value
		}
		if err == nil {
			err = bad(field, "choose one of "+strings.Join(allowed, ", "), "%s is %q", field, value)
		}
		return value
	}
	even := "none"
	if s.WorldSize > 1 {
		even = "drop"
	}
	s.Even = oneOf("even", s.Even, even, "drop", "none")
	s.Share = oneOf("share", s.Share, "none", "none", "augmented")
	s.OnError = oneOf("on_error", s.OnError, "raise", "raise", "skip", "substitute")
	if s.Advance = oneOf("advance", s.Advance, "", "early", "on_request"); s.Advance == "early" {
		s.Advance = "" // as jobs of older clients have it
	}
	if err == nil {
		err = refuseGiven(s)
	}
	if err == nil {
		err = normaliseIndices(s)
	}
	if err == nil && source.IsMade(s.GetDataset()) {
		return s, normaliseMade(s)
	}
	if err == nil && hasPython(s) {
		err = normaliseSteps(s)
	}
	for _, op := range s.GetTransform() {
		switch k := op.GetKind(); k {
		case "", "builtin", pythonOp:
		default:
			return nil, errs.New(errs.Unsupported, "transform", "leave kind out",
				"register job %s: op kind %q is not known", s.Name, k)
		}
	}
	return s, err
}

// normaliseRanks checks how many processes a job has, and on which machines.
func normaliseRanks(s *larderv1.JobSpec) error {
	if s.WorldSize == 0 {
		s.WorldSize = 1
	}
	if s.NumNodes == 0 {
		s.NumNodes = 1
	}
	if s.NumNodes > 1 {
		return errs.New(errs.Unsupported, "num_nodes", oneMachine,
			"register job %s: num_nodes is %d, and a job of several machines does not work yet", s.Name, s.NumNodes)
	}
	if s.Replica != 0 {
		return errs.New(errs.Unsupported, "replica",
			"leave replica at 0; jobs with shuffle, order \"fixed\" and one seed get the same batches",
			"register job %s: replica is %d, and replicas do not work yet", s.Name, s.Replica)
	}
	return nil
}

// givenOrder is the order of a job whose client says which samples come.
const givenOrder = "given"

// refuseGiven says what a job of order given cannot have; nil for any other.
func refuseGiven(s *larderv1.JobSpec) error {
	field := ""
	switch {
	case s.GetOrder() != givenOrder:
	case s.GetShuffle():
		field = "shuffle"
	case s.GetShare() != "none": // each of its picks is an instance of its own
		field = "share"
	}
	if field == "" {
		return nil
	}
	return errs.New(errs.Invalid, field, "leave "+field+" out",
		"register job %s: order given, where the client says which samples come, does not go with %s", s.GetName(), field)
}

// smallRings is how much memory the rings of a job may have for batches that are larger than its dataset is today, in
// bytes: room to grow. It is no more than a quarter of what is free.
const smallRings = 256 << 20

// parseOrder reads the name of an order a user may ask for: a mode, or stratified(B). B is bounded where its tiles
// would be too small to share anything in, which notes say.
func parseOrder(order string, n int) (mode dsa.Mode, tiles int, notes []string, err error) {
	name, arg, ok := strings.Cut(order, "(")
	if !ok || name != dsa.Stratified.String() {
		mode, err = dsa.ParseMode(order)
		return mode, 0, nil, err
	}
	text, closed := strings.CutSuffix(arg, ")")
	tiles, aerr := strconv.Atoi(text)
	if !closed || aerr != nil || tiles < 1 || tiles > dsa.MaxTiles {
		return 0, 0, nil, errs.New(errs.Invalid, "order",
			fmt.Sprintf("write stratified(B) with 1 to %d tiles B; stratified is stratified(%d)", dsa.MaxTiles,
				dsa.DefaultTiles),
			"order %.40q does not name a number of tiles", order)
	}
	if most := max(dsa.DefaultTiles, n/minTile); tiles > most {
		notes = append(notes, fmt.Sprintf(
			"order %s: %d tiles are used, not %d: each of the job's cells is split into so many, "+
				"and with fewer than %d of its %d samples in a tile nothing would be left to share",
			order, most, tiles, minTile, n))
		tiles = most
	}
	return dsa.Stratified, tiles, notes, nil
}

// minTile is the fewest samples of a subset that a tile of it may have.
const minTile = 64

// specDiff names the fields in which two specs differ, in the order of the proto; empty = equal.
func specDiff(a, b *larderv1.JobSpec) string {
	if proto.Equal(a, b) {
		return ""
	}
	var out []string
	x, y := a.ProtoReflect(), b.ProtoReflect()
	fields := x.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !x.Get(f).Equal(y.Get(f)) {
			if f.IsList() || f.Message() != nil {
				out = append(out, fmt.Sprintf("%s differs", f.Name()))
			} else {
				out = append(out, fmt.Sprintf("%s is %v there and %v here", f.Name(), x.Get(f), y.Get(f)))
			}
		}
	}
	return strings.Join(out, ", ")
}
