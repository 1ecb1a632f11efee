package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"larder/internal/errs"
)

const (
	awsHost    = "s3.amazonaws.com"
	googleHost = "storage.googleapis.com"
	// pageSize is what servers give at most.
	pageSize = 1000
)

// bucket is a bucket behind the S3 protocol. The client neither tries again nor looks for a region: remote and region
// do.
type bucket struct {
	name   string
	bucket string
	scheme string
	count  *counters
	core   *minio.Core
	creds  *credentials.Credentials // nil = anonymous
	idle   func()
}

// openBucket makes a client. It asks AWS for the region of the bucket where nothing says it.
func openBucket(ctx context.Context, l Location, s Settings, c *counters) (*bucket, error) {
	u, err := endpoint(l, s)
	if err != nil {
		return nil, err
	}
	if err := checkPlain(l.name(), u, s); err != nil {
		return nil, err
	}
	t, err := newTransport(s)
	if err != nil {
		return nil, err
	}
	b := &bucket{name: l.name(), bucket: l.Place, scheme: l.Scheme, count: c, idle: t.CloseIdleConnections}
	counted := meter{t, c}
	o := &minio.Options{Secure: u.Scheme == schemeHTTPS, Transport: counted, MaxRetries: 1,
		Region: region(ctx, l, s, u, counted), BucketLookup: minio.BucketLookupPath}
	if s.PathStyle == "false" || s.PathStyle == auto && isAWS(u.Host) && !strings.Contains(l.Place, ".") {
		o.BucketLookup = minio.BucketLookupDNS
	}
	if !s.Anonymous {
		chain := awsChain(s)
		if l.Scheme == schemeGS {
			chain = gsChain(s)
		}
		b.creds = credentials.New(chain)
		o.Creds = b.creds
	}
	if b.core, err = minio.NewCore(u.Host, o); err != nil {
		return nil, errs.New(errs.ConfigInvalid, l.name(), "write stores."+l.Scheme+".endpoint as https://HOST:PORT",
			"the endpoint %s cannot be used", Redact(u.String())).Because(err)
	}
	b.core.SetAppInfo("larder", "1")
	return b, nil
}

func isAWS(host string) bool {
	return host == awsHost || strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")
}

// endpoint is the server of a bucket: the configured one, else what the environment or the profile says, else the
// vendor's.
func endpoint(l Location, s Settings) (*url.URL, error) {
	text, from := s.Endpoint, "stores."+l.Scheme+".endpoint"
	if l.Scheme == schemeS3 {
		for _, v := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
			if text == "" && os.Getenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") != "true" {
				text, from = os.Getenv(v), v
			}
		}
		if text == "" {
			text, from = profileValue(s.Profile, "endpoint_url"), "endpoint_url of ~/.aws/config"
		}
	}
	switch {
	case text != "":
	case l.Scheme == schemeGS:
		text = "https://" + googleHost
	default:
		text = "https://" + awsHost
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errs.New(errs.ConfigInvalid, l.name(), "write it as https://HOST or http://HOST:PORT, without a path, "+
			"a bucket or credentials", "the endpoint %q (%s) is no address of a server", Redact(text), from)
	}
	return u, nil
}

// region is where the bucket is, as far as it is said. AWS tells the region of any bucket to anybody; other servers
// take what they are given.
func region(ctx context.Context, l Location, s Settings, u *url.URL, t http.RoundTripper) string {
	if s.Region != "" {
		return s.Region
	}
	if l.Scheme == schemeGS {
		return auto
	}
	if isAWS(u.Host) {
		if r := bucketRegion(ctx, u, l.Place, t, s.Timeout); r != "" {
			return r
		}
	}
	for _, r := range []string{
		os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), profileValue(s.Profile, "region"),
	} {
		if r != "" {
			return r
		}
	}
	return "us-east-1"
}

func bucketRegion(ctx context.Context, u *url.URL, bucket string, t http.RoundTripper, d time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u.Scheme+"://"+u.Host+"/"+bucket, nil)
	if err != nil {
		return ""
	}
	res, err := t.RoundTrip(req) // not a client, which would follow a redirection
	if err != nil {
		return ""
	}
	res.Body.Close()
	return res.Header.Get("X-Amz-Bucket-Region")
}

