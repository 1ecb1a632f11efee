package crew

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"larder/bench/coresim"
	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/internal/invariant"
	"larder/internal/shm"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
	"larder/jobs"
	"larder/tiers"
)

const (
	simSamples = 120 // of the dataset that workers make
	simImages  = 80  // of one of images; their objects follow
)

// simPlan is what workers of clients do in a world.
type simPlan struct {
	seed      uint64
	names     []string // of the jobs whose samples workers make
	kinds     map[string]simKind
	staff     map[string]int // workers that each client starts
	faults    [numFates]float64
	poison    map[uint64]fate // samples that fail at every worker
	window    int
	room      int64
	maxRecord int64
	timeout   time.Duration
	delay     time.Duration // at most, until a worker comes
	work      int           // microseconds of a task, at most
	rescue    time.Duration // from then on there are workers for all
	rescuers  int           // so many
	calm      time.Duration // from then on workers have no faults
	inline    bool          // the first worker of each client works while its script waits
	lose      int           // a tier loses an entry so many times
	stacks    int           // workers answer up to so many tasks at once; 0 = none takes TASKS
}

// drawPlan draws what workers do. Workers without faults are there from the beginning.
func drawPlan(seed uint64, faulty bool) *simPlan {
	r := xrand.New(seed, 41)
	p := &simPlan{seed: seed, kinds: map[string]simKind{}, staff: map[string]int{}, poison: map[uint64]fate{},
		window: 1 + r.IntN(3), room: int64(1+r.IntN(40)) * simRecord, maxRecord: 1 << 20,
		timeout: time.Duration(5+r.IntN(40)) * time.Millisecond, delay: 30 * time.Millisecond, work: 200 + r.IntN(2000),
		rescue: time.Duration(r.IntN(400)) * time.Millisecond, calm: time.Duration(200+r.IntN(2000)) * time.Millisecond,
		inline: r.IntN(3) == 0, rescuers: 1 + r.IntN(2)}
	if r.IntN(3) == 0 {
		p.maxRecord = 512 // there is room for few inputs: tasks are given back
	}
	if r.IntN(3) == 0 {
		p.lose = 1 + r.IntN(6)
	}
	for f := fateDie; f < numFates; f++ {
		if x := r.Float64(); r.IntN(2) == 0 {
			p.faults[f] = x * x * .08
		}
	}
	p.faults[fateGrow] = .02
	if r.IntN(2) == 0 {
		for range 1 + r.IntN(4) {
			p.poison[uint64(r.IntN(simSamples))] = []fate{fateDie, fateHang, fateLie, fateRaise, fateOp, fateRetry}[r.IntN(6)]
		}
	}
	if r.IntN(5) > 0 {
		p.stacks = 1 + r.IntN(64)
	}
	if !faulty {
		p.faults, p.poison, p.rescue, p.delay, p.inline, p.lose = [numFates]float64{}, map[uint64]fate{}, 0, 0, false, 0
	}
	return p
}

// drawKind draws a recipe: what is cached, where built-in ops are.
func drawKind(r *xrand.Rand) simKind {
	k := simKind{steps: uint32(1 + r.IntN(5))}
	for s := uint32(1); s < k.steps; s++ {
		if r.IntN(3) == 0 {
			k.native |= 1 << s
		}
	}
	switch r.IntN(3) {
	case 0:
		k.cut = k.steps
	case 1:
		k.cut = uint32(1 + r.IntN(int(k.steps)))
	}
	k.share = k.cut < k.steps && r.IntN(2) == 0
	k.form = simForm(r.IntN(int(numForms)))
	return k
}

