package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// repository reads versions of the counts out of git.
type repository struct {
	root, python string
	blobs        map[string]numbers // by the name of the blob
}

func (r *repository) git(stdin string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", r.root}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return string(out), nil
}

// history returns the commits that changed the counts, the numbers of the last commit, and a note where a part of the
// history is not there.
func (r *repository) history() (changed []commit, head numbers, note string, err error) {
	if _, err := r.git("", "rev-parse", "--verify", "-q", "HEAD"); err != nil {
		return nil, nil, "no git history here: only the numbers of this tree were checked", nil
	}
	if shallow, err := r.git("", "rev-parse", "--is-shallow-repository"); err != nil {
		return nil, nil, "", err
	} else if strings.TrimSpace(shallow) == "true" {
		note = "a shallow clone: only the commits that are here were checked"
	}
	out, err := r.git("", "rev-list", "--parents", "HEAD")
	if err != nil {
		return nil, nil, "", err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var ask strings.Builder
	for _, line := range lines {
		hash, _, _ := strings.Cut(line, " ")
		fmt.Fprintf(&ask, "%s:%s\n", hash, countsFile)
	}
	out, err = r.git(ask.String(), "cat-file", "--batch-check=%(objectname)")
	if err != nil {
		return nil, nil, "", err
	}
	blobOf := map[string]string{} // of a commit
	for i, blob := range strings.Split(strings.TrimSpace(out), "\n") {
		if hash, _, _ := strings.Cut(lines[i], " "); !strings.HasSuffix(blob, " missing") {
			blobOf[hash] = blob
		}
	}
	for _, line := range lines {
		names := strings.Fields(line)
		c, err := r.commit(names[0], names[1:], blobOf)
		if err != nil {
			return nil, nil, "", err
		}
		if c != nil {
			changed = append(changed, *c)
		}
	}
	newest, _, _ := strings.Cut(lines[0], " ")
	head, err = r.numbersOf(blobOf[newest])
	return changed, head, note, err
}

// commit reads a commit if its counts differ from those of a parent.
func (r *repository) commit(hash string, parents []string, blobOf map[string]string) (*commit, error) {
	same := true
	for _, p := range parents {
		same = same && blobOf[p] == blobOf[hash]
	}
	if same {
		return nil, nil
	}
	message, err := r.git("", "log", "-1", "--format=%B", hash)
	if err != nil {
		return nil, err
	}
	c := &commit{hash: hash, message: message}
	c.subject, _, _ = strings.Cut(message, "\n")
	if c.declared, err = r.declared(hash, sayings(message).moved); err != nil {
		return nil, fmt.Errorf("commit %.12s: %w", hash, err)
	}
	if c.counts, err = r.numbersOf(blobOf[hash]); err != nil {
		return nil, fmt.Errorf("commit %.12s: %w", hash, err)
	}
	for _, p := range parents {
		n, err := r.numbersOf(blobOf[p])
		if err != nil {
			return nil, fmt.Errorf("commit %.12s: %w", p, err)
		}
		c.parents = append(c.parents, n)
	}
	if len(parents) != 2 {
		return c, nil
	}
	base, err := r.git("", "merge-base", parents[0], parents[1])
	if err != nil {
		return c, nil //nolint:nilerr // two histories without a common commit: no number is common
	}
	c.base, err = r.numbersOf(blobOf[strings.TrimSpace(base)])
	return c, err
}

// declared finds those of the old keys in moves that the tree of a commit still declares.
func (r *repository) declared(hash string, moves map[string]string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, old := range moves {
		all, err := r.measureAt(hash, placeOf(old))
		if err != nil {
			return nil, err
		}
		out[old] = declares(all, old)
	}
	return out, nil
}

// placeOf is the folder of a key of Go, or the file of one of Python without its suffix.
func placeOf(key string) string {
	_, rest, _ := strings.Cut(key, ".")
	dir, name := path.Split(rest)
	name, _, _ = strings.Cut(name, ".")
	return dir + name
}

// measureAt measures what a commit has in one place: the Go files of the folder, or the file of Python.
func (r *repository) measureAt(hash, place string) (numbers, error) {
	names, err := r.git("", "ls-tree", "--full-tree", "--name-only", hash, "--", place+"/", place+".py")
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "counts-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for files of a commit: %w", err)
	}
	defer os.RemoveAll(root)
	t := &tree{root: root, python: r.python}
	for name := range strings.Lines(names) {
		name = strings.TrimSuffix(name, "\n")
		if path.Ext(name) != ".go" && name != place+".py" {
			continue
		}
		text, err := r.git("", "cat-file", "blob", hash+":"+name)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			return nil, fmt.Errorf("writing a file of a commit: %w", err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			return nil, fmt.Errorf("writing a file of a commit: %w", err)
		}
		t.files = append(t.files, name)
	}
	return t.measure()
}

// numbersOf reads a version of the file; "" is a commit without it.
func (r *repository) numbersOf(blob string) (numbers, error) {
	if blob == "" {
		return nil, nil
	}
	if n, known := r.blobs[blob]; known {
		return n, nil
	}
	text, err := r.git("", "cat-file", "blob", blob)
	if err != nil {
		return nil, err
	}
	n, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s of an old commit: %w", countsFile, err)
	}
	if r.blobs == nil {
		r.blobs = map[string]numbers{}
	}
	r.blobs[blob] = n
	return n, nil
}

// after says whether a commit has another among those before it.
func (r *repository) after(c, earlier string) bool {
	_, err := r.git("", "merge-base", "--is-ancestor", earlier, c)
	return err == nil
}
