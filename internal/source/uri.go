package source

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/source/packed"
	"larder/internal/store"
)

const schemeImageFolder = "imagefolder"

// place is what a uri names.
type place struct {
	uri  string // canonical: what a Dataset reports and what two uris are compared by
	root string // the absolute folder that holds everything, or the root in a store

	format  packed.Format // nil: a folder of images
	address packed.Address
}

// parseURI reads a uri. A relative path is resolved against the daemon's working directory, so clients send absolute
// ones. Nothing is percent-decoded.
func parseURI(uri string) (place, error) {
	scheme, rest, _ := strings.Cut(uri, ":")
	if f, ok := packed.ByScheme(scheme); ok {
		a, err := parsePacked(scheme, rest)
		if e, ok := errors.AsType[*errs.Error](err); ok { // of the store's address
			return place{}, errs.New(e.Reason, redactPacked(uri), e.Hint, "dataset %q: %s", redactPacked(uri), e.Message).
				Because(e.Err)
		}
		if err != nil {
			return place{}, errs.New(errs.Invalid, redactPacked(uri), hintFor(scheme, rest), "dataset %q", redactPacked(uri)).
				Because(err)
		}
		return place{uri: a.String(), root: placedRoot(a), format: f, address: a}, nil
	}
	root, err := parseFolder(uri)
	return place{uri: schemeImageFolder + ":" + root, root: root}, err
}

// packedHint is what to write for each scheme of packed files.
var packedHint = map[string]string{
	"wds":      "write wds:DIR, wds:s3://BUCKET/DIR, wds:DIR/train-{000..009}.tar, or several joined by ::",
	"mds":      "write mds:DIR, the folder of index.json",
	"cifar10":  "write cifar10:DIR or cifar10:DIR?split=test",
	"cifar100": "write cifar100:DIR or cifar100:DIR?split=test",
	"parquet":  "write parquet:DIR, parquet:DIR/part-{000..009}.parquet, parquet:DIR/*.parquet, or several joined by ::",
	"hf":       "write hf:DIR, a folder of Dataset.save_to_disk (?split=train where it holds several), or .arrow files",
	"tfrecord": "write tfrecord:DIR, tfrecord:DIR/train-{00000..00009}-of-00010, or several joined by ::",
	"fasta":    "write fasta:FILE.fa, fasta:DIR, or several joined by ::; compress with bgzip, not gzip",
	"lmdb":     "write lmdb:DIR, the folder of data.mdb, or the file; ?value= says what its values are",
	"npy":      "write npy:FILE.npy, npy:DIR, or several joined by ::",
	"jsonl":    "write jsonl:FILE.jsonl, jsonl:DIR, or several joined by ::; .gz and .zst are unpacked",
	"csv":      "write csv:FILE.csv, csv:DIR, or several joined by ::; .gz and .zst are unpacked",
	"text":     "write text:FILE.txt, text:DIR, or several joined by ::; .gz and .zst are unpacked",
	"npz":      "write npz:FILE.npz, npz:DIR, or several joined by ::, with ?fields=a,b for some of the arrays",
	"tokens":   "write tokens:FILE.bin?seq_len=1024, tokens:DIR, or several joined by ::",
	"beton":    "write beton:FILE.beton, beton:DIR, or several joined by ::; ?fields=a,b chooses fields",
	"imagefiles": "write imagefiles:LIST.csv or imagefiles:LIST.jsonl, with the path of an image and its label in each " +
		"row; ?path= and ?label= name the columns",
	"idx": "write idx:DIR or idx:DIR?split=test, the folder of train-images-idx3-ubyte",
}

// hintFor is the hint of a scheme. What :: or ? cut in paths that could not be read may be meant as one path.
func hintFor(scheme, paths string) string {
	path, query, has := strings.Cut(paths, "?")
	first, _, _ := strings.Cut(query, "=")
	if strings.Contains(path, "::") || has && !packed.Takes(scheme, first) { // else arguments are meant
		return packedHint[scheme] + "; a path that holds :: or ? cannot be written here: make a symbolic link to it"
	}
	return packedHint[scheme]
}

// MayBeRecords reports whether samples of a dataset may be records, as far as its name or uri says.
func MayBeRecords(nameOrURI string) bool {
	scheme, _, ok := strings.Cut(nameOrURI, ":")
	if f, known := packed.ByScheme(scheme); ok && known {
		_, records := f.(packed.Records)
		return records
	}
	return !hasScheme(nameOrURI)
}