// drawWorld draws a world: jobs whose samples workers make, and jobs of images beside them.
func drawWorld(seed uint64, p *simPlan) (coresim.Model, []coresim.Client) {
	r := xrand.New(seed, 43)
	const g = 4096 // bytes of an entry
	n := int64(simSamples)
	m := coresim.Model{Seed: seed, Workers: 1 + r.IntN(3), Read: 50 * time.Microsecond, Fill: 100 * time.Microsecond,
		Augment: 150, Granule: g, Usable: tiers.Usable, Check: 13, Lease: 40 * time.Millisecond,
		Decode:  func(x ident.ObjectID) time.Duration { return time.Duration(100+x%7*50) * time.Microsecond },
		Bytes:   func(ident.ObjectID) int64 { return 100 },
		Decoded: func(ident.ObjectID) int64 { return 600 }}
	m.Tiers.Sizes[ident.Decoded] = int64(r.IntN(int(2*n))) * g
	m.Tiers.Sizes[ident.Augmented] = int64(r.IntN(int(n))) * g
	m.Tiers.Total = m.Tiers.Sizes[ident.Decoded] + m.Tiers.Sizes[ident.Augmented] + g
	if r.IntN(3) == 0 { // as the model of the tiers finds best
		m.Tiers.Sizes[ident.Decoded] = -1
	}
	if r.IntN(2) == 0 {
		m.Ahead = 16
	}
	kinds := []simKind{drawKind(r), drawKind(r)}
	modes := []dsa.Mode{dsa.Stratified, dsa.Stratified, dsa.Epoch, dsa.Fixed, dsa.Sequential, dsa.Strict}
	var clients []coresim.Client
	for i := range 2 + r.IntN(4) {
		k := kinds[r.IntN(2)]
		python := i == 0 || r.IntN(4) > 0
		c := drawClient(r, fmt.Sprint("job", i), python)
		c.Sample.Mode, c.Sample.Seed = modes[r.IntN(len(modes))], r.Uint64()
		if c.Spec.Subset = len(c.Sample.Subset); c.Spec.Subset == 0 || c.Spec.Validate() != nil {
			continue
		}
		if python {
			rec := k.recipe()
			c.Prefix, c.Suffix, c.Data, c.Augmented = rec.Prefix(), rec.SuffixID(), 1, simRecord
			c.Making = coordinator.Making{Workers: true, Bare: k.cut == 0, InSteps: 0 < k.cut && k.cut < k.steps}
			c.Making.Native = k.nativeSuffix()
			if k.share {
				c.Share, c.Key = true, rec.ID()
			}
			p.names, p.kinds[c.Spec.Name] = append(p.names, c.Spec.Name), k
			if p.staff[c.Spec.Name] = r.IntN(4); p.rescue == 0 {
				p.staff[c.Spec.Name]++
			}
		}
		clients = append(clients, c)
	}
	return m, clients
}

func (k simKind) nativeSuffix() bool {
	for s := k.cut; s < k.steps; s++ {
		if k.native>>s&1 == 0 {
			return false
		}
	}
	return k.cut > 0 && k.cut < k.steps
}

func drawClient(r *xrand.Rand, name string, python bool) coresim.Client {
	first, n := 0, simSamples
	if !python {
		first, n = simSamples, simImages
	}
	c := coresim.Client{Step: time.Duration(1+r.IntN(3000)) * time.Microsecond, Epochs: 1 + r.IntN(3), Prefix: 5,
		Suffix: 6, Data: 2, Start: time.Duration(r.IntN(60)) * time.Millisecond}
	keep := 1 + r.IntN(4)
	for x := first; x < first+n; x++ {
		if r.IntN(4) < keep {
			c.Sample.Subset = append(c.Sample.Subset, ident.ObjectID(x))
		}
	}
	c.Spec = jobs.Spec{Name: name, Batch: 1 + r.IntN(16), World: 1, Slots: 2 + r.IntN(4),
		OnError: jobs.OnError(r.IntN(3)), DropLast: r.IntN(3) == 0}
	switch r.IntN(6) {
	case 0:
		c.Spec.World = 2
	case 1:
		if c.Die = 1 + r.IntN(6); r.IntN(2) == 0 {
			c.Back = time.Duration(1+r.IntN(30)) * time.Millisecond
		}
	case 2:
		c.Break = 2
	}
	return c
}

