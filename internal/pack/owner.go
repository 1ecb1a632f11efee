package pack

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/store"
)

const (
	ownerNote = workName + "/owner.json"

	// beatEvery is how often a run says in its store that it lives. One that says nothing for quietBeats of that counts
	// as ended.
	beatEvery  = 5 * time.Second
	quietBeats = 6

	// maxClaims bounds how often a place is tried that becomes free and is taken at once.
	maxClaims = 20

	// maxReads bounds how often a note is read that is written again at the same moment. A run writes it every beatEvery.
	maxReads = 100

	// letGo bounds how long a run that ends waits for a request under way about its note, and then how long it tries to
	// say that it ended.
	letGo = 5 * time.Second
)

// outliving makes a request that writes or removes the note, unless ctx is done, with letGo more than ctx has: a store
// may execute a request that was cancelled behind those that follow it, of this run or of the next.
func outliving(ctx context.Context, request func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(letGo):
			cancel()
		case <-late.Done():
		}
	})()
	return request(late)
}

// ownership is what the note of the owner says. No clock of one machine is compared with that of another: a run lives
// while its note changes.
type ownership struct {
	ID    string `json:"id"` // of a run
	Host  string `json:"host"`
	Place string `json:"place"` // whose processes PID counts: see place
	PID   int    `json:"pid"`
	Beat  uint64 `json:"beat"`
}

// place names a boot of a machine and a PID namespace of it, "" = not known.
func place() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + ns
}

// dead reports whether a run is known to have ended: its process would be one of those that this one sees.
func (o *owner) dead(n ownership) bool {
	return n.Place != "" && n.Place == o.note.Place && n.PID > 1 && errors.Is(unix.Kill(n.PID, 0), unix.ESRCH)
}

// owner is the claim of one run on a place in a store.
type owner struct {
	t     *prefix
	every time.Duration
	quiet int // looks at a note that does not change, until its run counts as ended
	note  ownership
	end   context.CancelFunc // of the beats
	ended chan struct{}

	mu   sync.Mutex // guards what follows
	etag string     // of the note as this run wrote it last
	lost error      // why the place is not this run's any more
}

// own claims the place, or says who works on it. It waits where a run seems to be there, until that run has said that
// it lives, or nothing for long.
func own(ctx context.Context, t *prefix, every time.Duration, quiet int) (*owner, error) {
	host, _ := os.Hostname() // for messages
	o := &owner{t: t, every: every, quiet: quiet, ended: make(chan struct{}),
		note: ownership{ID: rand.Text(), Host: host, Place: place(), PID: os.Getpid()}}
	for range maxClaims {
		in, err := o.write(ctx, o.t.w.Create)
		if err == nil {
			o.begin(in.ETag)
			return o, nil
		}
		if !errors.Is(err, store.ErrExist) {
			return nil, t.failed(err)
		}
		there, in, err := o.read(ctx)
		switch {
		case errors.Is(err, store.ErrNotExist): // it has ended meanwhile
			continue
		case err != nil:
			return nil, t.failed(err)
		case there.ID == o.note.ID: // the answer to our request was lost
			o.begin(in.ETag)
			return o, nil
		}
		if err := o.outlive(ctx, there, in.ETag); err != nil {
			return nil, err
		}
	}
	return nil, errs.New(errs.AlreadyExists, t.uri, "wait until the others end",
		"packing into %s: other runs begin there again and again", t.uri)
}

// write writes the note.
func (o *owner) write(ctx context.Context, put putter) (in store.Info, err error) {
	err = outliving(ctx, func(ctx context.Context) error {
		in, err = o.t.write(ctx, put, ownerNote, o.note)
		return err
	})
	return in, err
}

// outlive returns nil when the run that wrote a note has ended.
func (o *owner) outlive(ctx context.Context, there ownership, etag string) error {
	for beat := 0; beat < o.quiet; beat++ {
		dead := o.dead(there)
		if dead {
			beat = o.quiet // nothing to wait for
		} else {
			select {
			case <-time.After(o.every):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		in, err := o.t.w.Stat(ctx, o.t.base+ownerNote)
		switch {
		case errors.Is(err, store.ErrNotExist):
			return nil
		case err != nil:
			return o.t.failed(err)
		case in.ETag != etag && dead: // a third run was faster: the note is that run's, and not to be removed
			return nil
		case in.ETag != etag:
			return errs.New(errs.AlreadyExists, o.t.uri, "wait until it ends", "another run is packing into %s: process %d "+
				"of host %q", o.t.uri, there.PID, there.Host)
		}
	}
	return outliving(ctx, func(ctx context.Context) error {
		return o.t.failed(o.t.w.Remove(ctx, o.t.base+ownerNote))
	})
}

// read gives the note as it is in the store. One that is not JSON has no owner. A run that lives may write it between
// the two requests: then it is read again.
func (o *owner) read(ctx context.Context) (n ownership, in store.Info, err error) {
	for range maxReads {
		if in, err = o.t.w.Stat(ctx, o.t.base+ownerNote); err != nil {
			return n, in, err
		}
		var b []byte
		if b, err = o.t.read(ctx, in, maxNote); errors.Is(err, store.ErrChanged) {
			continue
		}
		if err == nil && json.Unmarshal(b, &n) != nil {
			n = ownership{}
		}
		return n, in, err
	}
	return n, in, err
}

// begin says from now on that this run lives.
func (o *owner) begin(etag string) {
	ctx, end := context.WithCancel(o.t.ctx)
	o.etag, o.end = etag, end
	go func() {
		defer close(o.ended)
		tick := time.NewTicker(o.every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if o.check(ctx) != nil {
				return
			}
			o.beat(ctx)
		}
	}()
}

// beat changes the note. A store that is away is asked again at the next one.
func (o *owner) beat(ctx context.Context) {
	o.note.Beat++
	in, err := o.write(ctx, o.t.w.Put)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.etag = in.ETag
}

// check reports whether the place is still this run's: nil, or an error that says so for good, or that of the store.
func (o *owner) check(ctx context.Context) error {
	o.mu.Lock()
	etag, lost := o.etag, o.lost
	o.mu.Unlock()
	if lost != nil {
		return lost
	}
	in, err := o.t.w.Stat(ctx, o.t.base+ownerNote)
	if err == nil && in.ETag == etag {
		return nil
	}
	var n ownership
	if err == nil {
		n, _, err = o.read(ctx) // the answer to a beat may have been lost
	}
	switch {
	case err != nil && !errors.Is(err, store.ErrNotExist):
		return nil //nolint:nilerr // the next request to the store tells
	case err == nil && n.ID == o.note.ID:
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = errs.New(errs.AlreadyExists, o.t.uri, "wait until the other run ends, then run the same command again",
		"packing into %s: another run took the place over, because this one gave no sign of life for %s", o.t.uri,
		o.every*time.Duration(o.quiet))
	return o.lost
}

// gone is why the place is not this run's any more, as far as check has found out; nil = it is.
func (o *owner) gone() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

// release gives the place up. The note goes, if it is this run's.
func (o *owner) release() {
	o.end()
	<-o.ended
	ctx, end := context.WithTimeout(context.WithoutCancel(o.t.ctx), letGo)
	defer end()
	if n, _, err := o.read(ctx); err == nil && n.ID == o.note.ID {
		_ = o.t.w.Remove(ctx, o.t.base+ownerNote) // else the next run waits until it counts as ended
	}
}
