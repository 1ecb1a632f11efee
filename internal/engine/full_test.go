package engine_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

// The disk of the state directory becomes full in the middle of epochs, several times: jobs wait, registrations and
// attachments are refused with what is needed, and when there is room every job continues by itself, exactly once. The
// daemon may be killed while it waits.
func TestTheDiskOfTheStateIsFull(t *testing.T) {
	const n = 120
	dir := folder(t, n)
	fs := journal.NewMemFS()
	for round := range testenv.Count(t, "LARDER_FULL_DISK", 2) {
		var changes atomic.Int64 // of whether the disk has room
		filled := make(chan struct{}, 1)
		d, err := journal.OpenDisk(fs, journal.Options{SegmentBytes: 4000, SnapshotBytes: 4000, Retry: time.Millisecond,
			Full: func(error) {
				changes.Add(1)
				select {
				case filled <- struct{}{}:
				default:
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		w := serve(t, func(c *engine.Config) { c.Journal.Log, c.Journal.Found = d, d.Found() })
		jobs := []*larderv1.JobSpec{spec(fmt.Sprint("a", round), dir, 3, recipe(crops...)), spec(fmt.Sprint("b", round), dir,
			4)}
		var trainers []*trainer
		for _, s := range jobs {
			trainers = append(trainers, w.train(s, 0))
		}
		got := make(chan error, len(jobs))
		var enough atomic.Bool
		for i, tr := range trainers {
			go func() {
				for e := uint32(0); e < 24 || e < 1000 && !enough.Load(); e++ {
					s, err := tr.epoch(e)
					if err == nil && len(s.ids) != n {
						err = fmt.Errorf("epoch %d: %d samples", e, len(s.ids))
					}
					if err != nil {
						got <- fmt.Errorf("%s: %w", jobs[i].GetName(), err)
						return
					}
					exactly(t, fmt.Sprint(jobs[i].GetName(), " epoch ", e), s.ids, all(n))
				}
				got <- nil
			}()
		}
		full, refused := 0, 0
		for left := len(jobs); left > 0; {
			fs.SetRoom(fs.Used() + 1000)
			for d.Room() == nil && left > 0 {
				select {
				case err := <-got:
					left--
					if err != nil {
						t.Error(err)
					}
				case <-filled:
				}
			}
			if left == 0 {
				break
			}
			full++
			if lateRegistration(t, w, dir, fs, &changes) {
				refused++
			}
			eventually(t, "it continues", func() bool { return d.Room() == nil })
			enough.Store(full > 1 && refused > 0)
		}
		if full < 2 || refused == 0 {
			t.Errorf("the disk was full %d times, %d registrations were refused", full, refused)
		}
		t.Logf("nightly: round %d: full %d times, %d registrations refused", round, full, refused)
		fs.SetRoom(0)
		for _, tr := range trainers {
			tr.detach()
		}
		if round%2 == 0 { // the next one begins with what a killed daemon leaves
			fs = fs.Clone()
		} else {
			fs = journal.NewMemFS()
		}
	}
}

// lateRegistration registers a job while the disk is full, and makes room. It reports whether that was refused.
func lateRegistration(t *testing.T, w *world, dir string, fs *journal.MemFS, changes *atomic.Int64) (refused bool) {
	t.Helper()
	before := changes.Load()
	late, c := make(chan error, 1), w.dial()
	go func() {
		_, err := register(c, spec("late", dir, 2))
		late <- err
	}()
	eventually(t, "it is answered, or it came when a snapshot had just made some room", func() bool {
		return len(late) > 0 || changes.Load() != before
	})
	fs.SetRoom(0)
	err := <-late
	if err != nil {
		if reasonOf(err) != errs.DiskFull || !strings.Contains(err.Error(), "more are needed") ||
			!strings.Contains(err.Error(), "make room") {
			t.Errorf("a registration on a full disk: %v", err)
		}
	}
	return err != nil
}
