package coordinator

import (
	"time"

	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/jobs"
)

// Token ties a reply to the request that waits for it. It is chosen by the executor; zero waits for nothing.
type Token uint64

// FlightID names one preparation under way: a sample on its way to a form.
type FlightID uint64

// DeliveryID names one batch of one rank.
type DeliveryID uint64

// Event is something that happened.
type Event interface{ isEvent() }

// Register asks for a job. The recipe fingerprints say what can be shared with whom.
type Register struct {
	Token  Token
	Spec   jobs.Spec
	Sample dsa.JobSpec    // order mode, seed, subset as objects in sample order
	Member *bits.Set      // the same objects as a set, see Members; nil = made here, which takes time in proportion
	Prefix ident.RecipeID // deterministic part of the recipe
	Suffix ident.RecipeID // random part, up to the augmented cut
	Share  bool           // shares augmented samples with jobs of equal ShareKey
	Key    ident.RecipeID // what a share group must agree in: dataset and recipe
	// AugmentedBytes is the size of one augmented sample, 0 when its shape is not fixed.
	AugmentedBytes int64
	Dataset        ident.DatasetID
	Names          []string // of the dataset, for Quota
	Making         Making
	// Rest is what an earlier job left of an epoch: the job begins with it. Nil = it begins with a whole epoch.
	Rest *Rest
	// Script gives a Sequential job the order of each epoch; others it does not have. Sample has one of them. Nil = it has
	// its own.
	Script []Scripted
	// Strata are sets of the dataset's objects that must stay mixed in every order, see dsa.Sampler.Stratum. They hold for
	// good, so they come with the first job of a dataset.
	Strata [][]ident.ObjectID
}

// Making says who makes the samples of a job, and what of them may be kept.
type Making struct {
	// Workers of clients make them, not those of the executor. Nothing of them is stored, and their number is not bounded
	// here: what no worker can make must take nothing from other jobs.
	Workers bool
	Bare    bool // the decoded form is the sample's number alone: it costs nothing, and no tier keeps it
	InSteps bool // the decoded form is made apart, because workers that can make it need not know the rest
	Native  bool // what is made of the decoded form is made by the executor's own workers
}

// Attach binds a client to a rank. Slots of its ring are free at first.
type Attach struct {
	Token  Token
	Job    ident.JobID
	Rank   int
	Held   ident.Incarnation // what the client held last; 0 = a new incarnation
	Client string            // its process, for the journal
	// the one that this very client holds by another connection, whose end was not seen yet; 0 = none
	Again ident.Incarnation
}

// Registrant says whether a process that registered a job, and waits for its first batch, lives. A job of which that is
// never said waits for its clients for as long as it takes.
type Registrant struct {
	Job   ident.JobID
	Lives bool
}

// StartEpoch is a client's iter(): it wants this epoch from its beginning.
type StartEpoch struct {
	Token Token
	Job   ident.JobID
	Rank  int
	Inc   ident.Incarnation
	Epoch uint32
	From  int // 0 = from its beginning; else 1 + the step at which the client continues, after the daemon was restarted
}

// Picks are the next batches of a job of order given: which samples its client wants, in their order. The Reply says
// at once whether they were taken.
type Picks struct {
	Token   Token
	Job     ident.JobID
	Rank    int
	Inc     ident.Incarnation
	Epoch   uint32             // that the client asked for
	First   int                // step of the first batch
	Batches [][]ident.ObjectID // none empty, none larger than the job's; kept
	End     bool               // no batch follows
}

// Released returns a slot.
type Released struct {
	Job    ident.JobID
	Rank   int
	Inc    ident.Incarnation
	Slot   int
	Gen    uint64
	Waited time.Duration // how long next() waited for this batch
	Ago    time.Duration // since the client returned it, by its own word
}

// Detached says that a rank's client is gone: in order (Clean) or not.
type Detached struct {
	Job   ident.JobID
	Rank  int
	Inc   ident.Incarnation
	Clean bool
	Lives bool // its process is alive: it may reconnect with its next call, however late. ClientGone says when it ended
	// Waited is the time the client waited without a batch, or for batches that it did not release.
	Waited time.Duration
}

// ClientGone says that the process of a client that had lost its connection, or its daemon, has ended.
type ClientGone struct {
	Job  ident.JobID
	Rank int
	Inc  ident.Incarnation
}

