package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"larder/internal/errs"
)

// maxRedirects is how many a request follows; the hub of datasets takes two.
const maxRedirects = 5

// web is an HTTP server. It cannot be listed.
type web struct {
	name   string
	base   url.URL // scheme and host
	client *http.Client
	idle   func() // ends idle connections
}

func openWeb(l Location, s Settings, c *counters) (*web, error) {
	base := url.URL{Scheme: l.Scheme, Host: l.Place}
	if err := checkPlain(l.name(), &base, s); err != nil {
		return nil, err
	}
	t, err := newTransport(s)
	if err != nil {
		return nil, err
	}
	w := &web{name: l.name(), base: base, idle: t.CloseIdleConnections}
	w.client = &http.Client{Transport: meter{t, c}, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		switch {
		case len(via) > maxRedirects:
			return &failure{kind: final, what: fmt.Sprintf("more than %d redirections", maxRedirects),
				hint: "write the address that they lead to"}
		case req.URL.Scheme != schemeHTTPS && checkPlain(w.name, req.URL, s) != nil:
			return &failure{kind: final, what: "it redirects to an address that is not encrypted",
				hint: "use a server that stays with https"}
		}
		return nil
	}}
	return w, nil
}

func (w *web) do(ctx context.Context, method, key string, header map[string]string) (*http.Response, error) {
	u := w.base
	u.Path = "/" + key
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, &failure{kind: final, what: "it is no web address", hint: "write " + w.name + "/PATH"}
	}
	req.Header.Set("Accept-Encoding", "identity")
	for k, v := range header { // order-free: distinct headers
		req.Header.Set(k, v)
	}
	res, err := w.client.Do(req)
	if err != nil {
		if f, ok := errors.AsType[*failure](err); ok {
			return nil, f
		}
		return nil, network(err)
	}
	return res, nil
}

// info is what the headers of an answer say; size is of the whole object.
func (w *web) info(key string, h http.Header, size int64) Info {
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	if err != nil {
		modified = time.Time{}
	}
	in := Info{Key: key, Size: size, ModTime: modified}
	etag := h.Get("ETag")
	switch {
	case strings.HasPrefix(etag, "W/"): // alike is not equal: the time counts too
		in.Version = version(etag+" "+h.Get("Last-Modified"), size, modified)
	case etag != "":
		in.ETag = strings.Trim(etag, `"`)
		in.Version = version(in.ETag, size, modified)
	case !modified.IsZero():
		in.Version = version("", size, modified)
	default: // nothing to tell versions by but the size; SizeAlone
		in.Version = version("", size, time.Unix(0, 0))
	}
	return in
}

func (w *web) refuse(res *http.Response) error {
	defer drainBody(res.Body)
	f := &failure{kind: statusKind(res.StatusCode), after: retryAfter(res.Header)}
	f.what = fmt.Sprintf("the server answers %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		f.hint = "larder sends no credentials to web servers: make it public, or copy it to a bucket or a disk"
	case http.StatusNotFound, http.StatusGone:
		f.hint = "check the address"
	}
	return f
}

func (w *web) stat(ctx context.Context, key string) (Info, error) {
	res, err := w.do(ctx, http.MethodHead, key, nil)
	if err != nil {
		return Info{}, err
	}
	drainBody(res.Body)
	switch res.StatusCode {
	case http.StatusOK:
		if res.ContentLength >= 0 {
			return w.info(key, res.Header, res.ContentLength), nil
		}
	case http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusForbidden: // some sign for GET alone
	default:
		return Info{}, w.refuse(res)
	}
	res, err = w.do(ctx, http.MethodGet, key, map[string]string{"Range": rangeHeader(0, 1)})
	if err != nil {
		return Info{}, err
	}
	if res.StatusCode == http.StatusRequestedRangeNotSatisfiable && res.Header.Get("Content-Range") == "bytes */0" {
		drainBody(res.Body)
		return w.info(key, res.Header, 0), nil
	}
	if res.StatusCode != http.StatusPartialContent {
		if res.StatusCode != http.StatusOK {
			return Info{}, w.refuse(res)
		}
		res.Body.Close()
		return Info{}, &failure{kind: final, what: "the server does not say how long it is",
			hint: "use a server that answers HEAD, or ranges"}
	}
	drainBody(res.Body)
	total, err := checkRange(res.StatusCode, res.Header, 0, 1, res.ContentLength)
	if err != nil {
		return Info{}, err
	}
	return w.info(key, res.Header, total), nil
}

func (w *web) get(ctx context.Context, in Info, off, n int64) (Info, io.ReadCloser, error) {
	header := map[string]string{"Range": rangeHeader(off, n)}
	if in.ETag != "" {
		header["If-Match"] = `"` + in.ETag + `"`
	}
	res, err := w.do(ctx, http.MethodGet, in.Key, header)
	if err != nil {
		return Info{}, nil, err
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusPartialContent {
		return Info{}, nil, w.refuse(res)
	}
	total, err := checkRange(res.StatusCode, res.Header, off, n, res.ContentLength)
	if err != nil {
		res.Body.Close()
		return Info{}, nil, err
	}
	size := total
	if size < 0 {
		size = in.Size // for the version
	}
	got := w.info(in.Key, res.Header, size)
	got.Size = total
	return got, res.Body, nil
}

func (w *web) list(context.Context, string, string) ([]Info, bool, error) {
	return nil, false, w.noList()
}

func (w *web) folder(context.Context, string, func()) ([]Info, []string, error) {
	return nil, nil, w.noList()
}

func (w *web) noList() error {
	return errs.New(errs.Unsupported, w.name, "name the objects, or use s3:// or a folder",
		"list %s: a web server has no list of its objects", w.name)
}

func (w *web) renew() bool { return false }

func (w *web) close() { w.idle() }