// simulate runs a world and looks at all that must hold of it.
func simulate(t *testing.T, p *simPlan, m coresim.Model, clients []coresim.Client) (*coresim.Result, *yard) {
	t.Helper()
	data := simCatalog(t)
	segments, _ := shm.Live()
	var y *yard
	m.Outside = func(d coresim.Desk) coresim.Outside {
		y = newYard(t, d, p, data)
		return y
	}
	res, err := coresim.Run(m, clients, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range res.Failures {
		t.Error(f)
	}
	for _, f := range append(res.Whole(clients), res.Stale()...) {
		t.Error(f)
	}
	for i := range clients {
		c, n := &clients[i], 0
		for _, e := range res.Epochs {
			if e.Job == c.Spec.Name && e.Ended {
				n++
			}
		}
		if c.Die == 0 && c.Break == 0 && n != c.Epochs*c.Spec.World {
			t.Errorf("%s: %d of %d rank-epochs ended", c.Spec.Name, n, c.Epochs*c.Spec.World)
		}
	}
	y.end()
	if n, _ := shm.Live(); n != segments && !t.Failed() {
		t.Errorf("%d segments of memory are left", n-segments)
	}
	return res, y
}

// end gives back what the world has.
func (y *yard) end() {
	for _, a := range y.agents {
		a.close(true)
	}
	y.crew.Stop()
	y.rings.Stop(func(string) error { return nil })
	y.rings.Wait()
	if err := y.store.Close(); err != nil {
		y.t.Error(err)
	}
}

// TestWorlds is the deterministic simulation of workers of clients: every seed is a world in which workers come, leave,
// die, hang, lie, answer twice and too late, beside jobs of images. LARDER_SIM_WORLDS of them; a failing seed is run
// again alone with LARDER_SIM_WORLD=SEED.
func TestWorlds(t *testing.T) {
	seeds, first := lane.Times(30, 100), 0
	if testing.Short() || invariant.Enabled {
		seeds = 15
	}
	if n, err := strconv.Atoi(os.Getenv("LARDER_SIM_WORLDS")); err == nil {
		seeds = n
	}
	if n, err := strconv.Atoi(os.Getenv("LARDER_SIM_WORLD")); err == nil {
		seeds, first = 1, n
	}
	var sum Stats
	rows, bad, stacks, stacked, large, parts := 0, 0, 0, 0, 0, 0
	for seed := first; seed < first+seeds; seed++ {
		p := drawPlan(uint64(seed), true)
		m, clients := drawWorld(uint64(seed), p)
		_, y := simulate(t, p, m, clients)
		if t.Failed() {
			t.Fatalf("seed %d; LARDER_SIM_WORLD=%d go test -run TestWorlds ./internal/engine/crew", seed, seed)
		}
		st := y.crew.Stats()
		sum.Tasks, sum.Retries, sum.Refused = sum.Tasks+st.Tasks, sum.Retries+st.Retries, sum.Refused+st.Refused
		sum.Failed, sum.Late, sum.Deaths = sum.Failed+st.Failed, sum.Late+st.Late, sum.Deaths+st.Deaths
		rows, bad = rows+y.rows, bad+len(y.bad)
		stacks, stacked, large, parts = stacks+y.stacks, stacked+y.stacked, large+y.large, parts+y.parts
	}
	t.Logf("nightly: %d worlds, 0 failures: %d rows looked at, %d tasks, %d retries, %d records refused, %d workers "+
		"late, %d dead, %d bad samples; %d tasks were answered with %d stacks, %d of them of 8 and more, and %d "+
		"times in several parts", seeds, rows, sum.Tasks, sum.Retries, sum.Refused, sum.Late, sum.Deaths, bad, stacked,
		stacks, large, parts)
	if first == 0 && (int(sum.Tasks) < 100*seeds || int(sum.Retries) < seeds || int(sum.Refused) < seeds ||
		int(sum.Late) < seeds/4 || int(sum.Deaths) < seeds/4 || bad < seeds/4 || stacks < 10*seeds ||
		large < seeds || parts < seeds) {
		t.Errorf("too little happens: %+v, %d bad samples, %d stacks, %d of them large, %d in parts", sum, bad, stacks,
			large, parts)
	}
}

// One seed gives one run, whatever workers do: the same decisions in the same order.
func TestWorldsAreReplayable(t *testing.T) {
	seeds := uint64(10)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		var hashes [2]uint64
		for i := range hashes {
			p := drawPlan(seed, true)
			m, clients := drawWorld(seed, p)
			res, _ := simulate(t, p, m, clients)
			hashes[i] = res.Hash
		}
		if hashes[0] != hashes[1] {
			t.Fatalf("seed %d: %x and %x", seed, hashes[0], hashes[1])
		}
	}
}

// orderOf is what a rank got of an epoch, without samples that were bad.
func orderOf(e *coresim.Received, bad map[ident.ObjectID]bool) []ident.ObjectID {
	return slices.DeleteFunc(slices.Clone(e.IDs), func(x ident.ObjectID) bool { return bad[x] })
}

