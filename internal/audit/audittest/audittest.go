// Package audittest has the auditor run over everything that the clients of a package's tests were given.
package audittest

import (
	"flag"
	"fmt"
	"os"

	"larder/internal/audit"
)

// TestingM is *testing.M.
type TestingM interface{ Run() int }

// M runs the tests with a log and audits it: a sample that was lost, repeated, foreign or altered fails the package,
// whatever its tests say. With LARDER_AUDIT_LOG the log is kept there.
func M(m TestingM, o audit.Options) TestingM { return main{m, o} }

type main struct {
	TestingM
	options audit.Options
}

func (m main) Run() int {
	dir := os.Getenv(audit.Env)
	if dir == "" {
		tmp, err := os.MkdirTemp("", "larder-audit")
		if err != nil {
			return fail(err)
		}
		defer os.RemoveAll(tmp)
		dir = tmp
		if err := os.Setenv(audit.Env, dir); err != nil {
			return fail(err)
		}
	}
	if _, err := audit.Process(); err != nil { // before any test counts its descriptors
		return fail(err)
	}
	code := m.TestingM.Run()
	if err := check(dir, m.options); err != nil {
		return fail(err)
	}
	return code
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "audit:", err)
	return 1
}

func check(dir string, o audit.Options) error {
	names, err := audit.Find([]string{dir})
	if err != nil {
		return err
	}
	r, err := audit.Check(names, o)
	if err != nil {
		return err
	}
	for i, f := range r.Findings {
		if i < 20 {
			fmt.Fprintf(os.Stderr, "audit: %s: job %s epoch %d rank %d step %d: %s (%s) %v\n", f.Kind, f.Job, f.Epoch, f.Rank,
				f.Step, f.Text, f.Where, f.IDs)
		}
	}
	if n := len(r.Findings); n > 0 {
		return fmt.Errorf("%d findings in %d epochs", n, len(r.Epochs))
	}
	if all := flag.Lookup("test.run"); all != nil && all.Value.String() == "" && r.States[audit.Whole] == 0 {
		return fmt.Errorf("no epoch of the tests was whole: %v", r.States)
	}
	fmt.Fprintf(os.Stderr, "audit: %d samples in %d epochs, %v: nothing lost, repeated, foreign or altered\n", r.Samples,
		len(r.Epochs), r.States)
	return nil
}

// Off keeps the epochs that a test begins out of the log: for tests that count what the log costs, too. Such a test
// must not run beside others.
func Off(t interface{ Cleanup(func()) }) {
	before := audit.Process
	audit.Process = func() (*audit.Log, error) { return nil, nil }
	t.Cleanup(func() { audit.Process = before })
}
