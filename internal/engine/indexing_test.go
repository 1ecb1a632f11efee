package engine

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"larder/internal/source"
	"larder/internal/store"
)

// TestIndexesUnderWayAreTheirUsers: how far an index is says which dataset that is, so other users see those alone that
// they may use.
func TestIndexesUnderWayAreTheirUsers(t *testing.T) {
	asked, end := make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		case <-end: // a later request
		}
		<-end
		w.WriteHeader(http.StatusNotFound)
	}))
	defer web.Close()
	log := slog.New(slog.DiscardHandler)
	stores := store.New(store.Config{Log: log, Settings: func(string, string) store.Settings {
		s := store.Default()
		s.Hedge = 0
		return s
	}})
	defer stores.Close()
	c, err := source.OpenCatalog(source.CatalogConfig{Stores: stores, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	uri := "wds:" + web.URL + "/secret.tar"
	done := make(chan error)
	go func() {
		_, err := c.Add(context.WithoutCancel(t.Context()), "", uri)
		done <- err
	}()
	<-asked
	l := &library{catalog: c}
	if x := l.indexing(nil); len(x) != 1 || x[0].GetUri() != uri || x[0].GetSince().AsTime().IsZero() {
		t.Errorf("the daemon's user sees %v", x)
	}
	if x := l.indexing(&owner{UID: 4242, GID: 4242}); len(x) != 0 {
		t.Errorf("another user sees %v", x)
	}
	close(end)
	if err := <-done; err == nil {
		t.Error("a file that is not there was indexed")
	}
	if x := l.indexing(nil); len(x) != 0 {
		t.Errorf("%v is still under way", x)
	}
}
