package dsa

import (
	"fmt"
	"strings"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/nearest"
)

// Mode is how a job's order is made, and with it what the job is promised.
type Mode uint8

// The modes, from most prescribed to most shared. Sequential is shuffle=False.
const (
	Sequential Mode = iota // subset order; invisible to the other jobs' choices
	Fixed                  // a pure function of (seed, epoch, subset)
	Strict                 // uniform over the remaining set given everything that ever happened
	Stratified             // uniform orders; consecutive epochs independent at the resolution of tiles
	Epoch                  // uniform orders; an epoch may resemble those before it
	numModes

	// Blocks walks through blocks of samples that lie together in storage (walk.go). No other mode's choices know of it.
	Blocks = numModes
)

var modeNames = [numModes]string{"sequential", "fixed", "strict", "stratified", "epoch"}

// String returns the word for the mode in configuration, protocol and docs.
func (m Mode) String() string {
	switch {
	case m < numModes:
		return modeNames[m]
	case m == Blocks:
		return "blocks"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// ParseMode reads the name of an order. "sequential" is not one: users write shuffle=False. An unknown name is an
// INVALID_ARGUMENT.
func ParseMode(s string) (Mode, error) {
	for m := Fixed; m < numModes; m++ {
		if s == modeNames[m] {
			return m, nil
		}
	}
	names := modeNames[Fixed:]
	hint := "the orders are " + strings.Join(names, ", ") + ", blocks(W); for the order of the dataset use shuffle=False"
	if near := nearest.Word(strings.TrimSpace(s), names); near != "" {
		hint = "did you mean " + near + "? " + hint
	}
	return 0, errs.New(errs.Invalid, "order", hint, "unknown order %.40q", s)
}

// Limits of a Sampler.
const (
	// DefaultTiles is the number of tiles of a Stratified job that asks for 0.
	DefaultTiles = 4
	// MaxTiles is the largest number of tiles; a tile is one byte.
	MaxTiles = 256
	// MaxJobs is how many jobs may be joined at once: one bit of a JobSet each.
	MaxJobs = 64
	// MaxObjects is the bound of object ids. They are dense, so a larger one is a mistake and no dataset.
	MaxObjects = 1 << 28
)

// JobSpec is what a job asks for at Join.
type JobSpec struct {
	Mode   Mode
	Tiles  int              // for Stratified: tiles of an epoch, 1..MaxTiles; 0 = DefaultTiles
	Seed   uint64           // for Fixed
	Recipe uint32           // jobs with equal numbers share decoded samples
	Ahead  int              // for Strict: samples that the job may take before others take any (its window)
	Subset []ident.ObjectID // in sample order, distinct; retained and never modified

	Window int                         // for Blocks: how many blocks the job draws from at once, 1 or more
	Block  func(ident.ObjectID) uint32 // for Blocks: the block that an object lies in, the same at each call; or NoBlock
}

// Promise returns, in words, what the job's order keeps whatever its neighbours do; "" for an unknown job.
func (s *Sampler) Promise(id ident.JobID) string {
	const once = "each epoch delivers every sample of the subset exactly once"
	const long = "over a training no sample stays early or late"
	if w := s.walks.byID[id]; w != nil {
		return fmt.Sprintf("blocks(%d): the blocks of the dataset come in an order drawn for each epoch, uniformly while no "+
			"other job walks through them; %d at a time are mixed: of the samples drawn before the next block comes, one "+
			"block gives 2/%d at the most on average; samples of a block stay close to each other; %s", w.width, w.width,
			w.width, once)
	}
	j := s.jobs.byID[id]
	if j == nil {
		return ""
	}
	const far = long + ", and epochs five or more apart have no correlation"
	switch j.mode {
	case Sequential:
		return "sequential: samples come in the order of the dataset; " + once
	case Fixed:
		return "fixed: the order is a pure function of (seed, epoch, subset), the same with any neighbours, cache or " +
			"timing; " + long + "; " + once
	case Strict:
		return "strict: each sample is drawn uniformly from those the epoch has not drawn yet, given everything that ever " +
			"happened to any job before the draw; " + long + "; " + once
	case Stratified:
		if j.tiles > 1 {
			return fmt.Sprintf("stratified: each epoch's order is a uniformly random permutation, and consecutive epochs "+
				"are independent at the resolution of %d tiles of an epoch; %s; %s", j.tiles, far, once)
		}
		fallthrough
	case Epoch:
		return "epoch: each epoch's order is a uniformly random permutation; beside jobs that share its samples, an epoch " +
			"may resemble those before it, less with each; " + long + "; " + once
	default:
		return ""
	}
}
