package packed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"larder/internal/errs"
)

// Unlike is the error of a path that is no dataset of its format. Hint says which one it seems to be; "" = none.
type Unlike struct {
	Hint string
	err  error
}

func (u *Unlike) Error() string { return u.err.Error() }
func (u *Unlike) Unwrap() error { return u.err }

// holdings are what a folder of a format with files of fixed names holds.
type holdings struct {
	what  string   // such as "CIFAR-10"
	names []string // of the files
	or    string   // where else they may be, for a message
}

// unlike is the error of a folder that lacks files that its format needs.
func (a *Address) unlike(dir string, n holdings) error {
	shown := a.Place + dir
	if a.At == nil {
		fi, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%q does not exist", dir)
		case err != nil:
			return err
		case !fi.IsDir():
			return &Unlike{didYouMean(SchemeOf(dir), a.Scheme, dir), fmt.Errorf("%q is a file, and %s is a folder with %s", dir,
				n.what, strings.Join(n.names, ", "))}
		}
	}
	there, err := a.contents(dir)
	if errs.Is(err, errs.Unsupported) { // a store without lists
		return fmt.Errorf("the folder %q of %s lacks %s", shown, n.what, n.names[0])
	}
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(n.names), func(f string) bool { return slices.Contains(there, f) })
	holds := "is empty"
	if len(there) > 0 {
		holds = "holds " + quoted(there)
	}
	if len(missing) < len(n.names) {
		return fmt.Errorf("the folder %q of %s lacks %s; it %s", shown, n.what, strings.Join(missing, ", "), holds)
	}
	return &Unlike{didYouMean(schemeOfFolder(there), a.Scheme, shown), fmt.Errorf(
		"the folder %q is no %s: it should hold %s%s, and %s", shown, n.what, strings.Join(n.names, ", "), n.or, holds)}
}

// didYouMean is the hint of a path that seems to be of another scheme than the one that was written.
func didYouMean(scheme, written, path string) string {
	if scheme == "" || scheme == written {
		return ""
	}
	return fmt.Sprintf("did you mean %s:%s?", scheme, path)
}

// contents are the sorted names in a folder, those of folders with a slash behind. Hidden ones are left out.
func (a *Address) contents(dir string) ([]string, error) {
	var names []string
	if a.At != nil {
		all, err := a.At.List(dir)
		if err != nil {
			return nil, err
		}
		names = slices.Clone(all)
	} else {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := e.Name()
			if a.isDir(filepath.Join(dir, name)) {
				name += "/"
			}
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, ".") }), nil
}

// folderMarks are names that only folders of one format hold. Folders end in a slash.
var folderMarks = []struct{ name, scheme string }{
	{"index.json", "mds"}, {"data.mdb", "lmdb"}, {"dataset_dict.json", "hf"}, {"state.json", "hf"},
	{"data_batch_1.bin", "cifar10"}, {"test_batch.bin", "cifar10"}, {"cifar-10-batches-bin/", "cifar10"},
	{"fine_label_names.txt", "cifar100"}, {"cifar-100-binary/", "cifar100"},
	{"train-images-idx3-ubyte", "idx"}, {"t10k-images-idx3-ubyte", "idx"},
}

// schemeOfFolder is the scheme of a folder, by what it holds: a name of one format alone, or the format of most of its
// files. Texts and .json lie beside any dataset, and count where there is nothing else. "" = nothing is known.
func schemeOfFolder(names []string) string {
	for _, m := range folderMarks {
		if slices.Contains(names, m.name) {
			return m.scheme
		}
	}
	counts, folders, beside := map[string]int{}, false, ""
	for _, n := range names {
		scheme := SchemeOf(n)
		switch {
		case strings.HasSuffix(n, "/"):
			folders = true
		case scheme == "text", strings.HasSuffix(n, ".json"):
			beside = scheme
		default:
			counts[scheme]++
		}
	}
	best, most := "", 0
	for i := range namedFiles {
		if s := namedFiles[i].scheme; counts[s] > most {
			best, most = s, counts[s]
		}
	}
	switch {
	case best != "":
		return best
	case folders:
		return "imagefolder"
	}
	return beside
}
