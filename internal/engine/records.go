package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protojson"

	"larder/internal/engine/record"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/nearest"
	records "larder/internal/record"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// declaration is what a dataset made by workers was declared with.
type declaration struct {
	made   source.Made
	parts  map[string]any // of its fingerprint
	schema records.Schema
	proto  *larderv1.Schema
	asked  int // how often it was declared since, and no job was registered on it; declarations.mu guards it
}

// declarations are those of all datasets, by uri. The zero value is empty.
type declarations struct {
	adding sync.Mutex // one at a time
	mu     sync.Mutex
	byURI  map[string]*declaration
}

func (d *declarations) of(uri string) (*declaration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := d.byURI[uri]
	return x, ok
}

func (d *declarations) set(uri string, x *declaration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byURI == nil {
		d.byURI = map[string]*declaration{}
	}
	if x == nil {
		delete(d.byURI, uri)
	} else {
		d.byURI[uri] = x
	}
}

// expect notes that the client who declared a dataset is to register a job on it.
func (d *declarations) expect(uri string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.byURI[uri]; x != nil {
		x.asked++
	}
}

// settled notes that the client registered its job, or could not.
func (d *declarations) settled(uri string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.byURI[uri]; x != nil && x.asked > 0 {
		x.asked--
	}
}

// unasked reports whether a dataset is declared, and no client is to register a job on it.
func (d *declarations) unasked(uri string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.byURI[uri]
	return x != nil && x.asked == 0
}

// private are the uris of the private datasets, sorted.
func (d *declarations) private() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for uri, x := range d.byURI { // order-free: sorted below
		if x.made.Private {
			out = append(out, uri)
		}
	}
	slices.Sort(out)
	return out
}

// AddRecords declares a dataset whose samples are records made by worker processes. One that is declared already must
// be the same.
func (e *Engine) AddRecords(
	ctx context.Context, req *larderv1.AddRecordsRequest,
) (*larderv1.AddRecordsResponse, error) {
	if e.draining.Load() {
		return nil, errDraining
	}
	if err := e.cfg.Journal.Log.Room(); err != nil {
		return nil, err
	}
	schema, err := records.FromProto(req.GetSchema())
	if err != nil {
		return nil, err
	}
	x := &declaration{schema: schema, proto: req.GetSchema(), parts: req.GetFingerprint().AsMap(), made: source.Made{
		Name: req.GetName(), Version: req.GetVersion(), Length: int(min(req.GetLength(), 1<<40)),
		UID: asker(ctx).uid(), Private: req.GetPrivate(),
	}}
	if x.made.Fingerprint, err = x.fingerprint(); err != nil {
		return nil, err
	}
	rec, err := x.record() // before it is declared: nothing that fails leaves a dataset that no journal has
	if err != nil {
		return nil, err
	}
	e.registering.Lock() // it must not be removed meanwhile
	d, added, err := e.library.declare(ctx, x)
	if err == nil {
		e.library.declared.expect(d.URI())
	}
	if added {
		e.library.journal.Append(rec, nil)
	}
	e.registering.Unlock()
	if err != nil {
		return nil, err
	}
	if added {
		e.cfg.Log.Info("dataset declared", "uri", d.URI(), "samples", d.LiveCount(), "uid", x.made.UID,
			"private", x.made.Private)
	}
	return &larderv1.AddRecordsResponse{Dataset: e.library.dataset(d), Uri: d.URI()}, nil
}

// fingerprint hashes all that was declared.
func (x *declaration) fingerprint() (uint64, error) {
	parts, err := json.Marshal(x.parts) // its keys are sorted
	if err != nil {
		return 0, errs.New(errs.Invalid, "fingerprint", "use text", "the fingerprint of dataset %s cannot be written as JSON",
			x.made.Name).Because(err)
	}
	return xxhash.Sum64String(fmt.Sprintf("larder records 1 %q %q %d %s %+v", x.made.Name, x.made.Version, x.made.Length,
		parts, x.schema.Fields)), nil
}

// declare makes the dataset, or finds it and compares.
func (l *library) declare(ctx context.Context, x *declaration) (d *source.Dataset, added bool, err error) {
	l.declared.adding.Lock()
	defer l.declared.adding.Unlock()
	if d, added, err = l.catalog.AddMade(ctx, x.made); err != nil {
		return nil, false, err
	}
	if added {
		l.declared.set(d.URI(), x)
		return d, true, nil
	}
	was, ok := l.declared.of(d.URI())
	if !ok {
		return nil, false, errs.New(errs.Unavailable, d.Name(), "try again", "dataset %s is being removed", d.Name())
	}
	if was.made.UID != x.made.UID {
		return nil, false, errs.New(errs.Denied, d.Name(), "choose another name=",
			"declare dataset %s: uid %d has declared one of that name, and uid %d asks", d.Name(), was.made.UID, x.made.UID)
	}
	if diff := was.diff(x); diff != "" {
		return nil, false, errs.New(errs.AlreadyExists, d.Name(),
			"give what has changed another version=, or choose another name=",
			"dataset %s is declared already, and differs: %s", d.Name(), diff)
	}
	return d, false, nil
}

