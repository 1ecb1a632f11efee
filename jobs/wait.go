package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Cause says in a word what a rank waits for.
type Cause string

// The causes. Programs may test the words: they are in the contract.
const (
	Nothing   Cause = ""        // the job has ended
	Script    Cause = "script"  // the training script: there are batches for it
	Storage   Cause = "storage" // reads
	Cores     Cause = "cores"   // decoding and augmenting
	OtherRank Cause = "rank"    // another rank has not come, or is in an earlier epoch
	Pause     Cause = "pause"   // the job is paused
	FullDisk  Cause = "disk"    // the disk of the state directory is full
	Log       Cause = "log"     // the batch is there, and is being recorded
	Order     Cause = "order"   // the order of the epoch is being made
	Client    Cause = "client"  // no client holds the rank
	Worker    Cause = "worker"  // worker processes of clients, which make the samples
	Work      Cause = "larder"  // the batch is under way, and neither storage nor cores are what it waits for
)

// Presence is whether a rank has a client, and if not, what became of the last one. It follows from the rank's Phase,
// see PresenceOf.
type Presence uint8

// The presences of a client.
const (
	NeverCame    Presence = iota // no client has come yet
	Present                      // a client holds the rank
	Disconnected                 // it lost its connection, and its process lives
	Gone                         // it ended without a goodbye
	Departed                     // it left in order
)

// PresenceOf returns the presence of the rank's client. lives says whether the process of a client that vanished is
// alive.
func (r *Rank) PresenceOf(lives bool) Presence {
	switch {
	case r.Attached():
		return Present
	case r.Attaches == 0:
		return NeverCame
	case r.Phase == Left:
		return Departed
	case lives:
		return Disconnected
	default:
		return Gone
	}
}

// Progress is how far a rank is on the way to its next batch.
//
//	NoEpoch ─▶ AwaitsEpoch ─▶ Ordering, AwaitsPicks ─▶ Preparing ─▶ Recording ─▶ AwaitsStep
type Progress uint8

// The phases of progress.
const (
	NoEpoch     Progress = iota // its client is in no epoch and has asked for none
	AwaitsEpoch                 // the epoch cannot begin without the ranks in Behind
	Ordering                    // the order of the epoch is being made
	Preparing                   // samples of the batch are missing
	Recording                   // the batch is whole, and its record is not durable
	AwaitsPicks                 // its client has not said which samples come next
	AwaitsStep                  // the batch is ready, and its step cannot be given without the ranks in Step
)

// Facts are what is known at one moment of a rank.
type Facts struct {
	Name        string // of the job
	Rank, World int
	State       State
	Course      Course
	Client      Presence
	Progress    Progress
	Over        int64         // the last epoch whose end was sent to the client; -1 = none
	Held, Slots int           // batches that the client has or can take, and the slots of its ring
	Behind      []Behind      // the ranks without which the epoch cannot begin, when AwaitsEpoch
	Step        []Behind      // the ranks without which the step cannot be given, when AwaitsStep
	Rows, There int           // samples of the next batch, and those of them that are ready
	Stored      int           // samples of it that are to be read from storage
	Waiting     time.Duration // how long the client has waited in next(); 0 = it does not wait
	Workers     *Workers      // that make the samples; nil = larder's own do
	Outage      *Outage       // of the place that samples of it are to be read from; nil = it answers
}

// Outage is a place that a dataset is read from and that does not answer.
type Outage struct {
	Why   string
	Since time.Time
	For   time.Duration // since then
	Again time.Duration // the pause before the next try
	Limit time.Duration // for which next() waits for it; 0 = for ever
}

// Over reports whether next() waits for it no more.
func (o *Outage) Over() bool { return o.Limit > 0 && o.For >= o.Limit }

// Workers are the worker processes of clients that can make a job's samples.
type Workers struct {
	Attached, Busy int
	Tasks          int           // of the job that no worker has
	Longest        time.Duration // that one of them has worked on a sample
}

// Asked reports whether the rank's client is in an epoch, or has asked for one.
func (f *Facts) Asked() bool { return f.Progress != NoEpoch }

// Behind is a rank that another one waits for.
type Behind struct {
	Rank    int
	Client  Presence
	InEpoch bool   // it has batches of Epoch left
	Epoch   uint32 // the epoch it is in
}

