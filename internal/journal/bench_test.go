package journal

import (
	"syscall"
	"testing"
	"time"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// BenchmarkOpen opens a folder as a killed daemon leaves it: 8 jobs in the middle of epochs of 1.28 million samples,
// 1e6 records in all.
func BenchmarkOpen(b *testing.B) {
	fs, err := OpenDir(b.TempDir(), true)
	if err != nil {
		b.Fatal(err)
	}
	d, err := OpenDisk(fs, Options{})
	if err != nil {
		b.Fatal(err)
	}
	order := make([]ident.ObjectID, 1_280_000)
	for i := range order {
		order[i] = ident.ObjectID(i)
	}
	xrand.New(1).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	const batch = 256
	records := 0
	for j := range ident.JobID(8) {
		d.Append(row{Kind: kindRegistered, Job: j + 1, Text: "job"}, nil)
		records++
	}
	for e := uint32(0); records < 1_000_000; e++ {
		for j := range ident.JobID(8) {
			d.Append(row{Kind: kindEpochStarted, Job: j + 1, Epoch: e}, nil)
			records++
		}
		for step := 0; step < len(order)/batch && records < 1_000_000; step++ {
			for j := range ident.JobID(8) {
				d.Append(row{Kind: kindAssigned, Job: j + 1, Epoch: e, Step: uint32(step),
					Objects: order[step*batch : (step+1)*batch]}, nil)
				records++
			}
			if step%500 == 0 {
				if err := d.Sync(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
	names, _ := fs.List()
	var total int64
	for _, n := range names {
		size, _ := fs.Size(n)
		total += size
	}
	began := processorTime(b)
	for b.Loop() {
		d, err := OpenDisk(fs, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric((processorTime(b)-began).Seconds()*1e3/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(records), "records")
	b.ReportMetric(float64(total)/1e6, "MB")
}

// BenchmarkAppendDisk is what Append costs its caller; the disk is behind it.
func BenchmarkAppendDisk(b *testing.B) {
	fs, err := OpenDir(b.TempDir(), true)
	if err != nil {
		b.Fatal(err)
	}
	d, err := OpenDisk(fs, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	objects := make([]ident.ObjectID, 256)
	for i := range objects {
		objects[i] = ident.ObjectID(i * 5000)
	}
	done := func(error) {}
	for i := 0; b.Loop(); i++ {
		if i%5000 == 0 {
			d.Append(row{Kind: kindEpochStarted, Epoch: uint32(i / 5000)}, nil)
		}
		d.Append(row{Kind: kindAssigned, Epoch: uint32(i / 5000), Step: uint32(i % 5000), Objects: objects}, done)
	}
}

// processorTime is that of the whole process, its collector included: the wall clock is other work's too.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
