package parquet

import (
	"fmt"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/source/packed/arrow"
)

// texts reads the values of a row of lists of text as JSON, which is what they are in Arrow files, too.
func (r *columnReader) texts(c *Cell, v *pq.Value) error {
	depth := len(r.lists)
	r.open = grow(r.open, depth)
	clear(r.open)
	c.Null = v.DefinitionLevel() < r.lists[0]-1
	n := 0
	for first := true; v != nil; first = false {
		if n++; n&(1<<16-1) == 0 && r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		if len(r.data) > maxCell || n > maxCell {
			return fmt.Errorf("a value of more than %d bytes", maxCell)
		}
		rep := v.RepetitionLevel()
		if !first && rep == 0 {
			break
		}
		if rep > depth || rep > 0 && !r.open[rep-1] {
			return fmt.Errorf("repetition level %d of %d", rep, depth)
		}
		r.closeLists(rep)
		if rep > 0 {
			r.data = append(r.data, ',')
		}
		r.text(v, rep)
		r.at++
		var err error
		if v, err = r.peek(); err != nil {
			return err
		}
	}
	r.closeLists(0)
	c.Data = r.data
	return nil
}

// closeLists ends the lists inside of list n.
func (r *columnReader) closeLists(n int) {
	for k := len(r.lists) - 1; k >= n; k-- {
		if r.open[k] {
			r.data = append(r.data, ']')
			r.open[k] = false
		}
	}
}

// text appends a value, and the beginnings of the lists that begin with it, from list n on.
func (r *columnReader) text(v *pq.Value, n int) {
	def := v.DefinitionLevel()
	for k := n; k < len(r.lists); k++ {
		if def < r.lists[k]-1 {
			r.data = append(r.data, "null"...)
			return
		}
		r.data = append(r.data, '[')
		r.open[k] = true
		if def < r.lists[k] {
			return // it is empty
		}
	}
	if def < r.most {
		r.data = append(r.data, "null"...)
		return
	}
	r.data = arrow.AppendJSON(r.data, v.ByteArray())
}
