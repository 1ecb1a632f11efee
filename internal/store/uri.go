package store

import (
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/nearest"
)

// Location is a URI in its parts. Scheme is file, s3, gs, az, http or https; Place a bucket, or a host and its port;
// Prefix what follows, without the slash between. For files, Place is "" and Prefix an absolute path.
type Location struct{ Scheme, Place, Prefix string }

// String is the location as a URI.
func (l Location) String() string {
	if l.Scheme == schemeFile {
		return l.Scheme + ":" + l.Prefix
	}
	if l.Prefix == "" {
		return l.name()
	}
	return l.name() + "/" + l.Prefix
}

func (l Location) name() string {
	if l.Scheme == schemeFile {
		return schemeFile + ":"
	}
	return l.Scheme + "://" + l.Place
}

const (
	schemeFile  = "file"
	schemeS3    = "s3"
	schemeGS    = "gs"
	schemeAZ    = "az"
	schemeHTTP  = "http"
	schemeHTTPS = "https"
)

// Schemes lists what Parse takes.
var Schemes = []string{schemeFile, schemeS3, schemeGS, schemeAZ, schemeHTTPS, schemeHTTP}

// other names of what is known, and what is known but not built.
var (
	aliases  = map[string]string{"s3a": schemeS3, "s3n": schemeS3, "gcs": schemeGS, "azure": schemeAZ}
	unbuilt  = []string{"abfs", "abfss", "wasb", "wasbs", "hdfs", "ftp", "oss", "b2", "r2", "hf"}
	mountHow = map[string]string{
		"hdfs": "its NFS gateway or fuse-dfs", "ftp": "rclone mount", "b2": "rclone mount",
	}
)

// IsRemote reports whether a URI names, rightly or not, something that is not in the file system: it has :// and
// another scheme than file.
func IsRemote(uri string) bool {
	scheme, _, ok := strings.Cut(uri, "://")
	return ok && scheme != "" && !strings.Contains(scheme, "/") && scheme != schemeFile
}

// IsStore reports whether a scheme is that of a store.
func IsStore(scheme string) bool {
	return scheme != schemeFile && slices.Contains(Schemes, scheme)
}

