package crashguard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/proc"
)

// Config is what a Guard needs.
type Config struct {
	Version string      // of this larder
	File    *File       // nil = nothing was noted
	Command []string    // runs [Try]; empty = no trial is possible
	Limits  prep.Limits // of one image
	Locate  Locator
	Read    func(context.Context, ident.ObjectID) ([]byte, error) // the stored bytes of an object
	Log     *slog.Logger                                          // used by Locate, which runs before there are workers
	// Note writes a line to the log without waiting for it.
	Note func(level slog.Level, msg string, args ...any)
}

// A Locator finds what a noted piece of work was about. The error says why nothing can come of it any more.
type Locator func(context.Context, Piece) (Sample, error)

// Sample is an object and the work on its stored bytes.
type Sample struct {
	Object ident.ObjectID
	Path   string // for people
	Ops    []prep.OpSpec
	Record bool // the ops are on the images of a record
	Key    prep.RandKey
}

// Guard holds suspects and condemned bytes. It is safe for concurrent use.
type Guard struct {
	cfg    Config
	build  uint64
	trials trials
	left   atomic.Int64 // suspects and crashers: with none of them Verdict is one load

	mu struct {
		sync.Mutex
		open     map[ident.ObjectID][]*suspect
		crashers map[[16]byte]Crasher
		sizes    map[int64]int // how many crashers have so many bytes
	}
}

type suspect struct {
	piece  Piece
	object ident.ObjectID
	path   string
	charge Charge

	mu   sync.Mutex // held during its trial
	over bool       // it was tried, or cannot be
}

// New returns a Guard with the crashers of the file, and no suspects before Locate.
func New(cfg Config) *Guard {
	g := &Guard{
		cfg: cfg, build: xxhash.Sum64String(cfg.Version + "\n" + prep.DecoderName()), trials: trials{command: cfg.Command},
	}
	g.mu.open = map[ident.ObjectID][]*suspect{}
	g.mu.crashers = map[[16]byte]Crasher{}
	g.mu.sizes = map[int64]int{}
	for _, c := range cfg.File.Crashers() {
		g.add(c)
	}
	return g
}

// Locate turns the suspects of the file into objects. A suspect without an object any more is no danger, and is
// settled.
func (g *Guard) Locate(ctx context.Context) {
	found := 0
	for _, p := range g.cfg.File.Suspects() {
		s, err := g.cfg.Locate(ctx, p)
		if err != nil {
			g.cfg.Log.Info("a sample that was being prepared when the daemon died is gone",
				"job", uint32(p.Job), "sample", uint32(p.Sample), "why", err)
			g.cfg.File.Settle(p)
			continue
		}
		x := &suspect{piece: p, object: s.Object, path: s.Path,
			charge: Charge{Ops: s.Ops, Record: s.Record, Limits: g.cfg.Limits, Key: s.Key}}
		g.mu.open[x.object] = append(g.mu.open[x.object], x)
		g.left.Add(1)
		found++
	}
	if found > 0 {
		g.cfg.Log.Warn("samples were being prepared when the last daemon died; each is tried in a process of its own first",
			"samples", found)
	}
}

