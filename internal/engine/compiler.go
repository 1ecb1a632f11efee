package engine

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/resume"
	"larder/internal/units"
	"larder/internal/xrand"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// compiler makes jobs of specs.
type compiler struct {
	library *library
	rings   *ring.Budget
}

// compileFor is compile for the user who asks, who owns the job.
func (c *compiler) compileFor(
	ctx context.Context, o *owner, spec *larderv1.JobSpec,
) (*job, coordinator.Register, error) {
	var none coordinator.Register
	if err := c.library.mayRegister(o, spec); err != nil {
		return nil, none, err
	}
	j, reg, err := c.compile(ctx, o, spec, nil)
	if err != nil {
		return nil, none, err
	}
	if m := j.Made; m != nil && m.Python && o.uid() != uint32(os.Getuid()) {
		return nil, none, errs.New(errs.Denied, spec.GetName(), "run the job as the daemon's user, or a daemon of your own",
			"register job %s: steps in Python on what the daemon reads are for its own user, and uid %d asks",
			spec.GetName(), o.uid())
	}
	j.owner = o
	return j, reg, c.library.mayRead(ctx, o, j)
}

var onErrorOf = map[string]jobs.OnError{"raise": jobs.Raise, "skip": jobs.Skip, "substitute": jobs.Substitute}

// compile opens the dataset, selects the subset and parses the recipe. What is not indexed yet is, with the rights of
// o.
func (c *compiler) compile(
	ctx context.Context, o *owner, spec *larderv1.JobSpec, known *selections,
) (*job, coordinator.Register, error) {
	var reg coordinator.Register
	parsed, err := parse(spec)
	if err != nil {
		return nil, reg, err
	}
	data, err := c.library.openFor(ctx, o, spec.GetDataset(), spec.GetSkipEmpty())
	if err != nil {
		return nil, reg, err
	}
	recipe, made, err := c.library.recipeOn(parsed, data, spec)
	if err != nil {
		return nil, reg, err
	}
	seen := data.Fingerprint() // before the selection: what changes after it is followed up
	sel, err := known.in(data, spec, spec.GetSubset())
	if err != nil {
		return nil, reg, err
	}
	objects := sel.objects
	mode, tiles, notes, err := modeOf(spec, len(objects))
	if err != nil {
		return nil, reg, err
	}
	j := &job{
		Job: work.Job{Data: data, Recipe: recipe, Made: made}, spec: spec, mode: mode, registered: time.Now(), notes: notes,
		seed: new(atomic.Uint64),
		life: jobs.Spec{
			Name: spec.GetName(), Subset: len(objects), Batch: int(spec.GetBatchSize()), World: int(spec.GetWorldSize()),
			DropLast: spec.GetDropLast(), Even: spec.GetEven() == "drop", Epochs: spec.GetEpochs(),
			OnError: onErrorOf[spec.GetOnError()], Given: spec.GetOrder() == givenOrder,
		},
	}
	if j.life.Given || spec.GetAdvance() == "on_request" {
		j.life.Advance = jobs.OnRequest
	}
	c.chooseSlots(j)
	j.brief = sync.OnceValue(func() *larderv1.JobSpec {
		s := proto.CloneOf(spec)
		s.Indices = nil
		return s
	})
	if err := j.life.Validate(); err != nil {
		return nil, reg, err
	}
	j.rows = c.rows(j)
	if err := c.fits(j); err != nil {
		return nil, reg, err
	}
	windowed, err := c.windowOf(ctx, j)
	if err != nil {
		return nil, reg, err
	}
	j.subsets = newSubsets(spec.GetSubset(), objects, seen)
	reg = coordinator.Register{
		Spec:   j.life,
		Sample: dsa.JobSpec{Mode: mode, Tiles: tiles, Seed: spec.GetSeed(), Subset: objects},
		Member: sel.member,
		Prefix: recipe.Prefix(), Suffix: recipe.SuffixID(),
		Share:   spec.GetShare() == "augmented" && recipe.Random(),
		Dataset: data.ID(), Names: []string{data.Name(), data.URI()},
		Key: ident.RecipeID(xrand.Hash(uint64(data.ID())+1, uint64(recipe.SuffixID()))),
	}
	j.takeWindow(windowed, &reg)
	if out := recipe.Output(); !out.Ragged && len(out.Shape) == 3 {
		n := 1
		for _, d := range out.Shape {
			n *= d
		}
		reg.AugmentedBytes = int64(n) // uint8 before the final cast, whatever the output type
	}
	if made != nil {
		reg.AugmentedBytes = j.sampleBytes()
	}
	if j.ByClients() {
		reg.Making = makingOf(made)
	}
	if strings.HasPrefix(spec.GetOrder(), replayOrder) {
		err = c.replay(j, &reg)
	}
	return j, reg, err
}

