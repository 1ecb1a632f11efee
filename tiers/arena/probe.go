package arena

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of Probe.
const (
	probeSteps = 4 // of 2 MiB, for each size of pages
	probeTime  = 20 * time.Millisecond
)

// Pages is what Probe found.
type Pages struct {
	Below time.Duration // for Config.HugeBelow
	Why   string        // a sentence for people
}

// Probe measures what memory costs here in small and in huge pages. It takes 16 MiB at the most, for 20 ms and one more
// step, and gives them back.
func Probe() Pages {
	const n = probeSteps * hugeBytes
	if Granule >= hugeBytes {
		return Pages{Why: "small pages: this machine has no others"}
	}
	small, err := mapMemory("larder-probe", n, false)
	if err != nil {
		return Pages{Why: "small pages: " + err.Error()}
	}
	defer unmap([]*memory{small})
	huge, err := mapMemory("larder-probe", n, true)
	if err != nil {
		return Pages{Why: "small pages: " + err.Error()}
	}
	defer unmap([]*memory{huge})
	var took [2][]time.Duration
	for begun, step := time.Now(), int64(0); step < probeSteps && time.Since(begun) < probeTime; step++ {
		for i, m := range [...]*memory{small, huge} {
			at := time.Now()
			if err := m.commit(step*hugeBytes, hugeBytes); err != nil {
				return Pages{Why: "small pages: " + err.Error()}
			}
			took[i] = append(took[i], time.Since(at))
		}
	}
	return choose(took[0], took[1])
}

// choose decides by what 2 MiB took, several times: huge pages must take less than half. Less would not pay for what
// they hold beside what is stored.
func choose(small, huge []time.Duration) Pages {
	s, h := middle(small), middle(huge)
	took := fmt.Sprintf("2 MiB took %v in a huge page and %v in small ones", h.Round(time.Microsecond),
		s.Round(time.Microsecond))
	if 2*h < s {
		return Pages{Below: s, Why: "huge pages: " + took}
	}
	return Pages{Why: "small pages: " + took}
}

func middle(of []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(of))
	return s[len(s)/2]
}
