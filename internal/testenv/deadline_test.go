package testenv_test

import (
	"context"
	"errors"
	"testing"

	"larder/internal/testenv"
)

func TestDeadline(t *testing.T) {
	d := testenv.NewDeadline(t.Context())
	child, cancel := context.WithCancel(d)
	defer cancel()
	if d.Err() != nil || child.Err() != nil {
		t.Fatalf("before it passed: %v, %v", d.Err(), child.Err())
	}
	d.Pass()
	d.Pass()
	<-d.Done()
	<-child.Done()
	if !errors.Is(d.Err(), context.DeadlineExceeded) || !errors.Is(child.Err(), context.DeadlineExceeded) {
		t.Errorf("after it passed: %v, %v", d.Err(), child.Err())
	}
	w := testenv.DeadlineOnWait(t.Context())
	if w.Err() != nil {
		t.Error(w.Err())
	}
	<-w.Done()
	if !errors.Is(w.Err(), context.DeadlineExceeded) {
		t.Error(w.Err())
	}
}
