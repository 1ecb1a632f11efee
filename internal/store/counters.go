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
	Writes  uint64 // requests that write
	Deletes uint64 // requests that delete, or give an upload up; stores take no money for them
	Bytes   uint64 // of bodies received, lists and failed reads among them
	Sent    uint64 // bytes of bodies sent, those of failed writes among them
	Retries uint64 // requests that repeat a failed one
	Hedges  uint64 // requests beside a slow one
	Errors  uint64 // reads, lists and questions that failed in the end
	Money   float64
}

type counters struct {
	reads, lists, writes, deletes, bytes, sent, retries, hedges, errors atomic.Uint64

	skew atomic.Int64 // ns by which the server's clock is ahead, as of its last refusal
}

func (c *counters) read(name string, s Settings) Counters {
	out := Counters{Name: name, Reads: c.reads.Load(), Lists: c.lists.Load(), Writes: c.writes.Load(),
		Deletes: c.deletes.Load(), Bytes: c.bytes.Load(), Sent: c.sent.Load(), Retries: c.retries.Load(),
		Hedges: c.hedges.Load(),
		Errors: c.errors.Load()}
	out.Money = (float64(out.Reads)*s.PriceGet+float64(out.Lists+out.Writes)*s.PriceList)/1000 +
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
	switch q := req.URL.Query(); {
	case req.Method == http.MethodDelete:
		m.count.deletes.Add(1)
	case req.Method == http.MethodPut || req.Method == http.MethodPost:
		m.count.writes.Add(1)
	case q.Has("list-type") || q.Has("uploads") || q.Get("comp") == "list":
		m.count.lists.Add(1)
	default:
		m.count.reads.Add(1)
	}
	if req.Body != nil && req.Body != http.NoBody {
		sent := *req // a transport leaves requests as they are
		sent.Body = &countedBody{req.Body, &m.count.sent}
		req = &sent
	}
	res, err := m.next.RoundTrip(req)
	if err == nil {
		if res.StatusCode == http.StatusForbidden {
			if there, err := http.ParseTime(res.Header.Get("Date")); err == nil {
				m.count.skew.Store(int64(time.Until(there)))
			}
		}
		res.Body = &countedBody{res.Body, &m.count.bytes}
	}
	return res, err
}

type countedBody struct {
	body  io.ReadCloser
	count *atomic.Uint64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.count.Add(uint64(n))
	return n, err
}

func (b *countedBody) Close() error { return b.body.Close() }
