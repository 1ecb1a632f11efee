package daemon

import (
	"slices"
	"strings"
	"testing"

	"larder/cachepolicy/partition"
	"larder/internal/bits"
	"larder/internal/config"
	"larder/internal/coordinator"
	"larder/internal/store"
)

// TestImageLimits: prep.on_corrupt says whether damaged images are refused, and by default they are not, as in Pillow.
func TestImageLimits(t *testing.T) {
	c := config.Default()
	if l := imageLimits(c.Prep, config.Resolved{}); l.RefuseCorrupt || l.MaxPixels != c.Prep.MaxPixels {
		t.Errorf("by default %+v", l)
	}
	for answer, want := range map[string]bool{"error": true, "skip": true, "accept": false} {
		if err := c.Set("prep.on_corrupt", answer, config.Origin{Kind: "flag"}); err != nil {
			t.Fatal(err)
		}
		if l := imageLimits(c.Prep, config.Resolved{}); l.RefuseCorrupt != want {
			t.Errorf("%s: %+v", answer, l)
		}
	}
}

// TestMostJobs: the configuration allows as many jobs as there can be, and no more.
func TestMostJobs(t *testing.T) {
	if config.MostJobs != bits.MaxJobs || config.Default().Jobs.Max != bits.MaxJobs {
		t.Errorf("jobs.max is up to %d, %d by default; the sampler distinguishes %d", config.MostJobs,
			config.Default().Jobs.Max, bits.MaxJobs)
	}
}

// TestModelsOfTheConfiguration: tiers.model may be every model there is, and the rule of thumb.
func TestModelsOfTheConfiguration(t *testing.T) {
	if want := append(partition.Models(), coordinator.SimpleModel); !slices.Equal(config.Models, want) {
		t.Errorf("the configuration allows %v, there are %v", config.Models, want)
	}
}

// A policy that breaks a promise says so when it is configured; most have nothing to say.
func TestPolicyWarnings(t *testing.T) {
	if w := PolicyWarnings(config.Default().Tiers); len(w) != 0 {
		t.Errorf("the default warns: %q", w)
	}
	got := PolicyWarnings(config.Tiers{Policy: config.Policy{Encoded: "tinylfu", Decoded: "s3-fifo",
		Augmented: "minio-preselect"}})
	if len(got) != 2 || !strings.HasPrefix(got[0],
		"tiers.policy.encoded tinylfu breaks the promise of order epoch, stratified: ") ||
		!strings.Contains(got[0], "not deterministic") || !strings.HasPrefix(got[1],
		"tiers.policy.augmented minio-preselect breaks") {
		t.Errorf("%q", got)
	}
}

// TestStoreSettings: internal/config and internal/store agree on what a place has where nothing is configured.
func TestStoreSettings(t *testing.T) {
	c := config.Default()
	if got, want := StoreSettings(c)("s3", "s3://bucket"), store.Default(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := c.Set("stores.s3://bucket.parallel", "3", config.Origin{}); err != nil {
		t.Fatal(err)
	}
	set := StoreSettings(c)
	if a, b := set("s3", "s3://bucket"), set("s3", "s3://other"); a.Parallel != 3 || b.Parallel == 3 {
		t.Errorf("%d and %d", a.Parallel, b.Parallel)
	}
}
