package main

import (
	"context"
	"errors"
	"testing"
)

// TestEachEndsWithItsContext: also where that ends within the last of all, which may have failed because of it.
func TestEachEndsWithItsContext(t *testing.T) {
	for _, n := range []int{1, 3, 40} {
		for _, workers := range []int{1, 3} {
			ctx, stop := context.WithCancel(t.Context())
			err := each(ctx, n, workers, func() (func(int), func()) {
				return func(i int) {
					if i == n-1 {
						stop()
					}
				}, func() {}
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%d of %d workers: %v", n, workers, err)
			}
			stop()
		}
	}
	done := make([]bool, 50)
	if err := each(t.Context(), len(done), 3, func() (func(int), func()) {
		return func(i int) { done[i] = true }, func() {}
	}); err != nil {
		t.Error(err)
	}
	for i, d := range done {
		if !d {
			t.Errorf("%d was left out", i)
		}
	}
}
