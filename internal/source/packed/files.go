package packed

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"larder/internal/errs"
)

// filesOf lists what an address names: files, brace ranges, and folders, which stand for their files with one of the
// suffixes. Every file has one of them, where there are any.
func filesOf(a Address, suffixes ...string) ([]string, error) {
	var files []string
	for part := range strings.SplitSeq(a.Path, "::") {
		some := []string{part} // a file, also one whose name has braces
		if is, err := a.exists(part); err != nil {
			return nil, err
		} else if !is || a.isDir(part) {
			if some, err = a.folderOrBraces(part, suffixes); err != nil {
				return nil, err
			}
		}
		files = append(files, some...)
		if len(files) > maxFiles {
			return nil, fmt.Errorf("it names more than %d files", maxFiles)
		}
	}
	for _, f := range files {
		if !hasSuffix(f, suffixes) {
			return nil, fmt.Errorf("%q %s end in %s", f, a.does(f), strings.Join(suffixes, ", "))
		}
	}
	return files, unique(files)
}

// does is the verb of a message that a file does not end as it should.
func (a *Address) does(f string) string {
	if is, err := a.exists(f); err == nil && !is {
		return "does not exist, and does not"
	}
	return "does not"
}

func hasSuffix(path string, suffixes []string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(path, s) })
}

func (a *Address) folderOrBraces(part string, suffixes []string) ([]string, error) {
	is, err := a.folder(part)
	switch {
	case err != nil && !errs.Is(err, errs.Unsupported) && !strings.Contains(part, "{"): // else there may be no lists
		return nil, err
	case is:
		return a.listedAny(part, suffixes)
	}
	return expand(part)
}

// listedAny are the files of a folder with one of some suffixes, sorted.
func (a *Address) listedAny(dir string, suffixes []string) ([]string, error) {
	names, err := a.names(dir)
	if err != nil {
		return nil, err
	}
	fits := func(name string) bool { return hasSuffix(name, suffixes) }
	out := a.Left.choose(dir, names, fits)
	if len(out) == 0 {
		return nil, hasNo(a, dir, "file that ends in "+strings.Join(suffixes, ", "), names, fits)
	}
	return out, nil
}

// Root is the folder that all files of an address lie in, by the address alone: what comes before braces, and before a
// name that looks like that of a file.
func Root(a Address) string {
	isFile := isTar
	switch a.Scheme {
	case "wds", "mds", "cifar10", "cifar100", "idx":
	default:
		isFile = func(p string) bool { // its extension begins with a letter
			ext := strings.TrimPrefix(filepath.Ext(p), ".")
			return ext != "" && (ext[0]|0x20 >= 'a' && ext[0]|0x20 <= 'z') ||
				a.Scheme == "tfrecord" && tfShards.MatchString(filepath.Base(p))
		}
	}
	root := ""
	for i, p := range strings.Split(a.Path, "::") {
		patterns := "{"
		if a.Scheme == "parquet" {
			patterns = "{*"
		}
		if brace := strings.IndexAny(p, patterns); brace >= 0 {
			p = filepath.Dir(p[:brace] + "x")
		} else if isFile(p) {
			p = filepath.Dir(p)
		}
		if i == 0 {
			root = p
		}
		for root != p && root != "/" && !strings.HasPrefix(p, root+"/") {
			root = filepath.Dir(root)
		}
	}
	return root
}

// isMissing reports whether an error says that there is no such file.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