// Parse takes a URI, or a plain path, which is made absolute. Nothing is percent-decoded, but in a web address.
// Errors are *errs.Error of reason INVALID_ARGUMENT, or UNSUPPORTED for a scheme that is not built.
func Parse(uri string) (Location, error) {
	bad := func(hint, what string) (Location, error) {
		return Location{}, errs.New(errs.Invalid, Redact(uri), hint, "%q %s", Redact(uri), what)
	}
	switch {
	case uri == "":
		return bad("write a path, or s3://BUCKET/PREFIX", "names nothing")
	case !utf8.ValidString(uri) && IsRemote(uri):
		return bad("write the key as the store has it", "is not UTF-8")
	case strings.IndexByte(uri, 0) >= 0:
		return bad("leave it out", "holds a NUL byte")
	case IsRemote(uri) && strings.ContainsFunc(uri, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return bad("leave it out", "holds a control character")
	}
	scheme, rest, ok := strings.Cut(uri, ":")
	if !IsRemote(uri) && (!ok || strings.ContainsAny(scheme, "/.~ ") || scheme == "") {
		return parsePath(uri, uri)
	}
	if scheme == schemeFile {
		if after, host := strings.CutPrefix(rest, "//"); host {
			if !strings.HasPrefix(after, "/") {
				return bad("write file:/DIR or a plain path", "names a host; files are those of this machine")
			}
			rest = after
		}
		return parsePath(uri, rest)
	}
	known := slices.Contains(Schemes, scheme)
	if !known {
		return Location{}, unknownScheme(uri, scheme)
	}
	rest, ok = strings.CutPrefix(rest, "//")
	if !ok {
		return bad("write "+scheme+"://…, with two slashes", "lacks the slashes behind its scheme")
	}
	if hasSecret(rest) {
		return bad("leave it out: larder finds credentials by itself (docs/stores.md), and a URI is shown and stored",
			"holds a user name or a secret")
	}
	if scheme == schemeHTTP || scheme == schemeHTTPS {
		return parseWeb(uri, scheme)
	}
	if signs(rest) {
		return bad("leave out what follows ?: larder finds credentials by itself (docs/stores.md), and a URI is shown and "+
			"stored", "holds a signature")
	}
	return parseBucket(uri, scheme, rest)
}

func unknownScheme(uri, scheme string) error {
	lower := strings.ToLower(scheme)
	if slices.Contains(Schemes, lower) || aliases[lower] != "" {
		if a := aliases[lower]; a != "" {
			lower = a
		}
		return errs.New(errs.Invalid, Redact(uri), "did you mean "+lower+"://?", "%q: unknown scheme %q", Redact(uri), scheme)
	}
	if slices.Contains(unbuilt, lower) {
		hint := "copy it to a place that larder reads: s3://, gs://, https:// or a folder"
		if how := mountHow[lower]; how != "" {
			hint = "mount it as a folder (" + how + "), or copy it"
		}
		if slices.Contains([]string{"abfs", "abfss", "wasb", "wasbs"}, lower) {
			hint = "write az://CONTAINER/PREFIX and set AZURE_STORAGE_ACCOUNT of the daemon, or stores.az.endpoint"
		}
		if lower == "r2" {
			hint = "write s3://BUCKET/PREFIX and set stores.s3.endpoint to the address of your R2 account"
		}
		return errs.New(errs.Unsupported, Redact(uri), hint, "%q: the scheme %s is not built", Redact(uri), lower)
	}
	hint := "known are a plain path and " + strings.Join(Schemes, ", ")
	if n := nearest.Word(lower, Schemes); n != "" {
		hint = "did you mean " + n + "://?"
	}
	return errs.New(errs.Invalid, Redact(uri), hint, "%q: unknown scheme %q", Redact(uri), scheme)
}

func parsePath(uri, path string) (Location, error) {
	if path == "" {
		return Location{}, errs.New(errs.Invalid, Redact(uri), "write file:/DIR or a plain path", "%q names no folder",
			Redact(uri))
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return Location{}, errs.New(errs.Invalid, Redact(uri), "write an absolute path", "%q: find the working directory",
			Redact(uri)).Because(err)
	}
	if strings.HasSuffix(path, "/") && abs != "/" {
		abs += "/"
	}
	return Location{Scheme: schemeFile, Prefix: abs}, nil
}

// bucketName is what S3 and GCS have allowed at any time.
var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]$`)

func parseBucket(uri, scheme, rest string) (Location, error) {
	bucket, prefix, _ := strings.Cut(rest, "/")
	hint := ""
	switch {
	case bucket == "":
		hint = "write " + scheme + "://BUCKET/PREFIX"
	case strings.Contains(bucket, ":"):
		hint = "write " + scheme + "://BUCKET/PREFIX; the server's address goes into stores." + scheme + ".endpoint"
	case !bucketName.MatchString(bucket) || strings.Contains(bucket, ".."):
		hint = "a bucket has 3 to 222 letters, digits, dots, hyphens"
	}
	if hint != "" {
		return Location{}, errs.New(errs.Invalid, Redact(uri), hint, "%q: %q is no name of a bucket", Redact(uri),
			Redact(bucket))
	}
	if prefix != "" {
		if err := checkKey(scheme+"://"+bucket, prefix); err != nil {
			return Location{}, err
		}
	}
	return Location{Scheme: scheme, Place: bucket, Prefix: prefix}, nil
}

func parseWeb(uri, scheme string) (Location, error) {
	bad := func(hint, what string) (Location, error) {
		return Location{}, errs.New(errs.Invalid, Redact(uri), hint, "%q %s", Redact(uri), what)
	}
	u, err := url.Parse(uri)
	if err != nil {
		return bad("write "+scheme+"://HOST/PATH; a space is %20", "is no web address")
	}
	host := u.Hostname()
	switch {
	case host == "" || strings.ContainsAny(host, " %"):
		return bad("write "+scheme+"://HOST/PATH", "names no host")
	case strings.ContainsAny(uri, "?#"):
		return bad("leave it out: what follows ? often is a signature, and a URI is shown and stored; "+
			"a ? that belongs to the name is %3F", "has a query or a fragment")
	}
	place := strings.ToLower(u.Host)
	if port := u.Port(); port != "" {
		place = net.JoinHostPort(strings.ToLower(host), port)
	}
	prefix := strings.TrimPrefix(u.Path, "/")
	if prefix != "" {
		if err := checkKey(scheme+"://"+place, prefix); err != nil {
			return Location{}, err
		}
	}
	return Location{Scheme: scheme, Place: place, Prefix: prefix}, nil
}

// checkKey refuses keys that servers and libraries read as another key than the one that was written.
func checkKey(place, key string) error {
	bad := ""
	switch {
	case key == "":
		bad = "is empty"
	case len(key) > 4096:
		bad = "is longer than 4,096 bytes"
	case !utf8.ValidString(key):
		bad = "is not UTF-8"
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }):
		bad = "holds a control character"
	case slices.ContainsFunc(strings.Split(key, "/"), func(s string) bool { return s == "." || s == ".." }):
		bad = "has a part . or .., which servers take for a folder"
	}
	if bad == "" {
		return nil
	}
	shown := strings.ToValidUTF8(key[:min(len(key), 200)], "\uFFFD")
	return errs.New(errs.Invalid, place, "rename the object", "the key %q of %s %s", shown, place, bad)
}

// hasSecret reports whether what follows :// has user information: an @ in the authority, or one behind a colon, where
// a secret with slashes in it would end the authority early.
func hasSecret(rest string) bool {
	authority, _, _ := strings.Cut(rest, "/")
	at, colon := strings.LastIndexByte(rest, '@'), strings.IndexByte(authority, ':')
	if strings.Contains(authority, "@") {
		return true
	}
	if at < 0 || colon < 0 {
		return false
	}
	port := authority[colon+1:]
	return port == "" || strings.Trim(port, "0123456789") != ""
}

// signed finds queries that sign a request: keys of buckets may have a ? of their own.
var signed = regexp.MustCompile(
	`(?i)[?&](x-(amz|goog)-[a-z-]+|awsaccesskeyid|googleaccessid|signature|sig|sv|se|token)=`)

// signs reports whether a query in what follows :// signs a request.
func signs(rest string) bool {
	i := strings.IndexByte(rest, '?')
	return i >= 0 && signed.MatchString(rest[i:])
}

// Redact makes a URI fit for messages: without user information, without a query of a web address or one that signs a
// request, of valid UTF-8, and not too long.
func Redact(uri string) string {
	const most = 1024
	shown := strings.ToValidUTF8(uri[:min(len(uri), most)], "\uFFFD")
	if len(uri) > most {
		shown += "…"
	}
	scheme, rest, ok := strings.Cut(shown, "://")
	if !ok {
		return shown
	}
	if hasSecret(rest) {
		at := strings.LastIndexByte(rest, '@')
		rest = "***" + rest[at:]
	}
	if strings.HasSuffix(scheme, schemeHTTP) || strings.HasSuffix(scheme, schemeHTTPS) {
		if i := strings.IndexAny(rest, "?#"); i >= 0 {
			rest = rest[:i] + "?***"
		}
	} else if signs(rest) {
		rest = rest[:strings.IndexByte(rest, '?')] + "?***"
	}
	return scheme + "://" + rest
}
