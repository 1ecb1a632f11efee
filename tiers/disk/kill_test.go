package disk

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"larder/internal/spool"
	"larder/internal/spool/spooltest"
	"larder/internal/xrand"
)

const killSize = 96 << 20

// writeForEver is the process that is killed: it puts entries, makes blocks, says how far it came, and writes a dot for
// every call of the file system.
func writeForEver(dir string) {
	told := &broken{files: realFiles{dir}, fail: func(string, string) error {
		_, err := os.Stdout.WriteString(".\n")
		return err
	}}
	s, err := Open(Config{Dir: dir, Size: killSize, files: told})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	from, err := strconv.Atoi(os.Getenv("LARDER_TEST_DISK_FROM"))
	if err != nil {
		os.Exit(1)
	}
	for i := from; ; i++ {
		s.Put(Whom{Group: "a"}, keyOf(i), bytesOf(i))
		if i%20 != 19 {
			continue
		}
		s.Flush()
		fmt.Println(i + 1)
		if _, err := s.Block(context.Background(), fmt.Sprint(i%400), recordsOf(fmt.Sprint(i%400))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func recordsOf(key string) spool.Make {
	return func(_ context.Context, w spool.Writer) error {
		for _, r := range spooltest.Records(key, 300) {
			if err := w.Add(r); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestKill kills the writing process at random moments, which are counts of its calls of the file system: at least 99
// of 100 entries that it had written are there again, and every byte is right. LARDER_DISK_KILLS says how often; a
// night does 200.
func TestKill(t *testing.T) {
	rounds := 10
	if n, err := strconv.Atoi(os.Getenv("LARDER_DISK_KILLS")); err == nil && n > 0 {
		rounds = n
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := xrand.New(1, 9)
	dir, begin, end := t.TempDir(), 0, 0
	for round := range rounds {
		if end > 8000 { // what is put fits, so that nothing leaves
			dir, begin, end = t.TempDir(), 0, 0
		}
		from := end
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "LARDER_TEST_DISK_WRITER="+dir, fmt.Sprint("LARDER_TEST_DISK_FROM=", from))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, stop, calls := bufio.NewScanner(out), 1+r.IntN(40), r.IntN(30)
		for n := 0; lines.Scan(); {
			if lines.Text() == "." {
				if n > stop {
					calls--
				}
			} else if end, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			} else {
				n++
			}
			if n > stop && calls < 0 {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait() // it was killed
		s := openAt(t, Config{Dir: dir, Size: killSize})
		if n := countHits(t, s, "a", begin, end); n < (end-begin)*99/100 {
			t.Errorf("round %d: %d of %d entries are there", round, n, end-begin)
		}
		for i := from; i < end; i += 20 {
			key := fmt.Sprint((i + 19) % 400)
			b, err := s.Block(context.Background(), key, recordsOf(key))
			if err != nil {
				t.Fatal(err)
			}
			spooltest.Check(t, b, spooltest.Records(key, 300))
			_ = b.Close()
		}
		if st := s.Stats(); diskUse(t, dir) > killSize || st.Errors > 0 {
			t.Errorf("round %d: %d bytes, %+v", round, diskUse(t, dir), st)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
