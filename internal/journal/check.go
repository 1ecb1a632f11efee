package journal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"larder/internal/errs"
)

// Report is what Check found and Repair did.
type Report struct {
	Path     string   `json:"path"`
	Term     uint64   `json:"term"`
	Records  uint64   `json:"records"`  // ever written
	Replayed int      `json:"replayed"` // after the newest snapshot
	Segments int      `json:"segments"`
	Orders   int      `json:"orders"` // job-epochs that are over and whose order is kept
	Jobs     []string `json:"jobs"`   // that have not ended, in words
	Notes    []string `json:"notes"`  // odd and harmless
	Damage   []string `json:"damage"` // with file and offset
	Done     []string `json:"done"`   // by Repair
	Lost     uint64   `json:"lost"`   // records that Repair had to give up
}

// Check reads every byte of a state directory and changes nothing. The error is STATE_DAMAGED when something is
// damaged; the report is filled as far as it can be read. No other process may use the directory meanwhile.
func Check(f FS) (*Report, error) {
	lock, err := takeLock(f)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	r, _, err := check(f)
	return r, err
}

// check returns every damage that it finds: one in the log or its snapshot, and any in the other files.
func check(f FS) (*Report, []*Damage, error) {
	r := &Report{Path: f.Path("")}
	im, err := load(f, true)
	var all []*Damage
	if d := (*Damage)(nil); errors.As(err, &d) {
		all = append(all, d)
	} else if err != nil {
		return r, nil, failed(f, err, "read it")
	}
	r.Notes, r.Segments = im.notes, len(im.segments)
	if im.tail != "" && err == nil {
		r.Notes = append(r.Notes, im.tailNote()+" at the next start")
	}
	for _, name := range im.leftover {
		r.Notes = append(r.Notes, f.Path(name)+" was being written when the daemon ended; the next start removes it")
	}
	for i, name := range im.snapshots {
		if i == len(im.snapshots)-1 {
			break // load read it
		}
		other := &image{fs: f, id: im.id, known: im.known}
		if _, _, err := other.readSnapshot(name); err != nil {
			d := (*Damage)(nil)
			if !errors.As(err, &d) {
				return r, nil, failed(f, err, "read it")
			}
			all = append(all, d)
		}
	}
	for _, name := range im.orders {
		other := &image{fs: f, id: im.id, known: im.known}
		_, _, list, err := other.readContents(name)
		if d := (*Damage)(nil); errors.As(err, &d) {
			all = append(all, d)
		} else if err != nil {
			return r, nil, failed(f, err, "read it")
		}
		r.Orders += len(list)
	}
	if s := im.state; s != nil {
		r.Term, r.Records, r.Replayed = s.Term, s.Seq, im.records
		for _, j := range s.Jobs() {
			if !j.Ended {
				r.Jobs = append(r.Jobs, j.describe())
			}
		}
	}
	for _, d := range all {
		r.Damage = append(r.Damage, d.Error())
	}
	if len(all) > 0 {
		return r, all, all[0].fault(f.Path(""))
	}
	return r, nil, nil
}

// describe says where a job is.
func (j *JobState) describe() string {
	var text strings.Builder
	fmt.Fprintf(&text, "job %d", j.ID)
	for _, o := range j.Epochs {
		n := 0
		for i := range o.Batches {
			n += o.Batches[i].n
		}
		fmt.Fprintf(&text, ", epoch %d: %d batches (%d samples) given out", o.Epoch, len(o.Batches), n)
	}
	return text.String()
}

// Repair makes a damaged directory usable again, and loses as little as can be: a damaged snapshot is done without
// when the one before it and the log after that are sound; otherwise the log is cut where it is damaged. What is
// taken out is kept beside it, as NAME.damaged. Lost says how many records that cost; batches in them will be given
// out again. A directory without damage is left as it is.
func Repair(f FS) (*Report, error) {
	lock, err := takeLock(f)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	var done []string
	var lost uint64
	for {
		r, all, err := check(f)
		r.Done, r.Lost = done, lost
		if len(all) == 0 {
			return r, err
		}
		text, n, err := repairOne(f, all[0])
		if err != nil {
			return r, err
		}
		done, lost = append(done, text), lost+n
	}
}

