package store

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"testing"

	"larder/internal/testenv"
)

func TestAzureTakesObjects(t *testing.T) {
	srv := testenv.StartAzure(t)
	withAzure(t, srv.URL)
	s := openAzureStore(t, slog.New(slog.DiscardHandler)).(*remote)
	pieces(s, 1000)
	fails := []string{}
	srv.Handle(func(w http.ResponseWriter, r *http.Request) bool {
		id := r.Method + r.URL.RawQuery
		if r.Method != http.MethodPut || slices.Contains(fails, id) {
			return false
		}
		fails = append(fails, id)
		testenv.AzureError(w, http.StatusServiceUnavailable, "ServerBusy")
		return true
	})
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
