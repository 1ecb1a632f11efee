package partition

import "math"

// outcome is what a layout gives.
type outcome struct {
	total   float64
	rates   []float64 // samples a second by item, all its jobs
	levels  []float64 // samples a second of the item's fastest job
	mixes   [][numForms]float64
	load    [NumResources]float64
	binding Resource
}

// evaluate predicts what a layout gives by the bottleneck law: the rates of all jobs rise together, each job stops at
// what its training takes, and all that need a resource stop when it is used up.
func (pr *problem) evaluate(l layout) outcome {
	n := len(pr.items)
	o := outcome{rates: make([]float64, n), levels: make([]float64, n), mixes: make([][numForms]float64, n)}
	c := climb{need: make([]vector, n), next: make([]int, n), frozen: make([]bool, n), reach: make([]float64, n),
		active: pr.jobs}
	for i := range pr.items {
		c.need[i], o.mixes[i] = pr.sample(i, l)
	}
	for c.active > 0 {
		level, tight := c.nextStop(pr)
		c.stopAt(pr, &o, level, tight)
	}
	o.binding = Training
	most := 0.0
	for k, u := range c.used {
		o.load[k] = u
		if u > most+1e-6 && u > 1-1e-6 { // of equals the first, whatever whole bytes leave
			o.binding, most = Resource(k), u
		}
	}
	for _, r := range o.rates {
		o.total += r
	}
	if c.trained > 0 {
		o.load[Training] = float64(c.trained) / float64(pr.jobs)
	}
	if pr.d.Machine.Waiting > 0 && pr.waited((*vector)(o.load[:Training])) > 1 {
		for i := range c.reach {
			if c.reach[i] == 0 {
				c.reach[i] = c.top
			}
		}
		o.wait(pr, c.need, c.reach)
	}
	return o
}

// climb is the state of evaluate while rates rise.
type climb struct {
	need    []vector  // by item: seconds of each resource that a sample takes
	next    []int     // by item: jobs before it run at the speed of their training
	frozen  []bool    // by item: none of its jobs rises any more
	reach   []float64 // by item: the level at which a resource stopped it; 0 = none has
	used    vector
	top     float64 // the highest level so far
	active  int     // jobs that still rise
	trained int     // jobs that run at the speed of their training
}

// nextStop returns the next level at which a job stops, and the resource that is used up there; -1 where the job
// reaches the speed of its training.
func (c *climb) nextStop(pr *problem) (level float64, tight int) {
	var slope vector
	level, tight = float64(maxLarge), -1
	for i := range pr.items {
		if c.frozen[i] {
			continue
		}
		it := &pr.items[i]
		level = min(level, it.ingest[c.next[i]])
		v, rising := &c.need[i], float64(len(it.ingest)-c.next[i])
		for k := range v {
			slope[k] += float64(rising * v[k])
		}
	}
	for k, s := range slope {
		if s > 0 && max(1-c.used[k], 0)/s < level {
			tight, level = k, max(1-c.used[k], 0)/s
		}
	}
	c.top = max(c.top, level)
	return level, tight
}

// stopAt stops the jobs that rise no further than level, and charges what they use.
func (c *climb) stopAt(pr *problem, o *outcome, level float64, tight int) {
	for i := range pr.items {
		it := &pr.items[i]
		if tight >= 0 && c.need[i][tight] > 0 && c.reach[i] == 0 {
			c.reach[i] = level
		}
		if c.frozen[i] {
			continue
		}
		stop := 0
		switch {
		case tight >= 0 && c.need[i][tight] > 0 || level == maxLarge:
			stop = len(it.ingest) - c.next[i]
		case tight < 0:
			for c.next[i]+stop < len(it.ingest) && it.ingest[c.next[i]+stop] <= level {
				stop++
				c.trained++
			}
		}
		if stop == 0 {
			continue
		}
		c.next[i] += stop
		c.active -= stop
		c.frozen[i] = c.next[i] == len(it.ingest)
		o.levels[i] = level
		rate := float64(stop) * level
		o.rates[i] += rate
		for k, x := range c.need[i] {
			c.used[k] += float64(rate * x)
		}
	}
}

// fits reports whether no job falls below factor times its fair share.
func (o *outcome) fits(fair []float64, factor float64) bool {
	for i, l := range o.levels {
		if l < factor*fair[i]*(1-1e-9) {
			return false
		}
	}
	return true
}

// describe writes the outcome into the plans of the datasets.
func (o *outcome) describe(plans []DatasetPlan, pr *problem, fair []float64) {
	for i := range pr.items {
		it := &pr.items[i]
		p := &plans[it.data].Recipes[it.recipe]
		m := o.mixes[i]
		p.Mix = Mix{Stored: m[fStored], Encoded: m[fEncoded], Decoded: m[fDecoded], Augmented: m[fAugmented]}
		p.Rate = o.rates[i]
		for _, t := range it.ingest {
			p.FairShare += math.Min(t, fair[i])
		}
	}
}
