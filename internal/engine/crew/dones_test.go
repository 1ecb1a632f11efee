package crew

import (
	"encoding/binary"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/session/wire"
	"larder/tiers"
)

var dense = record.Schema{Fields: []record.Field{
	{Name: "x", Kind: record.Array, DType: record.Int64, Shape: []int64{2}},
	{Name: "b", Kind: record.Scalar, DType: record.Bool},
}}

// denseRig is a rig whose records are dense, and a worker that takes several tasks at once.
func denseRig(t *testing.T, window uint32, change ...func(*Config)) (*rig, *Worker, *hand, []byte) {
	r := newRig(t, change...)
	made := *r.job.Made
	made.Item, made.Out = dense, dense
	r.job.Made = &made
	h := &hand{came: make(chan struct{}, 1<<16)}
	w, mem := r.attachAs(&wire.WorkRequest{Client: "c", PID: 1, Window: window, Mark: new(uint64), Batch: true}, 1<<16, h)
	r.Crew.mu.Lock()
	w.pace.window = int(window) // as after many quick answers
	r.Crew.mu.Unlock()
	return r, w, h, mem
}

func denseOf(t *testing.T, x int, b byte) record.View {
	data := binary.LittleEndian.AppendUint64(nil, uint64(x))
	values := []record.Content{{Dims: []int64{2}, Data: append(data, data...)}, {Data: []byte{0}}}
	blob, err := record.Encode(&dense, values)
	if err != nil {
		t.Fatal(err)
	}
	v, err := record.Open(blob)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range v.All {
		if i == 1 {
			f.Data[0] = b
		}
	}
	return v
}

// stack answers n tasks from first on.
func (w *Worker) stack(t *testing.T, mem []byte, first uint64, views []record.View) error {
	b, err := record.AppendStack(mem[:64], views)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Settle()
	return w.Dones(wire.DonesFrame{First: first, Count: uint32(len(views)), Offset: 64, Bytes: uint64(len(b) - 64)})
}

// Each sample of a stack goes where its task says, as a record of its own; one FREE frees all.
func TestStacksAreTakenOver(t *testing.T) {
	r, w, h, mem := denseRig(t, 8)
	defer w.Close(true)
	var first uint64
	var views []record.View
	for i := range 8 {
		r.prepare(coordinator.FlightID(1+i), i%2 == 0)
		views = append(views, denseOf(t, 10+i, byte(i%2)))
	}
	for i := range 8 {
		k := h.take(t)
		if i == 0 {
			first = k.Task
		}
		if k.Task != first+uint64(i) || k.Sample != uint64(1+i) {
			t.Fatalf("%+v", k)
		}
	}
	if err := w.stack(t, mem, first, views); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		id := coordinator.FlightID(1 + i)
		p := r.waitFor(id)
		if p.Err != "" || p.Kept != (i%2 == 0) {
			t.Fatalf("%+v", p)
		}
		got, _ := r.Copy(id)
		if p.Kept {
			v, err := r.store.Open(ident.Key{Object: ident.ObjectID(1 + i), Form: ident.Decoded, Recipe: 2})
			if err != nil {
				t.Fatal(err)
			}
			got = v.Bytes
			defer v.Close()
		}
		if string(got[:views[i].Len()]) != string(views[i].Bytes()[:views[i].Len()]) || len(got) < len(views[i].Bytes()) {
			t.Errorf("sample %d is another one", i)
		}
		if x := binary.LittleEndian.Uint64(got[128:]); x != uint64(10+i) {
			t.Errorf("sample %d has %d", i, x)
		}
		r.Discard(id)
	}
	if n := r.Stats().Tasks; len(h.freed) != 1 || n != 8 {
		t.Errorf("%d records were freed, %d counted", len(h.freed), n)
	}
}

