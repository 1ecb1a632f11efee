package packed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

// Listing is a Format whose files are lists of image files: Scan emits samples whose key is the path of an image, as
// ImagePath gives it, and whose Off is the line of the list from 0.
type Listing interface {
	Format
	// Columns names the columns of the lists besides the path, each of which gives samples a property.
	Columns(ctx context.Context, a Address, f File) ([]string, error)
	// PathColumn is the column of the path.
	PathColumn(ctx context.Context, a Address, f File) (string, error)
	// Table is the scheme that reads a list as a table of records.
	Table(path string) string
}

// imageFiles are lists of images, as CSV with a header or as JSON lines: a path and a label in each row. Paths are
// relative to the folder of the list.
type imageFiles struct{ identity }

func (imageFiles) Scheme() string { return "imagefiles" }

var (
	csvLists  = withPackings(".csv", ".tsv")
	jsonLists = withPackings(".jsonl", ".ndjson")
	// pathNames are the columns that are taken for the path, the best first. metadata.csv of Hugging Face has file_name.
	pathNames = []string{"path", "file_name", "filename", "file", "image", "image_path", "filepath", "img_path"}
)

func (imageFiles) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("imagefiles")...)
	return files, nil, err
}

// Table implements Listing.
func (imageFiles) Table(path string) string {
	if hasSuffix(path, jsonLists) {
		return "jsonl"
	}
	return "csv"
}

// ImagePath is the path of an image that a list names, below the folder root; list is the folder of the list below it
// ("." = the root itself).
func ImagePath(root, list, named string) (string, error) {
	switch {
	case named == "":
		return "", errors.New("the path is empty")
	case strings.IndexByte(named, 0) >= 0:
		return "", fmt.Errorf("the path %.80q has a NUL byte", named)
	case strings.Contains(named, "://"):
		return "", fmt.Errorf("the path %.80q names another place; larder reads images beside their list only", named)
	}
	below := path.Join(list, named)
	if strings.HasPrefix(named, "/") {
		below = strings.TrimPrefix(path.Clean(named), strings.TrimSuffix(root, "/")+"/")
	}
	if below == "." || below == ".." || strings.HasPrefix(below, "/") || strings.HasPrefix(below, "../") {
		return "", fmt.Errorf("the path %.80q leads out of %q; put the list into a folder that holds all of its images, or "+
			"a symbolic link to them beside the list", named, root)
	}
	return below, nil
}

// columnsOf finds the columns of the path and of the label among names; label is "" where there is none.
func columnsOf(a Address, names []string) (pathName, label string, err error) {
	find := func(key string, usual []string) (string, error) {
		if want := a.Args[key]; want != "" {
			if !slices.Contains(names, want) {
				return "", fmt.Errorf("?%s= names %q, and its columns are %s", key, want, strings.Join(names, ", "))
			}
			return want, nil
		}
		for _, n := range usual {
			if slices.Contains(names, n) {
				return n, nil
			}
		}
		return "", nil
	}
	if pathName, err = find("path", pathNames); err != nil {
		return "", "", err
	}
	if pathName == "" {
		return "", "", fmt.Errorf("none of its columns %s is called %s; name the column with ?path=",
			strings.Join(names, ", "), strings.Join(pathNames, ", "))
	}
	label, err = find("label", labelNames)
	return pathName, label, err
}

func (imageFiles) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	if hasSuffix(f.Path, jsonLists) {
		return Found{}, scanJSONList(ctx, a, f, emit)
	}
	return Found{}, scanCSVList(ctx, a, f, emit)
}

func scanCSVList(ctx context.Context, a Address, f File, emit func(Sample) error) error {
	t := &table{comma: delimiter(a, f.Path)}
	at, label := -1, -1
	return t.forRows(ctx, lineFile{path: f.Path, r: f, size: f.Size, quoted: true}, func(x line) error {
		if at < 0 {
			p, l, err := columnsOf(a, t.names)
			if err != nil {
				return err
			}
			at, label = slices.Index(t.names, p), slices.Index(t.names, l)
		}
		s := Sample{Key: string(t.row[at]), Off: x.n, Size: 1, Label: -1}
		if label >= 0 {
			if err := s.labelled(t.row[label]); err != nil {
				return err
			}
		}
		return emit(s)
	})
}

