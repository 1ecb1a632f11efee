package packed

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Programs leave files beside those of a dataset: Spark _SUCCESS and _temporary, Finder ._a.parquet, office programs
// .~lock.a.csv#, copies that go on a.parquet.tmp. A folder does not stand for them: as with Spark, Hive and pyarrow,
// names that begin with _ or . are left out, and those of copies and locks. A uri that names such a file reads it.

// LeftOut counts the files that a list of a folder left out, although their names end as those of the format.
type LeftOut struct {
	Files int
	First string // by name
}

// note counts a file.
func (l *LeftOut) note(name string) {
	if l == nil {
		return
	}
	if l.Files == 0 || name < l.First {
		l.First = name
	}
	l.Files++
}

// Kind says in words which kind of files they are.
func (l *LeftOut) Kind() string { return leftOutKind + l.First }

// LeftOutNote tells a user of so many files of a Kind; "" = it is another kind.
func LeftOutNote(kind string, files string) string {
	first, ok := strings.CutPrefix(kind, leftOutKind)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s of the folder left out by name (_ or . first, or that of a copy), the first %s; a uri that "+
		"names such a file reads it", files, first)
}

// leftOutKind is how the kinds of files that are left out begin.
const leftOutKind = "left out by name, the first "

// IsLeftOutKind reports whether Kind gave it.
func IsLeftOutKind(kind string) bool { return strings.HasPrefix(kind, leftOutKind) }

// copies are the suffixes of files that are being written, and of what programs note beside a file.
var copies = []string{".tmp", ".temp", ".part", ".partial", ".crdownload", ".crc", ".lock", ".swp", ".bak", "~", "#",
	"._COPYING_", ".inprogress", ".incomplete"}

// leavesOut reports whether a folder does not stand for a file of a name.
func leavesOut(name string) bool {
	return strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "~$") ||
		hasSuffix(name, copies)
}

// choose keeps the names of a folder that fit and that it stands for, as paths, sorted.
func (l *LeftOut) choose(dir string, names []string, fits func(name string) bool) []string {
	var out []string
	for _, n := range names {
		switch {
		case strings.HasSuffix(n, "/") || !fits(n):
		case leavesOut(n):
			l.note(n)
		default:
			out = append(out, filepath.Join(dir, n))
		}
	}
	slices.Sort(out)
	return out
}

// hasNo is the error of a folder that stands for no file. names are all that it holds.
func hasNo(a *Address, dir, what string, names []string, fits func(name string) bool) error {
	all := &LeftOut{}
	all.choose(dir, names, fits)
	if all.Files == 0 {
		return fmt.Errorf("folder %q has no %s", a.Place+dir, what)
	}
	return fmt.Errorf("folder %q has no %s but %d that is left out by its name (_ or . first, or that of a copy), "+
		"such as %q: a uri that names such a file reads it", a.Place+dir, what, all.Files, all.First)
}

// globbed are the paths that a pattern with * fits, without those that * alone would not have of a folder.
func (l *LeftOut) globbed(pattern string) ([]string, error) {
	some, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	asked := strings.Split(pattern, "/")
	return slices.DeleteFunc(some, func(path string) bool {
		for i, part := range strings.Split(path, "/") {
			if i < len(asked) && strings.Contains(asked[i], "*") && leavesOut(part) && !leavesOut(asked[i]) {
				l.note(filepath.Base(path))
				return true
			}
		}
		return false
	}), nil
}
