package engine

import (
	"sync"

	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/journal"
	"larder/internal/source"
)

// The Engine is composed of these. None of them knows the Engine.

// library is the catalogue as users see it: what each may list, open and read.
type library struct {
	catalog     *source.Catalog
	journal     journal.Log // names of datasets survive in it
	skipCorrupt bool        // see Config.SkipCorrupt
}

// compiler makes jobs of specs.
type compiler struct {
	library *library
	rings   *ring.Budget
}

// history is what was handed out, in this life of the daemon and in those before.
type history struct {
	journal journal.Log
	found   *journal.State // what the journal held at the start; nil = nothing
	jobs    *registry
	catalog *source.Catalog
}

// views turns what the coordinator, workers and rings know into the public form.
type views struct {
	loop    *loop
	jobs    *registry
	memory  *memory
	library *library
	rings   *ring.Set
	meters  *work.Meters
	catalog *source.Catalog
	journal journal.Log
	workers int
}

// follower changes the subsets of jobs: because somebody asks, or because their datasets changed.
type follower struct {
	loop        *loop
	jobs        *registry
	library     *library
	log         *logQueue
	registering *sync.Mutex // the Engine's
}