func scanJSONList(ctx context.Context, a Address, f File, emit func(Sample) error) error {
	pathName, label := "", ""
	return forLines(ctx, f.Path, f, f.Size, false, func(x line) error {
		if len(bytes.TrimSpace(x.text)) == 0 {
			return nil
		}
		s, err := listedJSON(a, x, &pathName, &label)
		if err == nil {
			err = emit(s)
		}
		if err != nil {
			return fmt.Errorf("line %d, at byte %d: %w", x.n+1, x.off, err)
		}
		return nil
	})
}

// listedJSON is what a line lists. The first one says which keys the path and the label have.
func listedJSON(a Address, x line, pathName, label *string) (Sample, error) {
	s := Sample{Off: x.n, Size: 1, Label: -1}
	if err := validText(x.text); err != nil {
		return s, err
	}
	if *pathName == "" {
		names, err := keysOf(x.text)
		if err != nil {
			return s, err
		}
		if *pathName, *label, err = columnsOf(a, names); err != nil {
			return s, err
		}
	}
	found, labels := 0, 0
	err := splitObject(x.text, func(key string, raw []byte) (err error) {
		switch key {
		case *pathName:
			found++
			if raw[0] != '"' {
				return fmt.Errorf("%.80q is %.40s, and should be the path of an image", key, raw)
			}
			s.Key, err = stringOf(raw)
		case *label:
			if labels++; labels > 1 {
				return fmt.Errorf("it has the key %q twice", key)
			}
			err = s.labelledJSON(key, raw)
		}
		return err
	})
	if err == nil && found != 1 {
		err = fmt.Errorf("it has %d keys %.80q, the path of an image", found, *pathName)
	}
	return s, err
}

// labelledJSON takes a label out of JSON.
func (s *Sample) labelledJSON(key string, raw []byte) error {
	switch raw[0] {
	case 'n': // null
		return nil
	case '"':
		text, err := stringOf(raw)
		if err != nil {
			return err
		}
		return s.labelled([]byte(text))
	case '{', '[', 't', 'f':
		return fmt.Errorf("%.80q is %.40s, and should be a number or a word", key, raw)
	}
	if x, err := floatOf(string(raw)); err != nil || x != math.Trunc(x) {
		return fmt.Errorf("%.80q is %.40s, and should be a whole number or a word", key, raw)
	} else if bytes.ContainsAny(raw, ".eE") {
		return s.labelledFloat(x)
	}
	return s.labelled(raw)
}

func keysOf(b []byte) (names []string, err error) {
	err = splitObject(b, func(key string, _ []byte) error {
		names = append(names, key)
		return nil
	})
	return names, err
}

// names are those of the columns of a list, from its first row.
func (imageFiles) names(ctx context.Context, a Address, f File) (names []string, err error) {
	if hasSuffix(f.Path, jsonLists) {
		err = forLines(ctx, f.Path, f, f.Size, false, func(x line) error {
			if len(bytes.TrimSpace(x.text)) == 0 {
				return nil
			}
			if names, err = keysOf(x.text); err != nil {
				return err
			}
			return errEnough
		})
	} else {
		t := &table{comma: delimiter(a, f.Path)}
		err = forLines(ctx, f.Path, f, f.Size, true, func(x line) error {
			if _, err := t.take(x); err != nil || t.names == nil {
				return err
			}
			return errEnough
		})
		names = t.names
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return names, err
}

// Columns implements Listing.
func (l imageFiles) Columns(ctx context.Context, a Address, f File) ([]string, error) {
	names, err := l.names(ctx, a, f)
	if err != nil {
		return nil, err
	}
	p, _, err := columnsOf(a, names)
	return slices.DeleteFunc(names, func(n string) bool { return n == p }), err
}

// PathColumn implements Listing.
func (l imageFiles) PathColumn(ctx context.Context, a Address, f File) (string, error) {
	names, err := l.names(ctx, a, f)
	if err != nil {
		return "", err
	}
	p, _, err := columnsOf(a, names)
	return p, err
}
