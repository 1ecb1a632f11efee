package chaostest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/testenv"
)

// TestDiskIsFull (R12): the state directory is on a real file system of 64 MiB that is filled up and emptied again
// while jobs train. The daemon waits or stops, and nothing that was given out is lost. LARDER_FULL_DISKS is how many
// times.
func TestDiskIsFull(t *testing.T) {
	cycles, unharmed := testenv.Count(t, "LARDER_FULL_DISKS", 1), 10_000 // batches; room of its own is used up before
	if cycles > 3 {
		unharmed *= 4
	}
	r := seed(t)
	dir := images(t, 60, 24, 20)
	d := newDaemon(t)
	mount := filepath.Join(d.dir, "disk")
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("larder-test", mount, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Skipf("a file system cannot be mounted here (root is needed): %v", err)
	}
	t.Cleanup(func() {
		d.stop()
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	d.state = filepath.Join(mount, "state")
	d.must()
	c := train(d, specs(dir, "full-"), 0)
	stopped, waited, ownRoom := 0, 0, 0
	filler := filepath.Join(mount, "filler")
	for range cycles {
		c.more(2)
		if err := fill(filler, int64(r.IntN(8))<<10); err != nil {
			t.Fatal(err)
		}
		enough := c.took(unharmed) // until it shows: a daemon has some room of its own
		waits := false
		code, died := d.diesBy("it waits, or trains with room of its own", func() bool {
			if enough() {
				return true
			}
			out, _ := d.cli("jobs", "ls")
			waits = strings.Contains(out, " disk")
			return waits
		})
		switch {
		case died && code != 8:
			t.Fatalf("the daemon ended with %d on a full disk: %s", code, d.log.String())
		case died:
			stopped++
		case waits:
			waited++
		default:
			ownRoom++ // it had room of its own
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if died {
			d.must()
		} else { // it continues, or is about to end
			if _, ended := d.diesBy("all jobs continue", c.each(1)); ended {
				d.must()
			}
		}
		c.more(1)
	}
	c.finish()
	figure(t, "%d times a full disk of 64 MiB: the daemon stopped %d times, waited %d, had room of its own %d; %d "+
		"epochs read to their end", cycles, stopped, waited, ownRoom, c.epochs())
}

// fill writes a file until the disk has only slack bytes left.
func fill(path string, slack int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	zero := make([]byte, 1<<20)
	for size := len(zero); size >= 4096; {
		if _, err := f.Write(zero[:size]); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		}
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return f.Truncate(max(0, info.Size()-slack))
}

// group is a control group with a limit of memory.
type group struct{ dir, limit, procs, events string }

func newGroup(t *testing.T, limit int64) *group {
	t.Helper()
	name := fmt.Sprintf("larder-test-%d", os.Getpid())
	g := &group{dir: filepath.Join("/sys/fs/cgroup", name), limit: "memory.max", procs: "cgroup.procs",
		events: "memory.events"}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err == nil {
		g.dir, g.limit, g.events = filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes", "memory.oom_control"
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skipf("control groups cannot be made here (root is needed): %v", err)
	}
	t.Cleanup(func() {
		eventually(t, "the group is empty", func() bool { return os.Remove(g.dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(g.dir, g.limit), []byte(strconv.FormatInt(limit, 10)), 0o600); err != nil {
		t.Skipf("control groups have no limit of memory here: %v", err)
	}
	return g
}

// kills is how many processes the kernel killed for memory.
func (g *group) kills(t testing.TB) int {
	b, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	t.Fatalf("no oom_kill in %q", b)
	return 0
}

// used is what is not page cache, bytes.
func (g *group) used() (n int64) {
	b, _ := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 2 && (f[0] == "rss" || f[0] == "anon" || f[0] == "shmem") {
			v, _ := strconv.ParseInt(f[1], 10, 64)
			n += v
		}
	}
	return n
}

// TestLittleMemory (R13): a daemon with 512 MiB is asked for far more: decoded, the images of its jobs are 5 GiB at
// night. The kernel kills no process, and all jobs continue. LARDER_MEMORY_SECONDS is how long on two processors: a
// second stands for four batches.
func TestLittleMemory(t *testing.T) {
	const limit = 512 << 20
	seconds := testenv.Count(t, "LARDER_MEMORY_SECONDS", 1)
	g := newGroup(t, limit)
	n := 30
	if seconds >= 60 {
		n = 520
	}
	dir := images(t, n, 2000, 1700) // 10 MB decoded each
	d := newDaemon(t)
	d.wrap = []string{"/bin/sh", "-c", `echo $$ > ` + filepath.Join(g.dir, g.procs) + ` && exec "$0" "$@"`}
	d.must()
	jobs := specs(dir, "memory-")
	for i, s := range jobs {
		s.BatchSize = 8
		if i%2 == 0 {
			s.Subset = ""
		}
	}
	// A batch is eight images of a fifteenth of a second each, five clients wait, and some of the memory is read again and
	// again.
	c := train(d, jobs, 0, func(tr *trainee) { tr.wait = 9 * patience })
	var most int64
	enough := c.took(max(20, 4*seconds))
	steadily(t, "enough batches", c.taken, func() bool {
		most = max(most, g.used())
		if k := g.kills(t); k > 0 {
			t.Fatalf("the kernel killed %d processes for memory: %s", k, d.log.String())
		}
		select {
		case <-d.ended:
			t.Fatalf("the daemon ended: %v %s", d.cmd.ProcessState, d.log.String())
		default:
		}
		return enough()
	})
	c.finish()
	d.stop()
	figure(t, "in a control group of 512 MiB, %d images of 10.2 MB: 0 killed, at most %d MiB used, %d batches taken",
		n, most>>20, c.taken())
	if most > limit {
		t.Errorf("%d bytes of %d", most, limit)
	}
}
