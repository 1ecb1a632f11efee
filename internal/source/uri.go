package source

import (
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/store"
)

const schemeImageFolder = "imagefolder"

// parseURI returns the absolute root folder a uri names, or the root in a store. A relative folder is resolved against
// the daemon's working directory, so clients send absolute ones. Nothing is percent-decoded.
func parseURI(uri string) (root string, err error) {
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok || strings.ContainsAny(scheme, "/.~") {
		hint := "write imagefolder:DIR for a folder that holds one folder of images per class"
		if uri != "" && strings.ContainsAny(uri, "/.") {
			hint = "did you mean imagefolder:" + store.Redact(uri) + "?"
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
		switch _, err := storedRoot(uri, uri); {
		case errs.Is(err, errs.Unsupported):
			return err
		case err == nil:
			return errs.New(errs.Invalid, store.Redact(uri), "did you mean imagefolder:"+store.Redact(uri)+"?",
				"dataset %q: scheme %q says where it is, and not what kind of dataset", store.Redact(uri), scheme)
		}
	}
	shown := store.Redact(uri)
	switch {
	case strings.EqualFold(scheme, "file"):
		return errs.New(errs.Invalid, shown, "did you mean imagefolder:"+printable(rest)+"?",
			"dataset %q: scheme %q does not say what kind of folder it is", shown, scheme)
	case nearest.Word(scheme, []string{schemeImageFolder}) != "" || strings.HasPrefix(rest, "/") &&
		!strings.HasPrefix(rest, "//"):
		return errs.New(errs.Invalid, shown, "did you mean imagefolder:"+store.Redact(rest)+"? No other scheme is known",
			"dataset %q: unknown scheme %q", shown, scheme)
	}
	return errs.New(errs.Invalid, shown, "write imagefolder:DIR for a folder that holds one folder of images per class",
		"dataset %q: unknown scheme %q", shown, scheme)
}

// canonicalURI is what a Dataset reports and what two uris are compared by.
func canonicalURI(root string) string { return schemeImageFolder + ":" + root }

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
	case strings.HasPrefix(name, schemeImageFolder+":") && name != uri:
		bad = "looks like the uri of another dataset"
	}
	if bad != "" {
		return errs.New(errs.Invalid, printable(name), "choose a short name such as train", "dataset name %q %s", name, bad)
	}
	return nil
}

// printable makes a path or name fit for messages and protobuf strings, which must be UTF-8.
func printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
