package store

import (
	"bytes"
	"crypto/md5" //nolint:gosec // that is what Azure checks
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"testing"
)

// write answers the requests that write: objects whole, pieces, and lists of pieces.
func (a *azureTwin) write(w http.ResponseWriter, r *http.Request, key string) {
	body, err := io.ReadAll(r.Body)
	sum := md5.Sum(body) //nolint:gosec // as above
	if m := r.Header.Get("Content-Md5"); err != nil || m != "" && m != base64.StdEncoding.EncodeToString(sum[:]) {
		azureError(w, http.StatusBadRequest, "Md5Mismatch")
		return
	}
	q := r.URL.Query()
	_, there := a.blobs[key]
	switch {
	case q.Get("comp") == "block":
		a.wait[key+"\x00"+q.Get("blockid")] = string(body)
	case q.Get("comp") == "blocklist":
		var list struct{ Latest []string }
		whole := ""
		if xml.Unmarshal(body, &list) != nil || len(list.Latest) == 0 {
			azureError(w, http.StatusBadRequest, "InvalidXmlDocument")
			return
		}
		for _, id := range list.Latest {
			p, ok := a.wait[key+"\x00"+id]
			if !ok {
				azureError(w, http.StatusBadRequest, "InvalidBlockList")
				return
			}
			whole += p
		}
		a.blobs[key] = whole
	case there && r.Header.Get("If-None-Match") == "*":
		azureError(w, http.StatusConflict, "BlobAlreadyExists")
		return
	default:
		a.blobs[key] = string(body)
	}
	w.WriteHeader(http.StatusCreated)
}

func TestAzureTakesObjects(t *testing.T) {
	srv := newAzure(t)
	withAzure(t, srv.URL)
	s := openAzureStore(t, slog.New(slog.DiscardHandler)).(*remote)
	pieces(s, 1000)
	fails := []string{}
	srv.fault = func(w http.ResponseWriter, r *http.Request) bool {
		id := r.Method + r.URL.RawQuery
		if r.Method != http.MethodPut || slices.Contains(fails, id) {
			return false
		}
		fails = append(fails, id)
		azureError(w, http.StatusServiceUnavailable, "ServerBusy")
		return true
	}
	for key, size := range map[string]int{"empty": 0, "one": 1, "a/many": 4_321} {
		body := content(size)
		in, err := s.Put(t.Context(), key, bytes.NewReader(body), int64(size))
		if err != nil || in.Size != int64(size) {
			t.Fatalf("%s: %+v, %v", key, in, err)
		}
		if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d of %d bytes, %v", key, len(got), size, err)
		}
	}
	if _, err := s.Create(t.Context(), "one", bytes.NewReader(nil), 0); !errors.Is(err, ErrExist) {
		t.Errorf("an object was written over another: %v", err)
	}
	for range 2 {
		own := func(string) bool { return true }
		if err := errors.Join(s.Remove(t.Context(), "one"), s.Sweep(t.Context(), "a/", own)); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Stat(t.Context(), "one"); !errors.Is(err, ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if c := s.Counters(); c.Writes != 3+12+1 || c.Deletes != 2 || c.Retries != 7 {
		t.Errorf("%+v", c)
	}
}
