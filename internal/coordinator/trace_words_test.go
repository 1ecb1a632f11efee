package coordinator

import (
	"fmt"
	"strings"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

// line is a line of a trace. Lines in a row that differ in their samples alone become one.
type line struct {
	event  bool // not an effect
	before string
	ids    []ident.ObjectID
	after  string
}

func (tr *trace) add(l line) {
	if n := len(tr.lines); n > 0 {
		last := &tr.lines[n-1]
		if last.event == l.event && last.before == l.before && last.after == l.after && (l.ids != nil) == (last.ids != nil) &&
			(l.event || l.ids != nil) {
			last.ids = append(last.ids, l.ids...)
			return
		}
	}
	tr.lines = append(tr.lines, l)
}

func written(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		if l.event {
			b.WriteString("> ")
		}
		b.WriteString(l.before)
		if l.ids != nil {
			b.WriteString(" " + samplesOf(l.ids))
		}
		b.WriteString(l.after + "\n")
	}
	return b.String()
}

// samplesOf names samples in their order.
func samplesOf(ids []ident.ObjectID) string {
	if len(ids) == 0 {
		return "no sample"
	}
	noun := "sample"
	if len(ids) > 1 {
		noun = "samples"
	}
	return strings.TrimSuffix(noun+" "+fmt.Sprintln(ids)[1:], "]\n")
}

