package store

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Counters are what a place has cost since the program started. Requests are those that were sent, those of credentials
// not among them.
type Counters struct {
	Name    string // of the store
	Reads   uint64 // requests for objects and about objects
	Lists   uint64 // requests for lists
	Bytes   uint64 // of bodies received, lists and failed reads among them
	Retries uint64 // requests that repeat a failed one
	Hedges  uint64 // requests beside a slow one
	Errors  uint64 // reads, lists and questions that failed in the end
	Money   float64
}

type counters struct {
	reads, lists, bytes, retries, hedges, errors atomic.Uint64

	skew atomic.Int64 // ns by which the server's clock is ahead, as of its last refusal
}

func (c *counters) read(name string, s Settings) Counters {
	out := Counters{Name: name, Reads: c.reads.Load(), Lists: c.lists.Load(), Bytes: c.bytes.Load(),
		Retries: c.retries.Load(), Hedges: c.hedges.Load(), Errors: c.errors.Load()}
	out.Money = (float64(out.Reads)*s.PriceGet+float64(out.Lists)*s.PriceList)/1000 +
		float64(out.Bytes)/(1<<30)*s.PriceGiB
	return out
}

// meter counts what goes through a transport.
type meter struct {
	next  http.RoundTripper
	count *counters
}

// RoundTrip implements http.RoundTripper.
func (m meter) RoundTrip(req *http.Request) (*http.Response, error) {
	if q := req.URL.Query(); q.Has("list-type") || q.Get("comp") == "list" {
		m.count.lists.Add(1)
	} else {
		m.count.reads.Add(1)
	}
	res, err := m.next.RoundTrip(req)
	if err == nil {
		if res.StatusCode == http.StatusForbidden {
			if there, err := http.ParseTime(res.Header.Get("Date")); err == nil {
				m.count.skew.Store(int64(time.Until(there)))
			}
		}
		res.Body = &countedBody{res.Body, m.count}
	}
	return res, err
}

type countedBody struct {
	body  io.ReadCloser
	count *counters
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.count.bytes.Add(uint64(n))
	return n, err
}

func (b *countedBody) Close() error { return b.body.Close() }
