package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// azure is a container of Azure Blob Storage. The client neither tries again nor follows redirections.
type azure struct {
	name   string
	client *container.Client
	idle   func()

	mu      sync.Mutex // guards what follows
	markers map[string]string
}

func openAzure(l Location, s Settings, c *counters) (*azure, error) {
	t, err := newTransport(s)
	if err != nil {
		return nil, err
	}
	o := &container.ClientOptions{ClientOptions: policy.ClientOptions{
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{ApplicationID: "larder"},
		Transport: &http.Client{Transport: meter{t, c}, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}}
	client, err := azureClient(l, s, o)
	if err != nil {
		return nil, err
	}
	return &azure{name: l.name(), client: client, idle: t.CloseIdleConnections, markers: map[string]string{}}, nil
}

func (a *azure) stat(ctx context.Context, key string) (Info, error) {
	p, err := a.client.NewBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return Info{}, azureFailure(err)
	}
	return azureInfo(key, p.ETag, p.LastModified, p.ContentLength), nil
}

func azureInfo(key string, etag *azcore.ETag, modified *time.Time, size *int64) Info {
	in := Info{Key: key}
	if etag != nil {
		in.ETag = strings.Trim(string(*etag), `"`)
	}
	if modified != nil {
		in.ModTime = *modified
	}
	if size != nil {
		in.Size = *size
	}
	in.Version = version(in.ETag, in.Size, in.ModTime)
	return in
}

func (a *azure) get(ctx context.Context, in Info, off, n int64) (Info, io.ReadCloser, error) {
	o := &blob.DownloadStreamOptions{Range: blob.HTTPRange{Offset: off, Count: n}}
	if in.ETag != "" {
		etag := azcore.ETag(`"` + in.ETag + `"`)
		o.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &etag}}
	}
	res, err := a.client.NewBlobClient(in.Key).DownloadStream(ctx, o)
	if err != nil {
		return Info{}, nil, azureFailure(err)
	}
	status, header, length := http.StatusOK, http.Header{}, int64(-1)
	if res.ContentRange != nil {
		status = http.StatusPartialContent
		header.Set("Content-Range", *res.ContentRange)
	}
	if res.ContentEncoding != nil {
		header.Set("Content-Encoding", *res.ContentEncoding)
	}
	if res.ContentLength != nil {
		length = *res.ContentLength
	}
	total, err := checkRange(status, header, off, n, length)
	if err != nil {
		res.Body.Close()
		return Info{}, nil, err
	}
	size := max(total, in.Size)
	got := azureInfo(in.Key, res.ETag, res.LastModified, &size)
	got.Size = total
	return got, res.Body, nil
}

// isFolder reports an entry that an account with a hierarchical namespace lists for a folder.
func isFolder(b *container.BlobItem) bool {
	return b.Properties != nil && b.Properties.ResourceType != nil && *b.Properties.ResourceType == "directory"
}

func itemInfo(b *container.BlobItem) Info {
	if b.Properties == nil {
		return Info{Key: *b.Name}
	}
	return azureInfo(*b.Name, b.Properties.ETag, b.Properties.LastModified, b.Properties.ContentLength)
}

// list implements backend. Azure goes on from a marker of its own, which is remembered by the last key of its page;
// where it is not, the list begins again and leaves out what was there.
func (a *azure) list(ctx context.Context, prefix, after string) (page []Info, more bool, err error) {
	o := &container.ListBlobsFlatOptions{Prefix: &prefix, Marker: a.marker(prefix, after)}
	for pager := a.client.NewListBlobsFlatPager(o); pager.More(); {
		res, err := pager.NextPage(ctx)
		if err != nil {
			return nil, false, azureFailure(err)
		}
		if res.Segment != nil {
			for _, b := range res.Segment.BlobItems {
				if b.Name != nil && !isFolder(b) && *b.Name > after {
					page = append(page, itemInfo(b))
				}
			}
		}
		if res.NextMarker == nil || *res.NextMarker == "" {
			break
		}
		if len(page) > 0 {
			a.remember(prefix, after, page[len(page)-1].Key, *res.NextMarker)
			return page, true, nil
		}
	}
	a.remember(prefix, after, "", "")
	return page, false, ctx.Err()
}