// parseFolder returns the absolute folder that an imagefolder uri names, or the root in a store.
func parseFolder(uri string) (root string, err error) {
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok || strings.ContainsAny(scheme, "/.~") {
		hint := folderHint + ". " + allSchemes()
		if uri != "" && strings.ContainsAny(uri, "/.") {
			hint = "did you mean " + likely(uri) + ":" + store.Redact(uri) + "? " + allSchemes()
		}
		return "", errs.New(errs.Invalid, store.Redact(uri), hint, "dataset %q has no scheme", store.Redact(uri))
	}
	if scheme != schemeImageFolder {
		return "", unknownScheme(uri, scheme, rest)
	}
	if store.IsRemote(rest) { // clients leave it as it is
		return storedRoot(uri, rest)
	}
	if after, ok := strings.CutPrefix(rest, "file:"); ok {
		return "", unknownScheme(uri, "file", after)
	}
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(after, "/") {
			return "", errs.New(errs.Invalid, printable(uri), "write imagefolder:DIR or imagefolder:///DIR",
				"dataset %q names a host, only local folders are known", uri)
		}
		rest = after
	}
	switch {
	case rest == "":
		return "", errs.New(errs.Invalid, printable(uri), "write imagefolder:DIR", "dataset %q names no folder", uri)
	case strings.IndexByte(rest, 0) >= 0:
		return "", errs.New(errs.Invalid, printable(uri), "leave it out", "dataset %q: a path cannot hold a NUL byte", uri)
	case rest == "~" || strings.HasPrefix(rest, "~/"):
		return "", errs.New(errs.Invalid, printable(uri),
			"write the full path; the shell expands ~ only at the start of a word", "dataset %q: ~ is not expanded here", uri)
	}
	root, aerr := filepath.Abs(rest)
	if aerr != nil {
		return "", errs.New(errs.Invalid, printable(uri), "write an absolute path",
			"dataset %q: find the working directory", uri).Because(aerr)
	}
	return root, nil
}

func unknownScheme(uri, scheme, rest string) error {
	if store.IsRemote(uri) && nearest.Word(scheme, []string{schemeImageFolder}) == "" {
		format, known := likely(uri), store.IsStore(scheme)
		_, err := storedRoot(uri, uri)
		unsupported := errs.Is(err, errs.Unsupported) // as a folder of images
		switch {
		case !known && unsupported, known && err != nil && (!unsupported || format == schemeImageFolder):
			return err
		case known:
			return sayFormat(uri, scheme, format)
		}
	}
	shown := store.Redact(uri)
	switch {
	case strings.EqualFold(scheme, "file"):
		return errs.New(errs.Invalid, shown, "did you mean "+likely(rest)+":"+printable(rest)+"?",
			"dataset %q: scheme %q does not say what kind of folder it is", shown, scheme)
	case nearest.Word(scheme, schemes()) != "":
		return errs.New(errs.Invalid, shown, "did you mean "+nearest.Word(scheme, schemes())+":"+store.Redact(rest)+"?",
			"dataset %q: unknown scheme %q", shown, scheme)
	case alsoCalled[strings.ToLower(scheme)] != "":
		return errs.New(errs.Invalid, shown, packedHint[alsoCalled[strings.ToLower(scheme)]],
			"dataset %q: unknown scheme %q", shown, scheme)
	case rest != "" && !strings.HasPrefix(rest, "//"):
		return errs.New(errs.Invalid, shown, "did you mean "+likely(rest)+":"+store.Redact(rest)+"? "+allSchemes(),
			"dataset %q: unknown scheme %q", shown, scheme)
	}
	return errs.New(errs.Invalid, shown, folderHint+". "+allSchemes(), "dataset %q: unknown scheme %q", shown, scheme)
}

// sayFormat is the error of a uri of a store that does not say what kind of dataset it holds.
func sayFormat(uri, scheme, format string) error {
	shown := store.Redact(uri)
	return errs.New(errs.Invalid, shown, "did you mean "+format+":"+shown+"? "+allSchemes(),
		"dataset %q: scheme %q says where it is, and not what kind of dataset", shown, scheme)
}

// likely is the scheme of a dataset whose uri does not say it, by the end of its path.
func likely(path string) string {
	path, _, _ = strings.Cut(path, "?")
	if scheme := packed.SchemeOf(path); scheme != "" {
		return scheme
	}
	return schemeImageFolder
}

// alsoCalled are other names of formats, as their writers use them, that are not near to the scheme.
var alsoCalled = map[string]string{
	"webdataset": "wds", "tar": "wds", "mosaic": "mds", "mosaicml": "mds", "streaming": "mds", "huggingface": "hf",
	"datasets": "hf", "arrow": "hf", "ffcv": "beton", "cifar": "cifar10", "mnist": "idx", "fashionmnist": "idx",
	"megatron": "tokens",
}

const folderHint = "write imagefolder:DIR for a folder that holds one folder of images per class"

func allSchemes() string { return "Schemes are " + strings.Join(schemes(), ", ") }

// schemes are all that uris may begin with.
func schemes() []string { return append([]string{schemeImageFolder}, packed.Schemes()...) }

// hasScheme reports whether a text begins as a uri of a dataset does.
func hasScheme(s string) bool {
	scheme, _, ok := strings.Cut(s, ":")
	return ok && slices.Contains(schemes(), scheme)
}

// checkName refuses names that would break tables, or that look like the uri of something else.
func checkName(name, uri string) error {
	bad := ""
	switch {
	case len(name) > 256:
		bad = "is longer than 256 bytes"
	case !utf8.ValidString(name):
		bad = "is not UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		bad = "holds a control character"
	case strings.TrimSpace(name) != name:
		bad = "begins or ends with a space"
	case hasScheme(name) && name != uri:
		bad = "looks like the uri of another dataset"
	}
	if bad != "" {
		return errs.New(errs.Invalid, printable(name), "choose a short name such as train", "dataset name %q %s", name, bad)
	}
	return nil
}

// printable makes a path or name fit for messages and protobuf strings, which must be UTF-8.
func printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
