package telemetry

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"larder/internal/errs"
)

// TestLogFile: whatever is written by however many, both files stay within the limit, no line is split, and the newest
// lines are there.
func TestLogFile(t *testing.T) {
	const limit, writers, lines = 4096, 4, 400
	path := filepath.Join(t.TempDir(), "x.log")
	// longer than the limit already
	if err := os.WriteFile(path, bytes.Repeat([]byte("an old line\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLogFile(path, limit)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range lines {
				if _, err := fmt.Fprintf(l, "writer %d line %04d end\n", w, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	now, before := read(t, path), read(t, path+".1")
	if len(now) > limit || len(before) > limit || len(now)+len(before) < limit {
		t.Errorf("%d and %d bytes with a limit of %d", len(now), len(before), limit)
	}
	for w := range writers { // each writer's last lines in their order
		next := -1
		for line := range strings.Lines(before + now) {
			var who, i int
			if n, err := fmt.Sscanf(line, "writer %d line %d end\n", &who, &i); n != 2 || err != nil {
				t.Fatalf("a line is %q", line)
			}
			if who != w {
				continue
			}
			if next >= 0 && i != next {
				t.Errorf("writer %d: line %d follows %d", w, i, next-1)
			}
			next = i + 1
		}
		if next >= 0 && next != lines {
			t.Errorf("writer %d: the last line is %d", w, next-1)
		}
	}
	if _, err := l.Write(bytes.Repeat([]byte("x"), 3*limit)); err != nil || len(read(t, path)) != 3*limit {
		t.Errorf("a line longer than the limit: %v, %d bytes", err, len(read(t, path)))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	left, _ := filepath.Glob(path + "*")
	if len(left) != 2 {
		t.Errorf("files are %q", left)
	}
}

// TestLogFileCannotTurn: when no new file can be created, the old one stays in use.
func TestLogFileCannotTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	l, err := OpenLogFile(path, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.MkdirAll(filepath.Join(path+".1", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := l.Write([]byte("eight888\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, path); len(got) != 27 {
		t.Errorf("the log is %q", got)
	}
}

func TestLogFileRefuses(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "no", "x.log"), t.TempDir(), "/dev/null"} {
		if l, err := OpenLogFile(path, 10); !errs.Is(err, errs.ConfigInvalid) {
			t.Errorf("%s: %v, %v", path, l, err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