// What workers do to their clients' samples changes nobody's order. Jobs of fixed orders get the same samples in the
// same order with and without faults of workers, but for bad ones; jobs of images get the same at the same time.
func TestFaultsOfWorkersChangeNoOrder(t *testing.T) {
	seeds := uint64(25)
	if testing.Short() {
		seeds = 10
	}
	orders, images := 0, 0
	for seed := range seeds {
		var res [2]*coresim.Result
		for i := range res {
			p := drawPlan(seed, i == 1)
			m, clients := drawWorld(seed, p)
			m.Tiers.Sizes = [ident.NumForms]int64{} // who keeps what depends on when it is made: it has a test of its own
			for k := range clients {
				if c := &clients[k]; c.Making.Workers && c.Sample.Mode != dsa.Sequential {
					c.Sample.Mode = dsa.Fixed
				}
				clients[k].Spec.OnError, clients[k].Spec.World, clients[k].Break, clients[k].Die = jobs.Skip, 1, 0, 0
			}
			res[i], _ = simulate(t, p, m, clients)
		}
		for _, e := range res[0].Epochs {
			k := slices.IndexFunc(res[1].Epochs, func(o *coresim.Received) bool { return o.Job == e.Job && o.Epoch == e.Epoch })
			o, bad := res[1].Epochs[k], map[ident.ObjectID]bool{}
			for _, b := range o.Bad {
				bad[b.Object] = true
			}
			if !slices.Equal(orderOf(e, bad), o.IDs) {
				t.Errorf("%s epoch %d: %v without faults of workers, %v with them", e.Job, e.Epoch, e.IDs, o.IDs)
			}
			if orders++; e.IDs[0] >= simSamples {
				if images++; e.Finished != o.Finished || len(bad) > 0 {
					t.Errorf("%s epoch %d: ended at %v without faults of workers, at %v with them", e.Job, e.Epoch, e.Finished,
						o.Finished)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if orders < 4*int(seeds) || images < int(seeds)/2 {
		t.Errorf("%d epochs were compared, %d of them of images", orders, images)
	}
}

// Workers that come and go, and hand tasks back, cost no sample: none is bad.
func TestWorkersThatLeaveCostNoSample(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		p := drawPlan(seed, true)
		p.faults, p.poison = [numFates]float64{fateRetry: .01, fateLeave: .02, fateGrow: .1}, map[uint64]fate{}
		m, clients := drawWorld(seed, p)
		if _, y := simulate(t, p, m, clients); len(y.bad) > 0 || t.Failed() {
			t.Fatalf("seed %d: %d samples are bad", seed, len(y.bad))
		}
	}
}

// What fails at every worker is bad, and nothing else is: not what was made, answered or asked for together with it.
func TestOnlyTheCulpritIsBad(t *testing.T) {
	seeds := uint64(lane.Times(15, 40))
	if testing.Short() || invariant.Enabled {
		seeds = 8
	}
	found, large := 0, 0
	for seed := range seeds {
		p := drawPlan(seed, true)
		r := xrand.New(seed, 47)
		p.faults, p.poison, p.lose, p.inline = [numFates]float64{fateGrow: .01}, map[uint64]fate{}, 0, false
		p.stacks = 8 + r.IntN(57)
		for range 1 + r.IntN(5) {
			p.poison[uint64(r.IntN(simSamples))] = []fate{fateDie, fateHang, fateLie, fateRaise, fateRetry}[r.IntN(5)]
		}
		m, clients := drawWorld(seed, p)
		for i := range clients { // a sample that is out in its place is none that is bad
			clients[i].Spec.OnError, clients[i].Die, clients[i].Break = jobs.Skip, 0, 0
		}
		_, y := simulate(t, p, m, clients)
		for x := range y.bad { // order-free: each of them
			if _, ok := p.poison[x]; !ok {
				t.Errorf("seed %d: sample %d is bad, and fails at no worker", seed, x)
			}
		}
		if found, large = found+len(y.bad), large+y.large; t.Failed() {
			return
		}
	}
	if found < int(seeds) || large < int(seeds) {
		t.Errorf("%d samples were bad, and %d stacks large", found, large)
	}
}