func (a *azure) marker(prefix, after string) *string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m, ok := a.markers[prefix+"\x00"+after]; ok {
		return &m
	}
	return nil
}

// remember notes where a list goes on after its last key, in place of where it did after an earlier one.
func (a *azure) remember(prefix, after, last, marker string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.markers, prefix+"\x00"+after)
	if marker != "" {
		a.markers[prefix+"\x00"+last] = marker
	}
}

func (a *azure) folder(ctx context.Context, prefix string, alive func()) ([]Info, []string, error) {
	var objects []Info
	var folders []string
	pager := a.client.NewListBlobsHierarchyPager("/", &container.ListBlobsHierarchyOptions{Prefix: &prefix})
	for pager.More() {
		res, err := pager.NextPage(ctx)
		if err != nil {
			return nil, nil, azureFailure(err)
		}
		alive()
		if res.Segment == nil {
			continue
		}
		for _, b := range res.Segment.BlobItems {
			if b.Name != nil && !isFolder(b) {
				objects = append(objects, itemInfo(b))
			}
		}
		for _, p := range res.Segment.BlobPrefixes {
			if p.Name != nil {
				folders = append(folders, *p.Name)
			}
		}
	}
	slices.Sort(folders)
	return objects, slices.Compact(folders), ctx.Err()
}

// renew implements backend. Tokens renew themselves; a key and a signature of the environment stay what they are.
func (a *azure) renew() bool { return false }

func (a *azure) close() { a.idle() }

// azureHint is what helps where Azure does not accept who asks.
const azureHint = "check AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN (a signature ends at its time), AZURE_STORAGE_" +
	"CONNECTION_STRING or the login of Azure, and the clock of this machine"

// azureCodes are the answers that say more than their HTTP status.
var azureCodes = map[bloberror.Code]failure{
	bloberror.BlobNotFound: {kind: missing, what: "it does not exist", hint: "check the key"},
	bloberror.ContainerNotFound: {kind: final, what: "there is no such container",
		hint: "check its name, and the account"},
	bloberror.AuthenticationFailed: {kind: expired, what: "the credentials are not accepted, or have expired",
		hint: azureHint},
	bloberror.InvalidAuthenticationInfo:   {kind: expired, what: "the credentials are not valid", hint: azureHint},
	bloberror.NoAuthenticationInformation: {kind: final, what: "it is not public", hint: azureHint},
	bloberror.AuthorizationFailure:        {kind: final, what: "access is denied", hint: azureHint},
	bloberror.AuthorizationPermissionMismatch: {kind: final, what: "access is denied",
		hint: "the credentials need the role Storage Blob Data Reader, or a signature with read and list"},
	bloberror.AuthorizationResourceTypeMismatch: {kind: final, what: "access is denied",
		hint: "the signature needs the resource types container and object"},
	bloberror.BlobArchived: {kind: final, what: "it is archived", hint: "rehydrate it, or leave it out: archived " +
		"objects cannot be read"},
	bloberror.ServerBusy:      {kind: slowing, what: "the server asks for fewer requests"},
	bloberror.ConditionNotMet: {kind: altered, what: "it was written again"},
	bloberror.InvalidRange:    {kind: altered, what: "it is shorter now"},
}

// azureFailure says what an error of the client means. Of an answer, only its code and status reach the message.
func azureFailure(err error) error {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	res, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return network(err)
	}
	f, known := azureCodes[bloberror.Code(res.ErrorCode)]
	if !known {
		f = failure{kind: statusKind(res.StatusCode)}
		f.what = fmt.Sprintf("the server answers %d %s", res.StatusCode, http.StatusText(res.StatusCode))
		if f.kind == final {
			f.hint = azureHint
		}
	}
	if res.RawResponse != nil {
		f.after = retryAfter(res.RawResponse.Header)
	}
	if f.kind == final || f.kind == expired {
		f.what += " (" + codeWord(res.ErrorCode) + ")"
	}
	return &f
}