// diff says in which parts two declarations of a name differ; empty = in none.
func (x *declaration) diff(y *declaration) string {
	var out []string
	if x.made.Length != y.made.Length {
		out = append(out, fmt.Sprintf("it has %d samples there and %d here", x.made.Length, y.made.Length))
	}
	for _, k := range sortedKeys(x.parts, y.parts) {
		a, b := fmt.Sprint(x.parts[k]), fmt.Sprint(y.parts[k])
		if a != b && (k != "length" || len(out) == 0) {
			out = append(out, fmt.Sprintf("%s is %.200q there and %.200q here", k, a, b))
		}
	}
	if !x.schema.Equal(&y.schema) {
		out = append(out, fmt.Sprintf("its fields are %s there and %s here", fieldsOf(&x.schema), fieldsOf(&y.schema)))
	}
	return strings.Join(out, "; ")
}

// fieldsOf describes a schema in a few words.
func fieldsOf(s *records.Schema) string {
	var out []string
	for i := range s.Fields {
		f := &s.Fields[i]
		if i == 8 {
			out = append(out, fmt.Sprintf("and %d more", len(s.Fields)-i))
			break
		}
		out = append(out, fmt.Sprintf("%.80s %s %s%v", f.Name, f.Kind, f.DType, f.Shape))
	}
	return "(" + strings.Join(out, ", ") + ")"
}

// record makes the record by which a declaration survives.
func (x *declaration) record() (rec journal.Indexed, err error) {
	parts, err := json.Marshal(x.parts)
	if err != nil {
		return rec, err
	}
	schema, err := protojson.Marshal(x.proto)
	if err != nil {
		return rec, err
	}
	m := &x.made
	text, err := json.Marshal(record.Made{Name: m.Name, Version: m.Version, Length: m.Length, UID: m.UID,
		Private: m.Private, Fingerprint: parts, Schema: schema})
	if err != nil {
		return rec, err
	}
	return record.Indexed(record.Dataset{Name: m.URI(), URI: m.URI(), Made: string(text)})
}

// declareAgain declares a dataset of the journal.
func (l *library) declareAgain(ctx context.Context, document string) error {
	var m record.Made
	if err := json.Unmarshal([]byte(document), &m); err != nil {
		return err
	}
	x := &declaration{proto: new(larderv1.Schema), made: source.Made{Name: m.Name, Version: m.Version, Length: m.Length,
		UID: m.UID, Private: m.Private}}
	err := json.Unmarshal(m.Fingerprint, &x.parts)
	if err == nil {
		err = protojson.Unmarshal(m.Schema, x.proto)
	}
	if err == nil {
		x.schema, err = records.FromProto(x.proto)
	}
	if err == nil {
		x.made.Fingerprint, err = x.fingerprint()
	}
	if err == nil {
		_, _, err = l.declare(ctx, x)
	}
	return err
}

