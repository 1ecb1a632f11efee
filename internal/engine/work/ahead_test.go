package work

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// TestReadersTakeWhatWaits: what was queued for the workers before storage turned out slow is read by all the readers
// at once, and each object once.
func TestReadersTakeWhatWaits(t *testing.T) {
	synctest.Test(t, readersTakeWhatWaits) // so that a read takes as long as it says, under any load
}

func readersTakeWhatWaits(t *testing.T) {
	const readers, all = 8, 30
	var mu sync.Mutex
	reads := map[ident.ObjectID]int{}
	under, once := 0, sync.Once{}
	together := make(chan struct{})
	p, _, events := alone(t, func(cfg *Config) {
		cfg.Readers = readers
		read := cfg.Read
		cfg.Read = func(ctx context.Context, o ident.ObjectID, buf []byte) ([]byte, error) {
			mu.Lock()
			reads[o]++
			first := len(reads) <= cfg.Workers
			if under++; under == readers {
				once.Do(func() { close(together) })
			}
			mu.Unlock()
			if first {
				time.Sleep(2 * minSeen * time.Millisecond) // longer than slowRead, on the average of minSeen reads
			} else {
				select {
				case <-together:
				case <-time.After(5 * time.Minute):
					t.Errorf("no %d reads were under way at once", readers)
				}
			}
			mu.Lock()
			under--
			mu.Unlock()
			return read(ctx, o, buf)
		}
	})
	j := plain(t)
	for i := range all {
		o := ident.ObjectID(20 + i)
		p.Add(coordinator.Prepare{Flight: coordinator.FlightID(i + 1), Job: 1, From: ident.Stored,
			Key: ident.Key{Object: o, Form: ident.Decoded, Recipe: j.Recipe.Prefix()}}, uint64(i), j, nil)
	}
	if now, peak, busy := p.Ahead(); now != 0 || peak != 0 || busy != 0 {
		t.Errorf("storage that nobody has read is slow: %d, %d bytes, %d readers", now, peak, busy)
	}
	p.Start(t.Context())
	for range all {
		ev := (<-events).(coordinator.Prepared)
		if ev.Err != "" || ev.Read == 0 {
			t.Errorf("%+v", ev)
		}
		p.Discard(ev.Flight)
	}
	p.Stop()
	for o, n := range reads {
		if n != 1 {
			t.Errorf("object %d was read %d times", o, n)
		}
	}
	if now, _, busy := p.Ahead(); len(reads) != all || now != 0 || busy > readers {
		t.Errorf("%d objects read, %d bytes are held, %d readers", len(reads), now, busy)
	}
}