// Run tries the suspects in the background, so that work on them need not wait long. A suspect whose file cannot be
// read now is tried when a worker can read it.
func (g *Guard) Run(ctx context.Context) {
	g.mu.Lock()
	var all []*suspect
	for _, list := range g.mu.open {
		all = append(all, list...)
	}
	g.mu.Unlock()
	if len(all) == 0 {
		return
	}
	g.trials.keep(true)
	defer g.trials.keep(false)
	slices.SortFunc(all, func(a, b *suspect) int { return cmp.Compare(a.object, b.object) })
	for _, x := range all {
		if enc, err := g.cfg.Read(ctx, x.object); err == nil {
			g.try(ctx, x, enc)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// Verdict says why the stored bytes of an object may not be decoded in this process; empty = they may. It waits for the
// trial of a suspect. stopping: ctx has ended before that could be known. r is the recipe that the caller prepares.
func (g *Guard) Verdict(
	ctx context.Context, r *prep.Recipe, o ident.ObjectID, enc []byte,
) (bad string, stopping bool) {
	if g.left.Load() == 0 {
		return "", false
	}
	g.mu.Lock()
	open := g.mu.open[o]
	concerned := len(open) > 0 || g.mu.sizes[int64(len(enc))] > 0
	g.mu.Unlock()
	for _, x := range open {
		g.try(ctx, x, enc)
	}
	if !concerned {
		return "", false
	}
	c, known := g.crasher(enc)
	if known && c.Build != g.build { // another larder may decode what that one could not
		c, known = g.retry(ctx, r.Ops(), enc, c)
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

func hashOf(enc []byte) (h [16]byte) {
	sum := sha256.Sum256(enc)
	copy(h[:], sum[:])
	return h
}

func (g *Guard) crasher(enc []byte) (Crasher, bool) {
	h := hashOf(enc)
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.mu.crashers[h]
	return c, ok && c.Bytes == int64(len(enc))
}

func (g *Guard) add(c Crasher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.mu.crashers[c.Hash]; !there {
		g.mu.sizes[c.Bytes]++
		g.left.Add(1)
	}
	g.mu.crashers[c.Hash] = c
}

// try settles a suspect, unless that was done. Other callers wait for the result.
func (g *Guard) try(ctx context.Context, x *suspect, enc []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	how, stderr, err := g.trials.try(ctx, x.charge, enc)
	switch {
	case err != nil && ctx.Err() != nil:
		return // it stays a suspect for the next daemon
	case err != nil: // accepted risk: without a trial it is decoded here, and stays a suspect for the next daemon
		g.cfg.Note(slog.LevelWarn, "a sample that was being prepared when the last daemon died could not be tried "+
			"in a process of its own, and is decoded without", "path", x.path, "error", err)
	case how != "":
		g.condemn(x.path, enc, how, stderr)
		g.cfg.File.Settle(x.piece)
	default:
		g.cfg.Note(slog.LevelInfo, "a sample that was being prepared when the last daemon died is innocent", "path", x.path)
		g.cfg.File.Settle(x.piece)
	}
	x.over = true
	g.mu.Lock()
	defer g.mu.Unlock()
	// Verdict may be ranging over the old list: the new one is a copy.
	g.mu.open[x.object] = slices.DeleteFunc(slices.Clone(g.mu.open[x.object]), func(y *suspect) bool { return y == x })
	if len(g.mu.open[x.object]) == 0 {
		delete(g.mu.open, x.object)
	}
	g.left.Add(-1)
}

func (g *Guard) condemn(path string, enc []byte, how, stderr string) Crasher {
	c := Crasher{Bytes: int64(len(enc)), Hash: hashOf(enc), Build: g.build, How: how}
	g.add(c) // before it stops being a suspect: there is no moment in which it may be decoded
	g.cfg.File.Condemn(c)
	g.cfg.Note(slog.LevelError, "an image crashes the decoder: please report this; it is a bad sample from now on",
		"path", path, "how", how, "said", proc.SignalLine(stderr))
	return c
}

// retry tries stored bytes that crashed another build of larder.
func (g *Guard) retry(ctx context.Context, ops []prep.OpSpec, enc []byte, c Crasher) (Crasher, bool) {
	how, stderr, err := g.trials.try(ctx, Charge{Ops: ops, Limits: g.cfg.Limits}, enc)
	switch {
	case err != nil:
		return c, true
	case how != "":
		return g.condemn("", enc, how, stderr), true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.mu.crashers[c.Hash]; there {
		delete(g.mu.crashers, c.Hash)
		g.mu.sizes[c.Bytes]--
		g.left.Add(-1)
		g.cfg.File.Acquit(c)
		g.cfg.Note(slog.LevelInfo, "an image that crashed an earlier larder is decoded by this one", "bytes", c.Bytes)
	}
	return c, false
}
