package engine

import (
	"context"
	"log/slog"
	"time"

	"larder/cachepolicy"
	"larder/internal/clock"
	"larder/internal/engine/crashguard"
	"larder/internal/engine/work"
	"larder/internal/gpu"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// Config is what an Engine needs. The engine closes nothing of it.
type Config struct {
	Version string
	Seed    uint64       // of every draw that no job's own seed fixes
	Log     *slog.Logger // nil = nothing is logged
	Clock   clock.Clock  // of leases, waits and the deadlines of workers; nil = the real one
	Data    DataConfig
	Journal JournalConfig
	Crash   CrashConfig
	Work    WorkConfig
	Crew    CrewConfig
	Memory  MemoryConfig
	Jobs    JobConfig
	Daemon  DaemonConfig
}

// DataConfig is where samples come from and where their forms are kept.
type DataConfig struct {
	Catalog *source.Catalog
	Store   *tiers.Store
}

// JournalConfig is what survives the engine.
type JournalConfig struct {
	Log   journal.Log
	Found *journal.State // what the journal held when it was opened; nil = nothing
}

// CrashConfig guards against images that crash the decoder. The zero value does not.
type CrashConfig struct {
	// File holds what workers prepare now, and what they prepared when the last daemon died; nil = that is not noted.
	File *crashguard.File
	// Trial is the command that runs crashguard.Try for what they prepared then; empty = there is none.
	Trial []string
}

// WorkConfig is how samples are prepared.
type WorkConfig struct {
	Workers     int           // preparation workers; at least 1
	Readers     int           // reads at once from storage that is slow; 0 = work.Readers
	ReadAhead   int64         // bytes read ahead of the workers; 0 = 64 MiB, or an eighth of Own if that is less
	Limits      prep.Limits   // of one image
	Outside     prep.Outside  // decodes images in the place of the workers; nil = they do
	SkipCorrupt bool          // what Limits.RefuseCorrupt refuses is left out without a word to clients
	Measure     time.Duration // between two reports of measured rates; 0 = 2 s
}

// CrewConfig bounds worker processes of clients.
type CrewConfig struct {
	Window    int   // samples that one may have at once; 0 = 2
	MaxRecord int64 // bytes of the largest sample; 0 = 256 MiB
}

// MemoryConfig is how memory is divided.
type MemoryConfig struct {
	Settings       // at the start
	Limit    int64 // bytes of everything
	Own      int64 // bytes of Limit that neither tiers nor rings may take: heap, indexes, samples in work
	// ParseSize reads the size of tiers.total (total is negative), or of a tier, whose percentage is of total.
	ParseSize func(setting string, total int64) (bytes int64, auto bool, err error)
	// Evictor makes the policy of a tier. nil = cachepolicy.New.
	Evictor func(f ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error)
}

// JobConfig limits jobs; see coordinator.Config, whose zero values apply.
type JobConfig struct {
	Lease       time.Duration
	Max         int
	IdleTimeout time.Duration
}

// DaemonConfig is what the engine passes on to the daemon that it is a part of, or asks of it. Every field may be nil:
// the engine is then part of another program, and what needs the daemon is refused or left out.
type DaemonConfig struct {
	ApplyConfig func(context.Context, *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse, error)
	Stop        func(context.Context, *larderv1.StopRequest) (*larderv1.StopResponse, error)
	Status      func(context.Context, *larderv1.StatusRequest) (*larderv1.StatusResponse, error)
	Listeners   func() []*larderv1.Listener   // what the daemon listens on
	Stores      func() []*larderv1.StoreStats // what was read over a network, by name
	Disk        func() *larderv1.DiskTier     // the disk tier; nil, or a nil answer = there is none
	ResizeDisk  func(bytes int64)             // nil = there is no disk tier
	GPU         gpu.Probe
}

// withDefaults returns the configuration with what New chooses where nothing is said.
func (c Config) withDefaults() Config {
	c.Work.Workers = max(c.Work.Workers, 1)
	if c.Work.Readers <= 0 {
		c.Work.Readers = work.Readers
	}
	if c.Work.ReadAhead <= 0 {
		c.Work.ReadAhead = work.DefaultReadAhead
		if own := c.Memory.Own; own > 0 {
			c.Work.ReadAhead = min(work.DefaultReadAhead, own/8)
		}
	}
	if c.Crew.Window <= 0 {
		c.Crew.Window = 2
	}
	if c.Crew.MaxRecord <= 0 {
		c.Crew.MaxRecord = 256 << 20
	}
	if c.Work.Measure <= 0 {
		c.Work.Measure = 2 * time.Second
	}
	c.Clock = clock.Or(c.Clock)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