// Machine is what is known at that moment of what prepares samples, for all jobs.
type Machine struct {
	Full    string // why nothing can be recorded; "" = there is room
	Workers int
	Busy    int           // workers that compute
	Reads   int           // under way at storage
	Oldest  time.Duration // of them
	Outage  time.Duration // for which next() waits for storage that fails; 0 = for ever
	Limit   string        // that storage is held to, in words; "" = none
	Cores   float64       // part of the cores in use by workers lately
	Storage float64       // part of the time in which something was being read lately
}

// Wait is what a rank waits for.
type Wait struct {
	Cause Cause
	Text  string // in words, with figures
	Rank  int
	Ranks []int         // that are waited for
	For   time.Duration // that its client has waited in next(); 0 = it does not wait at this moment
	// Outage is that of the storage that it waits for; nil = it waits for something else, or storage answers.
	Outage *Outage
}

// busyCores is the part of the cores from which on they are what limits: reads that are under way meanwhile are ahead
// of the workers.
const busyCores = 0.75

// WaitOf decides what a rank waits for. It is the only place that does: whatever reports it to users asks here.
func WaitOf(f Facts, m Machine) Wait {
	w := Wait{Rank: f.Rank}
	say := func(c Cause, format string, args ...any) Wait {
		w.Cause, w.Text = c, fmt.Sprintf(format, args...)
		if c != Script && c != Client {
			w.For = f.Waiting
		}
		return w
	}
	switch {
	case f.State.Ended():
		return w
	case f.Client != Present:
		return say(Client, "%s", f.noClient())
	case f.Course == CoursePaused:
		return say(Pause, "a user to unpause it: it is paused (larder jobs unpause %s)", f.Name)
	case m.Full != "":
		return say(FullDisk, "room on a disk: %s", m.Full)
	case f.Held >= 2 && f.Waiting == 0: // it works on one of them
		return say(Script, "the training script: %s ready for it", areReady(f.Held-1))
	case f.Progress == NoEpoch && f.Over >= 0:
		return say(Script, "the training script: it has asked for no epoch since the end of epoch %d", f.Over)
	case f.Progress == NoEpoch:
		return say(Script, "the training script: it has not begun to iterate")
	case f.Progress == AwaitsPicks:
		return say(Script, "the training script: it has not said which samples come next")
	case f.Progress == AwaitsEpoch:
		for _, b := range f.Behind {
			w.Ranks = append(w.Ranks, b.Rank)
		}
		return say(OtherRank, "%s", f.behind())
	case f.Progress == AwaitsStep:
		for _, b := range f.Step {
			w.Ranks = append(w.Ranks, b.Rank)
		}
		return say(OtherRank, "%s", f.inStep())
	case f.Progress == Ordering:
		return say(Order, "its order: samples cannot be drawn before a large subset is gone through")
	case f.Progress == Recording:
		return say(Log, "the state directory: the next batch is ready, and is being recorded")
	}
	return f.preparing(m, say)
}

// preparing decides between storage and cores.
func (f *Facts) preparing(m Machine, say func(Cause, string, ...any) Wait) Wait {
	next := "the next batch is not planned yet"
	if f.Rows > 0 {
		next = fmt.Sprintf("%d of the %d samples of the next batch are ready", f.There, f.Rows)
	}
	storage := fmt.Sprintf("storage: %s", reads(m))
	if m.Limit != "" {
		storage += ", held to " + m.Limit
	}
	cores := fmt.Sprintf("cores: %d of %d workers decode or augment, and used %.0f %% of the cores over the last second",
		m.Busy, m.Workers, 100*m.Cores)
	if f.Outage != nil {
		o := *f.Outage
		o.Limit = m.Outage
		w := say(Storage, "storage, which has failed for %s and is tried again every %s: %s; %s%s", seconds(o.For),
			seconds(o.Again), o.Why, next, o.end())
		w.Outage = &o
		return w
	}
	if k := f.Workers; k != nil && f.Rows > f.There {
		return say(Worker, "%s; %s", k.text(), next)
	}
	switch {
	case f.Stored > 0 && m.Reads > 0 && m.Cores < busyCores:
		return say(Storage, "%s; %s", storage, next)
	case f.Rows > f.There && (m.Cores >= busyCores || m.Busy >= m.Workers):
		return say(Cores, "%s; %s", cores, next)
	case f.Stored > 0 && m.Storage > max(m.Cores, 0.25):
		return say(Storage, "%s; %s", storage, next)
	}
	return say(Work, "larder: it is at work on it; %s", next)
}

