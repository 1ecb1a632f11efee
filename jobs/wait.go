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
	Work      Cause = "larder"  // the batch is under way, and neither storage nor cores are what it waits for
)

// Facts are what is known at one moment of a rank.
type Facts struct {
	Name        string // of the job
	Rank, World int
	Ended       bool
	Paused      bool
	Attached    bool
	Came, Left  bool  // a client was there before; it went in order
	Lost        bool  // it lost its connection, and its process lives
	Asked       bool  // its client is in an epoch
	Over        int64 // the last epoch whose end it was sent; -1 = none
	Held, Slots int   // batches that its client has or can take, of so many at the most
	Behind      []Behind
	Step        []Behind      // that its next batch waits for, which is ready
	Order       bool          // the order is being made
	Rows, There int           // of the next batch
	Stored      int           // of its samples, those whose bytes storage is to give
	Unwritten   bool          // it is whole, and its record is not durable
	Waiting     time.Duration // how long its client has waited in next(); 0 = it does not
}

// Behind is a rank that an epoch cannot begin without.
type Behind struct {
	Rank     int
	Came     bool
	Attached bool
	Lost     bool // it lost its connection, and its process lives
	InEpoch  bool // it has batches of Epoch left
	Epoch    uint32
}

// Machine is what is known at that moment of what prepares samples, for all jobs.
type Machine struct {
	Full    string // why nothing can be recorded; "" = there is room
	Workers int
	Busy    int           // workers that compute
	Reads   int           // under way at storage
	Oldest  time.Duration // of them
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
	case f.Ended:
		return w
	case !f.Attached:
		return say(Client, "%s", f.noClient())
	case f.Paused:
		return say(Pause, "somebody who unpauses it: it is paused (larder jobs unpause %s)", f.Name)
	case m.Full != "":
		return say(FullDisk, "room on a disk: %s", m.Full)
	case f.Held >= 2 && f.Waiting == 0: // it works on one of them
		return say(Script, "the training script: %s ready for it", areReady(f.Held-1))
	case !f.Asked && f.Over >= 0:
		return say(Script, "the training script: it has asked for no epoch since the end of epoch %d", f.Over)
	case !f.Asked:
		return say(Script, "the training script: it has not begun to iterate")
	case len(f.Behind) > 0:
		for _, b := range f.Behind {
			w.Ranks = append(w.Ranks, b.Rank)
		}
		return say(OtherRank, "%s", f.behind())
	case len(f.Step) > 0:
		for _, b := range f.Step {
			w.Ranks = append(w.Ranks, b.Rank)
		}
		return say(OtherRank, "%s", f.inStep())
	case f.Order:
		return say(Order, "its order: samples cannot be drawn before a large subset is gone through")
	case f.Unwritten:
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
	switch {
	case !f.Came:
		return "a client: none has come yet"
	case f.Left:
		return "a client: the last one left"
	}
	if f.Lost {
		return "its client, which lost its connection, and lives: it comes back with its next call"
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
		case !b.Came:
			why = "which has not come: its process has not begun to iterate"
		case b.Lost:
			why = "whose client lost its connection, and lives: it comes back with its next call"
		case !b.Attached:
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
		case b.Lost:
			why = "whose client lost its connection, and lives: it comes back with its next call"
		case !b.Attached:
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
