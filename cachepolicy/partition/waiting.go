package partition

// wait slows the jobs until the most loaded resource has time for the part of the others' work that it does not hide. All levels fall by the
// same part, as jobs are served in turn; who is at the speed of its training below that stays there. reach is the level at which an
// item's jobs were stopped, or would have been were it not for their training.
func (o *outcome) wait(w *problem, need []vector, reach []float64) {
	part := w.d.Machine.Waiting
	// At a level, jobs either are at the speed of their training or rise with it: work of them is fixed + level*slope. Where they are
	// counted for the wrong one that is too much, so the level only rises from one round to the next, up to where all are right.
	round := func(level float64) float64 {
		var fixed, slope vector
		for i := range w.items {
			rate, rising := 0.0, 0.0
			for n, t := range w.items[i].ingest { // ascending
				if t > level*reach[i] {
					rising = float64(len(w.items[i].ingest)-n) * reach[i]
					break
				}
				rate += t
			}
			v := &need[i]
			for k := range v {
				fixed[k] += float64(rate * v[k])
				slope[k] += float64(rising * v[k])
			}
		}
		sumFixed, sumSlope := 0.0, 0.0
		for k := range fixed {
			sumFixed, sumSlope = sumFixed+fixed[k], sumSlope+slope[k]
		}
		next := 1.0
		for k := range fixed {
			busy := float64(sumSlope*part) + float64(slope[k]*(1-part))
			if room := 1 - float64(sumFixed*part) - float64(fixed[k]*(1-part)); busy > 0 && busy*next > room {
				next = max(room, 0) / busy
			}
		}
		return next
	}
	level := 0.0
	for range 2 * (w.jobs + 1) {
		next := round(level)
		if next <= level*(1+1e-12) {
			break
		}
		level = next
	}
	trained := 0
	o.total, o.load = 0, [NumResources]float64{}
	for i := range w.items {
		o.rates[i], o.levels[i] = 0, 0
		for _, t := range w.items[i].ingest {
			x := min(t, level*reach[i])
			if x == t {
				trained++
			}
			o.rates[i] += x
			o.levels[i] = max(o.levels[i], x)
		}
		o.total += o.rates[i]
		for k, x := range need[i] {
			o.load[k] += float64(o.rates[i] * x)
		}
	}
	o.load[Training] = float64(trained) / float64(w.jobs)
	if o.binding == Training { // the law itself has time for all, so nothing is used up: what works most is waited for most
		for k, x := range o.load[:Training] {
			if o.binding == Training || x > o.load[o.binding]+1e-6 {
				o.binding = Resource(k)
			}
		}
	}
}

// sumMost is the work of all resources of the machine, and of the most loaded one.
func sumMost(work *vector) (sum, most float64) {
	for _, x := range work {
		sum, most = sum+x, max(most, x)
	}
	return sum, most
}

// waited is how long work takes: that of the most loaded resource, and the part of the others' that it does not hide.
func (w *problem) waited(work *vector) float64 {
	sum, most := sumMost(work)
	return most + float64(w.d.Machine.Waiting*(sum-most))
}
