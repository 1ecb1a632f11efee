package chaostest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	larderv1 "larder/proto/larder/v1"

	"larder/internal/testenv"
)

var isolated = []string{"--set", "prep.isolation=process", "--set", "prep.workers=2", "--set", "tiers.encoded=0",
	"--set", "tiers.decoded=0", "--set", "tiers.augmented=0"}

// decoders are the processes that the daemon has started.
func (d *daemon) decoders() (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.cmd.Process.Pid))
	for _, name := range lists {
		b, _ := os.ReadFile(name) // a thread may end
		for word := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestDecodersAreKilled: SIGKILL to the processes that decode, after random numbers of batches, while four jobs train.
// The daemon lives, the auditor finds every epoch whole, and no sample is bad. Then SIGKILL to the daemon: none of them
// is left. LARDER_KILLS is how many.
func TestDecodersAreKilled(t *testing.T) {
	kills := testenv.Count(t, "LARDER_KILLS", 5)
	r := seed(t)
	d := newDaemon(t, isolated...)
	d.must()
	c := train(d, specs(images(t, 90, 320, 240), "decoders-"), 0)
	for range kills {
		eventually(t, "some batches are taken", c.took(1+r.IntN(12)))
		if pids := d.decoders(); len(pids) > 0 {
			_ = syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL)
		}
	}
	c.more(1)
	c.finish()
	for _, tr := range c.all {
		if len(tr.reasons) > 0 {
			t.Errorf("job %s got bad samples: %v", tr.spec.GetName(), tr.reasons)
		}
	}
	left := d.decoders()
	if len(left) == 0 || c.epochs() == 0 {
		t.Errorf("%d processes decode, %d epochs were read", len(left), c.epochs())
	}
	if d.lives != 1 {
		t.Errorf("the daemon lived %d times", d.lives)
	}
	figure(t, "%d kills of processes that decode, %d epochs read to their end", kills, c.epochs())
	d.kill()
	eventually(t, "the processes end with the daemon", func() bool {
		return !slices.ContainsFunc(left, func(pid int) bool {
			about, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return err == nil && strings.Contains(string(about), "decode-images")
		})
	})
}

// TestImageCrashesItsProcess: an image that crashes the decoder, in C code, ends no daemon that decodes in processes of
// their own. It is bad, with the reason, for every job; all else has the bytes of a daemon that decodes by itself and
// met no such image.
func TestImageCrashesItsProcess(t *testing.T) {
	const n, poison = 60, 0
	dir := images(t, n, 24, 20)
	name := filepath.Join(dir, "c0", fmt.Sprintf("%05d.jpg", poison))
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, append(b, "larder-poison"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	specs := []*larderv1.JobSpec{
		{Name: "isolated skips", BatchSize: 7, Seed: 3, OnError: "skip", Shuffle: true,
			Transform: []*larderv1.Op{op("RandomResizedCrop", map[string]any{"size": 12.0})}},
		{Name: "isolated as it is", BatchSize: 4, OnError: "skip"},
	}
	for _, s := range specs {
		s.Dataset = "imagefolder:" + dir
	}
	two := func(tr *trainee) { tr.last.Store(1) }
	d := newDaemon(t, isolated...)
	d.env = []string{"LARDER_POISON=SIGSEGV"}
	d.must()
	got := map[string]map[place]uint64{}
	c := train(d, specs, 0, prints(got), two)
	end(c)
	if _, died := d.died(0); died || d.lives != 1 {
		t.Fatalf("the daemon has died: %s", d.log.String())
	}
	said, err := exec.Command(larder, "--socket", d.socket, "status").CombinedOutput()
	if err != nil || !strings.Contains(string(said), "images decoded  in processes of their own (") ||
		strings.Contains(string(said), " 0 crashed") {
		t.Errorf("larder status says %s (%v)", said, err)
	}
	quiet := newDaemon(t)
	quiet.must()
	want := map[string]map[place]uint64{}
	end(train(quiet, specs, 0, prints(want), two))
	for _, tr := range c.all {
		name := tr.spec.GetName()
		for e := range uint32(2) {
			if !slices.Equal(tr.bad[e], []int64{poison}) || len(tr.orders[e]) != n-1 {
				t.Errorf("%s, epoch %d: %d given, %v bad", name, e, len(tr.orders[e]), tr.bad[e])
			}
		}
		for reason := range tr.reasons {
			if !strings.Contains(reason, "crashed (SIGSEGV) in a process of its own, and again in another one") {
				t.Errorf("%s got the reason %q", name, reason)
			}
		}
		maps.DeleteFunc(want[name], func(p place, _ uint64) bool { return p.id == poison })
		if len(got[name]) == 0 || !maps.Equal(got[name], want[name]) {
			t.Errorf("%s was given other bytes than by a daemon that decodes by itself", name)
		}
	}
}
