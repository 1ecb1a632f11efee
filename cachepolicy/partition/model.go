package partition

import (
	"larder/internal/errs"
	"larder/internal/nearest"
)

// Model decides how many bytes each form gets. The package comment states the objective. Where tiers do not limit, jobs
// get equally many samples a second, up to what their training takes, because the daemon serves them in turn.
//
// Implementations are pure and deterministic: equal demands give equal plans.
type Model interface {
	// Name returns the name that New took.
	Name() string
	// Solve chooses the split. Errors are *errs.Error INVALID_ARGUMENT, or RESOURCE_EXCEEDED where fixed sizes exceed
	// the budget; they name the value.
	Solve(d Demand) (Plan, error)
	// Predict returns what a given split would give. Bytes of a form are divided among datasets and recipes in
	// proportion to what they need of it, as a tier without quotas does. The split need not obey Budget or Fixed.
	Predict(d Demand, s Split) (Candidate, error)
}

// These are the names that New takes.
const (
	Bottleneck = "bottleneck"
	Seneca     = "seneca"
)

// Models lists the models, the default first.
func Models() []string { return []string{Bottleneck, Seneca} }

// New returns the model of that name; "" is the default. An unknown name is an *errs.Error INVALID_ARGUMENT that
// suggests the nearest one.
func New(name string) (Model, error) {
	switch name {
	case "", Bottleneck:
		return bottleneck{}, nil
	case Seneca:
		return seneca{}, nil
	}
	return nil, errs.New(errs.Invalid, "model", nearest.DidYouMean(name, Models()), "unknown model %.40q", name)
}

// StratifiedDegree estimates Degree while it is not measured: r jobs of one recipe have a Degree of r /
// StratifiedDegree. It is the reads per sample, relative to reading everything once for all, of four jobs staggered by
// a quarter, order stratified, with 20 % of the samples cached (staggered6 in docs/measurements/sampler.md).
const StratifiedDegree = 1.25

// MeasuredWaiting is Machine.Waiting of larder on one machine: the smallest value with which the law chooses the split
// that is measured to be best. The pure law assumes that a job reads and decodes at all times. Hits and misses come
// evenly (docs/design/orders.md), so this nearly holds; but without any waiting the law prefers a split that loads
// storage and cores equally, which measures 0.74 of the best. docs/measurements/tiers.md#the-waiting-part
// has the fit.
const MeasuredWaiting = 0.05
