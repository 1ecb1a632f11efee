package coordinator

import (
	"fmt"
	"time"

	"larder/cachepolicy/partition"
	"larder/internal/ident"
)

// keeping decides, for samples that one job alone wants, whether the decoded tier may keep them. To keep one costs more
// than to decode a part of it into its batch. Known later epochs pay for that, so does a client that is slower than the
// daemon. Else the fill is paced (see partition.Allowance). Samples that jobs share are kept at once.
//
// It looks at means of the recipe, never at a sample, so what is resident stays independent of sizes, labels and ids.
type keeping struct {
	epoch     uint32
	begun     bool // epoch is one
	allowance partition.Allowance
	costs     partition.Keeping
	fresh     int             // samples for which costs still hold
	idle      bool            // the client did not wait for the last batch that it released: cores have time
	left      [unkepts]uint64 // samples of this epoch that only this job wanted and that were not kept, by why
	kept      uint64          // the same that were kept
}

// unkept is why the decoded tier does not keep a sample that one job alone wants now.
type unkept uint8

const (
	paced   unkept = iota // the epoch cannot pay for it yet
	last                  // no job uses it later
	unpaid                // its known later uses save less time than keeping it costs
	unkepts               // the number of reasons
)

const (
	// patience is how long a client may wait for a batch and still count as slower than the daemon.
	patience = time.Millisecond
	// costsHold is for how many samples the costs of a stream are looked up once.
	costsHold = 64
)

// keepingOf is the state of a stream before its next sample. The sample counts for the running epoch even where it is
// one of an earlier epoch that is prepared again: that must not begin an allowance.
func (fl *flights) keepingOf(s *stream) *keeping {
	k := &s.keeping
	if epoch := s.job.Epoch; !k.begun || k.epoch != epoch {
		k.epoch, k.begun, k.left, k.kept = epoch, true, [unkepts]uint64{}, 0
		k.allowance.Begin()
	}
	if k.fresh--; k.fresh < 0 {
		k.costs, k.fresh = fl.tiering.keepCosts(s), costsHold
	}
	return k
}

// keepCosts is what samples of a stream cost, as far as it was measured. For a visible job the sizes are of what it, or
// another visible one, has prepared or would have.
func (ti *tiering) keepCosts(s *stream) partition.Keeping {
	r := ti.rates(s)
	k := partition.Keeping{InPlace: perSample(r.InPlace), Decode: perSample(r.Decode), Augment: perSample(r.Augment)}
	stored := float64(s.stored.mean(0))
	if v := known(ti.model.rates.Storage); v > 0 {
		k.Read = stored / v
	}
	if v := known(ti.model.rates.Fresh); v > 0 {
		k.Memory, k.Encoded = float64(ti.expectedBytes(s, 0))/v, stored/v
	}
	return k
}

// perSample is the time of one sample; 0 = the rate is not known.
func perSample(rate float64) float64 {
	if rate = known(rate); rate == 0 {
		return 0
	}
	return 1 / rate
}

// mayKeep decides whether the decoded tier may keep a sample that no other job wants now, and at which price for the
// allowance of the job; if not, why. What is not worth that is kept all the same where its original bytes would be
// dropped: storage is not read again to save processor time.
func (fl *flights) mayKeep(s *stream, x ident.ObjectID) (may bool, price float64, why unkept) {
	k := &s.keeping
	costs, stores := k.costs, fl.tiering.budgets[ident.Encoded] > 0
	if _, there := fl.needs.find(s, ident.Key{Object: x, Form: ident.Encoded}); there {
		costs.Read, stores = 0, false // it is neither read nor given memory
	}
	k.allowance.Prepare(costs, stores)
	later, sure := fl.laterUses(s, x)
	switch {
	case sure && later == 0:
		return false, 0, last
	case sure:
		may, why = k.costs.Pays(later), unpaid
	case k.idle:
		may = true
	default:
		may, price, why = k.allowance.Affords(k.costs), k.costs.Extra(), paced
	}
	if !may && !fl.storedStays(s, x) {
		return true, 0, why
	}
	return may, price, why
}

// count takes what became of a sample after mayKeep: whether the tier was allowed to keep it, and does.
func (k *keeping) count(may, kept bool, price float64, why unkept) {
	switch {
	case !may:
		k.left[why]++
	case kept:
		k.kept++
		k.allowance.Pay(price)
	}
}

// laterUses is how often jobs with the prefix of s use x after the running epochs; sure says that all of them have a
// known number of epochs. Index streams of other jobs do not count, nor do their walks through blocks; for a visible
// job, no job counts that is not visible.
func (fl *flights) laterUses(s *stream, x ident.ObjectID) (uses int, sure bool) {
	for _, o := range fl.roster.order {
		if s.visible() && !o.visible() {
			continue
		}
		if o.prefix != s.prefix || o != s && (o.job.Spec.Given || o.walks() || !o.job.Member.Has(uint32(x))) {
			continue
		}
		switch n := o.job.Spec.Epochs; {
		case o.job.Draining():
		case n == 0:
			return 0, false
		case !o.job.Begun(): // also the epoch that it will begin with
			uses += int(n - min(o.job.Epoch, n))
		case o.job.Epoch+1 < n:
			uses += int(n - o.job.Epoch - 1)
		}
	}
	return uses, true
}

// unkept explains why the decoded tier does not keep samples that one job alone wanted in the running epochs; empty =
// it keeps all that it has room for.
func (fl *flights) unkept() string {
	if fl.tiering.budgets[ident.Decoded] <= 0 {
		return ""
	}
	var left [unkepts]uint64
	var kept uint64
	for _, s := range fl.roster.order {
		for why, n := range s.keeping.left {
			left[why] += n
		}
		kept += s.keeping.kept
	}
	text := ""
	if n := left[paced]; n > 0 {
		text += fmt.Sprintf("; the decoded tier fills at a pace that lengthens an epoch by at most 10 %%: of the samples"+
			" that one job alone wanted in the running epochs, %d were kept and %d decoded into their batch", kept, n)
	}
	if n := left[last]; n > 0 {
		text += fmt.Sprintf("; %d samples were decoded into their batch and not kept, because no job uses them later", n)
	}
	if n := left[unpaid]; n > 0 {
		text += fmt.Sprintf("; %d samples were decoded into their batch and not kept, because to keep one costs more than"+
			" its known later uses save", n)
	}
	return text
}
