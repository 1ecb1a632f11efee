package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

	"larder/internal/errs"
	"larder/internal/testenv"
)

// withAzure puts an account into the environment, and nothing else that could be found.
func withAzure(t *testing.T, endpoint string) {
	t.Helper()
	noKeys(t)
	for _, v := range []string{"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_TENANT_ID",
		"AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"} {
		t.Setenv(v, "")
	}
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", testenv.Connection(endpoint))
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
	twin := testenv.StartAzure(t)
	withAzure(t, twin.URL)
	readsAzure(t, twin.Put)
	if !strings.HasPrefix(twin.Seen[0], "SharedKey "+testenv.AzureAccount+":") {
		t.Errorf("signed with %.20q", twin.Seen[0])
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
	cmd.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+testenv.AzureAccount+":"+testenv.AzureKey)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}()
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	testenv.Eventually(t, "Azurite listens", func() bool {
		c, err := net.Dial("tcp", url[len("http://"):])
		if err == nil {
			c.Close()
		}
		return err == nil
	})
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
	twin := testenv.StartAzure(t)
	withAzure(t, twin.URL)
	twin.Blobs["x"] = string(content(5000))
	var log logged
	st := openAzureStore(t, slog.New(slog.NewTextHandler(&log, nil)))
	in, err := st.Stat(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	twin.Handle(func(w http.ResponseWriter, _ *http.Request) bool {
		n++
		switch n {
		case 1:
			testenv.AzureError(w, http.StatusServiceUnavailable, "ServerBusy")
		case 2:
			testenv.AzureError(w, http.StatusInternalServerError, "InternalError")
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
	})
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
		twin.Handle(func(w http.ResponseWriter, _ *http.Request) bool {
			testenv.AzureError(w, x.status, code)
			return true
		})
		_, err := st.ReadRange(t.Context(), in, 0, got)
		if err == nil || !strings.Contains(err.Error(), x.want) || errs.From(err).Hint == "" ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", code, err)
		}
	}
	if s := log.String(); strings.Contains(s, "geheim") || strings.Contains(s, testenv.AzureKey) {
		t.Errorf("logged %q", s)
	}
}

// A signature that has expired is said with a fix, and not asked with again and again; once it is accepted, the store
// reads on.
func TestAzureCredentialsThatExpire(t *testing.T) {
	twin := testenv.StartAzure(t)
	withAzure(t, twin.URL)
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint="+twin.URL+"/"+testenv.AzureAccount+
		";SharedAccessSignature=sv=1&sig=geheim")
	twin.Put("x", string(content(5000)))
	var log logged
	st := openAzureStore(t, slog.New(slog.NewTextHandler(&log, nil)))
	in, err := st.Stat(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	var expired atomic.Bool
	expired.Store(true)
	twin.Handle(func(w http.ResponseWriter, _ *http.Request) bool {
		if !expired.Load() {
			return false
		}
		asked.Add(1)
		testenv.AzureError(w, http.StatusForbidden, "AuthenticationFailed")
		return true
	})
	got, err := readAll(t.Context(), st, in)
	said := fmt.Sprint(err) + hint(err)
	if m := saysAll(said, "have expired", "AZURE_STORAGE_SAS_TOKEN", "az://data/x"); m != nil || len(got) > 0 {
		t.Errorf("%d bytes, and %q does not say %q", len(got), said, m)
	}
	list := st.List(t.Context(), "", func(Info) error { return nil })
	if m := saysAll(fmt.Sprint(list), "have expired"); m != nil || asked.Load() != 2 {
		t.Errorf("a list: %v, after %d requests", list, asked.Load())
	}
	if strings.Contains(said+fmt.Sprint(list)+log.String(), "geheim") {
		t.Errorf("a secret is told: %s, %v, %s", said, list, log.String())
	}
	expired.Store(false)
	if got, err := readAll(t.Context(), st, in); err != nil || !bytes.Equal(got, content(5000)) {
		t.Errorf("accepted again: %d bytes, %v", len(got), err)
	}
}

// A blob that is written again while an answer is under way, with a body of the same length or a shorter one, is an
// error: bytes of two versions are never joined.
func TestAzureBlobsThatChangeWhileTheyAreRead(t *testing.T) {
	for name, body := range map[string]string{"other": strings.Repeat("x", 5000), "shorter": "x"} {
		twin := testenv.StartAzure(t)
		withAzure(t, twin.URL)
		twin.Put("a", string(content(5000)))
		st := openAzureStore(t, slog.New(slog.DiscardHandler))
		in, err := st.Stat(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		cut := false
		twin.Handle(func(w http.ResponseWriter, _ *http.Request) bool {
			if cut {
				return false
			}
			cut = true
			w.Header().Set("Content-Range", "bytes 0-4999/5000")
			w.Header().Set("Content-Length", "5000")
			w.Header().Set("ETag", `"`+in.ETag+`"`)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content(5000)[:2000])
			twin.Blobs["a"] = body
			return true
		})
		if got, err := readAll(t.Context(), st, in); !cut || !errors.Is(err, ErrChanged) || len(got) > 0 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		now, err := st.Stat(t.Context(), "a")
		if err != nil || now.Version == in.Version {
			t.Fatalf("%s: %+v, %v", name, now, err)
		}
		if got, err := readAll(t.Context(), st, now); err != nil || string(got) != body {
			t.Errorf("%s: the new version: %d bytes, %v", name, len(got), err)
		}
	}
}

// Credentials come in their order, and what is missing is named.
func TestCredentialsOfAzure(t *testing.T) {
	twin := testenv.StartAzure(t)
	twin.Blobs["x"] = "body"
	withAzure(t, twin.URL)
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint="+twin.URL+"/"+testenv.AzureAccount+
		";SharedAccessSignature=sv=1&sig=geheim")
	st := openAzureStore(t, slog.New(slog.DiscardHandler))
	if _, err := st.Stat(t.Context(), "x"); err != nil || twin.Seen[0] != "geheim" {
		t.Errorf("a signature: %q, %v", twin.Seen, err)
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