// Prepared answers Prepare or Augment.
type Prepared struct {
	Flight  FlightID
	Err     string       // why it failed; empty = it did not
	At      int64        // as in jobs.Bad, with Err
	Kind    jobs.BadKind // SampleFailed or SampleDamaged, with Err
	Kept    bool         // the bytes are in their tier (only when Keep was asked)
	Bytes   int64        // bytes in the tier, or of the working copy
	Encoded bool         // the original bytes are in the encoded tier (only when KeepEncoded was asked)
	Read    int64        // bytes read from storage; 0 = a hit in the encoded tier, or Held
	Held    bool         // the bytes came from a block in memory
	Lost    bool         // the source the coordinator believed in is gone: a cache was lost, not a sample
	Tried   bool         // with Err: it was tried again already
	Away    bool         // with Err, of a Prepare from Stored: the place that it is read from failed, not the sample
	// Augments is how many random suffixes were run for the row of a Prepare in place: 1 or 0. That row is filled when
	// nothing failed.
	Augments int
}

// ItemRead says that the item of a Prepare with Probe was read, while workers of clients have yet to make the rest:
// there may be none for long. The answer comes later.
type ItemRead struct{ Flight FlightID }

// Filled answers Fill.
type Filled struct {
	Delivery DeliveryID
	Row      int
	Err      string
	Lost     bool // the cached source is gone
	Augments int  // random suffixes run: 1, or 0 when an augmented sample was copied
}

// BlockRead says that the block of a HoldBlock was read: Bytes of storage, for that job, which may have ended.
type BlockRead struct {
	Job     ident.JobID
	Dataset ident.DatasetID
	Block   uint32
	Bytes   int64
}

// Persisted says that a record is durable.
type Persisted struct{ Seq uint64 }

// Tick lets time-driven things happen; see Core.Deadline.
type Tick struct{}

// Reconfigure changes tier budgets. Auto forms are set by the partitioner.
type Reconfigure struct {
	Token Token
	Tiers TierConfig
}

// Drain ends a job after its running epoch.
type Drain struct {
	Token Token
	Job   ident.JobID
}

// ChangeSubset gives a job another subset from its next epoch on, and says what is gone from the one it has. The next
// epoch is the first one that no client of it has asked for. The answer says which that is, and what the rank gets of
// it.
type ChangeSubset struct {
	Token  Token
	Job    ident.JobID
	Rank   int
	Mark   uint32           // names the subset in views of the job
	Subset []ident.ObjectID // in sample order, distinct; nil = it stays as it is
	Member *bits.Set        // the same as a set
	// objects that do not exist any more, of all subsets of the job; nil = none. Kept, not to be changed
	Gone *bits.Set
}

// Pause begins or ends the pause of a job, which plans nothing meanwhile. What is planned already is still delivered,
// clients keep their ranks.
type Pause struct {
	Token Token
	Job   ident.JobID
	On    bool
}

// Forget removes some objects from memory, a slice of the places from From on. The answer says where to continue.
type Forget struct {
	Token   Token
	Objects *bits.Set // not to be changed
	From    int       // 0 first, then Next of the answer
}

// Kill ends a job at once.
type Kill struct {
	Token  Token
	Job    ident.JobID
	Reason string
	Unused bool // only if no client ever attached: then it is done. Else nothing happens
}

func (Register) isEvent()     {}
func (Attach) isEvent()       {}
func (ClientGone) isEvent()   {}
func (Registrant) isEvent()   {}
func (StartEpoch) isEvent()   {}
func (Picks) isEvent()        {}
func (Released) isEvent()     {}
func (Detached) isEvent()     {}
func (Prepared) isEvent()     {}
func (Filled) isEvent()       {}
func (BlockRead) isEvent()    {}
func (ItemRead) isEvent()     {}
func (Persisted) isEvent()    {}
func (Tick) isEvent()         {}
func (Reconfigure) isEvent()  {}
func (Drain) isEvent()        {}
func (Kill) isEvent()         {}
func (ChangeSubset) isEvent() {}
func (Pause) isEvent()        {}
func (Forget) isEvent()       {}

// Effect is something to be done. The executor must do effects of one Step in order, and must not block.
type Effect interface{ isEffect() }

// Source says where a preparation starts.
type Source struct {
	Key    ident.Key // the form to start from; Stored = read storage
	Flight FlightID  // not 0: the working copy of that flight, which no tier holds
}

// Prepare reads (or takes the encoded copy of) an object and decodes it.
type Prepare struct {
	Flight      FlightID
	Job         ident.JobID // whose recipe prefix to use
	Key         ident.Key   // Decoded key to make
	From        ident.Form  // Stored or Encoded
	Keep        bool        // put the result in the decoded tier
	KeepEncoded bool        // put the original bytes in the encoded tier
	Turn        uint64      // tasks are to be done by turn
	Readers     int         // jobs whose subset has the sample, if From is Stored
	Probe       bool        // it tries a place that has failed, see ItemRead: others wait for it
	// Into is the row that is written at once, with its random parameters: no other job wants the sample, so there is
	// neither an entry of a tier nor a working copy. Its From says nothing. Nil = the row is filled by a Fill of its own.
	Into *Fill
}

