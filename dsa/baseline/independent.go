package baseline

// independent is what every loader does by itself: the next sample of a job is uniform over what its epoch still owes,
// whatever anybody else does. Joader's paper calls it ISA.
type independent struct{ s *Sampler }

func (r *independent) choose(j *job) uint32 { return j.rem.draw(r.s.rng) }

func (r *independent) round(jobs []*job, emit func(*job, uint32)) { alone(r, jobs, emit) }

func (*independent) started(*job)       {}
func (*independent) stopped(*job)       {}
func (*independent) taken(*job, uint32) {}
func (*independent) back(*job, uint32)  {}
func (*independent) leveled(uint32)     {}
