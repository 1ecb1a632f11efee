package measure

import (
	"slices"

	"larder/bench/fair"
	"larder/internal/ident"
)

// positions takes a whole epoch into the account of the samples' mean positions. Its order is that in which clients
// got the samples, those of all ranks together.
//
// The account begins with the first two whole epochs in a row: a job of one epoch costs nothing. After that an epoch
// that is not the job's subset, because samples were quarantined, lost, repeated or changed, is left out, and the
// account continues with the next one: lags count the epochs that were taken in.
func (c *Collector) positions(j *collected, e *epoch) {
	if j.training == nil {
		if j.last == nil || !j.whole(j.last) {
			return
		}
		c.order = slices.Grow(c.order[:0], e.n)[:e.n]
		for i := range c.order { // a sample is identified by its index in the subset
			c.order[i] = ident.ObjectID(i)
		}
		j.training = fair.New(c.order, j.lags)
		j.training.Add(c.inOrder(j.last))
	}
	j.training.Add(c.inOrder(e))
}

// inOrder is the order of a whole epoch, good until the next call.
func (c *Collector) inOrder(e *epoch) []ident.ObjectID {
	c.order = slices.Grow(c.order[:0], e.n)[:e.n]
	for i, p := range e.pos {
		c.order[p-1] = ident.ObjectID(i)
	}
	return c.order
}
