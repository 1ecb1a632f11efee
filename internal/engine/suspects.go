package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// suspects are samples that workers were at when an earlier daemon died. Decoders run in this process, so that an image which crashes one would end every life of
// the daemon, one after the other. Each suspect is therefore prepared in a process of its own first. When that dies, twice, its stored bytes are known to crash:
// they fail here as a file does that is no image, for every job, under every name, and the coordinator makes of it what it makes of any sample that cannot be prepared. When the
// process does what it is asked for, the daemon had died of something else. So such an image costs one death, and what may have been it is as many samples as there
// are workers. The coordinator knows nothing of all this.
type suspects struct {
	e     *Engine
	build uint64
	court court
	left  atomic.Int64 // suspects and crashers: while there are none nobody looks here

	mu struct {
		sync.Mutex
		open     map[ident.ObjectID][]*suspect
		crashers map[[16]byte]journal.Crasher
		sizes    map[int64]int // of crashers
	}
}

type suspect struct {
	piece  journal.Piece
	object ident.ObjectID
	path   string
	charge charge

	mu   sync.Mutex // held while it is tried
	over bool       // it was, or cannot be
}

func newSuspects(e *Engine) *suspects {
	s := &suspects{e: e, build: xxhash.Sum64String(e.cfg.Version + "\n" + prep.DecoderName()), court: court{command: e.cfg.Trial}}
	s.mu.open = map[ident.ObjectID][]*suspect{}
	s.mu.crashers = map[[16]byte]journal.Crasher{}
	s.mu.sizes = map[int64]int{}
	for _, c := range e.cfg.Decoding.Crashers() {
		s.add(c)
	}
	return s
}

// find turns what the file says into objects, when the jobs are back. What has no file any more is no danger either.
func (s *suspects) find(ctx context.Context) {
	d := s.e.cfg.Decoding
	all := d.Suspects()
	found := 0
	for _, p := range all {
		x, err := s.suspect(ctx, p)
		if err != nil {
			s.e.cfg.Log.Info("a sample that was being prepared when the daemon died is gone", "job", uint32(p.Job), "sample", uint32(p.Sample), "why", err)
			d.Settle(p)
			continue
		}
		s.mu.open[x.object] = append(s.mu.open[x.object], x)
		s.left.Add(1)
		found++
	}
	if found > 0 {
		s.e.cfg.Log.Warn("samples were being prepared when the last daemon died; each is tried in a process of its own first", "samples", found)
	}
}

func (s *suspects) suspect(ctx context.Context, p journal.Piece) (*suspect, error) {
	data, recipe, err := s.jobOf(ctx, p.Job)
	if err != nil {
		return nil, err
	}
	o := source.NoObject
	if int(p.Sample) < data.Len() {
		o = data.Object(p.Sample)
	}
	if o == source.NoObject {
		return nil, fmt.Errorf("%s has no such sample", data.Name())
	}
	return &suspect{piece: p, object: o, path: data.Path(p.Sample), charge: charge{
		Ops: recipe.Ops(), Limits: s.e.cfg.Limits, Key: prep.RandKey{Seed: p.Seed, Instance: p.Instance, Sample: uint64(p.Sample)},
	}}, nil
}

// jobOf finds a job that is back, or what the journal still says of one that is not: it may have ended, or its files changed.
func (s *suspects) jobOf(ctx context.Context, id ident.JobID) (*source.Dataset, *prep.Recipe, error) {
	if j := s.e.job(id); j != nil {
		return j.data, j.recipe, nil
	}
	r := s.e.foundJob(id)
	if r == nil {
		return nil, nil, fmt.Errorf("job %d is not known any more", id)
	}
	spec, err := r.JobSpec()
	if err != nil {
		return nil, nil, err
	}
	recipe, err := prep.ParseRecipe(opsOf(spec))
	if err != nil {
		return nil, nil, err
	}
	data, err := s.e.cfg.Catalog.Add(ctx, r.Name, r.URI)
	return data, recipe, err
}

