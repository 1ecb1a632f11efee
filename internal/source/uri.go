package source

import (
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/source/packed"
)

const schemeImageFolder = "imagefolder"

// place is what a uri names.
type place struct {
	uri  string // canonical: what a Dataset reports and what two uris are compared by
	root string // the absolute folder that holds everything

	format  packed.Format // nil: a folder of images
	address packed.Address
}

// parseURI reads a uri. A relative path is resolved against the daemon's working directory, so clients send absolute
// ones. Nothing is percent-decoded.
func parseURI(uri string) (place, error) {
	scheme, rest, _ := strings.Cut(uri, ":")
	if f, ok := packed.ByScheme(scheme); ok {
		a, err := packed.ParseAddress(scheme, rest)
		if err != nil {
			return place{}, errs.New(errs.Invalid, printable(uri), packedHint[scheme], "dataset %q", uri).Because(err)
		}
		return place{uri: a.String(), root: packedRoot(a.Path), format: f, address: a}, nil
	}
	root, err := parseFolder(uri)
	return place{uri: schemeImageFolder + ":" + root, root: root}, err
}

// packedHint is what to write for each scheme of packed files.
var packedHint = map[string]string{
	"wds":      "write wds:DIR, wds:DIR/train-{000..009}.tar, or several joined by ::",
	"mds":      "write mds:DIR, the folder of index.json",
	"cifar10":  "write cifar10:DIR or cifar10:DIR?split=test",
	"cifar100": "write cifar100:DIR or cifar100:DIR?split=test",
	"idx":      "write idx:DIR or idx:DIR?split=test, the folder of train-images-idx3-ubyte",
}

// packedRoot is the folder that all files of an address lie in, by the address alone: what comes before braces, and
// before a name that ends as a file.
func packedRoot(path string) string {
	root := ""
	for i, p := range strings.Split(path, "::") {
		if brace := strings.IndexByte(p, '{'); brace >= 0 {
			p = filepath.Dir(p[:brace] + "x")
		} else if filepath.Ext(p) != "" {
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

// parseFolder returns the absolute folder that an imagefolder uri names.
func parseFolder(uri string) (root string, err error) {
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok || strings.ContainsAny(scheme, "/.~") {
		hint := "write imagefolder:DIR for a folder that holds one folder of images per class"
		if uri != "" && strings.ContainsAny(uri, "/.") {
			hint = "did you mean imagefolder:" + printable(uri) + "?"
		}
		return "", errs.New(errs.Invalid, printable(uri), hint, "dataset %q has no scheme", uri)
	}
	if scheme != schemeImageFolder {
		return "", unknownScheme(uri, scheme, rest)
	}
	// clients leave it as it is
	if inner, after, ok := strings.Cut(rest, "://"); ok && inner != "" && !strings.Contains(inner, "/") {
		return "", unknownScheme(uri, inner, "//"+after)
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

// objectStores are schemes of what lies behind a network interface of its own, and how it is mounted as a folder.
var objectStores = map[string]string{
	"s3": "mount-s3 or rclone mount", "s3a": "mount-s3 or rclone mount", "s3n": "mount-s3 or rclone mount",
	"r2": "rclone mount", "oss": "rclone mount", "b2": "rclone mount",
	"gs": "gcsfuse", "gcs": "gcsfuse", "az": "blobfuse2", "azure": "blobfuse2", "abfs": "blobfuse2", "abfss": "blobfuse2",
	"wasb": "blobfuse2", "wasbs": "blobfuse2",
	"hdfs": "its NFS gateway or fuse-dfs", "http": "", "https": "", "ftp": "", "hf": "",
}

func unknownScheme(uri, scheme, rest string) error {
	mount, remote := objectStores[strings.ToLower(scheme)]
	switch {
	case remote && mount != "":
		return errs.New(errs.Unsupported, printable(uri), "mount it as a folder ("+mount+") or copy it to a local disk, "+
			"then write imagefolder:DIR of that folder",
			"dataset %q: object stores are not built yet, only folders are read", uri)
	case remote:
		return errs.New(errs.Unsupported, printable(uri), "download it to a local disk, then write imagefolder:DIR of "+
			"that folder",
			"dataset %q: nothing is read over the network, only folders are", uri)
	case strings.EqualFold(scheme, "file"):
		return errs.New(errs.Invalid, printable(uri), "did you mean imagefolder:"+printable(rest)+"?",
			"dataset %q: scheme %q does not say what kind of folder it is", uri, scheme)
	case nearest.Word(scheme, schemes()) != "":
		return errs.New(errs.Invalid, printable(uri), "did you mean "+nearest.Word(scheme, schemes())+":"+printable(rest)+"?",
			"dataset %q: unknown scheme %q", uri, scheme)
	case strings.HasPrefix(rest, "/") && !strings.HasPrefix(rest, "//"):
		return errs.New(errs.Invalid, printable(uri), "did you mean imagefolder:"+printable(rest)+"? Schemes are "+
			strings.Join(schemes(), ", "), "dataset %q: unknown scheme %q", uri, scheme)
	}
	return errs.New(errs.Invalid, printable(uri), "write imagefolder:DIR for a folder that holds one folder of images "+
		"per class", "dataset %q: unknown scheme %q", uri, scheme)
}

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
