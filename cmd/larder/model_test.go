package main

import (
	"slices"
	"testing"

	"larder/cachepolicy"
	"larder/internal/config"
	"larder/internal/coordinator"
)

// TestModelsOfTheConfiguration: tiers.model may be every model there is, and the rule of thumb.
func TestModelsOfTheConfiguration(t *testing.T) {
	if want := append(cachepolicy.Models(), coordinator.SimpleModel); !slices.Equal(config.Models, want) {
		t.Errorf("the configuration allows %v, there are %v", config.Models, want)
	}
}
