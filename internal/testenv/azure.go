package testenv

import (
	"crypto/md5" //nolint:gosec // that is what Azure checks
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"hash/crc64"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// AzureAccount is the account of the twin, and of Azurite.
const AzureAccount = "devstoreaccount1"

// AzureKey is a key of the tests' own.
var AzureKey = base64.StdEncoding.EncodeToString([]byte("a key of 32 bytes, for tests ..."))

// Azure answers the requests of Azure that are used: lists flat and by folder, properties, ranges, and those that
// write. It has one container, data. Pages of lists have two entries.
type Azure struct {
	*httptest.Server
	Blobs map[string]string // by key; faults may change them
	Seen  []string          // how each request was signed

	mu    sync.Mutex                                        // held while a request is answered
	fault func(w http.ResponseWriter, r *http.Request) bool // nil = none
	wait  map[string]string                                 // pieces by the name of their object and their own
}

// StartAzure starts a twin for the time of the test.
func StartAzure(t testing.TB) *Azure {
	t.Helper()
	a := &Azure{Blobs: map[string]string{}, wait: map[string]string{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// Put makes a blob, or writes it again.
func (a *Azure) Put(key, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Blobs[key] = body
}

// Handle sets what sees each request from now on, one at a time, and says whether it has answered it.
func (a *Azure) Handle(fault func(w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = fault
}

// Connection is what AZURE_STORAGE_CONNECTION_STRING is for the account at an endpoint.
func Connection(endpoint string) string {
	return "DefaultEndpointsProtocol=http;AccountName=" + AzureAccount + ";AccountKey=" + AzureKey + ";BlobEndpoint=" +
		endpoint + "/" + AzureAccount + ";"
}

// ServeHTTP implements http.Handler.
func (a *Azure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Seen = append(a.Seen, r.Header.Get("Authorization")+r.URL.Query().Get("sig"))
	if a.fault != nil && a.fault(w, r) {
		return
	}
	key, ok := strings.CutPrefix(r.URL.Path, "/"+AzureAccount+"/data/")
	if q := r.URL.Query(); q.Get("comp") == "list" {
		a.list(w, q.Get("prefix"), q.Get("delimiter"), q.Get("marker"))
		return
	}
	if ok && r.Method == http.MethodPut {
		a.write(w, r, key)
		return
	}
	body, there := a.Blobs[key]
	if !ok || !there {
		AzureError(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	if r.Method == http.MethodDelete {
		delete(a.Blobs, key)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	etag := `"` + etagOf(body) + `"`
	if m := r.Header.Get("If-Match"); m != "" && m != etag {
		AzureError(w, http.StatusPreconditionFailed, "ConditionNotMet")
		return
	}
	w.Header().Set("ETag", etag)
	w.Header().Set("Last-Modified", "Mon, 02 Jan 2023 15:04:05 GMT")
	var from, to int
	if n, _ := fmt.Sscanf(r.Header.Get("X-Ms-Range"), "bytes=%d-%d", &from, &to); n != 2 {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		return
	}
	if from >= len(body) {
		AzureError(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
		return
	}
	to = min(to, len(body)-1)
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(body)))
	w.Header().Set("Content-Length", strconv.Itoa(to+1-from))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.WriteString(w, body[from:to+1]) // the client may be gone
}

// AzureError answers as Azure does; its message holds a secret, which nobody is to see.
func AzureError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Ms-Error-Code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>sig=geheim</Message></Error>", code)
}

func (a *Azure) list(w http.ResponseWriter, prefix, delimiter, marker string) {
	var entries []string
	for _, key := range slices.Sorted(maps.Keys(a.Blobs)) {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if i := strings.Index(rest, "/"); delimiter != "" && i >= 0 {
			key = prefix + rest[:i+1]
		}
		if key >= marker && !slices.Contains(entries, key) {
			entries = append(entries, key)
		}
	}
	next := ""
	if len(entries) > 2 {
		next, entries = entries[2], entries[:2]
	}
	fmt.Fprint(w, `<?xml version="1.0"?><EnumerationResults><Blobs>`)
	for _, e := range entries {
		if delimiter != "" && strings.HasSuffix(e, "/") {
			fmt.Fprintf(w, "<BlobPrefix><Name>%s</Name></BlobPrefix>", html.EscapeString(e))
			continue
		}
		fmt.Fprintf(w, `<Blob><Name>%s</Name><Properties><Last-Modified>Mon, 02 Jan 2023 15:04:05 GMT</Last-Modified>`+
			`<Etag>%s</Etag><Content-Length>%d</Content-Length></Properties></Blob>`, html.EscapeString(e),
			etagOf(a.Blobs[e]), len(a.Blobs[e]))
	}
	fmt.Fprintf(w, "</Blobs><NextMarker>%s</NextMarker></EnumerationResults>", html.EscapeString(next))
}

// write answers the requests that write: objects whole, pieces, and lists of pieces.
func (a *Azure) write(w http.ResponseWriter, r *http.Request, key string) {
	body, err := io.ReadAll(r.Body)
	sum := md5.Sum(body) //nolint:gosec // as above
	if m := r.Header.Get("Content-Md5"); err != nil || m != "" && m != base64.StdEncoding.EncodeToString(sum[:]) {
		AzureError(w, http.StatusBadRequest, "Md5Mismatch")
		return
	}
	q := r.URL.Query()
	_, there := a.Blobs[key]
	switch {
	case q.Get("comp") == "block":
		a.wait[key+"\x00"+q.Get("blockid")] = string(body)
	case q.Get("comp") == "blocklist":
		var list struct{ Latest []string }
		var whole strings.Builder
		if xml.Unmarshal(body, &list) != nil || len(list.Latest) == 0 {
			AzureError(w, http.StatusBadRequest, "InvalidXmlDocument")
			return
		}
		for _, id := range list.Latest {
			p, ok := a.wait[key+"\x00"+id]
			if !ok {
				AzureError(w, http.StatusBadRequest, "InvalidBlockList")
				return
			}
			whole.WriteString(p)
		}
		a.Blobs[key] = whole.String()
	case there && r.Header.Get("If-None-Match") == "*":
		AzureError(w, http.StatusConflict, "BlobAlreadyExists")
		return
	default:
		a.Blobs[key] = string(body)
	}
	w.WriteHeader(http.StatusCreated)
}

func etagOf(body string) string {
	return fmt.Sprintf("0x%X", crc64.Checksum([]byte(body), crc64.MakeTable(crc64.ECMA)))
}
