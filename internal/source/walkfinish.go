package source

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"larder/internal/errs"
)

const (
	// maxProblems is how many paths and folders an error names; the others are counted.
	maxProblems = 10
	// maxKinds bounds the kinds of files that are distinguished.
	maxKinds = 64
	// otherKind is what the rest of them are.
	otherKind = "others"
	// hiddenKind are files whose names begin with a dot, such as .DS_Store.
	hiddenKind = "hidden"
)

// kinds counts files that are no samples.
type kinds map[string]int

func (k *kinds) add(name string) {
	if *k == nil {
		*k = kinds{}
	}
	(*k)[kindOf(name)]++
}

// kindOf is the suffix of a name in small letters, "" without one.
func kindOf(name string) string {
	if strings.HasPrefix(name, ".") {
		return hiddenKind
	}
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return ""
	}
	suffix := strings.ToLower(name[i:])
	for _, c := range []byte(suffix[1:]) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return otherKind
		}
	}
	if len(suffix) < 2 || len(suffix) > 12 {
		return otherKind
	}
	return suffix
}

// ignore adds to the report. The caller holds w.mu.
func (w *walker) ignore(found kinds) {
	for kind, n := range found { // order-free: sums, but for which kinds count as others when there are very many
		w.report.Ignored += n
		if _, ok := w.report.Kinds[kind]; !ok && len(w.report.Kinds) >= maxKinds {
			kind = otherKind
		}
		w.report.Kinds[kind] += n
	}
}

// problem is one line of what keeps a folder from being indexed.
type problem struct{ text, hint string }

// finish sorts, and turns what is missing into one error that has it all.
func (w *walker) finish() (*walkResult, error) {
	problems := w.unreadables()
	unread := len(problems)
	if len(w.classes) == 0 && unread == 0 {
		what, hint := "has no class folders", "an imagefolder is DIR/CLASS/IMAGE.jpg: one folder per class"
		if w.rootImg > 0 {
			what = fmt.Sprintf("has no class folders, but %d images of its own", w.rootImg)
			hint = "an imagefolder is DIR/CLASS/IMAGE.jpg: put the images into one folder per class"
		}
		return nil, errs.New(errs.DatasetEmpty, printable(w.root), hint, "dataset folder %q %s", w.root, what)
	}
	filled := w.sort()
	if unread == 0 && len(filled) == 0 {
		return nil, errs.New(errs.DatasetEmpty, printable(w.root), imagesEnd(), "none of the %d class folders of %q holds "+
			"an image", len(w.classes), w.root)
	}
	problems = append(problems, w.empties(filled)...)
	if len(problems) > 0 {
		return nil, w.refuse(problems, unread)
	}
	w.report.Ignored += w.rootImg
	w.report.RootImage = w.rootImg
	return &walkResult{classes: w.classes, dirs: w.dirs, report: w.report}, nil
}

// errSelfLink: leaving out such a class would move the labels of the others.
var errSelfLink = errors.New("it is a symbolic link to a folder that holds it")

func imagesEnd() string {
	return "put images into it or remove it; images end in " + strings.Join(imageSuffixes, " ")
}

// sort puts everything into torchvision's order, and returns which classes have a sample.
func (w *walker) sort() map[string]bool {
	slices.SortFunc(w.classes, pyCompare)
	slices.SortFunc(w.dirs, func(a, b *walkedDir) int {
		if c := pyCompare(a.class, b.class); c != 0 {
			return c
		}
		return pyCompare(a.rel, b.rel)
	})
	filled := map[string]bool{}
	for _, d := range w.dirs {
		slices.SortFunc(d.files, func(a, b walkedFile) int { return pyCompare(a.name, b.name) })
		// A folder that changes while it is listed may show a name twice.
		d.files = slices.CompactFunc(d.files, func(a, b walkedFile) bool { return a.name == b.name })
		if len(d.files) > 0 {
			filled[d.class] = true
		}
	}
	return filled
}

func (w *walker) unreadables() []problem {
	slices.SortFunc(w.bad, func(a, b badPath) int { return cmp.Compare(a.path, b.path) })
	var out []problem
	for i := range w.bad {
		b := &w.bad[i]
		hint := "repair or remove it"
		switch {
		case errors.Is(b.err, errSelfLink):
			hint = "remove the link"
		case errors.Is(b.err, fs.ErrPermission):
			hint = "the daemon runs as " + whoami() + "; make the whole dataset readable for it"
		case errors.Is(b.err, fs.ErrNotExist):
			hint = "it was removed while the dataset was indexed; try again"
		}
		if pe := (*fs.PathError)(nil); errors.As(b.err, &pe) {
			b.err = pe.Err // the path is in the message already
		}
		out = append(out, problem{fmt.Sprintf("%q cannot be read: %v", b.path, b.err), hint})
	}
	return out
}

// empties are the class folders without images that may not be so. Those that may are classes, or are left out.
func (w *walker) empties(filled map[string]bool) []problem {
	var out []problem
	if w.allow.all || len(filled) == len(w.classes) {
		return nil
	}
	left := map[string]bool{}
	for _, c := range w.classes {
		_, known := slices.BinarySearchFunc(w.allow.known, c, pyCompare)
		switch {
		case filled[c] || known:
		case len(w.allow.known) > 0:
			left[c] = true
		default:
			out = append(out, problem{fmt.Sprintf("class folder %q of %q holds no image", c, w.root),
				imagesEnd() + "; or index it with --skip-empty (skip_empty=True)"})
		}
	}
	if len(left) > 0 {
		w.report.LeftOut = slices.SortedFunc(maps.Keys(left), pyCompare)
		w.classes = slices.DeleteFunc(w.classes, func(c string) bool { return left[c] })
		w.dirs = slices.DeleteFunc(w.dirs, func(d *walkedDir) bool { return left[d.class] && d.rel != "" })
		w.dirs[0].mtime = 0 // the root's: folders that are no rows are not looked at, so every check walks
	}
	return out
}

// severalProblems is an error that lists each problem on a line of its own.
type severalProblems struct {
	lines  []string
	causes []error
}

func (e *severalProblems) Error() string   { return "\n  " + strings.Join(e.lines, "\n  ") + "\n" }
func (e *severalProblems) Unwrap() []error { return e.causes }

// refuse makes one error of all problems; the first unread of them are about paths.
func (w *walker) refuse(problems []problem, unread int) error {
	reason := errs.DatasetEmpty
	if unread > 0 {
		reason = errs.DatasetUnread
	}
	if len(problems) == 1 {
		p := problems[0]
		if unread == 1 {
			return errs.New(reason, printable(w.root), p.hint, "index %s: %q cannot be read", printable(w.root),
				w.bad[0].path).Because(w.bad[0].err)
		}
		return errs.New(reason, printable(w.root), p.hint, "%s", p.text)
	}
	var lines, hints []string
	add := func(part []problem, more string) {
		for i, p := range part {
			if i == maxProblems {
				lines = append(lines, fmt.Sprintf(more, len(part)-i))
				break
			}
			lines = append(lines, p.text)
		}
		for _, p := range part {
			if !slices.Contains(hints, p.hint) {
				hints = append(hints, p.hint)
			}
		}
	}
	add(problems[:unread], "and %d more paths that cannot be read")
	add(problems[unread:], "and %d more class folders without an image")
	several := &severalProblems{lines: lines}
	for _, b := range w.bad {
		several.causes = append(several.causes, b.err)
	}
	return errs.New(reason, printable(w.root), strings.Join(hints, "; "), "index %s: %d problems",
		printable(w.root), len(problems)).Because(several)
}
