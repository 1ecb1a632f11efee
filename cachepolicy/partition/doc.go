// Package partition decides how one memory budget is split among the tiers: how many bytes hold encoded samples, how
// many decoded ones, and how many augmented ones.
//
// # The question
//
// A byte can hold part of a stored file (small, saves the read), of its pixels (larger, saves the decode too) or of a
// finished augmentation (saves almost everything, but an instance serves a job only once). Which one saves the most
// time depends on the machine, the dataset, the recipe, and on which jobs share.
//
// # Inputs
//
// A Demand holds everything that counts. All of it is measured (internal/profile, or the daemon's own meters); nothing
// has a default, because a wrong rate would give a wrong split without any sign of it.
//
//   - Machine: bytes a second of storage, memory bandwidth, network and PCIe, shared by all jobs.
//   - Dataset and Recipe: mean bytes of a sample in each form, and samples a second a node prepares from each form.
//   - Job: the samples a second its training takes at most.
//   - Degrees: how many jobs one read, one decode and one augmentation serve, when their picks fall together.
//
// # The law
//
// A job takes its samples from the forms in fixed proportions p, so time adds up by resource. With d(f, k) the seconds
// of resource k that a sample from form f takes, the rate of a job is
//
//	X = 1 / max over k of (sum over f of p_f * d(f, k))
//
// This is the bottleneck law of operational analysis (Denning and Buzen, 1978), applied to the resources of the Seneca
// paper (FAST'26). The paper itself averages the rates of the forms instead of adding their times; model Seneca keeps
// that, for comparison. With Machine.Waiting above 0, a part of the work of the other resources is added to that of the
// most loaded one. problem.go holds the table d, docs/tiers.md prints it, and docs/measurements/tiers.md
// compares it with measurements.
//
// # What is maximised
//
// A model maximises the samples a second of all jobs together. No job may fall below Demand.Fairness times its fair
// share: its rate if every job owned an equal part of the budget, split best for its recipe alone. That division is a
// candidate itself, so the condition can always be met. Among equal rates the model takes the split with the least
// work, then the one with the fewest bytes.
//
// For one recipe the answer is the exact optimum of a min-max linear program (memory.go, program.go). Several recipes
// multiply rates by memory, which is not convex. Then a few programs are solved and lines between their solutions are
// searched (bottleneck.go); the result is never worse than the equal division.
//
// # Use
//
// New returns a Model. Model.Solve returns a Plan; Model.Predict gives the rate of any other split. Adopt says whether
// a new plan is worth the evictions it costs. Until every rate is known (Demand.Measured), SimpleSplit decides by a
// rule of thumb.
//
// # What it does not do
//
// It measures nothing, moves no memory and does not choose which sample a tier keeps (package cachepolicy does). It is
// pure: equal demands give equal plans.
package partition