// A ring of small records has up to manySlots slots, as many as shortRing bytes hold.
const manySlots, shortRing = 16, 16 << 20

// chooseSlots gives the spec its prefetch, if it has none, and the ring as many slots.
func (c *compiler) chooseSlots(j *job) {
	if j.spec.GetPrefetch() == 0 {
		j.chosen, j.spec.Prefetch = true, c.prefetch(j)
	}
	j.life.Slots = int(j.spec.GetPrefetch()) + 2
}

// prefetch is how many batches are prepared ahead for a job that does not say. Where rows are copies of small records,
// a batch takes less than what comes with it: a sync of the journal, waking the loop, workers and client. More slots
// have these serve several batches at once. It depends on what other rings take: ranks that come later get the
// answer of the first, see diff. Measured in docs/measurements/stores.md.
func (c *compiler) prefetch(j *job) uint32 {
	m := j.Made
	if m == nil || j.ByClients() || m.Image || len(m.Runs) > 0 || j.life.Given {
		return 2
	}
	if slices.ContainsFunc(m.Out.Fields, func(f record.Field) bool { return !f.Dense() }) {
		return 2
	}
	if _, blocks, err := parseBlocks(j.spec.GetOrder()); blocks || err != nil { // what is planned holds blocks
		return 2
	}
	free := (c.rings.Limit() - c.rings.Used()) / 8 // leave room for others, and never ask for what 4 slots would not
	room := min(shortRing, free) / int64(j.life.World)
	return uint32(min(max(room/(int64(j.life.Batch)*j.sampleBytes()), 4), manySlots)) - 2
}

// modeOf reads the order of a job with so many samples. What comes from a file, or walks through blocks (takeWindow),
// is sequential at first.
func modeOf(spec *larderv1.JobSpec, n int) (mode dsa.Mode, tiles int, notes []string, err error) {
	if !spec.GetShuffle() || strings.HasPrefix(spec.GetOrder(), replayOrder) {
		return dsa.Sequential, 0, nil, nil
	}
	if _, blocks, err := parseBlocks(spec.GetOrder()); blocks || err != nil {
		return dsa.Sequential, 0, nil, err
	}
	return parseOrder(spec.GetOrder(), n)
}

// fits refuses a ring that the memory limit cannot hold.
func (c *compiler) fits(j *job) error {
	l := j.layout()
	need := l.Bytes() * int64(j.life.World)
	limit := c.rings.Limit()
	if have := limit - c.rings.Used(); need > have {
		each := ""
		if j.life.World > 1 {
			each = fmt.Sprintf(" for each of %d ranks", j.life.World)
		}
		return errs.New(errs.RingMemory, j.spec.GetName(),
			"lower batch_size or prefetch, deliver uint8, lower tiers.total, or raise memory.limit",
			"register job %s: its rings need %s (%d slots of %s%s), and %s of the %s for rings are free",
			j.spec.GetName(), units.Size(need), l.Slots, units.Size(l.SlotBytes), each, units.Size(max(have, 0)),
			units.Size(limit))
	}
	return nil
}

