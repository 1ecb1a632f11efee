package arena

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestChoosePages(t *testing.T) {
	ms := func(of ...int) (d []time.Duration) {
		for _, x := range of {
			d = append(d, time.Duration(x)*time.Millisecond)
		}
		return d
	}
	for _, c := range []struct {
		name        string
		small, huge []time.Duration
		below       time.Duration
	}{
		{"a quarter", ms(8, 8, 8, 8), ms(2, 2, 2, 2), 8 * time.Millisecond},
		{"one is an exception", ms(8, 80, 8, 8), ms(2, 2, 90, 2), 8 * time.Millisecond},
		{"half", ms(8, 8, 8, 8), ms(4, 4, 4, 4), 0},
		{"dearer", ms(8, 8, 8, 8), ms(40, 2, 40, 40), 0},
		{"the time was up", ms(8), ms(30), 0},
	} {
		if p := choose(c.small, c.huge); p.Below != c.below || p.Why == "" {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// The probe says something, and leaves nothing behind.
func TestProbe(t *testing.T) {
	p := Probe()
	want := map[bool]string{true: "huge pages: ", false: "small pages: "}[p.Below > 0]
	if !strings.HasPrefix(p.Why, want) {
		t.Errorf("%+v", p)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	if strings.Contains(string(maps), "larder-probe") {
		t.Error("the memory of the probe stayed")
	}
}
