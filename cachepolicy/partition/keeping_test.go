package partition

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// measured is what the daemon measured of photographs of 500 pixels, in seconds of two cores.
var measured = Keeping{InPlace: 760e-6, Decode: 920e-6, Augment: 95e-6, Memory: 130e-6, Encoded: 26e-6, Read: 20e-6}

func TestKeepingCosts(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"extra", measured.Extra(), (920.+95+130)/760 - 1},
		{"saved", measured.Saved(), 1 - 95./760},
		{"stored", measured.Stored(), 26. / 760},
		{"no time to spare while storage is faster", measured.Spare(), 0},
		{"time to spare", Keeping{InPlace: 1, Read: 4}.Spare(), 3},
		{"an image that is decoded whole anyway", Keeping{InPlace: 2, Decode: 1, Augment: 0.5}.Extra(), 0},
		{"an augmentation that costs more than in place", Keeping{InPlace: 1, Decode: 1, Augment: 3}.Saved(), 0},
		{"extra, nothing known", Keeping{}.Extra(), typicalExtra},
		{"saved, nothing known", Keeping{}.Saved(), typicalSaved},
		{"spare, nothing known", Keeping{Read: 1}.Spare(), 0},
		{"stored, nothing known", Keeping{Encoded: 1}.Stored(), typicalStored},
	} {
		if math.Abs(c.got-c.want) > 1e-12 {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	for uses, want := range map[int]bool{0: false, 1: true, 90: true} {
		if measured.Pays(uses) != want {
			t.Errorf("%d later uses pay: %v", uses, !want)
		}
	}
	if dear := (Keeping{InPlace: 1, Decode: 3, Augment: 0.5}); dear.Pays(5) || !dear.Pays(6) { // 2.5 more, 0.5 saved each
		t.Error("what costs 2.5 and saves 0.5 pays from the sixth use on")
	}
}

// TestAllowanceBoundsAnEpoch: whatever samples an epoch has, at every moment it has taken at most (1 + Slowdown) times
// as long as an epoch in which nothing is kept would have, unless storing the encoded form alone takes more.
func TestAllowanceBoundsAnEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cost := func(name string, most float64) float64 { return rapid.Float64Range(0.01, most).Draw(t, name) }
		k := Keeping{InPlace: cost("in place", 3), Decode: cost("decode", 3), Augment: cost("augment", 1),
			Memory: cost("memory", 1), Read: cost("read", 0.02)}
		if rapid.Bool().Draw(t, "unknown") {
			k = Keeping{}
		}
		var a Allowance
		a.Begin()
		spent, kept := 0.0, 0 // in samples in place
		for n := 1; n <= 400; n++ {
			if rapid.Bool().Draw(t, "hit") {
				a.Hit(k)
				spent += 1 - k.Saved()
			} else {
				a.Prepare(k, false)
				spent += 1 - k.Spare() // which passes while storage is waited for
				if a.Affords(k) {
					a.Pay(k.Extra())
					spent += k.Extra()
					kept++
				}
			}
			if most := (1 + Slowdown) * float64(n); spent > most+1e-9 {
				t.Fatalf("after %d samples the epoch took %.3f, more than %.3f", n, spent, most)
			}
		}
		if spent < float64(400)*(1+Slowdown)-k.Extra()-1 && kept == 0 && k.Extra() < 40 {
			t.Fatalf("nothing was kept, though the epoch took only %.1f of %.1f", spent, 400*(1+Slowdown))
		}
	})
}

// TestTheTierFillsInAFewEpochs: photographs of the size of ImageNet's, one job, nothing known of later epochs.
func TestTheTierFillsInAFewEpochs(t *testing.T) {
	var kept []float64
	share := 0.0
	const n = 10_000
	for range 4 {
		var a Allowance
		a.Begin()
		more := 0
		for i := range n {
			if float64(i%100) < 100*share { // what earlier epochs kept, spread over the epoch
				a.Hit(measured)
				continue
			}
			a.Prepare(measured, true)
			if a.Affords(measured) {
				a.Pay(measured.Extra())
				more++
			}
		}
		share += float64(more) / n
		kept = append(kept, share)
	}
	if kept[0] < 0.07 || kept[0] > 0.13 || kept[1] < 0.25 || kept[3] < 0.99 {
		t.Errorf("kept after each epoch: %.3f", kept)
	}
	t.Logf("kept after each epoch: %.3f", kept)
}

// What was saved in one epoch is not spent in another.
func TestAnEpochBeginsWithNothing(t *testing.T) {
	var a Allowance
	a.Begin()
	for range 1000 {
		a.Hit(measured)
	}
	a.Begin()
	if a.Affords(measured) {
		t.Error("an epoch begins with what the one before saved")
	}
}
