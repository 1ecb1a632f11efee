package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repo is a repository with a small tree.
type repo struct {
	t    *testing.T
	root string
}

func newRepo(t *testing.T) repo {
	r := repo{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	plant(t, r.root, map[string]string{
		"docs/index.md": "one two nobody\n", "internal/x/a.go": "package x\n\n// nobody\nvar A int\n",
	})
	r.git("add", ".")
	r.commit("start")
	return r
}

func (r repo) git(args ...string) {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.root, "-c", "user.name=a", "-c", "user.email=a@example.com",
		"-c", "commit.gpgsign=false", "-c", "protocol.file.allow=always"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func (r repo) commit(message string) {
	r.t.Helper()
	r.git("add", ".")
	r.git("commit", "-q", "--allow-empty", "-m", message)
}

func (r repo) write(name, text string) {
	r.t.Helper()
	plant(r.t, r.root, map[string]string{name: text})
}

func (r repo) edit(name, from, to string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.root, name))
	if err != nil || !strings.Contains(string(text), from) {
		r.t.Fatalf("%s has no %q: %v", name, from, err)
	}
	r.write(name, strings.Replace(string(text), from, to, 1))
}

func (r repo) run(update bool) report {
	r.t.Helper()
	got, err := options{root: r.root, python: "python3", update: update}.run()
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func (r repo) check(want ...string) { r.t.Helper(); mustSay(r.t, r.run(false).problems, want...) }
func (r repo) update()              { r.t.Helper(); mustSay(r.t, r.run(true).problems) }

func TestARaisedNumberStaysRedWhenItIsCommitted(t *testing.T) {
	r := newRepo(t)
	_, err := options{root: r.root, python: "python3"}.run()
	if err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Fatalf("without the file: %v", err)
	}
	r.update()
	r.check()
	r.commit("counts: start")
	r.check()

	r.edit("internal/x/a.go", "// nobody", "// nobody, nobody")
	r.check("banned.nobody is 3, at most 2")
	mustSay(t, r.run(true).problems, "banned.nobody is 3") // an update does not raise it
	r.edit(countsFile, "banned.nobody 2", "banned.nobody 3")
	r.check("banned.nobody rose from 2 to 3")
	r.commit("x: say more\n\nCeiling: banned.nobody +1: it reads well")
	r.check("x: say more")
	r.edit("internal/x/a.go", "// nobody, nobody", "// nobody")
	r.check("fell to 2", "x: say more")
	r.update()
	r.check()
	r.commit("x: say less")
	r.check()
}

func TestACeilingRisesWithWords(t *testing.T) {
	r := newRepo(t)
	r.update()
	r.commit("counts: start")
	r.write("docs/tiers.md", "four words are here\n")
	r.check("words.docs is 7, its ceiling is 3")
	mustSay(t, r.run(true).notes, "not measured", "`Ceiling: words.docs +4: REASON`")
	r.check()
	r.commit("docs: add b")
	r.check("`Ceiling: words.docs +4: REASON`")
	r.git("commit", "-q", "--amend", "-m", "docs: add b\n\nCeiling: words.docs +3: a page about b")
	r.check("rose from 3 to 7")
	r.git("commit", "-q", "--amend", "-m", "docs: add b\n\nCeiling: words.docs +4: a page about b")
	r.check()
}

// TestAMoveNeedsTheOldDeclarationToBeGone: from the tree, and from the commit that says Moved.
func TestAMoveNeedsTheOldDeclarationToBeGone(t *testing.T) {
	goType := func(name string) string {
		return "type " + name + " struct{}\n\n" + repeat(22, "func ("+name+") M%d() {}\n")
	}
	class := func(name string) string { return "class " + name + ":\n" + repeat(22, "    def m%d(self): pass\n") }
	r := newRepo(t)
	r.write("internal/x/b.go", "package x\n\n// a\n// b\n"+goType("Old"))
	r.write("bench/old.py", "# a\n# b\n"+class("Old"))
	r.update()
	r.commit("counts: start")

	// The old ones stay, without their methods, and new ones are as large.
	r.write("internal/x/b.go", "package x\n\ntype Old struct{}\n\n"+goType("New"))
	r.write("bench/old.py", "class Old: pass\n\n"+class("New"))
	mustSay(t, r.run(true).problems, "methods.bench/old.New is 22, at most 20", "methods.internal/x.New is 22, at most 20")
	r.git("checkout", "-q", countsFile)
	r.edit(countsFile, "/x.Old 22", "/x.New 22")
	r.edit(countsFile, "/old.Old 22", "/old.New 22")
	rose := []string{"methods.bench/old.New rose from 20 to 22", "methods.internal/x.New rose from 20 to 22"}
	r.check(rose...)
	moved := "x: rename Old\n\nMoved: methods.internal/x.Old -> methods.internal/x.New\n" +
		"Moved: methods.bench/old.Old -> methods.bench/old.New\n"
	r.commit(moved)
	r.check(rose...)

	r.edit("internal/x/b.go", "type Old struct{}\n", "")
	r.edit("bench/old.py", "class Old: pass\n", "")
	r.check(rose...) // the commit still has them
	r.git("commit", "-q", "-a", "--amend", "-m", moved)
	r.check()
}

func TestMergesOfCounts(t *testing.T) {
	r := newRepo(t)
	r.git("checkout", "-q", "-b", "before")
	r.write("z.txt", "z\n")
	r.commit("docs: add z")
	r.git("checkout", "-q", "main")
	r.update()
	r.commit("counts: start")
	r.git("checkout", "-q", "-b", "side")
	r.write("docs/tiers.md", "four words are here\n")
	r.update()
	r.commit("docs: add b\n\nCeiling: words.docs +4: a page about b")
	r.git("checkout", "-q", "main")
	r.edit("docs/index.md", "nobody", "she")
	r.update()
	r.commit("docs: name the subject")
	r.git("merge", "-q", "--no-edit", "side")
	r.check()
	r.git("merge", "-q", "--no-edit", "before")
	r.check()

	// A merge that takes the older file brings the lowered number back.
	r.git("checkout", "-q", "-b", "stale", "main~3")
	r.write("docs/stores.md", "nothing\n")
	r.commit("docs: add c")
	r.git("merge", "-q", "-s", "ours", "--no-edit", "main")
	r.write("docs/stores.md", "")
	r.check("Merge branch 'main' into stale")
}

func TestWithoutHistory(t *testing.T) {
	t.Setenv("CI", "")
	r := newRepo(t)
	r.update()
	r.commit("counts: start")
	r.edit(countsFile, "words.docs 3", "words.docs 4")
	r.commit("counts: raise a ceiling")
	r.check("words.docs rose from 3 to 4")

	shallow := repo{t, filepath.Join(t.TempDir(), "shallow")}
	r.git("clone", "-q", "--depth=1", "file://"+r.root, shallow.root)
	shallow.check()
	if notes := strings.Join(shallow.run(false).notes, "\n"); !strings.Contains(notes, "shallow clone") {
		t.Errorf("a shallow clone says %q", notes)
	}
	if err := os.RemoveAll(filepath.Join(r.root, ".git")); err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(r.run(false).notes, "\n"); !strings.Contains(notes, "no git history") {
		t.Errorf("without git it says %q", notes)
	}
	t.Setenv("CI", "true")
	r.check("no git history")
	shallow.check("a shallow clone")
	t.Setenv("CI", "")
	r.edit("docs/index.md", "one", "one two three nobody")
	r.check("banned.nobody is 3", "words.docs is 6")
}