// Work takes a worker process of a client.
func (e *Engine) Work(
	_ context.Context, req *wire.WorkRequest, peer shm.Peer, memory *shm.Segment, out session.Hand,
) (session.Worker, error) {
	jobs, err := e.recipesOf(req, peer)
	if err != nil {
		memory.Release()
		return nil, err
	}
	w, err := e.crew.Attach(req, jobs, peer, memory, out)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// MaxMemory is the most bytes that the memory of a worker may have: room for a few of the largest records.
func (e *Engine) MaxMemory() int64 { return e.crew.MaxMemory() }

// recipesOf finds a job for each recipe that a worker names, and refuses workers of other users.
func (e *Engine) recipesOf(req *wire.WorkRequest, peer shm.Peer) ([]*work.Job, error) {
	var out []*work.Job
	for _, id := range req.Recipes {
		j, known := e.jobs.byRecipe(req.Dataset, id)
		if j == nil && len(known) == 0 && !source.IsMade(req.Dataset) {
			return nil, errs.New(errs.Invalid, "dataset", "name the uri that AddRecords answered, python:NAME@VERSION, or the "+
				"dataset of a job that has steps in Python", "a worker cannot make samples of %q", req.Dataset)
		}
		if j == nil {
			hint := "register the job before its workers attach"
			if near := nearest.Word(id, known); near != "" {
				hint = "Job.recipe of RegisterJob's answer names it"
			}
			return nil, errs.New(errs.NotFound, id, hint, "a worker of %s names recipe %.40q, which no job of it has",
				req.Dataset, id)
		}
		if m := j.Data.Made(); m != nil && m.UID != workerUID(peer) {
			return nil, errs.New(errs.Denied, req.Dataset, "declare the dataset under a name of your own",
				"dataset %s is of uid %d, and takes no workers of uid %d", req.Dataset, m.UID, peer.UID)
		} else if m == nil && workerUID(peer) != uint32(os.Getuid()) {
			return nil, errs.New(errs.Denied, req.Dataset, "run the job as the daemon's user",
				"steps in Python on %s are of the daemon's own user, and takes no workers of uid %d", req.Dataset, peer.UID)
		}
		out = append(out, &j.Job)
	}
	return out, nil
}

// workerUID is the user for whom a worker works: root and the daemon's own user are one, as in every request.
func workerUID(peer shm.Peer) uint32 {
	if peer.UID == 0 {
		return uint32(os.Getuid())
	}
	return peer.UID
}

// ownsRank reports whether a process holds a rank of a job.
func (e *Engine) ownsRank(pid int32, id ident.JobID) bool {
	j := e.jobs.byID(id)
	if j == nil {
		return false
	}
	for r := range j.life.World {
		if p, held := e.rings.Holder(id, r); held && p.PID == pid {
			return true
		}
	}
	return false
}

// endMade ends what a job on a dataset made by workers leaves behind. It runs in the loop's goroutine.
func (e *Engine) endMade(j *job) {
	if !j.ByClients() {
		return
	}
	e.crew.Ended(j.ID)
	if m := j.Data.Made(); m != nil && m.Private {
		e.background.Go(func() { e.removePrivate(j.Data) })
	}
}

// removePrivate removes a private dataset that no live job uses.
func (e *Engine) removePrivate(d *source.Dataset) {
	_, err := e.remove(context.Background(), d, func() bool {
		now, there := e.cfg.Data.Catalog.Get(d.URI())
		return there && now == d && e.library.declared.unasked(d.URI())
	})
	if err != nil && !errs.Is(err, errs.AlreadyExists) && !errs.Is(err, errs.Unavailable) {
		e.log.note(slog.LevelWarn, "a private dataset could not be removed", "dataset", d.URI(), "err", err)
	}
}

// notRegistered removes a private dataset on which no job could be registered, unless another one uses it. It stays
// where the client is to ask again after a moment.
func (e *Engine) notRegistered(ctx context.Context, uri string, why error) {
	x, ok := e.library.declared.of(uri)
	if !ok || !x.made.Private || x.made.UID != asker(ctx).uid() || e.draining.Load() ||
		errs.Is(why, errs.RankHeld) || errs.Is(why, errs.Unavailable) {
		return
	}
	e.library.declared.settled(uri)
	if d, ok := e.cfg.Data.Catalog.Get(uri); ok {
		e.removePrivate(d)
	}
}

// removeUnused removes the private datasets of the journal on which no job was restored: their clients are gone.
func (t *restorer) removeUnused(ctx context.Context) error {
	for _, uri := range t.library.declared.private() {
		d, ok := t.library.catalog.Get(uri)
		if !ok || t.jobs.reads(d) {
			continue
		}
		if _, _, err := t.library.catalog.Remove(ctx, d); err != nil {
			return err
		}
		t.library.declared.set(uri, nil)
		if err := t.library.recordName(record.Dataset{Name: d.Name(), URI: d.URI(), Removed: true}); err != nil {
			return err
		}
	}
	return nil
}

// reads reports whether a job that is remembered reads a dataset.
func (r *registry) reads(d *source.Dataset) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.mu.jobs { // order-free: one is enough
		if j.Data == d {
			return true
		}
	}
	return false
}

// noRecords refuses what a job can ask of records only.
func noRecords(s *larderv1.JobSpec) error {
	python := hasPython(s) // workers of clients make some of the steps
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"cache", s.GetCache() != ""}, {"schema", !python && s.GetSchema() != nil},
		{"sample_timeout", !python && s.GetSampleTimeout() != nil},
	} {
		if f.set {
			return errs.New(errs.Unsupported, f.name, "leave it out",
				"register job %s: %s belongs to datasets made by workers, and dataset %.80q is not one", s.GetName(), f.name,
				s.GetDataset())
		}
	}
	return nil
}