// Augment runs a random suffix for a share group.
type Augment struct {
	Flight   FlightID
	Job      ident.JobID
	Key      ident.Key // Augmented key to make
	From     Source
	Keep     bool
	Seed     uint64
	Instance uint32
	Turn     uint64 // tasks are to be done by turn
	Beside   uint64 // as of a Fill
}

// Fill writes one row of a batch into its slot. The effect is a *Fill, good until it is answered: those of a batch lie
// together, and are those of a later batch once it has left, so that a sample costs no allocation.
type Fill struct {
	Delivery DeliveryID
	Row      int
	Job      ident.JobID
	Rank     int
	Inc      ident.Incarnation
	Slot     int
	Object   ident.ObjectID
	From     Source // Decoded or Augmented
	Seed     uint64
	Instance uint32
	Turn     uint64 // tasks are to be done by turn
	Beside   uint64 // its turn among the work of the executor's own workers, where Turn is one among those of clients
}

// Discard drops the working copy of a flight that no tier keeps.
type Discard struct{ Flight FlightID }

// HoldBlock has a block of a dataset (dsa.JobSpec.Block) read into memory for a job of mode Blocks, and kept until
// DropBlock. It comes before the first Prepare of a sample of the block. Several jobs may hold a block.
type HoldBlock struct {
	Job   ident.JobID
	Block uint32
}

// DropBlock says that a job needs a block no more: what it took of it is prepared.
type DropBlock struct {
	Job   ident.JobID
	Block uint32
}

// FreeKey drops an entry of a tier.
type FreeKey struct{ Key ident.Key }

// SetBudget gives a tier its budget in bytes.
type SetBudget struct {
	Form  ident.Form
	Bytes int64
}

// Deliver hands a filled slot to the client. Rows of the slot in use are Order[0..]: row i of the batch is row Order[i]
// of the slot, so that a sample that failed leaves no hole; the executor compacts.
type Deliver struct {
	Delivery DeliveryID
	Job      ident.JobID
	Rank     int
	Inc      ident.Incarnation
	Slot     int
	Gen      uint64
	Epoch    uint32
	Step     int
	Rows     []int // rows of the slot that hold samples, ascending
	Bad      []jobs.Bad
	Again    bool // it was sent before, by a connection that ended
}

// EndEpoch says to a rank that its epoch is over.
type EndEpoch struct {
	Job     ident.JobID
	Rank    int
	Inc     ident.Incarnation
	Epoch   uint32
	Batches int
	Samples int
	Account *jobs.Ledger // set for the last rank of the epoch; a copy
	Final   bool         // the job ends with it
}

// CloseRank ends an attachment: its ring is freed when the last write into it is done.
type CloseRank struct {
	Job    ident.JobID
	Rank   int
	Inc    ident.Incarnation
	Reason string // empty = the client left by itself
	Stale  bool   // the job lives, and another client may take the rank
}

// JobEnded says that a job is Dead or Done; the executor forgets its recipe when its last flight is done.
type JobEnded struct{ Job ident.JobID }

// PlaceFailed says that the place which an object is read from does not answer; see outage.
type PlaceFailed struct {
	Dataset ident.DatasetID
	Object  ident.ObjectID
	Why     string
}

// PlaceBack says that such a place answers again, or that no flight waits for it any more.
type PlaceBack struct {
	Dataset ident.DatasetID
	Why     string // it had failed
	After   time.Duration
}

// Reply answers a request.
type Reply struct {
	Token Token
	Err   error
	Job   ident.JobID
	Inc   ident.Incarnation
	// for Attach: of Epoch there is what an earlier job left; for a client that has not loaded its state the next one is
	// the first
	Rest  bool
	Epoch uint32 // for Attach: the epoch a client should start with; for ChangeSubset: the first one of the subset

	// For StartEpoch and ChangeSubset: the samples of that epoch, and the batches of the rank.
	Samples, Batches int
	// For StartEpoch of what an earlier job left of an epoch: the samples of all of it, and the batches that the rank
	// would get of them.
	Whole, WholeBatches int
	// For Forget: where the next slice begins, 0 = it is done, and the bytes that came free.
	Next  int
	Freed int64
}

// Complain reports a bug of larder that was caught while running.
type Complain struct {
	Job  ident.JobID
	Text string
}

func (Prepare) isEffect()     {}
func (Augment) isEffect()     {}
func (*Fill) isEffect()       {}
func (Discard) isEffect()     {}
func (HoldBlock) isEffect()   {}
func (DropBlock) isEffect()   {}
func (FreeKey) isEffect()     {}
func (SetBudget) isEffect()   {}
func (Deliver) isEffect()     {}
func (EndEpoch) isEffect()    {}
func (CloseRank) isEffect()   {}
func (JobEnded) isEffect()    {}
func (PlaceFailed) isEffect() {}
func (PlaceBack) isEffect()   {}
func (Reply) isEffect()       {}
func (Complain) isEffect()    {}