// some counts things: 1 batch, 2 batches.
func some(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// tell writes an event and its effects down.
func (tr *trace) tell(ev Event, effects []Effect) {
	if _, tick := ev.(Tick); tick && len(effects) == 0 {
		return
	}
	if l, said := tr.event(ev); said {
		tr.add(l)
	}
	for _, e := range effects {
		tr.add(tr.effect(e))
	}
}

// who names a job, or one of its ranks.
func (tr *trace) who(id ident.JobID, rank int) string {
	name := tr.names[id]
	if j := tr.jobs[name]; j != nil && len(j.peers) > 1 && rank >= 0 {
		return fmt.Sprintf("%s/%d", name, rank)
	}
	return name
}

func (tr *trace) batch(id ident.JobID, rank int, epoch uint32, step int) string {
	return fmt.Sprintf("%s epoch %d step %d", tr.who(id, rank), epoch, step)
}

// rowsOf names the batch that a row is of.
func (tr *trace) rowsOf(x *Fill) string {
	d := tr.c.planner.deliveries[x.Delivery]
	if d == nil {
		return tr.who(x.Job, x.Rank) + ", for a batch that is given up"
	}
	return tr.batch(x.Job, x.Rank, d.epoch, d.step)
}

// event names an event that follows from a command. What a command itself is needs no words.
func (tr *trace) event(ev Event) (l line, said bool) {
	of := func(before string, x ident.ObjectID, after string) line {
		return line{event: true, before: before, ids: []ident.ObjectID{x}, after: after}
	}
	switch x := ev.(type) {
	case Prepared:
		o := tr.flies[x.Flight]
		switch {
		case x.Away:
			return of("not answered:", o, ""), true
		case x.Lost:
			return of("lost:", o, ""), true
		case x.Err != "":
			return of("failed:", o, ": "+x.Err), true
		}
		return of("prepared:", o, ""), true
	case Filled:
		o := tr.rows[x.Delivery][x.Row].Object
		who := " for " + tr.names[tr.rows[x.Delivery][x.Row].Job]
		switch {
		case x.Lost:
			return of("lost:", o, who), true
		case x.Err != "":
			return of("failed:", o, who+": "+x.Err), true
		}
		return of("filled:", o, who), true
	case Persisted:
		return line{event: true, before: "durable"}, true
	case Solved:
		return line{event: true, before: "solved"}, true
	case Tick:
		return line{event: true, before: fmt.Sprintf("tick at %s", tr.now.Sub(tr.begun))}, true
	case Released:
		return line{event: true, before: tr.who(x.Job, x.Rank) + " returns " + tr.returned(x)}, true
	}
	return line{}, false
}

// returned names the batch that a client returns.
func (tr *trace) returned(x Released) string {
	for _, d := range tr.got {
		if d.Job == x.Job && d.Rank == x.Rank && d.Inc == x.Inc && d.Slot == x.Slot && d.Gen == x.Gen {
			return fmt.Sprintf("epoch %d step %d", d.Epoch, d.Step)
		}
	}
	return "a batch that it does not have"
}

// effect puts an effect into words.
func (tr *trace) effect(e Effect) line {
	switch x := e.(type) {
	case Prepare:
		tr.flies[x.Flight] = x.Key.Object
		return line{before: "prepare", ids: []ident.ObjectID{x.Key.Object}, after: tr.prepare(x)}
	case Augment:
		tr.flies[x.Flight] = x.Key.Object
		after := fmt.Sprintf(" for %s: augment as instance %d, %s", tr.names[x.Job], x.Instance, sourceOf(x.From))
		if x.Keep {
			after += ", keep augmented"
		}
		return line{before: "prepare", ids: []ident.ObjectID{x.Key.Object}, after: after}
	case *Fill:
		how := "augment as"
		if x.From.Key.Form == ident.Augmented {
			how = "copy"
		}
		return line{before: "fill", ids: []ident.ObjectID{x.Object},
			after: fmt.Sprintf(" into %s: %s instance %d, %s", tr.rowsOf(x), how, x.Instance, sourceOf(x.From))}
	case Discard:
		return line{before: "discard the working copy of", ids: []ident.ObjectID{tr.flies[x.Flight]}}
	case FreeKey:
		return line{before: "evict " + x.Key.Form.String(), ids: []ident.ObjectID{x.Key.Object}}
	case Persist:
		return line{before: "record: " + tr.recorded(x.Record)}
	case Deliver:
		return line{before: tr.deliver(x)}
	}
	return line{before: tr.otherEffect(e)}
}

func (tr *trace) prepare(x Prepare) string {
	how := []string{"read", "decode"}
	switch {
	case x.From == ident.Encoded:
		how[0] = "take the encoded copy"
	case tr.c.roster.blocks[blockOf(x.Key.Object)] != nil && tr.jobs[tr.names[x.Job]].reg.Sample.Mode == dsa.Blocks:
		how[0] = fmt.Sprintf("take from block %d", blockOf(x.Key.Object))
	}
	if x.KeepEncoded {
		how = append(how, "keep encoded")
	}
	switch {
	case x.Into != nil:
		how = append(how, fmt.Sprintf("augment as instance %d into %s", x.Into.Instance, tr.rowsOf(x.Into)))
	case x.Keep:
		how = append(how, "keep decoded")
	default:
		how = append(how, "hold a working copy")
	}
	if x.Probe {
		how = append(how, "to try its place")
	}
	return fmt.Sprintf(" for %s: %s", tr.names[x.Job], strings.Join(how, ", "))
}

// sourceOf names where bytes come from.
func sourceOf(s Source) string {
	if s.Flight != 0 {
		return "from the working copy"
	}
	return "from tier " + s.Key.Form.String()
}

func (tr *trace) deliver(x Deliver) string {
	var good, bad []ident.ObjectID
	for _, i := range x.Rows {
		good = append(good, tr.rows[x.Delivery][i].Object)
	}
	for _, b := range x.Bad {
		bad = append(bad, b.Object)
	}
	s := fmt.Sprintf("deliver %s: %s", tr.batch(x.Job, x.Rank, x.Epoch, x.Step), samplesOf(good))
	if len(bad) > 0 {
		s += ", without the bad " + samplesOf(bad)
	}
	if x.Again {
		s += ", again"
	}
	return s
}

func (tr *trace) otherEffect(e Effect) string {
	switch x := e.(type) {
	case HoldBlock:
		return fmt.Sprintf("read block %d into memory for %s", x.Block, tr.names[x.Job])
	case DropBlock:
		return fmt.Sprintf("drop block %d of %s", x.Block, tr.names[x.Job])
	case SetBudget:
		return fmt.Sprintf("tier %s: %d bytes", x.Form, x.Bytes)
	case Solve:
		return "solve the split of memory"
	case EndEpoch:
		s := fmt.Sprintf("end epoch %d of %s: %s, %s", x.Epoch, tr.who(x.Job, x.Rank), some(x.Batches, "batch", "batches"),
			some(x.Samples, "sample", "samples"))
		if l := x.Account; l != nil {
			s += fmt.Sprintf("; account %s: %d delivered, %d bad, %d dropped of %d", l.State, l.Delivered, l.Quarantined,
				l.Dropped, l.Subset)
		}
		if x.Final {
			s += "; the last one"
		}
		return s
	case CloseRank:
		s := fmt.Sprintf("close incarnation %d of %s", x.Inc, tr.who(x.Job, x.Rank))
		if x.Reason != "" {
			s += ": " + x.Reason
		}
		return s
	case JobEnded:
		return tr.names[x.Job] + " has ended"
	case PlaceFailed:
		return fmt.Sprintf("the place of sample %d does not answer: %s", x.Object, x.Why)
	case PlaceBack:
		return fmt.Sprintf("a place answers again after %s", x.After)
	case Reply:
		return tr.answer(x)
	case Complain:
		return "complain: " + x.Text
	}
	return fmt.Sprintf("%T", e)
}

// answer puts the reply to a request into words.
func (tr *trace) answer(x Reply) string {
	if x.Err != nil {
		return "refuse: " + x.Err.Error()
	}
	switch tr.asked[x.Token] {
	case "register":
		return fmt.Sprintf("answer: registered as job %d", x.Job)
	case "restore":
		return fmt.Sprintf("answer: %s is restored", tr.names[x.Job])
	case "attach":
		return fmt.Sprintf("answer: incarnation %d, epoch %d", x.Inc, x.Epoch)
	case "start":
		return fmt.Sprintf("answer: %s, %s of this rank", some(x.Samples, "sample", "samples"),
			some(x.Batches, "batch", "batches"))
	case "subset":
		return fmt.Sprintf("answer: from epoch %d on, %s, %s", x.Epoch, some(x.Samples, "sample", "samples"),
			some(x.Batches, "batch", "batches"))
	}
	return "answer: done"
}

// recorded puts a record of the journal into words.
func (tr *trace) recorded(r Record) string {
	switch x := r.(type) {
	case RecordRegistered:
		return "job " + x.Name
	case RecordAttached:
		return fmt.Sprintf("incarnation %d of %s", x.Inc, tr.who(x.Job, x.Rank))
	case RecordEpochStarted:
		s := fmt.Sprintf("epoch %d of %s", x.Epoch, tr.names[x.Job])
		if x.Remainder {
			s += ", what an earlier job left of it"
		}
		return s
	case RecordAssigned:
		return fmt.Sprintf("%s: %s", tr.batch(x.Job, x.Rank, x.Epoch, x.Step), samplesOf(x.Objects))
	case RecordGivenEarlier:
		return fmt.Sprintf("epoch %d of %s: an earlier job had %s", x.Epoch, tr.names[x.Job], samplesOf(x.Objects))
	case RecordReturned:
		s := tr.batch(x.Job, x.Rank, x.Epoch, x.Step) + " returns to the epoch"
		if len(x.Objects) > 0 {
			s += ": " + samplesOf(x.Objects)
		}
		return s
	case RecordDealt:
		s := tr.batch(x.Job, -1, x.Epoch, x.Step) + " is dealt to all ranks"
		if len(x.Objects) > 0 {
			s += ", back go " + samplesOf(x.Objects)
		}
		return s
	case RecordEpochEnded:
		return fmt.Sprintf("epoch %d of %s is %s", x.Epoch, tr.names[x.Job], x.State)
	case RecordQuarantined:
		if x.Kind == jobs.SampleFailed {
			return fmt.Sprintf("sample %d of %s is bad: %s", x.Object, tr.names[x.Job], x.Reason)
		}
		return fmt.Sprintf("sample %d of %s is damaged: %s", x.Object, tr.names[x.Job], x.Reason)
	case RecordEnded:
		return fmt.Sprintf("the end of %s: %s", tr.names[x.Job], x.Reason)
	case RecordSubsetChanged:
		return fmt.Sprintf("another subset of %s from epoch %d on", tr.names[x.Job], x.Epoch)
	case RecordPaused:
		return "the pause of " + tr.names[x.Job]
	case RecordUnpaused:
		return "the end of the pause of " + tr.names[x.Job]
	}
	return fmt.Sprintf("%T", r)
}
