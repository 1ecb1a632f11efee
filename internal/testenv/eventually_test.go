package testenv_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/testenv"
)

// failed is a test that keeps how it was failed.
type failed struct {
	testing.TB
	words string
}

func (f *failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) {
	f.words = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, begun := 0, time.Now()
		testenv.Eventually(t, "the third look", func() bool { looks++; return looks == 3 })
		if took := time.Since(begun); looks != 3 || took != 2*time.Millisecond {
			t.Errorf("%d looks in %v, want 3 in 2ms", looks, took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f, begun, ended := &failed{TB: t}, time.Now(), make(chan struct{})
		go func() {
			defer close(ended)
			testenv.Eventually(f, "a job", func() bool { return false })
			f.words = "it returned"
		}()
		<-ended
		if took := time.Since(begun); !strings.Contains(f.words, "a job: it did not happen in 5m0s") || took < 5*time.Minute {
			t.Errorf("%q after %v", f.words, took)
		}
	})
}
