package report

import (
	"strings"

	"larder/internal/plot"
)

// known are the styles of names that every report has: larder's own in one colour and bold, relatives alike.
var known = map[string]plot.Style{
	"need":              {Colour: "c0", Line: plot.Bold},
	"refcount":          {Colour: "c4", Line: plot.Whole},
	"minio":             {Colour: "c2", Line: plot.Whole},
	"minio-preselect":   {Colour: "c2", Line: plot.Dotted},
	"minio-partitioned": {Colour: "c2", Line: plot.Mixed},
	"lru":               {Colour: "c1", Line: plot.Whole},
	"fifo":              {Colour: "c1", Line: plot.Dotted},
	"random":            {Colour: "c6", Line: plot.Whole},
	"2-random":          {Colour: "c6", Line: plot.Dotted},
	"w-tinylfu":         {Colour: "c3", Line: plot.Whole},
	"s3-fifo":           {Colour: "c7", Line: plot.Whole},
	"sieve":             {Colour: "c5", Line: plot.Whole},
	"belady":            {Colour: plot.Ink, Line: plot.Bounded},
	"clairvoyant-k":     {Colour: plot.Ink, Line: plot.Mixed},

	"independent": {Colour: plot.Ink, Line: plot.Whole},
	"unbounded":   {Colour: plot.Ink, Line: plot.Dotted},
	"lower-bound": {Colour: plot.Ink, Line: plot.Bounded},

	"larder":             {Colour: "c0", Line: plot.Bold},
	"larder-strict":      {Colour: "c0", Line: plot.Dotted},
	"larder-epoch":       {Colour: "c0", Line: plot.Mixed},
	"coordl":             {Colour: "c2", Line: plot.Whole},
	"tensorsocket":       {Colour: "c1", Line: plot.Whole},
	"tensorsocket-fixed": {Colour: "c1", Line: plot.Dotted},
	"window":             {Colour: "c5", Line: plot.Whole},
	"quiver":             {Colour: "c3", Line: plot.Whole},
	"shade":              {Colour: "c6", Line: plot.Whole},
	"icache":             {Colour: "c6", Line: plot.Dotted},
	"joader":             {Colour: "c4", Line: plot.Whole},
	"joader-as-released": {Colour: "c4", Line: plot.Dotted},
	"seneca":             {Colour: "c7", Line: plot.Whole},

	"encoded":      {Colour: "c2", Line: plot.Whole},
	"decoded":      {Colour: "c0", Line: plot.Whole},
	"augmented":    {Colour: "c4", Line: plot.Whole},
	"from storage": {Colour: "c6", Line: plot.Whole},
	"working":      {Colour: "c0", Line: plot.Whole},
	"waiting":      {Colour: "c1", Line: plot.Whole},
}

// styles returns the style of a name that every report has; a note behind the name changes nothing.
func styles(name string) (plot.Style, bool) {
	st, ok := known[strings.TrimSuffix(strings.TrimSuffix(name, notExact), isBound)]
	return st, ok
}
