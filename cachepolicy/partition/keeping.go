package partition

// Slowdown is the part of an epoch's time by which filling the decoded tier may lengthen it, when it is not known
// whether a later epoch will use what is kept. The epoch is compared with one in which nothing is kept. Users are
// promised 10 %; the rest is for what the means of a recipe miss.
const Slowdown = 0.08

// Keeping is what one sample of a recipe costs, in seconds of all cores that work. It says what it costs to keep the
// sample decoded, and what a later use of it saves. Fields that are 0 are not known.
type Keeping struct {
	InPlace float64 // to decode the part that is needed straight into a batch
	Decode  float64 // to decode the whole image
	Augment float64 // to make the row of a batch from the decoded form
	Memory  float64 // to get fresh pages for the decoded form
	Encoded float64 // to get fresh pages for the encoded form
	Read    float64 // to read it from storage, at the rate of all readers together
}

// What stands for figures that are not known yet: those of photographs of 500 pixels under RandomResizedCrop(224)
// (docs/measurements/tiers.md).
const (
	typicalExtra  = 0.7
	typicalSaved  = 0.8
	typicalStored = 0.05
)

// Extra is what keeping a sample decoded costs more than preparing it in place, as a multiple of the latter.
func (k Keeping) Extra() float64 {
	if k.InPlace <= 0 || k.Decode <= 0 || k.Augment <= 0 {
		return typicalExtra
	}
	return max(0, (k.Decode+k.Augment+k.Memory)/k.InPlace-1)
}

// Saved is what a use of the decoded form saves of preparing the sample in place, as a part of the latter.
func (k Keeping) Saved() float64 {
	if k.InPlace <= 0 || k.Augment <= 0 {
		return typicalSaved
	}
	return max(0, 1-k.Augment/k.InPlace)
}

// Spare is the time that cores have while storage is waited for, for each sample in place, as a multiple of that.
func (k Keeping) Spare() float64 {
	if k.InPlace <= 0 {
		return 0
	}
	return max(0, k.Read/k.InPlace-1)
}

// Stored is what keeping the encoded form costs, as a multiple of preparing the sample in place.
func (k Keeping) Stored() float64 {
	if k.InPlace <= 0 || k.Encoded <= 0 {
		return typicalStored
	}
	return k.Encoded / k.InPlace
}

// Pays reports whether so many later uses pay for keeping a sample decoded.
func (k Keeping) Pays(uses int) bool { return float64(uses)*k.Saved() > k.Extra() }

// Allowance is the time that filling the decoded tier may still take from the running epoch of a job, in multiples of
// the time of a sample in place. Each sample adds what it costs less than (1 + Slowdown): one in place Slowdown, a hit
// of the decoded tier also what it saved, and one that waits for storage what cores had to spare. So an epoch never
// takes more than (1 + Slowdown) times as long as one in which nothing is kept, and what earlier epochs kept pays for
// more: the tier is full after a few.
type Allowance struct{ left float64 }

// Begin begins an epoch. What is left of the epoch before is forfeited.
func (a *Allowance) Begin() { a.left = 0 }

// Hit counts a sample that the decoded tier, or the work for another job, gave.
func (a *Allowance) Hit(k Keeping) { a.left += Slowdown + k.Saved() }

// Prepare counts a sample that must be decoded. stored says that its encoded form is to be kept.
func (a *Allowance) Prepare(k Keeping, stored bool) {
	a.left += Slowdown + k.Spare()
	if stored {
		a.left -= k.Stored()
	}
}

// Affords reports whether the epoch can pay for keeping one more sample.
func (a *Allowance) Affords(k Keeping) bool { return a.left >= k.Extra() }

// Pay takes the price of keeping a sample: its Extra, or 0 where something else pays.
func (a *Allowance) Pay(price float64) { a.left -= price }