func (b *bucket) stat(ctx context.Context, key string) (Info, error) {
	o, err := b.core.StatObject(ctx, b.bucket, key, minio.StatObjectOptions{})
	if err == nil {
		return bucketInfo(key, o), nil
	}
	f := b.failure(err)
	var res minio.ErrorResponse
	if errors.As(err, &res) && slices.Contains([]int{http.StatusForbidden, http.StatusBadRequest, http.StatusNotFound},
		res.StatusCode) {
		// The answer to HEAD has no body, so no code: a read says why.
		_, body, err := b.get(ctx, Info{Key: key}, 0, 1)
		if err != nil {
			return Info{}, err
		}
		body.Close()
	}
	return Info{}, f
}

func bucketInfo(key string, o minio.ObjectInfo) Info {
	in := Info{Key: key, Size: o.Size, ETag: strings.Trim(o.ETag, `"`), ModTime: o.LastModified}
	in.Version = version(in.ETag, in.Size, in.ModTime)
	return in
}

func (b *bucket) get(ctx context.Context, in Info, off, n int64) (Info, io.ReadCloser, error) {
	var o minio.GetObjectOptions
	o.Set("Range", rangeHeader(off, n))
	o.Set("Accept-Encoding", "identity")
	if in.ETag != "" {
		if err := o.SetMatchETag(in.ETag); err != nil {
			return Info{}, nil, b.failure(err)
		}
	}
	body, got, header, err := b.core.GetObject(ctx, b.bucket, in.Key, o)
	if err != nil {
		return Info{}, nil, b.failure(err)
	}
	status := http.StatusOK
	if header.Get("Content-Range") != "" {
		status = http.StatusPartialContent
	}
	total, err := checkRange(status, header, off, n, got.Size)
	if err != nil {
		body.Close()
		return Info{}, nil, err
	}
	info := bucketInfo(in.Key, got)
	info.Size = total
	if info.ETag == "" { // then the version is of the size, which is the range's here
		info.Version = version("", max(total, in.Size), got.LastModified)
	}
	return info, body, nil
}

func (b *bucket) list(ctx context.Context, prefix, after string) (page []Info, more bool, err error) {
	page = make([]Info, 0, pageSize)
	for o := range b.core.ListObjectsIter(ctx, b.bucket, minio.ListObjectsOptions{
		Prefix: prefix, Recursive: true, StartAfter: after, MaxKeys: pageSize,
	}) {
		if o.Err != nil {
			return nil, false, b.failure(o.Err)
		}
		page = append(page, bucketInfo(o.Key, o))
		if len(page) == pageSize {
			return page, true, nil
		}
	}
	return page, false, ctx.Err()
}

func (b *bucket) folder(ctx context.Context, prefix string, alive func()) ([]Info, []string, error) {
	var objects []Info
	var folders []string
	for o := range b.core.ListObjectsIter(ctx, b.bucket, minio.ListObjectsOptions{Prefix: prefix, MaxKeys: pageSize}) {
		alive()
		switch {
		case o.Err != nil:
			return nil, nil, b.failure(o.Err)
		case strings.HasSuffix(o.Key, "/") && o.Key != prefix:
			folders = append(folders, o.Key)
		default:
			objects = append(objects, bucketInfo(o.Key, o))
		}
	}
	slices.Sort(folders) // a server may name one twice, where it is an object too
	return objects, slices.Compact(folders), ctx.Err()
}

func (b *bucket) renew() bool {
	if b.creds == nil {
		return false
	}
	b.creds.Expire()
	return true
}

func (b *bucket) close() { b.idle() }

// clockCode is the answer to a request that was signed at the wrong time.
const clockCode = "RequestTimeTooSkewed"

