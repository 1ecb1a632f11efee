package chaostest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/client"
	larderv1 "larder/proto/larder/v1"
)

// place is where a sample came.
type place struct {
	epoch uint32
	id    int64
}

// prints notes what every sample looked like, by job.
func prints(into map[string]map[place]uint64) func(*trainee) {
	return func(tr *trainee) {
		seen := map[place]uint64{}
		into[tr.spec.GetName()] = seen
		tr.look = func(b *client.Batch) {
			for i, id := range b.Index() {
				pix, _, _, _ := b.Image(i)
				seen[place{b.Epoch, id}] = xxhash.Sum64(pix)
			}
		}
	}
}

// An image begins to crash the decoder, in C code, while five jobs train: the daemon dies of it once. The next one
// tries in a process of its own what was being prepared, finds the image, and continues without it: every job has its
// subset, whatever its recipe, order and way with bad samples; all else has the bytes of a daemon that met no such
// image; a later job, and a later daemon, learn of it at once.
func TestImageCrashesTheDecoder(t *testing.T) {
	const n, poison = 60, 0
	for _, signal := range []string{"SIGSEGV", "SIGABRT"} {
		t.Run(signal, func(t *testing.T) {
			dir := images(t, n, 24, 20)
			f, err := os.OpenFile(filepath.Join(dir, "c0", fmt.Sprintf("%05d.jpg", poison)), os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString("larder-poison") // behind the end of the image
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			flag := filepath.Join(t.TempDir(), "now")
			crop := []*larderv1.Op{op("RandomResizedCrop", map[string]any{"size": 12.0})}
			resize := []*larderv1.Op{op("Resize", map[string]any{"size": []any{16.0, 16.0}}),
				op("RandomResizedCrop", map[string]any{"size": 10.0})}
			specs := []*larderv1.JobSpec{
				{Name: signal + " skips", BatchSize: 7, Seed: 3, Transform: crop, OnError: "skip", Shuffle: true},
				{Name: signal + " another prefix", BatchSize: 5, Seed: 4, Transform: resize, OnError: "skip", Shuffle: true,
					Order: "fixed"},
				{Name: signal + " substitutes", BatchSize: 6, Seed: 5, Transform: crop, OnError: "substitute", Shuffle: true,
					Order: "strict", Subset: "label < 2"},
				{Name: signal + " as it is", BatchSize: 4, OnError: "skip"},
				{Name: signal + " elsewhere", BatchSize: 4, Seed: 6, Transform: crop, Shuffle: true, Subset: "label == 2"},
			}
			for _, s := range specs {
				s.Dataset = "imagefolder:" + dir
			}
			// it is decoded in every epoch
			uncached := []string{"--set", "tiers.encoded=0", "--set", "tiers.decoded=0", "--set", "tiers.augmented=0"}
			d := newDaemon(t, uncached...)
			d.env = []string{"LARDER_POISON=" + signal + ":" + flag}
			d.must()
			got := map[string]map[place]uint64{}
			c := train(d, specs, 0, prints(got))
			c.more(3)
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			select {
			case <-d.ended:
			case <-time.After(patience):
				t.Fatal("the daemon lives on")
			}
			if !strings.Contains(d.log.String(), signal) {
				t.Errorf("it died of something else: %s", d.log.String())
			}
			d.must()
			c.more(30) // two epochs of the job with the longest
			c.finish()
			if code, died := d.died(0); died {
				t.Fatalf("the second life ended, too, with %d: %s", code, d.log.String())
			}

			quiet := newDaemon(t, uncached...)
			quiet.must()
			want := map[string]map[place]uint64{}
			last := map[string]int64{}
			for _, tr := range c.all {
				last[tr.spec.GetName()] = tr.epochs.Load() - 1
			}
			end(train(quiet, specs, 0, prints(want), func(tr *trainee) { tr.last.Store(last[tr.spec.GetName()]) }))

			why := "the decoder crashed (" + signal + ")"
			for _, tr := range c.all {
				name := tr.spec.GetName()
				meets := tr.spec.GetSubset() != "label == 2"
				var subset []int64
				for id := range int64(n) {
					if c := id * 3 / n; tr.spec.GetSubset() == "" || meets == (c < 2) {
						subset = append(subset, id)
					}
				}
				newest := uint32(0)
				for e, ids := range tr.orders {
					newest = max(newest, e)
					bad := tr.bad[e]
					if all := slices.Sorted(slices.Values(append(slices.Clone(ids), bad...))); !slices.Equal(all, subset) {
						t.Errorf("%s, epoch %d: %d given, %d bad, which is not its subset: %v", name, e, len(ids), len(bad), all)
					}
					if len(bad) > 0 && (!meets || !slices.Equal(bad, []int64{poison})) {
						t.Errorf("%s, epoch %d: bad are %v", name, e, bad)
					}
				}
				if meets && len(tr.bad[newest]) != 1 {
					t.Errorf("%s: %v are bad in its last epoch", name, tr.bad[newest])
				}
				for reason := range tr.reasons {
					if reason != why {
						t.Errorf("%s got the reason %q", name, reason)
					}
				}
				for _, m := range []map[place]uint64{got[name], want[name]} {
					maps.DeleteFunc(m, func(p place, _ uint64) bool { return p.id == poison })
				}
				if len(got[name]) == 0 || !maps.Equal(got[name], want[name]) {
					t.Errorf("%s was given other bytes than by a daemon that met no such image", name)
				}
			}
			fresh := func(what string) {
				t.Helper()
				s := []*larderv1.JobSpec{{Name: signal + " " + what, Dataset: "imagefolder:" + dir, BatchSize: 8, OnError: "skip",
					Transform: []*larderv1.Op{op("CenterCrop", map[string]any{"size": 8.0})}}}
				c := train(d, s, 0, func(tr *trainee) { tr.last.Store(1) })
				end(c)
				if _, died := d.died(0); died || c.all[0].reasons[why] != 2 || len(c.all[0].reasons) != 1 {
					t.Errorf("%s: died %v, reasons %v: %s", what, died, c.all[0].reasons, d.log.String())
				}
			}
			fresh("a new job")
			d.kill()
			d.must()
			fresh("a third life")
			figure(t, "an image that dies of %s: 1 death, %d epochs read to their end", signal, c.epochs())
		})
	}
}

// SIGKILL while samples are prepared, every time: what was being prepared is suspect in the next life, and innocent.
// No client is sent a bad sample, and nothing stays suspect.
func TestInnocentSuspects(t *testing.T) {
	dir := images(t, 40, 480, 360)
	d := newDaemon(t, "--set", "tiers.encoded=0", "--set", "tiers.decoded=0", "--set", "tiers.augmented=0")
	d.must()
	c := train(d, specs(dir, "innocent-"), 0)
	const kills = 6
	for range kills {
		c.more(2)
		d.kill()
		d.must()
	}
	c.more(2)
	c.finish()
	for _, tr := range c.all {
		if len(tr.reasons) > 0 {
			t.Errorf("%s got bad samples %v", tr.spec.GetName(), tr.reasons)
		}
	}
	for _, word := range []string{"crashes the decoder", "could not be tried"} {
		if strings.Contains(d.log.String(), word) {
			t.Errorf("the log says that something %s: %s", word, d.log.String())
		}
	}
	d.stop()
	if d.suspects == 0 {
		t.Error("no kill hit a worker that was preparing a sample")
	}
	quiet := newDaemon(t)
	quiet.state = d.state
	quiet.must()
	if strings.Contains(quiet.log.String(), "samples were being prepared") {
		t.Error("samples are suspect after an end in order")
	}
	figure(t, "%d kills, %d while samples were prepared: all of them innocent, %d epochs read to their end", kills,
		d.suspects, c.epochs())
}

// end waits for the last epoch of all clients.
func end(c *class) {
	c.t.Helper()
	for c.left > 0 {
		select {
		case err := <-c.done:
			c.left--
			if err != nil {
				c.t.Fatal(err)
			}
		case <-time.After(patience):
			c.t.Fatal("a client does not end")
		}
	}
}
