package coresim

import (
	"fmt"
	"time"
)

// disk is the storage that objects are read from. Reads share two token buckets; while they are slow, readers read
// ahead of the workers. At most Storage.Readers reads ahead run at once, and all that was read ahead and is not yet
// used is at most aheadBytes.
type disk struct {
	storage *Storage // nil = a read is part of a worker's time, Model.Read
	bytes   bucket
	ops     bucket
	latency time.Duration // of reads, smoothed as internal/engine does
	unread  tasks         // wait for a reader
	reading int           // readers at work
	ahead   int64         // bytes that were read, or are being read, ahead of a worker
}

const (
	storageBurst = 100 * time.Millisecond // as of internal/source
	slowRead     = 300 * time.Microsecond // as of internal/engine: from which on readers read ahead
	aheadBytes   = 64 << 20
)

func newDisk(s *Storage) disk {
	if s == nil {
		return disk{}
	}
	return disk{storage: s, bytes: bucket{s.Bandwidth, storageBurst, -storageBurst},
		ops: bucket{s.IOPS, storageBurst, -storageBurst}}
}

// isSlow reports whether readers read ahead.
func (d *disk) isSlow() bool {
	return d.storage != nil && d.storage.Readers > 0 && d.latency > slowRead
}

// fetch takes n bytes from storage and returns when they are there.
func (d *disk) fetch(now time.Duration, n int64) (done time.Duration) {
	done = max(d.bytes.take(now, float64(n)), d.ops.take(now, 1)) + d.storage.Latency
	d.latency += (done - now - d.latency) / minSeen
	return done
}

// take gives a reader the next task to read; false while no reader is idle or too much was read ahead.
func (d *disk) take() (task, bool) {
	if len(d.unread) == 0 || d.reading >= d.storage.Readers || d.ahead+d.unread[0].size > aheadBytes {
		return task{}, false
	}
	t := d.unread.Pop()
	d.reading++
	d.ahead += t.size
	return t, true
}

func (d *disk) check() error {
	if d.reading < 0 || d.storage != nil && d.reading > max(0, d.storage.Readers) || d.ahead < 0 || d.ahead > aheadBytes {
		return fmt.Errorf("%d readers read, %d bytes are read ahead", d.reading, d.ahead)
	}
	return nil
}

// bucket is a token bucket in the form of internal/source: the time at which all that was taken will have been paid
// for.
type bucket struct {
	rate  float64
	burst time.Duration
	next  time.Duration
}

func (b *bucket) take(now time.Duration, n float64) time.Duration {
	if b.rate == 0 || n == 0 {
		return now
	}
	b.next = max(b.next, now-b.burst) + time.Duration(min(n/b.rate*float64(time.Second), 1e17))
	return max(now, b.next)
}
