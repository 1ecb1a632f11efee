package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"larder/internal/errs"
)

// newTransport is HTTP/1.1: many connections carry more than one of HTTP/2, whose requests wait for each other.
// Proxies come from HTTPS_PROXY, HTTP_PROXY and NO_PROXY, authorities from the system and AWS_CA_BUNDLE.
func newTransport(s Settings) (*http.Transport, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := os.Getenv("AWS_CA_BUNDLE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, errs.New(errs.ConfigInvalid, "AWS_CA_BUNDLE", "name a PEM file that the daemon may read",
				"read the certificates of AWS_CA_BUNDLE").Because(err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errs.New(errs.ConfigInvalid, "AWS_CA_BUNDLE", "name a PEM file with certificates",
				"%s of AWS_CA_BUNDLE holds no certificate", file)
		}
		conf.RootCAs = pool
	}
	dial := &net.Dialer{Timeout: s.Timeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial.DialContext, TLSClientConfig: conf,
		TLSHandshakeTimeout: s.Timeout, MaxIdleConns: s.Parallel + 8, MaxIdleConnsPerHost: s.Parallel + 8,
		IdleConnTimeout: 90 * time.Second, ReadBufferSize: 64 << 10, DisableCompression: true,
	}, nil
}

// checkPlain refuses http:// to other machines, unless the settings accept that.
func checkPlain(name string, u *url.URL, s Settings) error {
	if u.Scheme != schemeHTTP || s.Insecure || loopback(u.Hostname()) {
		return nil
	}
	return errs.New(errs.Invalid, name, "use https://, or set stores."+strings.Split(name, ":")[0]+".insecure: true "+
		"in a network that you trust",
		"%s: %s://%s is not encrypted and is another machine: who is between can read and change every byte", name,
		u.Scheme, u.Host)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// plain takes from an error what may hold a secret: the URL that was asked for, which may be one that a server
// redirected to, with a signature.
func plain(err error) error {
	for {
		u, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = u.Err
	}
}

// network is the failure behind an error of the HTTP client.
func network(err error) error {
	err = plain(err)
	f := &failure{kind: passing, cause: err}
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &dns) && dns.IsNotFound:
		f.kind, f.hint = final, "check the name of the host; for S3 also stores.s3.endpoint and region"
	case errors.As(err, &cert):
		f.kind = final
		f.hint = "give the server a certificate that this machine trusts, or name its authority in AWS_CA_BUNDLE " +
			"(a PEM file)"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		f.kind, f.hint = final, "the server speaks http://: write that in the endpoint"
	}
	return f
}

// retryAfter is what a server says about when to come again; 0 = nothing that is understood.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, 3600)) * time.Second
}

// rangeHeader asks for n bytes from off on.
func rangeHeader(off, n int64) string { return fmt.Sprintf("bytes=%d-%d", off, off+n-1) }

// checkRange compares the answer to a range request with the request. total is the size of the whole object, -1 = it
// does not say. length is of the body, -1 = not known before it ends.
func checkRange(status int, h http.Header, off, n, length int64) (total int64, err error) {
	total = -1
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" && enc != "aws-chunked" {
		return 0, &failure{kind: final, what: "the server sends it with Content-Encoding " + strconv.Quote(enc),
			hint: "store it without: ranges of such an object are not ranges of its content"}
	}
	switch status {
	case http.StatusOK:
		total = length
		if off != 0 || length > n {
			return 0, &failure{kind: final, what: "the server answers a range with the whole object",
				hint: "use a server that knows ranges (RFC 9110, 14)"}
		}
	case http.StatusPartialContent:
		var first, last int64
		unit, rest, _ := strings.Cut(h.Get("Content-Range"), " ")
		span, size, _ := strings.Cut(rest, "/")
		a, b, ok := strings.Cut(span, "-")
		first, err1 := strconv.ParseInt(a, 10, 64)
		last, err2 := strconv.ParseInt(b, 10, 64)
		if unit != "bytes" || !ok || err1 != nil || err2 != nil {
			return 0, &failure{kind: passing, what: fmt.Sprintf("the answer is of the range %.60q", h.Get("Content-Range"))}
		}
		if size != "*" {
			if total, err = strconv.ParseInt(size, 10, 64); err != nil {
				return 0, &failure{kind: passing, what: fmt.Sprintf("the answer is of the range %.60q", h.Get("Content-Range"))}
			}
		}
		if total >= 0 && total < off+n { // it is shorter now: what was asked for is not there
			return total, nil
		}
		if first != off || last != off+n-1 {
			return 0, &failure{kind: passing, what: fmt.Sprintf("the answer is of bytes %d to %d, not %d to %d", first, last,
				off, off+n-1)}
		}
		if length >= 0 && length != n {
			return 0, &failure{kind: passing, what: fmt.Sprintf("the answer has %d bytes, not %d", length, n)}
		}
	}
	return total, nil
}

// statusKind is what an HTTP status means where nothing else is known.
func statusKind(status int) kind {
	switch {
	case status == http.StatusNotFound, status == http.StatusGone:
		return missing
	case status == http.StatusPreconditionFailed, status == http.StatusRequestedRangeNotSatisfiable:
		return altered
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return slowing
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusConflict:
		return passing
	}
	return final
}

// drainBody reads what is left of a short body, so that its connection serves again.
func drainBody(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10) // a failure costs the connection only
	body.Close()
}