// end says how long next() waits.
func (o *Outage) end() string {
	switch {
	case o.Over():
		return fmt.Sprintf("; next() raises an error after %s (source.outage_timeout)", o.Limit)
	case o.Limit > 0:
		return fmt.Sprintf("; next() waits %s for it (source.outage_timeout)", o.Limit)
	}
	return ""
}

func (k *Workers) text() string {
	switch k.Attached {
	case 0:
		return fmt.Sprintf("a worker: no process is attached that makes its samples, and %d wait for one", k.Tasks)
	case 1:
		return fmt.Sprintf("its only worker process, which has worked on a sample for %s; %d wait", seconds(k.Longest),
			k.Tasks)
	}
	return fmt.Sprintf("its workers: %d of %d processes are at work, one on a sample for %s; %d wait", k.Busy, k.Attached,
		seconds(k.Longest), k.Tasks)
}

func reads(m Machine) string {
	switch m.Reads {
	case 0:
		return fmt.Sprintf("something was being read %.0f %% of the time", 100*m.Storage)
	case 1:
		return fmt.Sprintf("1 read is under way for %s", seconds(m.Oldest))
	}
	return fmt.Sprintf("%d reads are under way, the oldest for %s", m.Reads, seconds(m.Oldest))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func areReady(n int) string {
	if n == 1 {
		return "1 batch is"
	}
	return fmt.Sprintf("%d batches are", n)
}

func (f *Facts) noClient() string {
	switch f.Client {
	case NeverCame:
		return "a client: none has come yet"
	case Departed:
		return "a client: the last one left"
	case Disconnected:
		return "its client, which lost its connection, and lives: it comes back with its next call"
	case Present, Gone:
	}
	return "its client, which is gone without a word, to come back"
}

const most = 4 // ranks that are named

// named says of each rank that is waited for why, of the first most if there are many more.
func named[T any](ranks []T, say func(T) string) string {
	var parts []string
	for i, r := range ranks {
		if i == most && len(ranks) > most+1 {
			parts = append(parts, fmt.Sprintf("and %d more ranks", len(ranks)-most))
			break
		}
		parts = append(parts, say(r))
	}
	return strings.Join(parts, "; ")
}

// behind says of each rank that is waited for why.
func (f *Facts) behind() string {
	list := named(f.Behind, func(b Behind) string {
		why := "which has not asked for the epoch"
		switch {
		case b.Client == NeverCame:
			why = "which has not come: its process has not begun to iterate"
		case b.Client == Disconnected:
			why = "whose client lost its connection, and lives: it comes back with its next call"
		case b.Client != Present:
			why = "whose client is gone"
		case b.InEpoch:
			why = fmt.Sprintf("which is still in epoch %d", b.Epoch)
		}
		return fmt.Sprintf("rank %d, %s", b.Rank, why)
	})
	return fmt.Sprintf("%s; an epoch begins when all %d ranks ask for it", list, f.World)
}

// inStep says which ranks have to catch up.
func (f *Facts) inStep() string {
	list := named(f.Step, func(b Behind) string {
		why := "whose batch of this step is not ready"
		switch {
		case b.Client == Disconnected:
			why = "whose client lost its connection, and lives: it comes back with its next call"
		case b.Client != Present:
			why = "whose client is gone"
		}
		return fmt.Sprintf("rank %d, %s", b.Rank, why)
	})
	return fmt.Sprintf("%s; with on_error=\"substitute\" a step is given when all %d ranks have a batch for it", list,
		f.World)
}

// weight orders causes by how much they say of a job of several ranks.
func (c Cause) weight() int {
	return slices.Index([]Cause{Nothing, Client, Script, OtherRank, Work, Order, Log, Cores, Storage, FullDisk, Pause}, c)
}

// Worst is what a job waits for: a rank that waits for another one says less than what that one waits for.
func Worst(ranks []Wait) Wait {
	if len(ranks) == 0 {
		return Wait{}
	}
	return slices.MaxFunc(ranks, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Cause.weight(), b.Cause.weight()), cmp.Compare(a.For, b.For), cmp.Compare(b.Rank, a.Rank))
	})
}
