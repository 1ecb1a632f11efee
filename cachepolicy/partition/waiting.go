package partition

// wait slows the jobs until the most loaded resource has time for the part of the others' work that it does not hide.
// All levels fall by the same part, because jobs are served in turn; a job whose training is slower than that keeps its
// speed. reach is the level at which an item's jobs were stopped, or would have been if their training were faster.
func (o *outcome) wait(pr *problem, need []vector, reach []float64) {
	part := pr.d.Machine.Waiting
	// At a level, a job either runs at the speed of its training or rises with the level: its work is fixed or
	// level*slope. Counting a job in the wrong group overestimates its work. So the level only rises from round to round,
	// until all jobs are in the right group.
	round := func(level float64) float64 {
		var fixed, slope vector
		for i := range pr.items {
			rate, rising := 0.0, 0.0
			for n, t := range pr.items[i].ingest { // ascending
				if t > level*reach[i] {
					rising = float64(len(pr.items[i].ingest)-n) * reach[i]
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
	for range 2 * (pr.jobs + 1) {
		next := round(level)
		if next <= level*(1+1e-12) {
			break
		}
		level = next
	}
	trained := 0
	o.total, o.load = 0, [NumResources]float64{}
	for i := range pr.items {
		o.rates[i], o.levels[i] = 0, 0
		for _, t := range pr.items[i].ingest {
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
	o.load[Training] = float64(trained) / float64(pr.jobs)
	if o.binding == Training { // no resource is used up by the pure law: name the busiest one
		for k, x := range o.load[:Training] {
			if o.binding == Training || x > o.load[o.binding]+1e-6 {
				o.binding = Resource(k)
			}
		}
	}
}

// sumMost returns the work of all resources of the machine, and that of the most loaded one.
func sumMost(work *vector) (sum, most float64) {
	for _, x := range work {
		sum, most = sum+x, max(most, x)
	}
	return sum, most
}

// waited returns how long work takes: that of the most loaded resource, plus the part of the others' that it does not
// hide.
func (pr *problem) waited(work *vector) float64 {
	sum, most := sumMost(work)
	return most + float64(pr.d.Machine.Waiting*(sum-most))
}
