package source

import (
	"context"
	"errors"
	"net/http"
	"testing"
)

// A look at a sample ends with the call that asks for it, where a store never answers.
func TestProbeEndsWithItsContext(t *testing.T) {
	b := newBucket(t)
	b.put(t, "t/a/0.png", "whatever it is")
	b.put(t, "w/s.tar", tarOfTexts(t, 3))
	c := b.open(t, "")
	for _, uri := range []string{"imagefolder:s3://data/t", "wds:s3://data/w/s.tar?fields=txt"} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		asked := make(chan struct{}, 16)
		silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
		})
		b.before.Store(&silent)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := c.Probe(ctx, d.Object(0))
			done <- err
		}()
		<-asked
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", uri, err)
		}
		b.before.Store(nil)
	}
}

// Who waits for an index hears of it, and nobody else does, whatever he may list now: no folder is looked at.
func TestIndexesAreToldToThoseWhoWait(t *testing.T) {
	dir, c, d := readable(t)
	uri := "imagefolder:" + dir
	d.rs.sem <- struct{}{} // as somebody else's index of it
	_, end := c.indexing.begin(t.Context(), d.rs)
	defer end()
	told := func() bool { x := c.Indexing(); return len(x) == 1 && x[0].AskedBy(reader.UID) }
	if told() {
		t.Error("told to a user who did not ask")
	}
	for _, ask := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := c.OpenFor(ctx, uri, false, reader); return err },
		func(ctx context.Context) error { _, err := c.ReindexFor(ctx, d, reader); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- ask(ctx) }()
		for !told() { // it ends with the test's own deadline
			select {
			case err := <-done:
				cancel()
				t.Fatalf("it did not wait: %v", err)
			default:
			}
		}
		chmod(t, dir, 0o700)
		if !told() || c.MayList(uri, reader) == nil {
			t.Error("the folder is looked at")
		}
		if x := c.Indexing(); x[0].AskedBy(reader.UID + 1) {
			t.Error("told to another user")
		}
		chmod(t, dir, 0o755)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if told() || len(c.indexing.by) != 0 {
			t.Errorf("still told to who has gone: %v", c.indexing.by)
		}
	}
	<-d.rs.sem
}