// codes are the answers of S3 that say more than their HTTP status.
var codes = map[string]failure{
	"NoSuchKey":    {kind: missing, what: "it does not exist", hint: "check the key"},
	"NoSuchBucket": {kind: final, what: "there is no such bucket", hint: "check its name, and the endpoint"},
	"AccessDenied": {kind: final, what: "access is denied", hint: "the credentials need s3:GetObject on the objects and " +
		"s3:ListBucket on the bucket; without the latter, objects that are missing are denied too"},
	"InvalidAccessKeyId": {kind: final, what: "the server does not know the access key",
		hint: "check the credentials, and that they belong to this endpoint"},
	"SignatureDoesNotMatch": {kind: final, what: "the signature is wrong",
		hint: "check the secret access key, and the region (stores.s3.region)"},
	clockCode: {kind: final, what: "the clock of this machine is wrong",
		hint: "set it, best by NTP: signatures hold the time"},
	"ExpiredToken": {kind: expired, what: "the credentials have expired",
		hint: "renew them, as with `aws sso login`; what the daemon has in its environment it has until its end: write " +
			"them to ~/.aws/credentials instead, which is read again"},
	"InvalidToken": {kind: expired, what: "the session token is not valid", hint: "renew the credentials"},
	"AuthorizationHeaderMalformed": {kind: final, what: "the request was signed for another region",
		hint: "set stores.s3.region"},
	"PermanentRedirect": {kind: final, what: "the bucket is in another region", hint: "set stores.s3.region"},
	"InvalidObjectState": {kind: final, what: "it is archived", hint: "restore it, or leave it out: archived objects " +
		"cannot be read"},
	"SlowDown":           {kind: slowing, what: "the server asks for fewer requests"},
	"SlowDownRead":       {kind: slowing, what: "the server asks for fewer requests"},
	"InternalError":      {kind: passing, what: "the server failed"},
	"RequestTimeout":     {kind: passing, what: "the server did not wait for the request"},
	"PreconditionFailed": {kind: altered, what: "it was written again"},
	"InvalidRange":       {kind: altered, what: "it is shorter now"},
}

// sameCodes are other names for them.
var sameCodes = map[string]string{
	"ExpiredTokenException": "ExpiredToken", "TokenRefreshRequired": "ExpiredToken", "ExpiredRequest": "ExpiredToken",
	"RequestExpired": "ExpiredToken", "AllAccessDisabled": "AccessDenied", "AccountProblem": "AccessDenied",
	"InvalidAccessKey": "InvalidAccessKeyId", "XMinioServerNotInitialized": "InternalError",
	"Throttling": "SlowDown", "ThrottlingException": "SlowDown", "RequestLimitExceeded": "SlowDown",
	"BandwidthLimitExceeded": "SlowDown", "RequestThrottled": "SlowDown", "ServiceUnavailable": "SlowDown",
}

// failure says what an error of the client means. Only words of the server's code and status reach the message: what
// else an answer holds may be anything.
func (b *bucket) failure(err error) error {
	if none, ok := errors.AsType[*errNoCredentials](err); ok {
		hint := "set AWS_PROFILE, or stores.s3.profile, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the daemon; " +
			"for a public bucket stores.s3.anonymous: true"
		if b.scheme == schemeGS {
			hint = "set GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY of the daemon to an HMAC key, or stores.gs.profile; for a " +
				"public bucket stores.gs.anonymous: true"
		}
		return &failure{kind: final, cause: none, hint: hint}
	}
	var res minio.ErrorResponse
	if !errors.As(err, &res) {
		return network(err)
	}
	code := res.Code
	if same := sameCodes[code]; same != "" {
		code = same
	}
	f, known := codes[code]
	if !known {
		f = failure{kind: statusKind(res.StatusCode)}
		f.what = fmt.Sprintf("the server answers %d", res.StatusCode)
		if text := http.StatusText(res.StatusCode); text != "" {
			f.what += " " + text
		}
	}
	if res.StatusCode == 0 { // these are the client's own words
		f.cause = errors.New(printable(res.Message))
		if f.what = "the answer is not one of S3"; !known {
			f.kind, f.what = final, "it cannot be asked for"
		}
	}
	if skew := time.Duration(b.count.skew.Load()).Abs().Round(time.Second); code == clockCode && skew > 0 {
		f.what += fmt.Sprintf(" by %v", skew)
	}
	if f.kind == final || f.kind == expired {
		f.what += " (" + codeWord(res.Code) + ")"
	}
	if b.scheme == schemeGS {
		f.hint = strings.ReplaceAll(f.hint, "stores.s3.", "stores.gs.")
	}
	return &f
}

// codeWord is a code of S3 as far as it is one word.
func codeWord(code string) string {
	if len(code) > 64 || strings.ContainsFunc(code, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}) {
		return "no code"
	}
	return code
}
