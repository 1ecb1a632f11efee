package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"larder/cachepolicy/partition"
	"larder/internal/errs"
	"larder/tiers"
	"larder/tiers/arena"
)

// Version of the file. A file of another version is refused: what its figures mean may differ.
const Version = 1

// Profile is what was measured. Rates are of the whole machine with Workers workers.
type Profile struct {
	Version int     `json:"version"`
	Machine Machine `json:"machine"`
	Workers int     `json:"workers"`
	Seconds float64 `json:"seconds"` // that measuring took, indexing left out
	Dataset Dataset `json:"dataset"`
	Recipe  Recipe  `json:"recipe"`
	Rates   Rates   `json:"rates"`
	// the same work by the processor time it took, which other work on the machine hardly changes; 0 = not known
	CPU     Rates   `json:"samples_per_cpu_second"`
	Bytes   Bytes   `json:"bytes"`
	Storage Storage `json:"storage"`
	Disk    *Disk   `json:"disk,omitempty"` // nil = it was not asked for
	// copied by all workers together, from and to buffers larger than caches
	Memory    float64 `json:"memory_bytes_per_second"`
	Bad       int     `json:"bad_samples"` // of those looked at, that could not be prepared
	Looked    int     `json:"samples_looked_at"`
	FirstFail string  `json:"first_bad,omitempty"`
}

// Dataset is what was read.
type Dataset struct {
	URI     string `json:"uri"`
	Samples int64  `json:"samples"`
	Bytes   int64  `json:"bytes"` // stored
}

// Recipe is what was done.
type Recipe struct {
	Ops    []string `json:"ops"`
	ID     string   `json:"id"`
	Prefix string   `json:"prefix"`
	Random bool     `json:"random"`
}

// Rates are samples a second.
type Rates struct {
	Decode        float64 `json:"decode"`         // encoded bytes to the decoded form
	DecodeAugment float64 `json:"decode_augment"` // encoded bytes to the row of a batch: T_D+A
	Augment       float64 `json:"augment"`        // decoded form to the row of a batch: T_A
	Finish        float64 `json:"finish"`         // augmented form to the row of a batch
}

// Bytes are means of a sample in each form.
type Bytes struct {
	Stored    float64 `json:"stored"`
	Encoded   float64 `json:"encoded"`
	Decoded   float64 `json:"decoded"`
	Augmented float64 `json:"augmented"`
	Delivered float64 `json:"delivered"`
}

// Storage is how fast whole objects are read, by all workers at once.
type Storage struct {
	BytesPerSecond   float64 `json:"bytes_per_second"`
	SamplesPerSecond float64 `json:"samples_per_second"`
	Method           string  `json:"method"` // how the page cache was kept out
	// part of the probed files that were not cached before they were read; -1 = unknown
	Cold   float64 `json:"cold"`
	Passes int     `json:"passes"`                  // over the samples looked at
	Limit  int64   `json:"storage_limit,omitempty"` // bytes a second that reading was held to
}

// Warnings are what a reader of the figures should know.
func (p *Profile) Warnings() []string {
	var w []string
	switch {
	case p.Storage.Limit > 0:
	case p.Storage.Cold < 0:
		w = append(w, "whether files came from the page cache cannot be determined here: storage may be slower than measured")
	case p.Storage.Cold < .9:
		w = append(w, "files could not be put out of the page cache (a file system in memory, or files in use): storage "+
			"is slower than measured once the cache is full")
	}
	if x := p.CPU.DecodeAugment; x > 0 && p.Rates.DecodeAugment < .75*x*float64(min(p.Workers, p.Machine.Cores)) {
		w = append(w, fmt.Sprintf("other work took the cores while decoding was measured: larder had %.1f of %d",
			p.Rates.DecodeAugment/x, min(p.Workers, p.Machine.Cores)))
	}
	if d := p.Disk; d != nil && d.Cold < .9 {
		w = append(w, "files of the disk tier could not be put out of the page cache: it is slower than measured")
	}
	if p.Bad > 0 {
		w = append(w, "some samples cannot be prepared: "+p.FirstFail)
	}
	return w
}