// run tries the suspects, so that work on them need not wait long. Those whose file cannot be read now are tried when it can.
func (s *suspects) run(ctx context.Context) {
	s.mu.Lock()
	var all []*suspect
	for _, list := range s.mu.open {
		all = append(all, list...)
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return
	}
	s.court.stay(true)
	defer s.court.stay(false)
	slices.SortFunc(all, func(a, b *suspect) int { return cmp.Compare(a.object, b.object) })
	for _, x := range all {
		if enc, err := s.e.cfg.Catalog.Read(ctx, x.object, nil); err == nil {
			s.try(ctx, x, enc)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// verdict says why an object is not to be decoded here; empty = it may be. wait: that cannot be told, because the daemon is stopping.
func (s *suspects) verdict(ctx context.Context, j *job, o ident.ObjectID, enc []byte) (bad string, wait bool) {
	if s.left.Load() == 0 {
		return "", false
	}
	s.mu.Lock()
	open := s.mu.open[o]
	looks := len(open) > 0 || s.mu.sizes[int64(len(enc))] > 0
	s.mu.Unlock()
	for _, x := range open {
		s.try(ctx, x, enc)
	}
	if !looks {
		return "", false
	}
	c, known := s.crasher(enc)
	if known && c.Build != s.build { // another larder may decode what that one could not
		c, known = s.again(ctx, j, enc, c)
	}
	switch {
	case ctx.Err() != nil:
		return "", true
	case known:
		return reason(c.How), false
	}
	return "", false
}

func reason(how string) string {
	if how == hangs {
		return "the decoder does not end"
	}
	return "the decoder crashed (" + how + ")"
}

func content(enc []byte) (h [16]byte) {
	sum := sha256.Sum256(enc)
	copy(h[:], sum[:])
	return h
}

func (s *suspects) crasher(enc []byte) (journal.Crasher, bool) {
	h := content(enc)
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.mu.crashers[h]
	return c, ok && c.Bytes == int64(len(enc))
}

func (s *suspects) add(c journal.Crasher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.mu.crashers[c.Hash]; !there {
		s.mu.sizes[c.Bytes]++
		s.left.Add(1)
	}
	s.mu.crashers[c.Hash] = c
}

// try settles a suspect, unless that was done. Others who need it wait.
func (s *suspects) try(ctx context.Context, x *suspect, enc []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	how, stderr, err := s.court.try(ctx, x.charge, enc)
	switch {
	case err != nil && ctx.Err() != nil:
		return // it stays one for the next daemon
	case err != nil: // as it was before there were trials; it stays one for the next daemon
		s.e.note(slog.LevelWarn, "a sample that was being prepared when the last daemon died could not be tried in a process of its own, and is decoded without", "path", x.path, "error", err)
	case how != "":
		s.condemn(x.path, enc, how, stderr)
		s.e.cfg.Decoding.Settle(x.piece)
	default:
		s.e.note(slog.LevelInfo, "a sample that was being prepared when the last daemon died is innocent", "path", x.path)
		s.e.cfg.Decoding.Settle(x.piece)
	}
	x.over = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.open[x.object] = slices.DeleteFunc(slices.Clone(s.mu.open[x.object]), func(y *suspect) bool { return y == x }) // verdict may go through the old list
	if len(s.mu.open[x.object]) == 0 {
		delete(s.mu.open, x.object)
	}
	s.left.Add(-1)
}

func (s *suspects) condemn(path string, enc []byte, how, stderr string) journal.Crasher {
	c := journal.Crasher{Bytes: int64(len(enc)), Hash: content(enc), Build: s.build, How: how}
	s.add(c) // before it is no suspect any more
	s.e.cfg.Decoding.Condemn(c)
	s.e.note(slog.LevelError, "an image crashes the decoder: please report this; it is a bad sample from now on", "path", path, "how", how, "said", said(stderr))
	return c
}

// said is the line of a trace that names the signal.
func said(stderr string) string {
	for l := range strings.Lines(stderr) {
		if signalNames.MatchString(l) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

// again tries stored bytes that crashed another larder.
func (s *suspects) again(ctx context.Context, j *job, enc []byte, c journal.Crasher) (journal.Crasher, bool) {
	how, stderr, err := s.court.try(ctx, charge{Ops: j.recipe.Ops(), Limits: s.e.cfg.Limits}, enc)
	switch {
	case err != nil:
		return c, true
	case how != "":
		return s.condemn("", enc, how, stderr), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.mu.crashers[c.Hash]; there {
		delete(s.mu.crashers, c.Hash)
		s.mu.sizes[c.Bytes]--
		s.left.Add(-1)
		s.e.cfg.Decoding.Acquit(c)
		s.e.note(slog.LevelInfo, "an image that crashed an earlier larder is decoded by this one", "bytes", c.Bytes)
	}
	return c, false
}

// opsOf are the ops of a job's recipe as they came.
func opsOf(spec *larderv1.JobSpec) []prep.OpSpec {
	ops := make([]prep.OpSpec, 0, len(spec.GetTransform()))
	for _, o := range spec.GetTransform() {
		ops = append(ops, prep.OpSpec{Kind: o.GetKind(), Name: o.GetName(), Args: o.GetArgs().AsMap()})
	}
	return ops
}
