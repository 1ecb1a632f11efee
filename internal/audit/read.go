package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"larder/internal/errs"
)

// maxLine bounds a record: a batch of 65,536 samples with ids of 20 digits, twice over.
const maxLine = 4 << 20

// file is a log that was read.
type file struct {
	name    string
	records int
	torn    bool // the last line was being written when its process, or the machine, stopped
	damage  string
}

// Find returns the logs that the paths name: files, and in folders every audit-*.log. Errors are *errs.Error; no log at
// all is NOT_FOUND.
func Find(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errs.New(errs.NotFound, p, "clients write logs into the folder that LARDER_AUDIT_LOG names",
				"there is no audit log %s", p)
		}
		if err != nil {
			return nil, errs.New(errs.Invalid, p, "check the path and its rights", "look at %s", p).Because(err)
		}
		if !info.IsDir() {
			out = append(out, p)
			continue
		}
		found, err := filepath.Glob(filepath.Join(globEscape(p), "audit-*.log"))
		if err != nil {
			return nil, errs.New(errs.Invalid, p, "name the files", "look for logs in %s", p).Because(err)
		}
		if len(found) == 0 {
			return nil, errs.New(errs.NotFound, p, "run the clients with LARDER_AUDIT_LOG="+p, "there is no audit log in %s", p)
		}
		out = append(out, found...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// globEscape keeps the name of a folder from being read as a pattern.
func globEscape(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// readLog hands every record of a log to f, in order, and the first one to begins. What is wrong with the log is in the
// result; the error is that of reading.
func readLog(name string, in io.Reader, f func(line int, r *Record), begins func(*Record)) (*file, error) {
	out := &file{name: name}
	b := bufio.NewReaderSize(in, 1<<16)
	for n := 1; ; n++ {
		line, whole, err := readLine(b)
		if err != nil {
			return nil, err
		}
		if line == nil {
			return out, nil
		}
		r, bad := decode(line)
		if bad == nil {
			bad = fits(r, n)
		}
		if !whole && bad == nil {
			bad = errLine // a record is there when its line feed is
		}
		if bad != nil {
			if _, err := b.Peek(1); !whole && errors.Is(err, io.EOF) {
				out.torn = true
				return out, nil
			}
			out.damage = fmt.Sprintf("line %d: %v", n, bad)
			return out, nil
		}
		out.records = n
		if n == 1 {
			begins(r)
		} else {
			f(n, r)
		}
	}
}

// fits checks that a record may stand at line n.
func fits(r *Record, n int) error {
	switch {
	case r.Line != uint64(n):
		return fmt.Errorf("it was written as line %d: lines are missing, or come from elsewhere", r.Line)
	case (n == 1) != (r.Kind == KindLog):
		return fmt.Errorf("a record %q cannot be there", r.Kind)
	case n == 1 && r.Version != Version:
		return fmt.Errorf("it has version %d, this larder reads %d", r.Version, Version)
	}
	return nil
}

// readLine returns a line without its line feed, nil at the end, and whether it had one. A longer one than any record
// is given in part.
func readLine(b *bufio.Reader) (line []byte, whole bool, err error) {
	for {
		part, err := b.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte{'\n'}), true, nil
		case errors.Is(err, io.EOF):
			if len(line) == 0 {
				return nil, false, nil
			}
			return line, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		case len(line) > maxLine:
			return line, true, nil
		}
	}
}