// maxFile bounds a profile's file.
const maxFile = 1 << 20

// DefaultFile is where a profile is saved and looked for when no file is named; "" where the user has no cache folder.
func DefaultFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "larder", "profile.json")
}

// Save writes the profile; the file is whole or not there.
func (p *Profile) Save(path string) error {
	raw, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return errs.New(errs.Internal, path, "this is a bug of larder", "write the profile").Because(err)
	}
	wrap := func(err error) error {
		return errs.New(errs.Invalid, path, "name a file that can be written", "save the profile").Because(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return wrap(err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return wrap(err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error says more
		return wrap(err)
	}
	return nil
}

// Load reads a profile and checks every figure. Errors are *errs.Error NOT_FOUND or INVALID_ARGUMENT with the path.
func Load(path string) (*Profile, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.NotFound, path, "make one with larder profile DATASET", "read the profile").Because(err)
	}
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the profile").Because(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the profile").Because(err)
	}
	if len(raw) > maxFile {
		return nil, errs.New(errs.Invalid, path, "name a file that larder profile wrote", "%s is too large for a profile",
			path)
	}
	return Parse(path, raw)
}

// Parse is Load for a file's content.
func Parse(path string, raw []byte) (*Profile, error) {
	const hint = "make a new one with larder profile DATASET"
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, errs.New(errs.Invalid, path, hint, "%s is no profile", path).Because(err)
	}
	if head.Version == nil || *head.Version != Version {
		return nil, errs.New(errs.Invalid, path, hint, "%s is no profile of version %d", path, Version)
	}
	p := new(Profile)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return nil, errs.New(errs.Invalid, path, hint, "%s is no profile", path).Because(err)
	}
	for _, x := range []struct {
		name  string
		value float64
	}{
		{"workers", float64(p.Workers)}, {"dataset.samples", float64(p.Dataset.Samples)},
		{"rates.decode", p.Rates.Decode}, {"rates.decode_augment", p.Rates.DecodeAugment}, {"rates.augment",
			p.Rates.Augment}, {"rates.finish", p.Rates.Finish},
		{"bytes.stored", p.Bytes.Stored}, {"bytes.encoded", p.Bytes.Encoded}, {"bytes.decoded", p.Bytes.Decoded}, {
			"bytes.augmented", p.Bytes.Augmented},
		{"storage.bytes_per_second", p.Storage.BytesPerSecond}, {"disk.bytes_per_second", p.diskRate()},
		{"memory_bytes_per_second", p.Memory},
	} {
		if !(x.value > 0) || x.value > 1e18 {
			return nil, errs.New(errs.Invalid, path, hint, "%s: %s is %v", path, x.name, x.value)
		}
	}
	return p, nil
}

// diskRate is that of the disk tier, or of the storage where there is none.
func (p *Profile) diskRate() float64 {
	if p.Disk == nil {
		return p.Storage.BytesPerSecond
	}
	return p.Disk.BytesPerSecond
}

// Use is how the profiled datasets are read.
type Use struct {
	Jobs          int     // on each profile
	Disk          int64   // bytes of a disk tier; 0 = there is none
	Share         bool    // they share augmented samples
	Degree        float64 // jobs served by one read, and the decode of what it read; 0 = what stratified order reaches
	DecodeDegree  float64 // jobs served by one decode of what the encoded tier holds; 0 = as Degree
	AugmentDegree float64 // where they share, jobs served by one augmentation that no tier keeps; 0 = as Degree
	Ingest        float64 // samples a second that each training takes; 0 = not known
	Fairness      float64
}

// footprint is how much of a tier's budget a sample of that many bytes takes: whole granules, half of one more in the
// mean, of what the tier promises (tiers.Usable).
func footprint(bytes float64) float64 {
	const budget = 1 << 40
	return (bytes + float64(arena.Granule)/2) * budget / float64(tiers.Usable(budget))
}

