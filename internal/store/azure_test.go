package store

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

	"larder/internal/errs"
	"larder/internal/testenv"
)

const azureAccount = "devstoreaccount1"

// azureKey is a key of the test's own.
var azureKey = base64.StdEncoding.EncodeToString([]byte("a key of 32 bytes, for tests ..."))

// azureTwin answers the requests of Azure that are used: lists flat and by folder, properties, ranges, and those that
// write (azurewrite_test.go). Pages have two entries.
type azureTwin struct {
	*httptest.Server
	mu    sync.Mutex
	blobs map[string]string
	wait  map[string]string                                 // pieces by the name of their object and their own
	fault func(w http.ResponseWriter, r *http.Request) bool // answers itself
	seen  []string
}

func newAzure(t *testing.T) *azureTwin {
	t.Helper()
	a := &azureTwin{blobs: map[string]string{}, wait: map[string]string{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *azureTwin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, r.Header.Get("Authorization")+r.URL.Query().Get("sig"))
	if a.fault != nil && a.fault(w, r) {
		return
	}
	key, ok := strings.CutPrefix(r.URL.Path, "/"+azureAccount+"/data/")
	if q := r.URL.Query(); q.Get("comp") == "list" {
		a.list(w, q.Get("prefix"), q.Get("delimiter"), q.Get("marker"))
		return
	}
	if ok && r.Method == http.MethodPut {
		a.write(w, r, key)
		return
	}
	body, there := a.blobs[key]
	if !ok || !there {
		azureError(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	if r.Method == http.MethodDelete {
		delete(a.blobs, key)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	etag := fmt.Sprintf(`"0x%X"`, version(body, 0, time.Time{}))
	if m := r.Header.Get("If-Match"); m != "" && m != etag {
		azureError(w, http.StatusPreconditionFailed, "ConditionNotMet")
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
		azureError(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
		return
	}
	to = min(to, len(body)-1)
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(body)))
	w.Header().Set("Content-Length", strconv.Itoa(to+1-from))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.WriteString(w, body[from:to+1]) // the client may be gone
}

func azureError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Ms-Error-Code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>sig=geheim</Message></Error>", code)
}

func (a *azureTwin) list(w http.ResponseWriter, prefix, delimiter, marker string) {
	var entries []string
	for _, key := range slices.Sorted(maps.Keys(a.blobs)) {
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
			`<Etag>0x%X</Etag><Content-Length>%d</Content-Length></Properties></Blob>`, html.EscapeString(e),
			version(a.blobs[e], 0, time.Time{}), len(a.blobs[e]))
	}
	fmt.Fprintf(w, "</Blobs><NextMarker>%s</NextMarker></EnumerationResults>", html.EscapeString(next))
}

// withAzure puts an account into the environment, and nothing else that could be found.
func withAzure(t *testing.T, endpoint string) {
	t.Helper()
	noKeys(t)
	for _, v := range []string{"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_TENANT_ID",
		"AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"} {
		t.Setenv(v, "")
	}
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=http;AccountName="+azureAccount+";AccountKey="+
		azureKey+";BlobEndpoint="+endpoint+"/"+azureAccount+";")
}

func openAzureStore(t *testing.T, log *slog.Logger) Store {
	t.Helper()
	s := New(Config{Log: log, Settings: func(string, string) Settings { return quickly("") }})
	t.Cleanup(s.Close)
	st, key, err := s.Open(t.Context(), "az://data")
	if err != nil || key != "" {
		t.Fatal(key, err)
	}
	return st
}