// rows is how many samples a slot of j's rings has room for: a batch, but no more than a rank gets of the whole
// dataset, unless that costs little. It holds for as long as the daemon knows the job, whatever the subset: see
// roomFor.
func (c *compiler) rows(j *job) int {
	if j.life.Given { // it may name a sample many times
		return j.life.Batch
	}
	share := (j.Data.Len() + j.life.World - 1) / j.life.World
	each := j.sampleBytes()
	small := min(smallRings, (c.rings.Limit()-c.rings.Used())/4) / (each * int64(j.life.Slots) * int64(j.life.World))
	return min(j.life.Batch, max(share, int(min(small, 1<<16))))
}

// replay makes a job have the orders of a file: the same samples in the same order, in the same instances, with the
// seed that they had. The files must be the very ones.
func (c *compiler) replay(j *job, reg *coordinator.Register) error {
	path := strings.TrimPrefix(j.spec.GetOrder(), replayOrder)
	bad := func(hint, format string, args ...any) error {
		return errs.New(errs.Invalid, "order", hint, "replay %s: "+format, append([]any{path}, args...)...)
	}
	if j.spec.GetShare() != "none" {
		return bad("leave share out", "share=%q has instances of its own", j.spec.GetShare())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return errs.New(errs.NotFound, path,
			"make it with `larder orders export JOB`; the daemon reads it, as its own user", "read a recorded order").
			Because(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() { // a pipe might never end
		return bad("make it with `larder orders export JOB`", "it is no regular file")
	}
	o, err := resume.ReadOrders(f)
	if err != nil {
		return bad("make it with `larder orders export JOB`", "%v", err)
	}
	all := reg.Sample.Subset
	if files := j.subsets.last().filed(j.Data).Sum(); files != o.Files {
		return bad("use the dataset and subset that it was recorded from, with the files as they were",
			"it is of %s, with other files than the %d that job %s selects of %s",
			o.Dataset, len(all), j.spec.GetName(), j.Data.URI())
	}
	selected := coordinator.Members(all)
	for _, ep := range o.Epochs {
		if len(ep.Samples) == 0 {
			continue
		}
		s := coordinator.Scripted{Epoch: ep.Epoch, Instance: ep.Instance, Objects: make([]ident.ObjectID, len(ep.Samples))}
		for i, id := range ep.Samples {
			s.Objects[i] = j.Data.Object(ident.SampleID(id))
			if !selected.Has(uint32(s.Objects[i])) {
				return bad("export it again", "epoch %d has sample %d, which is not of the subset", ep.Epoch, id)
			}
		}
		if s.Member = coordinator.Members(s.Objects); s.Member.Len() != len(s.Objects) {
			return bad("export it again", "epoch %d has a sample twice", ep.Epoch)
		}
		life := j.life
		life.Subset = len(s.Objects)
		if err := life.Validate(); err != nil {
			return err
		}
		reg.Script = append(reg.Script, s)
	}
	if len(reg.Script) == 0 {
		return bad("export it when some of an epoch was given out", "it has no sample")
	}
	first := reg.Script[0]
	j.mode, j.life.Subset = dsa.Sequential, len(first.Objects)
	reg.Spec = j.life
	reg.Sample = dsa.JobSpec{Mode: dsa.Sequential, Seed: o.Seed, Subset: first.Objects}
	reg.Member = first.Member
	j.notes = append(j.notes, "its order is that of job "+strconv.Quote(o.Job)+", recorded in "+path)
	return nil
}

// fitsRing refuses one more ring when the memory for rings is used up.
func (c *compiler) fitsRing(j *job) error {
	one := *j
	one.life.World = 1
	return c.fits(&one)
}

// opsOf are the ops of a job's recipe as they came.
func opsOf(spec *larderv1.JobSpec) []prep.OpSpec { return opSpecs(spec.GetTransform()) }

// stepsOf are the ops that make samples, on records: those but for a MixUp or CutMix at the end, which whoever hands
// batches out does.
func stepsOf(spec *larderv1.JobSpec) []*larderv1.Op {
	ops := spec.GetTransform()
	if n := len(ops); n > 0 && ops[n-1].GetKind() != pythonOp && prep.IsMixing(ops[n-1].GetName()) {
		return ops[:n-1]
	}
	return ops
}