// sharedWork is the part of the profiled speed that is reached where several jobs share decodes: each step of a sample
// is a task of its own then, the image between two steps lies in memory, and the coordinator, the clients and the
// kernel want the same cores. Measured on two cores, photographs, where the cores limit: 0.85 to 0.99, 0.92 in the mean
// of 14 splits (four jobs a quarter of an epoch apart, three with unlike batches; bench/py/tiers.py). One job's
// samples are prepared in one step, at 1.0 to 1.1 of the profiled speed.
const sharedWork = 0.92

// Demand is what the models decide from: every profile with its jobs. Profiles of one dataset share its encoded form,
// and, where their recipes begin alike, its decoded one. Where datasets are read at unlike speeds (small files, another
// disk), the stored bytes are weighted, so that seconds of storage are right.
func Demand(budget int64, use Use, list ...*Profile) partition.Demand {
	d := partition.Demand{Budget: budget, Fairness: &use.Fairness,
		Machine: partition.Machine{Nodes: 1, NIC: math.Inf(1), PCIe: math.Inf(1), Cache: math.Inf(1),
			Waiting: partition.MeasuredWaiting}}
	storage := storageRates(use.Disk, list)
	for i, p := range list {
		d.Machine.Storage = max(d.Machine.Storage, storage[i])
		d.Machine.Cache = min(d.Machine.Cache, p.Memory)
	}
	degree := use.Degree
	if degree == 0 {
		degree = max(1, float64(use.Jobs)/partition.StratifiedDegree)
	}
	at := map[string]int{}
	for n, p := range list {
		i, ok := at[p.Dataset.URI]
		if !ok {
			i = len(d.Datasets)
			at[p.Dataset.URI] = i
			d.Datasets = append(d.Datasets, partition.Dataset{Name: p.Dataset.URI, Samples: p.Dataset.Samples,
				Stored: p.Bytes.Stored * d.Machine.Storage / storage[n], Encoded: footprint(p.Bytes.Encoded)})
		}
		r := partition.Recipe{Name: p.Recipe.ID, Prefix: p.Recipe.Prefix, Decoded: footprint(p.Bytes.Decoded),
			Augmented:     footprint(p.Bytes.Augmented),
			DecodeAugment: p.Rates.DecodeAugment, Augment: p.Rates.Augment, Finish: p.Rates.Finish, Sharers: 1, Degree: degree,
			DecodeDegree: use.DecodeDegree}
		if use.Jobs > 1 && p.Rates.Decode > 0 {
			// One job's decode of what is not kept looks at the part that it crops. One that serves several jobs is of the whole
			// image.
			r.DecodeAugment = sharedWork * min(r.DecodeAugment, 1/(1/p.Rates.Decode+1/p.Rates.Augment))
			r.Augment *= sharedWork
		}
		job := partition.Job{Ingest: math.Inf(1)}
		if use.Ingest > 0 {
			job.Ingest = use.Ingest
		}
		for range use.Jobs {
			r.Jobs = append(r.Jobs, job)
		}
		if use.Share && p.Recipe.Random {
			r.Sharers = use.Jobs
			if r.AugmentDegree = use.AugmentDegree; r.AugmentDegree == 0 {
				r.AugmentDegree = degree
			}
		}
		d.Datasets[i].Recipes = append(d.Datasets[i].Recipes, r)
	}
	return d
}

// storageRates are the bytes a second at which each profile's stored samples come, with a disk tier of so many bytes
// before their stores. Samples are drawn at random, so the part that the tier holds of a dataset is the part of its
// reads that it serves. Encoded memory holds samples that the tier holds too: what is in memory leaves as large a part
// of the other reads to the tier. A tier that is smaller than all datasets holds as large a part of each.
func storageRates(diskBytes int64, list []*Profile) []float64 {
	var all int64
	seen := map[string]bool{}
	for _, p := range list {
		if !seen[p.Dataset.URI] {
			seen[p.Dataset.URI] = true
			all += p.Dataset.Bytes
		}
	}
	held := min(1, float64(diskBytes)/float64(max(all, 1)))
	out := make([]float64, len(list))
	for i, p := range list {
		out[i] = p.Storage.BytesPerSecond
		if p.Disk != nil && held > 0 {
			out[i] = 1 / ((1-held)/p.Storage.BytesPerSecond + held/p.Disk.BytesPerSecond)
		}
	}
	return out
}