// repairOne takes one damage away. Every step removes or shortens a file or sets the mark right, so that it ends.
func repairOne(f FS, d *Damage) (text string, lost uint64, err error) {
	if d.Newer {
		return "", 0, d.fault(f.Path(""))
	}
	im, err := list(f)
	if err != nil {
		return "", 0, failed(f, err, "read it")
	}
	fail := func(err error) (string, uint64, error) { return "", 0, failed(f, err, "repair it") }
	log := slices.IndexFunc(im.segments, func(g segment) bool { return g.name == d.name })
	switch {
	case slices.Contains(im.snapshots, d.name):
		i := slices.Index(im.snapshots, d.name)
		if i == len(im.snapshots)-1 && i == 0 && (len(im.segments) == 0 || im.segments[0].first != 1) {
			return "", 0, errs.New(errs.StateDamaged, d.File,
				"move the directory away: the next start makes a new one, and jobs begin from their first epoch",
				"repair the state directory %s: its only snapshot is gone, and the log before it, too", f.Path("")).Because(d)
		}
		if err := setAside(f, d.name); err != nil {
			return fail(err)
		}
		return d.File + " was set aside: the snapshot before it and the log after that hold the same", 0, nil
	case slices.Contains(im.orders, d.name):
		if err := setAside(f, d.name); err != nil {
			return fail(err)
		}
		return d.File + " was set aside: the orders of epochs in it can no longer be replayed", 0, nil
	case log >= 0 && log+1 < len(im.segments) && im.segments[log+1].first <= im.newest()+1:
		if err := setAside(f, d.name); err != nil { // load read the newest snapshot first: it is sound
			return fail(err)
		}
		return d.File + " was set aside: the newest snapshot holds what is in it", 0, nil
	case log >= 0:
		text, err := cutLog(f, im, log, d)
		if err != nil {
			return fail(err)
		}
		upto := d.seq
		if im.mark.ok && im.mark.seq > upto {
			lost = im.mark.seq - upto
		}
		if err := resetMark(f, im); err != nil {
			return fail(err)
		}
		return text, lost, nil
	case im.unmarked:
		im, err := load(f, false)
		if im == nil || !im.known {
			return fail(err)
		}
		if err := putMark(f, mark{id: im.id}); err != nil {
			return fail(err)
		}
		return d.File + " was made again; that nothing is missing behind the end of the log cannot be known", 0, nil
	default: // the mark, or a log that is gone
		if im.mark.ok && im.mark.seq > d.seq {
			lost = im.mark.seq - d.seq
		}
		if err := resetMark(f, im); err != nil {
			return fail(err)
		}
		return d.File + " was set right", lost, nil
	}
}

// newest is the last record in the newest snapshot, 0 when there is none.
func (im *image) newest() (seq uint64) {
	if n := len(im.snapshots); n > 0 {
		_, _ = fmt.Sscanf(im.snapshots[n-1], "snapshot-%016x", &seq)
	}
	return seq
}

// cutLog ends the log where it is damaged. Segments after that hold what cannot follow any more.
func cutLog(f FS, im *image, i int, d *Damage) (string, error) {
	data, err := f.ReadFile(d.name)
	if err != nil {
		return "", err
	}
	for _, g := range im.segments[i:] {
		if err := setAside(f, g.name); err != nil {
			return "", err
		}
	}
	if d.Offset >= headerSize && d.Offset <= int64(len(data)) {
		if err := putFile(f, d.name, data[:d.Offset]); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("the log was cut at byte %d of %s, after record %d; what followed was set aside", d.Offset, d.File,
		d.seq), nil
}

// resetMark forgets how far the log went.
func resetMark(f FS, im *image) error {
	if !im.mark.ok {
		return nil
	}
	return putMark(f, mark{id: im.mark.id})
}

func putMark(f FS, m mark) error { return putFile(f, markName, m.encode()) }

// setAside keeps a file under a name that no log has.
func setAside(f FS, name string) error {
	return errors.Join(f.Rename(name, name+damagedTail), f.Sync())
}