// readsAzure is what must hold of a container that put fills.
func readsAzure(t *testing.T, put func(key, body string)) {
	t.Helper()
	want := map[string]string{"top": "t"}
	for i := range 7 {
		want[fmt.Sprintf("set/c%d/ö %%20+&?#%d.bin", i%3, i)] = string(content(1000 + i))
	}
	for key, body := range want {
		put(key, body)
	}
	st := openAzureStore(t, slog.New(slog.DiscardHandler))
	var listed []Info
	if err := st.List(t.Context(), "set/", func(in Info) error { listed = append(listed, in); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 7 || !slices.IsSortedFunc(listed, func(a, b Info) int { return cmp.Compare(a.Key, b.Key) }) {
		t.Fatalf("listed %+v", listed)
	}
	for _, in := range listed {
		asked, err := st.Stat(t.Context(), in.Key)
		if err != nil || asked.Version != in.Version || asked.Size != int64(len(want[in.Key])) || in.Size != asked.Size {
			t.Errorf("%+v and %+v, %v", in, asked, err)
		}
		got := make([]byte, 300)
		if n, err := st.ReadRange(t.Context(), in, 100, got); n != 300 || err != nil || string(got) != want[in.Key][100:400] {
			t.Errorf("%s: %d bytes, %v", in.Key, n, err)
		}
	}
	var top []string
	folders, err := st.Folder(t.Context(), "", func(in Info) error { top = append(top, in.Key); return nil })
	if err != nil || !slices.Equal(folders, []string{"set/"}) || !slices.Equal(top, []string{"top"}) {
		t.Errorf("%q, %q, %v", folders, top, err)
	}
	folders, err = st.Folder(t.Context(), "set/", func(Info) error { return errors.New("none") })
	if err != nil || !slices.Equal(folders, []string{"set/c0/", "set/c1/", "set/c2/"}) {
		t.Errorf("%q, %v", folders, err)
	}
	put(listed[2].Key, strings.Repeat("x", int(listed[2].Size)))
	if n, err := st.ReadRange(t.Context(), listed[2], 0, make([]byte, 10)); n != 0 || !errors.Is(err, ErrChanged) {
		t.Errorf("written again: %d, %v", n, err)
	}
	if _, err := st.Stat(t.Context(), "none"); !errors.Is(err, ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestAzureIsReadAsABucket(t *testing.T) {
	twin := newAzure(t)
	withAzure(t, twin.URL)
	readsAzure(t, func(key, body string) {
		twin.mu.Lock()
		defer twin.mu.Unlock()
		twin.blobs[key] = body
	})
	if !strings.HasPrefix(twin.seen[0], "SharedKey "+azureAccount+":") {
		t.Errorf("signed with %.20q", twin.seen[0])
	}
}

// TestAzurite reads from Microsoft's emulator.
func TestAzurite(t *testing.T) {
	binary := testenv.Tool(t, "azurite/node_modules/.bin/azurite-blob", "LARDER_AZURITE", "LARDER_REQUIRE_AZURITE")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command(binary, "--blobPort", strconv.Itoa(port), "--inMemoryPersistence", //nolint:gosec // it is named
		"--skipApiVersionCheck", "--disableTelemetry", "--silent")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+azureAccount+":"+azureKey)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}()
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	for range 600 {
		if c, err := net.Dial("tcp", url[len("http://"):]); err == nil {
			c.Close()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	withAzure(t, url)
	client, err := azblob.NewClientFromConnectionString(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CreateContainer(t.Context(), "data", nil); err != nil {
		t.Fatal(err)
	}
	readsAzure(t, func(key, body string) {
		if _, err := client.UploadBuffer(t.Context(), "data", key, []byte(body), nil); err != nil {
			t.Fatal(err)
		}
	})
}

// Faults that pass are passed over; those that stay are named, and nothing secret is said or logged.
func TestAzureFaults(t *testing.T) {
	twin := newAzure(t)
	withAzure(t, twin.URL)
	twin.blobs["x"] = string(content(5000))
	var log logged
	st := openAzureStore(t, slog.New(slog.NewTextHandler(&log, nil)))
	in, err := st.Stat(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	twin.fault = func(w http.ResponseWriter, _ *http.Request) bool {
		n++
		switch n {
		case 1:
			azureError(w, http.StatusServiceUnavailable, "ServerBusy")
		case 2:
			azureError(w, http.StatusInternalServerError, "InternalError")
		case 3:
			w.Header().Set("Content-Range", "bytes 0-4999/5000")
			w.Header().Set("Content-Length", "5000")
			w.Header().Set("ETag", `"`+in.ETag+`"`)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content(5000)[:2000]) // cut
		default:
			return false
		}
		return true
	}
	got := make([]byte, 5000)
	if _, err := st.ReadRange(t.Context(), in, 0, got); err != nil || !bytes.Equal(got, content(5000)) || n < 4 {
		t.Errorf("%d requests, %v", n, err)
	}
	for code, x := range map[string]struct {
		status int
		want   string
	}{
		"AuthenticationFailed":            {403, "not accepted, or have expired"},
		"AuthorizationPermissionMismatch": {403, "access is denied"},
		"ContainerNotFound":               {404, "no such container"},
		"BlobArchived":                    {409, "archived"},
		"ConditionNotMet":                 {412, "written again"},
		"Odd":                             {418, "the server answers 418"},
	} {
		twin.fault = func(w http.ResponseWriter, _ *http.Request) bool { azureError(w, x.status, code); return true }
		_, err := st.ReadRange(t.Context(), in, 0, got)
		if err == nil || !strings.Contains(err.Error(), x.want) || errs.From(err).Hint == "" ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", code, err)
		}
	}
	if s := log.String(); strings.Contains(s, "geheim") || strings.Contains(s, azureKey) {
		t.Errorf("logged %q", s)
	}
}

// Credentials come in their order, and what is missing is named.
func TestCredentialsOfAzure(t *testing.T) {
	twin := newAzure(t)
	twin.blobs["x"] = "body"
	withAzure(t, twin.URL)
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint="+twin.URL+"/"+azureAccount+
		";SharedAccessSignature=sv=1&sig=geheim")
	st := openAzureStore(t, slog.New(slog.DiscardHandler))
	if _, err := st.Stat(t.Context(), "x"); err != nil || twin.seen[0] != "geheim" {
		t.Errorf("a signature: %q, %v", twin.seen, err)
	}
	_, err := st.Stat(t.Context(), "y")
	if err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("%v", err)
	}
	for text, want := range map[string]string{
		"":                                    "nothing says which account",
		"AccountName=a;AccountKey=no base64!": "credentials cannot be used",
		"AccountName=a;AccountKey=QUFB;BlobEndpoint=": "",
		"BlobEndpoint=http://10.0.0.1:1/a":            "is not encrypted",
		"BlobEndpoint=https://u:geheim@h/a":           "is no address",
	} {
		t.Setenv("AZURE_STORAGE_CONNECTION_STRING", text)
		s := New(Config{Settings: func(string, string) Settings { return quickly("") }})
		_, _, err := s.Open(t.Context(), "az://data")
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error()+errs.From(err).Hint, "geheim")) {
			t.Errorf("%q: %v", text, err)
		}
		s.Close()
	}
}
