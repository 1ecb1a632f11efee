package demo

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuModel is the processor's name as the kernel knows it.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// others measures how busy all other processes keep the processors during a run.
type others struct {
	busy, total, own time.Duration
}

func startOthers() others {
	var o others
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		o.busy, o.total = parseStat(string(b))
	}
	o.own = ownCPU()
	return o
}

// share is the part of all processor time since the start that went neither to this process nor to the given children,
// 0 to 1; 0 where the kernel does not report it.
func (o others) share(children time.Duration) float64 {
	now := startOthers()
	total := now.total - o.total
	if total <= 0 {
		return 0
	}
	return max(0, min(1, float64(now.busy-o.busy-(now.own-o.own)-children)/float64(total)))
}

// parseStat reads the first line of /proc/stat (proc(5)): the time all processors together were busy, and all of it.
func parseStat(text string) (busy, total time.Duration) {
	const tick = time.Second / 100 // USER_HZ is 100 on every architecture that Go knows
	first, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(first)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0
	}
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0
		}
		total += time.Duration(n) * tick
		if i != 3 && i != 4 {
			busy += time.Duration(n) * tick
		}
	}
	return busy, total
}

// ownCPU is the processor time of this process so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