// A tier that is full in the middle of a stack keeps what has room, and the rest become working copies. All have the
// bytes of their records, whatever the worker writes there once it is told that it may, and all memory is given back.
func TestATierFillsWithinAStack(t *testing.T) {
	const n, fit = 8, 3
	r, w, h, mem := denseRig(t, n)
	defer w.Close(true)
	var views []record.View
	for i := range n {
		views = append(views, denseOf(t, 100*i, byte(i%2)))
	}
	granule := int64(0)
	for entry := range fit { // what else is in the tier
		k := ident.Key{Object: ident.ObjectID(900 + entry), Form: ident.Decoded, Recipe: 2}
		b, err := r.store.Alloc(k, int64(len(views[0].Bytes())))
		if err != nil || b.Commit(tiers.Meta{}) != nil {
			t.Fatal(err)
		}
		granule = r.store.Used(ident.Decoded) / int64(entry+1)
	}
	if err := r.store.SetBudget(ident.Decoded, 2*fit*granule); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r.prepare(coordinator.FlightID(1+i), true)
	}
	first := h.take(t).Task
	for range n - 1 {
		h.take(t)
	}
	if err := w.stack(t, mem, first, views); err != nil || len(h.freed) != 1 {
		t.Fatal(err, h.freed)
	}
	for i := range mem[64:] {
		mem[64+i] = 0xee
	}
	kept := 0
	for i := range n {
		id := coordinator.FlightID(1 + i)
		p := r.waitFor(id)
		got, copied := r.Copy(id)
		if p.Kept == copied || p.Err != "" {
			t.Fatalf("sample %d: %+v, and a working copy: %v", i, p, copied)
		}
		if p.Kept {
			kept++
			v, err := r.store.Open(ident.Key{Object: ident.ObjectID(1 + i), Form: ident.Decoded, Recipe: 2})
			if err != nil {
				t.Fatal(err)
			}
			got = append([]byte(nil), v.Bytes...)
			v.Close()
		}
		if want := views[i].Bytes(); string(got[24:len(want)]) != string(want[24:]) { // without sum
			t.Errorf("sample %d is another one", i)
		}
		r.Discard(id)
	}
	if kept != fit || r.Held() != 0 {
		t.Errorf("%d samples were kept, want %d; %d bytes are held", kept, fit, r.Held())
	}
}

// A value that cannot be costs the sample that has it, a form that does not fit costs all of them a try, and none is
// lost.
func TestStacksAreNotTrusted(t *testing.T) {
	r, w, h, mem := denseRig(t, 4)
	defer w.Close(true)
	for i := range 4 {
		r.prepare(coordinator.FlightID(1+i), false)
	}
	first := h.take(t).Task
	for range 3 {
		h.take(t)
	}
	views := []record.View{denseOf(t, 0, 0), denseOf(t, 1, 7), denseOf(t, 2, 1), denseOf(t, 3, 0)}
	for _, bad := range [][2]uint64{{first + 1, 4}, {first - 1, 2}, {first + 4, 1}} {
		if err := w.Dones(wire.DonesFrame{First: bad[0], Count: uint32(bad[1]), Offset: 64}); err == nil {
			t.Errorf("%d tasks from %d on were answered", bad[1], bad[0])
		}
	}
	if err := w.stack(t, mem, first, views); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if p := r.waitFor(coordinator.FlightID(1 + i)); (p.Err == "") != (i != 1) {
			t.Errorf("sample %d: %+v", i, p)
		}
	}
	for i := range 2 {
		r.prepare(coordinator.FlightID(10+i), false)
	}
	first = h.take(t).Task
	h.take(t)
	if err := w.Dones(wire.DonesFrame{First: first, Count: 2, Offset: 1 << 40, Bytes: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if p := r.waitFor(coordinator.FlightID(10 + i)); p.Err == "" {
			t.Errorf("sample %d of a stack outside of the memory was taken", i)
		}
	}
}

// A worker that was at several tasks when it ended blames none of them: they come again alone, and then the one that it
// is at is known.
func TestTheOneOfSeveralIsFound(t *testing.T) {
	r, w, h, _ := denseRig(t, 4)
	for i := range 4 {
		r.prepare(coordinator.FlightID(1+i), false)
	}
	for range 4 {
		if k := h.take(t); k.Alone {
			t.Fatalf("%+v", k)
		}
	}
	o := &hand{came: make(chan struct{}, 1<<16)}
	other, _ := r.attachAs(&wire.WorkRequest{Client: "c", PID: 2, Window: 4, Mark: new(uint64), Batch: true}, 1<<16, o)
	defer other.Close(true)
	w.Close(false)
	r.clock.pass(grace)
	k := o.take(t)
	if !k.Alone {
		t.Fatalf("%+v", k)
	}
	r.Crew.mu.Lock()
	if n := other.held[0].t.failures; n != 0 {
		t.Errorf("%d failures count", n)
	}
	r.Crew.mu.Unlock()
}

// A worker that marked a task which another worker answered meanwhile is not at its oldest task: nobody else is blamed,
// and it has a deadline though it has nothing that still counts.
func TestNobodyIsBlamedForALentTask(t *testing.T) {
	r, w, h, mem := denseRig(t, 4)
	r.prepare(1, false)
	k := h.take(t)
	binary.LittleEndian.PutUint64(mem, k.Task)
	r.Crew.mu.Lock()
	w.lent, w.held = append(w.lent, w.held[0]), nil // as when an inline worker answered it
	w.arm()
	r.Crew.mu.Unlock()
	r.prepare(2, false)
	h.take(t)
	r.Crew.mu.Lock()
	if at := w.at(); at != -1 {
		t.Errorf("it is at %d", at)
	}
	w.held = nil
	w.arm()
	r.Crew.mu.Unlock()
	r.clock.pass(time.Second)
	if len(h.gone) != 1 || r.Stats().Late != 1 {
		t.Errorf("a worker that hangs in a task that others answered stays: %d", len(h.gone))
	}
}
