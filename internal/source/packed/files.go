package packed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// filesOf lists what an address names: files, brace ranges, and folders, which stand for their files with one of the
// suffixes. Every file has one of them, where there are any.
func filesOf(a Address, suffixes ...string) ([]string, error) {
	var files []string
	for part := range strings.SplitSeq(a.Path, "::") {
		switch _, err := os.Lstat(part); {
		case isDir(part):
			some, err := listedAny(part, suffixes)
			if err != nil {
				return nil, err
			}
			files = append(files, some...)
		case err == nil:
			files = append(files, part) // also one whose name has braces
		default:
			some, err := expand(part)
			if err != nil {
				return nil, err
			}
			files = append(files, some...)
		}
		if len(files) > maxFiles {
			return nil, fmt.Errorf("it names more than %d files", maxFiles)
		}
	}
	for _, f := range files {
		if !hasSuffix(f, suffixes) {
			return nil, fmt.Errorf("%q does not end in %s", f, strings.Join(suffixes, ", "))
		}
	}
	return files, unique(files)
}

func hasSuffix(path string, suffixes []string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(path, s) })
}

// listedAny are the files of a folder with one of some suffixes, sorted.
func listedAny(dir string, suffixes []string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") && hasSuffix(e.Name(), suffixes) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		return nil, fmt.Errorf("folder %q has no file that ends in %s", dir, strings.Join(suffixes, ", "))
	}
	return out, nil
}

// Root is the folder that all files of an address lie in, by the address alone: what comes before braces, and before a
// name that looks like that of a file.
func Root(a Address) string {
	isFile := func(p string) bool { return strings.HasSuffix(p, ".tar") }
	switch a.Scheme {
	case "wds", "mds", "cifar10", "cifar100", "idx":
	default:
		isFile = func(p string) bool { // its extension begins with a letter
			ext := strings.TrimPrefix(filepath.Ext(p), ".")
			return ext != "" && (ext[0]|0x20 >= 'a' && ext[0]|0x20 <= 'z')
		}
	}
	root := ""
	for i, p := range strings.Split(a.Path, "::") {
		if brace := strings.IndexByte(p, '{'); brace >= 0 {
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
