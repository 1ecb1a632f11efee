package packed

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Place is where the files of an address lie, when that is not the file system. Paths are absolute in it, and clean;
// errors that errors.Is finds fs.ErrNotExist in say that nothing is there.
type Place interface {
	// Size is the length of a file, bytes.
	Size(path string) (int64, error)
	// List names what is directly in a folder: files as they are, folders with a slash behind. Of a place that has no
	// lists, and of a folder that is not there, it is empty.
	List(dir string) ([]string, error)
	// Read reads a whole file of at most so many bytes.
	Read(path string, most int64) ([]byte, error)
}

// places are the schemes whose formats look at files through their address alone, so that stores can hold them.
var places = []string{"wds", "mds", "cifar10", "cifar100", "idx", "npy", "npz", "tokens", "jsonl", "csv", "text",
	"tfrecord", "lmdb", "hf", "parquet", "fasta", "imagefiles", "beton"}

// InPlaces reports whether datasets of a scheme may lie in a store.
func InPlaces(scheme string) bool { return slices.Contains(places, scheme) }

// joined is the paths of an address as its uri has them.
func (a *Address) joined() string {
	if a.Place == "" {
		return a.Path
	}
	parts := strings.Split(a.Path, "::")
	for i, p := range parts {
		if strings.HasPrefix(a.Place, "http") { // its paths are decoded
			p = webPath.Replace(p)
		}
		parts[i] = a.Place + p
	}
	return strings.Join(parts, "::")
}

// webPath encodes what a web address would lose.
var webPath = strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23")

// isDir reports whether a path is a folder; what cannot be looked at is none.
func (a *Address) isDir(path string) bool {
	is, err := a.folder(path)
	return is && err == nil
}

// folder reports whether a path is a folder; an error is one of a store.
func (a *Address) folder(path string) (bool, error) {
	if a.At != nil {
		names, err := a.At.List(path)
		return len(names) > 0, err
	}
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir(), nil
}

// exists reports whether there is a file; an error other than fs.ErrNotExist of a store is an error here, too.
func (a *Address) exists(path string) (bool, error) {
	if a.At == nil {
		_, err := os.Stat(path)
		return err == nil, nil
	}
	_, err := a.At.Size(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (a *Address) names(dir string) ([]string, error) {
	if a.At != nil {
		return a.At.List(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.Name()
	}
	return out, nil
}

// readSmall reads a regular file of at most so many bytes. Opening what is no file does not hang.
func (a *Address) readSmall(path string, most int64) ([]byte, error) {
	b, err := readWhole(a, path, most)
	if err == nil {
		if err = StandsIn(b); err != nil {
			return nil, fmt.Errorf("%q: %w", path, err)
		}
	}
	return b, err
}

func readWhole(a *Address, path string, most int64) ([]byte, error) {
	if a.At != nil {
		return a.At.Read(path, most)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > most {
		return nil, fmt.Errorf("%q is no regular file of at most %d bytes", path, most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
